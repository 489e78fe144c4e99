//! What a request took, in OpenAI's shape.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::generate::Usage;

/// Tokens a request took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UsageBody {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated over all choices.
    pub completion_tokens: u32,
    /// Sum of the tokens of prompt and answers.
    pub total_tokens: u32,
    /// Tokens of the prompt that were found in the cache.
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

impl UsageBody {
    /// Of a request that only reads.
    pub fn of_prompt(tokens: u64) -> Self {
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Self::from(Usage { prompt_tokens, ..Usage::default() })
    }
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
