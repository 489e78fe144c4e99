//! Several rows of activations: two groups by tiles of rows, some columns at a time.
//!
//! The first tile of a run of columns leaves what the others read of its blocks in *slabs*, one for a block
//! of a group: the scales, as floats, what else the type has (minima, or the scales of two halves), and
//! eight lines of words. Of bytes it leaves no words: they are read where they lie. Slabs and bytes of a run
//! stay in the first-level cache while all rows go by; the sums rest in memory between runs, which changes
//! none of their bits.
//!
//! All tiles of a run ask for their part of the next one. Where only the first one asked, it waited for
//! memory, which was idle during the others.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::super::packed_types::{PackedType, Quants, Walk, for_type};
use super::{Head, block_scales, minus_centre, minus_centre_of_half, words};
use crate::packed::{Group, Line};
use crate::products::Sums;
use crate::rounded::{RoundedBlock, RoundedRows};
use crate::simd::fetch;

/// Fewer rows of `x` fill no tile.
pub(super) const ROWS_MIN: usize = 4;
/// Blocks of 32 columns of a run: whole superblocks. Two runs of two groups fill at most half of a
/// first-level cache of 48 KiB.
const RUN: usize = 8;
/// Lines of a slab: the scales, the minima or the scales of the first half, those of the second, and words.
const SLAB: usize = 11;
const SCALES: usize = 0;
const MINIMA: usize = 1;
const HALVES: [usize; 2] = [1, 2];
const WORDS: usize = 3;

/// Multiplies two groups by the rows of `x`.
///
/// # Safety
/// The processor has the features; the groups are of one type and as wide as `x`; the sums are as many as its
/// rows, at least [`ROWS_MIN`].
pub(super) unsafe fn multiply(weights: [&Group<'_>; 2], x: RoundedRows<'_>, sums: [&mut [Sums]; 2]) {
    let runs = for_type!(weights[0].dtype, runs);
    // SAFETY: the caller's promise.
    unsafe { runs(weights, x, sums) }
}

/// One run of columns after another.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn runs<K: PackedType>(weights: [&Group<'_>; 2], x: RoundedRows<'_>, mut sums: [&mut [Sums]; 2]) {
    sums.iter_mut().for_each(|sums| sums.fill(Sums([0.0; 16])));
    // Of nearly one size, and of four rows at least: nine are five and four, not eight and one.
    let tiles = x.rows().div_ceil(rows_max::<K>()).min(x.rows() / ROWS_MIN);
    let (size, larger) = (x.rows() / tiles, x.rows() % tiles);
    // Not filled with zeros for each pair of groups: that would take some percent of its time.
    let mut slabs = MaybeUninit::<[Line; 2 * RUN * SLAB]>::uninit();
    let mut groups = weights.map(|group| Unpack::<K> { walk: Walk::new(group), head: Head::NONE });
    for start in (0..x.blocks).step_by(RUN) {
        let blocks = RUN.min(x.blocks - start);
        let mut run = ColumnRun {
            start,
            blocks,
            lines: weights.map(|group| group.lines.as_ptr().wrapping_add(K::LAYOUT.group(start))),
            slabs: slabs.as_mut_ptr().cast(),
            prefetch: Prefetch::of(weights, start, tiles * blocks),
        };
        let mut t = 0;
        for at in 0..tiles {
            let count = size + usize::from(at < larger);
            let groups = if at == 0 { Some(&mut groups) } else { None };
            // SAFETY: `x` has the run's blocks of these rows and the sums are as many; the first tile is the
            // one with the groups.
            unsafe {
                let rows = x.all.as_ptr().add(t * x.blocks + start);
                let sums = sums.each_mut().map(|sums| sums.as_mut_ptr().add(t));
                // Four to eight, as `tiles` are.
                match count {
                    4 => tile::<K, 4>(&mut run, groups, rows, x.blocks, sums),
                    5 => tile::<K, 5>(&mut run, groups, rows, x.blocks, sums),
                    6 => tile::<K, 6>(&mut run, groups, rows, x.blocks, sums),
                    7 => tile::<K, 7>(&mut run, groups, rows, x.blocks, sums),
                    _ => tile::<K, 8>(&mut run, groups, rows, x.blocks, sums),
                }
            }
            t += count;
        }
    }
}

