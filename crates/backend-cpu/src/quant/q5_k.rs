//! 256 elements in 8 groups of 32: as Q4_K, with a fifth bit. `x = (d · scale) · q - (dmin · min)`
//!
//! Bytes: d 0..2, dmin 2..4, scales 4..16, fifth bits 16..48, nibbles 48..176. Element i of group g has its fifth
//! bit in bit g of byte i.

use super::scales_6_bit::unpack;
use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 1));
    let (scales, mins) = unpack(&block[4..16]);
    let fifths = &block[16..48];
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
        let bytes = &block[48 + 32 * (g / 2)..80 + 32 * (g / 2)];
        let shift = 4 * (g % 2);
        for i in 0..32 {
            let q = (bytes[i] >> shift & 0x0f) | (fifths[i] >> g & 1) << 4;
            out[i] = scale * f32::from(q) - min;
        }
    }
}
