//! One piece of attention: some rows of a sequence, and the query heads of some key-value heads.

use std::ops::Range;

use exo_types::KvDType;

use super::AttentionQuery;
use super::tile::{BlockOf, Record, Slots, TILE, tile, tile_len, tile_max};
use crate::isa::Level;
use crate::kv::{BLOCK, KvLayout};
use crate::ops::paging::Paging;
use crate::pool::SendPtr;
use crate::simd::{Element, F16, F32, I8, Kernel, Simd};

/// Blocks of a span. Each span is summed on its own and the spans are added in order, so that threads can
/// share out a long context without a trace in the result.
const SPAN_BLOCKS: usize = 16;
/// Queries of a piece: enough that a block is read from memory once for many, few enough to share out evenly
/// and to keep their sums in the second-level cache.
const PIECE_QUERIES: usize = 48;

/// What all pieces of an op share.
pub(super) struct Step<'a> {
    asked: &'a AttentionQuery<'a>,
    paging: &'a Paging<'a>,
    layout: &'a KvLayout,
    bytes: &'a [u8],
    /// Query heads to a key-value head.
    group: usize,
    blocks_per_page: usize,
}

impl<'a> Step<'a> {
    pub(super) fn new(
        asked: &'a AttentionQuery<'a>,
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

    /// These rows and key-value heads.
    pub(super) fn piece(&self, rows: Range<usize>, heads: Range<usize>) -> QueryBlock<'_> {
        let reach = |t: usize| {
            let span = self.paging.span(t, self.asked.window);
            (*span.start(), span.end() + 1)
        };
        let reach: Vec<Slots> =
            rows.clone().flat_map(|t| std::iter::repeat_n(reach(t), self.group)).collect();
        let first = reach.iter().map(|reach| reach.0).min().unwrap_or(0);
        let end = reach.iter().map(|reach| reach.1).max().unwrap_or(1);
        let blocks = self.block_of(first)..self.block_of(end - 1) + 1;
        QueryBlock { step: self, rows, heads, reach, blocks }
    }

    /// Key-value heads of a piece of so many rows. A few rows take the heads together, as these lie side by
    /// side in memory; with many rows one head is enough work.
    pub(super) fn heads_of_piece(&self, rows: usize, fair: usize) -> usize {
        (PIECE_QUERIES / (rows * self.group)).min(fair).clamp(1, self.paging.shape.kv_heads)
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

/// Some rows of a sequence, and the query heads of some neighbouring key-value heads: its *queries*, head by
/// head and row by row.
pub(super) struct QueryBlock<'a> {
    step: &'a Step<'a>,
    rows: Range<usize>,
    /// Key-value heads.
    heads: Range<usize>,
    /// Positions that the queries of one head need.
    reach: Vec<Slots>,
    /// From the first block that a query needs to the last.
    blocks: Range<usize>,
}

impl QueryBlock<'_> {
    /// Of one head.
    fn queries_each(&self) -> usize {
        self.reach.len()
    }

    fn queries(&self) -> usize {
        self.heads.len() * self.queries_each()
    }

    /// Blocks to read.
    pub(super) fn cost(&self) -> usize {
        self.heads.len() * self.blocks.len()
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
        let (each, group) = (self.queries_each(), self.step.group);
        (self.rows.start + query % each / group, (self.heads.start + query / each) * group + query % group)
    }

    /// Tiles of the queries of one head.
    fn tiles<S: Simd>(&self) -> impl Iterator<Item = Range<usize>> + use<S> {
        let (mut start, end) = (0, self.queries_each());
        std::iter::from_fn(move || {
            let tile = start..start + tile_len::<S>(end - start);
            start = tile.end;
            (!tile.is_empty()).then_some(tile)
        })
    }

    /// Whether a query has a position in a span.
    fn needs(&self, query: usize, span: usize) -> bool {
        let (first, end) = self.reach[query % self.queries_each()];
        let spans = self.step.block_of(first) / SPAN_BLOCKS..=self.step.block_of(end - 1) / SPAN_BLOCKS;
        spans.contains(&span)
    }

