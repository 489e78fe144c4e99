//! Decoding one token at a time.

/// Turns ids into text as they come. Owns what it needs, costs the same for every token, and never gives out
/// half a character.
#[derive(Clone, Debug)]
pub struct StreamDecoder {}

impl StreamDecoder {
    /// Takes the next id and returns the text that is now certain, possibly none. An id beyond the vocabulary
    /// stands for no text.
    pub fn push(&mut self, _id: u32) -> String {
        todo!()
    }

    /// Returns what was held back: the start of a character that never came becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        todo!()
    }
}
