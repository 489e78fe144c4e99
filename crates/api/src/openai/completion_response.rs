//! `POST /v1/completions`: the answer, whole and in chunks (which have the same shape here).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::usage::UsageBody;
use crate::generate::{FinishReason, TokenPiece};
use crate::summary::{ExoSummary, finite_logprob};

/// The whole answer, or a chunk of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Completion {
    /// `cmpl-` and the request's id.
    pub id: String,
    /// Always `text_completion`.
    pub object: String,
    /// When the answer was made, in seconds since 1970.
    pub created: u64,
    /// The model's name, as the request gave it.
    pub model: String,
    /// The kernel families; in a stream only in the usage chunk.
    pub system_fingerprint: Option<String>,
    /// The answers by index, or what is new in one of them.
    pub choices: Vec<CompletionChoice>,
    /// Tokens taken; in a stream only in the usage chunk.
    pub usage: Option<UsageBody>,
    /// How it was made; in a stream only in the usage chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exo: Option<ExoSummary>,
}

/// One answer, or what is new in it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    /// The text, after the prompt's with `echo`.
    pub text: String,
    /// Number of the choice, from 0.
    pub index: u16,
    /// Probabilities, where asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended, in the choice's last chunk.
    pub finish_reason: Option<FinishReason>,
}

/// Probabilities of an answer's tokens, as parallel lists.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Texts; a token that is part of a character is written `bytes:\xe2\x82`.
    pub tokens: Vec<String>,
    /// Natural logarithms; null for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens at each place; null in front of a prompt's first token.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each token begins, in characters of the answer.
    pub text_offset: Vec<u64>,
}

/// How far the text of an answer has come, token by token.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TextOffset {
    chars: u64,
    /// Bytes of a character whose rest has not come.
    partial: Vec<u8>,
}

impl TextOffset {
    /// Where the token begins that `piece` is; behind it come the others. The parts of a character begin
    /// where it does.
    fn advance(&mut self, piece: &TokenPiece) -> u64 {
        let begins = self.chars;
        if piece.is_text {
            self.partial.extend_from_slice(&piece.bytes);
        }
        loop {
            let (whole, wrong) = match std::str::from_utf8(&self.partial) {
                Ok(text) => (text.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            let text = String::from_utf8_lossy(&self.partial[..whole]);
            self.chars += text.chars().count() as u64 + u64::from(wrong.is_some());
            self.partial.drain(..whole + wrong.unwrap_or(0));
            if wrong.is_none() {
                return begins;
            }
        }
    }
}

impl CompletionLogprobs {
    /// Appends `piece`, which begins where `offset` is.
    pub fn push(&mut self, piece: TokenPiece, offset: &mut TextOffset) {
        let begins = offset.advance(&piece);
        self.tokens.push(shown(&piece.text, &piece.bytes));
        self.token_logprobs.push(piece.logprob.map(finite_logprob));
        let top = piece.top.iter().map(|t| (shown(&t.text, &t.bytes), finite_logprob(t.logprob)));
        self.top_logprobs.push(piece.logprob.map(|_| top.collect()));
        self.text_offset.push(begins);
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: Self) {
        self.tokens.extend(other.tokens);
        self.token_logprobs.extend(other.token_logprobs);
        self.top_logprobs.extend(other.top_logprobs);
        self.text_offset.extend(other.text_offset);
    }
}

/// Parts of a character would all read U+FFFD and collide as keys; OpenAI writes their bytes instead.
fn shown(text: &str, bytes: &[u8]) -> String {
    if std::str::from_utf8(bytes).is_ok() {
        return text.to_owned();
    }
    bytes.iter().fold("bytes:".to_owned(), |out, b| out + &format!("\\x{b:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::TopToken;

    #[test]
    fn a_character_in_three_tokens_counts_once_and_a_control_token_not_at_all() {
        let (mut logprobs, mut offset) = (CompletionLogprobs::default(), TextOffset::default());
        let mut push = |bytes: &[u8], is_text| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let piece =
                TokenPiece { id: 1, text, bytes: bytes.to_vec(), logprob: Some(-0.5), is_text, top: vec![] };
            logprobs.push(piece, &mut offset);
        };
        let crab = "🦀".as_bytes();
        for part in ["a né".as_bytes(), &crab[..1], &crab[1..3], &crab[3..], b"b"] {
            push(part, true);
        }
        push(b"<|im_end|>", false);
        push(b"\xffc", true);
        push(b"d", true);
        assert_eq!(logprobs.text_offset, [0, 4, 4, 4, 5, 6, 6, 8]);
    }

    #[test]
    fn halves_of_a_character_stay_apart_and_minus_infinity_stays_a_number() {
        let half =
            |byte: u8, logprob| TopToken { id: 0, text: "\u{fffd}".into(), bytes: vec![byte], logprob };
        let mut logprobs = CompletionLogprobs::default();
        let piece = TokenPiece {
            id: 1,
            text: "né".into(),
            bytes: "né".into(),
            logprob: Some(-0.5),
            is_text: true,
            top: vec![half(0xe2, -1.0), half(0xc3, f32::NEG_INFINITY)],
        };
        logprobs.push(piece, &mut TextOffset::default());
        let keys: Vec<_> = logprobs.top_logprobs[0].iter().flatten().collect();
        assert_eq!(keys, [(&"bytes:\\xc3".to_owned(), &-9999.0), (&"bytes:\\xe2".to_owned(), &-1.0)]);
    }
}
