//! 32 elements: an f16 scale, an f16 minimum and 32 nibbles. `x = d · q + m`

use super::legacy_nibbles::{nibbles, pack_nibbles, with_minimum};
use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 1));
    let quants = nibbles(block[4..].first_chunk().expect("16 bytes follow the scales"));
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(q) + m;
    }
}

pub(super) fn quantise(values: &[f32; 32]) -> [u8; 20] {
    let (d, m, quants) = with_minimum(values, 4);
    let mut block = [0; 20];
    block[..2].copy_from_slice(&d);
    block[2..4].copy_from_slice(&m);
    block[4..].copy_from_slice(&pack_nibbles(&quants));
    block
}
