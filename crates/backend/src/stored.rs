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

/// Scales of the eight blocks of a super-block of Q4_K or Q5_K, then their minima: six bits each, from its
/// bytes 4 to 15.
pub fn scales_and_minima(block: &[u8]) -> [u8; 16] {
    let packed = &block[4..16];
    std::array::from_fn(|at| {
        let (first, i) = (at / 8 * 4, at % 8);
        match i {
            0..4 => packed[first + i] & 63,
            _ => {
                let low = if first == 0 { packed[i + 4] & 15 } else { packed[i + 4] >> 4 };
                low | packed[first + i - 4] >> 6 << 4
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::scales_and_minima;

    #[test]
    fn six_bits_of_scales_and_minima_lie_in_one_byte_or_two() {
        let mut block = [0; 16];
        // Scales 0 to 3 with the high bits of 4 to 7, the same of minima, then the low bits of both.
        block[4..].copy_from_slice(&[0x41, 2, 3, 0xc4, 0x85, 6, 7, 8, 0xa9, 0, 0, 0xbc]);
        let wanted = [1, 2, 3, 4, 0x19, 0, 0, 0x3c, 5, 6, 7, 8, 0x2a, 0, 0, 0x0b];
        assert_eq!(scales_and_minima(&block), wanted);
    }
}
