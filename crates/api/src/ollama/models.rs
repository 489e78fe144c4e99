//! Models, as `/api/tags`, `/api/ps` and `/api/show` tell of them, and the answers of `/api/pull` and
//! `/api/version`.

use chrono::{DateTime, SecondsFormat, Utc};
use exo_types::DeviceId;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::table::OLLAMA_VERSION;
use crate::tokens::Capabilities;
use crate::view::{ClusterView, InstanceState, ModelView, StageView};

/// What a person placed is not unloaded by itself; clients need a date.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// A list of models.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct OllamaModels {
    /// The models, sorted by name.
    pub models: Vec<OllamaModel>,
}

/// One model.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct OllamaModel {
    /// What to send as `model`.
    pub name: String,
    /// The model's name, the same as `name`.
    pub model: String,
    /// When its file was last changed, where that is known; of `/api/tags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<String>,
    /// Bytes of its weights.
    pub size: u64,
    /// Of these, bytes on other devices than processors; of `/api/ps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_vram: Option<u64>,
    /// The model's id in exo.
    pub digest: String,
    /// Format, family and size of the model.
    pub details: OllamaDetails,
    /// When it is unloaded if no request comes, as far as this machine knows of requests. Far away where a
    /// person placed it: that stays. Of `/api/ps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Tokens of the context that it is placed with; of `/api/ps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
}

/// More of a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct OllamaDetails {
    /// Always empty.
    pub parent_model: String,
    /// Format of the files: `gguf` or `safetensors`.
    pub format: String,
    /// Architecture of the model.
    pub family: String,
    /// Architecture of the model, as a list of one.
    pub families: Vec<String>,
    /// How many parameters it has: `8.0B`, `596.0M`; empty where that is not known.
    pub parameter_size: String,
    /// The type that most bytes have.
    pub quantization_level: String,
}

impl From<&ModelView> for OllamaDetails {
    fn from(view: &ModelView) -> Self {
        let most = view.dtypes.iter().max_by_key(|(_, bytes)| **bytes);
        Self {
            parent_model: String::new(),
            format: view.format.clone(),
            family: view.architecture.clone(),
            families: vec![view.architecture.clone()],
            parameter_size: parameter_size(view.parameters),
            quantization_level: most.map(|(name, _)| name.clone()).unwrap_or_default(),
        }
    }
}

fn parameter_size(parameters: u64) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")];
    match units.into_iter().find(|(unit, _)| parameters >= *unit) {
        Some((unit, name)) => format!("{:.1}{name}", parameters as f64 / unit as f64),
        None if parameters == 0 => String::new(),
        None => parameters.to_string(),
    }
}

/// The date of a model, where it is known.
fn modified_at(view: &ModelView) -> Option<String> {
    (view.added_unix_s > 0).then(|| date(view.added_unix_s))
}

fn date(unix_s: u64) -> String {
    let date = i64::try_from(unix_s).ok().and_then(|s| DateTime::<Utc>::from_timestamp(s, 0));
    date.unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl OllamaModel {
    fn new(view: &ModelView) -> Self {
        Self {
            name: view.request_name().to_owned(),
            model: view.request_name().to_owned(),
            modified_at: None,
            size: view.weight_bytes,
            size_vram: None,
            digest: view.id.clone(),
            details: view.into(),
            expires_at: None,
            context_length: None,
        }
    }
}

impl OllamaModels {
    /// All that can be asked for by name.
    pub fn known(models: &[ModelView]) -> Self {
        let model =
            |view: &ModelView| OllamaModel { modified_at: modified_at(view), ..OllamaModel::new(view) };
        Self { models: models.iter().filter(|view| !view.needs_id).map(model).collect() }
    }

    /// Those that are placed and have not failed.
    pub fn placed(cluster: &ClusterView, models: &[ModelView]) -> Self {
        let is_alive = |state: &InstanceState| !matches!(state, InstanceState::Failed { .. });
        let model = |instance: &crate::InstanceView| {
            let view = models.iter().find(|view| view.id == instance.model_id)?;
            Some(OllamaModel {
                size_vram: Some(accelerated_bytes(&instance.stages, view.weight_bytes)),
                expires_at: Some(view.unloads_unix_s.map_or_else(|| NEVER.to_owned(), date)),
                context_length: Some(instance.context_tokens),
                ..OllamaModel::new(view)
            })
        };
        let placed = cluster.instances.iter().filter(|instance| is_alive(&instance.state));
        Self { models: placed.filter_map(model).collect() }
    }
}

/// Of so many bytes of weights, those on graphics processors and cards: what no processor holds. So all are
/// where no stage is on one, also where `all_bytes` are those of a whole file. Where both ends of a model
/// hold one tensor, stages have more than its file.
fn accelerated_bytes(stages: &[StageView], all_bytes: u64) -> u64 {
    if stages.is_empty() {
        return 0;
    }
    let processor = DeviceId::cpu().0;
    let of_processors = stages.iter().filter(|stage| stage.device == processor);
    of_processors.fold(all_bytes, |left, stage| left.saturating_sub(stage.weight_bytes))
}

/// The answer of `/api/show`.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct OllamaShow {
    /// Format, family and size of the model.
    pub details: OllamaDetails,
    /// Name of the model and numbers of its architecture, by the keys of GGUF files.
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// `completion`, and `tools`, `thinking`, `insert` where template and vocabulary have a form for them.
    pub capabilities: Vec<String>,
    /// Licence of the model, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// When its file was last changed, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<String>,
}

impl OllamaShow {
    /// Of one model.
    pub fn new(view: &ModelView, can: Capabilities) -> Self {
        let family = &view.architecture;
        let model_info = [
            ("general.architecture".to_owned(), Value::from(family.clone())),
            // Editors display it.
            ("general.basename".to_owned(), view.request_name().into()),
            (format!("{family}.context_length"), view.context_tokens_max.into()),
            (format!("{family}.block_count"), view.layers.into()),
            ("general.parameter_count".to_owned(), view.parameters.into()),
        ];
        let capabilities =
            [(true, "completion"), (can.tools, "tools"), (can.thinking, "thinking"), (can.infill, "insert")];
        Self {
            details: view.into(),
            model_info: Map::from_iter(model_info),
            capabilities: capabilities
                .iter()
                .filter(|(can, _)| *can)
                .map(|(_, it)| (*it).to_owned())
                .collect(),
            license: view.licence.clone(),
            modified_at: modified_at(view),
        }
    }
}

/// The answer of `/api/pull` for a model that is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct OllamaPull {
    /// Always `success`.
    pub status: String,
}

/// The answer of `/api/version`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct OllamaVersion {
    /// The version of Ollama whose API is spoken.
    pub version: String,
    /// The version of this program.
    pub exo: String,
}

impl OllamaVersion {
    /// For this version of the program.
    pub fn new(exo: String) -> Self {
        Self { version: OLLAMA_VERSION.to_owned(), exo }
    }
}

/// The time so many seconds after 1970, as this dialect writes it.
pub fn created_at(unix_s: u64) -> String {
    date(unix_s)
}

#[cfg(test)]
mod tests {
    use super::parameter_size;

    #[test]
    fn parameters_are_counted_as_people_say_them() {
        let shown = [0, 999, 24_320, 596_049_920, 8_030_261_248].map(parameter_size);
        assert_eq!(shown, ["", "999", "24.3K", "596.0M", "8.0B"]);
    }
}
