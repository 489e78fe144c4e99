//! Q4_K and Q5_K: 256 elements in 8 groups of 32. `x = (d · scale) · q - (dmin · min)`
//!
//! Q4_K: d 0..2, dmin 2..4, scales 4..16, nibbles 16..144. Q5_K: the same with fifth bits 16..48 before the
//! nibbles 48..176. Groups 2j and 2j + 1 are the low and the high nibbles of the 32 bytes number j; element i
//! of group g has its fifth bit in bit g of byte i. Scales and minima have six bits.
//!
//! Each group is fitted alone, then the block's `d` and `dmin` are chosen so that the largest scale and
//! minimum fit six bits. Rounding to those costs more than the search gained, so it is undone as far as it
//! goes, by turns: each group takes the best of the nine pairs about its own, and `d` and `dmin` are fitted
//! to all 256 elements.

use super::stored;
use crate::fit::{Affine, Levels, affine, inverse, quant, weights};

const GROUPS: usize = 8;
const SIX_BITS: f32 = 63.0;
/// Turns of choosing pairs and fitting `d` and `dmin`; the third gains nothing that is seen.
const TURNS: usize = 2;

pub(super) fn quantise_q4(x: &[f32; 256]) -> [u8; 144] {
    let fitted = Block::fit(x, 15.0);
    let mut block = [0; 144];
    block[..16].copy_from_slice(&fitted.head());
    block[16..].copy_from_slice(&nibbles(&fitted.quants(x)));
    block
}

pub(super) fn quantise_q5(x: &[f32; 256]) -> [u8; 176] {
    let fitted = Block::fit(x, 31.0);
    let quants = fitted.quants(x);
    let mut block = [0; 176];
    block[..16].copy_from_slice(&fitted.head());
    for (g, group) in quants.iter().enumerate() {
        for (byte, q) in block[16..48].iter_mut().zip(group) {
            *byte |= (q >> 4) << g;
        }
    }
    block[48..].copy_from_slice(&nibbles(&quants));
    block
}

fn nibbles(quants: &[[u8; 32]; GROUPS]) -> [u8; 128] {
    std::array::from_fn(|at| {
        let (low, high) = (2 * (at / 32), at % 32);
        (quants[low][high] & 15) | quants[low + 1][high] << 4
    })
}

/// The numbers of a block but its quants, which follow from these.
#[derive(Clone, Copy)]
struct Block {
    d: f32,
    dmin: f32,
    stored: [u8; 4],
    /// Whole numbers from 0 to 63.
    pairs: [Affine; GROUPS],
    top: f32,
}

impl Block {
    fn fit(x: &[f32; 256], top: f32) -> Self {
        let groups: &[[f32; 32]; GROUPS] =
            x.as_chunks().0.try_into().expect("256 elements are 8 groups of 32");
        let w = groups.each_ref().map(weights);
        let fits: [Affine; GROUPS] = std::array::from_fn(|g| affine(&groups[g], &w[g], top));
        let largest = |of: fn(&Affine) -> f32| fits.iter().map(of).fold(0.0f32, f32::max);
        let mut best = Self::with(largest(|f| f.scale) / SIX_BITS, largest(|f| f.min) / SIX_BITS, top);
        let (scale, min) = (inverse(best.d), inverse(best.dmin));
        best.pairs =
            fits.map(|fit| Affine { scale: six_bits(fit.scale * scale), min: six_bits(fit.min * min) });
        let mut error = best.choose_pairs(groups, &w);
        for _ in 0..TURNS {
            let Some(mut turned) = best.fit_scales(groups, &w) else { break };
            let turned_error = turned.choose_pairs(groups, &w);
            if turned_error >= error {
                break;
            }
            (best, error) = (turned, turned_error);
        }
        best
    }

    fn with(d: f32, dmin: f32, top: f32) -> Self {
        let ((d_bytes, d), (dmin_bytes, dmin)) = (stored(d), stored(dmin));
        let stored = [d_bytes[0], d_bytes[1], dmin_bytes[0], dmin_bytes[1]];
        Self { d, dmin, stored, pairs: [Affine::default(); GROUPS], top }
    }

