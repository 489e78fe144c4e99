//! A few queries against the keys and values of one block.

#![allow(clippy::needless_range_loop, reason = "m and j are row and column of tiles of registers")]

use std::marker::PhantomData;
use std::ops::Range;

use exo_types::KvDType;

use crate::isa::Kernel;
use crate::kv::{BLOCK, KvLayout};
use crate::math;
use crate::simd::{Element, Simd, exp};

/// Most queries of a tile: with two vectors of positions each, their sums fill twelve of sixteen registers.
pub(super) const TILE: usize = 6;

/// Most queries of a tile on an instruction set.
pub(super) const fn tile_max<S: Simd>() -> usize {
    if S::WIDE { TILE } else { 1 }
}

/// Lanes in which weights are summed, on every instruction set.
const TOTALS: usize = 16;

/// What a query has gathered so far: sums relative to the largest score. One record of f32:
///
/// | part    | length | holds                                                    |
/// |---------|--------|----------------------------------------------------------|
/// | out     | D'     | `Σ exp(score - largest) · value`, then zeros             |
/// | totals  | 16     | `Σ exp(score - largest)`, by position modulo 16          |
/// | largest | 1      | largest score, or -∞                                     |
#[derive(Clone, Copy)]
pub(super) struct Record {
    width: usize,
}

impl Record {
    pub(super) fn of(layout: &KvLayout) -> Self {
        Self { width: layout.width }
    }

    /// Floats of a record, a multiple of a cache line.
    pub(super) fn len(self) -> usize {
        self.width + 2 * TOTALS
    }

    fn largest(self) -> usize {
        self.width + TOTALS
    }

    /// Makes every record empty.
    #[inline(always)]
    pub(super) fn clear(self, records: &mut [f32]) {
        records.fill(0.0);
        for record in records.chunks_exact_mut(self.len()) {
            record[self.largest()] = f32::NEG_INFINITY;
        }
    }

    /// Adds what `more` has gathered.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(self, simd: S, record: &mut [f32], more: &[f32]) {
        let (a, b) = (record[self.largest()], more[self.largest()]);
        let largest = if b > a { b } else { a };
        let (old, new) = (simd.splat(math::exp(a - largest)), simd.splat(math::exp(b - largest)));
        let sums = self.width + TOTALS;
        let lanes = record[..sums].chunks_exact_mut(S::LANES).zip(more[..sums].chunks_exact(S::LANES));
        for (record, more) in lanes {
            let kept = simd.mul(simd.load(record), old);
            simd.store(simd.mul_add(simd.load(more), new, kept), record);
        }
        record[self.largest()] = largest;
    }

    /// The weighted mean of the values: `out / Σ totals`.
    #[inline(always)]
    pub(super) fn finish(self, record: &[f32], out: &mut [f32]) {
        let mut totals: [f32; TOTALS] = std::array::from_fn(|i| record[self.width + i]);
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|i| totals[i] += totals[i + half]);
        }
        for (out, sum) in out.iter_mut().zip(record) {
            *out = sum / totals[0];
        }
    }
}

/// Slots `first..end` of a block.
pub(super) type Slots = (usize, usize);

/// A block of the cache, whose elements are `E`: only [`BlockOf::new`] makes one.
pub(super) struct BlockOf<'a, E> {
    layout: &'a KvLayout,
    bytes: &'a [u8],
    _elements: PhantomData<E>,
}

impl<E> Clone for BlockOf<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for BlockOf<'_, E> {}

impl<'a, E: Element> BlockOf<'a, E> {
    /// The block at `start` of a cache of this layout. Panics if `E` is not its element or the block is not in it.
    pub(super) fn new(layout: &'a KvLayout, cache: &'a [u8], start: usize) -> Self {
        assert!(E::BYTES == layout.element_bytes(), "another element than the cache's");
        Self { layout, bytes: &cache[start..start + layout.block_bytes()], _elements: PhantomData }
    }

