//! Shapes of well-known models, for measurements without a file.

use exo_formats::{Architecture, ModelConfig};
use exo_node::fits::ModelNumbers;

/// A model in numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    pub name: &'static str,
    numbers: ModelNumbers,
}

const fn llama(name: &'static str, tied: bool, numbers: [u32; 7]) -> Shape {
    Shape { name, numbers: ModelNumbers::llama(numbers, tied) }
}

const fn qwen3(name: &'static str, tied: bool, numbers: [u32; 7]) -> Shape {
    let Shape { name, numbers } = llama(name, tied, numbers);
    let (architecture, rope_theta, context_tokens_max) = (Architecture::Qwen3, 1_000_000.0, 40_960);
    Shape { name, numbers: ModelNumbers { architecture, rope_theta, context_tokens_max, ..numbers } }
}

/// Layers, hidden width, feed-forward width, heads, key-value heads, head size, vocabulary: from the models'
/// `config.json`. The two tiny ones are nobody's; they are for tests.
pub const SHAPES: [Shape; 7] = [
    llama("tiny-llama", false, [8, 512, 1280, 8, 4, 64, 4096]),
    qwen3("tiny-qwen3", true, [4, 256, 768, 4, 2, 128, 4096]),
    qwen3("qwen3-0.6b", true, [28, 1024, 3072, 16, 8, 128, 151_936]),
    llama("llama-3.2-1b", true, [16, 2048, 8192, 32, 8, 64, 128_256]),
    qwen3("qwen3-8b", false, [36, 4096, 12_288, 32, 8, 128, 151_936]),
    llama("llama-8b", false, [32, 4096, 14_336, 32, 8, 128, 128_256]),
    llama("llama-70b", false, [80, 8192, 28_672, 64, 8, 128, 128_256]),
];

impl Shape {
    /// The shape called `name`.
    pub fn find(name: &str) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// As a model's file would describe it.
    pub fn config(&self) -> ModelConfig {
        self.numbers.config()
    }
}
