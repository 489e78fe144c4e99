//! What Q4_0, Q4_1, Q5_0 and Q5_1 share: the low four bits of elements i and i + 16 in byte i, fifth bits in a u32.

use crate::math::to_f16;

/// Low and high nibble of each byte: elements 0..16, then 16..32.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8; 16]) -> [u8; 32] {
    let mut quants = [0; 32];
    for i in 0..16 {
        quants[i] = bytes[i] & 0x0f;
        quants[i + 16] = bytes[i] >> 4;
    }
    quants
}

/// [`nibbles`] with element i's fifth bit from bit i of `high`.
#[inline(always)]
pub(super) fn with_fifth_bits(bytes: &[u8; 16], high: u32) -> [u8; 32] {
    let mut quants = nibbles(bytes);
    for (i, q) in quants.iter_mut().enumerate() {
        *q |= ((high >> i & 1) as u8) << 4;
    }
    quants
}

/// The inverse of [`nibbles`]; higher bits are dropped.
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
