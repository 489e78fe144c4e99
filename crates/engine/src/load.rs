//! From a model file to an engine: checks, weights, cache, buffers, programs. In that order, so that what
//! cannot work is refused before memory is taken, and what fails later frees what was taken by dropping it.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_backend::{Alone, Device, KvShape, Residence, Support};
use exo_formats::{Model, ModelConfig, TensorName};
use exo_models::{
    StepBuffers, StepLimits, block, op_on, record_head, record_layers, record_norm, tensor_shape,
};
use exo_types::{DRAFTS_MAX, Shard, TensorView};

use crate::host_batch::HostBatch;
use crate::pages::PagePool;
use crate::weights::{ResidentWeights, missing};
use crate::{Engine, EngineOptions, LoadError, LoadProgress};

/// Rows whose logits are computed at once beyond one per slot: the drafts of one sequence take no second pass
/// over the head, and a large vocabulary (150,000 tokens) costs 10 MB.
const LOGIT_ROWS_MORE: u32 = DRAFTS_MAX;
/// Half of the least that graphics processors let a kernel see at once. Weights and caches beyond that are
/// split by the device, a buffer is not.
const LOGIT_BYTES_MAX: u32 = 64 << 20;

/// Largest value of an option; bounds every product of two of them far below 2^64.
const OPTION_MAX: u64 = 1 << 24;

impl Engine {
    /// Takes the tensors of `shard`, and only those, to `device` and prepares the steps. `progress` is called
    /// after each tensor.
    pub fn load(
        device: Arc<dyn Device>,
        model: &Model,
        shard: Shard,
        options: EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let config = model.config.clone();
        let block = block(&config)?;
        check_shard(&shard, config.layers)?;
        check_options(&options, &config)?;
        let tensors = tensors_of(model, &shard)?;
        check_tensors(device.as_ref(), &config, &tensors)?;

        let weights = ResidentWeights::load(device.as_ref(), &config, &block, &shard, tensors, progress)?;
        let kv = device.kv_cache(kv_shape(&config, &shard, &options))?;
        let limits = step_limits(&options, config.vocab);
        let buffers = StepBuffers::allocate(device.as_ref(), &config, &shard, limits)?;
        let layers = record_layers(&config, &block, &shard, &weights.of_shard, &buffers, &kv, &Alone);
        let layers = device.compile(layers)?;
        let head = || device.compile(record_head(&config, &weights.of_shard, &buffers));
        let head = shard.head.then(head).transpose()?;
        let norm = || device.compile(record_norm(&config, &weights.of_shard, &buffers));
        let norm = shard.head.then(norm).transpose()?;
        let stream = device.stream()?;
        report_loaded(device.as_ref(), &shard, weights.bytes);
        let (pages, host) = (PagePool::new(kv.shape.pages as u32), HostBatch::default());
        let sequences = BTreeMap::new();
        Ok(Self {
            config,
            shard,
            options,
            weights,
            buffers,
            kv,
            layers,
            head,
            norm,
            stream,
            pages,
            sequences,
            host,
            steps: 0,
            tokens: 0,
            logit_rows_read: 0,
            start_constraint: None,
            device,
        })
    }
}

/// Says what was loaded and where the device's weights lie now, those of other shards included.
fn report_loaded(device: &dyn Device, shard: &Shard, bytes: u64) {
    let Residence { copied_bytes, mapped_bytes, repacking_bytes, huge_page_bytes, mapped_because } =
        device.residence();
    tracing::info!(
        target: "events::shard", layers = %shard.layers, bytes, copied_bytes, mapped_bytes, repacking_bytes,
        huge_page_bytes, "loaded"
    );
    if let Some(reason) = mapped_because {
        tracing::warn!(mapped_bytes, reason, "weights are read from their file, which is slower");
    }
}

