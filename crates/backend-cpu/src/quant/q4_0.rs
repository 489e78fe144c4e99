//! 32 elements: an f16 scale and 32 nibbles. `x = d · (q - 8)`

use super::legacy_nibbles::{nibbles, pack_nibbles, symmetric};
use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 18], out: &mut [f32; 32]) {
    let d = simd.splat(f16_at(block, 0));
    let centre = simd.splat(8.0);
    for at in (0..32).step_by(S::LANES) {
        let q = nibbles(simd, &block[2..], at);
        simd.store(simd.mul(d, simd.sub(q, centre)), &mut out[at..]);
    }
}

pub(super) fn quantise(values: &[f32; 32]) -> [u8; 18] {
    let (d, quants) = symmetric(values, 4);
    let mut block = [0; 18];
    block[..2].copy_from_slice(&d);
    block[2..].copy_from_slice(&pack_nibbles(&quants));
    block
}
