//! What lists show of a model, kept apart from the model: its vocabulary alone can take tens of megabytes,
//! and a list of models must not hold them all.

use std::collections::BTreeMap;

use exo_api::ModelTools;
use exo_formats::{Model, ModelKind};
use exo_tokenizer::calls::CallFormat;
use exo_tokenizer::{CallFormatError, ChatTemplate, end_texts};
use exo_types::{Shard, clean_name, printable};
use serde::{Deserialize, Serialize};

use exo_accelerators::chain;

/// Longest text about a template, which is a stranger's.
const TEXT_CHARS_MAX: usize = 200;

/// Longest name of an architecture, a format or a type, in characters.
const NAME_CHARS_MAX: usize = 32;
/// Types of weights in one model; there are some forty.
const DTYPES_MAX: usize = 64;

/// The numbers of one model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Details {
    pub architecture: String,
    pub format: String,
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
    pub fn of(model: &Model) -> Self {
        Self {
            architecture: model.config.architecture.to_string(),
            format: match model.kind {
                ModelKind::Gguf => "gguf",
                ModelKind::HuggingFace => "safetensors",
            }
            .to_owned(),
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

/// What a member says of a model that it has. It is shown to people and clients; neither placing nor loading
/// looks at it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedDetails {
    pub details: Details,
    /// When it came to that member.
    pub added_unix_s: u64,
}

impl SharedDetails {
    /// Of another's words what may be shown.
    pub fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut told: Self = serde_json::from_slice(bytes)?;
        let Details { architecture, format, dtypes, tools, .. } = &mut told.details;
        for name in [architecture, format] {
            *name = clean_name(name, NAME_CHARS_MAX);
        }
        let names = std::mem::take(dtypes).into_iter().take(DTYPES_MAX);
        *dtypes = names.map(|(name, bytes)| (clean_name(&name, NAME_CHARS_MAX), bytes)).collect();
        for text in [&mut tools.format, &mut tools.reason].into_iter().flatten() {
            *text = clean_name(text, TEXT_CHARS_MAX);
        }
        Ok(told)
    }
}

/// What requests with tools will find, without the vocabulary that they build.
fn tools(model: &Model) -> ModelTools {
    let (bos, eos, ends) = end_texts(&model.tokenizer, &model.config.eos);
    let found = match &model.chat_template {
        Some(source) => ChatTemplate::new(source, bos.as_deref(), eos.as_deref())
            .map_err(CallFormatError::from)
            .and_then(|template| CallFormat::find(&template, &ends)),
        None => Err(CallFormatError::NoTemplate),
    };
    let shown = |text: String| printable(&text, TEXT_CHARS_MAX);
    match found {
        Ok(format) => ModelTools { usable: true, format: Some(shown(format.label())), reason: None },
        Err(error) => ModelTools { usable: false, format: None, reason: Some(shown(chain(&error))) },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_of_a_model_is_made_fit_to_be_shown() {
        let hostile = "\u{1b}[2Jx".repeat(500);
        let details = Details {
            architecture: hostile.clone(),
            format: "gguf".to_owned(),
            dtypes: (0..200).map(|n| (format!("{n}{hostile}"), n)).collect(),
            weight_bytes: 1,
            parameters: u64::MAX,
            layers: 2,
            context_tokens_max: 3,
            chat: true,
            tools: ModelTools { usable: false, format: None, reason: Some(hostile) },
        };
        let bytes = serde_json::to_vec(&SharedDetails { details, added_unix_s: 7 }).unwrap();
        let told = SharedDetails::read(&bytes).unwrap();
        let Details { architecture, dtypes, tools, parameters, .. } = told.details;
        assert_eq!((told.added_unix_s, parameters, dtypes.len()), (7, u64::MAX, DTYPES_MAX));
        let reason = tools.reason.unwrap();
        assert_eq!(reason.chars().count(), TEXT_CHARS_MAX);
        assert!(dtypes.keys().chain([&architecture, &reason]).all(|text| !text.contains('\u{1b}')));
        assert!(SharedDetails::read(b"{}").is_err());
    }
}
