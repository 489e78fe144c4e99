//! Element types of cached keys and values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a cache stores keys and values. A *row* is the key or the value of one token in one head: D elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDType {
    /// Exact, in 32-bit floats.
    F32,
    /// Half the memory; rounds each element to 11 bits.
    #[default]
    F16,
    /// A little over a quarter of the memory. Each group of 32 elements of a row (the last may be shorter)
    /// has a scale, its largest magnitude over 127 rounded to an IEEE half; an element is the nearest
    /// multiple of it from -127 to 127, the even one of two. A group that holds something not finite is NaN
    /// as a whole.
    Q8,
}

impl KvDType {
    /// Every type, the exact one first.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8];

    /// Elements of a row that share a scale in [`Self::Q8`].
    pub const GROUP: usize = 32;

    /// Bytes of a row of `head_dim` elements, scales included.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 => 2 * head_dim,
            Self::Q8 => head_dim + 2 * head_dim.div_ceil(Self::GROUP),
        }
    }

    /// As it is written in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }
}

impl fmt::Display for KvDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The word names no element type of a cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("keys and values are stored as f32, f16 or q8, not as {word:?}")]
pub struct ParseKvDTypeError {
    /// What was given.
    pub word: String,
}

impl FromStr for KvDType {
    type Err = ParseKvDTypeError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == word);
        found.ok_or_else(|| ParseKvDTypeError { word: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_bytes_and_scales() {
        let bytes = |dtype: KvDType| [1, 32, 33, 80, 128].map(|head_dim| dtype.row_bytes(head_dim));
        assert_eq!(bytes(KvDType::F32), [4, 128, 132, 320, 512]);
        assert_eq!(bytes(KvDType::F16), [2, 64, 66, 160, 256]);
        assert_eq!(bytes(KvDType::Q8), [3, 34, 37, 86, 136]);
    }

    #[test]
    fn names_are_read_back() {
        for dtype in KvDType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert!("F16".parse::<KvDType>().is_err());
    }
}
