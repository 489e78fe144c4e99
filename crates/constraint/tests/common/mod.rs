//! Grammars over small vocabularies, and whether they take a text.

// Each test file uses its part; helpers of tests fail by panicking.
#![allow(dead_code, clippy::unwrap_used)]

use exo_constraint::{Body, Compiler, Fold, Layout, Schema, Strictness, Thought, TokenKind, Vocabulary};
use exo_sampler::TokenConstraint;
use serde_json::Value;

/// Ids: 0..256 the bytes, then these words, then what is no text; one of that ends an answer.
pub fn compiler(words: &[&str], rest: Vec<TokenKind>, end: u32) -> Compiler {
    let bytes = (0..=255u8).map(|byte| TokenKind::Bytes(vec![byte]));
    let words = words.iter().map(|word| TokenKind::Bytes(word.as_bytes().to_vec()));
    Compiler::new(Vocabulary::new(bytes.chain(words).chain(rest), &[end]).unwrap()).unwrap()
}

pub fn layout(body: Body) -> Layout {
    Layout { thought: Thought::No, answer_open: Vec::new(), spelled: Vec::new(), body }
}

pub fn json_layout(schema: &Value) -> Layout {
    layout(Body::Json(Schema::read(schema, Strictness::Whole).unwrap().value))
}

pub fn start(compiler: &Compiler, layout: &Layout) -> Fold {
    let grammar = layout.grammar();
    match compiler.constrain(grammar.clone()) {
        Ok(constraint) => compiler.start(&constraint).unwrap(),
        Err(error) => panic!("{error}\n{grammar}"),
    }
}

/// Whether the whole text is an answer; its bytes one by one.
pub fn takes(mut fold: Fold, text: &str) -> bool {
    for byte in text.bytes() {
        if !fold.allows(byte.into()).unwrap() {
            return false;
        }
        fold.accept(byte.into());
    }
    fold.may_end().unwrap()
}
