//! The text of one choice: decoding, its parts, stop strings, and the tokens behind each piece of text.

use std::collections::BTreeMap;

use exo_api::{CallDelta, Delta, TokenPiece, TopToken};
use exo_tokenizer::calls::{AnswerParser, AnswerPart};
use exo_tokenizer::{StreamDecoder, TextPart, Tokenizer};
use exo_types::{RequestId, SampledToken, TokenScore};

use crate::running::Running;
use crate::signs::signs;
use crate::turn_rules::short_id;

/// One answer while it grows.
pub struct Choice {
    request: RequestId,
    index: u16,
    decoder: StreamDecoder,
    tokenizer: Tokenizer,
    /// Control tokens that are signs of thoughts and calls: the text that each stands for.
    signs: BTreeMap<u32, String>,
    parser: AnswerParser,
    short_ids: bool,
    /// Tokens that end the answer: no part of it, so without a probability in it.
    ends: Vec<u32>,
    calls: u32,
    stop: Vec<String>,
    /// Decoded, not sent: it could be the start of a stop string.
    held: String,
    /// Tokens whose text is not sent yet; empty unless log-probabilities were asked for.
    held_tokens: Vec<TokenPiece>,
    tokens: u32,
    reasoning_tokens: u32,
    found_stop: Option<String>,
    finished: bool,
}

impl Choice {
    pub fn new(index: u16, running: &Running) -> Self {
        let (request, tokenizer, plan) = (&running.request, &running.open.tokenizer, &running.prepared.plan);
        Self {
            request: running.name,
            index,
            decoder: match request.is_chat() {
                true => tokenizer.stream(true),
                // A continuation keeps the space it begins with.
                false => tokenizer.stream_continuing(true),
            },
            signs: stop_signs(running).chain(signs(tokenizer, &plan.reading)).collect(),
            parser: AnswerParser::new(plan.reading.clone()),
            short_ids: plan.short_ids,
            ends: if request.ignore_eos { Vec::new() } else { running.open.end_ids.clone() },
            calls: 0,
            tokenizer: tokenizer.clone(),
            stop: request.stop.clone(),
            held: String::new(),
            held_tokens: Vec::new(),
            tokens: 0,
            reasoning_tokens: 0,
            found_stop: None,
            finished: false,
        }
    }

