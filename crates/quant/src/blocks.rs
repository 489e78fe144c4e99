//! f32 rows to stored blocks, one type per file. Layouts are ggml's, as `backend-cpu` reads them.
//!
//! Types that only stand in where rows fit no larger block (Q5_0, Q5_1) and plain floats are rounded as
//! `backend-cpu` rounds them; the others search for their scales ([`crate::fit`]).

mod nibble_k;
mod q4_0;
mod q6_k;
mod q8_0;

use exo_types::DType;

/// Types that [`quantise_row`] makes.
pub const TYPES: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// Appends `row`, stored as `dtype`. Elements are finite; those a type cannot hold become infinite there.
///
/// Panics if the row does not fill whole blocks or the type is none of [`TYPES`].
pub fn quantise_row(dtype: DType, row: &[f32], out: &mut Vec<u8>) {
    let whole = (row.len() as u64).is_multiple_of(dtype.block_elements());
    assert!(whole, "{} elements do not fill blocks of {dtype}", row.len());
    match dtype {
        DType::Q8_0 => each(row, out, q8_0::quantise),
        DType::Q4_0 => each(row, out, q4_0::quantise),
        DType::Q4_K => each(row, out, nibble_k::quantise_q4),
        DType::Q5_K => each(row, out, nibble_k::quantise_q5),
        DType::Q6_K => each(row, out, q6_k::quantise),
        _ => {
            let bytes = exo_backend_cpu::quant::quantise_row(dtype, row);
            out.extend(bytes.unwrap_or_else(|| panic!("there is no quantiser for {dtype}")));
        }
    }
}

fn each<const N: usize, const B: usize>(row: &[f32], out: &mut Vec<u8>, quantise: fn(&[f32; N]) -> [u8; B]) {
    for block in row.as_chunks().0 {
        out.extend(quantise(block));
    }
}

/// A scale as blocks store it, and the number it then is.
fn stored(scale: f32) -> ([u8; 2], f32) {
    let half = half::f16::from_f32(scale);
    (half.to_le_bytes(), half.to_f32())
}

#[cfg(test)]
mod tests;
