//! 32 elements: an f16 scale, 32 fifth bits and 32 nibbles. `x = d · (q - 16)`

use super::legacy_nibbles::{five_bits, pack_fifth_bits, pack_nibbles, symmetric};
use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 22], out: &mut [f32; 32]) {
    let d = simd.splat(f16_at(block, 0));
    let centre = simd.splat(16.0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for at in (0..32).step_by(S::LANES) {
        let q = five_bits(simd, &block[6..], high, at);
        simd.store(simd.mul(d, simd.sub(q, centre)), &mut out[at..]);
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