    pub fn index(&self) -> u16 {
        self.index
    }

    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Those of them that belong to the thought.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// The stop string that ended it.
    pub fn found_stop(&self) -> Option<&str> {
        self.found_stop.as_deref()
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes a token; gives the text that is now certain. Tokens behind a stop string count for nothing.
    pub fn push(&mut self, token: &SampledToken) -> Option<Delta> {
        if self.found_stop.is_some() || self.finished {
            return None;
        }
        self.tokens += 1;
        self.reasoning_tokens += u32::from(self.parser.is_thinking());
        let text = match self.signs.get(&token.token) {
            Some(sign) => self.decoder.finish() + sign,
            None => self.decoder.push(token.token),
        };
        if let Some(logprob) = token.logprob.filter(|_| !self.ends.contains(&token.token)) {
            let piece = self.piece(token.token, Some(logprob), &token.top);
            self.held_tokens.push(piece);
        }
        let parts = self.parser.push(&text);
        let mut delta = self.delta_of(parts);
        if self.found_stop.is_none() {
            let keep = longest_start(&self.held, &self.stop);
            let sent: String = self.held.drain(..self.held.len() - keep).collect();
            delta.text.push_str(&sent);
        }
        self.send(delta)
    }

    /// What stands in front of the answer: the prompt, each token but its first with its score.
    pub fn echo(&self, text: &str, tokens: &[u32], scores: &[TokenScore]) -> Delta {
        let scores = std::iter::once(None).chain(scores.iter().map(Some));
        let piece = |(&token, score): (&u32, Option<&TokenScore>)| {
            let top = score.map(|score| score.top.as_slice()).unwrap_or_default();
            self.piece(token, score.map(|score| score.logprob), top)
        };
        let tokens = tokens.iter().zip(scores).map(piece).collect();
        Delta { index: self.index, text: text.to_owned(), tokens, ..Delta::default() }
    }

    /// The rest, when no more tokens come.
    pub fn finish(&mut self) -> Option<Delta> {
        self.finished = true;
        if self.found_stop.is_some() {
            return None;
        }
        let rest = self.decoder.finish();
        let mut parts = self.parser.push(&rest);
        parts.extend(self.parser.finish());
        let mut delta = self.delta_of(parts);
        if self.found_stop.is_none() {
            delta.text.push_str(&std::mem::take(&mut self.held));
        }
        self.send(delta)
    }

    /// What the parts come to. Text is held; it is searched for stop strings, and what stands in front of one
    /// is in the delta.
    fn delta_of(&mut self, parts: Vec<AnswerPart>) -> Delta {
        let mut delta = Delta { index: self.index, ..Delta::default() };
        for part in parts {
            match part {
                AnswerPart::Thought(text) => delta.reasoning.push_str(&text),
                AnswerPart::Text(text) => {
                    self.held.push_str(&text);
                    let places = self.stop.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
                    if let Some((at, stop)) = places.min() {
                        self.found_stop = Some(stop.clone());
                        self.held.truncate(at);
                        delta.text.push_str(&std::mem::take(&mut self.held));
                        return delta;
                    }
                }
                AnswerPart::Call(name) => {
                    // No stop string reaches from text into a call.
                    delta.text.push_str(&std::mem::take(&mut self.held));
                    let begins = Some((self.call_id(), name));
                    delta.calls.push(CallDelta { index: self.calls, begins, arguments: String::new() });
                    self.calls += 1;
                }
                AnswerPart::Arguments(arguments) => match delta.calls.last_mut() {
                    Some(call) => call.arguments.push_str(&arguments),
                    None => {
                        let index = self.calls.saturating_sub(1);
                        delta.calls.push(CallDelta { index, begins: None, arguments });
                    }
                },
            }
        }
        delta
    }

    /// The next call's id, from what it is a part of: an answer that goes on elsewhere has the same.
    fn call_id(&self) -> String {
        let mut hash = blake3::Hasher::new();
        hash.update(b"exo call id v1").update(&self.request.0.to_le_bytes());
        hash.update(&self.index.to_le_bytes()).update(&self.calls.to_le_bytes());
        let bytes = *hash.finalize().as_bytes();
        match self.short_ids {
            true => short_id(&bytes),
            false => format!("call_{}", data_encoding::HEXLOWER.encode(&bytes[..12])),
        }
    }

    fn send(&mut self, delta: Delta) -> Option<Delta> {
        // Tokens wait for text that is held back, so that a client sees both together.
        let tokens = if self.held.is_empty() { std::mem::take(&mut self.held_tokens) } else { Vec::new() };
        // What comes at the end has no token of its own.
        let position = self.tokens + u32::from(self.finished);
        let delta = Delta { tokens, position, ..delta };
        (!delta.is_empty()).then_some(delta)
    }

    fn piece(&self, id: u32, logprob: Option<f32>, top: &[(u32, f32)]) -> TokenPiece {
        let likely = |&(id, logprob): &(u32, f32)| {
            let (text, bytes) = self.text_and_bytes(id);
            TopToken { id, text, bytes, logprob }
        };
        let (text, bytes) = self.text_and_bytes(id);
        let is_text = !self.tokenizer.is_special(id);
        TokenPiece { id, text, bytes, logprob, is_text, top: top.iter().map(likely).collect() }
    }

    fn text_and_bytes(&self, id: u32) -> (String, Vec<u8>) {
        let text = self.tokenizer.token_text(id).unwrap_or_default();
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        (text, bytes)
    }
}

/// The control tokens that are stop strings: they are no text otherwise, and would never be found. Those that
/// end answers anyway stay so, and those within longer stop strings: what is seen of them and does not stop
/// would be text of the answer.
fn stop_signs(running: &Running) -> impl Iterator<Item = (u32, String)> {
    let open = &running.open;
    let parts = running.request.stop.iter().filter_map(|stop| open.tokenizer.split_control(stop).ok());
    parts.filter_map(|parts| match parts.as_slice() {
        [TextPart::Control(id)] if !open.end_ids.contains(id) => Some((*id, open.tokenizer.token_text(*id)?)),
        _ => None,
    })
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
