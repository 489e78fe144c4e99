//! What templates write around calls and thoughts, as tokens and text.

use std::collections::BTreeMap;

use exo_api::GenerateError;
use exo_constraint::TemplatePiece;
use exo_tokenizer::calls::CallFormat;
use exo_tokenizer::{TextPart, Tokenizer};

use crate::library::OpenModel;

/// The control tokens among the signs of thoughts, answers and calls.
pub fn signs(tokenizer: &Tokenizer, reading: &exo_tokenizer::calls::AnswerFormat) -> BTreeMap<u32, String> {
    let thought = reading.thought.iter().flat_map(|(open, close)| [open.as_str(), close]);
    let calls = reading.calls.iter().flat_map(CallFormat::texts);
    let texts = thought.chain([reading.answer_open.as_str()]).chain(calls);
    let parts = texts.filter_map(|text| tokenizer.split_control(text).ok()).flatten();
    let sign = |part| match part {
        TextPart::Control(id) => Some((id, tokenizer.token_text(id)?)),
        TextPart::Text(_) => None,
    };
    parts.filter_map(sign).collect()
}

/// The parts of what a template writes.
pub fn pieces(open: &OpenModel, text: &str) -> Result<Vec<TemplatePiece>, GenerateError> {
    let parts = open.tokenizer.split_control(text);
    let parts = parts
        .map_err(|e| GenerateError::Internal { message: format!("a sign of calls was not found: {e}") })?;
    let piece = |part| match part {
        TextPart::Text(text) => TemplatePiece::Text(text),
        TextPart::Control(id) => TemplatePiece::Control(id),
    };
    Ok(parts.into_iter().map(piece).collect())
}