    /// Scale and minimum of a group in the elements' own unit.
    #[inline(always)]
    fn of(&self, pair: Affine) -> Affine {
        Affine { scale: self.d * pair.scale, min: self.dmin * pair.min }
    }

    /// Gives each group the best pair about its own; returns the weighted error of the block.
    fn choose_pairs(&mut self, groups: &[[f32; 32]; GROUPS], w: &[[f32; 32]; GROUPS]) -> f32 {
        let mut total = 0.0;
        for g in 0..GROUPS {
            let own = self.pairs[g];
            let mut best_error = f32::INFINITY;
            for scale in [0.0, -1.0, 1.0] {
                for min in [0.0, -1.0, 1.0] {
                    let pair = Affine { scale: six_bits(own.scale + scale), min: six_bits(own.min + min) };
                    let error = group_error(&groups[g], &w[g], self.of(pair), self.top);
                    if error < best_error {
                        (best_error, self.pairs[g]) = (error, pair);
                    }
                }
            }
            total += best_error;
        }
        total
    }

    /// The block with `d` and `dmin` fitted to its scales, minima and quants: `x ≈ d · a - dmin · b`.
    fn fit_scales(&self, groups: &[[f32; 32]; GROUPS], w: &[[f32; 32]; GROUPS]) -> Option<Self> {
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for g in 0..GROUPS {
            let (fit, b) = (self.of(self.pairs[g]), self.pairs[g].min);
            for (x, w) in groups[g].iter().zip(&w[g]) {
                let a = self.pairs[g].scale * group_quant(*x, fit, self.top);
                aa += w * a * a;
                ab += w * a * b;
                bb += w * b * b;
                ax += w * a * x;
                bx += w * b * x;
            }
        }
        let determinant = aa * bb - ab * ab;
        let (mut d, mut dmin) = ((bb * ax - ab * bx) / determinant, (ab * ax - aa * bx) / determinant);
        if bb == 0.0 {
            (d, dmin) = (ax / aa, 0.0);
        }
        if !(d > 0.0 && dmin >= 0.0 && d.is_finite() && dmin.is_finite()) {
            return None;
        }
        Some(Self { pairs: self.pairs, ..Self::with(d, dmin, self.top) })
    }

    fn quants(&self, x: &[f32; 256]) -> [[u8; 32]; GROUPS] {
        std::array::from_fn(|g| {
            let fit = self.of(self.pairs[g]);
            std::array::from_fn(|i| group_quant(x[32 * g + i], fit, self.top) as u8)
        })
    }

    /// `d`, `dmin` and the twelve bytes of scales and minima.
    fn head(&self) -> [u8; 16] {
        let mut head = [0; 16];
        head[..4].copy_from_slice(&self.stored);
        let packed = &mut head[4..];
        for i in 0..4 {
            let [scale, min] = [self.pairs[i].scale as u8, self.pairs[i].min as u8];
            let [scale_high, min_high] = [self.pairs[i + 4].scale as u8, self.pairs[i + 4].min as u8];
            packed[i] = scale | (scale_high >> 4) << 6;
            packed[i + 4] = min | (min_high >> 4) << 6;
            packed[i + 8] = (scale_high & 15) | min_high << 4;
        }
        head
    }
}

#[inline(always)]
fn six_bits(x: f32) -> f32 {
    quant(x, 1.0, Levels { min: 0.0, max: SIX_BITS })
}

#[inline(always)]
fn group_quant(x: f32, fit: Affine, top: f32) -> f32 {
    quant(x + fit.min, inverse(fit.scale), Levels { min: 0.0, max: top })
}

#[inline(always)]
fn group_error(x: &[f32; 32], w: &[f32; 32], fit: Affine, top: f32) -> f32 {
    let inverse = inverse(fit.scale);
    let levels = Levels { min: 0.0, max: top };
    let mut errors = [0.0f32; 4];
    for i in (0..32).step_by(4) {
        for l in 0..4 {
            let q = quant(x[i + l] + fit.min, inverse, levels);
            let error = x[i + l] - (fit.scale * q - fit.min);
            errors[l] += w[i + l] * error * error;
        }
    }
    (errors[0] + errors[1]) + (errors[2] + errors[3])
}
