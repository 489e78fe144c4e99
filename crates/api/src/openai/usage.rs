//! What a request took, in OpenAI's shape and in ours.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::generate::{Resumed, Summary, Timings, Usage};

/// Tokens a request took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UsageBody {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated over all choices.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// About the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
    /// About what was generated.
    pub completion_tokens_details: CompletionTokensDetails,
}

/// About the prompt's tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Those that need not be computed again.
    pub cached_tokens: u32,
}

/// About the generated tokens: those that were guessed ahead (speculative decoding).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Generated tokens that had been guessed ahead.
    pub accepted_prediction_tokens: u32,
    /// Generated tokens that belong to thoughts.
    #[serde(default)]
    pub reasoning_tokens: u32,
    /// Guesses that were computed and were wrong. They are not among the `completion_tokens`.
    pub rejected_prediction_tokens: u32,
    /// Of all guesses, the share that was right; absent where there were none. An extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_acceptance_rate: Option<f64>,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionTokensDetails {
                accepted_prediction_tokens: usage.accepted_drafts,
                rejected_prediction_tokens: usage.rejected_drafts,
                reasoning_tokens: usage.reasoning_tokens,
                prediction_acceptance_rate: usage.acceptance_rate(),
            },
        }
    }
}

/// Extension `exo`: how the answer was made. Beside `usage`, in the whole answer and in the last chunk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ExoSummary {
    /// The request's id, as in the logs.
    pub request: String,
    /// The model's id.
    pub model_id: String,
    /// Kernel families, first stage first.
    pub kernels: Vec<String>,
    /// Stages of the pipeline.
    pub stages: u32,
    /// Measured times.
    pub timings: Timings,
    /// Where the answer was interrupted and went on; absent where it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Resumed>,
    /// Of the tokens guessed ahead, the share that was right; absent where none were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_acceptance_rate: Option<f64>,
    /// Places of the schemas of tools that are not `strict` which are not enforced, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unenforced: Vec<String>,
}

impl ExoSummary {
    /// Of a finished request.
    pub fn new(request: String, summary: &Summary) -> Self {
        Self {
            request,
            model_id: summary.model_id.clone(),
            kernels: summary.kernels.clone(),
            stages: summary.stages,
            timings: summary.timings,
            resumed: summary.resumed.clone(),
            draft_acceptance_rate: summary.usage.acceptance_rate(),
            unenforced: summary.unenforced.clone(),
        }
    }
}

/// A log-probability that JSON can hold: OpenAI's floor for impossible tokens.
pub(super) fn finite_logprob(logprob: f32) -> f32 {
    const FLOOR: f32 = -9999.0;
    if logprob >= FLOOR { logprob } else { FLOOR }
}
