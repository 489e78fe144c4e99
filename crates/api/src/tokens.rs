//! What a model's tokenizer and chat template make of something. Nothing is generated for it, and nothing
//! placed.

use exo_types::Principal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::generate::{ChatMessage, Reasoning, Tools};

/// Most tokens whose texts are shown one by one.
pub const PIECES_MAX: usize = 65_536;

/// A question to a model's tokenizer or template.
#[derive(Clone, PartialEq, Debug)]
pub struct TokensRequest {
    /// The model's name, or the hexadecimal form of its id.
    pub model: String,
    /// What is asked.
    pub question: TokensQuestion,
    /// Who asks: all take turns at the tokenizer.
    pub principal: Principal,
    /// Whether the answer shows each token's bytes; of at most [`PIECES_MAX`] tokens.
    pub with_pieces: bool,
}

/// What is asked.
#[derive(Clone, PartialEq, Debug)]
pub enum TokensQuestion {
    /// The tokens of a text.
    Encode {
        /// The text to tokenise.
        text: String,
        /// Whether the model's own start and end tokens stand around it.
        add_special: bool,
        /// Whether control tokens that are written out in it become those tokens.
        parse_special: bool,
    },
    /// The tokens of a conversation.
    EncodeChat(ChatPrompt),
    /// The text that the model's template makes of a conversation.
    Render(ChatPrompt),
    /// The text of tokens, control tokens by their names.
    Decode(Vec<u32>),
    /// What template and vocabulary have a form for.
    Capabilities,
    /// What whoever writes prompts by themselves has to know.
    Tokenizer,
}

/// A conversation for the model's template.
#[derive(Clone, PartialEq, Debug)]
pub struct ChatPrompt {
    /// The conversation, at least one message.
    pub messages: Vec<ChatMessage>,
    /// The tools that the answer may call.
    pub tools: Option<Tools>,
    /// What is asked for of the model's thinking.
    pub reasoning: Reasoning,
    /// Whether the answer's opening stands at the end.
    pub opens_answer: bool,
}

/// The answer; what was not asked for is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TokensAnswer {
    /// Ids of the tokens.
    pub tokens: Vec<u32>,
    /// The bytes of each of them.
    pub pieces: Vec<Vec<u8>>,
    /// The text that was made.
    pub text: String,
    /// Tokens of the model's context, as it is placed or would be.
    pub context_tokens: u32,
    /// What the model has a form for.
    pub capabilities: Capabilities,
    /// What whoever writes prompts by themselves has to know.
    pub tokenizer: TokenizerInfo,
}

/// Whose tokenizer is asked for.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerQuery {
    /// Name or id of a model; left out, it is the one that is placed.
    pub model: Option<String>,
}

/// The answer of `/tokenizer_info`, by the names of `tokenizer_config.json`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
pub struct TokenizerInfo {
    /// The chat template, as the model's files have it; absent where they have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The token that begins a text, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos_token: Option<String>,
    /// The token that ends a text, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eos_token: Option<String>,
}

/// What a model's template and vocabulary have a form for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Whether it has a form for calls of tools.
    pub tools: bool,
    /// Whether it has a form for thoughts.
    pub thinking: bool,
    /// Text with a hole.
    pub infill: bool,
}
