//! Metadata values. Scalars and strings are read at once; arrays stay in the file until asked for.

use std::fmt;
use std::ops::Range;

use super::GgufError;
use super::reader::Reader;

/// The longest text value that is read; chat templates have some ten thousand bytes.
const TEXT_BYTES_MAX: u64 = 4 << 20;

exo_types::enum_with_all! {
    /// What kind of value a key holds. The numbers are the format's.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[allow(missing_docs)] // the names are the documentation
    pub enum ValueKind {
        U8 = 0,
        I8 = 1,
        U16 = 2,
        I16 = 3,
        U32 = 4,
        I32 = 5,
        F32 = 6,
        Bool = 7,
        String = 8,
        Array = 9,
        U64 = 10,
        I64 = 11,
        F64 = 12,
    }
}

impl ValueKind {
    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u32 == number)
    }

    /// Bytes of one value; for strings and arrays, the fewest one can have.
    const fn bytes_min(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A metadata value.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // the names are the documentation
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array that stays in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Array {
    /// Kind of its elements; never `Array`.
    pub kind: ValueKind,
    /// Number of elements.
    pub len: u64,
    /// Where its elements are.
    pub(super) range: Range<usize>,
}

impl Value {
    /// The value as an integer, if it is one.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    pub(super) fn read(r: &mut Reader<'_>, field: fmt::Arguments<'_>) -> Result<Self, GgufError> {
        match read_kind(r, format_args!("type of {field}"))? {
            ValueKind::Array => Ok(Self::Array(Array::read(r, field)?)),
            kind => Self::read_scalar(r, kind, field),
        }
    }

    /// A value that is no array.
    pub(super) fn read_scalar(
        r: &mut Reader<'_>,
        kind: ValueKind,
        field: fmt::Arguments<'_>,
    ) -> Result<Self, GgufError> {
        Ok(match kind {
            ValueKind::U8 => Self::U8(r.u8(field)?),
            ValueKind::I8 => Self::I8(i8::from_le_bytes(r.array(field)?)),
            ValueKind::U16 => Self::U16(u16::from_le_bytes(r.array(field)?)),
            ValueKind::I16 => Self::I16(i16::from_le_bytes(r.array(field)?)),
            ValueKind::U32 => Self::U32(r.u32(field)?),
            ValueKind::I32 => Self::I32(i32::from_le_bytes(r.array(field)?)),
            ValueKind::F32 => Self::F32(f32::from_le_bytes(r.array(field)?)),
            ValueKind::Bool => Self::Bool(r.u8(field)? != 0),
            ValueKind::String => Self::String(r.string(TEXT_BYTES_MAX, field)?),
            ValueKind::U64 => Self::U64(r.u64(field)?),
            ValueKind::I64 => Self::I64(i64::from_le_bytes(r.array(field)?)),
            ValueKind::F64 => Self::F64(f64::from_le_bytes(r.array(field)?)),
            ValueKind::Array => return Err(r.error(field, "is an array within an array".to_owned())),
        })
    }
}

impl Array {
    /// Reads kind and length and walks over the elements.
    fn read(r: &mut Reader<'_>, field: fmt::Arguments<'_>) -> Result<Self, GgufError> {
        let kind = read_kind(r, format_args!("element type of {field}"))?;
        if kind == ValueKind::Array {
            return Err(r.error(field, "is an array of arrays".to_owned()));
        }
        let at = r.offset();
        let len = r.u64(format_args!("length of {field}"))?;
        let bytes = len.checked_mul(kind.bytes_min()).filter(|b| *b <= r.remaining());
        let Some(bytes) = bytes else {
            let problem = format!("is {len} elements, {} bytes are left in the file", r.remaining());
            return Err(GgufError { field: format!("length of {field}"), offset: at, problem });
        };
        let range =
            if kind == ValueKind::String { skip_strings(r, len, field)? } else { r.skip(bytes, field)? };
        Ok(Self { kind, len, range })
    }

    /// The elements as `file` stores them; of another file than the array's own, whatever stands there.
    pub(crate) fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(self.range.clone()).unwrap_or_default()
    }

    /// The elements one by one, read and checked again: the file may have changed since.
    pub(super) fn elements<'a>(
        &'a self,
        bytes: &'a [u8],
        key: &'a str,
    ) -> impl Iterator<Item = Result<Value, GgufError>> + 'a {
        let mut r = Reader::new(bytes, self.range.start);
        (0..self.len).map(move |i| {
            Value::read_scalar(&mut r, self.kind, format_args!("element {i} of metadata `{key}`"))
        })
    }
}

fn skip_strings(r: &mut Reader<'_>, len: u64, field: fmt::Arguments<'_>) -> Result<Range<usize>, GgufError> {
    let start = r.offset() as usize;
    for i in 0..len {
        let field = format_args!("element {i} of {field}");
        let bytes = r.u64(field)?;
        r.skip(bytes, field)?;
    }
    Ok(start..r.offset() as usize)
}

fn read_kind(r: &mut Reader<'_>, field: fmt::Arguments<'_>) -> Result<ValueKind, GgufError> {
    let offset = r.offset();
    let number = r.u32(field)?;
    ValueKind::from_number(number).ok_or_else(|| GgufError {
        field: field.to_string(),
        offset,
        problem: format!("is {number}, the format knows 0 to 12"),
    })
}
