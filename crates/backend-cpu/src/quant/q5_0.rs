//! 32 elements: an f16 scale, 32 fifth bits and 32 nibbles. `x = d · (q - 16)`

use super::legacy_nibbles::{pack_fifth_bits, pack_nibbles, symmetric, with_fifth_bits};
use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    let quants = with_fifth_bits(block[6..].first_chunk().expect("16 bytes follow the fifth bits"), high);
    for (out, q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(q as i8 - 16);
    }
}

pub(super) fn quantise(values: &[f32; 32]) -> [u8; 22] {
    let (d, quants) = symmetric(values, 5);
    let mut block = [0; 22];
    block[..2].copy_from_slice(&d);
    block[2..6].copy_from_slice(&pack_fifth_bits(&quants));
    block[6..].copy_from_slice(&pack_nibbles(&quants));
    block
}
