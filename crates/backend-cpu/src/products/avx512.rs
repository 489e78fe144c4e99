//! The formula with AVX-512 and VNNI: one lane per row of a group.
//!
//! `vpdpbusd` multiplies a line of words (sixteen rows by four columns, unsigned) by a word of activations
//! that is broadcast from memory, and adds to sixteen 32-bit sums. A tile is one group by up to eight rows of
//! activations, or two groups where there are more rows ([`many`]): a line is unpacked once for all of them.
//! One row of activations is bound by the bandwidth of the weights, many by the multipliers: eight
//! `vpdpbusd` of a block are followed by a conversion, a product and an `fma`.
//!
//! What each variant measured is in docs/benchmarks.md.

mod many;

use std::arch::x86_64::*;

use super::avx2::with_sums;
use super::packed_types::{PackedType, Quants, Scales, Walk, for_type};
use super::{Products, Sums, check};
use crate::packed::{BLOCK, Group, Line};
use crate::rounded::{RoundedBlock, RoundedRows, Rounding};
use crate::simd::{Avx512, fetch_weights};

/// Rows of activations in a tile: their sums and those of the weights' scales fill the registers.
const TILE: usize = 8;

impl Products for Avx512 {
    fn round(self, x: &[f32], out: &mut [RoundedBlock]) {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        assert!(rest.is_empty() && blocks.len() == out.len(), "{} blocks for {} columns", out.len(), x.len());
        // SAFETY: `self` proves the features.
        unsafe { round(blocks, out) }
    }

    fn multiply(self, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
        check(weights, x, sums);
        let multiply = for_type!(weights.dtype, multiply);
        // SAFETY: `self` proves the features; `check` found the operands to fit each other, and a `Group` has
        // the lines of its layout.
        unsafe { multiply(weights, x, sums) }
    }

    fn multiply_two(self, weights: [&Group<'_>; 2], x: RoundedRows<'_>, sums: [&mut [Sums]; 2]) {
        assert!(weights[0].dtype == weights[1].dtype, "two groups of different types");
        let [first, second] = sums;
        check(weights[0], x, first);
        check(weights[1], x, second);
        if x.rows() < many::ROWS_MIN {
            self.multiply(weights[0], x, first);
            return self.multiply(weights[1], x, second);
        }
        // SAFETY: `self` proves the features; the operands fit each other, and there are enough rows.
        unsafe { many::multiply(weights, x, [first, second]) }
    }
}

/// One group by all rows of `x`.
///
/// # Safety
/// As [`tile`], for every row of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<K: PackedType>(weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
    let mut t = 0;
    while t < sums.len() {
        // SAFETY: the caller's promise; each tile has the rows behind its name, and so many are left.
        t += unsafe {
            match sums.len() - t {
                1 => tile::<K, 1>(weights, x, t, sums),
                2 => tile::<K, 2>(weights, x, t, sums),
                3 => tile::<K, 3>(weights, x, t, sums),
                // Two tiles, the second from the cache: those of five to seven were slower.
                4..TILE => tile::<K, 4>(weights, x, t, sums),
                _ => tile::<K, TILE>(weights, x, t, sums),
            }
        };
    }
}

/// The scales of sixteen rows of a block.
struct BlockScales {
    scale: __m512,
    /// Of types that have one.
    minimum: __m512,
    /// Of the halves of a block, where they have their own.
    halves: [__m512; 2],
}

