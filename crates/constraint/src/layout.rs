//! What an answer is made of, in order, and the grammar that says so: perhaps a thought, then text, a value
//! or calls of tools.
//!
//! JSON is spaced as Python and the chat templates print it (`", "` and `": "`). Free white space would never
//! have to end.

use std::fmt::Write;

use serde_json::Value;

use crate::TaggedArguments;
use crate::literals::{escaped, quoted, spaced};

/// What an answer may be.
#[derive(Clone, PartialEq, Debug)]
pub struct Layout {
    /// What comes before.
    pub thought: Thought,
    /// What stands in front of an answer that is no call; nothing in most templates. Where there is
    /// something, white space counts.
    pub answer_open: Vec<TemplatePiece>,
    /// The texts of control tokens that mean something to who reads the answer: no text and no thought spells
    /// one in letters.
    pub spelled: Vec<String>,
    /// The answer itself.
    pub body: Body,
}

/// Reasoning in front of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thought {
    /// No reasoning at all.
    No,
    /// The prompt has opened it: the answer begins inside.
    Opened {
        /// What closes it.
        close: Vec<TemplatePiece>,
        /// Most tokens of it; then nothing but what closes it may come.
        tokens_max: Option<u32>,
    },
    /// The model may open one.
    Possible {
        /// What opens it.
        open: Vec<TemplatePiece>,
        /// What closes it.
        close: Vec<TemplatePiece>,
        /// Most tokens between the two; then nothing but what closes it may come.
        tokens_max: Option<u32>,
    },
}

/// A part of what a template writes around calls and thoughts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TemplatePiece {
    /// Text, in whatever tokens.
    Text(String),
    /// A control token.
    Control(u32),
}

/// The answer itself.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// Any text.
    Text,
    /// A value of a schema that was read ([`crate::Schema`]).
    Json(Value),
    /// What matches a regular expression.
    Regex(String),
    /// What a grammar of the caller's makes, in the engine's dialect of Lark.
    Lark(String),
    /// Text or calls of tools.
    Calls(Calls),
}

/// Calls as one template prints them: `begin`, a call, (`between`, a call)*, `end`.
#[derive(Clone, PartialEq, Debug)]
pub struct Calls {
    /// In front of the first; most templates have one way to begin.
    pub begin: Vec<TemplatePiece>,
    /// Another way to begin a call, where [`CallShape::other_head`] is what follows.
    pub other_begin: Option<Vec<TemplatePiece>>,
    /// From one to the next.
    pub between: Vec<TemplatePiece>,
    /// Behind the last.
    pub end: Vec<TemplatePiece>,
    /// The tools that may be called.
    pub tools: Vec<CallShape>,
    /// Whether one answer may have several.
    pub is_parallel: bool,
    /// Whether the answer must be calls: it cannot be text, nor have text in front of them.
    pub is_required: bool,
    /// What the answer is where nothing is called, as a schema that was read; `None` where that is any text.
    pub answer: Option<Value>,
}

/// One tool: its name and whatever else stands before and behind its arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct CallShape {
    /// `{"name": "f", "arguments": `
    pub head: Vec<Part>,
    /// The same behind another beginning.
    pub other_head: Vec<Part>,
    /// What stands between the two.
    pub arguments: Arguments,
    /// `}`
    pub tail: Vec<Part>,
}

/// How the arguments of a call are written.
#[derive(Clone, PartialEq, Debug)]
pub enum Arguments {
    /// As one JSON object, of a schema that was read.
    Json(Value),
    /// Each between tags of its own.
    Tagged(Box<TaggedArguments>),
}

/// A part of a call around its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// This text, literally.
    Text(String),
    /// A control token.
    Control(u32),
    /// A name that the model gives the call: letters and digits, so many.
    Id {
        /// Their number.
        len: usize,
    },
    /// The number of the call, which the model counts: at most four digits.
    Number,
}

impl Layout {
    /// The grammar, in the engine's dialect of Lark.
    pub fn grammar(&self) -> String {
        let mut rules = String::new();
        let thought = self.write_thought(&mut rules);
        match &self.body {
            Body::Text => {
                let not_thought = self.not_thought();
                let _ = writeln!(rules, "body: TEXT?\nTEXT: /(.|\\n)+/{not_thought}");
            }
            Body::Json(schema) => {
                let _ = writeln!(rules, "body: %json {}", spaced(schema));
            }
            Body::Regex(regex) => {
                let _ = writeln!(rules, "body: BODY\nBODY: /{}/", delimited(regex));
            }
            Body::Lark(lark) => {
                let _ = writeln!(rules, "body: %lark {{\n{lark}\n}}");
            }
            Body::Calls(calls) => self.write_calls(calls, &mut rules),
        }
        let open = match &self.body {
            _ if self.answer_open.is_empty() => String::new(),
            Body::Calls(_) => String::new(),
            _ => format!("{} ", sequence(&self.answer_open)),
        };
        format!("start: {thought}{open}body\n{rules}")
    }

