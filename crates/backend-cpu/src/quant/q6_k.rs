//! 256 elements in 16 groups of 16: signed 8-bit scales, quants of 4 and 2 bits, an f16.
//! `x = (d · scale) · (q - 32)`
//!
//! Bytes: low bits 0..128, high bits 128..192, scales 192..208, d 208..210. Each half of 128 elements has 64
//! bytes of low bits (elements 0..64 in the low nibbles, 64..128 in the high ones) and 32 bytes of high bits
//! (elements 32·j + i in bits 2j and 2j + 1 of byte i).

use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 104);
    let (sixteen, centre) = (simd.splat(16.0), simd.splat(32.0));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = simd.splat(d * f32::from(block[192 + group] as i8));
        let (half, within) = (group / 8, 16 * (group % 8));
        let low = &block[64 * half + within % 64..];
        let high = &block[128 + 32 * half + within % 32..];
        for at in (0..16).step_by(S::LANES) {
            let low = simd.load_bits(&low[at..], 4 * (within as u32 / 64), 15);
            let high = simd.load_bits(&high[at..], 2 * (within as u32 / 32), 3);
            let q = simd.sub(simd.mul_add(high, sixteen, low), centre);
            simd.store(simd.mul(scale, q), &mut out[at..]);
        }
    }
}
