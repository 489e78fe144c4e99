//! Which models fit a cluster, in words that need no knowledge of models.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::HubToken;
use crate::plan::{PlanStageView, PredictionView};

/// Asks which models fit.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FitsQuery {
    /// Only this one: a name of the catalogue, name or id of a model that is known, or
    /// `hf.co/ORG/REPO[:QUANTISATION][@REVISION]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Context to plan for, in tokens; the node's usual one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    /// Another hub than the node's: the address of a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// For gated and private repositories, if it is another than the node's. Kept nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<HubToken>,
}

/// Models and whether they fit, best first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FitsView {
    /// Context that was planned for, in tokens.
    pub context_tokens: u32,
    /// Machines that were planned on.
    pub machines: u32,
    /// Memory that they have free for models.
    pub memory_free_bytes: u64,
    /// The models, best fit first.
    pub models: Vec<FitView>,
}

/// Whether a model fits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    /// It runs, and answers at least about as fast as people read.
    Comfortable,
    /// It runs, slower than people read.
    Slow,
    /// There is too little memory.
    TooLarge,
    /// It was made for shorter texts than are asked for.
    ContextTooLong,
    /// exo does not run models of its kind yet.
    #[default]
    NotSupported,
}

/// One model, and whether it fits.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FitView {
    /// The model's name in the catalogue, or the reference.
    pub name: String,
    /// The model's name, to be displayed.
    pub title: String,
    /// The reference that `exo pull` and `exo run` take.
    pub reference: String,
    /// What the model is good for.
    pub good_for: String,
    /// The licence; empty for a model that is known, whose own entry has it.
    pub licence: String,
    /// Terms of the licence that are worth knowing before.
    pub terms: Option<String>,
    /// Numbers that it has learnt.
    pub parameters: u64,
    /// Longest context that it was made for, in tokens.
    pub context_tokens_max: u32,
    /// Whether the model fits.
    pub verdict: FitVerdict,
    /// The verdict in a sentence.
    pub summary: String,
    /// The best of it that fits.
    pub best: Option<FitPlanView>,
    /// Every type that was looked at, largest first.
    pub sizes: Vec<FitSizeView>,
    /// Changes each of which alone would make the smallest type fit, the smallest change first.
    pub changes: Vec<String>,
}

/// The best of a model that fits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FitPlanView {
    /// Type of the weights.
    pub quantisation: String,
    /// Bytes to fetch: 0 for a model that the cluster has.
    pub download_bytes: u64,
    /// How fast the model is expected to be.
    pub predicted: PredictionView,
    /// Longest context that fits, in tokens, up to what the model was made for.
    pub context_tokens_max: u32,
    /// What each device would hold, first stage first.
    pub stages: Vec<PlanStageView>,
}

/// A type of weights.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FitSizeView {
    /// Name of the smaller quantisation.
    pub quantisation: String,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Tokens per second of one answer, if it fits.
    pub tokens_per_s: Option<f64>,
}
