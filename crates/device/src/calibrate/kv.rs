//! At which rate attention of one row reads keys and values, by the type that a cache has.
//!
//! A step of decode meets those of a layer once and behind weights, so here they come from memory, too: put
//! out of the caches where a device can do that, else behind weights that no cache holds. What a run costs
//! whatever it reads is taken off: the same runs with one token to attend to.

use exo_backend::{
    AttentionBatch, Buffer, Device, Element, KvCache, KvShape, Op, Program, Recording, Stream,
};
use exo_types::{KvDType, KvRates};

use super::{CalibrationError, Chunk, DEADLINE, Evictor, seconds};
use crate::sustained::median;

/// D
pub(super) const HEAD_DIM: usize = 128;
pub(super) const PAGE_TOKENS: usize = 32;
/// Tokens that the row attends to: where the middle of a long conversation is.
const DEPTH: usize = 1024;
/// At least so many layers, of 2 MiB or more in F16: no nearer cache holds one, and a clock sees all.
const LAYERS_MIN: usize = 4;

/// Attention of one row, for each type of keys and values.
pub(super) struct KvBench {
    stream: Box<dyn Stream>,
    positions: Buffer,
    /// As [`KvDType::ALL`] has them.
    each: Vec<TypeBench>,
}

struct TypeBench {
    cache: KvCache,
    program: Box<dyn Program>,
    /// Behind all tokens but one, and behind none.
    deep_s: Vec<f64>,
    shallow_s: Vec<f64>,
}

impl KvBench {
    pub(super) fn new(device: &dyn Device, chunk: Chunk) -> Result<Self, CalibrationError> {
        let mut stream = device.stream()?;
        let pages = DEPTH / PAGE_TOKENS;
        let page_table = device.buffer(Element::U32, pages)?;
        let numbers: Vec<u32> = (0..pages as u32).collect();
        stream.upload_u32(&page_table, 0, &numbers)?;
        let positions = device.buffer(Element::U32, 1)?;
        let batch = AttentionBatch {
            positions: positions.clone(),
            sequences: device.buffer(Element::U32, 1)?, // the first
            page_table,
            pages_per_sequence: pages,
        };
        let row = || device.buffer(Element::F32, chunk.heads * HEAD_DIM);
        let (q, out) = (row()?, row()?);
        let mut each = Vec::new();
        for dtype in KvDType::ALL {
            let cache = device.kv_cache(KvShape {
                layers: chunk.layers_of_one_row.max(LAYERS_MIN),
                kv_heads: chunk.kv_heads,
                head_dim: HEAD_DIM,
                page_tokens: PAGE_TOKENS,
                pages,
                dtype,
            })?;
            for page in 0..pages {
                stream.clear_kv(&cache, page)?;
            }
            let attention = |layer: usize| Op::Attention {
                q: q.clone(),
                kv: cache.clone(),
                layer,
                batch: batch.clone(),
                out: out.clone(),
                heads: chunk.heads,
                scale: 0.1,
                window: None,
            };
            let ops = (0..cache.shape.layers).map(attention).collect();
            let program = device.compile(Recording { ops })?;
            each.push(TypeBench { cache, program, deep_s: Vec::new(), shallow_s: Vec::new() });
        }
        let mut bench = Self { stream, positions, each };
        // The first run may compile kernels.
        bench.behind(DEPTH - 1)?;
        for of in &bench.each {
            seconds(&mut *bench.stream, &*of.program, 1)?;
        }
        Ok(bench)
    }

    /// Reads all keys and values once; to be called after all weights of a step have been read.
    pub(super) fn cold(&mut self, evictor: &mut Evictor<'_>) -> Result<(), CalibrationError> {
        self.behind(DEPTH - 1)?;
        evictor.evict_kv(self.each.iter().map(|of| &of.cache))?;
        for of in &mut self.each {
            of.deep_s.push(seconds(&mut *self.stream, &*of.program, 1)?);
        }
        self.behind(0)?;
        for of in &mut self.each {
            of.shallow_s.push(seconds(&mut *self.stream, &*of.program, 1)?);
        }
        Ok(())
    }

    /// The rates, of a device whose sustained pass takes so many passes.
    pub(super) fn rates(self, loss: f64) -> KvRates {
        let [f32, f16, q8] = std::array::from_fn(|at| self.each.get(at).map_or(0.0, |of| of.rate(loss)));
        KvRates { f32, f16, q8 }
    }

    /// Puts the row behind so many tokens.
    fn behind(&mut self, tokens: usize) -> Result<(), CalibrationError> {
        self.stream.upload_u32(&self.positions, 0, &[tokens as u32])?;
        Ok(self.stream.synchronize(DEADLINE)?)
    }
}

impl TypeBench {
    fn rate(&self, loss: f64) -> f64 {
        let KvShape { layers, kv_heads, dtype, .. } = self.cache.shape;
        let token_bytes = 2 * layers * kv_heads * dtype.row_bytes(HEAD_DIM);
        rate((DEPTH - 1) * token_bytes, median(self.deep_s.clone()), median(self.shallow_s.clone())) / loss
    }
}

/// Of so many bytes. A difference that noise has made too small, or negative, counts as a part of the whole.
fn rate(bytes: usize, deep_s: f64, shallow_s: f64) -> f64 {
    bytes as f64 / (deep_s - shallow_s).max(deep_s / 20.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_costs_whatever_it_reads_is_in_no_rate() {
        assert!((rate(8 << 20, 1.05e-3, 0.05e-3) / 8.388_608e9 - 1.0).abs() < 1e-9);
        assert!((rate(1000, 1e-3, 2e-3) / 2e7 - 1.0).abs() < 1e-9, "what noise has turned around");
    }
}
