//! Attention over paged keys and values. Here: what it computes and how it is shared out; [`tile`] has the
//! arithmetic.

mod split;
mod tile;

use std::cell::RefCell;
use std::ops::Range;

use exo_backend::RunError;

use super::paging::Paging;
use crate::isa::Level;
use crate::kv::CpuKv;
use crate::pool::{PoolGuard, SendPtr};
use split::{QueryBlock, Step, one_span, together, whole};

/// The op's operands besides the cache.
pub(super) struct AttentionQuery<'a> {
    /// `[T, H, D]`
    pub(super) q: &'a [f32],
    /// H
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) window: Option<u32>,
}

/// Weighs the cached values of each row's sequence by how well their keys match the row's query.
///
/// `out[t, h] = softmax_p(q[t, h] · key[p] · scale) · value[p]` over the positions of [`Paging::span`]
///
/// | operand    | shape       | layout                  | type   |
/// |------------|-------------|-------------------------|--------|
/// | `q`, `out` | `[T, H, D]` | rows contiguous         | f32    |
/// | cache      |             | [`crate::kv::KvLayout`] | stored |
///
/// A query's positions are reduced block by block, in order, keeping the largest score so far and rescaling
/// what there is when a block holds a larger one (online softmax); sixteen blocks make a span, and spans are
/// added up in order. Within a block nothing depends on lanes or on other queries, so a row's bits are those
/// of its own positions and P alone, the same in decode and prefill, on AVX2 and AVX-512.
///
/// A piece of work is some neighbouring rows of one sequence with all the query heads of one key-value head,
/// of several where the rows are few, or one span of that where a piece is longer than a thread's fair part.
/// A tile of queries multiplies while it converts, so prefill needs no converted copy. Cost: decode reads
/// each page once for all query heads of its heads and is bound by that; prefill by multiply-adds.
///
/// What each variant measured is in docs/benchmarks.md.
///
/// Sources: Vaswani et al. 2017, arXiv:1706.03762; Milakov & Gimelshein 2018, arXiv:1805.02867.
pub(super) fn attention(
    turn: &PoolGuard<'_>,
    level: Level,
    out: &mut [f32],
    asked: &AttentionQuery<'_>,
    kv: &CpuKv,
    paging: &Paging<'_>,
) -> Result<(), RunError> {
    paging.check(|t| paging.span(t, asked.window))?;
    let bytes = kv.read();
    let step = Step::new(asked, paging, &kv.layout, &bytes);
    let pieces = pieces(&step, paging.shape.kv_heads, turn.threads());
    share_out(turn, level, &pieces, &SendPtr::new(out));
    Ok(())
}

/// The work of a step, cut so that as many neighbouring heads as possible come together, and every thread has
/// something.
fn pieces<'a>(step: &'a Step<'a>, kv_heads: usize, threads: usize) -> Vec<QueryBlock<'a>> {
    let runs = step.runs();
    // A piece that is long is shared out by its spans.
    let spans: usize = runs.iter().map(|rows| step.piece(rows.clone(), 0..1).spans().len()).sum();
    let shares = if threads == 1 { 1 } else { 2 * threads };
    let fair = (spans * kv_heads).div_ceil(shares);
    let of = |rows: Range<usize>| {
        let each = step.heads_of_piece(rows.len(), fair);
        let firsts = (0..kv_heads).step_by(each);
        firsts.map(move |first| step.piece(rows.clone(), first..kv_heads.min(first + each)))
    };
    runs.into_iter().flat_map(of).collect()
}

/// How dear a piece is that is not left to one thread. There are fewer of these than twice the threads,
/// whatever the step, which bounds the memory for their spans' sums.
fn cost_whole_max(costs: impl Iterator<Item = usize>, threads: usize) -> usize {
    if threads == 1 { usize::MAX } else { costs.sum::<usize>() / (2 * threads) }
}

/// A thread takes a piece, or one span of a long one; each long one's spans are added up behind that.
fn share_out(turn: &PoolGuard<'_>, level: Level, pieces: &[QueryBlock<'_>], out: &SendPtr<f32>) {
    let whole_max = cost_whole_max(pieces.iter().map(QueryBlock::cost), turn.threads());
    let (mut floats, mut parts, mut long) = (0, Vec::new(), Vec::new());
    for piece in pieces {
        if piece.cost() <= whole_max || piece.spans().len() == 1 {
            parts.push((piece, None));
            continue;
        }
        long.push((piece, floats));
        for span in piece.spans() {
            parts.push((piece, Some((span, floats))));
            floats += piece.records_len();
        }
    }
    let mut records = vec![0.0; floats];
    let start = SendPtr::new(&mut records);
    turn.run(parts.len(), &|at| {
        SCRATCH.with_borrow_mut(|scratch| match parts[at] {
            (piece, None) => whole(level, piece, out, scratch),
            (piece, Some((span, first))) => {
                let len = piece.records_len();
                // SAFETY: `parts` cuts `records` into disjoint runs of `records_len`, one for each span of
                // this job.
                let records = unsafe { std::slice::from_raw_parts_mut(start.get().add(first), len) };
                one_span(level, piece, span, records, scratch);
            }
        });
    });
    let records = &records[..];
    turn.run(long.len(), &|at| {
        let (piece, first) = long[at];
        let parts = &records[first..][..piece.records_len() * piece.spans().len()];
        SCRATCH.with_borrow_mut(|scratch| together(level, piece, parts, out, scratch));
    });
}

thread_local! {
    /// Packed queries and their sums. Kept between steps; as long as the largest piece this thread has met.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::cost_whole_max;

    #[test]
    fn only_pieces_that_one_thread_would_be_late_with_are_shared_out() {
        let long = |costs: &[usize], threads| {
            let whole_max = cost_whole_max(costs.iter().copied(), threads);
            costs.iter().filter(|cost| **cost > whole_max).count()
        };
        // A chunk of 512 rows at a depth of 32,768, 16 heads on 8: 21 runs of 24 rows and one of 8, which
        // takes the heads by threes.
        let chunk = [vec![1024; 168], vec![3072, 3072, 2048]].concat();
        assert_eq!((long(&chunk, 1), long(&chunk, 2), long(&chunk, 32)), (0, 0, 2));
        // One long decode beside it, and a decode alone.
        assert_eq!(long(&[vec![100; 56], vec![4000]].concat(), 8), 1);
        assert_eq!((long(&[1024], 2), long(&[1024], 1)), (1, 0));
        for (threads, pieces) in [(2, 3), (16, 31), (16, 32), (64, 500)] {
            assert!(long(&vec![7; pieces], threads) < 2 * threads);
        }
    }
}