    /// f16 scales of a group from slot `first` on.
    #[inline(always)]
    fn scales<S: Simd>(self, simd: S, part: usize, group: usize, first: usize) -> S::V {
        let at = part + 2 * (group * BLOCK + first);
        simd.load_f16(&self.bytes[at..at + 2 * S::LANES])
    }
}

/// Adds the positions `slots[m]` of a block to the record of query m, for M queries of one key-value head.
///
/// `q` is `[D, M]`, scaled; `records` are M records. Lanes are positions in the scores and elements in the sums, so no
/// sum crosses lanes but the totals', and the result is the same for every number of lanes, M and company. Scores are
/// summed in the order of D (Q8: by groups), values in the order of positions.
#[inline(always)]
pub(super) fn tile<S: Simd, E: Element, const M: usize>(
    simd: S,
    block: BlockOf<'_, E>,
    q: &[f32],
    records: &mut [f32],
    slots: &[Slots; M],
) {
    let record = Record::of(block.layout);
    assert!(records.len() == record.len() * M && slots.iter().all(|(_, end)| *end <= BLOCK));
    let mut weights = [[0.0f32; BLOCK]; M];
    simd.call(Scores { block, q, scores: &mut weights });
    for (m, record_of_m) in records.chunks_exact_mut(record.len()).enumerate() {
        if slots[m].0 < slots[m].1 {
            simd.call(Soften { scores: &mut weights[m], slots: slots[m], sums: record_of_m, record });
        }
    }
    gather(simd, block, &weights, records, slots);
}

/// `scores[m][p] = Σ_d q[d][m] · key[d][p]`
struct Scores<'a, E, const M: usize> {
    block: BlockOf<'a, E>,
    q: &'a [f32],
    scores: &'a mut [[f32; BLOCK]; M],
}

impl<E: Element, const M: usize> Kernel for Scores<'_, E, M> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // A whole line at a time where there are registers for its sums.
        if const { S::LANES == 8 && M <= 3 } { self.lines::<S, 4>(simd) } else { self.lines::<S, 2>(simd) }
    }
}

impl<E: Element, const M: usize> Scores<'_, E, M> {
    /// NV vectors of positions at a time.
    #[inline(always)]
    fn lines<S: Simd, const NV: usize>(self, simd: S) {
        let Self { block, q, scores } = self;
        let layout = block.layout;
        for first in (0..BLOCK).step_by(NV * S::LANES) {
            let mut sums = [[simd.splat(0.0); NV]; M];
            if layout.groups == 0 {
                dots(simd, block, first, q, 0..layout.head_dim, &mut sums);
            }
            for g in 0..layout.groups {
                let mut dot = [[simd.splat(0.0); NV]; M];
                let elements = g * KvDType::GROUP..((g + 1) * KvDType::GROUP).min(layout.head_dim);
                dots(simd, block, first, q, elements, &mut dot);
                for j in 0..NV {
                    let scale = block.scales(simd, layout.key_scales, g, first + j * S::LANES);
                    for m in 0..M {
                        sums[m][j] = simd.mul_add(dot[m][j], scale, sums[m][j]);
                    }
                }
            }
            for m in 0..M {
                for j in 0..NV {
                    simd.store(sums[m][j], &mut scores[m][first + j * S::LANES..]);
                }
            }
        }
    }
}

/// Adds the products of these elements of M queries `[D, M]` with those of NV vectors of keys from slot `first` on.
#[inline(always)]
fn dots<S: Simd, E: Element, const M: usize, const NV: usize>(
    simd: S,
    block: BlockOf<'_, E>,
    first: usize,
    q: &[f32],
    elements: Range<usize>,
    sums: &mut [[S::V; NV]; M],
) {
    assert!(elements.end <= block.layout.head_dim && first + NV * S::LANES <= BLOCK);
    assert!(q.len() >= elements.end * M);
    let mut acc = *sums;
    for d in elements {
        // SAFETY: line d of the keys, `NV` vectors of its 32 positions, and row d of `q`: by the assertions above.
        unsafe {
            let line = block.bytes.as_ptr().add((d * BLOCK + first) * E::BYTES);
            let mut keys = [simd.splat(0.0); NV];
            for j in 0..NV {
                keys[j] = E::load(simd, line.add(j * S::LANES * E::BYTES));
            }
            for m in 0..M {
                let q = simd.splat(*q.get_unchecked(d * M + m));
                for j in 0..NV {
                    acc[m][j] = simd.mul_add(q, keys[j], acc[m][j]);
                }
            }
        }
    }
    *sums = acc;
}

