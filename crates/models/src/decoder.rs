//! The decoder every architecture here shares: RMSNorm, attention, RMSNorm, SwiGLU, around a residual stream.
//!
//! ```text
//! h += o(attention(rope(norm?(q(n))), rope(norm?(k(n))), v(n)))     n = rms_norm(h)
//! h += down(silu(gate(n)) · up(n))                                  n = rms_norm(h)
//! ```

use exo_backend::{Buffer, Exchange, KvCache, Op, Recording, RopeStyle, Rows, Weight};
use exo_formats::{ModelConfig, RopeStyle as StoredRopeStyle};
use exo_types::Shard;

use crate::{Block, LayerWeights, ShardWeights, StepBuffers};

/// Writes the layers of `shard`, with the embedding before them where the shard has it. Reads `buffers.ids`
/// or `buffers.hidden`, leaves its result in `buffers.hidden`.
///
/// Panics if `weights` or `buffers` lack what the shard has: they are made for it.
pub fn record_layers(
    config: &ModelConfig,
    block: &Block,
    shard: &Shard,
    weights: &ShardWeights,
    buffers: &StepBuffers,
    kv: &KvCache,
    exchange: &dyn Exchange,
) -> Recording {
    let mut recorder = Recorder { config, block, weights, buffers, kv, exchange, out: Recording::default() };
    if shard.embedding {
        recorder.embedding();
    }
    for (index, layer) in shard.layers.iter().enumerate() {
        recorder.out.push(Op::LayerBoundary { layer });
        recorder.attention(index, &weights.layers[index]);
        recorder.feed_forward(&weights.layers[index]);
    }
    recorder.out
}

/// Writes the norm behind the layers, of the rows named in the head's buffers, to `selected` there. Runs
/// after the layers, as often as there are rows to be had.
///
/// Panics if `weights` or `buffers` have no head.
pub fn record_norm(config: &ModelConfig, weights: &ShardWeights, buffers: &StepBuffers) -> Recording {
    let head = weights.head.as_ref().expect("the shard has a head, so its weights were loaded");
    let buffers_of_head = buffers.head.as_ref().expect("the shard has a head, so it has buffers for it");
    let selected = &buffers_of_head.selected;
    let mut out = Recording::default();
    out.push(Op::SelectRows {
        x: buffers.hidden.clone(),
        rows: buffers_of_head.rows.clone(),
        out: selected.clone(),
        width: config.hidden as usize,
    });
    out.push(Op::RmsNorm {
        x: selected.clone(),
        weight: head.norm.clone(),
        out: selected.clone(),
        eps: config.rms_eps,
        groups: 1,
        rows: Rows::Selected,
    });
    out
}

/// Writes the output head: the rows that [`record_norm`] normalises, to logits and the place of the greatest.
pub fn record_head(config: &ModelConfig, weights: &ShardWeights, buffers: &StepBuffers) -> Recording {
    let head = weights.head.as_ref().expect("the shard has a head, so its weights were loaded");
    let buffers_of_head = buffers.head.as_ref().expect("the shard has a head, so it has buffers for it");
    let mut out = record_norm(config, weights, buffers);
    out.push(Op::MatMul {
        weight: head.output.clone(),
        bias: None,
        x: buffers_of_head.selected.clone(),
        out: buffers_of_head.logits.clone(),
        rows: Rows::Selected,
    });
    out.push(Op::ArgMax {
        x: buffers_of_head.logits.clone(),
        out: buffers_of_head.best.clone(),
        width: config.vocab as usize,
    });
    out
}

/// Writes ops over one set of buffers. A field per thing the ops refer to, so that a layer reads as its
/// formula.
struct Recorder<'a> {
    config: &'a ModelConfig,
    block: &'a Block,
    weights: &'a ShardWeights,
    buffers: &'a StepBuffers,
    kv: &'a KvCache,
    exchange: &'a dyn Exchange,
    out: Recording,
}