/// One group by the `U` rows of `x` from `t` on. Gives `U`.
///
/// # Safety
/// `x` and `sums` have these rows, `x` is as wide as the group, and the group is of type `K`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<K: PackedType, const U: usize>(
    weights: &Group<'_>,
    x: RoundedRows<'_>,
    t: usize,
    sums: &mut [Sums],
) -> usize {
    // The others find the group in the cache.
    let first_read = t == 0;
    let mut walk = Walk::<K>::new(weights);
    let mut rows = [x.all.as_ptr(); U];
    for (u, row) in rows.iter_mut().enumerate() {
        // SAFETY: `x` has U rows of `blocks` blocks from `t` on.
        *row = unsafe { row.add((t + u) * x.blocks) };
    }
    let mut totals = [_mm512_setzero_ps(); U];
    let mut head = Head::NONE;
    for at in 0..weights.blocks {
        // SAFETY: each block of the group once; `at` is below the number of blocks of every row of `x`.
        unsafe {
            let place = walk.next();
            if K::LAYOUT.head > 0 && at.is_multiple_of(8) {
                head = Head::of::<K>(place.head);
            }
            if first_read {
                fetch::<K>(place.quants, at);
            }
            let scales = block_scales::<K>(&head, place.scales, place.side);
            let blocks = rows.map(|row| row.add(at));
            let products = products::<K, U>(place.quants, blocks, &scales);
            for u in 0..U {
                let x = blocks[u];
                let factor = _mm512_mul_ps(scales.scale, _mm512_set1_ps((*x).scale));
                totals[u] = _mm512_fmadd_ps(products[u], factor, totals[u]);
                if K::HAS_MINIMUM {
                    totals[u] = _mm512_fmadd_ps(scales.minimum, _mm512_set1_ps((*x).scaled_sum), totals[u]);
                }
            }
        }
    }
    for (sums, total) in sums[t..t + U].iter_mut().zip(totals) {
        // SAFETY: `Sums` are sixteen floats at a multiple of 64.
        unsafe { _mm512_store_ps(sums.0.as_mut_ptr(), total) }
    }
    U
}

/// The halves over the integers of a superblock.
struct Head {
    scale: __m512,
    /// Its negative: minima are subtracted.
    minus_minimum: __m512,
}

impl Head {
    /// Of types without.
    // SAFETY: sixteen zeros are a vector.
    const NONE: Self = unsafe { std::mem::zeroed() };

    /// # Safety
    /// `line` is the head of a superblock of type `K`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn of<K: PackedType>(line: *const Line) -> Self {
        // SAFETY: both loads are within the line.
        let (scale, minimum) = unsafe {
            let half = |i: usize| _mm512_cvtph_ps(_mm256_load_si256(line.cast::<__m256i>().add(i)));
            (half(0), half(1))
        };
        let negative = _mm512_xor_si512(_mm512_castps_si512(minimum), _mm512_set1_epi32(i32::MIN));
        Self { scale, minus_minimum: _mm512_castsi512_ps(negative) }
    }
}

/// # Safety
/// `scales` is the first line of scales of a block of type `K`; `side` says which of two it is.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn block_scales<K: PackedType>(head: &Head, scales: *const Line, side: usize) -> BlockScales {
    let zero = _mm512_setzero_ps();
    // SAFETY: every load is within one line.
    unsafe {
        let halves = |line: *const Line, at: usize| {
            _mm512_cvtph_ps(_mm256_load_si256(line.cast::<u8>().add(at).cast()))
        };
        let bytes = |at: usize| _mm_load_si128(scales.cast::<u8>().add(at).cast());
        match K::SCALES {
            Scales::Halves => {
                BlockScales { scale: halves(scales, 32 * side), minimum: zero, halves: [zero; 2] }
            }
            Scales::HalvesAndMinima => BlockScales {
                scale: halves(scales, 32 * side),
                minimum: halves(scales.add(1), 32 * side),
                halves: [zero; 2],
            },
            Scales::Bytes => {
                let number = |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(at)));
                BlockScales {
                    scale: _mm512_mul_ps(head.scale, number(32 * side)),
                    minimum: _mm512_mul_ps(head.minus_minimum, number(32 * side + 16)),
                    halves: [zero; 2],
                }
            }
            Scales::SignedPairs => {
                let pairs =
                    _mm512_cvtepi16_epi32(_mm256_load_si256(scales.cast::<u8>().add(32 * side).cast()));
                let first = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(pairs));
                let second = _mm512_srai_epi32::<8>(pairs);
                BlockScales {
                    scale: head.scale,
                    minimum: zero,
                    halves: [_mm512_cvtepi32_ps(first), _mm512_cvtepi32_ps(second)],
                }
            }
        }
    }
}

