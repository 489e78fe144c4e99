//! What backends that copy weights ask of a stored tensor first.

use exo_types::{DType, TensorView};
use half::{bf16, f16};

/// Panics unless the tensor's range is as long as its rows.
pub fn assert_whole(tensor: &TensorView) {
    let (rows, row_bytes, len) = (tensor.rows as usize, tensor.row_bytes(), tensor.range.len());
    assert!(
        rows.checked_mul(row_bytes) == Some(len),
        "{tensor:?} needs {rows} rows of {row_bytes} bytes, its range has {len}"
    );
}

/// A tensor of one row of floats as f32: a norm, a bias, frequencies. `None` for matrices and for blocks,
/// which are no vectors.
pub fn vector_of(tensor: &TensorView) -> Option<Vec<f32>> {
    let bytes = (tensor.rows == 1).then(|| tensor.bytes())?;
    let halves = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    match tensor.dtype {
        DType::F32 => Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        DType::F16 => Some(halves().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        DType::BF16 => Some(halves().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        _ => None,
    }
}