    /// Rules for the thought; what stands in front of the body.
    fn write_thought(&self, rules: &mut String) -> &'static str {
        let (open, close, tokens_max, thought) = match &self.thought {
            Thought::No => return "",
            Thought::Opened { close, tokens_max } => (None, close, tokens_max, "thought gap "),
            Thought::Possible { open, close, tokens_max } => {
                (Some(open), close, tokens_max, "(open thought gap)? ")
            }
        };
        if let Some(open) = open {
            // White space in front of a thought is a part of nothing. A value has none in front of it, which
            // would not have to end.
            let _ = match (open.split_first(), self.is_free_text() && self.answer_open.is_empty()) {
                (Some((TemplatePiece::Text(text), rest)), true) => {
                    writeln!(rules, "open: OPEN {}\nOPEN: /\\s{{0,4}}{}/", sequence(rest), escaped(text))
                }
                (_, true) => writeln!(rules, "open: SPACE? {}\nSPACE: /\\s{{1,4}}/", sequence(open)),
                (_, false) => writeln!(rules, "open: {}", sequence(open)),
            };
        }
        let gap = if self.answer_open.is_empty() { "/\\n{0,2}/" } else { "\"\"" };
        let _ = writeln!(rules, "gap: {gap}");
        rules.push_str(&thought_rules(close, *tokens_max, &self.not_spelled()));
        thought
    }

    /// Whether the answer may be any text.
    fn is_free_text(&self) -> bool {
        match &self.body {
            Body::Text => true,
            Body::Calls(calls) => !calls.is_required && calls.answer.is_none(),
            Body::Json(_) | Body::Regex(_) | Body::Lark(_) => false,
        }
    }

    /// What text must not have in it so that it cannot be taken for a control token.
    fn not_spelled(&self) -> String {
        let spelled: Vec<String> =
            self.spelled.iter().filter(|text| !text.is_empty()).map(|text| escaped(text)).collect();
        if spelled.is_empty() {
            return String::new();
        }
        format!(" & ~/(.|\\n)*({})(.|\\n)*/", spelled.join("|"))
    }

    /// What text must not be so that it cannot be taken for a thought, nor have in it.
    fn not_thought(&self) -> String {
        let open = match &self.thought {
            Thought::Possible { open, .. } if self.answer_open.is_empty() => first_text(open),
            _ => None,
        };
        let not_thought = open.map(|open| format!(" & ~/\\s*{}(.|\\n)*/", escaped(&open)));
        not_thought.unwrap_or_default() + &self.not_spelled()
    }

    fn write_calls(&self, calls: &Calls, rules: &mut String) {
        let names: Vec<String> = (0..calls.tools.len()).map(|i| format!("call_{i}")).collect();
        for (name, tool) in names.iter().zip(&calls.tools) {
            let (head, tail) = (parts(&tool.head), parts(&tool.tail));
            let _ = writeln!(rules, "{name}: {head} args_{name} {tail}");
            if calls.other_begin.is_some() {
                let _ = writeln!(rules, "other_{name}: {} args_{name} {tail}", parts(&tool.other_head));
            }
            match &tool.arguments {
                Arguments::Json(schema) => {
                    let _ = writeln!(rules, "args_{name}: %json {}", spaced(schema));
                }
                Arguments::Tagged(arguments) => arguments.write(&format!("args_{name}"), rules),
            }
        }
        let _ = writeln!(rules, "call: {}", names.join(" | "));
        let more = match calls.is_parallel {
            true => format!(" ({} call)*", sequence(&calls.between)),
            false => String::new(),
        };
        let _ = writeln!(rules, "calls: call{more} {}", sequence(&calls.end));
        let mut begun = format!("{} calls", sequence(&calls.begin));
        if let Some(begin) = &calls.other_begin {
            let (end, others) = (sequence(&calls.end), names.join(" | other_"));
            let _ = writeln!(rules, "other_call: other_{others}");
            let _ = write!(begun, " | {} other_call {end}", sequence(begin));
        }
        if calls.is_required {
            let _ = writeln!(rules, "body: {begun}");
            return;
        }
        if !self.answer_open.is_empty() {
            let answer = match &calls.answer {
                Some(schema) => format!("answer: %json {}", spaced(schema)),
                None => format!("answer: TEXT?\nTEXT: /(.|\\n)+/{}", self.not_spelled()),
            };
            let _ = writeln!(rules, "body: {} answer | {begun}\n{answer}", sequence(&self.answer_open));
            return;
        }
        if let Some(schema) = &calls.answer {
            let begin = match calls.begin.split_first() {
                Some((TemplatePiece::Text(text), rest)) => {
                    let first = TemplatePiece::Text(text.trim_start().to_owned());
                    sequence(&[&[first], rest].concat())
                }
                _ => sequence(&calls.begin),
            };
            let _ = writeln!(rules, "body: answer | {begin} calls\nanswer: %json {}", spaced(schema));
            return;
        }
        self.write_text_or_calls(calls, rules);
    }

    /// Text in which no call begins, or text up to the beginning of one and then calls.
    fn write_text_or_calls(&self, calls: &Calls, rules: &mut String) {
        let not_thought = self.not_thought();
        let begin = sequence(&calls.begin);
        match calls.begin.first() {
            Some(TemplatePiece::Control(_)) => {
                let _ = writeln!(rules, "body: TEXT? ({begin} calls)?\nTEXT: /(.|\\n)+/{not_thought}");
            }
            Some(TemplatePiece::Text(text)) => {
                // White space in front of the sign that a call begins, or behind it, is not the sign.
                let sign = text.trim();
                let behind = &text[text.find(sign).unwrap_or(0) + sign.len()..];
                let rest: Vec<TemplatePiece> = std::iter::once(TemplatePiece::Text(behind.to_owned()))
                    .chain(calls.begin[1..].iter().cloned())
                    .collect();
                let sign = escaped(sign);
                let _ = writeln!(
                    rules,
                    "body: text | lead {} calls\ntext: TEXT?\nTEXT: /(.|\\n)+/ & ~/(.|\\n)*{sign}(.|\\n)*/{not_thought}\n\
                     lead[lazy]: LEAD\nLEAD: /(.|\\n)*{sign}/{not_thought}",
                    sequence(&rest)
                );
            }
            // A call is the whole answer: text is what does not begin like one.
            None => {
                let sign =
                    calls.tools.first().map(|tool| common_start(&calls.tools, tool)).unwrap_or_default();
                let _ = writeln!(
                    rules,
                    "body: text | calls\ntext: TEXT?\nTEXT: /(.|\\n)+/ & ~/\\s*{}(.|\\n)*/{not_thought}",
                    escaped(&sign)
                );
            }
        }
    }
}

