//! The answer of `/v1/responses`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};

use crate::generate::{ChatMessage, Usage};
use crate::summary::{ExoSummary, TokenLogprob};
use crate::tools::{is_object, tool_call};

/// An answer, whole or so far as it is made. It repeats what the request asked for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Response {
    /// `resp_` and the request's id.
    pub id: String,
    /// Always `response`.
    pub object: String,
    /// When the answer was made, in seconds since 1970.
    pub created_at: u64,
    /// State of the answer.
    pub status: ResponseStatus,
    /// Why the answer failed; `null` unless it did.
    pub error: Option<ResponseError>,
    /// Why the answer is incomplete; `null` unless it is.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The instructions, as the request gave them.
    pub instructions: Option<String>,
    /// The limit of tokens, as the request gave it.
    pub max_output_tokens: Option<u32>,
    /// The metadata, as the request gave it.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The model's name, as the request gave it.
    pub model: String,
    /// Thought, text and calls, in their order.
    pub output: Vec<OutputItem>,
    /// Whether calls may be parallel, as the request gave it.
    pub parallel_tool_calls: bool,
    /// The id of the response before, as the request gave it.
    pub previous_response_id: Option<String>,
    /// The settings of thinking, as the request gave them.
    #[schema(value_type = Object)]
    pub reasoning: Value,
    /// Whether it is kept.
    pub store: bool,
    /// The temperature, as the request gave it, or the default.
    pub temperature: f32,
    /// The format of the text, as the request gave it.
    #[schema(value_type = Object)]
    pub text: Value,
    /// The choice of tools, as the request gave it.
    #[schema(schema_with = word_or_object)]
    pub tool_choice: Value,
    /// The tools, as the request gave them.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// The number of alternatives, as the request gave it.
    pub top_logprobs: u8,
    /// The bound on probability mass, as the request gave it, or the default.
    pub top_p: f32,
    /// `auto` or `disabled`, as the request gave it.
    pub truncation: String,
    /// Always false.
    pub background: bool,
    /// Tokens taken; `null` until it is complete.
    pub usage: Option<ResponseUsage>,
    /// Extension: how it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exo: Option<ExoSummary>,
}

/// A choice of tools as clients write it.
fn word_or_object() -> OneOfBuilder {
    let of = |kind| ObjectBuilder::new().schema_type(kind);
    OneOfBuilder::new().item(of(Type::String)).item(of(Type::Object)).description(Some("As requested."))
}

impl Response {
    /// What was said, as a message of the conversation that goes on from here. A call that was cut is not in
    /// it.
    pub fn said(&self) -> ChatMessage {
        let mut said = ChatMessage { role: "assistant".to_owned(), ..ChatMessage::default() };
        for item in &self.output {
            match item {
                OutputItem::Message { content, .. } => {
                    said.content.extend(content.iter().map(|OutputText { text, .. }| text.as_str()));
                }
                OutputItem::Reasoning { content, .. } => {
                    let texts = content.iter().map(|ReasoningText { text, .. }| text.as_str());
                    said.reasoning_content.get_or_insert_default().extend(texts);
                }
                OutputItem::FunctionCall { call_id, name, arguments, .. } => {
                    if is_object(arguments) {
                        said.tool_calls.push(tool_call(call_id.clone(), name.clone(), arguments.clone()));
                    }
                }
            }
        }
        said
    }
}

/// State of an answer, or of an item of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// The answer is being generated.
    InProgress,
    /// The answer is whole.
    Completed,
    /// The answer was cut.
    Incomplete,
    /// The answer failed.
    Failed,
}

/// Why an answer failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResponseError {
    /// Code of the error; stable, for programs.
    pub code: String,
    /// What happened, to be displayed.
    pub message: String,
}

/// Why an answer is incomplete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`: that, or the context, was reached.
    pub reason: String,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// What was thought before.
    Reasoning {
        /// Id of the item.
        id: String,
        /// Always empty: the whole thought is in `content`.
        summary: Vec<Value>,
        /// Text of the thought.
        content: Vec<ReasoningText>,
        /// State of the item.
        status: ResponseStatus,
    },
    /// A part of the answer that is said.
    Message {
        /// Id of the item.
        id: String,
        /// State of the item.
        status: ResponseStatus,
        /// Always `assistant`.
        role: String,
        /// Text of the message.
        content: Vec<OutputText>,
    },
    /// A call of a tool.
    FunctionCall {
        /// Id of the item.
        id: String,
        /// To be named by the result.
        call_id: String,
        /// Name of the tool.
        name: String,
        /// A JSON object as text.
        arguments: String,
        /// State of the item.
        status: ResponseStatus,
    },
}

impl OutputItem {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. } => id,
        }
    }

    /// Sets how far it is.
    pub fn set_status(&mut self, now: ResponseStatus) {
        match self {
            Self::Reasoning { status, .. }
            | Self::Message { status, .. }
            | Self::FunctionCall { status, .. } => *status = now,
        }
    }
}

/// Text that is said.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct OutputText {
    /// Always `output_text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text of this part.
    pub text: String,
    /// Always empty.
    pub annotations: Vec<Value>,
    /// Probabilities, where asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// Text that is thought.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReasoningText {
    /// Always `reasoning_text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text of this part.
    pub text: String,
}

/// Tokens a request took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// How many input tokens were found in the cache.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens generated for the answer.
    pub output_tokens: u32,
    /// How many output tokens were thoughts.
    pub output_tokens_details: OutputTokensDetails,
    /// Sum of input and output tokens.
    pub total_tokens: u32,
}

/// About the prompt's tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseInputTokensDetails)]
pub struct InputTokensDetails {
    /// Those that were there already.
    pub cached_tokens: u32,
    /// Always 0: what is read is kept by itself.
    pub cache_write_tokens: u32,
}

/// About the generated tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseOutputTokensDetails)]
pub struct OutputTokensDetails {
    /// Those that belong to thoughts.
    pub reasoning_tokens: u32,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
        }
    }
}

/// How many tokens the prompt of a response has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct InputTokenCount {
    /// Always `response.input_tokens`.
    pub object: String,
    /// All of them: of the instructions, the tools and the conversation, as the model's template prints them.
    pub input_tokens: u32,
}

/// An answer that is kept no longer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct ResponseDeleted {
    /// Id of the deleted response.
    pub id: String,
    /// Always `response`.
    pub object: String,
    /// Always true.
    pub deleted: bool,
}
