//! Which tensor gets which type: llama.cpp's rules for the architectures we run, from its `llama-quant.cpp`.
//!
//! The head (or the embedding table that serves as one) decides every token and gets six bits. In the `_M`
//! mixes so do the values and the second feed-forward matrix of an eighth of the layers at either end and
//! every third between.

use exo_formats::{Architecture, LayerTensor, ModelConfig, TensorName};
use exo_types::DType;

use crate::Target;

/// The type that a file of type `target` gives the matrix `name` with rows of `cols` elements.
pub fn matrix_type(target: Target, config: &ModelConfig, name: TensorName, cols: u64) -> DType {
    if !target.dtype().is_quantised() {
        return target.dtype();
    }
    that_fits(wanted(target, config, name, cols), cols)
}

fn wanted(target: Target, config: &ModelConfig, name: TensorName, cols: u64) -> DType {
    let usual = target.dtype();
    let is_mix = matches!(target, Target::Q4_K_M | Target::Q5_K_M);
    match name {
        TensorName::Head => head(usual, cols),
        TensorName::Embedding if config.tied => head(usual, cols),
        TensorName::Layer(i, LayerTensor::V | LayerTensor::Down)
            if is_mix && has_more_bits(i, config.layers) =>
        {
            DType::Q6_K
        }
        // Few heads of values serve many queries, so the bits cost little there.
        TensorName::Layer(_, LayerTensor::V) if usual == DType::Q4_K && is_70b(config) => DType::Q5_K,
        _ => usual,
    }
}

fn head(usual: DType, cols: u64) -> DType {
    match usual {
        DType::Q8_0 => DType::Q8_0,
        _ if !cols.is_multiple_of(usual.block_elements()) => DType::Q8_0,
        _ => DType::Q6_K,
    }
}

fn has_more_bits(layer: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// llama.cpp knows these by their number of layers.
fn is_70b(config: &ModelConfig) -> bool {
    config.layers == 80 && config.architecture != Architecture::Qwen3
}

/// `dtype`, or what stands in for it where rows do not fill its blocks.
fn that_fits(dtype: DType, cols: u64) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_elements());
    if fits(dtype) {
        return dtype;
    }
    let smaller = match dtype {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        other => other,
    };
    if fits(smaller) { smaller } else { DType::F16 }
}

#[cfg(test)]
pub(crate) mod tests {
    use exo_formats::{RopeConfig, RopeStyle};

    use super::*;

    pub(crate) fn config(layers: u32, tied: bool) -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Llama,
            layers,
            hidden: 256,
            ffn: 512,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            vocab: 1000,
            context_tokens_max: 512,
            rms_eps: 1e-5,
            rope: RopeConfig { style: RopeStyle::Interleaved, frequencies: Vec::new(), theta: 1e4 },
            sliding_window: None,
            qk_norm: false,
            qkv_bias: false,
            tied,
            bos: None,
            eos: Vec::new(),
        }
    }

    /// The types of a tensor's layers, one letter each: what `llama-quantize` printed for such a model.
    fn layers(target: Target, config: &ModelConfig, tensor: LayerTensor, cols: u64) -> String {
        let dtype = |i| matrix_type(target, config, TensorName::Layer(i, tensor), cols);
        (0..config.layers).map(|i| dtype(i).to_string().chars().nth(1).unwrap_or('?')).collect()
    }

    #[test]
    fn some_layers_of_a_mix_have_six_bits() {
        let config = config(16, false);
        assert_eq!(layers(Target::Q4_K_M, &config, LayerTensor::V, 256), "6644644644644666");
        assert_eq!(layers(Target::Q5_K_M, &config, LayerTensor::Down, 512), "6655655655655666");
        assert_eq!(layers(Target::Q4_K_M, &config, LayerTensor::Q, 256), "4".repeat(16));
        assert_eq!(layers(Target::Q4_0, &config, LayerTensor::V, 256), "4".repeat(16));
    }

    #[test]
    fn the_head_has_six_bits_at_least_and_a_table_only_if_it_is_the_head() {
        let of = |target, tied, name| matrix_type(target, &config(8, tied), name, 256);
        for target in [Target::Q4_0, Target::Q4_K_M, Target::Q6_K] {
            assert_eq!(of(target, false, TensorName::Head), DType::Q6_K);
            assert_eq!(of(target, true, TensorName::Embedding), DType::Q6_K);
        }
        assert_eq!(of(Target::Q4_0, false, TensorName::Embedding), DType::Q4_0);
        assert_eq!(of(Target::Q8_0, false, TensorName::Head), DType::Q8_0);
        assert_eq!(of(Target::F16, false, TensorName::Head), DType::F16);
    }

    #[test]
    fn rows_that_fill_no_block_get_what_llama_cpp_gives_them() {
        let config = config(8, false);
        let of = |target, name, cols| matrix_type(target, &config, name, cols);
        let q = TensorName::Layer(3, LayerTensor::Q);
        let first_down = TensorName::Layer(0, LayerTensor::Down);
        assert_eq!(of(Target::Q4_K_M, q, 96), DType::Q5_0);
        assert_eq!(of(Target::Q5_K_M, q, 96), DType::Q5_1);
        assert_eq!(of(Target::Q6_K, q, 96), DType::Q8_0);
        assert_eq!(of(Target::Q4_K_M, first_down, 96), DType::Q8_0);
        assert_eq!(of(Target::Q4_0, TensorName::Head, 96), DType::Q8_0);
        assert_eq!(of(Target::Q4_K_M, TensorName::Head, 96), DType::Q8_0);
        for target in [Target::Q8_0, Target::Q4_0, Target::Q4_K_M] {
            assert_eq!(of(target, q, 40), DType::F16);
        }
    }
}