impl Recorder<'_> {
    fn embedding(&mut self) {
        let table = self.weights.embedding.as_ref().expect("the shard has the embedding, so it was loaded");
        let ids = self.buffers.ids.as_ref().expect("the shard has the embedding, so it has a buffer for ids");
        self.out.push(Op::Embed { table: table.clone(), ids: ids.clone(), out: self.buffers.hidden.clone() });
    }

    fn attention(&mut self, index: usize, w: &LayerWeights) {
        let b = self.buffers;
        let (heads, kv_heads) = (self.config.heads as usize, self.config.kv_heads as usize);
        let bias = w.qkv_bias.as_ref();
        self.norm(&b.hidden, &w.attn_norm, &b.normed, 1);
        self.matmul(&w.q, bias.map(|b| &b.q), &b.normed, &b.q);
        self.matmul(&w.k, bias.map(|b| &b.k), &b.normed, &b.k);
        self.matmul(&w.v, bias.map(|b| &b.v), &b.normed, &b.v);
        if let Some(norm) = &w.qk_norm {
            self.norm(&b.q, &norm.q, &b.q, heads);
            self.norm(&b.k, &norm.k, &b.k, kv_heads);
        }
        self.rope(&b.q, heads);
        self.rope(&b.k, kv_heads);
        self.out.push(Op::KvWrite {
            kv: self.kv.clone(),
            layer: index,
            k: b.k.clone(),
            v: b.v.clone(),
            batch: b.batch.clone(),
        });
        self.out.push(Op::Attention {
            q: b.q.clone(),
            kv: self.kv.clone(),
            layer: index,
            batch: b.batch.clone(),
            out: b.gathered.clone(),
            heads,
            // In f64 and rounded once: the same on every machine.
            scale: (1.0 / f64::from(self.config.head_dim).sqrt()) as f32,
            window: self.block.window,
        });
        self.matmul(&w.o, None, &b.gathered, &b.delta);
        self.add_delta();
    }

    fn feed_forward(&mut self, w: &LayerWeights) {
        let b = self.buffers;
        self.norm(&b.hidden, &w.ffn_norm, &b.normed, 1);
        self.matmul(&w.gate, None, &b.normed, &b.gate);
        self.matmul(&w.up, None, &b.normed, &b.up);
        self.out.push(Op::SwiGlu {
            gate: b.gate.clone(),
            up: b.up.clone(),
            out: b.gate.clone(),
            width: self.config.ffn as usize,
        });
        self.matmul(&w.down, None, &b.gate, &b.delta);
        self.add_delta();
    }

    /// `hidden += delta`, where `delta` is first summed over the group that shares the layer.
    fn add_delta(&mut self) {
        let (x, y, width) = (&self.buffers.hidden, &self.buffers.delta, self.config.hidden as usize);
        if !self.exchange.is_alone() {
            self.out.push(Op::Exchange { x: y.clone(), width });
        }
        self.out.push(Op::Add { x: x.clone(), y: y.clone(), width });
    }

    fn norm(&mut self, x: &Buffer, weight: &Weight, out: &Buffer, groups: usize) {
        self.out.push(Op::RmsNorm {
            x: x.clone(),
            weight: weight.clone(),
            out: out.clone(),
            eps: self.config.rms_eps,
            groups,
            rows: Rows::Tokens,
        });
    }

    fn matmul(&mut self, weight: &Weight, bias: Option<&Weight>, x: &Buffer, out: &Buffer) {
        self.out.push(Op::MatMul {
            weight: weight.clone(),
            bias: bias.cloned(),
            x: x.clone(),
            out: out.clone(),
            rows: Rows::Tokens,
        });
    }

    fn rope(&mut self, x: &Buffer, heads: usize) {
        self.out.push(Op::Rope {
            x: x.clone(),
            positions: self.buffers.batch.positions.clone(),
            frequencies: self.weights.rope_frequencies.clone(),
            heads,
            head_dim: self.config.head_dim as usize,
            style: match self.config.rope.style {
                StoredRopeStyle::Halves => RopeStyle::Halves,
                StoredRopeStyle::Interleaved => RopeStyle::Interleaved,
            },
        });
    }
}

#[cfg(test)]
mod tests;
