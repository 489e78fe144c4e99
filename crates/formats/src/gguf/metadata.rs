//! The keys of a GGUF file, with typed access.

use std::collections::BTreeMap;

use super::reader::Reader;
use super::{Array, GgufError, Value};
use crate::Texts;

/// Keys have some forty bytes; the format allows this many.
const KEY_BYTES_MAX: u64 = 65_535;
/// Real files have under a hundred keys.
const KEYS_MAX: u64 = 1 << 16;
/// More elements than any list of tokens or merges has.
const ELEMENTS_MAX: u64 = 1 << 22;
/// Bytes of a list of texts as stored. Vocabularies have some ten bytes for each token.
const TEXTS_BYTES_MAX: usize = 1 << 30;
/// A key is at least a length, a type and one byte of value.
const ENTRY_BYTES_MIN: u64 = 13;

/// The metadata of a GGUF file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Metadata {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, PartialEq, Debug)]
struct Entry {
    offset: u64,
    value: Value,
}

impl Metadata {
    pub(super) fn read(r: &mut Reader<'_>, count: u64, count_at: u64) -> Result<Self, GgufError> {
        let fits = count <= KEYS_MAX && count <= r.remaining() / ENTRY_BYTES_MIN;
        if !fits {
            let problem = format!("is {count}; {} bytes are left and {KEYS_MAX} are allowed", r.remaining());
            return Err(GgufError {
                field: "number of metadata entries".to_owned(),
                offset: count_at,
                problem,
            });
        }
        let mut entries = BTreeMap::new();
        for i in 0..count {
            let offset = r.offset();
            let key = r.string(KEY_BYTES_MAX, format_args!("key of metadata entry {i}"))?;
            let value = Value::read(r, format_args!("metadata `{}`", short(&key)))?;
            if entries.contains_key(&key) {
                let field = format!("metadata `{}`", short(&key));
                return Err(GgufError { field, offset, problem: "appears twice".to_owned() });
            }
            entries.insert(key, Entry { offset, value });
        }
        Ok(Self { entries })
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).map(|e| &e.value)
    }

    /// Every key with its value, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, e)| (k.as_str(), &e.value))
    }

    /// Where `key` stands in the file, 0 if it does not.
    pub fn offset(&self, key: &str) -> u64 {
        self.entries.get(key).map_or(0, |e| e.offset)
    }

    /// The text of `key`, if the file has it.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |v| match v {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The truth of `key`, if the file has it.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The number of `key`, whatever its width, if the file has it.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer from 0 to 4294967295", |v| v.as_integer().and_then(|i| i.try_into().ok()))
    }

    /// The real number of `key`, if the file has it.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a number", |v| match v {
            Value::F32(x) => Some(f64::from(*x)),
            Value::F64(x) => Some(*x),
            other => other.as_integer().map(|i| i as f64),
        })
    }

    /// The number of `key`: given once, or per layer and the same in each.
    pub fn uniform_u32(&self, bytes: &[u8], key: &str) -> Result<Option<u32>, GgufError> {
        let Some(Value::Array(_)) = self.get(key) else { return self.u32(key) };
        let all =
            self.list(bytes, key, "integers", |v| v.as_integer().and_then(|i| u32::try_from(i).ok()))?;
        let all = all.unwrap_or_default();
        match all.split_first() {
            Some((first, rest)) if rest.iter().all(|x| x == first) => Ok(Some(*first)),
            _ => Err(self.error(key, "differs from layer to layer, which is not supported".to_owned())),
        }
    }

    /// The strings of `key`, if the file has it.
    pub fn texts(&self, bytes: &[u8], key: &str) -> Result<Option<Texts>, GgufError> {
        let Some(array) = self.array(key, "strings")? else { return Ok(None) };
        let stored_bytes = array.bytes(bytes).len();
        if stored_bytes > TEXTS_BYTES_MAX {
            let problem = format!("has {stored_bytes} bytes, at most {TEXTS_BYTES_MAX} are allowed");
            return Err(self.error(key, problem));
        }
        let mut texts = Texts::default();
        for element in array.elements(bytes, key) {
            match element? {
                Value::String(text) => texts.push(&text),
                _ => return Err(self.kind_error(key, array, "strings")),
            }
        }
        texts.shrink_to_fit();
        Ok(Some(texts))
    }

    /// The reals of `key`, if the file has it.
    pub fn f32s(&self, bytes: &[u8], key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.list(bytes, key, "f32", |v| match v {
            Value::F32(x) => Some(x),
            _ => None,
        })
    }

    /// The integers of `key`, if the file has it.
    pub fn i32s(&self, bytes: &[u8], key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.list(bytes, key, "integers", |v| v.as_integer().and_then(|i| i.try_into().ok()))
    }

    /// An error about `key`.
    pub(crate) fn error(&self, key: &str, problem: String) -> GgufError {
        GgufError { field: format!("metadata `{}`", short(key)), offset: self.offset(key), problem }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.error(key, format!("is {}, expected {expected}", describe(value)))),
        }
    }

    fn list<T>(
        &self,
        bytes: &[u8],
        key: &str,
        expected: &str,
        convert: impl Fn(Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some(array) = self.array(key, expected)? else { return Ok(None) };
        let mut converted = Vec::with_capacity(array.len as usize);
        for element in array.elements(bytes, key) {
            let element = convert(element?).ok_or_else(|| self.kind_error(key, array, expected))?;
            converted.push(element);
        }
        Ok(Some(converted))
    }

    /// The array of `key`, if the file has it, of a length that real files have.
    fn array(&self, key: &str, expected: &str) -> Result<Option<&Array>, GgufError> {
        let array: Option<&Array> = self.typed(key, &format!("an array of {expected}"), |v| match v {
            Value::Array(array) => Some(array),
            _ => None,
        })?;
        if let Some(long) = array.filter(|array| array.len > ELEMENTS_MAX) {
            let problem = format!("has {} elements, at most {ELEMENTS_MAX} are allowed", long.len);
            return Err(self.error(key, problem));
        }
        Ok(array)
    }

    fn kind_error(&self, key: &str, array: &Array, expected: &str) -> GgufError {
        self.error(key, format!("has elements of type {}, expected {expected}", array.kind))
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the string `{}`", short(text)),
        Value::Array(array) => format!("an array of {} {}", array.len, array.kind),
        Value::F32(_) => "a f32".to_owned(),
        Value::F64(_) => "a f64".to_owned(),
        Value::Bool(_) => "a bool".to_owned(),
        integer => integer.as_integer().unwrap_or_default().to_string(),
    }
}

/// The first 80 characters.
pub(super) fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
