//! Eight words of AVX2: `vpmaddwd`.

use std::arch::x86_64::*;

use super::super::Avx2;
use super::{FRACTION, LEADING, Pairs};
use crate::packed::EXPONENT_LESS_UNIT;

/// 2^(7 - i) from byte 8 on: both bytes of a power of two below 2^15 are found here, see [`Avx2::in_units`].
const POWERS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 128, 64, 32, 16, 8, 4, 2, 1];
/// The high byte of each half of a word, twice.
const HIGH_BYTES: [u8; 16] = [1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15];

/// The same sixteen bytes in both halves.
#[inline]
#[target_feature(enable = "avx2")]
fn twice(bytes: [u8; 16]) -> __m256i {
    // SAFETY: sixteen bytes are read from an array of sixteen.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

// Every block below has the same reason. SAFETY: `self` proves the features; each load and store goes through
// a slice that was first cut to exactly the bytes accessed, and the unaligned forms need no alignment.
impl Pairs for Avx2 {
    type V = __m256;
    type W = __m256i;
    type Sums = __m256i;

    #[inline(always)]
    fn load_words(self, from: &[u8]) -> __m256i {
        let from = &from[..32];
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, words: __m256i, to: &mut [u8]) {
        let to = &mut to[..32];
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), words) }
    }

    #[inline(always)]
    fn splat_word(self, word: i32) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(word) }
    }

    /// In every byte, as [`Self::in_units`] wants them.
    #[inline(always)]
    fn exponents(self, units: &[u8]) -> __m256i {
        let units = &units[..16];
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(units.as_ptr().cast()));
            let exponents =
                _mm256_add_epi32(_mm256_srli_epi32::<7>(wide), _mm256_set1_epi32(EXPONENT_LESS_UNIT as i32));
            _mm256_shuffle_epi8(exponents, twice([0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]))
        }
    }

    #[inline(always)]
    fn in_units(self, words: __m256i, exponents: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let own = _mm256_shuffle_epi8(_mm256_add_epi16(words, words), twice(HIGH_BYTES));
            let shift = _mm256_sub_epi8(exponents, own);
            // A shift of s = 1 to 15 bits is a product by 2^(15 - s). With 8 to 15 its low byte is number s
            // of the table, with 1 to 7 its high byte is number s + 8; the saturated sum sets the top bit,
            // which gives 0, where that is above 15. The other byte is 0 in both cases.
            let number = _mm256_adds_epu8(shift, _mm256_set1_epi16(0x7870));
            let power = _mm256_shuffle_epi8(twice(POWERS), number);
            let fraction = _mm256_and_si256(_mm256_slli_epi16::<7>(words), _mm256_set1_epi16(FRACTION));
            let magnitude = _mm256_or_si256(fraction, _mm256_set1_epi16(LEADING));
            // Halves of words that are 0 become 0, which they are.
            _mm256_sign_epi16(_mm256_mulhrs_epi16(magnitude, power), words)
        }
    }

    #[inline(always)]
    fn no_sums(self) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn add_products(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn add_scaled(self, sums: __m256i, factor: __m256, to: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), factor, to) }
    }
}
