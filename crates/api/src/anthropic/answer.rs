//! The answer of `/v1/messages`, whole and in events.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::generate::Usage;
use crate::summary::ExoSummary;

/// What the model says.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Message {
    /// `msg_` and the request's id.
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Always `assistant`.
    pub role: String,
    /// The model's name, as the request gave it.
    pub model: String,
    /// Thoughts, text and calls, in their order.
    pub content: Vec<ContentBlock>,
    /// Why the answer ended; `null` in `message_start`.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
    /// Tokens that the request took.
    pub usage: MessageUsage,
    /// Extension: how it was made. Absent in `message_start`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exo: Option<ExoSummary>,
}

/// A part of an answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// A part of the answer that is said.
    Text {
        /// The text of the block.
        text: String,
    },
    /// What was thought before.
    Thinking {
        /// The thought; empty where it is not shown.
        thinking: String,
        /// It proves nothing here, and may come back or not.
        signature: String,
    },
    /// A call of a tool.
    ToolUse {
        /// To be named by the result.
        id: String,
        /// Name of the tool that is called.
        name: String,
        /// Its arguments, spelt as the model spelt them. Empty where `max_tokens` cut them.
        #[schema(value_type = Object)]
        input: Box<RawValue>,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    EndTurn,
    /// `max_tokens` or the context was reached.
    MaxTokens,
    /// A stop sequence appeared.
    StopSequence,
    /// The model calls tools.
    ToolUse,
}

/// Tokens a request took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
pub struct MessageUsage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: u32,
    /// Always 0: what is read is kept by itself.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were there already.
    pub cache_read_input_tokens: u32,
    /// Tokens generated for the answer.
    pub output_tokens: u32,
    /// About the generated tokens.
    pub output_tokens_details: OutputTokensDetails,
}

/// About the generated tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Those that belong to thoughts.
    pub thinking_tokens: u32,
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { thinking_tokens: usage.reasoning_tokens },
        }
    }
}

/// One event of a streamed answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessageEvent {
    /// The answer begins; it has no content yet.
    MessageStart {
        /// The answer's head, with no content yet.
        message: Message,
    },
    /// A block begins.
    ContentBlockStart {
        /// Index of the block, from 0.
        index: usize,
        /// The block, empty so far.
        content_block: ContentBlock,
    },
    /// A block goes on.
    ContentBlockDelta {
        /// Index of the block, from 0.
        index: usize,
        /// What is new of the block.
        delta: BlockDelta,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Index of the block, from 0.
        index: usize,
    },
    /// The answer is complete.
    MessageDelta {
        /// Why the answer ended.
        delta: MessageEnd,
        /// Tokens taken, in all.
        usage: MessageUsage,
        /// Extension: how it was made.
        exo: ExoSummary,
    },
    /// The stream ends; nothing follows.
    MessageStop,
    /// The answer is still waited for.
    Ping,
}

impl MessageEvent {
    /// Its name among server-sent events.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}

/// What is new of a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::enum_variant_names)] // as they are on the wire
pub enum BlockDelta {
    /// Text to append.
    TextDelta {
        /// The text to append.
        text: String,
    },
    /// Text of the thought to append.
    ThinkingDelta {
        /// Text of the thought to append.
        thinking: String,
    },
    /// The signature of the thought.
    SignatureDelta {
        /// It proves nothing here.
        signature: String,
    },
    /// JSON to append to the arguments.
    InputJsonDelta {
        /// A piece of it.
        partial_json: String,
    },
}

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct MessageEnd {
    /// Why the answer ended; `null` if it has not.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
}

/// How many tokens a prompt has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// All of them: of the system's prompt, the tools and the messages, as the model's template prints them.
    pub input_tokens: u32,
}
