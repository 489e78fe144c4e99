//! The formula with NEON and the dot-product extension: a group is four times four rows, one 32-bit lane
//! each.
//!
//! `sdot` multiplies a quarter of a line of words (four rows by four columns) by one word of a register of
//! activations and adds to four 32-bit sums. It multiplies signed bytes: stored bytes have their top bit
//! turned over, which takes off their centre; the other quants are positive either way, and their centre is
//! what the sums start from. A tile is one group by up to four rows of activations, unpacked in registers.
//!
//! Executed under qemu-user only (docs/platforms.md): nothing here was measured.

use std::arch::aarch64::*;
use std::arch::asm;

use super::packed_types::*;
use super::{Products, Sums, check};
use crate::packed::{BLOCK, GROUP_ROWS, Group, Line};
use crate::rounded::{RoundedBlock, RoundedRows, Rounding};
use crate::simd::{Neon, widen_f16};

/// Rows of activations in a tile: sixteen sums and their operands fit 32 registers.
const TILE: usize = 4;
/// Registers of four rows in a group.
const FOURS: usize = GROUP_ROWS / 4;

impl Products for Neon {
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
}

/// One group by all rows of `x`.
///
/// # Safety
/// As [`tile`], for every row of `x`.
#[target_feature(enable = "neon,dotprod")]
unsafe fn multiply<K: PackedType>(weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
    let mut t = 0;
    for sums in sums.chunks_mut(TILE) {
        let rows = x.part(t, sums.len());
        // SAFETY: the caller's promise; `rows` has as many rows as `sums`, and that is the number behind the
        // name.
        unsafe {
            match sums.len() {
                1 => tile::<K, 1>(weights, rows, sums),
                2 => tile::<K, 2>(weights, rows, sums),
                3 => tile::<K, 3>(weights, rows, sums),
                _ => tile::<K, TILE>(weights, rows, sums),
            }
        }
        t += sums.len();
    }
}

/// One group by `U` rows of `x`.
///
/// # Safety
/// `x` has `U` rows as wide as the group, `sums` has `U` elements, and the group is of type `K`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile<K: PackedType, const U: usize>(weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
    let mut totals = [[vdupq_n_f32(0.0); FOURS]; U];
    let mut walk = Walk::<K>::new(weights);
    for at in 0..weights.blocks {
        // SAFETY: there are as many places as blocks in a row, and the operands are those of the block.
        unsafe {
            let place = walk.next();
            let blocks: [&RoundedBlock; U] = std::array::from_fn(|u| &x.row(u)[at]);
            let integers = integers::<K, U>(place, blocks);
            for four in 0..FOURS {
                let scale = scale::<K>(place, four);
                for u in 0..U {
                    let (total, x) = (&mut totals[u][four], blocks[u]);
                    let integer = vcvtq_f32_s32(integers[u][four]);
                    *total = vfmaq_f32(*total, integer, vmulq_n_f32(scale, x.scale));
                    if K::HAS_MINIMUM {
                        let minimum = minimum::<K>(place, four);
                        *total = vfmaq_f32(*total, minimum, vdupq_n_f32(x.scaled_sum));
                    }
                }
            }
        }
    }
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (to, total) in sums.0.as_chunks_mut::<4>().0.iter_mut().zip(totals) {
            // SAFETY: four floats are stored to four.
            unsafe { vst1q_f32(to.as_mut_ptr(), total) };
        }
    }
}

