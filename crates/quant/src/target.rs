//! What a file can be made into.

use std::fmt;
use std::str::FromStr;

use exo_types::DType;

exo_types::enum_with_all! {
    /// A type of file, the largest first. Names are llama.cpp's; the `_M` ones give some matrices more bits
    /// than others.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[allow(missing_docs)] // the names are the documentation
    #[allow(non_camel_case_types)]
    pub enum Target {
        F32,
        BF16,
        F16,
        Q8_0,
        Q6_K,
        Q5_K_M,
        Q4_K_M,
        Q4_0,
    }
}

impl Target {
    /// The type that most matrices get.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::BF16 => DType::BF16,
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
            Self::Q6_K => DType::Q6_K,
            Self::Q5_K_M => DType::Q5_K,
            Self::Q4_K_M => DType::Q4_K,
            Self::Q4_0 => DType::Q4_0,
        }
    }

    /// The number of `general.file_type`: llama.cpp's `llama_ftype`.
    pub(crate) const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q4_K_M => 15,
            Self::Q5_K_M => 17,
            Self::Q6_K => 18,
            Self::BF16 => 32,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The word names no [`Target`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type of file `{word}`: use {}", names())]
pub struct UnknownTarget {
    /// What was given, cut short.
    pub word: String,
}

fn names() -> String {
    Target::ALL.map(|target| target.to_string()).join(", ")
}

impl FromStr for Target {
    type Err = UnknownTarget;

    /// Capitals or not; `Q4_K` and `Q5_K` are the `_M` mixes, as in llama.cpp.
    fn from_str(word: &str) -> Result<Self, UnknownTarget> {
        let name = match word.to_ascii_uppercase() {
            name if name == "Q4_K" || name == "Q5_K" => name + "_M",
            name => name,
        };
        let unknown = || UnknownTarget { word: word.chars().take(40).collect() };
        Self::ALL.into_iter().find(|target| target.to_string() == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_in_either_case_and_others_are_listed() {
        for target in Target::ALL {
            assert_eq!(target.to_string().to_lowercase().parse(), Ok(target));
        }
        assert_eq!("q4_k".parse(), Ok(Target::Q4_K_M));
        let error = "q2_k".parse::<Target>().unwrap_err().to_string();
        assert!(error.contains("`q2_k`") && error.contains("Q8_0, Q6_K"), "{error}");
    }
}
