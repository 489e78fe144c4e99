//! Stored blocks to f32 and, for the plain types, back. One type per file; layouts are ggml's.
//!
//! Dequantisation is exact to the bit against the `dequantize` of gguf-py: products and sums are rounded in
//! its order. The quantisers are the reference ones, for tests and small conversions.

mod legacy_nibbles;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_k;

use exo_types::DType;

use crate::isa::{Isa, Level};
use crate::math::{bf16_at, f16_at, f32_at};
use crate::simd::{Kernel, Scalar, Simd};

/// Converts each block of a row. A macro, because the direct call in it is inlined into the kernel: handed
/// over as an argument, the function went through a shim that was compiled for the plain target, at a fifth
/// of the speed.
macro_rules! blocks {
    ($simd:expr, $row:expr, $out:expr, $of:ident) => {
        for (block, out) in $row.as_chunks().0.iter().zip($out.as_chunks_mut().0) {
            $of::dequantise($simd, block, out);
        }
    };
}

/// Converts stored elements to f32.
///
/// Panics unless `row` holds exactly the blocks of `out.len()` elements.
pub fn dequantise_row(dtype: DType, row: &[u8], out: &mut [f32]) {
    let level = Level::detect(Isa::best()).unwrap_or(Level::Scalar(Scalar));
    level.dispatch(Dequantise { dtype, row, out });
}

/// Converts f32 to blocks of `dtype`, as ggml's reference quantisers do; `None` for the types that have none
/// here (the K-quants). Panics unless `values` fill whole blocks.
pub fn quantise_row(dtype: DType, values: &[f32]) -> Option<Vec<u8>> {
    let whole = (values.len() as u64).is_multiple_of(dtype.block_elements());
    assert!(whole, "{} values do not fill blocks of {dtype}", values.len());
    Some(match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::Q8_0 => each_block(values, q8_0::quantise),
        DType::Q4_0 => each_block(values, q4_0::quantise),
        DType::Q4_1 => each_block(values, q4_1::quantise),
        DType::Q5_0 => each_block(values, q5_0::quantise),
        DType::Q5_1 => each_block(values, q5_1::quantise),
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K | DType::Q8_K => return None,
    })
}

/// [`dequantise_row`] for kernels: inlined, so that it is compiled for their instruction set.
#[inline(always)]
pub(crate) fn dequantise_inline<S: Simd>(simd: S, dtype: DType, row: &[u8], out: &mut [f32]) {
    assert!(
        dtype.bytes_of(out.len() as u64) == Some(row.len() as u64),
        "{} bytes of {dtype} are not {} elements",
        row.len(),
        out.len()
    );
    match dtype {
        DType::F32 => {
            for (out, bytes) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                *out = f32_at(bytes, 0);
            }
        }
        DType::F16 => {
            out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, half)| *out = f16_at(half, 0))
        }
        DType::BF16 => {
            out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, half)| *out = bf16_at(half, 0))
        }
        DType::Q8_0 => blocks!(simd, row, out, q8_0),
        DType::Q4_0 => blocks!(simd, row, out, q4_0),
        DType::Q4_1 => blocks!(simd, row, out, q4_1),
        DType::Q5_0 => blocks!(simd, row, out, q5_0),
        DType::Q5_1 => blocks!(simd, row, out, q5_1),
        DType::Q2_K => blocks!(simd, row, out, q2_k),
        DType::Q3_K => blocks!(simd, row, out, q3_k),
        DType::Q4_K => blocks!(simd, row, out, q4_k),
        DType::Q5_K => blocks!(simd, row, out, q5_k),
        DType::Q6_K => blocks!(simd, row, out, q6_k),
        DType::Q8_K => blocks!(simd, row, out, q8_k),
    }
}

/// One row, as a kernel of its own.
pub(crate) struct Dequantise<'a> {
    pub(crate) dtype: DType,
    pub(crate) row: &'a [u8],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Dequantise<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        dequantise_inline(simd, self.dtype, self.row, self.out);
    }
}

fn each_block<const B: usize>(values: &[f32], quantise: impl Fn(&[f32; 32]) -> [u8; B]) -> Vec<u8> {
    values.as_chunks::<32>().0.iter().flat_map(quantise).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The public function uses one instruction set; the file of gguf-py (tests/quant.rs) then speaks for
    /// all.
    #[test]
    fn every_instruction_set_dequantises_to_the_same_bits() {
        for dtype in DType::ALL {
            let bytes: Vec<u8> = (0..4 * dtype.block_bytes()).map(|i| (i * i % 251) as u8 & 0xbf).collect();
            let run = |isa| {
                let mut out = vec![0.0; 4 * dtype.block_elements() as usize];
                Level::detect(isa)?.dispatch(Dequantise { dtype, row: &bytes, out: &mut out });
                Some(out.iter().map(|value: &f32| value.to_bits()).collect::<Vec<_>>())
            };
            let plain = run(Isa::Scalar);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                assert_eq!(run(isa), plain, "{dtype} {isa:?}");
            }
        }
    }
}
