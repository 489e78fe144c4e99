//! Parameters between tags, read as they come into the JSON of a call's arguments.

use std::collections::BTreeMap;

use super::python::{PythonReader, push_text};
use super::tagged::ParameterFormat;

/// What a parameter's value may be. A value that may be a text and something else is what it looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueKinds {
    /// A text as it is.
    pub text: bool,
    /// `null`
    pub null: bool,
    /// `true` and `false`
    pub boolean: bool,
    /// Whole numbers.
    pub integer: bool,
    /// Any numbers.
    pub number: bool,
    /// Arrays and objects.
    pub structure: bool,
}

/// What the parameters of a tool may be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolParameters {
    /// Those that its schema names.
    pub named: BTreeMap<String, ValueKinds>,
    /// All others.
    pub others: ValueKinds,
}

/// The arguments of one call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TaggedParser {
    parameters: ToolParameters,
    /// Parameters that began.
    count: u32,
    place: TaggedParserState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaggedParserState {
    /// In front of a parameter, or behind the last.
    Open,
    Name,
    /// In front of a value that is not known for what it is.
    Value(ValueKinds),
    /// In a text.
    Text,
    /// In an array, an object, a number or a string of JSON.
    Json {
        in_string: bool,
        is_escaped: bool,
    },
    /// In the same where the template prints it as Python does.
    Python(PythonReader),
}

/// What a step came to.
pub(super) enum Step {
    /// More text is needed.
    Wait,
    /// Go on.
    More,
    /// The arguments are complete.
    Over,
}

impl TaggedParser {
    pub(super) fn new(parameters: ToolParameters) -> Self {
        Self { parameters, count: 0, place: TaggedParserState::Open }
    }

    /// Takes what is certain from `held`, and writes it as JSON.
    pub(super) fn step(&mut self, format: &ParameterFormat, held: &mut String, json: &mut String) -> Step {
        match self.place {
            TaggedParserState::Open => self.open(format, held, json),
            TaggedParserState::Name => self.name(format, held, json),
            TaggedParserState::Value(kinds) => self.value(kinds, format, held, json),
            TaggedParserState::Text => self.text(format, held, json),
            TaggedParserState::Json { in_string, is_escaped } => {
                self.json(in_string, is_escaped, format, held, json)
            }
            TaggedParserState::Python(reader) => self.python(reader, format, held, json),
        }
    }

    /// What is left of arguments that were cut.
    pub(super) fn finish(&self, held: &str, json: &mut String) {
        match self.place {
            TaggedParserState::Text => push_text(held, json),
            TaggedParserState::Json { .. } => json.push_str(held),
            TaggedParserState::Open
            | TaggedParserState::Name
            | TaggedParserState::Value(_)
            | TaggedParserState::Python(_) => {}
        }
    }

    fn open(&mut self, format: &ParameterFormat, held: &mut String, json: &mut String) -> Step {
        if let Some(rest) = held.strip_prefix(format.open.as_str()) {
            *held = rest.to_owned();
            self.place = TaggedParserState::Name;
            return Step::More;
        }
        if format.open.starts_with(held.as_str()) {
            return Step::Wait;
        }
        json.push_str(if self.count == 0 { "{}" } else { "}" });
        Step::Over
    }

    fn name(&mut self, format: &ParameterFormat, held: &mut String, json: &mut String) -> Step {
        let Some((at, len, is_text)) = name_end(held, format) else { return Step::Wait };
        let mut kinds = *self.parameters.named.get(&held[..at]).unwrap_or(&self.parameters.others);
        match is_text {
            Some(true) => kinds = ValueKinds { text: true, ..ValueKinds::default() },
            Some(false) => kinds.text = false,
            None => {}
        }
        json.push_str(if self.count == 0 { "{\"" } else { ", \"" });
        push_text(&held[..at], json);
        json.push_str("\": ");
        self.count += 1;
        self.place = TaggedParserState::Value(kinds);
        *held = held.split_off(at + len);
        Step::More
    }

    fn value(
        &mut self,
        kinds: ValueKinds,
        format: &ParameterFormat,
        held: &mut String,
        json: &mut String,
    ) -> Step {
        let is_text_alone = kinds == ValueKinds { text: true, ..ValueKinds::default() };
        if is_text_alone {
            json.push('"');
            self.place = TaggedParserState::Text;
            return Step::More;
        }
        let Some(first) = held.bytes().next() else { return Step::Wait };
        let is_json = match first {
            b'[' | b'{' => kinds.structure,
            b'-' | b'0'..=b'9' => !kinds.text,
            _ => false,
        };
        if is_json {
            self.place = match format.is_python {
                true => TaggedParserState::Python(PythonReader::default()),
                false => TaggedParserState::Json { in_string: false, is_escaped: false },
            };
            return Step::More;
        }
        if let Some(at) = held.find(format.close.as_str()) {
            write_value(&held[..at], kinds, format, json);
            return self.close(at, format, held);
        }
        if !kinds.text || could_be_other(held, format) {
            return Step::Wait;
        }
        json.push('"');
        self.place = TaggedParserState::Text;
        Step::More
    }

