//! In plain Rust: the reference of the others.

use super::super::Scalar;
use super::{FRACTION, LEADING, Pairs, exponent_of};

/// Eight words.
type Words = [[i16; 2]; 8];

impl Pairs for Scalar {
    type V = [f32; 8];
    type W = Words;
    type Sums = [i32; 8];

    #[inline(always)]
    fn load_words(self, from: &[u8]) -> Words {
        let from = &from[..32];
        let half = |i: usize| i16::from_le_bytes([from[2 * i], from[2 * i + 1]]);
        std::array::from_fn(|l| [half(2 * l), half(2 * l + 1)])
    }

    #[inline(always)]
    fn store_words(self, words: Words, to: &mut [u8]) {
        for (to, half) in to[..32].as_chunks_mut().0.iter_mut().zip(words.as_flattened()) {
            *to = half.to_le_bytes();
        }
    }

    #[inline(always)]
    fn splat_word(self, word: i32) -> Words {
        [[word as i16, (word >> 16) as i16]; 8]
    }

    #[inline(always)]
    fn exponents(self, units: &[u8]) -> Words {
        let units = &units[..16];
        std::array::from_fn(|l| [exponent_of(u16::from_le_bytes([units[2 * l], units[2 * l + 1]])) as i16; 2])
    }

    #[inline(always)]
    fn in_units(self, words: Words, exponents: Words) -> Words {
        let one = |word: i16, exponent: i16| {
            let magnitude = word << 7 & FRACTION | LEADING;
            let shift = exponent - (word >> 7 & 0xff);
            // Shifted by 15 or more nothing is left but the half that rounds.
            let rounded = if shift > 15 { 0 } else { (i32::from(magnitude) + (1 << shift >> 1)) >> shift };
            if word < 0 { -rounded as i16 } else { rounded as i16 }
        };
        std::array::from_fn(|l| std::array::from_fn(|i| one(words[l][i], exponents[l][i])))
    }

    #[inline(always)]
    fn no_sums(self) -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn add_products(self, sums: [i32; 8], a: Words, b: Words) -> [i32; 8] {
        // Wrapping, as vectors do, where the unit is not a number.
        let product = |l: usize, i: usize| i32::from(a[l][i]) * i32::from(b[l][i]);
        std::array::from_fn(|l| sums[l].wrapping_add(product(l, 0)).wrapping_add(product(l, 1)))
    }

    #[inline(always)]
    fn add_scaled(self, sums: [i32; 8], factor: [f32; 8], to: [f32; 8]) -> [f32; 8] {
        // Not `Simd::mul_add`, which rounds twice here.
        std::array::from_fn(|l| (sums[l] as f32).mul_add(factor[l], to[l]))
    }
}
