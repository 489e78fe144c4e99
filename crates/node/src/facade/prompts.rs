//! Prompts and questions about tokens: how much text is taken, and whose turn it is to tokenise.

use exo_api::{
    ChatMessage, GenerateError, GenerateRequest, Prompt, TokensAnswer, TokensQuestion, TokensRequest,
    ToolCall, Tools,
};
use exo_types::Principal;

use super::NodeFacade;
use crate::tokens;

/// What a message counts beside its text.
const MESSAGE_BYTES: usize = 256;

impl NodeFacade {
    pub(super) async fn answer_tokens(&self, request: TokensRequest) -> Result<TokensAnswer, GenerateError> {
        let (resolved, open) = self.open(&request.model).await?;
        let (_, limits) = self.limits(&resolved, &open, None)?;
        let text_bytes_max = self.prompt_bytes_max;
        let (text_bytes, bytes) = match &request.question {
            TokensQuestion::Encode { text, .. } => (text.len(), text.len()),
            TokensQuestion::EncodeChat(chat) | TokensQuestion::Render(chat) => {
                let text = chat_bytes(&chat.messages, chat.tools.as_ref());
                (text, text + chat.messages.len() * MESSAGE_BYTES)
            }
            TokensQuestion::Decode(tokens) => (0, size_of_val(tokens.as_slice())),
            TokensQuestion::Capabilities | TokensQuestion::Tokenizer => (0, 0),
        };
        check_prompt_text(text_bytes, text_bytes_max, limits.context_tokens)?;
        let principal = request.principal;
        let answer = move || tokens::answer(&open, request, limits.context_tokens, text_bytes_max);
        self.in_turn(principal, bytes, answer).await
    }

    /// Does what may take a while with a prompt of about so many bytes; few at a time, or a flood of requests
    /// would take the processor from those that run.
    pub(super) async fn in_turn<T: Send + 'static>(
        &self,
        principal: Principal,
        prompt_bytes: usize,
        work: impl FnOnce() -> Result<T, GenerateError> + Send + 'static,
    ) -> Result<T, GenerateError> {
        self.preparing.run(principal, prompt_bytes, work).await
    }
}

/// Tokenising takes some 130 bytes for each byte of text, so memory bounds it; above 2 GiB the tokenizer's
/// own bound is lower.
pub fn prompt_bytes_max(memory: Option<exo_device::Memory>) -> usize {
    const MOST: usize = 2 << 20;
    let share = memory.map_or(u64::MAX, |memory| memory.total_bytes >> 10);
    usize::try_from(share).unwrap_or(MOST).clamp(128 << 10, MOST)
}

/// The text of all prompts; tokens have none.
pub(super) fn text_bytes(request: &GenerateRequest) -> usize {
    let bytes = |prompt: &Prompt| match prompt {
        Prompt::Chat { messages } => chat_bytes(messages, request.tools.as_ref()),
        Prompt::Text(text) => text.len(),
        Prompt::Infill { prefix, suffix } => prefix.len() + suffix.len(),
        Prompt::Tokens(_) => 0,
    };
    request.prompts.iter().map(bytes).sum()
}

pub(super) fn check_prompt_text(
    bytes: usize,
    bytes_max: usize,
    context_tokens: u32,
) -> Result<(), GenerateError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(GenerateError::PromptTooLarge { bytes, bytes_max, context_tokens: context_tokens.into() })
}

/// The text that a template may show: of messages, their thoughts and calls, and of tools.
fn chat_bytes(messages: &[ChatMessage], tools: Option<&Tools>) -> usize {
    let of_call = |call: &ToolCall| call.function.name.len() + call.function.arguments.len();
    let of_message = |m: &ChatMessage| {
        let optional = [&m.name, &m.reasoning_content, &m.tool_call_id].into_iter().flatten();
        let calls: usize = m.tool_calls.iter().map(of_call).sum();
        m.content.len() + optional.map(String::len).sum::<usize>() + calls
    };
    let tools = tools.into_iter().flat_map(|tools| &tools.definitions);
    let tools: usize = tools.map(|tool| json_bytes(&tool.definition)).sum();
    messages.iter().map(of_message).sum::<usize>() + tools
}

/// About what a document takes as text. Its depth was bounded when it was read.
fn json_bytes(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(values) => values.iter().map(|value| json_bytes(value) + 1).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + 4 + json_bytes(value)).sum(),
    }
}

/// About what a prompt takes before it is rendered.
pub(super) fn prompt_bytes(request: &GenerateRequest) -> usize {
    let beside_text = |prompt: &Prompt| match prompt {
        Prompt::Chat { messages } => messages.len() * MESSAGE_BYTES,
        Prompt::Text(_) | Prompt::Infill { .. } => 0,
        Prompt::Tokens(tokens) => size_of_val(tokens.as_slice()),
    };
    text_bytes(request) + request.prompts.iter().map(beside_text).sum::<usize>()
}
