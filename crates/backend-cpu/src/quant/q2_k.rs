//! 256 elements in 16 groups of 16: a byte of 4-bit scale and 4-bit minimum per group, 2-bit quants, two f16.
//! `x = (d · scale) · q - (dmin · min)`
//!
//! Bytes: scales 0..16, quants 16..80, d 80..82, dmin 82..84. Each half of 128 elements has 32 bytes of
//! quants; its elements 32·j + i sit in bits 2j and 2j + 1 of byte i.

use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 40), f16_at(block, 41));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = simd.splat(d * f32::from(block[group] & 0x0f));
        let min = simd.splat(dmin * f32::from(block[group] >> 4));
        let quants = &block[16 + 32 * (group / 8) + 16 * (group % 2)..];
        for at in (0..16).step_by(S::LANES) {
            let q = simd.load_bits(&quants[at..], 2 * (group as u32 / 2 % 4), 3);
            simd.store(simd.sub(simd.mul(scale, q), min), &mut out[at..]);
        }
    }
}
