//! The text of one choice: decoding, stop strings, and the tokens behind each piece of text.

use exo_api::{Delta, GenerateRequest, TokenPiece, TopToken};
use exo_tokenizer::{StreamDecoder, Tokenizer};
use exo_types::SampledToken;

use crate::library::OpenModel;

/// One answer while it grows.
pub struct Choice {
    index: u16,
    decoder: StreamDecoder,
    tokenizer: Tokenizer,
    stop: Vec<String>,
    /// Decoded, not sent: it could be the start of a stop string.
    held: String,
    /// Tokens whose text is not sent yet; empty unless log-probabilities were asked for.
    held_tokens: Vec<TokenPiece>,
    tokens: u32,
    found_stop: bool,
    finished: bool,
}

impl Choice {
    /// An empty answer.
    pub fn new(index: u16, request: &GenerateRequest, open: &OpenModel) -> Self {
        Self {
            index,
            decoder: match request.prompt {
                exo_api::Prompt::Chat { .. } => open.tokenizer.stream(true),
                // A continuation keeps the space it begins with.
                _ => open.tokenizer.stream_continuing(true),
            },
            tokenizer: open.tokenizer.clone(),
            stop: request.stop.clone(),
            held: String::new(),
            held_tokens: Vec::new(),
            tokens: 0,
            found_stop: false,
            finished: false,
        }
    }

    /// Which choice it is.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Tokens generated.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Whether a stop string ended it.
    pub fn found_stop(&self) -> bool {
        self.found_stop
    }

    /// Whether it is complete.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes a token; gives the text that is now certain. Tokens behind a stop string count for nothing.
    pub fn push(&mut self, token: &SampledToken) -> Option<Delta> {
        if self.found_stop || self.finished {
            return None;
        }
        self.tokens += 1;
        self.held.push_str(&self.decoder.push(token.token));
        if let Some(logprob) = token.logprob {
            let piece = self.piece(token, logprob);
            self.held_tokens.push(piece);
        }
        if let Some(at) = self.stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.found_stop = true;
            self.held.truncate(at);
            return self.take(at);
        }
        let keep = longest_start(&self.held, &self.stop);
        self.take(self.held.len() - keep)
    }

    /// The rest, when no more tokens come.
    pub fn finish(&mut self) -> Option<Delta> {
        self.finished = true;
        if self.found_stop {
            return None;
        }
        self.held.push_str(&self.decoder.finish());
        self.take(self.held.len())
    }

    fn take(&mut self, len: usize) -> Option<Delta> {
        let text: String = self.held.drain(..len).collect();
        if text.is_empty() && self.held_tokens.is_empty() {
            return None;
        }
        // Tokens wait for text that is held back, so that a client sees both together.
        let tokens = if self.held.is_empty() { std::mem::take(&mut self.held_tokens) } else { Vec::new() };
        (!text.is_empty() || !tokens.is_empty()).then_some(Delta { index: self.index, text, tokens })
    }

    fn piece(&self, token: &SampledToken, logprob: f32) -> TokenPiece {
        let top = |&(id, logprob): &(u32, f32)| {
            let (text, bytes) = self.text_and_bytes(id);
            TopToken { id, text, bytes, logprob }
        };
        let (text, bytes) = self.text_and_bytes(token.token);
        TokenPiece { id: token.token, text, bytes, logprob, top: token.top.iter().map(top).collect() }
    }

    fn text_and_bytes(&self, id: u32) -> (String, Vec<u8>) {
        let text = self.tokenizer.token_text(id).unwrap_or_default();
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        (text, bytes)
    }
}

/// Bytes at the end of `text` that could be the start of one of `stops`.
fn longest_start(text: &str, stops: &[String]) -> usize {
    let mut longest = 0;
    for stop in stops {
        let max = stop.len().saturating_sub(1).min(text.len());
        let fits = |n: &usize| stop.is_char_boundary(*n) && text.ends_with(&stop[..*n]);
        longest = longest.max((1..=max).rev().find(fits).unwrap_or(0));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::longest_start;

    #[test]
    fn text_is_held_back_only_while_it_could_become_a_stop_string() {
        let stops = ["\n\nUser:".to_owned(), "END".to_owned()];
        assert_eq!(longest_start("hello", &stops), 0);
        assert_eq!(longest_start("hello\n", &stops), 1);
        assert_eq!(longest_start("hello\n\nUs", &stops), 4);
        assert_eq!(longest_start("the EN", &stops), 2);
        assert_eq!(longest_start("é", &["é!".to_owned()]), 2);
    }
}
