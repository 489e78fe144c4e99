//! `POST /tokenize`, `/detokenize` and `/apply-template`, as llama.cpp and vLLM have them.

use exo_types::Principal;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::chat::parse_messages;
use super::tools::take_tools;
use crate::fields::{BadParam, Fields, short, token_id};
use crate::request::openai_effort;
use crate::table::{APPLY_TEMPLATE, DETOKENIZE, TOKENIZE, Table};
use crate::tokens::{ChatPrompt, TokensAnswer, TokensQuestion, TokensRequest};

/// Most tokens of `/detokenize`.
const TOKENS_MAX: usize = 1 << 20;

/// A body of one of the three, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct TokensBody {
    /// The model, where it is named.
    pub model: Option<String>,
    /// What is asked.
    pub question: TokensQuestion,
    /// Whether each token's text is asked for.
    pub with_pieces: bool,
    /// The field that holds what the question is about.
    pub asked_in: &'static str,
}

impl TokensBody {
    /// Reads a body of `/tokenize`: llama.cpp's has `content`, vLLM's `prompt` or `messages`.
    pub fn parse_tokenize(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let model = fields.take("model", "a string")?;
        let content: Option<String> = fields.take("content", "a string")?;
        let prompt: Option<String> = fields.take("prompt", "a string")?;
        let messages = fields.take_value("messages");
        let (question, with_pieces, asked_in) = match (content, prompt, messages) {
            (Some(text), None, None) => {
                let add_special = fields.take("add_special", "true or false")?.unwrap_or(false);
                let parse_special = fields.take("parse_special", "true or false")?.unwrap_or(true);
                let with_pieces = fields.take("with_pieces", "true or false")?.unwrap_or(false);
                (TokensQuestion::Encode { text, add_special, parse_special }, with_pieces, "content")
            }
            (None, Some(text), None) => {
                let add_special = fields.take("add_special_tokens", "true or false")?.unwrap_or(true);
                let with_pieces = fields.take("return_token_strs", "true or false")?.unwrap_or(false);
                (TokensQuestion::Encode { text, add_special, parse_special: true }, with_pieces, "prompt")
            }
            (None, None, Some(messages)) => {
                if fields.take("add_special_tokens", "true or false")? == Some(true) {
                    let message = "`add_special_tokens` is not supported with `messages`: the model's template writes them";
                    return Err(BadParam::unsupported("add_special_tokens", message));
                }
                let with_pieces = fields.take("return_token_strs", "true or false")?.unwrap_or(false);
                (TokensQuestion::EncodeChat(take_chat(messages, &mut fields)?), with_pieces, "messages")
            }
            (None, None, None) => return Err(BadParam::missing("content")),
            _ => {
                let message =
                    "`content`, `prompt` and `messages` each say what to tokenize: send one of them";
                return Err(BadParam::invalid("content", message));
            }
        };
        finish(TOKENIZE, fields, asked_in)?;
        Ok(Self { model, question, with_pieces, asked_in })
    }

    /// Reads a body of `/detokenize`.
    pub fn parse_detokenize(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let model = fields.take("model", "a string")?;
        let tokens: Vec<Value> = fields.take_required("tokens", "an array of token ids")?;
        if tokens.len() > TOKENS_MAX {
            let message = format!("`tokens` holds {} tokens, {TOKENS_MAX} at most are taken", tokens.len());
            return Err(BadParam::invalid("tokens", message));
        }
        let id = |(i, token): (usize, &Value)| {
            token_id(token).ok_or_else(|| {
                let message = format!("`tokens[{i}]` must be a token id, not {}", short(token));
                BadParam::invalid(format!("tokens[{i}]"), message)
            })
        };
        let tokens = tokens.iter().enumerate().map(id).collect::<Result<_, _>>()?;
        finish(DETOKENIZE, fields, "tokens")?;
        let question = TokensQuestion::Decode(tokens);
        Ok(Self { model, question, with_pieces: false, asked_in: "tokens" })
    }

