//! The weights of a shard on their device.

use std::collections::BTreeMap;

use exo_backend::{Device, Weight};
use exo_formats::{ModelConfig, TensorName};
use exo_models::{Block, HeadWeights, LayerWeights, ShardWeights, rope_frequencies};
use exo_types::{Shard, TensorView};

use crate::{LoadError, LoadProgress};

/// The weights of a shard, resident for its life.
pub(crate) struct ResidentWeights {
    pub(crate) of_shard: ShardWeights,
    /// Those that may still be on their way to the device's memory.
    waiting: Vec<Weight>,
    /// Device memory of all of them.
    pub(crate) bytes: u64,
}

impl ResidentWeights {
    pub(crate) fn load(
        device: &dyn Device,
        config: &ModelConfig,
        block: &Block,
        shard: &Shard,
        tensors: Vec<(TensorName, TensorView)>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let bytes_total = tensors.iter().map(|(_, view)| view.range.len() as u64).sum();
        let (mut bytes_done, mut loaded) = (0, BTreeMap::new());
        progress(LoadProgress { bytes_done, bytes_total });
        for (name, view) in tensors {
            loaded.insert(name, device.weight(&view)?);
            bytes_done += view.range.len() as u64;
            progress(LoadProgress { bytes_done, bytes_total });
        }
        let rope_frequencies = device.weight(&rope_frequencies(config))?;
        let bytes = loaded.values().chain([&rope_frequencies]).map(|w| w.footprint_bytes).sum();
        let waiting = loaded.values().filter(|w| w.unpacked_bytes() > 0).cloned().collect();
        let layers = shard.layers.iter().map(|layer| {
            LayerWeights::collect(block, |t| loaded.get(&TensorName::Layer(layer, t)).cloned())
                .map_err(|t| missing(TensorName::Layer(layer, t)))
        });
        let layers = layers.collect::<Result<_, _>>()?;
        let need = |name| loaded.get(&name).cloned().ok_or_else(|| missing(name));
        let embedding = shard.embedding.then(|| need(TensorName::Embedding)).transpose()?;
        let output = if config.tied { TensorName::Embedding } else { TensorName::Head };
        let head = if shard.head {
            Some(HeadWeights { norm: need(TensorName::OutputNorm)?, output: need(output)? })
        } else {
            None
        };
        let of_shard = ShardWeights { layers, embedding, head, rope_frequencies };
        Ok(Self { of_shard, waiting, bytes })
    }

    /// Bytes that are still on their way to the device's memory.
    pub(crate) fn unpacked_bytes(&mut self) -> u64 {
        self.waiting.retain(|weight| weight.unpacked_bytes() > 0);
        self.waiting.iter().map(Weight::unpacked_bytes).sum()
    }
}

/// The error of a model that lacks a tensor of the shard.
pub(crate) fn missing(name: TensorName) -> LoadError {
    LoadError::MissingTensor { name: name.to_string() }
}
