//! One piece of attention: some rows of a sequence, and the query heads of one key-value head.

use std::ops::Range;

use exo_types::KvDType;

use super::Asked;
use super::tile::{BlockOf, Record, Slots, TILE, tile, tile_max};
use crate::isa::{Kernel, Level};
use crate::kv::{BLOCK, KvLayout};
use crate::ops::paging::Paging;
use crate::pool::SendPtr;
use crate::simd::{Element, F16, F32, I8, Simd};

/// Blocks of a span. Each span is summed on its own and the spans are added in order, so that threads can share out a
/// long context without a trace in the result.
const SPAN_BLOCKS: usize = 16;
/// Queries of a piece: enough that a block is read from memory once for many, few enough to share out evenly and to
/// keep their sums in the second-level cache.
const PIECE_QUERIES: usize = 48;

/// What all pieces of an op share.
pub(super) struct Step<'a> {
    asked: &'a Asked<'a>,
    paging: &'a Paging<'a>,
    layout: &'a KvLayout,
    /// The cache.
    bytes: &'a [u8],
    /// Query heads to a key-value head.
    group: usize,
    blocks_per_page: usize,
}

impl<'a> Step<'a> {
    pub(super) fn new(
        asked: &'a Asked<'a>,
        paging: &'a Paging<'a>,
        layout: &'a KvLayout,
        bytes: &'a [u8],
    ) -> Self {
        let group = asked.heads / paging.shape.kv_heads;
        Self {
            asked,
            paging,
            layout,
            bytes,
            group,
            blocks_per_page: paging.shape.page_tokens.div_ceil(BLOCK),
        }
    }

    /// Runs of neighbouring rows of one sequence, none too long for a piece.
    pub(super) fn runs(&self) -> Vec<Range<usize>> {
        let rows_max = (PIECE_QUERIES / self.group).max(1);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for t in 0..self.paging.tokens() {
            match runs.last_mut() {
                Some(run)
                    if run.len() < rows_max && self.paging.sequence(run.start) == self.paging.sequence(t) =>
                {
                    run.end += 1;
                }
                _ => runs.push(t..t + 1),
            }
        }
        runs
    }

    pub(super) fn piece(&self, rows: Range<usize>, kv_head: usize) -> Piece<'_> {
        let spans = rows.clone().map(|t| self.paging.span(t, self.asked.window));
        let first = spans.clone().map(|span| *span.start()).min().unwrap_or(0);
        let last = spans.map(|span| *span.end()).max().unwrap_or(0);
        let blocks = self.block_of(first)..self.block_of(last) + 1;
        Piece { step: self, rows, kv_head, blocks }
    }

    /// Number of the block that holds a position, counted from the start of the sequence.
    fn block_of(&self, position: usize) -> usize {
        let page_tokens = self.paging.shape.page_tokens;
        position / page_tokens * self.blocks_per_page + position % page_tokens / BLOCK
    }

    /// First position of a block, and the one after its last.
    fn positions(&self, block: usize) -> Range<usize> {
        let page_tokens = self.paging.shape.page_tokens;
        let page = block / self.blocks_per_page * page_tokens;
        let slot = block % self.blocks_per_page * BLOCK;
        page + slot..page + (slot + BLOCK).min(page_tokens)
    }
}

/// Some rows of a sequence, and the query heads of one key-value head: its *queries*, row by row.
pub(super) struct Piece<'a> {
    step: &'a Step<'a>,
    rows: Range<usize>,
    kv_head: usize,
    /// From the first block that a query needs to the last.
    blocks: Range<usize>,
}

impl Piece<'_> {
    fn queries(&self) -> usize {
        self.rows.len() * self.step.group
    }

    /// Floats of the sums of all queries.
    pub(super) fn records_len(&self) -> usize {
        self.queries() * Record::of(self.step.layout).len()
    }

    /// Spans that a query needs.
    pub(super) fn spans(&self) -> Range<usize> {
        self.blocks.start / SPAN_BLOCKS..(self.blocks.end - 1) / SPAN_BLOCKS + 1
    }

    /// Row and head of a query.
    fn place(&self, query: usize) -> (usize, usize) {
        let group = self.step.group;
        (self.rows.start + query / group, self.kv_head * group + query % group)
    }

    /// Tiles of nearly equal size.
    fn tiles<S: Simd>(&self) -> impl Iterator<Item = Range<usize>> + use<S> {
        let queries = self.queries();
        let count = queries.div_ceil(tile_max::<S>());
        (0..count).map(move |i| i * queries / count..(i + 1) * queries / count)
    }

    /// The slots of a block that a query needs.
    fn slots(&self, query: usize, positions: &Range<usize>) -> Slots {
        let span = self.step.paging.span(self.place(query).0, self.step.asked.window);
        let first = (*span.start()).max(positions.start) - positions.start;
        let end = (span.end() + 1).min(positions.end).saturating_sub(positions.start);
        (first, end)
    }

    /// Whether a query has a position in a span.
    fn needs(&self, query: usize, span: usize) -> bool {
        let positions = self.step.paging.span(self.place(query).0, self.step.asked.window);
        let spans = self.step.block_of(*positions.start()) / SPAN_BLOCKS
            ..=self.step.block_of(*positions.end()) / SPAN_BLOCKS;
        spans.contains(&span)
    }

    /// Writes the results.
    #[inline(always)]
    fn finish(&self, sums: &[f32], out: &SendPtr<f32>) {
        let (record, d) = (Record::of(self.step.layout), self.step.layout.head_dim);
        for (query, sums) in sums.chunks_exact(record.len()).enumerate() {
            let (t, head) = self.place(query);
            // SAFETY: `out` is `[T, H, D]`, and no other piece has this row and head.
            let out = unsafe {
                std::slice::from_raw_parts_mut(out.get().add((t * self.step.asked.heads + head) * d), d)
            };
            record.finish(sums, out);
        }
    }

    /// The scratch of a piece: packed queries, and two sets of records.
    fn scratch<'s>(&self, scratch: &'s mut Vec<f32>) -> (&'s mut [f32], &'s mut [f32], &'s mut [f32]) {
        let (q, records) = (self.queries() * self.step.layout.head_dim, self.records_len());
        let len = q + 2 * records;
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        let (q, rest) = scratch[..len].split_at_mut(q);
        let (sums, more) = rest.split_at_mut(records);
        (q, sums, more)
    }
}

