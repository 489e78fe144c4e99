//! Small JSON files, read within limits. Depth is limited by `serde_json` (128 levels).

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::{JsonError, OpenError};

/// The bytes of a small file; `None` if there is no such file.
pub(super) fn read_bytes(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, OpenError> {
    let io_error = |source| OpenError::Io { attempt: "read", path: path.to_owned(), source };
    let metadata = match fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error)?,
    };
    if !metadata.is_file() {
        let reason = "it is not a regular file".to_owned();
        return Err(OpenError::NotAModel { path: path.to_owned(), reason });
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(io_error)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(io_error)?;
    if bytes.len() as u64 > bytes_max {
        let found_bytes = metadata.len().max(bytes.len() as u64);
        return Err(at(path)(JsonError::TooLong { found_bytes, max_bytes: bytes_max }));
    }
    Ok(Some(bytes))
}

/// The file as text.
pub(super) fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>, OpenError> {
    let Some(bytes) = read_bytes(path, bytes_max)? else { return Ok(None) };
    let not_utf8 = |e: std::string::FromUtf8Error| {
        at(path)(JsonError::NotUtf8 { offset: e.utf8_error().valid_up_to() as u64 })
    };
    String::from_utf8(bytes).map(Some).map_err(not_utf8)
}

/// The file as a JSON object.
pub(super) fn read_object(path: &Path, bytes_max: u64) -> Result<Option<Value>, OpenError> {
    let Some(bytes) = read_bytes(path, bytes_max)? else { return Ok(None) };
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| at(path)(JsonError::Syntax(e)))?;
    if !value.is_object() {
        return Err(at(path)(wrong("the whole file", &value, "an object")));
    }
    Ok(Some(value))
}

/// Puts a JSON error at its file.
pub(super) fn at(path: &Path) -> impl Fn(JsonError) -> OpenError + '_ {
    |source| OpenError::Json { path: path.to_owned(), source }
}

/// `field` of `object`, unless absent or null.
pub(super) fn get<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|v| !v.is_null())
}

pub(super) fn u32(object: &Value, field: &str) -> Result<Option<u32>, JsonError> {
    typed(object, field, "an integer from 0 to 4294967295", |v| v.as_u64().and_then(|n| n.try_into().ok()))
}

pub(super) fn f64(object: &Value, field: &str) -> Result<Option<f64>, JsonError> {
    typed(object, field, "a number", Value::as_f64)
}

pub(super) fn flag(object: &Value, field: &str) -> Result<Option<bool>, JsonError> {
    typed(object, field, "true or false", Value::as_bool)
}

pub(super) fn text<'a>(object: &'a Value, field: &str) -> Result<Option<&'a str>, JsonError> {
    typed(object, field, "a string", Value::as_str)
}

fn typed<'a, T>(
    object: &'a Value,
    field: &str,
    expected: &'static str,
    convert: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, JsonError> {
    let Some(value) = get(object, field) else { return Ok(None) };
    convert(value).map(Some).ok_or_else(|| wrong(field, value, expected))
}

pub(super) fn wrong(field: &str, value: &Value, expected: &'static str) -> JsonError {
    JsonError::Field { field: field.to_owned(), found: short(value), expected }
}

/// The value in at most 80 characters. A long array or object is named, not printed.
pub(super) fn short(value: &Value) -> String {
    match value {
        Value::Array(a) => format!("an array of {}", a.len()),
        Value::Object(o) => format!("an object of {} fields", o.len()),
        Value::String(s) => format!("`{}`", s.chars().take(80).collect::<String>()),
        other => other.to_string(),
    }
}
