//! 256 elements: an f32 scale, 256 signed bytes, and 16 sums of 16 quants that only integer kernels need. `x = d · q`

use crate::math::f32_at;

#[inline(always)]
pub(super) fn dequantise(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32_at(block, 0);
    for (out, q) in out.iter_mut().zip(&block[4..260]) {
        *out = d * f32::from(*q as i8);
    }
}
