//! How a template prints calls of tools, found by rendering conversations whose parts are known.
//!
//! Nothing goes by a model's name. A call is looked for where the assistant's turn begins: what stands
//! before, between and behind calls, and around name and arguments, is what the model was trained to write.

use serde_json::{Map, Value, json};

use super::bare;
use super::tagged::{self, ParameterFormat};
use super::thoughts::THOUGHTS;
use crate::{CallFormatError, ChatTemplate, RenderOptions, TemplateError};

pub(super) const NAME: &str = "probe_tool";
pub(super) const OTHER: &str = "probe_other";
/// Nine letters and digits: what the templates that check a call's id accept.
pub(super) const IDS: [&str; 2] = ["pr0be1aaa", "pr0be2bbb"];
pub(super) const ARGUMENTS: &str = r#"{"probe_key": "probe value", "probe_n": 7}"#;
pub(super) const OTHER_ARGUMENTS: &str = r#"{"probe_key": "another value", "probe_n": 8}"#;

/// A part of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallPart {
    /// The same in every call.
    Text(String),
    /// The tool's name.
    Name,
    /// The call's id: letters and digits, so many.
    Id(usize),
    /// The call's number, one more than that of the call in front of it.
    Number,
}

/// What stands in front of arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallOpening {
    /// In front of the name's head.
    pub begin: String,
    /// In front of the arguments.
    pub head: Vec<CallPart>,
}

/// How a template prints calls: `begin`, a call, (`between`, a call)*, `end`. A call is `head`, the
/// arguments, `tail`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallFormat {
    /// In front of the first call.
    pub begin: String,
    /// From one call to the next; `None` where a turn has one call.
    pub between: Option<String>,
    /// Behind the last call.
    pub end: String,
    /// In front of the arguments.
    pub head: Vec<CallPart>,
    /// Behind the arguments.
    pub tail: Vec<CallPart>,
    /// Another way to write `begin` and `head`, which the template reads as well and does not print.
    pub other: Option<CallOpening>,
    /// How each parameter stands between tags of its own; `None` where arguments are JSON with a space behind
    /// commas and colons.
    pub parameters: Option<ParameterFormat>,
    /// What stands in front of an answer, where a call begins with nothing but its name; else nothing.
    pub answer_open: String,
}

impl CallFormat {
    /// What `template` prints, `ends` being the texts of the tokens that end a turn. An error says why it
    /// prints no calls that could be recognised.
    pub fn find(template: &ChatTemplate, ends: &[String]) -> Result<Self, CallFormatError> {
        let calls = [(NAME, IDS[0], ARGUMENTS), (OTHER, IDS[1], OTHER_ARGUMENTS)];
        let one = RenderedTurn::render(template, &calls[..1]).map_err(CallFormatError::Render)?;
        if !one.prompt.contains(NAME) {
            return Err(CallFormatError::ShowsNoTools);
        }
        let Some(only) = one.call(&calls[0], 0) else {
            if let Some(format) = bare::find(template, &one, ends) {
                return Ok(format);
            }
            return tagged::find(template, ends).ok_or(CallFormatError::UnknownForm)?;
        };
        let begin = one.turn[..only.start].to_owned();
        let end = up_to_end(&one.turn[only.end..], ends).ok_or(CallFormatError::NoEnd)?.to_owned();
        let object = &one.turn[only.start..only.end];
        let at = object.find(ARGUMENTS).ok_or(CallFormatError::OtherSpaces)?;
        let (head, tail) = (parts(&object[..at]), parts(&object[at + ARGUMENTS.len()..]));
        if !head.contains(&CallPart::Name) {
            return Err(CallFormatError::NameBehindArguments);
        }
        let format = Self {
            begin,
            between: None,
            end,
            head,
            tail,
            other: None,
            parameters: None,
            answer_open: String::new(),
        };
        let between =
            RenderedTurn::render(template, &calls).ok().and_then(|two| format.between(&two, &calls, ends));
        Ok(Self { between, ..format })
    }

    /// What stands between two calls of one turn, if the turn is otherwise as expected.
    fn between(&self, two: &RenderedTurn, calls: &[Probe<'_>; 2], ends: &[String]) -> Option<String> {
        let first = two.call(&calls[0], 0)?;
        let second = two.call(&calls[1], first.end)?;
        let between = &two.turn[first.end..second.start];
        // Some number their calls: another one is not written like the first.
        let head = |probe: &Probe<'_>, call: &Span| {
            let at = two.turn[call.start..].find(probe.2)?;
            Some(two.turn[call.start..call.start + at].replace(probe.0, NAME).replace(probe.1, IDS[0]))
        };
        if head(&calls[0], &first) != head(&calls[1], &second) {
            return None;
        }
        let is_same = two.turn[..first.start] == self.begin
            && up_to_end(&two.turn[second.end..], ends) == Some(self.end.as_str())
            && !ends.iter().any(|end| between.contains(end.as_str()));
        is_same.then(|| between.to_owned())
    }

    /// The form in a few words, with the sign that calls begin with.
    pub fn label(&self) -> String {
        match (self.begin.trim(), &self.parameters) {
            ("", _) if !self.answer_open.is_empty() => "JSON behind a name".to_owned(),
            ("", _) => "a JSON object".to_owned(),
            (sign, None) => format!("JSON behind {sign:.40}"),
            (sign, Some(_)) => format!("parameters in tags behind {sign:.40}"),
        }
    }

