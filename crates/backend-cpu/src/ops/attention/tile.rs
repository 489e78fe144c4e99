//! A few queries against the keys and values of one block.

#![allow(clippy::needless_range_loop, reason = "m and j are row and column of tiles of registers")]

use std::marker::PhantomData;
use std::ops::Range;

use exo_types::KvDType;

use crate::kv::{BLOCK, KvLayout};
use crate::math;
use crate::simd::{Element, Kernel, NEAR, Simd, exp, fetch, fetch_far};

/// Most queries of a tile: with two vectors of positions each, their sums fill 24 of 32 registers.
pub(super) const TILE: usize = 12;

/// Queries of the next tile when so many are left: twelve, or up to six, which is all that sixteen registers
/// hold.
pub(super) fn tile_len<S: Simd>(left: usize) -> usize {
    match left {
        _ if !S::WIDE => left.min(1),
        ..=6 => left,
        7..12 => left.div_ceil(2),
        _ => tile_max::<S>(),
    }
}

/// Most queries of a tile on an instruction set.
pub(super) const fn tile_max<S: Simd>() -> usize {
    if !S::WIDE {
        1
    } else if S::LANES == 16 {
        TILE
    } else {
        TILE / 2
    }
}

/// Most vectors of elements of M queries whose sums stay in registers, at most eight.
const fn strip_max<S: Simd>(m: usize) -> usize {
    let registers = if S::LANES == 16 { 24 } else { 12 };
    if !S::WIDE {
        4
    } else if registers / m > 8 {
        8
    } else {
        registers / m
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
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
    /// From its keys, and from its values, to what is read next, byte by byte: the values, the next block's
    /// keys.
    ahead: [usize; 2],
    /// To what is read soon.
    near: usize,
    _elements: PhantomData<E>,
}

impl<E> Clone for BlockOf<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for BlockOf<'_, E> {}

impl<'a, E: Element> BlockOf<'a, E> {
    /// The block at `start` of a cache of this layout, to be read before the one at `next`. Panics if `E` is
    /// not its element or the block is not in it.
    pub(super) fn new(layout: &'a KvLayout, cache: &'a [u8], start: usize, next: usize) -> Self {
        assert!(E::BYTES == layout.element_bytes(), "another element than the cache's");
        let bytes = &cache[start..start + layout.block_bytes()];
        let ahead = [layout.values, next.wrapping_sub(start + layout.values)];
        Self { layout, bytes, ahead, near: NEAR, _elements: PhantomData }
    }

    /// The same block, read again: nothing has to come.
    pub(super) fn again(self) -> Self {
        Self { ahead: [0; 2], near: 0, ..self }
    }

    /// While these bytes are read, which lie in the keys (0) or the values (1): asks memory for the lines
    /// `ahead` of them, and the second-level cache for those that are near.
    #[inline(always)]
    fn fetch_ahead(self, at: *const u8, half: usize, bytes: usize) {
        for line in (0..bytes).step_by(LINE) {
            let at = at.wrapping_add(line);
            fetch_far(at.wrapping_add(self.ahead[half]));
            fetch(at.wrapping_add(self.near));
        }
    }

    /// f16 scales of a group from slot `first` on.
    #[inline(always)]
    fn scales<S: Simd>(self, simd: S, part: usize, group: usize, first: usize) -> S::V {
        let at = part + 2 * (group * BLOCK + first);
        let half = usize::from(part != self.layout.key_scales);
        self.fetch_ahead(self.bytes.as_ptr().wrapping_add(at), half, 2 * S::LANES);
        simd.load_f16(&self.bytes[at..at + 2 * S::LANES])
    }
}

/// Adds the positions `slots[m]` of a block to the record of query m, for M queries of one key-value head.
///
/// `q` is `[D, M]`, scaled; `records` are M records. Lanes are positions in the scores and elements in the
/// sums, so no sum crosses lanes but the totals', and the result is the same for every number of lanes, M and
/// company. Scores are summed in the order of D (Q8: by groups), values in the order of positions.
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

/// `scores[m][p] += Σ_d q[d][m] · key[d][p]`
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
            if const { E::BYTES > 1 } {
                let sums = dots::<S, E, M, NV>(simd, block, first, q, 0..layout.head_dim);
                for m in 0..M {
                    for j in 0..NV {
                        simd.store(sums[m][j], &mut scores[m][first + j * S::LANES..]);
                    }
                }
                continue;
            }
            for g in 0..layout.groups {
                let elements = g * KvDType::GROUP..((g + 1) * KvDType::GROUP).min(layout.head_dim);
                let sums = dots::<S, E, M, NV>(simd, block, first, q, elements);
                for j in 0..NV {
                    let scale = block.scales(simd, layout.key_scales, g, first + j * S::LANES);
                    for m in 0..M {
                        let scores = &mut scores[m][first + j * S::LANES..];
                        simd.store(simd.mul_add(sums[m][j], scale, simd.load(scores)), scores);
                    }
                }
            }
        }
    }
}