/// The integers of the formula.
///
/// # Safety
/// `place` is that of a block of type `K`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn integers<K: PackedType, const U: usize>(
    place: BlockAddress,
    x: [&RoundedBlock; U],
) -> [[int32x4_t; FOURS]; U] {
    let zero = vdupq_n_s32(0);
    if !matches!(K::QUANTS, Quants::Sixes) {
        let mut sums = x.map(|x| [vdupq_n_s32(centre::<K>() * x.minus_sum); FOURS]);
        for part in 0..2 {
            // SAFETY: the caller's promise.
            unsafe { add_half::<K, U>(place.quants, part, x, &mut sums) };
        }
        return sums;
    }
    let mut scaled = [[zero; FOURS]; U];
    for part in 0..2 {
        let mut sums = x.map(|x| {
            let minus_sum: i32 = x.minus_halves[part].iter().map(|sum| i32::from(*sum)).sum();
            [vdupq_n_s32(32 * minus_sum); FOURS]
        });
        // SAFETY: the caller's promise.
        unsafe { add_half::<K, U>(place.quants, part, x, &mut sums) };
        for four in 0..FOURS {
            // SAFETY: the caller's promise.
            let scale = unsafe { half_scale(place, part, four) };
            for u in 0..U {
                scaled[u][four] = vmlaq_s32(scaled[u][four], sums[u][four], scale);
            }
        }
    }
    scaled
}

/// The centre of quants that are not made signed; 0 for none.
const fn centre<K: PackedType>() -> i32 {
    match (K::SCALES, K::QUANTS) {
        (Scales::Halves, Quants::Nibbles) => 8,
        (Scales::Halves, Quants::Fives) => 16,
        _ => 0,
    }
}

/// Adds the products of 16 columns, the first or the second of a block.
///
/// # Safety
/// `quants` are the lines of a block of type `K`; `part` is below 2.
#[expect(clippy::needless_range_loop, reason = "words are loaded once for all rows of activations")]
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn add_half<K: PackedType, const U: usize>(
    quants: *const Line,
    part: usize,
    x: [&RoundedBlock; U],
    sums: &mut [[int32x4_t; FOURS]; U],
) {
    // SAFETY: 16 of the 32 quants of each block.
    let x = x.map(|x| unsafe { vld1q_s8(x.quants.as_ptr().add(16 * part)) });
    for four in 0..FOURS {
        // SAFETY: the caller's promise.
        let words: [int8x16_t; 4] = std::array::from_fn(|j| unsafe { word::<K>(quants, part, j, four) });
        for u in 0..U {
            let sum = &mut sums[u][four];
            *sum = dot::<0>(*sum, words[0], x[u]);
            *sum = dot::<1>(*sum, words[1], x[u]);
            *sum = dot::<2>(*sum, words[2], x[u]);
            *sum = dot::<3>(*sum, words[3], x[u]);
        }
    }
}

/// `sum` and the products of the four bytes of each lane of `words` by the four of lane `LANE` of `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const LANE: usize>(mut sum: int32x4_t, words: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction that touches the registers named.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{lane}]",
            inout(vreg) sum,
            in(vreg) words,
            in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Word `4 · part + j` of four rows, a quant in each byte.
///
/// # Safety
/// `quants` are the lines of a block of type `K`; `part` is below 2, `j` and `four` below 4.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn word<K: PackedType>(quants: *const Line, part: usize, j: usize, four: usize) -> int8x16_t {
    // SAFETY: `quants` are `LAYOUT.block` lines.
    let load = |line: usize| unsafe { vld1q_u8(quants.add(line).cast::<u8>().add(16 * four)) };
    if matches!(K::QUANTS, Quants::Bytes) {
        return vreinterpretq_s8_u8(veorq_u8(load(4 * part + j), vdupq_n_u8(0x80)));
    }
    let both = load(j);
    let nibbles = if part == 0 { vandq_u8(both, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(both) };
    // To the left; to the right if negative.
    let moved =
        |bits: uint8x16_t, by: i8, mask: u8| vandq_u8(vshlq_u8(bits, vdupq_n_s8(by)), vdupq_n_u8(mask));
    vreinterpretq_s8_u8(match K::QUANTS {
        Quants::Bytes | Quants::Nibbles => nibbles,
        Quants::Fives => vorrq_u8(nibbles, moved(load(4), 4 - (4 * part + j) as i8, 16)),
        Quants::Sixes => vorrq_u8(nibbles, moved(load(4 + part), 4 - 2 * j as i8, 48)),
    })
}

