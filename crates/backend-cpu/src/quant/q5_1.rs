//! 32 elements: an f16 scale, an f16 minimum, 32 fifth bits and 32 nibbles. `x = d · q + m`

use super::legacy_nibbles::{pack_fifth_bits, pack_nibbles, with_fifth_bits, with_minimum};
use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 1));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let quants = with_fifth_bits(block[8..].first_chunk().expect("16 bytes follow the fifth bits"), high);
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(q) + m;
    }
}

pub(super) fn quantise(values: &[f32; 32]) -> [u8; 24] {
    let (d, m, quants) = with_minimum(values, 5);
    let mut block = [0; 24];
    block[..2].copy_from_slice(&d);
    block[2..4].copy_from_slice(&m);
    block[4..8].copy_from_slice(&pack_fifth_bits(&quants));
    block[8..].copy_from_slice(&pack_nibbles(&quants));
    block
}
