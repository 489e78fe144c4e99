//! The working memory of a step, taken once and used by every step.

use exo_backend::{AllocError, AttentionBatch, Buffer, Device, Element};
use exo_formats::ModelConfig;
use exo_types::Shard;

/// The largest step the buffers serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLimits {
    /// T: tokens of a step.
    pub tokens: usize,
    /// S: sequences of a step.
    pub sequences: usize,
    /// R: rows whose logits are computed at once.
    pub selected: usize,
    /// Columns of the page table.
    pub pages_per_sequence: usize,
}

/// Working memory of a shard. Nothing in it outlives a step: keys and values are in the cache. The halves of
/// a layer share buffers: what attention works with is of no use to the feed-forward network, and the other
/// way round.
///
/// T tokens, R selected rows, C hidden width, H and K heads of D elements, F feed-forward width, V
/// vocabulary.
#[derive(Clone, Debug)]
pub struct StepBuffers {
    /// `[T]` u32 token ids; only where the shard has the embedding.
    pub ids: Option<Buffer>,
    /// Where each row stands.
    pub batch: AttentionBatch,
    /// `[T, C]`: the residual stream; input of a later stage, output of all but the last.
    pub hidden: Buffer,
    /// `[T, C]`: a normalised copy of `hidden`.
    pub normed: Buffer,
    /// `[T, H·D]`; the same memory as `gate`.
    pub q: Buffer,
    /// `[T, K·D]`; the same memory as `delta`.
    pub k: Buffer,
    /// `[T, K·D]`
    pub v: Buffer,
    /// `[T, H·D]`: what attention gathered; the same memory as `up`.
    pub gathered: Buffer,
    /// `[T, C]`: what a half of a layer adds to `hidden`.
    pub delta: Buffer,
    /// `[T, F]`
    pub gate: Buffer,
    /// `[T, F]`
    pub up: Buffer,
    /// What the output head needs; only where the shard has it.
    pub head: Option<HeadBuffers>,
}

/// Working memory of the output head.
#[derive(Clone, Debug)]
pub struct HeadBuffers {
    /// `[R]` u32: rows of `hidden` whose logits are wanted.
    pub rows: Buffer,
    /// `[R, C]`
    pub selected: Buffer,
    /// `[R, V]`
    pub logits: Buffer,
    /// `[R]`: where each row's greatest logit is, as [`exo_backend::Op::ArgMax`] says it.
    pub best: Buffer,
}

impl StepBuffers {
    /// Takes what `shard` needs for steps up to `limits`.
    pub fn allocate(
        device: &dyn Device,
        config: &ModelConfig,
        shard: &Shard,
        limits: StepLimits,
    ) -> Result<Self, AllocError> {
        let (t, s) = (limits.tokens, limits.sequences);
        let (c, f) = (config.hidden as usize, config.ffn as usize);
        let q = config.heads as usize * config.head_dim as usize;
        let kv = config.kv_heads as usize * config.head_dim as usize;
        let floats = |len: usize| device.buffer(Element::F32, len);
        let numbers = |len: usize| device.buffer(Element::U32, len);
        let batch = AttentionBatch {
            positions: numbers(t)?,
            sequences: numbers(t)?,
            page_table: numbers(s * limits.pages_per_sequence)?,
            pages_per_sequence: limits.pages_per_sequence,
        };
        // No op reads one of a pair and writes the other, and none is read after the other was written.
        let (q_gate, gathered_up) = (floats(t * q.max(f))?, floats(t * q.max(f))?);
        let k_delta = floats(t * kv.max(c))?;
        Ok(Self {
            ids: shard.embedding.then(|| numbers(t)).transpose()?,
            batch,
            hidden: floats(t * c)?,
            normed: floats(t * c)?,
            q: q_gate.clone(),
            k: k_delta.clone(),
            v: floats(t * kv)?,
            gathered: gathered_up.clone(),
            delta: k_delta,
            gate: q_gate,
            up: gathered_up,
            head: shard.head.then(|| HeadBuffers::allocate(device, config, limits.selected)).transpose()?,
        })
    }

    /// Device memory they occupy, shared memory once.
    pub fn bytes(&self) -> u64 {
        let batch = [&self.batch.positions, &self.batch.sequences, &self.batch.page_table];
        let work = [&self.hidden, &self.normed, &self.v, &self.delta, &self.gate, &self.up];
        let head = self.head.iter().flat_map(|h| [&h.rows, &h.selected, &h.logits, &h.best]);
        // Both element types are four bytes wide.
        batch.into_iter().chain(work).chain(&self.ids).chain(head).map(|b| 4 * b.len as u64).sum()
    }
}

impl HeadBuffers {
    fn allocate(device: &dyn Device, config: &ModelConfig, selected: usize) -> Result<Self, AllocError> {
        Ok(Self {
            rows: device.buffer(Element::U32, selected)?,
            selected: device.buffer(Element::F32, selected * config.hidden as usize)?,
            logits: device.buffer(Element::F32, selected * config.vocab as usize)?,
            best: device.buffer(Element::F32, selected)?,
        })
    }
}
