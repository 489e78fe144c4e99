//! Attention over paged keys and values. Here: what it computes and how it is shared out; [`tile`] has the arithmetic.

mod piece;
mod tile;

use std::cell::RefCell;

use exo_backend::RunError;

use super::paging::Paging;
use crate::isa::Level;
use crate::kv::CpuKv;
use crate::pool::{SendPtr, Turn};
use piece::{Piece, Step, one_span, together, whole};

/// The op's operands besides the cache.
pub(super) struct Asked<'a> {
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
/// A query's positions are reduced block by block, in order, keeping the largest score so far and rescaling what there is
/// when a block holds a larger one (online softmax); sixteen blocks make a span, and spans are added up in order. Within
/// a block nothing depends on lanes or on other queries, so a row's bits are those of its own positions and P alone,
/// the same in decode and prefill, on AVX2 and AVX-512.
///
/// A piece of work is some neighbouring rows of one sequence with all the query heads of one key-value head, or one
/// span of that where there are few rows. A tile of up to six queries multiplies while it converts, so prefill needs no
/// converted copy. Cost: decode reads each page once for all query heads of its head and is bound by that; prefill by
/// multiply-adds. Sources: Vaswani et al. 2017, arXiv:1706.03762; Milakov & Gimelshein 2018, arXiv:1805.02867.
pub(super) fn attention(
    turn: &Turn<'_>,
    level: Level,
    out: &mut [f32],
    asked: &Asked<'_>,
    kv: &CpuKv,
    paging: &Paging<'_>,
) -> Result<(), RunError> {
    paging.check(|t| paging.span(t, asked.window))?;
    let bytes = kv.read();
    let step = Step::new(asked, paging, &kv.layout, &bytes);
    let (runs, kv_heads) = (step.runs(), paging.shape.kv_heads);
    let pieces: Vec<Piece<'_>> =
        runs.iter().flat_map(|rows| (0..kv_heads).map(|head| step.piece(rows.clone(), head))).collect();
    let out = SendPtr::new(out);
    let spans: usize = pieces.iter().map(|piece| piece.spans().len()).sum();
    if pieces.len() >= 2 * turn.threads() || spans == pieces.len() {
        turn.run(pieces.len(), &|i| {
            SCRATCH.with_borrow_mut(|scratch| whole(level, &pieces[i], &out, scratch));
        });
    } else {
        by_span(turn, level, &pieces, &out);
    }
    Ok(())
}

/// Fewer pieces than threads want: each span of a piece on its own, then each piece's spans together.
fn by_span(turn: &Turn<'_>, level: Level, pieces: &[Piece<'_>], out: &SendPtr<f32>) {
    let mut firsts = Vec::with_capacity(pieces.len());
    let (mut floats, mut parts) = (0, Vec::new());
    for (i, piece) in pieces.iter().enumerate() {
        firsts.push(floats);
        for span in piece.spans() {
            parts.push((i, span, floats));
            floats += piece.records_len();
        }
    }
    let mut records = vec![0.0; floats];
    let start = SendPtr::new(&mut records);
    turn.run(parts.len(), &|at| {
        let (i, span, first) = parts[at];
        let piece = &pieces[i];
        // SAFETY: `parts` cuts `records` into disjoint runs of `records_len`, one for each piece of this job.
        let records = unsafe { std::slice::from_raw_parts_mut(start.get().add(first), piece.records_len()) };
        SCRATCH.with_borrow_mut(|scratch| one_span(level, piece, span, records, scratch));
    });
    let records = &records[..];
    turn.run(pieces.len(), &|i| {
        let piece = &pieces[i];
        let parts = &records[firsts[i]..][..piece.records_len() * piece.spans().len()];
        SCRATCH.with_borrow_mut(|scratch| together(level, piece, parts, out, scratch));
    });
}

thread_local! {
    /// Packed queries and their sums. Kept between steps; as long as the largest piece this thread has met.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
