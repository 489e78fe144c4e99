//! The operations, as data. A backend runs a list of them; the oracle states each one's formula.
//!
//! Capital letters: T tokens (rows) in this step, R rows selected for output, S sequences, C hidden width,
//! H query heads, K key-value heads, D head size, N outputs, V vocabulary, P tokens of a page.
//! Rows are contiguous; a buffer may hold more rows than the step uses.

use crate::{Buffer, KvCache, OpKind, Weight};

/// How many rows an op works on; the numbers come with each run ([`crate::RunShape`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rows {
    /// T: every token of the step.
    Tokens,
    /// R: the rows whose logits are wanted.
    Selected,
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopeStyle {
    /// `(i, i + D/2)`: Hugging Face checkpoints, Qwen in GGUF.
    Halves,
    /// `(2i, 2i + 1)`: Llama and Mistral in GGUF.
    Interleaved,
}

/// Where each row stands: which sequence, which position, and where that sequence's pages are.
#[derive(Clone, Debug)]
pub struct AttentionBatch {
    /// `[T]` u32: the row's position in its sequence.
    pub positions: Buffer,
    /// `[T]` u32: index of the row's sequence, below S.
    pub sequences: Buffer,
    /// `[S, pages_per_sequence]` u32: page numbers; position p of sequence s lives in page
    /// `table[s, p / P]`, slot `p % P`.
    pub page_table: Buffer,
    /// Columns of `page_table`.
    pub pages_per_sequence: usize,
}

