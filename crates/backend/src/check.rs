//! Whether the operands of an op fit each other: for backends to ask once, when they compile a recording.

use crate::{AttentionBatch, Buffer, Element, KvCache, Op, Owner, Rows, RunShape, Weight};

/// Elements of the longest row of [`Op::ArgMax`]: f32 holds every whole number up to here.
const ARG_MAX_WIDTH: usize = 1 << 24;

/// The most rows that the buffers of a program hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// T at most.
    pub tokens: usize,
    /// R at most.
    pub selected: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { tokens: usize::MAX, selected: usize::MAX }
    }
}

impl Capacity {
    /// Panics if a run has more rows than the buffers of its program.
    pub fn assert_holds(&self, shape: RunShape) {
        let Self { tokens, selected } = *self;
        assert!(
            shape.tokens <= tokens && shape.selected <= selected,
            "{shape:?} is beyond the buffers of the program, which hold {tokens} and {selected} rows"
        );
    }
}

/// Whether two handles are one buffer.
pub fn same_buffer(a: &Buffer, b: &Buffer) -> bool {
    std::ptr::addr_eq(std::sync::Arc::as_ptr(&a.storage), std::sync::Arc::as_ptr(&b.storage))
}

/// One op under examination.
struct Check<'a> {
    owner: Owner,
    capacity: &'a mut Capacity,
    op: &'a Op,
}

/// Panics unless the operands of `op` belong to `owner` and fit; lowers `capacity` to the rows they hold.
pub fn check_op(op: &Op, owner: Owner, capacity: &mut Capacity) {
    let mut c = Check { owner, capacity, op };
    match op {
        Op::Embed { table, ids, out } => {
            c.weight(table);
            c.rows(ids, Element::U32, 1, Rows::Tokens);
            c.rows(out, Element::F32, table.cols, Rows::Tokens);
        }
        Op::RmsNorm { x, weight, out, groups, rows, eps: _ } => {
            c.vector(weight, weight.cols);
            c.rows(x, Element::F32, groups * weight.cols, *rows);
            c.rows(out, Element::F32, groups * weight.cols, *rows);
        }
        Op::MatMul { weight, bias, x, out, rows } => {
            c.weight(weight);
            if let Some(bias) = bias {
                c.vector(bias, weight.rows);
            }
            c.rows(x, Element::F32, weight.cols, *rows);
            c.rows(out, Element::F32, weight.rows, *rows);
            c.distinct(x, out);
        }
        Op::Rope { x, positions, frequencies, heads, head_dim, style: _ } => {
            c.vector(frequencies, frequencies.cols);
            c.that(2 * frequencies.cols <= *head_dim, "more frequencies than pairs in a head");
            c.rows(x, Element::F32, heads * head_dim, Rows::Tokens);
            c.rows(positions, Element::U32, 1, Rows::Tokens);
        }
        Op::KvWrite { kv, layer, k, v, batch } => {
            c.kv(kv, *layer, batch);
            c.rows(k, Element::F32, kv.shape.kv_heads * kv.shape.head_dim, Rows::Tokens);
            c.rows(v, Element::F32, kv.shape.kv_heads * kv.shape.head_dim, Rows::Tokens);
        }
        Op::Attention { q, kv, layer, batch, out, heads, window, scale: _ } => {
            c.kv(kv, *layer, batch);
            c.that(
                *heads > 0 && heads.is_multiple_of(kv.shape.kv_heads),
                "query heads do not share out evenly",
            );
            c.that(*window != Some(0), "a window of no tokens");
            c.rows(q, Element::F32, heads * kv.shape.head_dim, Rows::Tokens);
            c.rows(out, Element::F32, heads * kv.shape.head_dim, Rows::Tokens);
            c.distinct(q, out);
        }
        Op::SwiGlu { gate, up, out, width } => {
            for operand in [gate, up, out] {
                c.rows(operand, Element::F32, *width, Rows::Tokens);
            }
            c.distinct(up, out);
        }
        Op::Add { x, y, width } => {
            c.rows(x, Element::F32, *width, Rows::Tokens);
            c.rows(y, Element::F32, *width, Rows::Tokens);
        }
        Op::SelectRows { x, rows, out, width } => {
            c.rows(x, Element::F32, *width, Rows::Tokens);
            c.rows(rows, Element::U32, 1, Rows::Selected);
            c.rows(out, Element::F32, *width, Rows::Selected);
            c.distinct(x, out);
        }
        Op::ArgMax { x, out, width } => {
            c.that(*width <= ARG_MAX_WIDTH, "places in a row that f32 does not hold");
            c.rows(x, Element::F32, *width, Rows::Selected);
            c.rows(out, Element::F32, 1, Rows::Selected);
            c.distinct(x, out);
        }
        Op::Exchange { x, width } => c.rows(x, Element::F32, *width, Rows::Tokens),
        Op::LayerBoundary { layer: _ } => {}
    }
}

impl Check<'_> {
    fn that(&self, holds: bool, what: &str) {
        assert!(holds, "{what}: {:?}", self.op);
    }

    /// `[rows, width]` elements of this device.
    fn rows(&mut self, buffer: &Buffer, element: Element, width: usize, rows: Rows) {
        self.owner.assert_owns(&*buffer.storage, buffer);
        self.that(buffer.element == element, "wrong element type");
        self.that(width > 0, "rows of no elements");
        let held = buffer.len / width;
        match rows {
            Rows::Tokens => self.capacity.tokens = self.capacity.tokens.min(held),
            Rows::Selected => self.capacity.selected = self.capacity.selected.min(held),
        }
    }

    fn weight(&self, weight: &Weight) {
        self.owner.assert_owns(&*weight.storage, weight);
        self.that(weight.rows > 0 && weight.cols > 0, "a weight without elements");
    }

    fn vector(&self, weight: &Weight, len: usize) {
        self.weight(weight);
        self.that(weight.rows == 1 && weight.cols == len, "a vector of another length");
    }

    fn distinct(&self, a: &Buffer, b: &Buffer) {
        self.that(!same_buffer(a, b), "the result may not replace this operand");
    }

    fn kv(&mut self, kv: &KvCache, layer: usize, batch: &AttentionBatch) {
        self.owner.assert_owns(&*kv.storage, kv);
        let shape = &kv.shape;
        self.that(layer < shape.layers, "no such layer in the cache");
        self.that(shape.kv_heads * shape.head_dim * shape.page_tokens > 0, "a cache without elements");
        self.rows(&batch.positions, Element::U32, 1, Rows::Tokens);
        self.rows(&batch.sequences, Element::U32, 1, Rows::Tokens);
        self.owner.assert_owns(&*batch.page_table.storage, &batch.page_table);
        self.that(batch.page_table.element == Element::U32, "wrong element type");
        self.that(batch.pages_per_sequence > 0, "page tables without columns");
    }
}
