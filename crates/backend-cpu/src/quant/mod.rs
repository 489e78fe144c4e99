//! Stored blocks to f32 and, for the plain types, back. One type per file; layouts are ggml's.
//!
//! Dequantisation is exact to the bit against the `dequantize` of gguf-py: products and sums are rounded in its order.
//! The quantisers are the reference ones, for tests and small conversions.

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
mod scales_6_bit;

use exo_types::DType;

use crate::isa::Kernel;
use crate::math::{bf16_at, f16_at, f32_at};
use crate::simd::Simd;

/// Converts stored elements to f32.
///
/// Panics unless `row` holds exactly the blocks of `out.len()` elements.
pub fn dequantise_row(dtype: DType, row: &[u8], out: &mut [f32]) {
    dequantise_inline(dtype, row, out);
}

/// Converts f32 to blocks of `dtype`, as ggml's reference quantisers do; `None` for the types that have none here
/// (the K-quants). Panics unless `values` fill whole blocks.
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
pub(crate) fn dequantise_inline(dtype: DType, row: &[u8], out: &mut [f32]) {
    assert!(
        dtype.bytes_of(out.len() as u64) == Some(row.len() as u64),
        "{} bytes of {dtype} are not {} elements",
        row.len(),
        out.len()
    );
    match dtype {
        DType::F32 => out.iter_mut().enumerate().for_each(|(i, out)| *out = f32_at(row, i)),
        DType::F16 => {
            out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, half)| *out = f16_at(half, 0))
        }
        DType::BF16 => {
            out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, half)| *out = bf16_at(half, 0))
        }
        DType::Q8_0 => blocks(row, out, q8_0::dequantise),
        DType::Q4_0 => blocks(row, out, q4_0::dequantise),
        DType::Q4_1 => blocks(row, out, q4_1::dequantise),
        DType::Q5_0 => blocks(row, out, q5_0::dequantise),
        DType::Q5_1 => blocks(row, out, q5_1::dequantise),
        DType::Q2_K => blocks(row, out, q2_k::dequantise),
        DType::Q3_K => blocks(row, out, q3_k::dequantise),
        DType::Q4_K => blocks(row, out, q4_k::dequantise),
        DType::Q5_K => blocks(row, out, q5_k::dequantise),
        DType::Q6_K => blocks(row, out, q6_k::dequantise),
        DType::Q8_K => blocks(row, out, q8_k::dequantise),
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
    fn run<S: Simd>(self, _simd: S) {
        dequantise_inline(self.dtype, self.row, self.out);
    }
}

/// Applies `dequantise` to each block of B bytes and N elements.
#[inline(always)]
fn blocks<const B: usize, const N: usize>(
    row: &[u8],
    out: &mut [f32],
    dequantise: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (stored, out) = (row.as_chunks::<B>().0, out.as_chunks_mut::<N>().0);
    for (block, out) in stored.iter().zip(out) {
        dequantise(block, out);
    }
}

fn each_block<const B: usize>(values: &[f32], quantise: impl Fn(&[f32; 32]) -> [u8; B]) -> Vec<u8> {
    values.as_chunks::<32>().0.iter().flat_map(quantise).collect()
}