/// Turns the scores of a block into weights `exp(score - largest)`, 0 or nearly so outside `slots`, after it has made the
/// record relative to the new largest score.
struct Soften<'a> {
    scores: &'a mut [f32; BLOCK],
    slots: Slots,
    sums: &'a mut [f32],
    record: Record,
}

impl Kernel for Soften<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { scores, slots, sums, record } = self;
        scores[..slots.0].fill(f32::NEG_INFINITY);
        scores[slots.1..].fill(f32::NEG_INFINITY);
        let mut most = simd.splat(f32::NEG_INFINITY);
        for lanes in scores.chunks_exact(S::LANES) {
            most = simd.max(simd.load(lanes), most);
        }
        let before = sums[record.largest()];
        let largest = larger(before, highest(simd, most));
        if largest != before {
            let shrink = simd.splat(math::exp(before - largest));
            for lanes in sums[..record.largest()].chunks_exact_mut(S::LANES) {
                simd.store(simd.mul(simd.load(lanes), shrink), lanes);
            }
            sums[record.largest()] = largest;
        }
        let totals = &mut sums[record.width..record.largest()];
        for first in (0..BLOCK).step_by(S::LANES) {
            let lanes = &mut scores[first..first + S::LANES];
            let weights = exp(simd, simd.sub(simd.load(lanes), simd.splat(largest)));
            simd.store(weights, lanes);
            let totals = &mut totals[first % TOTALS..][..S::LANES];
            simd.store(simd.add(simd.load(totals), weights), totals);
        }
    }
}

/// `a` if it is larger, else `b`.
#[inline(always)]
fn larger(b: f32, a: f32) -> f32 {
    if a > b { a } else { b }
}

/// The highest lane.
#[inline(always)]
fn highest<S: Simd>(simd: S, v: S::V) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    simd.store(v, &mut lanes);
    let mut half = S::LANES / 2;
    while half > 0 {
        (0..half).for_each(|i| lanes[i] = larger(lanes[i], lanes[i + half]));
        half /= 2;
    }
    lanes[0]
}

/// Adds the weighted values of each query's slots to its sums: those that all have together, the others one by one.
#[inline(always)]
fn gather<S: Simd, E: Element, const M: usize>(
    simd: S,
    block: BlockOf<'_, E>,
    weights: &[[f32; BLOCK]; M],
    records: &mut [f32],
    slots: &[Slots; M],
) {
    let len = Record::of(block.layout).len();
    let (mut first, mut end) = (0, BLOCK);
    for slots in slots {
        (first, end) = (first.max(slots.0), end.min(slots.1));
    }
    let common = (first, end);
    if first < end && slots.iter().all(|slots| *slots == common) {
        return simd.call(Values { block, weights, records, slots: common });
    }
    for m in 0..M {
        // All of its slots, or those before the common ones.
        let slots = (slots[m].0, if first < end { first } else { slots[m].1 });
        let (weights, records) = (weights[m..].first_chunk::<1>(), &mut records[m * len..(m + 1) * len]);
        weights.into_iter().for_each(|weights| simd.call(Values { block, weights, records, slots }));
    }
    if first < end {
        simd.call(Values { block, weights, records, slots: common });
        for m in 0..M {
            let slots = (end, slots[m].1);
            let (weights, records) = (weights[m..].first_chunk::<1>(), &mut records[m * len..(m + 1) * len]);
            weights.into_iter().for_each(|weights| simd.call(Values { block, weights, records, slots }));
        }
    }
}

