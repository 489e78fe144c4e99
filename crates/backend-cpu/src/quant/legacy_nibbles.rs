//! What Q4_0, Q4_1, Q5_0 and Q5_1 share: the low four bits of elements i and i + 16 in byte i, fifth bits in
//! a u32.

use crate::math::to_f16;
use crate::simd::Simd;

/// Quants `at..at + LANES` of four bits: elements 0..16 are the low nibbles, 16..32 the high ones.
#[inline(always)]
pub(super) fn nibbles<S: Simd>(simd: S, bytes: &[u8], at: usize) -> S::V {
    simd.load_bits(&bytes[at % 16..], 4 * (at as u32 / 16), 15)
}

/// [`nibbles`] with element i's fifth bit from bit i of `high`.
#[inline(always)]
pub(super) fn five_bits<S: Simd>(simd: S, bytes: &[u8], high: u32, at: usize) -> S::V {
    // Small whole numbers: the sum is exact.
    simd.mul_add(simd.spread_bits(high >> at), simd.splat(16.0), nibbles(simd, bytes, at))
}

/// Four bits of each quant, as [`nibbles`] reads them.
pub(super) fn pack_nibbles(quants: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| (quants[i] & 0x0f) | (quants[i + 16] << 4))
}

/// Fifth bits, element 0 lowest.
pub(super) fn pack_fifth_bits(quants: &[u8; 32]) -> [u8; 4] {
    let bits = quants.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4 & 1) << i);
    bits.to_le_bytes()
}

/// Scale and quants of `x = d · (q - 2^(bits-1))`: the element of largest magnitude becomes the lowest quant.
pub(super) fn symmetric(values: &[f32; 32], bits: u32) -> ([u8; 2], [u8; 32]) {
    let half = (1 << (bits - 1)) as f32;
    let first_largest = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
    let d = values.iter().fold(0.0, first_largest) / -half;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let top = ((1 << bits) - 1) as u8;
    let quants = values.map(|v| ((v * inverse + (half + 0.5)) as u8).min(top));
    (to_f16(d).to_le_bytes(), quants)
}

/// Scale, smallest value and quants of `x = d · q + m`.
pub(super) fn with_minimum(values: &[f32; 32], bits: u32) -> ([u8; 2], [u8; 2], [u8; 32]) {
    let (min, max) =
        values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    let top = (1 << bits) - 1;
    let d = (max - min) / top as f32;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let quants = values.map(|v| (((v - min) * inverse + 0.5) as u8).min(top as u8));
    (to_f16(d).to_le_bytes(), to_f16(min).to_le_bytes(), quants)
}
