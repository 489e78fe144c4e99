//! Reading a JSON object field by field, so that every complaint names its field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A request that cannot be honoured as it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadParam {
    /// The field, as a path: `messages[0].content`. Empty for the body as a whole.
    pub param: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// Which kind of wrong.
    pub kind: BadParamKind,
}

/// Stable kinds; clients see [`BadParamKind::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadParamKind {
    /// It must be there.
    Missing,
    /// Wrong type or out of range.
    Invalid,
    /// OpenAI has it, we do not.
    Unsupported,
    /// Nobody has it: a slip of the pen.
    Unknown,
}

impl BadParamKind {
    /// OpenAI's `code` for it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing_required_parameter",
            Self::Invalid => "invalid_value",
            Self::Unsupported => "unsupported_parameter",
            Self::Unknown => "unknown_parameter",
        }
    }
}

impl BadParam {
    /// A value of the wrong type or out of range.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: param.into(), message: message.into(), kind: BadParamKind::Invalid }
    }

    /// A field that must be there.
    pub fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self { message: format!("`{param}` is required"), param, kind: BadParamKind::Missing }
    }

    /// A field, or a value of one, that we do not honour.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: param.into(), message: message.into(), kind: BadParamKind::Unsupported }
    }
}

/// The fields of one object that have not been read yet.
pub struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The fields of `value`, which stands at `path` (empty for the body).
    pub fn new(value: Value, path: &str) -> Result<Self, BadParam> {
        match value {
            Value::Object(map) => Ok(Self { map, path: path.to_owned() }),
            other if path.is_empty() => {
                Err(BadParam::invalid("", format!("the body must be a JSON object, not {}", short(&other))))
            }
            other => {
                Err(BadParam::invalid(path, format!("`{path}` must be an object, not {}", short(&other))))
            }
        }
    }

    /// The field's name as messages show it.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Reads a field; `null` counts as absent. `kind` says what it must be: "a whole number", which `1.0` is:
    /// some languages have no other numbers.
    pub fn take<T: DeserializeOwned>(&mut self, field: &str, kind: &str) -> Result<Option<T>, BadParam> {
        let Some(value) = self.take_value(field) else { return Ok(None) };
        let shown = short(&value);
        let whole = whole_number(&value).filter(|_| value.is_f64());
        let read = serde_json::from_value(value).or_else(|error| match whole {
            Some(whole) => serde_json::from_value(whole.into()),
            None => Err(error),
        });
        read.map(Some).map_err(|_| {
            let name = self.name(field);
            BadParam::invalid(name.clone(), format!("`{name}` must be {kind}, not {shown}"))
        })
    }

    /// Reads a field that must be there.
    pub fn take_required<T: DeserializeOwned>(&mut self, field: &str, kind: &str) -> Result<T, BadParam> {
        self.take(field, kind)?.ok_or_else(|| BadParam::missing(self.name(field)))
    }

    /// Reads a field without looking at it; `null` counts as absent.
    pub fn take_value(&mut self, field: &str) -> Option<Value> {
        self.map.shift_remove(field).filter(|v| !v.is_null())
    }

    /// Refuses the first field nobody has read; `null` counts as absent here, too.
    pub fn finish(self) -> Result<(), BadParam> {
        let mut unread = self.map.iter().filter(|(_, value)| !value.is_null());
        let Some((field, _)) = unread.next() else { return Ok(()) };
        let param = self.name(&field.chars().take(80).collect::<String>());
        let message = format!("unknown parameter `{param}`");
        Err(BadParam { param, message, kind: BadParamKind::Unknown })
    }
}

/// A list of at most so many items.
pub fn check_count(name: &str, what: &str, count: usize, max: usize) -> Result<(), BadParam> {
    if count <= max {
        return Ok(());
    }
    Err(BadParam::invalid(name, format!("`{name}` holds {count} {what}, {max} at most are taken")))
}

/// A whole number, however it is written: what has one kind of number writes 1 as `1.0`. Beyond 2^53 such a
/// text does not say which number it was.
pub fn whole_number(value: &Value) -> Option<i64> {
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    let is_whole = |n: &f64| value.is_f64() && n.fract() == 0.0 && n.abs() < EXACT_MAX;
    value.as_i64().or_else(|| value.as_f64().filter(is_whole).map(|n| n as i64))
}

/// The id of a token.
pub fn token_id(value: &Value) -> Option<u32> {
    u32::try_from(whole_number(value)?).ok()
}

/// A value for a message: its JSON, cut to a readable length.
pub fn short(value: &Value) -> String {
    const SHOWN_CHARS_MAX: usize = 60;
    // Containers can be megabytes: name them instead of printing and cutting.
    match value {
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().nth(SHOWN_CHARS_MAX).is_some() => {
            format!("\"{}…\"", text.chars().take(SHOWN_CHARS_MAX).collect::<String>())
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_type_names_the_field_and_shows_the_value() {
        let mut fields = Fields::new(serde_json::json!({"top_k": "many", "a": 1}), "x").unwrap();
        let error = fields.take::<u32>("top_k", "a whole number").unwrap_err();
        assert_eq!(error.param, "x.top_k");
        assert_eq!(error.message, "`x.top_k` must be a whole number, not \"many\"");
        assert_eq!(fields.finish().unwrap_err().message, "unknown parameter `x.a`");
        let mut fields = Fields::new(serde_json::json!({"n": 2.0, "top_k": 0.5, "seed": -1.0}), "").unwrap();
        assert_eq!(fields.take::<u32>("n", "a whole number"), Ok(Some(2)), "as JavaScript may write it");
        assert!(fields.take::<u32>("top_k", "a whole number").unwrap_err().message.ends_with("not 0.5"));
        assert!(fields.take::<u64>("seed", "a whole number").unwrap_err().message.ends_with("not -1.0"));
        let fields = Fields::new(serde_json::json!({"a": null}), "x").unwrap();
        assert_eq!(fields.finish(), Ok(()), "clients write what they leave out");
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let take = |json: &str| {
            let value = serde_json::from_str(&format!(r#"{{"n": {json}}}"#)).unwrap();
            Fields::new(value, "").unwrap().take::<i64>("n", "a whole number").map_err(|bad| bad.message)
        };
        assert_eq!([take("1.0"), take("-3.0"), take("4e2")], [Ok(Some(1)), Ok(Some(-3)), Ok(Some(400))]);
        assert_eq!(take("1.5").unwrap_err(), "`n` must be a whole number, not 1.5");
        assert!(take("1e300").is_err() && take("18014398509481984.0").is_err(), "which one is not said");
        assert_eq!(take("9007199254740993"), Ok(Some(9_007_199_254_740_993)));
        assert_eq!(
            (token_id(&7.0.into()), token_id(&(-1).into()), token_id(&0.5.into())),
            (Some(7), None, None)
        );
    }

    #[test]
    fn a_long_value_is_cut_in_the_message() {
        assert!(short(&Value::String("ä".repeat(1 << 16))).len() < 200);
        assert_eq!(short(&serde_json::json!([1, 2])), "an array of 2");
    }
}
