//! 32 elements: an f16 scale and 32 signed bytes. `x = d · q`

use super::stored;
use crate::fit::{Levels, inverse, quant, symmetric};

const LEVELS: Levels = Levels { min: -127.0, max: 127.0 };

pub(super) fn quantise(x: &[f32; 32]) -> [u8; 34] {
    // Every element counts the same: an error is at most half a step anyway.
    let (d_bytes, d) = stored(symmetric(x, &[1.0; 32], LEVELS, 2, 0.5).abs());
    let inverse = inverse(d);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&d_bytes);
    for (byte, x) in block[2..].iter_mut().zip(x) {
        *byte = quant(*x, inverse, LEVELS) as i8 as u8;
    }
    block
}
