//! What answers of every dialect tell of themselves: how they were made, and the probabilities of their
//! tokens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::generate::{Resumed, StepTimesView, Summary, Timings, TokenPiece, TopToken};

/// Extension `exo`: how the answer was made. Beside the usage, in the whole answer and at the end of a
/// stream.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ExoSummary {
    /// The request's id, as in the logs.
    pub request: String,
    /// Id of the model that answered.
    pub model_id: String,
    /// Kernel families, first stage first.
    pub kernels: Vec<String>,
    /// Stages of the pipeline.
    pub stages: u32,
    /// How long each part of the request took.
    pub timings: Timings,
    /// Where the time of its steps went, stage by stage; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<StepTimesView>,
    /// Where the answer was interrupted and went on; absent where it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Resumed>,
    /// Of the tokens guessed ahead, the share that was right; absent where none were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_acceptance_rate: Option<f64>,
    /// Places of the schemas of tools that are not `strict` which are not enforced, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unenforced: Vec<String>,
    /// Messages of the oldest turns that were left out, where that was asked for and the conversation was too
    /// long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out_messages: Option<u32>,
    /// Kinds of tools that run at their vendor and were left out, as this node's settings have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out_tools: Vec<String>,
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
            times: summary.times.clone().map(StepTimesView::without_places),
            resumed: summary.resumed.clone(),
            draft_acceptance_rate: summary.usage.acceptance_rate(),
            unenforced: summary.unenforced.clone(),
            left_out_messages: Some(summary.left_out_messages).filter(|count| *count > 0),
            left_out_tools: summary.left_out_tools.clone(),
        }
    }
}

/// The probability of one token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenLogprob {
    /// Text of the token.
    pub token: String,
    /// Natural logarithm; -9999 for nearly impossible.
    pub logprob: f32,
    /// Bytes of the token.
    pub bytes: Vec<u8>,
    /// The likeliest tokens at its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// The probability of a token that could have been chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TopLogprob {
    /// Text of the token.
    pub token: String,
    /// Natural logarithm; -9999 for nearly impossible.
    pub logprob: f32,
    /// Bytes of the token.
    pub bytes: Vec<u8>,
}

impl From<TokenPiece> for TokenLogprob {
    fn from(piece: TokenPiece) -> Self {
        Self {
            token: piece.text,
            logprob: finite_logprob(piece.logprob.unwrap_or(f32::NEG_INFINITY)),
            bytes: piece.bytes,
            top_logprobs: piece.top.into_iter().map(TopLogprob::from).collect(),
        }
    }
}

impl From<TopToken> for TopLogprob {
    fn from(top: TopToken) -> Self {
        Self { token: top.text, logprob: finite_logprob(top.logprob), bytes: top.bytes }
    }
}

/// A log-probability that JSON can hold: OpenAI's floor for impossible tokens.
pub(crate) fn finite_logprob(logprob: f32) -> f32 {
    const FLOOR: f32 = -9999.0;
    if logprob >= FLOOR { logprob } else { FLOOR }
}