/// Fetches lines some blocks ahead: as many as lie between the quants of block `at`, which begin at `line`,
/// and those of the next.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch<K: PackedType>(line: *const Line, at: usize) {
    let lines = K::LAYOUT.block
        + if at % 2 == 1 { K::LAYOUT.scales } else { 0 }
        + if at % 8 == 7 { K::LAYOUT.head } else { 0 };
    for i in 0..lines {
        fetch_weights(line.wrapping_add(i).cast());
    }
}

/// The centre is 2 to the power of this; 0 where there is none.
const fn centre_bits<K: PackedType>() -> u32 {
    match crate::packed::centre(K::DTYPE) {
        0 => 0,
        centre => centre.ilog2(),
    }
}

/// The integer part of the formula, as floats.
///
/// # Safety
/// `line` is the first of the quants of a block of type `K`, and `x` point to blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn products<K: PackedType, const U: usize>(
    line: *const Line,
    x: [*const RoundedBlock; U],
    scales: &BlockScales,
) -> [__m512; U] {
    // Two chains of dependent additions where there are few rows of `x`.
    let split = U <= 2;
    // SAFETY: the caller's promises; the activations of a block are eight words.
    unsafe {
        let add = |sum: __m512i, word: __m512i, x: *const RoundedBlock, j: usize| {
            let four = (&raw const (*x).quants).cast::<i32>().add(j).read_unaligned();
            _mm512_dpbusd_epi32(sum, word, _mm512_set1_epi32(four))
        };
        let words = words::<K>(line);
        if K::QUANTS == Quants::Sixes {
            let half = |h: usize| {
                let mut sums = x.map(|x| minus_centre_of_half::<K>(x, h));
                for (j, word) in words.into_iter().enumerate().skip(4 * h).take(4) {
                    for (sum, x) in sums.iter_mut().zip(x) {
                        *sum = add(*sum, word, x, j);
                    }
                }
                sums.map(|sum| _mm512_cvtepi32_ps(sum))
            };
            // Products and sums below 2^24: exact.
            let mut sums = half(0).map(|sum| _mm512_mul_ps(sum, scales.halves[0]));
            for (sum, second) in sums.iter_mut().zip(half(1)) {
                *sum = _mm512_fmadd_ps(second, scales.halves[1], *sum);
            }
            return sums;
        }
        let mut sums = x.map(|x| [minus_centre::<K>(x), _mm512_setzero_si512()]);
        for (j, word) in words.into_iter().enumerate() {
            for (sums, x) in sums.iter_mut().zip(x) {
                let sum = &mut sums[if split { j / 4 } else { 0 }];
                *sum = add(*sum, word, x, j);
            }
        }
        let whole =
            |[first, second]: [__m512i; 2]| if split { _mm512_add_epi32(first, second) } else { first };
        sums.map(|sums| _mm512_cvtepi32_ps(whole(sums)))
    }
}

/// What the sum of a block begins with: the centre of `K` times minus the sum of the activations.
///
/// # Safety
/// `x` points to a block.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn minus_centre<K: PackedType>(x: *const RoundedBlock) -> __m512i {
    // SAFETY: the caller's promise.
    let sum = _mm512_set1_epi32(unsafe { (*x).minus_sum });
    match const { centre_bits::<K>() } {
        7 => _mm512_slli_epi32::<7>(sum),
        4 => _mm512_slli_epi32::<4>(sum),
        3 => _mm512_slli_epi32::<3>(sum),
        _ => _mm512_setzero_si512(),
    }
}