    /// Reads a body of `/apply-template`.
    pub fn parse_apply_template(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let model = fields.take("model", "a string")?;
        let messages = fields.take_value("messages").ok_or_else(|| BadParam::missing("messages"))?;
        let question = TokensQuestion::Render(take_chat(messages, &mut fields)?);
        finish(APPLY_TEMPLATE, fields, "messages")?;
        Ok(Self { model, question, with_pieces: false, asked_in: "messages" })
    }

    /// The question of `principal` to this model.
    pub fn into_request(self, principal: Principal, model: String) -> TokensRequest {
        let Self { question, with_pieces, .. } = self;
        TokensRequest { model, question, principal, with_pieces }
    }
}

/// The conversation, with what chat completions take beside it that the template is told.
fn take_chat(messages: Value, fields: &mut Fields) -> Result<ChatPrompt, BadParam> {
    let Value::Array(messages) = messages else {
        let message = format!("`messages` must be an array of messages, not {}", short(&messages));
        return Err(BadParam::invalid("messages", message));
    };
    Ok(ChatPrompt {
        messages: parse_messages(messages)?,
        tools: take_tools(fields)?,
        reasoning: openai_effort("reasoning_effort", fields.take("reasoning_effort", "a string")?)?,
        opens_answer: fields.take("add_generation_prompt", "true or false")?.unwrap_or(true),
    })
}

/// Refuses what is left; of a field that belongs beside another one, it says so.
fn finish(table: Table, mut fields: Fields, asked_in: &str) -> Result<(), BadParam> {
    table.check(&mut fields, "")?;
    fields.finish().map_err(|bad| match table.all().any(|field| field.path == bad.param) {
        true => {
            let message = format!("`{}` does not go with `{asked_in}`", bad.param);
            BadParam::invalid(bad.param, message)
        }
        false => bad,
    })
}

/// The answer of `/tokenize`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Tokenized {
    /// The ids; with `with_pieces` objects of `id` and `piece`, which is text, or bytes where it is no text
    /// alone.
    pub tokens: TokenList,
    /// How many; to vLLM's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Tokens of the model's context; to vLLM's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
    /// The texts, with `return_token_strs`; bytes that are no text alone are U+FFFD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

/// The tokens of a text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenList {
    /// Ids of the tokens.
    Ids(Vec<u32>),
    /// Ids of the tokens, with their texts.
    WithPieces(Vec<TokenWithPiece>),
}

/// A token with its text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct TokenWithPiece {
    /// Id of the token.
    pub id: u32,
    /// Text of the token.
    pub piece: TokenText,
}

/// A token's text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenText {
    /// Whole characters, as text.
    Text(String),
    /// Bytes that are no text alone.
    Bytes(Vec<u8>),
}

impl Tokenized {
    /// In the shape of who asked: llama.cpp's for a `content`, vLLM's for the others.
    pub fn new(answer: TokensAnswer, asked_in: &str, with_pieces: bool) -> Self {
        let TokensAnswer { tokens, pieces, context_tokens, .. } = answer;
        if asked_in == "content" {
            let text = |bytes| {
                String::from_utf8(bytes).map_or_else(|e| TokenText::Bytes(e.into_bytes()), TokenText::Text)
            };
            let tokens = match with_pieces {
                true => {
                    let piece = |(id, piece)| TokenWithPiece { id, piece: text(piece) };
                    TokenList::WithPieces(tokens.into_iter().zip(pieces).map(piece).collect())
                }
                false => TokenList::Ids(tokens),
            };
            return Self { tokens, count: None, max_model_len: None, token_strs: None };
        }
        let texts = || pieces.iter().map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        Self {
            count: Some(tokens.len()),
            max_model_len: Some(context_tokens),
            token_strs: with_pieces.then(texts),
            tokens: TokenList::Ids(tokens),
        }
    }
}

/// The answer of `/detokenize`: the text under both servers' names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Detokenized {
    /// As llama.cpp has it.
    pub content: String,
    /// As vLLM has it.
    pub prompt: String,
}

/// The answer of `/apply-template`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct RenderedPrompt {
    /// What the template made.
    pub prompt: String,
}
