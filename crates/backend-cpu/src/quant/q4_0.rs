//! 32 elements: an f16 scale and 32 nibbles. `x = d · (q - 8)`

use super::legacy_nibbles::{nibbles, pack_nibbles, symmetric};
use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let quants = nibbles(block[2..].first_chunk().expect("16 bytes follow the scale"));
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(q as i8 - 8);
    }
}

pub(super) fn quantise(values: &[f32; 32]) -> [u8; 18] {
    let (d, quants) = symmetric(values, 4);
    let mut block = [0; 18];
    block[..2].copy_from_slice(&d);
    block[2..].copy_from_slice(&pack_nibbles(&quants));
    block
}