/// Packs the queries, scaled, as `[D, M]` for each tile.
struct Pack<'a> {
    piece: &'a Piece<'a>,
    q: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { piece, q } = self;
        let (d, Asked { q: from, heads, scale, .. }) = (piece.step.layout.head_dim, piece.step.asked);
        for tile in piece.tiles::<S>() {
            let packed = &mut q[tile.start * d..tile.end * d];
            for (m, query) in tile.clone().enumerate() {
                let (t, head) = piece.place(query);
                let from = &from[(t * heads + head) * d..][..d];
                for (to, value) in packed.iter_mut().skip(m).step_by(tile.len()).zip(from) {
                    *to = value * scale;
                }
            }
        }
    }
}

/// Sums a span of a piece.
struct Span<'a> {
    piece: &'a Piece<'a>,
    span: usize,
    /// Packed.
    q: &'a [f32],
    records: &'a mut [f32],
}

impl Kernel for Span<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.piece.step.layout.dtype {
            KvDType::F32 => self.of::<S, F32>(simd),
            KvDType::F16 => self.of::<S, F16>(simd),
            KvDType::Q8 => self.of::<S, I8>(simd),
        }
    }
}

impl Span<'_> {
    #[inline(always)]
    fn of<S: Simd, E: Element>(self, simd: S) {
        let Self { piece, span, q, records } = self;
        let Step { layout, paging, bytes, .. } = piece.step;
        let (d, len) = (layout.head_dim, Record::of(layout).len());
        Record::of(layout).clear(records);
        let (first, end) = (span * SPAN_BLOCKS, (span + 1) * SPAN_BLOCKS);
        for block in piece.blocks.start.max(first)..piece.blocks.end.min(end) {
            let positions = piece.step.positions(block);
            let (start, _) = paging.block(layout, piece.rows.start, piece.kv_head, positions.start);
            let block = BlockOf::<E>::new(layout, bytes, start);
            for queries in piece.tiles::<S>() {
                let mut slots = [(0, 0); TILE];
                for (query, slots) in queries.clone().zip(&mut slots) {
                    *slots = piece.slots(query, &positions);
                }
                let slots = &slots[..queries.len()];
                if slots.iter().any(|(first, end)| first < end) {
                    let q = &q[queries.start * d..queries.end * d];
                    let records = &mut records[queries.start * len..queries.end * len];
                    tile_of(simd, block, q, records, slots);
                }
            }
        }
    }
}

/// Adds the records of a span to those of the spans before it.
struct Add<'a> {
    piece: &'a Piece<'a>,
    span: usize,
    sums: &'a mut [f32],
    more: &'a [f32],
}

impl Kernel for Add<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let record = Record::of(self.piece.step.layout);
        let pairs = self.sums.chunks_exact_mut(record.len()).zip(self.more.chunks_exact(record.len()));
        for (query, (sum, more)) in pairs.enumerate() {
            // Not an empty one, which another query of the piece may need: it would turn -0 to 0.
            if self.piece.needs(query, self.span) {
                record.merge(simd, sum, more);
            }
        }
    }
}

/// [`tile`] for as many queries as there are slots.
#[inline(always)]
fn tile_of<S: Simd, E: Element>(
    simd: S,
    block: BlockOf<'_, E>,
    q: &[f32],
    records: &mut [f32],
    slots: &[Slots],
) {
    macro_rules! of {
        ($($m:literal)*) => {
            match slots.len() {
                // The others are not compiled.
                $($m => if const { $m <= tile_max::<S>() } && let Some(slots) = slots.first_chunk::<$m>() {
                    tile(simd, block, q, records, slots);
                },)*
                more => unreachable!("a tile of {more} queries"),
            }
        };
    }
    of!(1 2 3 4 5 6)
}

/// A piece from start to end.
pub(super) fn whole(level: Level, piece: &Piece<'_>, out: &SendPtr<f32>, scratch: &mut Vec<f32>) {
    let (q, sums, more) = piece.scratch(scratch);
    level.dispatch(Pack { piece, q });
    Record::of(piece.step.layout).clear(sums);
    for span in piece.spans() {
        level.dispatch(Span { piece, span, q, records: more });
        level.dispatch(Add { piece, span, sums, more });
    }
    piece.finish(sums, out);
}

/// One span of a piece, into `records`.
pub(super) fn one_span(
    level: Level,
    piece: &Piece<'_>,
    span: usize,
    records: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    let (q, ..) = piece.scratch(scratch);
    level.dispatch(Pack { piece, q });
    level.dispatch(Span { piece, span, q, records });
}

/// The spans of a piece, whose records lie one after the other in `parts`, added up.
pub(super) fn together(
    level: Level,
    piece: &Piece<'_>,
    parts: &[f32],
    out: &SendPtr<f32>,
    scratch: &mut Vec<f32>,
) {
    let (_, sums, _) = piece.scratch(scratch);
    Record::of(piece.step.layout).clear(sums);
    for (span, more) in piece.spans().zip(parts.chunks_exact(piece.records_len())) {
        level.dispatch(Add { piece, span, sums, more });
    }
    piece.finish(sums, out);
}
