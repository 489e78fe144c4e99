//! What tests of several dialects answer.

use crate::generate::{Summary, Usage};

/// The end of an answer of seven tokens.
pub fn summary() -> Summary {
    let usage = Usage {
        prompt_tokens: 9,
        completion_tokens: 7,
        cached_tokens: 4,
        reasoning_tokens: 2,
        ..Usage::default()
    };
    Summary { usage, model_id: "ab".to_owned(), stages: 1, ..Summary::default() }
}

/// A text in pieces of so many characters.
pub fn pieces(text: &str, step: usize) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(step).map(|piece| piece.iter().collect()).collect()
}
