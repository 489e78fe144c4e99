//! 256 elements in 8 groups of 32: as Q4_K, with a fifth bit. `x = (d · scale) · q - (dmin · min)`
//!
//! Bytes: d 0..2, dmin 2..4, scales 4..16, fifth bits 16..48, nibbles 48..176. Element i of group g has its
//! fifth bit in bit g of byte i.

use crate::math::f16_at;
use crate::scales_6_bit::unpack;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 1));
    let (scales, mins) = unpack(&block[4..16]);
    let (fifths, sixteen) = (&block[16..48], simd.splat(16.0));
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (simd.splat(d * f32::from(scales[g])), simd.splat(dmin * f32::from(mins[g])));
        let quants = &block[48 + 32 * (g / 2)..];
        for at in (0..32).step_by(S::LANES) {
            let low = simd.load_bits(&quants[at..], 4 * (g as u32 % 2), 15);
            let q = simd.mul_add(simd.load_bits(&fifths[at..], g as u32, 1), sixteen, low);
            simd.store(simd.sub(simd.mul(scale, q), min), &mut out[at..]);
        }
    }
}
