//! `POST /v1/chat/completions`: the answer, whole and in chunks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::usage::UsageBody;
use crate::generate::{CallDelta, FinishReason};
use crate::summary::{ExoSummary, TokenLogprob};

/// The whole answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    /// `chatcmpl-` and the request's id.
    pub id: String,
    /// Always `chat.completion`.
    pub object: String,
    /// When the answer was made, in seconds since 1970.
    pub created: u64,
    /// The model's name, as the request gave it.
    pub model: String,
    /// The kernel families: equal fingerprints and seeds give equal text.
    pub system_fingerprint: Option<String>,
    /// The answers, by index.
    pub choices: Vec<ChatChoice>,
    /// Tokens that the request took.
    pub usage: UsageBody,
    /// How it was made.
    pub exo: ExoSummary,
}

/// One choice of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Number of the choice, from 0.
    pub index: u16,
    /// Message of the choice.
    pub message: AssistantMessage,
    /// Probabilities, where asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the choice ended.
    pub finish_reason: FinishReason,
}

/// What the model says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: String,
    /// The text; `null` where the answer is calls alone.
    pub content: Option<String>,
    /// Always `null`.
    pub refusal: Option<String>,
    /// What the model thought before. An extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same under its other name, which some clients look for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tools that the model calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AnsweredCall>,
}

/// A call of a tool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AnsweredCall {
    /// To be named by the result.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name and arguments of the call.
    pub function: AnsweredFunction,
}

/// A tool's name and arguments.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AnsweredFunction {
    /// Name of the tool.
    pub name: String,
    /// A JSON object as text.
    pub arguments: String,
}

/// What is new of a call.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StreamedCall {
    /// Which call, from 0.
    pub index: u32,
    /// In the call's first delta.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in the call's first delta.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is new of the call.
    pub function: StreamedFunction,
}

/// What is new of a call's name and arguments.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StreamedFunction {
    /// The tool, in the call's first delta.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON text to append to the arguments.
    pub arguments: String,
}

impl From<CallDelta> for StreamedCall {
    fn from(delta: CallDelta) -> Self {
        let CallDelta { index, begins, arguments } = delta;
        let kind = begins.is_some().then(|| "function".to_owned());
        let (id, name) = begins.unzip();
        Self { index, id, kind, function: StreamedFunction { name, arguments } }
    }
}

/// Probabilities of an answer's tokens.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// The tokens of the message, each with its log-probability.
    pub content: Vec<TokenLogprob>,
    /// Always `null`.
    pub refusal: Option<String>,
}

/// A piece of a streamed answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    /// The same in all chunks.
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: String,
    /// Seconds since 1970, the same in all chunks.
    pub created: u64,
    /// The model's name, as the request gave it.
    pub model: String,
    /// The kernel families, in the usage chunk.
    pub system_fingerprint: Option<String>,
    /// One choice, or none in the usage chunk.
    pub choices: Vec<ChatChunkChoice>,
    /// Tokens taken, in the usage chunk.
    pub usage: Option<UsageBody>,
    /// How it was made, in the usage chunk; where none was asked for and a part of a tool's schema is not
    /// enforced, in a last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exo: Option<ExoSummary>,
}

/// What is new in one choice.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Number of the choice, from 0.
    pub index: u16,
    /// What is new of the choice.
    pub delta: ChatDelta,
    /// Probabilities of the new tokens, where asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended, in the choice's last chunk.
    pub finish_reason: Option<FinishReason>,
}

/// The new part of a message.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the choice's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text to append to the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Text of the thought to append. An extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same under its other name, which some clients look for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// What is new of calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<StreamedCall>,
}
