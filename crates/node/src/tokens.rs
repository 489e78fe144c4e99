//! What the tokenizer and the template of a model make of something, without a request for text.

use exo_api::tokens::PIECES_MAX;
use exo_api::{
    Capabilities, ChatPrompt, GenerateError, RequestPart, TokenizerInfo, TokensAnswer, TokensQuestion,
    TokensRequest,
};

use crate::generate::{chat_tokens, check_tokens, encode, render_chat};
use crate::library::OpenModel;
use crate::refusals::invalid;

/// Answers a question; the text of tokens has at most `text_bytes_max`. Blocks for as long as a long text
/// takes.
pub fn answer(
    open: &OpenModel,
    request: TokensRequest,
    context_tokens: u32,
    text_bytes_max: usize,
) -> Result<TokensAnswer, GenerateError> {
    let mut answer = TokensAnswer { context_tokens, ..TokensAnswer::default() };
    match request.question {
        TokensQuestion::Encode { text, add_special, parse_special } => {
            let options = exo_tokenizer::EncodeOptions { add_special, parse_special };
            answer.tokens = encode(open, &text, options)?;
        }
        TokensQuestion::EncodeChat(ChatPrompt { messages, tools, reasoning, opens_answer }) => {
            answer.tokens = chat_tokens(open, &messages, tools.as_ref(), &reasoning, opens_answer)?;
        }
        TokensQuestion::Render(ChatPrompt { messages, tools, reasoning, opens_answer }) => {
            answer.text = render_chat(open, &messages, tools.as_ref(), &reasoning, opens_answer)?;
        }
        TokensQuestion::Capabilities => {
            answer.capabilities = Capabilities {
                tools: open.calls().is_ok(),
                thinking: open.thought().is_some(),
                infill: open.tokenizer.encode_infill("", "").is_ok_and(|tokens| tokens.is_some()),
            };
        }
        TokensQuestion::Tokenizer => {
            let text = |id: Option<u32>| id.and_then(|id| open.tokenizer.token_text(id));
            answer.tokenizer = TokenizerInfo {
                chat_template: open.model.chat_template.clone(),
                bos_token: text(open.tokenizer.bos().or(open.model.config.bos)),
                eos_token: text(open.tokenizer.eos()),
            };
        }
        TokensQuestion::Decode(tokens) => answer.text = decode(open, &tokens, text_bytes_max)?,
    }
    if request.with_pieces {
        let count = answer.tokens.len();
        if count > PIECES_MAX {
            let message =
                format!("{count} tokens, and texts are shown of {PIECES_MAX} at most: ask without them");
            return Err(invalid(RequestPart::Prompt, message));
        }
        let piece = |token: &u32| open.tokenizer.token_bytes(*token).unwrap_or_default();
        answer.pieces = answer.tokens.iter().map(piece).collect();
    }
    Ok(answer)
}

/// The text of tokens; a token may stand for hundreds of bytes, so that a short list becomes a long text.
fn decode(open: &OpenModel, tokens: &[u32], bytes_max: usize) -> Result<String, GenerateError> {
    check_tokens(open, tokens)?;
    let (mut decoder, mut text) = (open.tokenizer.stream(false), String::new());
    for token in tokens {
        text.push_str(&decoder.push(*token));
        if text.len() > bytes_max {
            let message =
                format!("the text of these tokens has more than {bytes_max} bytes: send fewer at once");
            return Err(invalid(RequestPart::Prompt, message));
        }
    }
    text.push_str(&decoder.finish());
    Ok(text)
}
