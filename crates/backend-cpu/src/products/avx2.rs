//! The formula with AVX2: a group is two times eight rows, one 32-bit lane each.
//!
//! `vpmaddubsw` multiplies half a line of words (eight rows by four columns, unsigned bytes) by a word of
//! activations that is broadcast from memory, and adds neighbours to 16-bit lanes: two of them are a row.
//! Words are added in 16 bits as long as they fit, then `vpmaddwd` adds the two lanes of a row to 32 bits:
//!
//! | quants      | largest sum of a lane for a word | words per 16-bit lane                         | times      |
//! |-------------|----------------------------------|-----------------------------------------------|------------|
//! | nibbles     | 2 · 15 · 127                     | 8: 30480                                      | 1          |
//! | five bits   | 2 · 31 · 127                     | 4: 31496                                      | 1          |
//! | six bits    | 2 · 32 · 127                     | 4: 32512, less the centre from the start      | the scale  |
//! | bytes       | as nibbles: each is split in two | 8: 30480                                      | 1, 16      |
//!
//! A byte must be split because `vpmaddubsw` saturates: 2 · 255 · 127 is more than 16 bits hold. Other
//! centres, and that of bytes, are added in 32 bits.
//!
//! One row of activations streams the weights through [`one`]; more go through [`many`], which unpacks a
//! block to the first-level cache for a chunk of rows.
//!
//! What each variant measured is in docs/benchmarks.md.

mod many;
mod one;
mod round;

pub(super) use round::with_sums;

use std::arch::x86_64::*;

use super::packed_types::*;
use super::{Products, Sums, check};
use crate::packed::{BLOCK, Group, Line};
use crate::rounded::{RoundedBlock, RoundedRows};
use crate::simd::{Avx2, fetch_weights};

impl Products for Avx2 {
    fn round(self, x: &[f32], out: &mut [RoundedBlock]) {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        assert!(rest.is_empty() && blocks.len() == out.len(), "{} blocks for {} columns", out.len(), x.len());
        // SAFETY: `self` proves the features.
        unsafe { round::round(blocks, out) }
    }

    fn multiply(self, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
        check(weights, x, sums);
        let multiply = for_type!(weights.dtype, multiply);
        // SAFETY: `self` proves the features; `check` found the operands to fit each other, and a `Group` has
        // the lines of its layout.
        unsafe { multiply(weights, x, sums) }
    }
}

/// One group by all rows of `x`.
///
/// # Safety
/// `x` is as wide as the group and has as many rows as `sums` has elements, and the group is of type `K`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<K: PackedType>(weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
    // SAFETY: the caller's promise.
    unsafe {
        match sums {
            [sums] => one::multiply::<K>(weights, x.all, sums),
            _ => many::multiply::<K>(weights, x, sums),
        }
    }
}

/// Asks for what comes `count` lines at a time after these.
#[inline(always)]
fn prefetch(line: *const Line, count: usize) {
    (0..count).for_each(|i| fetch_weights(line.wrapping_add(i).cast()));
}

/// The same for the scales and the head of the blocks that follow.
#[inline(always)]
fn prefetch_scales<K: PackedType>(place: BlockAddress) {
    if place.side == 0 {
        // A head lies before the scales of the first step; one line too many of another step costs nothing.
        prefetch(place.scales.wrapping_sub(K::LAYOUT.head), K::LAYOUT.head + K::LAYOUT.scales);
    }
}

/// The scales of eight rows of a block.
#[derive(Clone, Copy)]
struct RowScales {
    scale: __m256,
    /// Of types that have one.
    minimum: __m256,
    /// For each half of a block the factor of its 16-bit lanes.
    lanes: [__m256i; 2],
}

/// # Safety
/// `place` is that of a block of type `K`; `half` says which eight of its rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_scales<K: PackedType>(place: BlockAddress, half: usize) -> RowScales {
    let (zero, one) = (_mm256_setzero_ps(), _mm256_set1_epi16(1));
    // SAFETY: every load is within one line.
    unsafe {
        let load =
            |line: *const Line, at: usize| _mm_load_si128(line.cast::<u8>().add(at + 16 * half).cast());
        let halves = |line: *const Line, at: usize| _mm256_cvtph_ps(load(line, at));
        let number = |at: usize| {
            let bytes = place.scales.cast::<u8>().add(32 * place.side + at + 8 * half);
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast())))
        };
        match K::SCALES {
            Scales::Halves => {
                let lanes =
                    [one, if matches!(K::QUANTS, Quants::Bytes) { _mm256_set1_epi16(16) } else { one }];
                RowScales { scale: halves(place.scales, 32 * place.side), minimum: zero, lanes }
            }
            Scales::HalvesAndMinima => RowScales {
                scale: halves(place.scales, 32 * place.side),
                minimum: halves(place.scales.add(1), 32 * place.side),
                lanes: [one; 2],
            },
            Scales::Bytes => {
                let minimum = _mm256_mul_ps(halves(place.head, 32), number(16));
                RowScales {
                    scale: _mm256_mul_ps(halves(place.head, 0), number(0)),
                    minimum: _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0)),
                    lanes: [one; 2],
                }
            }
            Scales::SignedPairs => {
                let pairs = _mm256_cvtepi8_epi16(load(place.scales, 32 * place.side));
                // Both 16-bit lanes of a row have the scale of the first half, then that of the second.
                let first = _mm256_setr_epi8(
                    0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, //
                    0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,
                );
                let second = _mm256_or_si256(first, _mm256_set1_epi8(2));
                let lanes = [_mm256_shuffle_epi8(pairs, first), _mm256_shuffle_epi8(pairs, second)];
                RowScales { scale: halves(place.head, 0), minimum: zero, lanes }
            }
        }
    }
}

