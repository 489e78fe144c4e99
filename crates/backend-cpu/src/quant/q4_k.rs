//! 256 elements in 8 groups of 32: 6-bit scales and minima, nibbles, two f16. `x = (d · scale) · q - (dmin · min)`
//!
//! Bytes: d 0..2, dmin 2..4, scales 4..16, nibbles 16..144. Groups 2j and 2j + 1 are the low and the high nibbles of
//! the 32 bytes number j.

use super::scales_6_bit::unpack;
use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 1));
    let (scales, mins) = unpack(&block[4..16]);
    let (bytes, pairs) = (block[16..].as_chunks::<32>().0, out.as_chunks_mut::<64>().0);
    for (j, (bytes, out)) in bytes.iter().zip(pairs).enumerate() {
        let scale = [d * f32::from(scales[2 * j]), d * f32::from(scales[2 * j + 1])];
        let min = [dmin * f32::from(mins[2 * j]), dmin * f32::from(mins[2 * j + 1])];
        for i in 0..32 {
            out[i] = scale[0] * f32::from(bytes[i] & 0x0f) - min[0];
        }
        for i in 0..32 {
            out[32 + i] = scale[1] * f32::from(bytes[i] >> 4) - min[1];
        }
    }
}