/// One operation. All arithmetic is f32 unless a weight says otherwise; sums run in a fixed order along the
/// reduced dimension that does not depend on the other rows.
#[derive(Clone, Debug)]
pub enum Op {
    /// `out[t, c] = table[ids[t], c]`. Shapes `[V, C]`, `[T]` u32, `[T, C]`. An id of V or more is a run
    /// error.
    Embed {
        /// `[V, C]`
        table: Weight,
        /// `[T]` u32
        ids: Buffer,
        /// `[T, C]`
        out: Buffer,
    },
    /// `out[r, c] = x[r, c] * weight[c] / sqrt(mean_c(x[r, c]²) + eps)` over rows of width W = `weight.cols`.
    /// With `groups` G each of the step's rows holds G such rows (the heads of a query): shapes
    /// `[rows, G, W]`. `out` may be `x`.
    RmsNorm {
        /// `[rows, G, W]`
        x: Buffer,
        /// `[W]`
        weight: Weight,
        /// `[rows, G, W]`
        out: Buffer,
        /// Added to the mean square.
        eps: f32,
        /// Normalised rows per row of the step: 1, or the number of heads.
        groups: usize,
        /// Which rows.
        rows: Rows,
    },
    /// `out[r, n] = Σ_k x[r, k] · weight[n, k] + bias[n]`. Computed on the stored blocks, and on `x` as
    /// [`crate::Device::activations`] says.
    MatMul {
        /// `[N, K]`
        weight: Weight,
        /// `[N]`
        bias: Option<Weight>,
        /// `[rows, K]`
        x: Buffer,
        /// `[rows, N]`, not `x`
        out: Buffer,
        /// Which rows.
        rows: Rows,
    },
    /// Rotates each pair of each head of `x` in place by `position · frequencies[i]` (the product is
    /// rounded to f32, as reference implementations do).
    Rope {
        /// `[T, heads, D]`
        x: Buffer,
        /// `[T]` u32
        positions: Buffer,
        /// `[rotary/2]` radians per position; elements past `rotary` of a head stay as they are.
        frequencies: Weight,
        /// Heads of `x`.
        heads: usize,
        /// D
        head_dim: usize,
        /// Which elements pair up.
        style: RopeStyle,
    },
    /// Stores each row's key and value at its sequence's and position's slot.
    KvWrite {
        /// The cache.
        kv: KvCache,
        /// Layer within the cache.
        layer: usize,
        /// `[T, K, D]`
        k: Buffer,
        /// `[T, K, D]`
        v: Buffer,
        /// Sequences and positions of the rows.
        batch: AttentionBatch,
    },
    /// `out[t, h] = softmax_p(q[t, h] · key[p] · scale) · value[p]` over the positions `p` of the row's
    /// sequence with `position - window < p <= position` (no lower bound without a window); query head h
    /// reads key-value head `h · K / H`. Pages are reduced one by one, in order.
    Attention {
        /// `[T, H, D]`
        q: Buffer,
        /// The cache.
        kv: KvCache,
        /// Layer within the cache.
        layer: usize,
        /// Sequences and positions of the rows.
        batch: AttentionBatch,
        /// `[T, H, D]`, not `q`
        out: Buffer,
        /// H
        heads: usize,
        /// Usually `1/sqrt(D)`.
        scale: f32,
        /// Sliding window in tokens.
        window: Option<u32>,
    },
    /// `out[t, f] = gate[t, f] / (1 + exp(-gate[t, f])) · up[t, f]`. `out` may be `gate`, not `up`.
    SwiGlu {
        /// `[T, F]`
        gate: Buffer,
        /// `[T, F]`
        up: Buffer,
        /// `[T, F]`
        out: Buffer,
        /// F
        width: usize,
    },
    /// `x[t, c] += y[t, c]`.
    Add {
        /// `[T, C]`
        x: Buffer,
        /// `[T, C]`
        y: Buffer,
        /// C
        width: usize,
    },
    /// `out[r, c] = x[rows[r], c]`: keeps the rows whose logits are wanted.
    SelectRows {
        /// `[T, C]`
        x: Buffer,
        /// `[R]` u32, each below T
        rows: Buffer,
        /// `[R, C]`, not `x`
        out: Buffer,
        /// C
        width: usize,
    },
    /// `out[r] = i`: where the greatest `x[r, i]` is, the lowest i among equals, 0 and -0 being equal. In a
    /// row with elements that are not finite, NaN among them, `out[r] = -1 - i` of the first such. Whole
    /// numbers that f32 holds exactly: V is at most 2²⁴.
    ArgMax {
        /// `[R, V]`
        x: Buffer,
        /// `[R]`, not `x`
        out: Buffer,
        /// V
        width: usize,
    },
    /// Replaces partial sums `x` by the sum over a tensor-parallel group. Recorded only when the group has
    /// others.
    Exchange {
        /// `[T, C]`
        x: Buffer,
        /// C
        width: usize,
    },
    /// A place where a cancelled run stops that was not handed over as a whole: between layers.
    LayerBoundary {
        /// The layer about to start.
        layer: u32,
    },
}

impl Op {
    /// Which op it is.
    pub fn kind(&self) -> OpKind {
        match self {
            Self::Embed { .. } => OpKind::Embed,
            Self::RmsNorm { .. } => OpKind::RmsNorm,
            Self::MatMul { .. } => OpKind::MatMul,
            Self::Rope { .. } => OpKind::Rope,
            Self::KvWrite { .. } => OpKind::KvWrite,
            Self::Attention { .. } => OpKind::Attention,
            Self::SwiGlu { .. } => OpKind::SwiGlu,
            Self::Add { .. } => OpKind::Add,
            Self::SelectRows { .. } => OpKind::SelectRows,
            Self::ArgMax { .. } => OpKind::ArgMax,
            Self::Exchange { .. } => OpKind::Exchange,
            Self::LayerBoundary { .. } => OpKind::LayerBoundary,
        }
    }
}

/// Ops in order: what `models` writes and a device compiles.
#[derive(Clone, Default, Debug)]
pub struct Recording {
    /// In order of execution.
    pub ops: Vec<Op>,
}

impl Recording {
    /// Adds an op at the end.
    pub fn push(&mut self, op: Op) {
        self.ops.push(op);
    }
}
