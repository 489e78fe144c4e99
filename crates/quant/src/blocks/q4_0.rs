//! 32 elements: an f16 scale and 32 nibbles. `x = d · (q - 8)`, elements i and i + 16 in byte i.

use super::stored;
use crate::fit::{Levels, inverse, quant, symmetric};

const LEVELS: Levels = Levels { min: -8.0, max: 7.0 };

pub(super) fn quantise(x: &[f32; 32]) -> [u8; 18] {
    // Both signs of the scale are tried: the side with one level more is better for the longer tail.
    let (d_bytes, d) = stored(symmetric(x, &[1.0; 32], LEVELS, 10, 0.15));
    let inverse = inverse(d);
    let q = x.map(|x| (quant(x, inverse, LEVELS) + 8.0) as u8);
    let mut block = [0; 18];
    block[..2].copy_from_slice(&d_bytes);
    for (i, byte) in block[2..].iter_mut().enumerate() {
        *byte = q[i] | q[i + 16] << 4;
    }
    block
}