/// What the heads of all tools begin with.
fn common_start(tools: &[CallShape], first: &CallShape) -> String {
    let text = |tool: &CallShape| match tool.head.first() {
        Some(Part::Text(text)) => text.clone(),
        _ => String::new(),
    };
    tools.iter().map(text).fold(text(first), |common, other| {
        let same = common.chars().zip(other.chars()).take_while(|(a, b)| a == b);
        same.map(|(a, _)| a).collect()
    })
}

fn first_text(pieces: &[TemplatePiece]) -> Option<String> {
    match pieces.first()? {
        TemplatePiece::Text(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        TemplatePiece::Control(_) => None,
    }
}

/// Rules of any text up to and with what closes it. Text that has come to its last token is cut there,
/// whatever it was about to say.
fn thought_rules(close: &[TemplatePiece], tokens_max: Option<u32>, not_spelled: &str) -> String {
    let behind = sequence(close);
    if tokens_max == Some(0) {
        return format!("thought: {behind}\n");
    }
    let bound = |attribute: &str| match (tokens_max, attribute) {
        (Some(n), "") => format!("[max_tokens={n}]"),
        (Some(n), attribute) => format!("[{attribute}, max_tokens={n}]"),
        (None, "") => String::new(),
        (None, attribute) => format!("[{attribute}]"),
    };
    let (lazy, cut) = (bound("lazy"), bound(""));
    match close.first() {
        Some(TemplatePiece::Text(text)) if !text.trim().is_empty() => {
            let sign = escaped(text.trim());
            let lead = format!("thought_lead{lazy}: THOUGHT\nTHOUGHT: /(.|\\n)*{sign}/\n");
            match tokens_max {
                None => format!("thought: thought_lead\n{lead}"),
                // The engine ends the first lexeme of a row that has spent its tokens: it must be the one
                // that may end anywhere.
                Some(_) => format!(
                    "thought: thought_cut {behind} | thought_lead\nthought_cut{cut}: CUT\n\
                     CUT: /(.|\\n)+/ & ~/(.|\\n)*{sign}(.|\\n)*/\n{lead}"
                ),
            }
        }
        _ => format!(
            "thought: thought_cut? {behind}\nthought_cut{cut}: THOUGHT\nTHOUGHT: /(.|\\n)+/{not_spelled}\n"
        ),
    }
}

fn sequence(pieces: &[TemplatePiece]) -> String {
    let piece = |piece: &TemplatePiece| match piece {
        TemplatePiece::Text(text) => quoted(text),
        TemplatePiece::Control(id) => format!("<[{id}]>"),
    };
    let written: Vec<String> =
        pieces.iter().filter(|p| !matches!(p, TemplatePiece::Text(t) if t.is_empty())).map(piece).collect();
    if written.is_empty() { "\"\"".to_owned() } else { written.join(" ") }
}

fn parts(parts: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => quoted(text),
        Part::Control(id) => format!("<[{id}]>"),
        Part::Id { len } => format!("/[a-zA-Z0-9]{{{len}}}/"),
        Part::Number => "/[0-9]{1,4}/".to_owned(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(" ")
}

/// A regular expression of the caller's between slashes: it cannot end the literal that it stands in.
fn delimited(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len());
    let mut is_escaped = false;
    for c in regex.chars() {
        match c {
            '/' if !is_escaped => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    out
}