/// The products of these elements of M queries `[D, M]` with those of NV vectors of keys from slot `first`
/// on, added up.
#[inline(always)]
fn dots<S: Simd, E: Element, const M: usize, const NV: usize>(
    simd: S,
    block: BlockOf<'_, E>,
    first: usize,
    q: &[f32],
    elements: Range<usize>,
) -> [[S::V; NV]; M] {
    assert!(elements.end <= block.layout.head_dim && first + NV * S::LANES <= BLOCK);
    let mut acc = [[simd.splat(0.0); NV]; M];
    let mut line = block.bytes.as_ptr().wrapping_add((elements.start * BLOCK + first) * E::BYTES);
    for q in q[elements.start * M..elements.end * M].as_chunks::<M>().0 {
        block.fetch_ahead(line, 0, NV * S::LANES * E::BYTES);
        let mut keys = [simd.splat(0.0); NV];
        for j in 0..NV {
            // SAFETY: `NV` vectors of the 32 positions of a line of the keys, one line for each element: by
            // the assertion above.
            keys[j] = unsafe { E::load(simd, line.add(j * S::LANES * E::BYTES)) };
        }
        for m in 0..M {
            let q = simd.splat(q[m]);
            for j in 0..NV {
                acc[m][j] = simd.mul_add(q, keys[j], acc[m][j]);
            }
        }
        line = line.wrapping_add(BLOCK * E::BYTES);
    }
    acc
}

/// Turns the scores of a block into weights `exp(score - largest)`, 0 or nearly so outside `slots`, after it
/// has made the record relative to the new largest score.
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
        if slots != (0, BLOCK) {
            scores[..slots.0].fill(f32::NEG_INFINITY);
            scores[slots.1..].fill(f32::NEG_INFINITY);
        }
        let mut most = simd.splat(f32::NEG_INFINITY);
        for lanes in scores.chunks_exact(S::LANES) {
            most = simd.max(simd.load(lanes), most);
        }
        let before = sums[record.largest()];
        let largest = larger(before, simd.largest(most));
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

/// Adds the weighted values of each query's slots to its sums: those that all have together, the others one
/// by one.
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
        if const { E::BYTES > 1 } {
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

    /// All of these elements, a multiple of 16, in strips as wide as there are registers for: a short row of
    /// values is then read as it lies.
    #[inline(always)]
    fn columns<S: Simd>(&mut self, simd: S, weights: &[[f32; BLOCK]; M], elements: Range<usize>) {
        let mut d = elements.start;
        self.strips::<S, 8>(simd, weights, &mut d, elements.end);
        self.strips::<S, 4>(simd, weights, &mut d, elements.end);
        self.strips::<S, 2>(simd, weights, &mut d, elements.end);
        self.strips::<S, 1>(simd, weights, &mut d, elements.end);
    }

    /// As many strips of NV vectors as fit, from `d` on.
    #[inline(always)]
    fn strips<S: Simd, const NV: usize>(
        &mut self,
        simd: S,
        weights: &[[f32; BLOCK]; M],
        d: &mut usize,
        end: usize,
    ) {
        if const { NV <= strip_max::<S>(M) } {
            while *d + NV * S::LANES <= end {
                self.vectors::<S, NV>(simd, weights, *d);
                *d += NV * S::LANES;
            }
        }
    }

    /// NV vectors of elements from `d` on.
    #[inline(always)]
    fn vectors<S: Simd, const NV: usize>(&mut self, simd: S, weights: &[[f32; BLOCK]; M], d: usize) {
        let Self { block, records, slots, .. } = self;
        let BlockOf { layout, bytes, .. } = *block;
        assert!(d + NV * S::LANES <= layout.width && slots.1 <= BLOCK);
        let len = Record::of(layout).len();
        let mut acc = [[simd.splat(0.0); NV]; M];
        for m in 0..M {
            for j in 0..NV {
                acc[m][j] = simd.load(&records[m * len + d + j * S::LANES..]);
            }
        }
        let row = layout.width * E::BYTES;
        let mut value = bytes.as_ptr().wrapping_add(layout.values + slots.0 * row + d * E::BYTES);
        for p in slots.0..slots.1 {
            block.fetch_ahead(value, 1, NV * S::LANES * E::BYTES);
            let mut values = [simd.splat(0.0); NV];
            for j in 0..NV {
                // SAFETY: row p of the values, `NV` vectors from element `d` on: by the assertion above.
                values[j] = unsafe { E::load(simd, value.add(j * S::LANES * E::BYTES)) };
            }
            for m in 0..M {
                // SAFETY: a slot of the block, by the assertion above.
                let weight = simd.splat(unsafe { *weights[m].get_unchecked(p) });
                for j in 0..NV {
                    acc[m][j] = simd.mul_add(weight, values[j], acc[m][j]);
                }
            }
            value = value.wrapping_add(row);
        }
        for m in 0..M {
            for j in 0..NV {
                simd.store(acc[m][j], &mut records[m * len + d + j * S::LANES..]);
            }
        }
    }
}
