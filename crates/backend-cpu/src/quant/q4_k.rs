//! 256 elements in 8 groups of 32: 6-bit scales and minima, nibbles, two f16.
//! `x = (d · scale) · q - (dmin · min)`
//!
//! Bytes: d 0..2, dmin 2..4, scales 4..16, nibbles 16..144. Groups 2j and 2j + 1 are the low and the high
//! nibbles of the 32 bytes number j.

use crate::math::f16_at;
use crate::scales_6_bit::unpack;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 1));
    let (scales, mins) = unpack(&block[4..16]);
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (simd.splat(d * f32::from(scales[g])), simd.splat(dmin * f32::from(mins[g])));
        let quants = &block[16 + 32 * (g / 2)..];
        for at in (0..32).step_by(S::LANES) {
            let q = simd.load_bits(&quants[at..], 4 * (g as u32 % 2), 15);
            simd.store(simd.sub(simd.mul(scale, q), min), &mut out[at..]);
        }
    }
}
