//! Numbers of calls that come back, printed as they are spelled.
//!
//! A template's numbers are whole ones and doubles: `1e5`, `1.50` and thirty digits would come out otherwise
//! than the model wrote them, and what was kept of its answer would not be found again. So the arguments of
//! calls may come as JSON text, and a number in it that would be printed otherwise becomes a value of its
//! own.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use serde_json::Value as Json;

use super::functions::{number_text, value_of};
use super::{PRIVATE, RenderOptions};

/// Messages as templates read them: the arguments of calls are objects.
pub(crate) struct ReadMessages {
    pub(crate) messages: Vec<Json>,
    /// A string that begins with it is a number, spelled as behind it.
    pub(crate) mark: Option<char>,
}

impl ReadMessages {
    /// Reads arguments that are JSON objects as text; others stay as they are.
    pub(crate) fn new(messages: &[Json], options: &RenderOptions, source: &str) -> Self {
        let mut is_any_odd = false;
        let plain = with_arguments(messages, |text| {
            let odd = odd_numbers(text);
            is_any_odd |= !odd.is_empty();
            // Zeros in their place: one may be too large for a double.
            object(&replaced(text, odd, |_| "0".to_owned()))
        });
        let mark = if is_any_odd { free_sign(&plain, options, source) } else { None };
        let Some(mark) = mark else {
            return Self { messages: with_arguments(messages, object), mark: None };
        };
        let marked = with_arguments(messages, |text| {
            object(&replaced(text, odd_numbers(text), |number| format!("\"{mark}{number}\"")))
        });
        Self { messages: marked, mark: Some(mark) }
    }
}

/// The messages with other arguments in their calls, where these are text and `read` makes something of it.
fn with_arguments(messages: &[Json], mut read: impl FnMut(&str) -> Option<Json>) -> Vec<Json> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|m| m.get_mut("tool_calls")?.as_array_mut()).flatten();
    for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        if let Some(object) = arguments.as_str().and_then(&mut read) {
            *arguments = object;
        }
    }
    messages
}

fn object(text: &str) -> Option<Json> {
    serde_json::from_str(text).ok().filter(Json::is_object)
}

/// A character for private use that nothing has which a template is given. `None` for who sends them all.
fn free_sign(messages: &[Json], options: &RenderOptions, source: &str) -> Option<char> {
    let given = messages.iter().chain(options.vars.values()).chain(&options.tools);
    let given: Vec<String> = given.map(Json::to_string).collect();
    let texts = given.iter().chain(options.vars.keys()).map(String::as_str).chain([source]);
    let taken: BTreeSet<u32> =
        texts.flat_map(str::chars).map(u32::from).filter(|c| PRIVATE.contains(c)).collect();
    PRIVATE.rev().find(|c| !taken.contains(c)).and_then(char::from_u32)
}

/// Where the numbers of a JSON text are that would be printed otherwise.
fn odd_numbers(text: &str) -> Vec<Range<usize>> {
    let (bytes, mut at, mut odd) = (text.as_bytes(), 0, Vec::new());
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                while let Some(&byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                    at += if byte == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_more = |byte: &&u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                at += bytes[at..].iter().take_while(is_more).count();
                if is_odd(&text[start..at]) {
                    odd.push(start..at);
                }
            }
            _ => {}
        }
    }
    odd
}

fn is_odd(number: &str) -> bool {
    let value = serde_json::from_str(number).map(|number| value_of(&Json::Number(number), None));
    value.is_ok_and(|value| number_text(&value) != number || value.to_string() != number)
        // Too large for a double.
        || as_double(number).is_some_and(f64::is_infinite)
}

fn as_double(number: &str) -> Option<f64> {
    number.parse().ok()
}

fn replaced(text: &str, places: Vec<Range<usize>>, with: impl Fn(&str) -> String) -> String {
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    for place in places {
        out.push_str(&text[done..place.start]);
        out.push_str(&with(&text[place.clone()]));
        done = place.end;
    }
    out.push_str(&text[done..]);
    out
}

/// A number that is printed as it is spelled. What calculates or asks for its kind is given a plain one, by
/// [`plain_number`].
struct SpelledNumber {
    text: String,
    plain: Value,
}

/// A number of this spelling.
pub(crate) fn spelled_number(text: &str) -> Value {
    let whole = text.parse::<i128>().map(Value::from);
    let plain = whole.unwrap_or_else(|_| Value::from(as_double(text).unwrap_or(f64::NAN)));
    Value::from_object(SpelledNumber { text: text.to_owned(), plain })
}

/// How a number is spelled, if it is one with a spelling.
pub(crate) fn spelling(value: &Value) -> Option<&str> {
    value.downcast_object_ref::<SpelledNumber>().map(|number| number.text.as_str())
}

/// The number itself in the place of one with a spelling.
pub(crate) fn plain_number(value: &Value) -> Value {
    value.downcast_object_ref::<SpelledNumber>().map_or_else(|| value.clone(), |number| number.plain.clone())
}

impl fmt::Debug for SpelledNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Object for SpelledNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.plain.is_true()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
