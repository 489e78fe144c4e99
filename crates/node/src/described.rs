//! A model by its description and a type of file, without a file: what each tensor would be, and what the
//! planner needs of them.

use exo_formats::{LayerTensor, ModelConfig, TensorName};
use exo_quant::Target;
use exo_types::{DType, KvDType, LayerShape, ModelShape, TypeBytes, WeightTypes};

/// A tensor as a file would store it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescribedTensor {
    /// The name.
    pub name: TensorName,
    /// How elements are stored.
    pub dtype: DType,
    /// Number of outputs.
    pub rows: u64,
    /// Number of inputs.
    pub cols: u64,
}

impl DescribedTensor {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        let row = self.dtype.bytes_of(self.cols).expect("the mix chose a type that fits the rows");
        self.rows * row
    }
}

/// Every tensor of a model in a file of type `stored`, as `exo quantize` would choose its types.
pub fn tensors(config: &ModelConfig, stored: Target) -> Vec<DescribedTensor> {
    let mut names = vec![TensorName::Embedding, TensorName::OutputNorm];
    names.extend((!config.tied).then_some(TensorName::Head));
    for layer in 0..config.layers {
        let has = |tensor: &LayerTensor| match tensor {
            LayerTensor::QBias | LayerTensor::KBias | LayerTensor::VBias => config.qkv_bias,
            LayerTensor::QNorm | LayerTensor::KNorm => config.qk_norm,
            _ => true,
        };
        names.extend(LayerTensor::ALL.into_iter().filter(has).map(|t| TensorName::Layer(layer, t)));
    }
    let tensor = |name| {
        let (rows, cols) = exo_engine::tensor_shape(config, name);
        let dtype = if rows > 1 { exo_quant::matrix_type(stored, config, name, cols) } else { DType::F32 };
        DescribedTensor { name, dtype, rows, cols }
    };
    names.into_iter().map(tensor).collect()
}

/// The model in numbers, and its bytes by type.
pub fn shape(config: &ModelConfig, tensors: &[DescribedTensor], kv: KvDType) -> (ModelShape, WeightTypes) {
    let of =
        |wanted: &dyn Fn(TensorName) -> bool| tensors.iter().filter(|t| wanted(t.name)).collect::<Vec<_>>();
    let stored = |tensors: &[&DescribedTensor]| tensors.iter().map(|t| t.bytes()).sum::<u64>();
    let packed = |tensors: &[&DescribedTensor]| {
        tensors.iter().map(|t| exo_backend_cpu::weight_bytes(t.dtype, t.rows, t.cols)).sum::<u64>()
    };
    let types =
        |tensors: &[&DescribedTensor]| tensors.iter().map(|t| (t.dtype, t.bytes())).collect::<TypeBytes>();
    let head_name = if config.tied { TensorName::Embedding } else { TensorName::Head };
    let embedding = of(&|name| name == TensorName::Embedding);
    let head = of(&|name| name == TensorName::OutputNorm || name == head_name);
    let mut layers: Vec<Vec<&DescribedTensor>> = vec![Vec::new(); config.layers as usize];
    for tensor in tensors {
        if let TensorName::Layer(at, _) = tensor.name
            && let Some(layer) = layers.get_mut(at as usize)
        {
            layer.push(tensor);
        }
    }
    let kv_bytes_per_token = 2 * u64::from(config.kv_heads) * kv.row_bytes(config.head_dim as usize) as u64;
    let layer = |tensors: &Vec<&DescribedTensor>| LayerShape {
        weight_bytes: stored(tensors),
        packed_bytes: packed(tensors),
        flops_per_token: tensors.iter().filter(|t| t.rows > 1).map(|t| 2 * t.rows * t.cols).sum(),
        kv_bytes_per_token,
    };
    let shape = ModelShape {
        layers: layers.iter().map(layer).collect(),
        embedding_bytes: stored(&embedding),
        head_bytes: stored(&head),
        embedding_packed_bytes: packed(&embedding),
        head_packed_bytes: packed(&head),
        tied: config.tied,
        hidden: config.hidden,
        attention: config.heads * config.head_dim,
        vocab: config.vocab,
        context_tokens_max: config.context_tokens_max,
    };
    let weight_types = WeightTypes { layers: layers.iter().map(|l| types(l)).collect(), head: types(&head) };
    let weight_types = embedding.iter().fold(weight_types, |all, tensor| all.with_embedding(tensor.dtype));
    (shape, weight_types)
}