/// `out[m][d] += weights[m][p] · value[p][d]` for the slots p, in order.
struct Values<'a, E, const M: usize> {
    block: BlockOf<'a, E>,
    weights: &'a [[f32; BLOCK]; M],
    /// M records.
    records: &'a mut [f32],
    slots: Slots,
}

impl<E: Element, const M: usize> Kernel for Values<'_, E, M> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        if self.slots.0 >= self.slots.1 {
            return;
        }
        if self.block.layout.groups == 0 {
            self.columns(simd, self.weights, 0..self.block.layout.width)
        } else {
            self.scaled(simd)
        }
    }
}

impl<E: Element, const M: usize> Values<'_, E, M> {
    /// Group by group, with the weights multiplied by its scales.
    #[inline(always)]
    fn scaled<S: Simd>(mut self, simd: S) {
        let layout = self.block.layout;
        let mut scaled = [[0.0f32; BLOCK]; M];
        for g in 0..layout.groups {
            for first in (0..BLOCK).step_by(S::LANES) {
                let scales = self.block.scales(simd, layout.value_scales, g, first);
                for m in 0..M {
                    let weights = simd.load(&self.weights[m][first..]);
                    simd.store(simd.mul(weights, scales), &mut scaled[m][first..]);
                }
            }
            let elements = g * KvDType::GROUP..((g + 1) * KvDType::GROUP).min(layout.width);
            self.columns(simd, &scaled, elements);
        }
    }

    /// All of these elements, a multiple of 16.
    #[inline(always)]
    fn columns<S: Simd>(&mut self, simd: S, weights: &[[f32; BLOCK]; M], elements: Range<usize>) {
        let mut d = elements.start;
        if const { S::LANES == 16 || S::LANES == 8 && M <= 3 } {
            while d + 32 <= elements.end {
                if const { S::LANES == 16 } {
                    self.vectors::<S, 2>(simd, weights, d);
                } else {
                    self.vectors::<S, 4>(simd, weights, d);
                }
                d += 32;
            }
        }
        while d < elements.end {
            if const { S::LANES == 16 } {
                self.vectors::<S, 1>(simd, weights, d);
            } else {
                self.vectors::<S, 2>(simd, weights, d);
            }
            d += if const { S::LANES == 16 } { 16 } else { 2 * S::LANES };
        }
    }

    /// NV vectors of elements from `d` on.
    #[inline(always)]
    fn vectors<S: Simd, const NV: usize>(&mut self, simd: S, weights: &[[f32; BLOCK]; M], d: usize) {
        let Self { block: BlockOf { layout, bytes, .. }, records, slots, .. } = self;
        assert!(d + NV * S::LANES <= layout.width && slots.1 <= BLOCK);
        let len = Record::of(layout).len();
        let mut acc = [[simd.splat(0.0); NV]; M];
        for m in 0..M {
            for j in 0..NV {
                acc[m][j] = simd.load(&records[m * len + d + j * S::LANES..]);
            }
        }
        let row = layout.width * E::BYTES;
        for p in slots.0..slots.1 {
            // SAFETY: row p of the values, `NV` vectors from element `d` on: by the assertion above.
            unsafe {
                let value = bytes.as_ptr().add(layout.values + p * row + d * E::BYTES);
                let mut values = [simd.splat(0.0); NV];
                for j in 0..NV {
                    values[j] = E::load(simd, value.add(j * S::LANES * E::BYTES));
                }
                for m in 0..M {
                    let weight = simd.splat(*weights[m].get_unchecked(p));
                    for j in 0..NV {
                        acc[m][j] = simd.mul_add(weight, values[j], acc[m][j]);
                    }
                }
            }
        }
        for m in 0..M {
            for j in 0..NV {
                simd.store(acc[m][j], &mut records[m * len + d + j * S::LANES..]);
            }
        }
    }
}