/// Rows of a tile: with more than six their sums do not stay in registers. With bytes eight are as fast for
/// many rows and a little faster for one or two tiles.
const fn rows_max<K: PackedType>() -> usize {
    match K::QUANTS {
        Quants::Bytes => 8,
        _ => 6,
    }
}

/// What the tiles of a run have in common.
struct ColumnRun {
    /// Its first block, and how many there are.
    start: usize,
    blocks: usize,
    /// Where it begins in either group.
    lines: [*const Line; 2],
    /// A slab for each block of either group, which lie beside each other.
    slabs: *mut Line,
    prefetch: Prefetch,
}

/// The lines of the next run, of either group, that were not asked for yet. In two steps, as `fetch_weights`
/// does, bytes were a twentieth slower.
struct Prefetch {
    lines: [*const Line; 2],
    left: usize,
    /// To be asked for with each block of a tile.
    each: usize,
}

impl Prefetch {
    /// The run behind the one that begins with block `start`: of these groups, or the first one of those that
    /// lie behind them. The tiles ask so many times, each time for their part.
    #[inline(always)]
    fn of(weights: [&Group<'_>; 2], start: usize, times: usize) -> Self {
        let Group { layout, blocks, lines, .. } = *weights[0];
        let (first, behind) =
            if start + RUN < blocks { (start + RUN, 0) } else { (0, weights.len() * lines.len()) };
        let (begin, end) = (layout.group(first), layout.group((first + RUN).min(blocks)));
        let left = end - begin;
        Self {
            lines: weights.map(|group| group.lines.as_ptr().wrapping_add(behind + begin)),
            left,
            each: left.div_ceil(times),
        }
    }

    #[inline(always)]
    fn ask(&mut self) {
        let count = self.each.min(self.left);
        self.left -= count;
        for _ in 0..count {
            for line in &mut self.lines {
                fetch(line.cast());
                *line = line.wrapping_add(1);
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
    unsafe fn next(&mut self, at: usize, slab: *mut Line) {
        // SAFETY: the caller's promises; the stores are to lines of the slab.
        unsafe {
            let place = self.walk.next();
            if K::LAYOUT.head > 0 && at.is_multiple_of(8) {
                self.head = Head::of::<K>(place.head);
            }
            let scales = block_scales::<K>(&self.head, place.scales, place.side);
            let line = |i: usize| slab.add(i);
            _mm512_store_ps(line(SCALES).cast(), scales.scale);
            if K::HAS_MINIMUM {
                _mm512_store_ps(line(MINIMA).cast(), scales.minimum);
            }
            if K::QUANTS == Quants::Sixes {
                _mm512_store_ps(line(HALVES[0]).cast(), scales.halves[0]);
                _mm512_store_ps(line(HALVES[1]).cast(), scales.halves[1]);
            }
            if K::QUANTS != Quants::Bytes {
                for (j, word) in words::<K>(place.quants).into_iter().enumerate() {
                    _mm512_store_si512(line(WORDS + j).cast(), word);
                }
            }
        }
    }
}

/// The blocks of a run by `U` rows of activations: each word of these is fetched once for both groups.
/// `groups` are there for the first tile of the run.
///
/// # Safety
/// `x` is the first of the run's blocks of a row, with `U - 1` rows behind it, each after `stride` blocks;
/// the sums are `U`; `groups` are at the run's first block, or a tile before this one had them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<K: PackedType, const U: usize>(
    run: &mut ColumnRun,
    mut groups: Option<&mut [Unpack<K>; 2]>,
    x: *const RoundedBlock,
    stride: usize,
    sums: [*mut Sums; 2],
) {
    let mut rows = [x; U];
    let (mut low, mut high) = ([_mm512_setzero_ps(); U], [_mm512_setzero_ps(); U]);
    for u in 0..U {
        // SAFETY: the caller's promises; `Sums` are sixteen floats at a multiple of 64.
        unsafe {
            rows[u] = x.add(u * stride);
            low[u] = _mm512_load_ps(sums[0].add(u).cast());
            high[u] = _mm512_load_ps(sums[1].add(u).cast());
        }
    }
    for at in 0..run.blocks {
        run.prefetch.ask();
        // SAFETY: the slabs are the run's, filled before they are read; the blocks are there by the caller's
        // promise, and those of the groups as `Layout` has them.
        unsafe {
            let slabs = [2 * at, 2 * at + 1].map(|slab| run.slabs.add(slab * SLAB));
            if let Some(groups) = &mut groups {
                groups[0].next(run.start + at, slabs[0]);
                groups[1].next(run.start + at, slabs[1]);
            }
            let slabs = slabs.map(|slab| slab.cast_const());
            let words = match K::QUANTS {
                Quants::Bytes => run.lines.map(|line| line.add(K::LAYOUT.quants_of(at))),
                _ => slabs.map(|slab| slab.add(WORDS)),
            };
            let float = |group: usize, i: usize| _mm512_load_ps(slabs[group].add(i).cast());
            let x = rows.map(|row| row.add(at));
            let (p, q) = products::<K, U>(words, slabs, x);
            let (scale, other_scale) = (float(0, SCALES), float(1, SCALES));
            for u in 0..U {
                let d = _mm512_set1_ps((*x[u]).scale);
                low[u] = _mm512_fmadd_ps(p[u], _mm512_mul_ps(scale, d), low[u]);
                high[u] = _mm512_fmadd_ps(q[u], _mm512_mul_ps(other_scale, d), high[u]);
            }
            if K::HAS_MINIMUM {
                let (minimum, other_minimum) = (float(0, MINIMA), float(1, MINIMA));
                for u in 0..U {
                    let e = _mm512_set1_ps((*x[u]).scaled_sum);
                    low[u] = _mm512_fmadd_ps(minimum, e, low[u]);
                    high[u] = _mm512_fmadd_ps(other_minimum, e, high[u]);
                }
            }
        }
    }
    for u in 0..U {
        // SAFETY: as above.
        unsafe {
            _mm512_store_ps(sums[0].add(u).cast(), low[u]);
            _mm512_store_ps(sums[1].add(u).cast(), high[u]);
        }
    }
}

/// The integer part of the formula for a block of two groups, as floats.
///
/// # Safety
/// The features are there; `words` are those of a block of type `K`, `slabs` its slabs, and `x` point to
/// blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn products<K: PackedType, const U: usize>(
    words: [*const Line; 2],
    slabs: [*const Line; 2],
    x: [*const RoundedBlock; U],
) -> ([__m512; U], [__m512; U]) {
    // SAFETY: the caller's promises; words are eight lines, and a block of activations eight words.
    unsafe {
        let word = |group: usize, j: usize| _mm512_load_si512(words[group].add(j).cast());
        let four = |x: *const RoundedBlock, j: usize| {
            _mm512_set1_epi32((&raw const (*x).quants).cast::<i32>().add(j).read_unaligned())
        };
        if K::QUANTS != Quants::Sixes {
            let mut a = x.map(|x| minus_centre::<K>(x));
            let mut b = a;
            for j in 0..8 {
                let (word, other) = (word(0, j), word(1, j));
                for ((a, b), x) in a.iter_mut().zip(&mut b).zip(x) {
                    let four = four(x, j);
                    *a = _mm512_dpbusd_epi32(*a, word, four);
                    *b = _mm512_dpbusd_epi32(*b, other, four);
                }
            }
            return (a.map(|sum| _mm512_cvtepi32_ps(sum)), b.map(|sum| _mm512_cvtepi32_ps(sum)));
        }
        let (mut low, mut high) = ([_mm512_setzero_ps(); U], [_mm512_setzero_ps(); U]);
        for (h, line) in HALVES.into_iter().enumerate() {
            let mut a = x.map(|x| minus_centre_of_half::<K>(x, h));
            let mut b = a;
            for j in 4 * h..4 * h + 4 {
                let (word, other) = (word(0, j), word(1, j));
                for ((a, b), x) in a.iter_mut().zip(&mut b).zip(x) {
                    let four = four(x, j);
                    *a = _mm512_dpbusd_epi32(*a, word, four);
                    *b = _mm512_dpbusd_epi32(*b, other, four);
                }
            }
            let scales: [__m512; 2] = slabs.map(|slab| _mm512_load_ps(slab.add(line).cast()));
            // Products and sums below 2^24: exact.
            for u in 0..U {
                low[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[u]), scales[0], low[u]);
                high[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[u]), scales[1], high[u]);
            }
        }
        (low, high)
    }
}
