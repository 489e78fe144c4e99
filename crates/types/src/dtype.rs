//! Element types of stored tensors, with their block geometry.

use std::fmt;

use serde::{Deserialize, Serialize};

crate::enum_with_all! {
    /// How the elements of a tensor are stored. Names and layouts are ggml's.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
    #[allow(missing_docs)] // the names are the documentation
    #[allow(non_camel_case_types)]
    pub enum DType {
        F32,
        F16,
        BF16,
        Q8_0,
        Q4_0,
        Q4_1,
        Q5_0,
        Q5_1,
        Q2_K,
        Q3_K,
        Q4_K,
        Q5_K,
        Q6_K,
        Q8_K,
    }
}

impl DType {
    /// Elements that share one block: 1 for plain floats, 32 or 256 for quantised types.
    pub const fn block_elements(self) -> u64 {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::Q8_K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::Q8_K => 292,
        }
    }

    /// Bytes of `elements` contiguous elements; `None` if they do not fill whole blocks or overflow.
    pub const fn bytes_of(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether the type groups elements into blocks with shared scales.
    pub const fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
