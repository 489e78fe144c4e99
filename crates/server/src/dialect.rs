//! The dialects that requests for text come in.

use axum::http::HeaderMap;
use exo_api::endpoints::ENDPOINTS;
use exo_api::openai::{chat, completion, embeddings};
use exo_api::{RequestPart, anthropic, ollama, responses};

/// The header by which Anthropic's clients name the version of the API that they speak.
pub const ANTHROPIC_VERSION: &str = "anthropic-version";

/// One endpoint's way of speaking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's completions.
    Completion,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Ollama's chat and generate.
    Ollama {
        /// Whether it is `/api/chat`.
        is_chat: bool,
    },
    /// OpenAI's embeddings.
    Embeddings,
    /// Ollama's embeddings.
    OllamaEmbed {
        /// The field that holds the texts.
        asked_in: &'static str,
    },
    /// Questions to a tokenizer.
    Tokens {
        /// The field that holds what the question is about.
        asked_in: &'static str,
    },
}

impl Dialect {
    /// What it calls a part of a request.
    pub fn part_name(self, part: RequestPart) -> String {
        match self {
            Self::Chat => chat::part_name(part),
            Self::Completion => completion::part_name(part),
            Self::Responses => responses::part_name(part),
            Self::Messages => anthropic::part_name(part),
            Self::Ollama { is_chat } => ollama::part_name(part, is_chat),
            Self::Embeddings => embeddings::part_name(part),
            Self::OllamaEmbed { asked_in } => ollama::embed_part_name(part, asked_in),
            Self::Tokens { asked_in } if part == RequestPart::Prompt => asked_in.to_owned(),
            Self::Tokens { .. } => chat::part_name(part),
        }
    }
}

/// Whether a request is one of Anthropic's clients, whatever becomes of it.
pub fn is_anthropic(path: &str, headers: &HeaderMap) -> bool {
    let is_messages =
        path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_messages || !headers.contains_key(ANTHROPIC_VERSION) {
        return is_messages;
    }
    let is_shared = ["/v1/models", "/v1/requests/"].iter().any(|shared| path.starts_with(shared));
    is_shared || path.starts_with("/v1/") && !is_served(path)
}

/// Whether an endpoint is at this path, for some method.
fn is_served(path: &str) -> bool {
    ENDPOINTS.iter().any(|endpoint| match endpoint.path.split_once('{') {
        Some((start, _)) => path.starts_with(start),
        None => path == endpoint.path,
    })
}

/// Whether a path is one of Ollama's clients, whatever becomes of the request.
pub fn is_ollama(path: &str) -> bool {
    path.starts_with("/api/")
}
