//! From the text of an answer to its parts: thought, text, calls. A fold over the text: the same parts,
//! however it is cut.
//!
//! The grammar that such answers are kept to lets nothing else through than what the format has. So this
//! looks for a format's signs and counts braces, and need not guess.

use std::collections::BTreeMap;

use super::arguments::{Step, TaggedParser, ToolParameters, split_at_sign};
use super::format::{CallFormat, CallPart};

/// What becomes of a piece of text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnswerPart {
    /// Of the thought.
    Thought(String),
    /// Of the answer's text.
    Text(String),
    /// A call of this tool begins.
    Call(String),
    /// Of the arguments of the call that began last.
    Arguments(String),
}

/// How an answer is read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AnswerFormat {
    /// What opens and closes a thought, where the model has any.
    pub thought: Option<(String, String)>,
    /// The prompt has opened one.
    pub is_opened: bool,
    /// What stands in front of text, where answers stand in a channel of their own.
    pub answer_open: String,
    /// How calls look, where there may be any.
    pub calls: Option<CallFormat>,
    /// Calls stand only where the answer begins: its text is JSON, which may hold their signs.
    pub calls_come_first: bool,
    /// What the parameters of each tool may be, where they stand between tags.
    pub parameters: BTreeMap<String, ToolParameters>,
}

/// Takes an answer's text piece by piece.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: AnswerFormat,
    state: State,
    /// Text whose part is not certain yet.
    held: String,
    /// The call that is read began in the other way.
    is_other: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// Nothing but white space came: a thought or a call could begin.
    Start,
    Thought,
    /// Behind a thought: white space belongs to nothing.
    Behind,
    /// Text; nothing of it was white space alone at the start.
    Text,
    /// In front of the arguments of a call.
    Head,
    /// In the arguments, so many braces deep.
    Arguments {
        depth: u32,
        in_string: bool,
        is_escaped: bool,
    },
    /// In arguments between tags.
    Tagged(TaggedParser),
    /// Behind the arguments.
    Tail,
    /// Behind the last call.
    Over,
}

impl AnswerParser {
    /// At the beginning of an answer.
    pub fn new(format: AnswerFormat) -> Self {
        let state = if format.is_opened && format.thought.is_some() { State::Thought } else { State::Start };
        Self { format, state, held: String::new(), is_other: false }
    }

    /// Whether what comes next belongs to the thought.
    pub fn is_thinking(&self) -> bool {
        self.state == State::Thought
    }

