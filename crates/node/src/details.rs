//! What lists show of a model, kept apart from the model: its vocabulary alone can take tens of megabytes, and a list
//! of models must not hold them all.

use std::collections::BTreeMap;

use exo_api::ModelTools;
use exo_formats::{Model, ModelKind};
use exo_tokenizer::calls::CallFormat;
use exo_tokenizer::{ChatTemplate, end_texts};
use exo_types::{Shard, printable};

use exo_accelerators::chain;

/// Longest text about a template, which is a stranger's.
const TEXT_CHARS_MAX: usize = 200;

/// The numbers of one model.
#[derive(Clone, Debug)]
pub struct Details {
    pub architecture: String,
    pub format: &'static str,
    /// Stored bytes by element type.
    pub dtypes: BTreeMap<String, u64>,
    pub weight_bytes: u64,
    /// Elements of all its tensors.
    pub parameters: u64,
    pub layers: u32,
    pub context_tokens_max: u32,
    /// Whether it brings a chat template.
    pub chat: bool,
    /// Whether that prints calls of tools.
    pub tools: ModelTools,
}

impl Details {
    /// Of an opened model.
    pub fn of(model: &Model) -> Self {
        Self {
            architecture: model.config.architecture.to_string(),
            format: match model.kind {
                ModelKind::Gguf => "gguf",
                ModelKind::HuggingFace => "safetensors",
            },
            dtypes: dtypes(model),
            weight_bytes: model.shape().weight_bytes(),
            parameters: parameters(model),
            layers: model.config.layers,
            context_tokens_max: model.config.context_tokens_max,
            chat: model.chat_template.is_some(),
            tools: tools(model),
        }
    }
}

/// What requests with tools will find, without the vocabulary that they build.
fn tools(model: &Model) -> ModelTools {
    let (bos, eos, ends) = end_texts(&model.tokenizer, &model.config.eos);
    let found = match &model.chat_template {
        Some(source) => ChatTemplate::new(source, bos.as_deref(), eos.as_deref())
            .map_err(|e| chain(&e))
            .and_then(|template| CallFormat::find(&template, &ends)),
        None => Err("the model has no chat template".to_owned()),
    };
    let shown = |text: String| printable(&text, TEXT_CHARS_MAX);
    match found {
        Ok(format) => ModelTools { usable: true, format: Some(shown(format.label())), reason: None },
        Err(reason) => ModelTools { usable: false, format: None, reason: Some(shown(reason)) },
    }
}

fn parameters(model: &Model) -> u64 {
    let tensors = model.tensors_of(&Shard::whole(model.config.layers)).into_iter();
    let elements =
        tensors.filter_map(|name| model.tensor(name).ok()).map(|view| view.rows.saturating_mul(view.cols));
    elements.fold(0, u64::saturating_add)
}

fn dtypes(model: &Model) -> BTreeMap<String, u64> {
    let whole = Shard::whole(model.config.layers);
    let mut bytes = BTreeMap::new();
    for name in model.tensors_of(&whole) {
        if let Ok(tensor) = model.tensor(name) {
            *bytes.entry(tensor.dtype.to_string()).or_default() += tensor.range.len() as u64;
        }
    }
    bytes
}
