//! Decoding one token at a time.

use std::str;
use std::sync::Arc;

use crate::pieces::{Pieces, Start};

/// Turns ids into text as they come. Owns what it needs, costs the same for every token, and never gives out
/// half a character.
///
/// Bytes that can no longer become UTF-8 turn into U+FFFD, one for each part that could have begun a
/// character, as in [`String::from_utf8_lossy`]. (Hugging Face's byte fallback replaces *every* byte of a run
/// that holds one bad byte; a stream cannot take back the good ones.)
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// What the start of the text still loses.
    start: Start,
    /// Whether any token was taken.
    begun: bool,
    /// The beginning of a character: at most three bytes between calls.
    held: Vec<u8>,
}

impl StreamDecoder {
    pub(crate) fn new(pieces: Arc<Pieces>, skip_special: bool, at_start: bool) -> Self {
        let start = if at_start { pieces.start } else { Start::Nothing };
        Self { pieces, skip_special, start, begun: !at_start, held: Vec::new() }
    }

    /// Takes the next id and returns the text that is now certain, possibly none. An id beyond the vocabulary
    /// stands for no text.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_into(id, &mut out);
        out
    }

    /// Returns what was held back: the start of a character that never came becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        self.trim_start(rest)
    }

    pub(crate) fn push_into(&mut self, id: u32, out: &mut String) {
        let pieces = Arc::clone(&self.pieces);
        let Some(bytes) = pieces.get(id) else { return };
        if self.skip_special && pieces.is_special(id) {
            return;
        }
        if pieces.spaced && self.begun {
            self.held.push(b' ');
        }
        if !self.begun && self.start == Start::FirstTokenSpaces {
            self.held.extend(bytes.iter().filter(|&&b| b != b' '));
        } else {
            self.held.extend_from_slice(bytes);
        }
        self.begun = true;
        let certain = self.take_certain();
        out.push_str(&self.trim_start(certain));
    }

    /// Removes from `held` everything but the beginning of a character, and returns it as text.
    fn take_certain(&mut self) -> String {
        let mut out = String::with_capacity(self.held.len());
        let mut at = 0;
        while at < self.held.len() {
            match str::from_utf8(&self.held[at..]) {
                Ok(text) => {
                    out.push_str(text);
                    at = self.held.len();
                }
                Err(error) => {
                    let good = at + error.valid_up_to();
                    out.push_str(str::from_utf8(&self.held[at..good]).unwrap_or_default());
                    at = good;
                    let Some(bad) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    at += bad;
                }
            }
        }
        self.held.drain(..at);
        out
    }

    fn trim_start(&mut self, text: String) -> String {
        let Start::Strip { content, count } = self.start else { return text };
        if text.is_empty() {
            return text;
        }
        let dropped = text.chars().take(count).take_while(|&c| c == content).count();
        let rest = text[dropped * content.len_utf8()..].to_owned();
        // Only a text that was nothing but `content` leaves something to strip.
        self.start = match count - dropped {
            left if rest.is_empty() && left > 0 => Start::Strip { content, count: left },
            _ => Start::Nothing,
        };
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// One token per byte, so that ids are bytes.
    fn bytes_decoder() -> StreamDecoder {
        let tokens = (0..=255u8).map(|b| Some(format!("<0x{b:02X}>")));
        let pieces = Pieces::new(tokens, vec![false; 256], &json!({"type": "ByteFallback"})).expect("builds");
        StreamDecoder::new(Arc::new(pieces), false, true)
    }

    #[test]
    fn a_character_appears_when_its_last_byte_does() {
        let mut decoder = bytes_decoder();
        let parts: Vec<String> = "é🦀".bytes().map(|b| decoder.push(b.into())).collect();
        assert_eq!(parts, ["", "é", "", "", "", "🦀"]);
        assert_eq!(decoder.push(0xF0), "");
        assert_eq!(decoder.finish(), "\u{FFFD}");
        assert_eq!(decoder.finish(), "", "only once");
    }

    #[test]
    fn leading_spaces_are_stripped_across_tokens() {
        let chain = json!({"type": "Sequence", "decoders": [
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}]});
        let tokens = [" ", "a", "  b"].map(|t| Some(t.to_owned()));
        let pieces = Arc::new(Pieces::new(tokens.into_iter(), vec![false; 3], &chain).expect("builds"));
        let decode = |ids: &[u32], at_start| {
            let mut decoder = StreamDecoder::new(Arc::clone(&pieces), false, at_start);
            ids.iter().map(|&id| decoder.push(id)).collect::<String>()
        };
        assert_eq!(decode(&[0, 0, 0, 1], true), " a");
        assert_eq!(decode(&[0, 1, 0], true), "a ");
        assert_eq!(decode(&[0, 2], true), " b");
        assert_eq!(decode(&[0, 1], false), " a", "a continuation keeps its space");
    }

    proptest! {
        /// Whatever the bytes, in pieces they decode to what they decode to at once.
        #[test]
        fn a_stream_is_the_lossy_decoding_of_all(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0xC0u8..=0xFF, 0x80u8..0xC0], 0..64),
        ) {
            let mut decoder = bytes_decoder();
            let mut text: String = bytes.iter().map(|&b| decoder.push(b.into())).collect();
            prop_assert!(decoder.held.len() <= 3);
            text.push_str(&decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