/// Four halves from byte `at` of a line on.
///
/// # Safety
/// `line` is there and `at` at most 56.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn halves(line: *const Line, at: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    widen_f16(vreinterpret_u16_u8(unsafe { vld1_u8(line.cast::<u8>().add(at)) }))
}

/// The 16 bytes from byte `at` of a line on, of which those of four rows, as numbers.
///
/// # Safety
/// `line` is there and `at` at most 48.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn bytes(line: *const Line, at: usize, four: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = unsafe { line.cast::<u8>().add(at + 4 * four).cast::<[u8; 4]>().read() };
    let word = u64::from(u32::from_le_bytes([a, b, c, d]));
    vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word)))))
}

/// The scales of four rows.
///
/// # Safety
/// `place` is that of a block of type `K`; `four` is below 4.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn scale<K: PackedType>(place: BlockAddress, four: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        match K::SCALES {
            Scales::Halves | Scales::HalvesAndMinima => halves(place.scales, 32 * place.side + 8 * four),
            Scales::Bytes => {
                vmulq_f32(halves(place.head, 8 * four), bytes(place.scales, 32 * place.side, four))
            }
            Scales::SignedPairs => halves(place.head, 8 * four),
        }
    }
}

/// The minima of four rows, for types that have them.
///
/// # Safety
/// As [`scale`].
#[inline]
#[target_feature(enable = "neon")]
unsafe fn minimum<K: PackedType>(place: BlockAddress, four: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        match K::SCALES {
            Scales::Bytes => {
                let numbers = bytes(place.scales, 32 * place.side + 16, four);
                vnegq_f32(vmulq_f32(halves(place.head, 32 + 8 * four), numbers))
            }
            _ => halves(place.scales.add(1), 32 * place.side + 8 * four),
        }
    }
}

/// The integer scales of half a block of Q6_K, for four rows.
///
/// # Safety
/// As [`scale`]; `part` is below 2.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn half_scale(place: BlockAddress, part: usize, four: usize) -> int32x4_t {
    // SAFETY: the caller's promise.
    let pairs = unsafe { vld1_s8(place.scales.cast::<i8>().add(32 * place.side + 8 * four)) };
    // A pair is 16 bits: its first byte is brought to the top and then down with its sign.
    let pairs = vreinterpret_s16_s8(pairs);
    vmovl_s16(if part == 0 { vshr_n_s16::<8>(vshl_n_s16::<8>(pairs)) } else { vshr_n_s16::<8>(pairs) })
}

/// As many blocks as both slices have.
#[target_feature(enable = "neon")]
fn round(x: &[[f32; BLOCK]], out: &mut [RoundedBlock]) {
    for (x, out) in x.iter().zip(out) {
        // SAFETY: the loads are within the 32 elements.
        let parts: [float32x4_t; 8] = std::array::from_fn(|i| unsafe { vld1q_f32(x.as_ptr().add(4 * i)) });
        let magnitudes = parts.map(|x| vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x7fff_ffff)));
        let largest = magnitudes.into_iter().fold(vdupq_n_u32(0), |a, b| vmaxq_u32(a, b));
        *out = match Rounding::of(vmaxvq_u32(largest), RoundedBlock::LARGEST) {
            Rounding::AllZero => bytemuck::Zeroable::zeroed(),
            Rounding::NotFinite => RoundedBlock { scale: f32::NAN, ..bytemuck::Zeroable::zeroed() },
            Rounding::By { scale, inverse } => {
                let mut quants = [0i8; BLOCK];
                for (to, two) in quants.as_chunks_mut::<8>().0.iter_mut().zip(parts.as_chunks::<2>().0) {
                    let [a, b] = two.map(|x| vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(x, inverse))));
                    // SAFETY: eight bytes are stored to eight.
                    unsafe { vst1_s8(to.as_mut_ptr(), vqmovn_s16(vcombine_s16(a, b))) };
                }
                RoundedBlock::with_sums(scale, quants)
            }
        };
    }
}