fn check_shard(shard: &Shard, layer_count: u32) -> Result<(), LoadError> {
    let refuse = |reason| Err(LoadError::Shard { shard: *shard, layer_count, reason });
    if shard.layers.is_empty() {
        return refuse("it has no layers");
    }
    if shard.layers.end > layer_count {
        return refuse("it has layers beyond the model");
    }
    // Between the layers of two stages nothing but hidden rows can travel.
    if shard.embedding != (shard.layers.start == 0) {
        return refuse("the embedding belongs to the stage with the first layer");
    }
    if shard.head != (shard.layers.end == layer_count) {
        return refuse("the head belongs to the stage with the last layer");
    }
    Ok(())
}

fn check_options(options: &EngineOptions, config: &ModelConfig) -> Result<(), LoadError> {
    let ranges = [
        ("context_tokens", options.context_tokens, u64::from(config.context_tokens_max).min(OPTION_MAX)),
        ("slots", options.slots, 1 << 16),
        ("chunk_tokens_max", options.chunk_tokens_max, 1 << 16),
        ("page_tokens", options.page_tokens, 1 << 16),
    ];
    for (name, value, max) in ranges {
        let (value, min) = (u64::from(value), 1);
        if !(min..=max).contains(&value) {
            return Err(LoadError::Option { name, value, min, max });
        }
    }
    // Page numbers are 32 bits wide, and a sequence may fill its context.
    let (value, min, max) = (options.pages(), u64::from(options.pages_per_sequence()), u64::from(u32::MAX));
    if !(min..=max).contains(&value) {
        return Err(LoadError::Option { name: "pages", value, min, max });
    }
    Ok(())
}

fn tensors_of(model: &Model, shard: &Shard) -> Result<Vec<(TensorName, TensorView)>, LoadError> {
    let names = model.tensors_of(shard).into_iter();
    names.map(|name| model.tensor(name).map(|view| (name, view)).map_err(|_| missing(name))).collect()
}

/// What the device is asked to do with each tensor must be something it can, and shapes must be the
/// configured ones: a device takes contradictions for our mistake.
fn check_tensors(
    device: &dyn Device,
    config: &ModelConfig,
    tensors: &[(TensorName, TensorView)],
) -> Result<(), LoadError> {
    for (name, view) in tensors {
        let (expected_rows, expected_cols) = tensor_shape(config, *name);
        if (view.rows, view.cols) != (expected_rows, expected_cols) {
            let (name, rows, cols) = (view.name.clone(), view.rows, view.cols);
            return Err(LoadError::TensorShape { name, rows, cols, expected_rows, expected_cols });
        }
        if let Some(op) = op_on(*name)
            && device.supports_op(op, Some(view.dtype)) == Support::Unsupported
        {
            return Err(LoadError::Unsupported { name: view.name.clone(), dtype: view.dtype, op });
        }
    }
    Ok(())
}

fn kv_shape(config: &ModelConfig, shard: &Shard, options: &EngineOptions) -> KvShape {
    KvShape {
        layers: shard.layers.len() as usize,
        kv_heads: config.kv_heads as usize,
        head_dim: config.head_dim as usize,
        page_tokens: options.page_tokens as usize,
        pages: options.pages() as usize,
        dtype: options.kv_dtype,
    }
}

/// Rows of logits that are computed at once at most; the head runs again for more.
fn logit_rows_max(vocab: u32) -> u32 {
    (LOGIT_BYTES_MAX / 4 / vocab.max(1)).max(1)
}

fn step_limits(options: &EngineOptions, vocab: u32) -> StepLimits {
    let EngineOptions { slots, chunk_tokens_max, .. } = *options;
    StepLimits {
        tokens: chunk_tokens_max as usize,
        // Every sequence of a step has at least one token.
        sequences: slots.min(chunk_tokens_max) as usize,
        selected: (slots + LOGIT_ROWS_MORE).min(chunk_tokens_max).min(logit_rows_max(vocab)) as usize,
        pages_per_sequence: options.pages_per_sequence() as usize,
    }
}
