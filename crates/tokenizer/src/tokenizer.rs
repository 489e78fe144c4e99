//! The tokenizer of one model.

use exo_formats::TokenizerSource;

use crate::{DecodeError, EncodeError, StreamDecoder, TokenizerError};

/// How a text is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EncodeOptions {
    /// Put the model's own beginning and end tokens around the text, as its files ask for. Off for rendered
    /// chat prompts: the template writes them.
    pub add_special: bool,
    /// Turn control tokens written out in the text into those tokens; see the crate's notes.
    pub parse_special: bool,
}

/// Text to ids and back. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Builds the tokenizer a model file describes.
    pub fn from_source(_source: &TokenizerSource) -> Result<Self, TokenizerError> {
        todo!()
    }

    /// The ids of `text`.
    pub fn encode(&self, _text: &str, _options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        todo!()
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. `skip_special` leaves control tokens out.
    pub fn decode(&self, _ids: &[u32], _skip_special: bool) -> Result<String, DecodeError> {
        todo!()
    }

    /// A decoder that takes ids one by one. What it gives out, joined, is what [`Tokenizer::decode`] returns.
    pub fn stream(&self, _skip_special: bool) -> StreamDecoder {
        todo!()
    }

    /// Like [`Tokenizer::stream`] for text that continues other text: a SentencePiece space at its start stays.
    pub fn stream_continuing(&self, _skip_special: bool) -> StreamDecoder {
        todo!()
    }

    /// The token as text for people, lossy; `None` beyond the vocabulary. Control tokens show their name.
    pub fn token_text(&self, _id: u32) -> Option<String> {
        todo!()
    }

    /// The bytes the token stands for; `None` beyond the vocabulary.
    pub fn token_bytes(&self, _id: u32) -> Option<Vec<u8>> {
        todo!()
    }

    /// The id of the token written exactly so in the vocabulary.
    pub fn token_id(&self, _text: &str) -> Option<u32> {
        todo!()
    }

    /// Whether the id is a control token.
    pub fn is_special(&self, _id: u32) -> bool {
        todo!()
    }

    /// One more than the highest id. A model's logits may be longer (padding) but not shorter.
    pub fn vocab_len(&self) -> u32 {
        todo!()
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        todo!()
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        todo!()
    }

    /// Every token that ends an answer: `eos`, end of turn, and their well-known names. Sorted.
    pub fn end_ids(&self) -> &[u32] {
        todo!()
    }
}
