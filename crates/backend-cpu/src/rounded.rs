//! Rows of activations rounded to eight bits, or to sixteen: made once, read by every product of the same
//! rows.

use bytemuck::{Pod, Zeroable};
use exo_backend::Activations;

/// Columns of a block.
const BLOCK: usize = Activations::BLOCK;

/// 32 columns of one row, with the sums that weights with a centre or a minimum need. The value of column k
/// is `scale · quants[k]`, as [`Activations::Rounded8`] defines it.
///
/// The sums come in the form in which kernels add them: a product of quants stored as q + c by x is
/// `Σ (q + c) · x - c · Σ x`.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RoundedBlock {
    /// d; NaN where an element is not finite, and the quants are zeros then.
    pub(crate) scale: f32,
    /// `d · Σ quants`, rounded once.
    pub(crate) scaled_sum: f32,
    /// `-Σ quants`.
    pub(crate) minus_sum: i32,
    /// For columns 0..16 and 16..32: minus the sum of quants 0 and 1 of each four, and minus that of quants 2
    /// and 3. These are the sums that stand in the two halves of a 32-bit lane of `vpmaddubsw`.
    pub(crate) minus_halves: [[i16; 2]; 2],
    /// -127 to 127. A *word* of packed weights is multiplied by four of them.
    pub(crate) quants: [i8; BLOCK],
}

impl RoundedBlock {
    /// The magnitude of the largest quant.
    pub(crate) const LARGEST: f32 = 127.0;

    /// Rounds one block; the reference for every instruction set.
    pub(crate) fn of(x: &[f32; BLOCK]) -> Self {
        // Bits of magnitudes are ordered as the magnitudes are, with infinity and then NaN above every
        // number.
        let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        match Rounding::of(largest, Self::LARGEST) {
            Rounding::AllZero => Self::zeroed(),
            Rounding::NotFinite => Self { scale: f32::NAN, ..Self::zeroed() },
            Rounding::By { scale, inverse } => {
                // |x · inverse| <= 127.00001
                Self::with_sums(scale, x.map(|x| ((x * inverse + ROUNDER) - ROUNDER) as i8))
            }
        }
    }

    /// Completes a block.
    #[inline(always)]
    pub(crate) fn with_sums(scale: f32, quants: [i8; BLOCK]) -> Self {
        let mut minus_halves = [[0i16; 2]; 2];
        for (k, q) in quants.iter().enumerate() {
            minus_halves[k / 16][k % 4 / 2] -= i16::from(*q);
        }
        let minus_sum: i32 = minus_halves.as_flattened().iter().map(|sum| i32::from(*sum)).sum();
        Self { scale, scaled_sum: scale * -minus_sum as f32, minus_sum, minus_halves, quants }
    }
}

/// Added to a magnitude below 2^22, leaves the nearest whole number in the low bits, ties to even, as the
/// conversions of vector units do; this needs none.
const ROUNDER: f32 = 12_582_912.0;

/// 32 columns of one row in sixteen bits, as [`Activations::Rounded16`] defines it: an element is
/// `scale · quant`.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WideBlock {
    /// d; NaN where an element is not finite, and the quants are zeros then.
    pub(crate) scale: f32,
    /// Quants from -32767 to 32767, of columns 2j and 2j + 1 in the low and the high half of number j: what a
    /// word of weights is multiplied by.
    pub(crate) words: [i32; BLOCK / 2],
}

impl WideBlock {
    /// Rounds one block. The same bits whatever the compiler makes of it: no operation is fused or left to
    /// choose.
    #[inline(always)]
    pub(crate) fn of(x: &[f32; BLOCK]) -> Self {
        let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        match Rounding::of(largest, 32767.0) {
            Rounding::AllZero => Self::zeroed(),
            Rounding::NotFinite => Self { scale: f32::NAN, ..Self::zeroed() },
            Rounding::By { scale, inverse } => {
                let mut words = [0; BLOCK / 2];
                for (word, x) in words.iter_mut().zip(x.as_chunks::<2>().0) {
                    // The low bits are the whole number in two's complement.
                    let [low, high] = x.map(|x| (x * inverse + ROUNDER).to_bits());
                    *word = (high << 16 | low & 0xffff) as i32;
                }
                Self { scale, words }
            }
        }
    }
}

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Rounding {
    /// Too small to matter.
    AllZero,
    /// The scale is NaN, the quants are zeros.
    NotFinite,
    /// `quant = round(x · inverse)`.
    By { scale: f32, inverse: f32 },
}

