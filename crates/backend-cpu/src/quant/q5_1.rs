//! 32 elements: an f16 scale, an f16 minimum, 32 fifth bits and 32 nibbles. `x = d · q + m`

use super::legacy_nibbles::{five_bits, pack_fifth_bits, pack_nibbles, with_minimum};
use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 24], out: &mut [f32; 32]) {
    let d = simd.splat(f16_at(block, 0));
    let m = simd.splat(f16_at(block, 1));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for at in (0..32).step_by(S::LANES) {
        let q = five_bits(simd, &block[8..], high, at);
        simd.store(simd.add(simd.mul(d, q), m), &mut out[at..]);
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
