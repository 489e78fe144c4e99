//! A model of random weights in a given shape: what a machine does with a model follows from shapes and types
//! alone.
//!
//! For each type a pattern of about a million normal numbers goes through the quantiser that `exo quantize`
//! uses, so that blocks and scales are those of a real file. The pattern, of a prime number of blocks, is
//! repeated to the length of the type's largest tensor, and each tensor is a piece of that from a place of
//! its own. The device holds every tensor for itself; this process holds one tensor of each type.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;
use exo_backend::CancelToken;
use exo_formats::{Model, ModelConfig, TensorName};
use exo_node::described::{self, DescribedTensor};
use exo_planner::WeightTypes;
use exo_quant::Target;
use exo_types::{DType, KvDType, ModelShape, TensorView};

use crate::shapes::Shape;
use crate::ui;

/// Blocks of 256 elements in a pattern: a prime, so that rows of a matrix differ until this many have passed.
const PATTERN_BLOCKS: u64 = 4099;
const BLOCK_ELEMENTS: u64 = 256;
/// Bytes copied between two looks at the token and the bar.
const PIECE_BYTES: usize = 16 << 20;

/// What will be made: every tensor with its type.
pub struct Synthetic {
    name: String,
    seed: u64,
    config: ModelConfig,
    tensors: Vec<DescribedTensor>,
}

impl Synthetic {
    pub fn new(shape: &Shape, stored: Target, seed: u64) -> Self {
        let config = shape.config();
        let tensors = described::tensors(&config, stored);
        Self { name: format!("{} (random)", shape.name), seed, config, tensors }
    }

    /// Bytes of all weights, as a file would store them.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(DescribedTensor::bytes).sum()
    }

    /// Bytes of all weights in a processor's memory.
    pub fn packed_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| exo_backend_cpu::weight_bytes(t.dtype, t.rows, t.cols)).sum()
    }

    /// Bytes of this process while the model lives.
    pub fn pool_bytes(&self) -> u64 {
        self.pools().values().map(|pool| pool.bytes).sum()
    }

    /// Bytes of the keys and values of `streams` sequences of `context` tokens.
    pub fn kv_bytes(&self, kv: KvDType, context: u32, streams: u32) -> u64 {
        let c = &self.config;
        let token =
            2 * u64::from(c.layers) * u64::from(c.kv_heads) * kv.row_bytes(c.head_dim as usize) as u64;
        token * u64::from(context) * u64::from(streams)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model in numbers, and its bytes by type, without making it.
    pub fn described(&self, kv: KvDType) -> (ModelShape, WeightTypes) {
        described::shape(&self.config, &self.tensors, kv)
    }

    pub fn context_tokens_max(&self) -> u32 {
        self.config.context_tokens_max
    }

    /// Makes the weights, with a bar on a terminal.
    pub fn make(&self, cancel: &CancelToken) -> anyhow::Result<Made> {
        let pools = self.pools();
        let bar = ui::bar(self.pool_bytes(), "making weights {bar:30} {bytes}/{total_bytes}");
        let mut sources: BTreeMap<PoolKey, Arc<Vec<u8>>> = BTreeMap::new();
        for (key, pool) in &pools {
            let pattern = self.pattern(*key, pool.elements);
            let mut bytes: Vec<u8> = Vec::new();
            bytes.try_reserve_exact(pool.bytes as usize)?;
            while (bytes.len() as u64) < pool.bytes {
                if cancel.is_cancelled() {
                    bail!("interrupted while weights were made");
                }
                let piece = pattern.repeat((PIECE_BYTES / pattern.len()).max(1));
                let left = pool.bytes as usize - bytes.len();
                bytes.extend_from_slice(&piece[..left.min(piece.len())]);
                bar.set_position(bar.position() + left.min(piece.len()) as u64);
            }
            sources.insert(*key, Arc::new(bytes));
        }
        bar.finish_and_clear();
        let views = self.tensors.iter().enumerate().map(|(index, tensor)| {
            let (key, bytes) = (PoolKey::of(tensor), tensor.bytes() as usize);
            let pool = &pools[&key];
            // A place of its own, at a whole block.
            let block = mixed(self.seed ^ (index as u64 + 1)) % (pool.elements / BLOCK_ELEMENTS);
            let at = block_bytes(key.dtype, block * BLOCK_ELEMENTS) as usize;
            let view = TensorView {
                name: tensor.name.to_gguf(),
                dtype: tensor.dtype,
                rows: tensor.rows,
                cols: tensor.cols,
                source: sources[&key].clone(),
                range: at..at + bytes,
            };
            (tensor.name, view)
        });
        Ok(Made { name: self.name.clone(), config: self.config.clone(), tensors: views.collect() })
    }

    /// What must be made of each type.
    fn pools(&self) -> BTreeMap<PoolKey, Pool> {
        let mut pools: BTreeMap<PoolKey, Pool> = BTreeMap::new();
        for tensor in &self.tensors {
            let elements = (tensor.rows * tensor.cols).next_multiple_of(BLOCK_ELEMENTS);
            let pattern = elements.min(PATTERN_BLOCKS * BLOCK_ELEMENTS);
            let pool = pools.entry(PoolKey::of(tensor)).or_default();
            pool.elements = pool.elements.max(pattern);
            pool.largest = pool.largest.max(tensor.bytes());
            pool.bytes = pool.largest + block_bytes(tensor.dtype, pool.elements);
        }
        pools
    }

    /// Normal numbers as a tensor of the type stores them. Matrices keep the size of what they multiply;
    /// norms are about 1.
    fn pattern(&self, key: PoolKey, elements: u64) -> Vec<u8> {
        let deviation = if key.is_vector { 0.1 } else { f64::from(self.config.hidden).powf(-0.5) };
        let mean = if key.is_vector { 1.0 } else { 0.0 };
        let mut state = mixed(self.seed.wrapping_mul(31).wrapping_add(key.dtype as u64));
        let mut uniform = || {
            state = mixed(state);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        // Box and Muller 1958, doi:10.1214/aoms/1177706645.
        let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let numbers: Vec<f32> = (0..elements).map(|_| (mean + deviation * normal()) as f32).collect();
        let mut bytes = Vec::new();
        exo_quant::quantise_row(key.dtype, &numbers, &mut bytes);
        bytes
    }
}

/// Tensors with the same key are pieces of one pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PoolKey {
    dtype: DType,
    is_vector: bool,
}