impl Rounding {
    /// By the bits of the largest magnitude of the block, and that of a quant.
    #[inline(always)]
    pub(crate) fn of(largest_bits: u32, quant: f32) -> Self {
        let largest = f32::from_bits(largest_bits);
        if !largest.is_finite() {
            Self::NotFinite
        } else if largest < Activations::ZERO_BELOW {
            Self::AllZero
        } else {
            Self::By { scale: largest / quant, inverse: quant / largest }
        }
    }
}

/// Rows of blocks, one row after another.
#[derive(Debug)]
pub(crate) struct RoundedRows<'a, B = RoundedBlock> {
    /// Blocks of one row.
    pub(crate) blocks: usize,
    /// How many there are.
    rows: usize,
    pub(crate) all: &'a [B],
}

impl<B> Clone for RoundedRows<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for RoundedRows<'_, B> {}

impl<'a, B> RoundedRows<'a, B> {
    /// Panics unless `all` are whole rows.
    pub(crate) fn new(blocks: usize, all: &'a [B]) -> Self {
        assert!(blocks > 0 && all.len().is_multiple_of(blocks), "{} blocks in rows of {blocks}", all.len());
        Self { blocks, rows: all.len() / blocks, all }
    }

    pub(crate) fn rows(self) -> usize {
        self.rows
    }

    /// Row `t`.
    pub(crate) fn row(self, t: usize) -> &'a [B] {
        &self.all[t * self.blocks..][..self.blocks]
    }

    /// Rows `t..t + count`.
    pub(crate) fn part(self, t: usize, count: usize) -> Self {
        Self { rows: count, all: &self.all[t * self.blocks..][..count * self.blocks], ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(x: impl Fn(usize) -> f32) -> RoundedBlock {
        RoundedBlock::of(&std::array::from_fn(x))
    }

    #[test]
    fn ties_go_to_the_even_number_and_sums_are_those_of_the_quants() {
        let got = block(|k| [-254.0, 3.0, 5.0, 1.9][k % 4] * if k < 16 { 1.0 } else { 0.5 });
        assert_eq!(got.scale, 2.0);
        assert_eq!(got.quants[..4], [-127, 2, 2, 1]);
        assert_eq!(got.quants[16..20], [-64, 1, 1, 0]); // -63.5, 0.75, 1.25, 0.475
        assert_eq!(got.minus_halves, [[4 * 125, -4 * 3], [4 * 63, -4]]);
        assert_eq!(got.minus_sum, 4 * (125 - 3 + 63 - 1));
        assert_eq!(got.scaled_sum, -2.0 * (4 * (125 - 3 + 63 - 1)) as f32);
    }

    #[test]
    fn sixteen_bits_are_rounded_likewise() {
        let wide = |x: &dyn Fn(usize) -> f32| WideBlock::of(&std::array::from_fn(x));
        let got = wide(&|k| [-65534.0, 3.0, 5.0, 1.9][k % 4]);
        assert_eq!((got.scale, &got.words[..2]), (2.0, &[2 << 16 | 0x8001, 1 << 16 | 2][..]));
        assert_eq!(wide(&|_| 7e-31), WideBlock::zeroed());
        assert_eq!(wide(&|k| if k == 3 { f32::MAX } else { 0.0 }).words[1], 32767 << 16);
        let got = wide(&|k| if k == 31 { f32::INFINITY } else { 1.0 });
        assert!(got.scale.is_nan() && got.words == [0; 16]);
    }

    #[test]
    fn what_cannot_be_rounded_is_zero_or_not_a_number() {
        assert_eq!(block(|_| -0.0), RoundedBlock::zeroed());
        assert_eq!(block(|_| 7e-31), RoundedBlock::zeroed());
        assert_eq!(block(|_| 8e-31).quants, [127; 32]);
        assert_eq!(block(|k| if k == 3 { f32::MAX } else { 0.0 }).quants[3], 127);
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let got = block(|k| if k == 31 { bad } else { 1.0 });
            assert!(got.scale.is_nan() && got.quants == [0; 32] && got.minus_sum == 0, "{bad}");
        }
    }
}
