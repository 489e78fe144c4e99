//! 256 elements in 16 groups of 16: signed 8-bit scales, quants of 4 and 2 bits, an f16.
//! `x = (d · scale) · (q - 32)`
//!
//! Bytes: low bits 0..128, high bits 128..192, scales 192..208, d 208..210. Each half of 128 elements has 64
//! bytes of low bits (elements 0..64 in the low nibbles, 64..128 in the high ones) and 32 bytes of high bits
//! (elements 32·j + i in bits 2j and 2j + 1 of byte i).
//!
//! Groups are fitted alone, `d` maps the largest scale to -128, then each group takes the best of the three
//! scales about its own and `d` is fitted to all 256 elements.

use super::stored;
use crate::fit::{Levels, inverse, quant, symmetric, weights};

const GROUPS: usize = 16;
const LEVELS: Levels = Levels { min: -32.0, max: 31.0 };
const SCALES: Levels = Levels { min: -128.0, max: 127.0 };

pub(super) fn quantise(x: &[f32; 256]) -> [u8; 210] {
    let groups: &[[f32; 16]; GROUPS] = x.as_chunks().0.try_into().expect("256 elements are 16 groups of 16");
    let w = groups.each_ref().map(weights);
    let fits: [f32; GROUPS] = std::array::from_fn(|g| symmetric(&groups[g], &w[g], LEVELS, 6, 0.2));
    let largest = fits.iter().fold(0.0f32, |best, s| if s.abs() > best.abs() { *s } else { best });
    let mut best = Block::with(largest / SCALES.min);
    best.scales = fits.map(|fit| quant(fit, inverse(best.d), SCALES));
    let error = best.choose_scales(groups, &w);
    if let Some(mut turned) = best.fit_d(groups, &w)
        && turned.choose_scales(groups, &w) < error
    {
        best = turned;
    }
    best.pack(groups)
}

#[derive(Clone, Copy)]
struct Block {
    d: f32,
    d_bytes: [u8; 2],
    /// Whole numbers from -128 to 127.
    scales: [f32; GROUPS],
}

impl Block {
    fn with(d: f32) -> Self {
        let (d_bytes, d) = stored(d);
        Self { d, d_bytes, scales: [0.0; GROUPS] }
    }

    /// Gives each group the best scale about its own; returns the weighted error of the block.
    fn choose_scales(&mut self, groups: &[[f32; 16]; GROUPS], w: &[[f32; 16]; GROUPS]) -> f32 {
        let mut total = 0.0;
        for g in 0..GROUPS {
            let own = self.scales[g];
            let mut best_error = f32::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let scale = quant(own + step, 1.0, SCALES);
                let error = group_error(&groups[g], &w[g], self.d * scale);
                if error < best_error {
                    (best_error, self.scales[g]) = (error, scale);
                }
            }
            total += best_error;
        }
        total
    }

    /// The block with `d` fitted to its scales and quants.
    fn fit_d(&self, groups: &[[f32; 16]; GROUPS], w: &[[f32; 16]; GROUPS]) -> Option<Self> {
        let (mut ax, mut aa) = (0.0, 0.0);
        for g in 0..GROUPS {
            let inverse = inverse(self.d * self.scales[g]);
            for (x, w) in groups[g].iter().zip(&w[g]) {
                let a = self.scales[g] * quant(*x, inverse, LEVELS);
                ax += w * a * x;
                aa += w * a * a;
            }
        }
        (aa > 0.0).then(|| Self { scales: self.scales, ..Self::with(ax / aa) })
    }

    fn pack(&self, groups: &[[f32; 16]; GROUPS]) -> [u8; 210] {
        let mut block = [0; 210];
        for (g, group) in groups.iter().enumerate() {
            let inverse = inverse(self.d * self.scales[g]);
            let (half, within) = (g / 8, 16 * (g % 8));
            for (i, x) in group.iter().enumerate() {
                let q = (quant(*x, inverse, LEVELS) + 32.0) as u8;
                let at = within + i;
                block[64 * half + at % 64] |= (q & 15) << (4 * (at / 64));
                block[128 + 32 * half + at % 32] |= (q >> 4) << (2 * (at / 32));
            }
            block[192 + g] = self.scales[g] as i8 as u8;
        }
        block[208..].copy_from_slice(&self.d_bytes);
        block
    }
}

#[inline(always)]
fn group_error(x: &[f32; 16], w: &[f32; 16], scale: f32) -> f32 {
    let inverse = inverse(scale);
    let mut errors = [0.0f32; 4];
    for i in (0..16).step_by(4) {
        for l in 0..4 {
            let error = x[i + l] - scale * quant(x[i + l], inverse, LEVELS);
            errors[l] += w[i + l] * error * error;
        }
    }
    (errors[0] + errors[1]) + (errors[2] + errors[3])
}
