//! From a row of the step to its slots in the cache.

use std::ops::RangeInclusive;
use std::sync::RwLockReadGuard;

use exo_backend::{AttentionBatch, KvCache, KvShape, OpKind, RunError};

use super::{Operands, in_range};
use crate::kv::{BLOCK, KvLayout};
use crate::memory::Block;

/// The step's positions and page tables, as they lie in their buffers now.
pub(super) struct Paging<'a> {
    op: OpKind,
    pub(super) shape: KvShape,
    layer: usize,
    tokens: usize,
    positions: RwLockReadGuard<'a, Block<u32>>,
    sequences: RwLockReadGuard<'a, Block<u32>>,
    table: RwLockReadGuard<'a, Block<u32>>,
    pages_per_sequence: usize,
}

impl<'a> Paging<'a> {
    pub(super) fn new(
        op: OpKind,
        kv: &KvCache,
        layer: usize,
        batch: &'a AttentionBatch,
        on: &Operands<'_>,
    ) -> Self {
        Self {
            op,
            shape: kv.shape,
            layer,
            tokens: on.shape.tokens,
            positions: on.buffer(&batch.positions).u32().read(),
            sequences: on.buffer(&batch.sequences).u32().read(),
            table: on.buffer(&batch.page_table).u32().read(),
            pages_per_sequence: batch.pages_per_sequence,
        }
    }

    /// T
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn position(&self, t: usize) -> usize {
        self.positions[t] as usize
    }

    /// Positions that row `t` attends to.
    pub(super) fn span(&self, t: usize, window: Option<u32>) -> RangeInclusive<usize> {
        let last = self.position(t);
        window.map_or(0, |window| (last + 1).saturating_sub(window as usize))..=last
    }

    /// The block of row `t`'s sequence and a head that holds `position`, as its first byte, and the slot in
    /// it.
    pub(super) fn block(&self, layout: &KvLayout, t: usize, head: usize, position: usize) -> (usize, usize) {
        let (column, slot) = (position / self.shape.page_tokens, position % self.shape.page_tokens);
        let page = self.table[self.sequence(t) * self.pages_per_sequence + column] as usize;
        (layout.block(self.layer, page, head, slot), slot % BLOCK)
    }

    pub(super) fn sequence(&self, t: usize) -> usize {
        self.sequences[t] as usize
    }

    /// Fails unless every page of every row's `span` is in its table and in the cache.
    pub(super) fn check(&self, span: impl Fn(usize) -> RangeInclusive<usize>) -> Result<(), RunError> {
        let sequences = self.table.len() / self.pages_per_sequence;
        for t in 0..self.tokens {
            let sequence = in_range(self.op, "a sequence index", self.sequences[t], sequences)?;
            let limit = self.pages_per_sequence.saturating_mul(self.shape.page_tokens);
            in_range(self.op, "a position", self.positions[t], limit)?;
            let span = span(t);
            let first = sequence * self.pages_per_sequence;
            let pages = span.start() / self.shape.page_tokens..=span.end() / self.shape.page_tokens;
            for column in pages {
                in_range(self.op, "a page number", self.table[first + column], self.shape.pages)?;
            }
        }
        Ok(())
    }
}
