//! Sixteen words of AVX-512: `vpdpwssd` of VNNI.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::Avx512;
use super::{FRACTION, LEADING, Pairs};
use crate::packed::EXPONENT_LESS_UNIT;

/// One instruction. As an intrinsic the compiler makes `vpmaddwd` and `vpaddd` of it, which take twice the
/// time.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_products(mut sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: touches the registers named.
    unsafe {
        asm!(
            "vpdpwssd {0}, {1}, {2}",
            inout(zmm_reg) sums,
            in(zmm_reg) a,
            in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

// Every block below has the same reason. SAFETY: `self` proves the features; each load and store goes through
// a slice that was first cut to exactly the bytes accessed, and the unaligned forms need no alignment.
impl Pairs for Avx512 {
    type V = __m512;
    type W = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    fn load_words(self, from: &[u8]) -> __m512i {
        let from = &from[..64];
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, words: __m512i, to: &mut [u8]) {
        let to = &mut to[..64];
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words) }
    }

    #[inline(always)]
    fn splat_word(self, word: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(word) }
    }

    #[inline(always)]
    fn exponents(self, units: &[u8]) -> __m512i {
        let units = &units[..32];
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(units.as_ptr().cast()));
            let exponents =
                _mm512_add_epi32(_mm512_srli_epi32::<7>(wide), _mm512_set1_epi32(EXPONENT_LESS_UNIT as i32));
            _mm512_or_si512(exponents, _mm512_slli_epi32::<16>(exponents))
        }
    }

    #[inline(always)]
    fn in_units(self, words: __m512i, exponents: __m512i) -> __m512i {
        const SHIFTED: i32 = 0xf0;
        const MASK: i32 = 0xcc;
        const OR: i32 = 0xaa;
        // SAFETY: see above.
        unsafe {
            let own = _mm512_srli_epi16::<8>(_mm512_add_epi16(words, words));
            // 2^15 shifted down: what the product of sixteen bits, its high half rounded, is to be multiplied
            // by.
            let power = _mm512_srlv_epi16(_mm512_set1_epi16(i16::MIN), _mm512_sub_epi16(exponents, own));
            let magnitude = _mm512_ternarylogic_epi32::<{ SHIFTED & MASK | OR }>(
                _mm512_slli_epi16::<7>(words),
                _mm512_set1_epi16(FRACTION),
                _mm512_set1_epi16(LEADING),
            );
            let rounded = _mm512_mulhrs_epi16(magnitude, power);
            _mm512_mask_sub_epi16(rounded, _mm512_movepi16_mask(words), _mm512_setzero_si512(), rounded)
        }
    }

    #[inline(always)]
    fn no_sums(self) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn add_products(self, sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { add_products(sums, a, b) }
    }

    #[inline(always)]
    fn add_scaled(self, sums: __m512i, factor: __m512, to: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), factor, to) }
    }
}
