//! 256 elements in 16 groups of 16: 6-bit scales, quants of 2 bits and a third, inverted one, an f16.
//! `x = (d · (scale - 32)) · (q - 4 · (third bit is clear))`
//!
//! Bytes: third bits 0..32, quants 32..96, scales 96..108, d 108..110. Quants lie as in Q2_K; elements 32·j +
//! i of the block have their third bit in bit j of byte i.

use crate::math::f16_at;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 54);
    let four = simd.splat(4.0);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = simd.splat(d * f32::from(scale(&block[96..108], group) as i8 - 32));
        let quants = &block[32 + 32 * (group / 8) + 16 * (group % 2)..];
        let thirds = &block[16 * (group % 2)..];
        for at in (0..16).step_by(S::LANES) {
            let low = simd.load_bits(&quants[at..], 2 * (group as u32 / 2 % 4), 3);
            let third = simd.load_bits(&thirds[at..], group as u32 / 2, 1);
            // low - 4 where the third bit is clear, low where it is set: whole numbers, exact.
            let q = simd.mul_add(third, four, simd.sub(low, four));
            simd.store(simd.mul(scale, q), &mut out[at..]);
        }
    }
}

/// Six bits: four in one of the first eight bytes, two in one of the last four.
#[inline(always)]
fn scale(bytes: &[u8], group: usize) -> u8 {
    let low = bytes[group % 8] >> (4 * (group / 8)) & 0x0f;
    let high = bytes[8 + group % 4] >> (2 * (group / 4)) & 3;
    low | high << 4
}
