//! Activations to eight bits.

use std::arch::x86_64::*;

use bytemuck::Zeroable;

use crate::packed::BLOCK;
use crate::rounded::{RoundedBlock, Rounding};

/// As many blocks as both slices have.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn round(x: &[[f32; BLOCK]], out: &mut [RoundedBlock]) {
    for (x, out) in x.iter().zip(out) {
        // SAFETY: the loads are within the 32 elements.
        let parts: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) });
        *out = match Rounding::of(largest_bits(parts), RoundedBlock::LARGEST) {
            Rounding::AllZero => RoundedBlock::zeroed(),
            Rounding::NotFinite => RoundedBlock { scale: f32::NAN, ..RoundedBlock::zeroed() },
            Rounding::By { scale, inverse } => {
                let inverse = _mm256_set1_ps(inverse);
                let whole = parts.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
                with_sums(scale, packed(whole))
            }
        };
    }
}

/// The largest of the 32 magnitudes as bits.
#[inline]
#[target_feature(enable = "avx2")]
fn largest_bits(parts: [__m256; 4]) -> u32 {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let [a, b, c, d] = parts.map(|x| _mm256_and_si256(_mm256_castps_si256(x), magnitude));
    let eight = _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, d));
    let four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two))) as u32
}

/// 32-bit numbers that fit as bytes, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn packed(whole: [__m256i; 4]) -> __m256i {
    let [a, b, c, d] = whole;
    // Both packing instructions work within halves of a register: fours of bytes come out as 0 2 4 6 1 3 5 7.
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// [`RoundedBlock::with_sums`].
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::products) fn with_sums(scale: f32, quants: __m256i) -> RoundedBlock {
    // Lane 2w + p: pair p of word w. Each half of the register is a half of the block.
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quants);
    let pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32::<0b01_00_11_10>(pairs));
    let pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32::<0b10_11_00_01>(pairs));
    let minus = _mm256_sub_epi16(_mm256_setzero_si256(), pairs);
    let halves = [_mm256_extract_epi32::<0>(minus) as u32, _mm256_extract_epi32::<4>(minus) as u32];
    let minus_halves = halves.map(|both| [both as i16, (both >> 16) as i16]);
    let minus_sum: i32 = minus_halves.as_flattened().iter().map(|sum| i32::from(*sum)).sum();
    let scaled_sum = scale * -minus_sum as f32;
    let mut block = RoundedBlock { scale, scaled_sum, minus_sum, minus_halves, quants: [0; BLOCK] };
    // SAFETY: 32 bytes are stored to 32.
    unsafe { _mm256_storeu_si256(block.quants.as_mut_ptr().cast(), quants) }
    block
}
