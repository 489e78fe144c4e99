//! The functions real templates call, and the way into the engine's values.

use std::fmt::Write as _;

use chrono::NaiveDateTime;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value, escape_formatter};
use serde_json::Value as Json;

use super::budget::{Budget, stop, too_much};
use super::numbers::{spelled_number, spelling};
use crate::TemplateError;

/// Longest `range`. Templates count messages.
const RANGE_MAX: i64 = 10_000;
const DATE_FORMAT_BYTES_MAX: usize = 256;
const INDENT_MAX: usize = 16;
const MESSAGE_CHARS_MAX: usize = 500;
const DEPTH_MAX: usize = 140;

pub(crate) fn add_to(environment: &mut Environment<'_>, budget: &Budget, now: Option<NaiveDateTime>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| strftime(now, format));
    environment.add_function("range", range);
    for name in ["namespace", "dict"] {
        let function = Environment::new().globals().find(|(n, _)| *n == name).map(|(_, function)| function);
        let (budget, function) = (budget.clone(), function.unwrap_or_default());
        environment.add_function(
            name,
            move |state: &mut minijinja::State, arguments: Rest<ValueOrKwargs>| {
                let arguments = arguments.into_values();
                budget.weigh(arguments.iter())?;
                function.call(state, &arguments)
            },
        );
    }
    let budget = budget.clone();
    environment.set_formatter(move |output, state, value| {
        budget.write(budget.weigh([value])?)?;
        escape_formatter(output, state, value)
    });
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let message = message.as_str().unwrap_or("(no message)").chars().take(MESSAGE_CHARS_MAX).collect();
    Err(stop(TemplateError::Raised { message }))
}

fn strftime(now: Option<NaiveDateTime>, format: &str) -> Result<String, Error> {
    let refuse = |reason: &'static str| Error::new(ErrorKind::InvalidOperation, reason);
    let now = now.ok_or_else(|| refuse("strftime_now: no date was given to this rendering"))?;
    if format.len() > DATE_FORMAT_BYTES_MAX {
        return Err(refuse("strftime_now: the format is too long"));
    }
    let mut text = String::new();
    write!(text, "{}", now.format(format)).map_err(|_| refuse("strftime_now: the format is not valid"))?;
    Ok(text)
}

fn range(first: i64, second: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    let (from, to) = second.map_or((0, first), |second| (first, second));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "range: the step is 0"));
    }
    let distance = if step > 0 { to.saturating_sub(from) } else { from.saturating_sub(to) };
    let count = distance.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
    if count > RANGE_MAX.unsigned_abs() {
        return Err(stop(TemplateError::TooSlow { limit: format!("{RANGE_MAX} steps of a range") }));
    }
    // Computed from the start: every value lies between `from` and `to`.
    Ok((0..count as i64).map(|i| from + i * step).map(Value::from).collect::<Vec<_>>().into())
}

/// `json.dumps(value, ensure_ascii=False, …)` as transformers calls it: no HTML escaping, a space after `,`
/// and `:` unless indented.
pub(crate) fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    if indent.is_some_and(|n| n > INDENT_MAX) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: indent is more than {INDENT_MAX}"),
        ));
    }
    let default = if indent.is_some() { [",", ": "] } else { [", ", ": "] };
    let separator = |i: usize| separators.as_ref().and_then(|s| s.get(i)).map_or(default[i], String::as_str);
    let mut writer = JsonWriter {
        out: String::new(),
        indent,
        sort_keys: sort_keys.unwrap_or(false),
        ascii: ensure_ascii.unwrap_or(false),
        item: separator(0),
        pair: separator(1),
    };
    writer.value(&value, 0)?;
    Ok(Value::from(writer.out))
}

/// The same without options.
pub(crate) fn json_text(value: &Value) -> Result<String, Error> {
    let mut writer = JsonWriter {
        out: String::new(),
        indent: None,
        sort_keys: false,
        ascii: false,
        item: ", ",
        pair: ": ",
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: String,
    indent: Option<usize>,
    sort_keys: bool,
    ascii: bool,
    item: &'a str,
    pair: &'a str,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(too_much());
        }
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number_text(value)),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', &items, depth, |json, item| json.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', &keys, depth, |json, key| {
                    json.text(&key.to_string());
                    json.out.push_str(json.pair);
                    json.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            other => match spelling(value) {
                Some(number) => self.out.push_str(number),
                None => {
                    return Err(Error::new(
                        ErrorKind::BadSerialization,
                        format!("tojson: {other} is not JSON"),
                    ));
                }
            },
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(self.item);
            }
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python's JSON has it.
pub(crate) fn number_text(value: &Value) -> String {
    match (value.is_integer(), f64::try_from(value.clone())) {
        (false, Ok(number)) => python_float(number),
        _ => value.to_string(),
    }
}

/// As Python's `repr` writes a float: `1e-05`, `1e+16`.
fn python_float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "NaN".to_owned()
        } else {
            format!("{}Infinity", if number < 0.0 { "-" } else { "" })
        };
    }
    if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// JSON as the engine's value, maps in their own order. A string that begins with `mark` is a number with a
/// spelling.
pub(crate) fn value_of(json: &Json, mark: Option<char>) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => match mark.and_then(|mark| text.strip_prefix(mark)) {
            Some(number) => spelled_number(number),
            None => Value::from(text.as_str()),
        },
        Json::Array(items) => items.iter().map(|item| value_of(item, mark)).collect::<Vec<_>>().into(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), value_of(value, mark))))
        }
    }
}
