//! Eight words of NEON in two registers: `smlal`, whose sums of the two columns of a word stay apart until
//! the end.

use std::arch::aarch64::*;

use super::super::Neon;
use super::super::neon::Pair;
use super::{FRACTION, LEADING, Pairs};
use crate::packed::EXPONENT_LESS_UNIT;

/// Four words.
#[inline]
#[target_feature(enable = "neon")]
fn in_units(words: int16x8_t, exponents: int16x8_t) -> int16x8_t {
    let own =
        vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16::<7>(vreinterpretq_u16_s16(words)), vdupq_n_u16(0xff)));
    // To the right where below zero; by sixteen bits nothing is left.
    let shift = vmaxq_s16(vsubq_s16(own, exponents), vdupq_n_s16(-16));
    let power = vreinterpretq_s16_u16(vshlq_u16(vdupq_n_u16(0x8000), shift));
    let fraction = vandq_s16(vshlq_n_s16::<7>(words), vdupq_n_s16(FRACTION));
    let rounded = vqrdmulhq_s16(vorrq_s16(fraction, vdupq_n_s16(LEADING)), power);
    vbslq_s16(vcltzq_s16(words), vnegq_s16(rounded), rounded)
}

/// Of four rows.
#[inline]
#[target_feature(enable = "neon")]
fn exponents(units: uint16x4_t) -> int16x8_t {
    let exponents = vaddw_u16(vdupq_n_u32(EXPONENT_LESS_UNIT), vshr_n_u16::<7>(units));
    vreinterpretq_s16_u32(vorrq_u32(exponents, vshlq_n_u32::<16>(exponents)))
}

#[inline]
#[target_feature(enable = "neon")]
fn add_products(sums: [int32x4_t; 2], a: int16x8_t, b: int16x8_t) -> [int32x4_t; 2] {
    [vmlal_s16(sums[0], vget_low_s16(a), vget_low_s16(b)), vmlal_high_s16(sums[1], a, b)]
}

#[inline]
#[target_feature(enable = "neon")]
fn add_scaled(sums: [int32x4_t; 2], factor: float32x4_t, to: float32x4_t) -> float32x4_t {
    vfmaq_f32(to, vcvtq_f32_s32(vpaddq_s32(sums[0], sums[1])), factor)
}

// Every block below has the same reason. SAFETY: `self` proves the features; each load and store goes through
// a slice that was first cut to exactly the bytes accessed, and no alignment is needed.
impl Pairs for Neon {
    type V = Pair;
    type W = [int16x8_t; 2];
    /// By four rows, then by two.
    type Sums = [[int32x4_t; 2]; 2];

    #[inline(always)]
    fn load_words(self, from: &[u8]) -> Self::W {
        let from = &from[..32];
        // SAFETY: see above.
        unsafe { [0, 16].map(|at| vreinterpretq_s16_u8(vld1q_u8(from.as_ptr().add(at)))) }
    }

    #[inline(always)]
    fn store_words(self, words: Self::W, to: &mut [u8]) {
        let to = &mut to[..32];
        // SAFETY: see above.
        unsafe {
            vst1q_u8(to.as_mut_ptr(), vreinterpretq_u8_s16(words[0]));
            vst1q_u8(to.as_mut_ptr().add(16), vreinterpretq_u8_s16(words[1]));
        }
    }

    #[inline(always)]
    fn splat_word(self, word: i32) -> Self::W {
        // SAFETY: see above.
        unsafe { [vreinterpretq_s16_s32(vdupq_n_s32(word)); 2] }
    }

    #[inline(always)]
    fn exponents(self, units: &[u8]) -> Self::W {
        let units = &units[..16];
        // SAFETY: see above.
        unsafe { [0, 8].map(|at| exponents(vreinterpret_u16_u8(vld1_u8(units.as_ptr().add(at))))) }
    }

    #[inline(always)]
    fn in_units(self, words: Self::W, exponents: Self::W) -> Self::W {
        // SAFETY: see above.
        unsafe { [0, 1].map(|i| in_units(words[i], exponents[i])) }
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        // SAFETY: see above.
        unsafe { [[vdupq_n_s32(0); 2]; 2] }
    }

    #[inline(always)]
    fn add_products(self, sums: Self::Sums, a: Self::W, b: Self::W) -> Self::Sums {
        // SAFETY: see above.
        unsafe { [0, 1].map(|i| add_products(sums[i], a[i], b[i])) }
    }

    #[inline(always)]
    fn add_scaled(self, sums: Self::Sums, factor: Pair, to: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [0, 1].map(|i| add_scaled(sums[i], factor[i], to[i])) }
    }
}
