//! 256 elements in 16 groups of 16: signed 8-bit scales, quants of 4 and 2 bits, an f16. `x = (d · scale) · (q - 32)`
//!
//! Bytes: low bits 0..128, high bits 128..192, scales 192..208, d 208..210. Each half of 128 elements has 64 bytes of
//! low bits (elements 0..64 in the low nibbles, 64..128 in the high ones) and 32 bytes of high bits (elements
//! 32·j + i in bits 2j and 2j + 1 of byte i).

use crate::math::f16_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 104);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (j / 4, j % 4);
        let low = &block[64 * half + 32 * (quarter % 2)..64 * half + 32 * (quarter % 2) + 32];
        let high = &block[128 + 32 * half..160 + 32 * half];
        let (shift_low, shift_high) = (4 * (quarter / 2), 2 * quarter);
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(block[192 + 2 * j + g] as i8);
            for i in 0..16 {
                let q = (low[16 * g + i] >> shift_low & 0x0f) | (high[16 * g + i] >> shift_high & 3) << 4;
                out[i] = scale * f32::from(q as i8 - 32);
            }
        }
    }
}
