//! Many rows of activations: two groups are unpacked once, some columns at a time, and multiplied in tiles.
//!
//! An unpacked block of a group (its *slab*) is eight lines of words and a line each for the scales, as
//! floats, and what else the type has: minima, or the scales of two halves. The slabs of two groups stay in
//! the first-level cache while all rows go by; the sums rest in memory between runs of columns, which changes
//! none of their bits.

use std::arch::x86_64::*;

use super::super::packed_types::{PackedType, Quants, Walk, for_type};
use super::{Head, TILE, block_scales, fetch, minus_centre, minus_centre_of_half, words};
use crate::packed::{Group, LINE, Line};
use crate::products::Sums;
use crate::rounded::{RoundedBlock, RoundedRows};

/// Blocks of 32 columns that are unpacked together: those of two groups fill less than half of a first-level
/// cache of 48 KiB.
const RUN: usize = 16;
/// Lines of a slab: eight of words, the scales, the minima or the scales of the first half, those of the
/// second.
const SLAB: usize = 11;
const SCALES: usize = 8;
const MINIMA: usize = 9;
const HALVES: [usize; 2] = [9, 10];

/// Multiplies two groups by as many rows of `x` as fill tiles, and gives how many.
///
/// # Safety
/// The processor has the features; the groups are of one type and as wide as `x`; the sums are as many as its
/// rows.
pub(super) unsafe fn multiply(weights: [&Group<'_>; 2], x: RoundedRows<'_>, sums: [&mut [Sums]; 2]) -> usize {
    let whole = x.rows() / TILE * TILE;
    if whole > 0 {
        let runs = for_type!(weights[0].dtype, runs);
        let [first, second] = sums;
        // SAFETY: the caller's promise.
        unsafe { runs(weights, x, [&mut first[..whole], &mut second[..whole]]) }
    }
    whole
}

/// One run of columns after another. The sums are whole tiles.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn runs<K: PackedType>(weights: [&Group<'_>; 2], x: RoundedRows<'_>, sums: [&mut [Sums]; 2]) {
    let [first, second] = sums;
    first.fill(Sums([0.0; 16]));
    second.fill(Sums([0.0; 16]));
    let mut slabs = [Line([0; LINE]); 2 * RUN * SLAB];
    let mut groups = weights.map(|group| Unpack::<K> { walk: Walk::new(group), head: Head::NONE });
    for start in (0..x.blocks).step_by(RUN) {
        let blocks = RUN.min(x.blocks - start);
        for (at, pair) in (start..start + blocks).zip(slabs.chunks_exact_mut(2 * SLAB)) {
            for (group, slab) in groups.iter_mut().zip(pair.chunks_exact_mut(SLAB)) {
                // SAFETY: each block of the group once, in order.
                unsafe { group.next(at, slab) }
            }
        }
        for t in (0..first.len()).step_by(TILE) {
            // SAFETY: `x` has TILE rows from `t` on, and the run's blocks from `start` on.
            unsafe {
                let rows = std::array::from_fn(|u| x.all.as_ptr().add((t + u) * x.blocks + start));
                tile::<K>(
                    &slabs[..2 * SLAB * blocks],
                    rows,
                    &mut first[t..t + TILE],
                    &mut second[t..t + TILE],
                );
            }
        }
    }
}

/// A group that is being unpacked.
struct Unpack<K> {
    walk: Walk<K>,
    head: Head,
}

impl<K: PackedType> Unpack<K> {
    /// Unpacks the next block, number `at`.
    ///
    /// # Safety
    /// As [`Walk::next`]; the features are there, and `slab` is SLAB lines.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn next(&mut self, at: usize, slab: &mut [Line]) {
        // SAFETY: the caller's promises; the stores are to lines of the slab.
        unsafe {
            let place = self.walk.next();
            if K::LAYOUT.head > 0 && at.is_multiple_of(8) {
                self.head = Head::of::<K>(place.head);
            }
            fetch::<K>(place.quants, at);
            let scales = block_scales::<K>(&self.head, place.scales, place.side);
            let lines = slab.as_mut_ptr();
            let line = |i: usize| lines.add(i);
            for (j, word) in words::<K>(place.quants).into_iter().enumerate() {
                _mm512_store_si512(line(j).cast(), word);
            }
            _mm512_store_ps(line(SCALES).cast(), scales.scale);
            if K::HAS_MINIMUM {
                _mm512_store_ps(line(MINIMA).cast(), scales.minimum);
            }
            if K::QUANTS == Quants::Sixes {
                _mm512_store_ps(line(HALVES[0]).cast(), scales.halves[0]);
                _mm512_store_ps(line(HALVES[1]).cast(), scales.halves[1]);
            }
        }
    }
}

