//! Products of whole numbers of sixteen bits, two columns at a time.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use crate::packed::EXPONENT_LESS_UNIT;

/// What products of *words* need: a word is two neighbouring columns of a row, the first in the low half.
pub(crate) trait Pairs: Copy + Send + Sync {
    /// `LANES` f32.
    type V: Copy;
    /// `LANES` words.
    type W: Copy;
    /// `LANES` sums in 32 bits, perhaps in parts.
    type Sums: Copy;

    /// The first `LANES` words, at any address.
    fn load_words(self, from: &[u8]) -> Self::W;
    fn store_words(self, words: Self::W, to: &mut [u8]);
    fn splat_word(self, word: i32) -> Self::W;
    /// Of the first `LANES` units, as BF16: what [`Self::in_units`] takes exponents from.
    fn exponents(self, units: &[u8]) -> Self::W;
    /// Words of BF16 as whole numbers of their row's unit: magnitudes to the nearest, halves up. Anything
    /// where the unit is not a number.
    fn in_units(self, words: Self::W, exponents: Self::W) -> Self::W;
    fn no_sums(self) -> Self::Sums;
    /// The products of both columns added.
    fn add_products(self, sums: Self::Sums, a: Self::W, b: Self::W) -> Self::Sums;
    /// `float(sums) · factor + to`: the sums rounded to f32 and then the whole, on every instruction set.
    fn add_scaled(self, sums: Self::Sums, factor: Self::V, to: Self::V) -> Self::V;
}

/// Sign and exponent of a BF16 are replaced by the bit that the exponent stands for.
const FRACTION: i16 = 0x3f80;
const LEADING: i16 = 0x4000;

/// The exponent of elements that a unit's exponent stands for, without any bit of them lost: 0 to 269.
#[inline(always)]
fn exponent_of(unit: u16) -> u32 {
    u32::from(unit >> 7) + EXPONENT_LESS_UNIT
}

#[cfg(test)]
mod tests {
    use crate::isa::{Isa, Level};
    use crate::simd::{Kernel, Simd};

    /// Words of these halves in the units, as a kernel of its own.
    struct InUnits<'a> {
        halves: &'a [u16],
        unit: u16,
    }

    impl Kernel for InUnits<'_> {
        type Out = Vec<i16>;

        fn run<S: Simd>(self, simd: S) -> Vec<i16> {
            let units = [self.unit; 16].map(u16::to_le_bytes);
            let exponents = simd.exponents(units.as_flattened());
            let mut out = Vec::new();
            for halves in self.halves.chunks_exact(2 * S::LANES) {
                let mut words: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
                simd.store_words(simd.in_units(simd.load_words(&words), exponents), &mut words);
                out.extend(words.as_chunks().0.iter().map(|half| i16::from_le_bytes(*half)));
            }
            out
        }
    }

    /// Every BF16 below 2^14 units, of units from the smallest to the largest.
    #[test]
    fn elements_are_the_nearest_whole_numbers_of_units() {
        for field in [8u16, 9, 21, 22, 100, 127, 200, 238] {
            let unit = half::bf16::from_bits(field << 7);
            let end = (field + 14) << 7;
            let step = if cfg!(miri) { 97 } else { 1 };
            let halves: Vec<u16> = (0..end).step_by(step).flat_map(|half| [half, half | 0x8000]).collect();
            let halves = &halves[..halves.len() / 32 * 32];
            let want = |half: &u16| {
                let ratio = half::bf16::from_bits(*half).to_f64() / unit.to_f64();
                (ratio.abs() + 0.5).floor().copysign(ratio) as i16
            };
            let want: Vec<i16> = halves.iter().map(want).collect();
            for level in Isa::ALL.into_iter().filter_map(Level::detect) {
                let got = level.dispatch(InUnits { halves, unit: unit.to_bits() });
                assert!(got == want, "{level:?} {field}");
            }
        }
    }
}