/// Two words of eight rows, a quant in each byte: j and j + 4, or of bytes the low and the high nibbles of
/// word j.
///
/// # Safety
/// `quants` are the lines of a block of type `K`; `j` is below 4, or 8 for bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn words<K: PackedType>(quants: *const Line, half: usize, j: usize) -> [__m256i; 2] {
    // SAFETY: `quants` are `LAYOUT.block` lines.
    let load = |line: usize| unsafe { _mm256_load_si256(quants.add(line).cast::<__m256i>().add(half)) };
    let nibble = _mm256_set1_epi8(15);
    let both = load(j);
    let low = _mm256_and_si256(both, nibble);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
    // The shifts are constants once the loop is unrolled.
    let left = |bits: __m256i, by: usize| _mm256_sll_epi16(bits, _mm_cvtsi32_si128(by as i32));
    let right = |bits: __m256i, by: usize| _mm256_srl_epi16(bits, _mm_cvtsi32_si128(by as i32));
    let put = |nibbles: __m256i, bits: __m256i, mask: i8| {
        _mm256_or_si256(nibbles, _mm256_and_si256(bits, _mm256_set1_epi8(mask)))
    };
    match K::QUANTS {
        Quants::Bytes | Quants::Nibbles => [low, high],
        Quants::Fives => {
            // Bit j of a byte to bit 4 for the low nibble, bit j + 4 for the high one.
            let fifths = load(4);
            [put(low, left(fifths, 4 - j), 16), put(high, right(fifths, j), 16)]
        }
        Quants::Sixes => {
            // Bits 2j and 2j + 1 of a byte to bits 4 and 5.
            let moved = |pairs: __m256i| match j {
                0..=2 => left(pairs, 4 - 2 * j),
                _ => right(pairs, 2),
            };
            [put(low, moved(load(4)), 48), put(high, moved(load(5)), 48)]
        }
    }
}

/// A word of activations in every 32-bit lane.
///
/// # Safety
/// `x` points to a block and `j` is below 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn broadcast(x: *const RoundedBlock, j: usize) -> __m256i {
    // SAFETY: the word is within the block's 32 quants.
    unsafe { _mm256_set1_epi32((&raw const (*x).quants).cast::<i32>().add(j).read_unaligned()) }
}

/// What the 16-bit lanes of a half of a block start from.
///
/// # Safety
/// `x` points to a block and `part` is below 2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn start<K: PackedType>(x: *const RoundedBlock, part: usize) -> __m256i {
    if !matches!(K::QUANTS, Quants::Sixes) {
        return _mm256_setzero_si256();
    }
    // SAFETY: the pair is within the block.
    let pair = unsafe { (&raw const (*x).minus_halves[part]).cast::<i32>().read_unaligned() };
    _mm256_slli_epi16::<5>(_mm256_set1_epi32(pair))
}

/// What is to be added to the 32-bit sums: minus the centre times the sum of the activations.
///
/// # Safety
/// `x` points to a block.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn centre<K: PackedType>(x: *const RoundedBlock) -> Option<__m256i> {
    // SAFETY: the caller's promise.
    let minus_sum = _mm256_set1_epi32(unsafe { (*x).minus_sum });
    match (K::SCALES, K::QUANTS) {
        (Scales::Halves, Quants::Bytes) => Some(_mm256_slli_epi32::<7>(minus_sum)),
        (Scales::Halves, Quants::Nibbles) => Some(_mm256_slli_epi32::<3>(minus_sum)),
        (Scales::Halves, Quants::Fives) => Some(_mm256_slli_epi32::<4>(minus_sum)),
        _ => None,
    }
}

/// `total` and the block's term of the formula, for eight rows.
///
/// # Safety
/// `x` points to a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_block<K: PackedType>(
    total: __m256,
    integer: __m256i,
    scales: &RowScales,
    x: *const RoundedBlock,
) -> __m256 {
    // SAFETY: the caller's promise.
    let (scale, scaled_sum) = unsafe { (_mm256_set1_ps((*x).scale), _mm256_set1_ps((*x).scaled_sum)) };
    let total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integer), _mm256_mul_ps(scales.scale, scale), total);
    if K::HAS_MINIMUM { _mm256_fmadd_ps(scales.minimum, scaled_sum, total) } else { total }
}