impl PoolKey {
    fn of(tensor: &DescribedTensor) -> Self {
        Self { dtype: tensor.dtype, is_vector: tensor.rows == 1 }
    }
}

#[derive(Default)]
struct Pool {
    /// Of the pattern.
    elements: u64,
    /// Of the largest tensor.
    largest: u64,
    bytes: u64,
}

/// Bytes of a multiple of 256 elements.
fn block_bytes(dtype: DType, elements: u64) -> u64 {
    dtype.bytes_of(elements).expect("256 elements are whole blocks of every type")
}

/// Weights that were made; every [`Made::model`] is the same.
pub struct Made {
    name: String,
    config: ModelConfig,
    tensors: Vec<(TensorName, TensorView)>,
}

impl Made {
    pub fn model(&self) -> Model {
        Model::in_memory(&self.name, self.config.clone(), self.tensors.clone())
    }
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Made({}, {} tensors)", self.name, self.tensors.len())
    }
}

/// A step of splitmix64. Source: Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195.
fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use exo_formats::LayerTensor;

    use super::*;

    #[test]
    fn what_is_described_is_what_is_made() {
        for (name, stored) in [("tiny-llama", Target::Q4_K_M), ("tiny-qwen3", Target::Q8_0)] {
            let (shape, types) =
                Synthetic::new(&Shape::find(name).unwrap(), stored, 1).described(KvDType::default());
            let model = made(name, stored, 1);
            assert_eq!(shape, model.shape_packed(KvDType::default(), &exo_backend_cpu::weight_bytes));
            assert!(types.are_of(&shape), "{types:?}");
        }
    }

    fn made(name: &str, stored: Target, seed: u64) -> Model {
        let shape = Shape::find(name).unwrap();
        Synthetic::new(&shape, stored, seed).make(&CancelToken::default()).unwrap().model()
    }

    #[test]
    fn weights_of_every_type_are_normal_numbers_of_the_shapes_width() {
        for stored in Target::ALL {
            let model = made("tiny-llama", stored, 1);
            for name in [TensorName::Head, TensorName::Layer(3, LayerTensor::Down)] {
                let view = model.tensor(name).unwrap();
                let row = &view.bytes()[..view.row_bytes()];
                let mut numbers = vec![0.0; view.cols as usize];
                exo_backend_cpu::quant::dequantise_row(view.dtype, row, &mut numbers);
                let squares: f32 = numbers.iter().map(|n| n * n).sum();
                let deviation = (squares / numbers.len() as f32).sqrt() * (512f32).sqrt();
                assert!((0.85..1.15).contains(&deviation), "{stored} {name}: {deviation}");
            }
        }
    }

    #[test]
    fn tensors_and_seeds_differ_and_a_seed_is_one_model() {
        let tensor = |model: &Model, layer| {
            model.tensor(TensorName::Layer(layer, LayerTensor::Q)).unwrap().bytes().to_vec()
        };
        let (one, again, other) = (
            made("tiny-qwen3", Target::Q4_K_M, 1),
            made("tiny-qwen3", Target::Q4_K_M, 1),
            made("tiny-qwen3", Target::Q4_K_M, 2),
        );
        assert_eq!(tensor(&one, 0), tensor(&again, 0));
        assert_ne!(tensor(&one, 0), tensor(&one, 1));
        assert_ne!(tensor(&one, 0), tensor(&other, 0));
    }

    #[test]
    fn sizes_are_those_of_the_models() {
        let bytes =
            |name, stored| Synthetic::new(&Shape::find(name).unwrap(), stored, 1).weight_bytes() as f64;
        // Parameters of the published models; 16 and 8.5 bits each.
        for (name, parameters) in [
            ("llama-8b", 8.03e9),
            ("llama-3.2-1b", 1.236e9),
            ("qwen3-0.6b", 0.596e9),
            ("qwen3-8b", 8.19e9),
            ("llama-70b", 70.55e9),
        ] {
            for (stored, bits) in [(Target::F16, 16.0), (Target::Q8_0, 8.5)] {
                let ratio = bytes(name, stored) / (parameters * bits / 8.0);
                assert!((ratio - 1.0).abs() < 0.003, "{name} {stored}: {ratio}");
            }
        }
        let shape = Shape::find("llama-8b").unwrap();
        let synthetic = Synthetic::new(&shape, Target::Q8_0, 1);
        // One embedding table and a pattern, not the model; 128 KiB of keys and values a token.
        assert!(synthetic.pool_bytes() < 600 << 20);
        assert_eq!(synthetic.kv_bytes(KvDType::F16, 100, 2), 200 * (128 << 10));
        // A processor's groups of Q4_K hold scales that the file has in six bits.
        let q4 = Synthetic::new(&shape, Target::Q4_K_M, 1);
        let more = q4.packed_bytes() as f64 / q4.weight_bytes() as f64;
        assert!((1.01..1.1).contains(&more), "{more}");
    }
}
