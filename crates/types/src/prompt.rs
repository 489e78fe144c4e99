//! What can be asked of a prompt itself: how likely its tokens were, or one vector for all of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{TOP_MAX, list};

/// What the last stage reports of a prompt beside the tokens that it samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum PromptQuery {
    /// Nothing is reported.
    #[default]
    Nothing,
    /// How likely each token but the first was, with as many likeliest ones as the sampler reports.
    Scores,
    /// One vector.
    Embedding(Pooling),
}

/// How the hidden rows of a text become one vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The row of the first token.
    First,
    /// The mean of all rows.
    Mean,
    /// The row of the last token, which has seen all others.
    Last,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::First, Self::Mean, Self::Last];

    /// What clients call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Mean => "mean",
            Self::Last => "last",
        }
    }
}

impl PromptQuery {
    /// Whether rows in front of the last are needed: kept pages, which spare computing them, are of no use
    /// then.
    pub fn needs_all_rows(self) -> bool {
        match self {
            Self::Nothing | Self::Embedding(Pooling::Last) => false,
            Self::Scores | Self::Embedding(Pooling::First | Pooling::Mean) => true,
        }
    }
}

/// The answer to a [`PromptQuery`]. It travels with the first token behind the prompt; shared, because tokens
/// are copied.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PromptReport {
    /// One for each token but the first.
    Scores(Vec<TokenScore>),
    /// `[C]`, of rows behind the last norm. Not scaled to length one.
    Embedding(Vec<f32>),
}

/// See [`PromptReport`].
pub type SharedReport = Arc<PromptReport>;

/// How likely a token was that stood there already.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TokenScore {
    /// Natural logarithm of its probability, of the raw logits.
    pub logprob: f32,
    /// The most likely tokens in its place with their log-probabilities, best first.
    #[serde(deserialize_with = "list::<_, _, TOP_MAX>")]
    pub top: Vec<(u32, f32)>,
}