    /// Takes text; gives the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// The rest, when no more comes. A call that was cut ends where it was cut.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let rest = std::mem::take(&mut self.held);
        match &self.state {
            State::Tagged(arguments) => {
                let mut json = String::new();
                arguments.finish(&rest, &mut json);
                some_arguments(json)
            }
            _ if rest.is_empty() => Vec::new(),
            State::Thought => vec![AnswerPart::Thought(rest)],
            State::Start | State::Text | State::Behind => vec![AnswerPart::Text(rest)],
            State::Head | State::Arguments { .. } | State::Tail | State::Over => Vec::new(),
        }
    }

    /// One move; false when more text is needed.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match &self.state {
            State::Start | State::Behind => self.begin(),
            State::Thought => self.think(parts),
            State::Text => self.speak(parts),
            State::Head => self.open_call(parts),
            State::Arguments { .. } => self.argue(parts),
            State::Tagged(_) => self.argue_tagged(parts),
            State::Tail => self.close_call(),
            State::Over => false,
        }
    }

    /// Decides what the answer begins with, once its first signs are there.
    fn begin(&mut self) -> bool {
        if !self.format.answer_open.is_empty() {
            return self.begin_channel();
        }
        let shown = self.held.trim_start();
        if self.state == State::Start
            && let Some((open, _)) = &self.format.thought
        {
            if let Some(rest) = shown.strip_prefix(open.as_str()) {
                self.held = rest.to_owned();
                self.state = State::Thought;
                return true;
            }
            if open.starts_with(shown) {
                return false;
            }
        }
        if shown.is_empty() {
            return false;
        }
        // White space in front of a call or behind a thought says nothing; in front of text it stays.
        let is_behind = self.state == State::Behind;
        if let Some((sign, is_head)) = self.first_sign() {
            if let Some(rest) = shown.strip_prefix(sign.as_str()) {
                self.held = if is_head { shown.to_owned() } else { rest.to_owned() };
                self.state = State::Head;
                return true;
            }
            if sign.starts_with(shown) {
                return false;
            }
        }
        if is_behind {
            self.held = shown.to_owned();
        }
        self.state = State::Text;
        true
    }

    /// The same where thoughts, answers and calls each have a sign in front.
    fn begin_channel(&mut self) -> bool {
        let thought = self.format.thought.as_ref().map(|(open, _)| (open, State::Thought, false));
        let thought = thought.filter(|_| self.state == State::Start);
        let answer = (&self.format.answer_open, State::Text, false);
        let calls = self.format.calls.as_ref();
        let call = calls.map(|calls| (&calls.begin, State::Head, false));
        let other =
            calls.and_then(|calls| calls.other.as_ref()).map(|other| (&other.begin, State::Head, true));
        let signs = thought.into_iter().chain([answer]).chain(call).chain(other);
        // One sign may begin another: ` to=` a call, ` to=user<|message|>` an answer.
        if signs.clone().any(|(sign, ..)| sign.len() > self.held.len() && sign.starts_with(&self.held)) {
            return false;
        }
        let longest =
            signs.filter(|(sign, ..)| self.held.starts_with(*sign)).max_by_key(|(sign, ..)| sign.len());
        if let Some((sign, state, is_other)) = longest {
            let len = sign.len();
            (self.state, self.is_other) = (state, is_other);
            self.held.drain(..len);
            return true;
        }
        self.state = State::Text;
        true
    }

    /// What a call begins with where nothing but white space is in front of it, and whether that is a part of
    /// its head.
    fn first_sign(&self) -> Option<(String, bool)> {
        let calls = self.format.calls.as_ref()?;
        let begin = calls.begin.trim();
        if !begin.is_empty() {
            return self.format.calls_come_first.then(|| (begin.to_owned(), false));
        }
        match calls.head.first()? {
            CallPart::Text(text) => Some((text.clone(), true)),
            _ => None,
        }
    }

    fn think(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let Some((_, close)) = &self.format.thought else { return false };
        let (before, found) = split_at_sign(&mut self.held, close);
        if !before.is_empty() {
            parts.push(AnswerPart::Thought(before));
        }
        if found {
            self.state = State::Behind;
        }
        found
    }

    fn speak(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let is_text_alone = self.format.calls_come_first || !self.format.answer_open.is_empty();
        let calls = self.format.calls.as_ref().filter(|_| !is_text_alone);
        let sign = calls.map(|calls| calls.begin.trim()).unwrap_or_default();
        if sign.is_empty() {
            let text = std::mem::take(&mut self.held);
            if !text.is_empty() {
                parts.push(AnswerPart::Text(text));
            }
            return false;
        }
        let (before, found) = split_at_sign(&mut self.held, sign);
        if !before.is_empty() {
            parts.push(AnswerPart::Text(before));
        }
        if found {
            self.state = State::Head;
        }
        found
    }

    /// Reads what stands in front of the arguments.
    fn open_call(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(calls) = &self.format.calls else { return false };
        let Some((rest, name)) = match_parts(self.held.trim_start(), self.head(calls)) else { return false };
        // Arguments that are JSON are an object.
        if calls.parameters.is_none() && !rest.starts_with('{') {
            return false;
        }
        let name = name.unwrap_or_default();
        let state = match &calls.parameters {
            None => State::Arguments { depth: 0, in_string: false, is_escaped: false },
            Some(_) => {
                let parameters = self.format.parameters.get(&name).cloned().unwrap_or_default();
                State::Tagged(TaggedParser::new(parameters))
            }
        };
        parts.push(AnswerPart::Call(name));
        self.held = rest.to_owned();
        self.state = state;
        true
    }

    fn head<'c>(&self, calls: &'c CallFormat) -> &'c [CallPart] {
        calls.other.as_ref().filter(|_| self.is_other).map_or(&calls.head, |other| &other.head)
    }

    fn argue_tagged(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let calls = self.format.calls.as_ref();
        let (State::Tagged(arguments), Some(format)) =
            (&mut self.state, calls.and_then(|calls| calls.parameters.as_ref()))
        else {
            return false;
        };
        let mut json = String::new();
        let step = arguments.step(format, &mut self.held, &mut json);
        parts.extend(some_arguments(json));
        if let Step::Over = step {
            self.state = State::Tail;
        }
        !matches!(step, Step::Wait)
    }

    fn argue(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let State::Arguments { mut depth, mut in_string, mut is_escaped } = self.state else { return false };
        let mut end = None;
        for (at, byte) in self.held.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if in_string => is_escaped = true,
                b'"' => in_string = !in_string,
                b'{' | b'[' if !in_string => depth += 1,
                b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && !in_string {
                end = Some(at + 1);
                break;
            }
        }
        let rest = self.held.split_off(end.unwrap_or(self.held.len()));
        let text = std::mem::replace(&mut self.held, rest);
        if !text.is_empty() {
            parts.push(AnswerPart::Arguments(text));
        }
        self.state = match end {
            Some(_) => State::Tail,
            None => State::Arguments { depth, in_string, is_escaped },
        };
        end.is_some()
    }

    /// Reads what stands behind the arguments, and whether another call follows.
    fn close_call(&mut self) -> bool {
        let Some(calls) = &self.format.calls else { return false };
        let Some((rest, _)) = match_parts(&self.held, &calls.tail) else { return false };
        let between = calls.between.as_deref().filter(|between| !between.is_empty());
        match between.and_then(|between| rest.strip_prefix(between)) {
            Some(next) => {
                self.held = next.to_owned();
                self.state = State::Head;
                true
            }
            None if between.is_some_and(|between| between.starts_with(rest)) => false,
            None => {
                self.held.clear();
                self.state = State::Over;
                false
            }
        }
    }
}

fn some_arguments(json: String) -> Vec<AnswerPart> {
    if json.is_empty() { Vec::new() } else { vec![AnswerPart::Arguments(json)] }
}

/// What follows the parts of a call in `text`, and its name; `None` while not all of them are there. An id
/// that the model gave the call says nothing: calls are named by what they are a part of.
fn match_parts<'t>(text: &'t str, parts: &[CallPart]) -> Option<(&'t str, Option<String>)> {
    let (mut rest, mut name) = (text, None);
    for part in parts {
        match part {
            CallPart::Text(text) => rest = rest.strip_prefix(text.as_str())?,
            CallPart::Name => {
                // The first sign behind it says that it is whole.
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c))?;
                name = Some(rest[..end].to_owned());
                rest = &rest[end..];
            }
            CallPart::Id(len) => rest = rest.get(*len..)?,
            CallPart::Number => {
                // As with a name, the sign behind it says that it is whole.
                let end = rest.find(|c: char| !c.is_ascii_digit())?;
                rest = &rest[end..];
            }
        }
    }
    Some((rest, name))
}
