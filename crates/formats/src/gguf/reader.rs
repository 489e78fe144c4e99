//! A cursor over a header that may be hostile: every read is checked, every error says which field and where.

use std::fmt;
use std::ops::Range;

use super::GgufError;

/// A cursor over bytes. `field` arguments are only formatted when a read fails.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, field: fmt::Arguments<'_>) -> Result<&'a [u8], GgufError> {
        let range = self.skip(len, field)?;
        Ok(&self.bytes[range])
    }

    /// Where the next `len` bytes are.
    pub(super) fn skip(&mut self, len: u64, field: fmt::Arguments<'_>) -> Result<Range<usize>, GgufError> {
        if len > self.remaining() {
            let problem = format!("needs {len} bytes, {} are left in the file", self.remaining());
            return Err(self.error(field, problem));
        }
        let start = self.at;
        self.at += len as usize; // at most `remaining`, which fits
        Ok(start..self.at)
    }

    pub(super) fn u8(&mut self, field: fmt::Arguments<'_>) -> Result<u8, GgufError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(super) fn u32(&mut self, field: fmt::Arguments<'_>) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: fmt::Arguments<'_>) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(super) fn array<const N: usize>(&mut self, field: fmt::Arguments<'_>) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, field)?;
        Ok(taken.try_into().expect("take gave exactly N bytes"))
    }

    /// A string of at most `max` bytes: its length as u64, then UTF-8.
    pub(super) fn string(&mut self, max: u64, field: fmt::Arguments<'_>) -> Result<String, GgufError> {
        let start = self.offset();
        let len = self.u64(field)?;
        if len > max {
            let problem = format!("has {len} bytes, at most {max} are allowed");
            return Err(GgufError { field: field.to_string(), offset: start, problem });
        }
        // Copied before it is checked: the file may change under us, the copy cannot.
        let copy = self.take(len, field)?.to_vec();
        String::from_utf8(copy).map_err(|e| GgufError {
            field: field.to_string(),
            offset: start,
            problem: format!("is not UTF-8 from its byte {} on", e.utf8_error().valid_up_to()),
        })
    }

    /// An error about the field at the cursor.
    pub(super) fn error(&self, field: fmt::Arguments<'_>, problem: String) -> GgufError {
        GgufError { field: field.to_string(), offset: self.offset(), problem }
    }
}