    /// Everything that is the same in every call.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let other = self.other.iter();
        let parts = self.head.iter().chain(&self.tail).chain(other.clone().flat_map(|other| &other.head));
        let parts = parts.filter_map(|part| match part {
            CallPart::Text(text) => Some(text.as_str()),
            CallPart::Name | CallPart::Id(_) | CallPart::Number => None,
        });
        let signs =
            [&self.begin, &self.end].into_iter().chain(&self.between).chain(other.map(|other| &other.begin));
        signs.map(String::as_str).chain(parts)
    }

    /// What a call of this tool begins with, up to an id or a number.
    pub fn opening(&self, name: &str) -> String {
        let known = self.head.iter().map_while(|part| match part {
            CallPart::Text(text) => Some(text.as_str()),
            CallPart::Name => Some(name),
            CallPart::Id(_) | CallPart::Number => None,
        });
        std::iter::once(self.begin.as_str()).chain(known).collect()
    }

    /// Whether calls have an id of their own in the text.
    pub fn has_ids(&self) -> bool {
        self.head.iter().chain(&self.tail).any(|part| matches!(part, CallPart::Id(_)))
    }
}

/// A tool's name, the call's id, its arguments.
pub(super) type Probe<'a> = (&'a str, &'a str, &'a str);

/// A conversation with calls: what a model would have been asked with, and what its turn is.
pub(super) struct RenderedTurn {
    prompt: String,
    pub(super) turn: String,
}

struct Span {
    start: usize,
    end: usize,
}

impl RenderedTurn {
    pub(super) fn render(template: &ChatTemplate, calls: &[Probe<'_>]) -> Result<Self, TemplateError> {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "description": "A probe.", "parameters": {
                "type": "object", "properties": {"probe_key": {"type": "string"}, "probe_n": {"type": "integer"}},
            }}})
        };
        let options = |add_generation_prompt| RenderOptions {
            add_generation_prompt,
            tools: Some(json!([tool(NAME), tool(OTHER)])),
            vars: Map::new(),
            now: Some(some_day()),
        };
        let mut messages = vec![json!({"role": "user", "content": "probe"})];
        let prompt = template.render(&messages, &options(true))?;
        let call = |(name, id, arguments): &Probe<'_>| {
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        };
        let calls_made: Vec<Value> = calls.iter().map(call).collect();
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": calls_made}));
        for (name, id, _) in calls {
            messages.push(json!({"role": "tool", "name": name, "tool_call_id": id, "content": "probed"}));
        }
        let whole = template.render(&messages, &options(false))?;
        // A prompt may end in an opened thought, which is not there in a turn that is over.
        let same = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
        let same = whole.floor_char_boundary(same);
        // `<think>`, where the prompt opens a thought, begins as `<tool_call>` does: no sign is cut.
        let same = match whole[..same].rfind('<') {
            Some(sign) if same < prompt.len() && !whole[sign..same].contains('>') => sign,
            _ => same,
        };
        Ok(Self { prompt, turn: behind_thought(&whole[same..]).to_owned() })
    }

    /// The first JSON object from `from` on that is a call of this tool.
    fn call(&self, (name, ..): &Probe<'_>, from: usize) -> Option<Span> {
        let named = from + self.turn[from..].find(&format!("\"{name}\""))?;
        // The innermost brace in front of the name that begins an object with it.
        self.turn[from..named].rmatch_indices('{').find_map(|(at, _)| {
            let start = from + at;
            let mut values = serde_json::Deserializer::from_str(&self.turn[start..]).into_iter::<Value>();
            let is_object = values.next()?.is_ok_and(|value| value.is_object());
            let end = start + values.byte_offset();
            (is_object && end > named).then_some(Span { start, end })
        })
    }
}

/// A turn without the empty thought that some templates begin it with.
fn behind_thought(turn: &str) -> &str {
    let spoken = turn.find(NAME).unwrap_or(0);
    let close = |(_, close): &(&str, &'static str)| Some(turn[..spoken].rfind(close)? + close.len());
    THOUGHTS.iter().filter_map(close).max().map_or(turn, |end| turn[end..].trim_start())
}

/// Templates that print a date print this one.
pub(super) fn some_day() -> chrono::NaiveDateTime {
    chrono::NaiveDateTime::default()
}

/// The text in front of the first sign that ends a turn.
pub(super) fn up_to_end<'t>(text: &'t str, ends: &[String]) -> Option<&'t str> {
    let at = ends.iter().filter(|end| !end.is_empty()).filter_map(|end| text.find(end.as_str())).min()?;
    Some(&text[..at])
}

/// A text around arguments, with name and id by their places.
pub(super) fn parts(text: &str) -> Vec<CallPart> {
    let marks = [(NAME, CallPart::Name), (IDS[0], CallPart::Id(IDS[0].len()))];
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let next = marks
            .iter()
            .filter_map(|(mark, part)| Some((rest.find(mark)?, mark.len(), part)))
            .min_by_key(|m| m.0);
        let (at, len, part) = match next {
            Some((at, len, part)) => (at, len, Some(part.clone())),
            None => (rest.len(), 0, None),
        };
        if at > 0 {
            found.push(CallPart::Text(rest[..at].to_owned()));
        }
        found.extend(part);
        rest = &rest[at + len..];
    }
    found
}
