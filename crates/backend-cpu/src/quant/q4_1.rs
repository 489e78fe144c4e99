//! 32 elements: an f16 scale, an f16 minimum and 32 nibbles. `x = d · q + m`

use super::legacy_nibbles::{nibbles, pack_nibbles, with_minimum};
use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 20], out: &mut [f32; 32]) {
    let d = simd.splat(f16_at(block, 0));
    let m = simd.splat(f16_at(block, 1));
    for at in (0..32).step_by(S::LANES) {
        let q = nibbles(simd, &block[4..], at);
        simd.store(simd.add(simd.mul(d, q), m), &mut out[at..]);
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
