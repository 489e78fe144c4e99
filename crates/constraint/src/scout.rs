//! Which tokens come next because the grammar has no other text.

use std::fmt;
use std::sync::Arc;

use exo_types::DRAFTS_MAX;
use llguidance::Matcher;
use llguidance::toktrie::{TokEnv, TokTrie, parse_numeric_token};

/// How a model's tokenizer spells a text: token ids, or none.
pub type Spelling = dyn Fn(&str) -> Vec<u32> + Send + Sync;

/// Of a forced text at most so much is spelled: more than the tokens asked for mostly take.
const TEXT_BYTES_MAX: usize = 256;

/// Follows an answer and looks ahead. Forced bytes move the engine's state, so this one is its own: where it
/// fails, the answer goes on without it.
pub(crate) struct Scout {
    spelling: Arc<Spelling>,
    env: TokEnv,
    state: ScoutState,
    /// The answer's last token.
    last: Option<u32>,
}

enum ScoutState {
    /// No one asked so far.
    Idle,
    Follows(Box<Matcher>),
    Failed,
}

impl Scout {
    pub fn new(spelling: Arc<Spelling>, env: TokEnv) -> Self {
        Self { spelling, env, state: ScoutState::Idle, last: None }
    }

    /// The answer's next token.
    pub fn accept(&mut self, token: u32) {
        self.last = Some(token);
        if let ScoutState::Follows(matcher) = &mut self.state
            && matcher.consume_token(token).is_err()
        {
            self.state = ScoutState::Failed;
        }
    }

    /// What has to follow where `matcher` stands, [`DRAFTS_MAX`] at most.
    pub fn forced(&mut self, matcher: &Matcher) -> Vec<u32> {
        if let ScoutState::Idle = self.state {
            self.state = ScoutState::Follows(Box::new(matcher.deep_clone()));
        }
        let ScoutState::Follows(own) = &mut self.state else { return Vec::new() };
        if own.is_stopped() {
            return Vec::new();
        }
        let bytes = own.compute_ff_bytes();
        if own.is_error() {
            self.state = ScoutState::Failed;
            return Vec::new();
        }
        self.tokens(&bytes)
    }

    /// Tokens of forced bytes: text, and control tokens by their numbers.
    fn tokens(&self, mut bytes: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        while tokens.len() < DRAFTS_MAX as usize {
            match bytes {
                [] => break,
                [TokTrie::SPECIAL_TOKEN_MARKER, rest @ ..] => {
                    let Some((len, id)) = parse_numeric_token(rest) else { break };
                    tokens.push(id);
                    bytes = &rest[len..];
                }
                _ => {
                    let marker = bytes.iter().position(|b| *b == TokTrie::SPECIAL_TOKEN_MARKER);
                    let (text, rest) = bytes.split_at(marker.unwrap_or(bytes.len()).min(TEXT_BYTES_MAX));
                    let whole = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
                    tokens.extend(self.spell(whole, tokens.last().copied().or(self.last)));
                    if whole.len() < text.len() || whole.len() == TEXT_BYTES_MAX {
                        break;
                    }
                    bytes = rest;
                }
            }
        }
        tokens.truncate(DRAFTS_MAX as usize);
        tokens
    }

    /// As the tokenizer spells the text behind a token, as far as it spells what it is given.
    fn spell(&self, text: &str, before: Option<u32>) -> Vec<u32> {
        let trie = self.env.tok_trie();
        let spells = |tokens: &[u32]| trie.decode_raw(tokens) == text.as_bytes();
        let word = before.and_then(|before| Some((before, std::str::from_utf8(trie.token(before)).ok()?)));
        if let Some((before, word)) = word {
            let tokens = (self.spelling)(&format!("{word}{text}"));
            if let Some((first, behind)) = tokens.split_first()
                && *first == before
                && spells(behind)
            {
                return behind.to_vec();
            }
        }
        let alone = (self.spelling)(text);
        if spells(&alone) { alone } else { trie.greedy_tokenize(text.as_bytes()) }
    }
}

impl fmt::Debug for Scout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            ScoutState::Idle => "idle",
            ScoutState::Follows(_) => "follows",
            ScoutState::Failed => "failed",
        };
        write!(f, "Scout({state})")
    }
}