/// The same for a half of a block: the sums of two pairs, times the centre.
///
/// # Safety
/// `x` points to a block, `half` is 0 or 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn minus_centre_of_half<K: PackedType>(x: *const RoundedBlock, half: usize) -> __m512i {
    // SAFETY: the caller's promise; a half has a pair of i16.
    let pair = unsafe { (&raw const (*x).minus_halves).cast::<i32>().add(half).read_unaligned() };
    let centre = _mm512_set1_epi16(1 << const { centre_bits::<K>() });
    _mm512_dpwssd_epi32(_mm512_setzero_si512(), centre, _mm512_set1_epi32(pair))
}

/// The words of a block, a quant in each byte.
///
/// # Safety
/// `line` is the first of the quants of a block of type `K`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn words<K: PackedType>(line: *const Line) -> [__m512i; 8] {
    // SAFETY: the quants of a block are `LAYOUT.block` lines.
    let load = |i: usize| unsafe { _mm512_load_si512(line.add(i).cast()) };
    if K::QUANTS == Quants::Bytes {
        return [load(0), load(1), load(2), load(3), load(4), load(5), load(6), load(7)];
    }
    let nibble = _mm512_set1_epi8(15);
    let (fifth, pair) = (_mm512_set1_epi8(16), _mm512_set1_epi8(48));
    let mut words = [_mm512_setzero_si512(); 8];
    for (j, word) in words.iter_mut().enumerate() {
        let both = load(j % 4);
        let low = if j < 4 { both } else { _mm512_srli_epi16::<4>(both) };
        let low = _mm512_and_si512(low, nibble);
        *word = match K::QUANTS {
            // Bit j of a byte to bit 4.
            Quants::Fives => either(shifted_by(load(4), 4 - j as i32), fifth, low),
            // Bits 2i and 2i + 1 of a byte, i = j % 4, to bits 4 and 5.
            Quants::Sixes => either(shifted_by(load(4 + j / 4), 4 - 2 * (j as i32 % 4)), pair, low),
            _ => low,
        };
    }
    words
}

/// Each 16 bits shifted to the left, or to the right if `by` is below zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn shifted_by(bits: __m512i, by: i32) -> __m512i {
    // Known to the compiler wherever this is called: loops over words are unrolled.
    match by {
        4 => _mm512_slli_epi16::<4>(bits),
        3 => _mm512_slli_epi16::<3>(bits),
        2 => _mm512_slli_epi16::<2>(bits),
        1 => _mm512_slli_epi16::<1>(bits),
        -1 => _mm512_srli_epi16::<1>(bits),
        -2 => _mm512_srli_epi16::<2>(bits),
        -3 => _mm512_srli_epi16::<3>(bits),
        _ => bits,
    }
}

/// `(a & mask) | b`
#[inline]
#[target_feature(enable = "avx512f")]
fn either(a: __m512i, mask: __m512i, b: __m512i) -> __m512i {
    const A: i32 = 0xf0;
    const MASK: i32 = 0xcc;
    const B: i32 = 0xaa;
    _mm512_ternarylogic_epi32::<{ A & MASK | B }>(a, mask, b)
}

/// [`Products::round`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn round(x: &[[f32; BLOCK]], out: &mut [RoundedBlock]) {
    for (x, out) in x.iter().zip(out) {
        // SAFETY: both loads are within the 32 elements.
        let (low, high) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        let largest = _mm512_max_epu32(
            _mm512_and_si512(_mm512_castps_si512(low), magnitude),
            _mm512_and_si512(_mm512_castps_si512(high), magnitude),
        );
        *out = match Rounding::of(_mm512_reduce_max_epu32(largest), RoundedBlock::LARGEST) {
            Rounding::AllZero => bytemuck::Zeroable::zeroed(),
            Rounding::NotFinite => RoundedBlock { scale: f32::NAN, ..bytemuck::Zeroable::zeroed() },
            Rounding::By { scale, inverse } => {
                let inverse = _mm512_set1_ps(inverse);
                let whole = |x| _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
                let quants = _mm256_set_m128i(whole(high), whole(low));
                with_sums(scale, quants)
            }
        };
    }
}
