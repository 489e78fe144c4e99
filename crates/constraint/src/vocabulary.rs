//! A model's tokens as bytes, in the shape that masks are made from.

use std::fmt;
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::CompileError;

/// One token of a vocabulary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// Stands for these bytes; for none, it never comes in an answer that keeps to a grammar.
    Bytes(Vec<u8>),
    /// A control token: not spelled by any text, but by its id in a grammar.
    Control,
}

/// The tokens of a model, and which of them end an answer.
#[derive(Clone)]
pub struct Vocabulary {
    env: TokEnv,
    hash: [u8; 32],
    end_ids: Arc<[u32]>,
}

impl Vocabulary {
    /// Of tokens in the order of their ids. `end_ids` beyond them are left out.
    pub fn new(tokens: impl Iterator<Item = TokenKind>, end_ids: &[u32]) -> Result<Self, CompileError> {
        let mut hash = blake3::Hasher::new();
        let words: Vec<Vec<u8>> = (0u32..)
            .zip(tokens)
            .map(|(id, token)| {
                let word = match token {
                    TokenKind::Control => control(id),
                    // No text has this byte, and the engine's control tokens begin with it.
                    TokenKind::Bytes(bytes) if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
                    TokenKind::Bytes(bytes) => bytes,
                };
                hash.update(&(word.len() as u64).to_le_bytes()).update(&word);
                word
            })
            .collect();
        let mut ends: Vec<u32> = end_ids.iter().copied().filter(|id| (*id as usize) < words.len()).collect();
        ends.sort_unstable();
        ends.dedup();
        let &[first, ..] = ends.as_slice() else { return Err(CompileError::NoEnd) };
        ends.iter().for_each(|id| {
            hash.update(&id.to_le_bytes());
        });
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Ok(Self { env, hash: *hash.finalize().as_bytes(), end_ids: ends.into() })
    }

    /// Equal for equal tokens and ends.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Tokens that end an answer, at least one, sorted.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    pub(crate) fn env(&self) -> &TokEnv {
        &self.env
    }
}

/// A word that no text spells.
fn control(id: u32) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend(format!("<control-{id}>").into_bytes());
    word
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vocabulary({} tokens)", self.env.tok_trie().vocab_size())
    }
}
