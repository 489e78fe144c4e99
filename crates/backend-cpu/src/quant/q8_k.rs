//! 256 elements: an f32 scale, 256 signed bytes, and 16 sums of 16 quants that only integer kernels need.
//! `x = d · q`

use crate::math::f32_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 292], out: &mut [f32; 256]) {
    let d = simd.splat(f32_at(block, 0));
    for at in (0..256).step_by(S::LANES) {
        simd.store(simd.mul(simd.load_i8(&block[4 + at..]), d), &mut out[at..]);
    }
}