/// Pairs of slabs by TILE rows of activations: each word of these is fetched once for both groups.
///
/// # Safety
/// `x` point to as many blocks as there are pairs of slabs; the sums are TILE.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<K: PackedType>(
    slabs: &[Line],
    x: [*const RoundedBlock; TILE],
    first: &mut [Sums],
    second: &mut [Sums],
) {
    let (mut low, mut high) = ([_mm512_setzero_ps(); TILE], [_mm512_setzero_ps(); TILE]);
    for u in 0..TILE {
        // SAFETY: `Sums` are sixteen floats at a multiple of 64.
        unsafe {
            low[u] = _mm512_load_ps(first[u].0.as_ptr());
            high[u] = _mm512_load_ps(second[u].0.as_ptr());
        }
    }
    for (at, pair) in slabs.chunks_exact(2 * SLAB).enumerate() {
        let (slab, other) = (pair.as_ptr(), pair[SLAB..].as_ptr());
        // SAFETY: the loads are of lines of the slabs, and of blocks that are there by the caller's promise.
        unsafe {
            let float = |slab: *const Line, i: usize| _mm512_load_ps(slab.add(i).cast());
            let x = x.map(|x| x.add(at));
            let (p, q) = products::<K>(slab, other, x);
            let (scale, other_scale) = (float(slab, SCALES), float(other, SCALES));
            for u in 0..TILE {
                let d = _mm512_set1_ps((*x[u]).scale);
                low[u] = _mm512_fmadd_ps(p[u], _mm512_mul_ps(scale, d), low[u]);
                high[u] = _mm512_fmadd_ps(q[u], _mm512_mul_ps(other_scale, d), high[u]);
            }
            if K::HAS_MINIMUM {
                let (minimum, other_minimum) = (float(slab, MINIMA), float(other, MINIMA));
                for u in 0..TILE {
                    let e = _mm512_set1_ps((*x[u]).scaled_sum);
                    low[u] = _mm512_fmadd_ps(minimum, e, low[u]);
                    high[u] = _mm512_fmadd_ps(other_minimum, e, high[u]);
                }
            }
        }
    }
    for u in 0..TILE {
        // SAFETY: as above.
        unsafe {
            _mm512_store_ps(first[u].0.as_mut_ptr(), low[u]);
            _mm512_store_ps(second[u].0.as_mut_ptr(), high[u]);
        }
    }
}

/// The integer part of the formula for a block of two groups, as floats.
///
/// # Safety
/// The features are there, the pointers are to slabs of type `K` and to blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn products<K: PackedType>(
    slab: *const Line,
    other: *const Line,
    x: [*const RoundedBlock; TILE],
) -> ([__m512; TILE], [__m512; TILE]) {
    // SAFETY: the caller's promises; a slab has eight lines of words, and a block of activations eight words.
    unsafe {
        let word = |slab: *const Line, j: usize| _mm512_load_si512(slab.add(j).cast());
        let four = |x: *const RoundedBlock, j: usize| {
            _mm512_set1_epi32((&raw const (*x).quants).cast::<i32>().add(j).read_unaligned())
        };
        if K::QUANTS != Quants::Sixes {
            let mut a = x.map(|x| minus_centre::<K>(x));
            let mut b = a;
            for j in 0..8 {
                let (word, other) = (word(slab, j), word(other, j));
                for ((a, b), x) in a.iter_mut().zip(&mut b).zip(x) {
                    let four = four(x, j);
                    *a = _mm512_dpbusd_epi32(*a, word, four);
                    *b = _mm512_dpbusd_epi32(*b, other, four);
                }
            }
            return (a.map(|sum| _mm512_cvtepi32_ps(sum)), b.map(|sum| _mm512_cvtepi32_ps(sum)));
        }
        let (mut low, mut high) = ([_mm512_setzero_ps(); TILE], [_mm512_setzero_ps(); TILE]);
        for (h, line) in HALVES.into_iter().enumerate() {
            let mut a = x.map(|x| minus_centre_of_half::<K>(x, h));
            let mut b = a;
            for j in 4 * h..4 * h + 4 {
                let (word, other) = (word(slab, j), word(other, j));
                for ((a, b), x) in a.iter_mut().zip(&mut b).zip(x) {
                    let four = four(x, j);
                    *a = _mm512_dpbusd_epi32(*a, word, four);
                    *b = _mm512_dpbusd_epi32(*b, other, four);
                }
            }
            let scales: [__m512; 2] = [slab, other].map(|slab| _mm512_load_ps(slab.add(line).cast()));
            // Products and sums below 2^24: exact.
            for u in 0..TILE {
                low[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[u]), scales[0], low[u]);
                high[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[u]), scales[1], high[u]);
            }
        }
        (low, high)
    }
}
