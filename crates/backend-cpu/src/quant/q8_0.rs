//! 32 elements: an f16 scale and 32 signed bytes. `x = d · q`

use crate::math::to_f16;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn dequantise<S: Simd>(simd: S, block: &[u8; 34], out: &mut [f32; 32]) {
    let d = simd.splat_f16([block[0], block[1]]);
    for at in (0..32).step_by(S::LANES) {
        simd.store(simd.mul(simd.load_i8(&block[2 + at..]), d), &mut out[at..]);
    }
}

/// The largest magnitude becomes ±127.
pub(super) fn quantise(values: &[f32; 32]) -> [u8; 34] {
    let d = values.iter().fold(0.0f32, |max, v| max.max(v.abs())) / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut block = [0; 34];
    block[..2].copy_from_slice(&to_f16(d).to_le_bytes());
    for (q, v) in block[2..].iter_mut().zip(values) {
        *q = (v * inverse).round() as i8 as u8;
    }
    block
}
