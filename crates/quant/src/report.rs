//! What a new file holds and what rounding cost.

use std::collections::BTreeMap;
use std::path::PathBuf;

use exo_types::DType;

/// A finished file.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub file_bytes: u64,
    /// By type, plain floats included.
    pub types: BTreeMap<DType, TypeReport>,
}

impl Report {
    /// Elements of all tensors.
    pub fn elements(&self) -> u64 {
        self.types.values().map(|t| t.elements).sum()
    }

    /// Bits of tensor data for each element, scales included, header not.
    pub fn bits_per_weight(&self) -> f64 {
        let bytes: u64 = self.types.values().map(|t| t.bytes).sum();
        8.0 * bytes as f64 / self.elements().max(1) as f64
    }
}

/// The tensors of one type, taken together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct TypeReport {
    /// How many there are.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of the differences to the source.
    pub(crate) squared_error: f64,
    /// Of the source's elements.
    pub(crate) squares: f64,
}

impl TypeReport {
    /// Root mean square of the differences to the source.
    pub fn rmse(&self) -> f64 {
        (self.squared_error / self.elements.max(1) as f64).sqrt()
    }

    /// The same, as a part of the root mean square of the elements; 0 where all are 0.
    pub fn relative_rmse(&self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.squared_error / self.squares).sqrt() }
    }

    pub(crate) fn add(&mut self, tensor: &Self) {
        self.tensors += tensor.tensors;
        self.elements += tensor.elements;
        self.bytes += tensor.bytes;
        self.squared_error += tensor.squared_error;
        self.squares += tensor.squares;
    }
}