    /// First byte of a block of one of the heads.
    fn start(&self, (block, head): (usize, usize)) -> usize {
        let Step { paging, layout, .. } = self.step;
        paging.block(layout, self.rows.start, head, self.step.positions(block).start).0
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
    piece: &'a QueryBlock<'a>,
    q: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { piece, q } = self;
        let (d, AttentionQuery { q: from, heads, scale, .. }) =
            (piece.step.layout.head_dim, piece.step.asked);
        let each = piece.queries_each();
        for (first, q) in (0..).step_by(each).zip(q.chunks_exact_mut(each * d)) {
            for tile in piece.tiles::<S>() {
                let packed = &mut q[tile.start * d..tile.end * d];
                for (m, query) in tile.clone().enumerate() {
                    let (t, head) = piece.place(first + query);
                    let from = &from[(t * heads + head) * d..][..d];
                    for (to, value) in packed.iter_mut().skip(m).step_by(tile.len()).zip(from) {
                        *to = value * scale;
                    }
                }
            }
        }
    }
}

/// Sums a span of a piece.
struct Span<'a> {
    piece: &'a QueryBlock<'a>,
    span: usize,
    /// Packed queries of the piece.
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
        let Step { layout, bytes, .. } = piece.step;
        let (d, len) = (layout.head_dim * piece.queries_each(), piece.records_len() / piece.heads.len());
        Record::of(layout).clear(records);
        let (first, end) = (span * SPAN_BLOCKS, (span + 1) * SPAN_BLOCKS);
        let blocks = piece.blocks.start.max(first)..piece.blocks.end.min(end);
        // As they lie in memory.
        let mut reads =
            blocks.flat_map(|block| piece.heads.clone().map(move |head| (block, head))).peekable();
        let mut next = reads.peek().map_or(0, |read| piece.start(*read));
        while let Some((block, head)) = reads.next() {
            let start = next;
            next = reads.peek().map_or(start, |read| piece.start(*read));
            let head = head - piece.heads.start;
            let (q, records) = (&q[head * d..][..d], &mut records[head * len..][..len]);
            let of = BlockOf::<E>::new(layout, bytes, start, next);
            piece.block(simd, of, piece.step.positions(block), q, records);
        }
    }
}

impl QueryBlock<'_> {
    /// Adds a block, of these positions, to the records of the queries of its head.
    #[inline(always)]
    fn block<S: Simd, E: Element>(
        &self,
        simd: S,
        mut block: BlockOf<'_, E>,
        positions: Range<usize>,
        q: &[f32],
        records: &mut [f32],
    ) {
        let (d, len) = (self.step.layout.head_dim, Record::of(self.step.layout).len());
        for queries in self.tiles::<S>() {
            let mut slots = [(0, 0); TILE];
            for ((first, end), slots) in self.reach[queries.clone()].iter().zip(&mut slots) {
                *slots = (
                    (*first).max(positions.start) - positions.start,
                    (*end).min(positions.end).saturating_sub(positions.start),
                );
            }
            let slots = &slots[..queries.len()];
            if slots.iter().any(|(first, end)| first < end) {
                let q = &q[queries.start * d..queries.end * d];
                let records = &mut records[queries.start * len..queries.end * len];
                tile_of(simd, block, q, records, slots);
                block = block.again();
            }
        }
    }
}

/// Adds the records of a span to those of the spans before it.
struct Add<'a> {
    piece: &'a QueryBlock<'a>,
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
    of!(1 2 3 4 5 6 12)
}

/// A piece from start to end.
pub(super) fn whole(level: Level, piece: &QueryBlock<'_>, out: &SendPtr<f32>, scratch: &mut Vec<f32>) {
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
    piece: &QueryBlock<'_>,
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
    piece: &QueryBlock<'_>,
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