    fn text(&mut self, format: &ParameterFormat, held: &mut String, json: &mut String) -> Step {
        let (text, is_closed) = split_at_sign(held, &format.close);
        push_text(&text, json);
        if !is_closed {
            return Step::Wait;
        }
        json.push('"');
        self.place = TaggedParserState::Open;
        Step::More
    }

    /// JSON has the closing sign's first letter, white space or `<`, in strings alone.
    fn json(
        &mut self,
        mut in_string: bool,
        mut is_escaped: bool,
        format: &ParameterFormat,
        held: &mut String,
        json: &mut String,
    ) -> Step {
        let first = format.close.as_bytes()[0];
        let mut end = held.len();
        for (at, byte) in held.bytes().enumerate() {
            match byte {
                byte if byte == first && !in_string => {
                    end = at;
                    break;
                }
                _ if is_escaped => is_escaped = false,
                b'\\' if in_string => is_escaped = true,
                b'"' => in_string = !in_string,
                _ => {}
            }
        }
        let rest = held.split_off(end);
        json.push_str(held);
        *held = rest;
        self.place = TaggedParserState::Json { in_string, is_escaped };
        match held.starts_with(format.close.as_str()) {
            true => self.close(0, format, held),
            false => Step::Wait,
        }
    }

    fn python(
        &mut self,
        mut reader: PythonReader,
        format: &ParameterFormat,
        held: &mut String,
        json: &mut String,
    ) -> Step {
        let is_over = reader.read(held, format.close.chars().next().unwrap_or_default(), json);
        self.place = TaggedParserState::Python(reader);
        match is_over && held.starts_with(format.close.as_str()) {
            true => self.close(0, format, held),
            false => Step::Wait,
        }
    }

    /// Takes a value and what closes it.
    fn close(&mut self, at: usize, format: &ParameterFormat, held: &mut String) -> Step {
        *held = held.split_off(at + format.close.len());
        self.place = TaggedParserState::Open;
        Step::More
    }
}

/// Where a name ends, how long the sign behind it is, and whether that says that a text follows or none.
fn name_end(held: &str, format: &ParameterFormat) -> Option<(usize, usize, Option<bool>)> {
    let json = format.before_json.as_ref();
    let text = (&format.behind_name, json.map(|_| true));
    let signs = std::iter::once(text).chain(json.map(|sign| (sign, Some(false))));
    let found = signs.filter_map(|(sign, is_text)| Some((held.find(sign.as_str())?, sign.len(), is_text)));
    found.min_by_key(|(at, ..)| *at)
}

/// Whether what begins so may come to a word or a number.
fn could_be_other(held: &str, format: &ParameterFormat) -> bool {
    let first = format.close.chars().next().unwrap_or_default();
    let value = held.split(first).next().unwrap_or_default();
    if !format.close.starts_with(&held[value.len()..]) {
        return false; // what stands behind it closes nothing: the value went on
    }
    let words = [Some(&format.true_word), Some(&format.false_word), format.null_word.as_ref()];
    let is_start = words.into_iter().flatten().any(|word| word.starts_with(value));
    is_start || value.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
}

/// A whole value as JSON.
fn write_value(text: &str, kinds: ValueKinds, format: &ParameterFormat, json: &mut String) {
    let is_word = |word: &str, may: bool| text == word && (may || !kinds.text);
    if is_word(&format.true_word, kinds.boolean) {
        json.push_str("true");
    } else if is_word(&format.false_word, kinds.boolean) {
        json.push_str("false");
    } else if is_word(format.null_word.as_deref().unwrap_or("null"), kinds.null) {
        json.push_str("null");
    } else if is_number(text, kinds) {
        json.push_str(text);
    } else {
        json.push('"');
        push_text(text, json);
        json.push('"');
    }
}

/// Whether a text is a number as JSON writes it, where one may stand.
fn is_number(text: &str, kinds: ValueKinds) -> bool {
    let is_number = serde_json::from_str::<serde_json::Number>(text).is_ok() && text.trim() == text;
    let digits = text.strip_prefix('-').unwrap_or(text);
    is_number && (kinds.number || kinds.integer && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Takes the text in front of a sign, and the sign; without one, all text that cannot be the sign's
/// beginning.
pub(super) fn split_at_sign(held: &mut String, sign: &str) -> (String, bool) {
    if let Some(at) = held.find(sign) {
        let rest = held.split_off(at + sign.len());
        let mut before = std::mem::replace(held, rest);
        before.truncate(at);
        return (before, true);
    }
    let max = sign.len().saturating_sub(1).min(held.len());
    let keep =
        (1..=max).rev().find(|n| sign.is_char_boundary(*n) && held.ends_with(&sign[..*n])).unwrap_or(0);
    let rest = held.split_off(held.len() - keep);
    (std::mem::replace(held, rest), false)
}
