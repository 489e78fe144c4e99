//! The tokenizer of one model.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use exo_formats::TokenizerSource;
use tokenizers::{Model, NormalizedString, OffsetReferential, OffsetType, PreTokenizedString};

use crate::build::{Built, Frame, guarded};
use crate::control_keys::Keys;
use crate::guard::{Deadline, ENCODE_TIME_MAX};
use crate::pipeline::encode_error;
use crate::{DecodeError, EncodeError, StreamDecoder, TokenizerError, gguf, json};

/// Longest text encoded at once: about half a million tokens. The crate needs some hundred bytes for each.
const TEXT_BYTES_MAX: usize = 2 << 20;
/// The same for tokenizers with added tokens that look at the text before them (masks of encoder models): the
/// crate reads all of it for each.
const TEXT_BYTES_MAX_LOOKING_BACK: usize = 128 << 10;

/// Control tokens that end an answer, by the names models give them, where the files name only some of them.
pub(crate) const END_NAMES: &str = "\
    <|eot_id|> <|eom_id|> <|end_of_text|> <|im_end|> <|endoftext|> <|end|> <|return|> <|call|> \
    <end_of_turn> <|end_of_turn|> <end_of_utterance> <｜end▁of▁sentence｜>";

/// Tokens around what is before a hole, between that and what is behind it, and in front of what fills it, by
/// the names models give them.
const INFILL_NAMES: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// How a text is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EncodeOptions {
    /// Put the model's own beginning and end tokens around the text, as its files ask for. Off for rendered
    /// chat prompts: the template writes them.
    pub add_special: bool,
    /// Turn control tokens written out in the text into those tokens; see the crate's notes.
    pub parse_special: bool,
}

/// A part of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextPart {
    /// Text without control tokens.
    Text(String),
    /// A control token.
    Control(u32),
}

/// Text to ids and back. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    built: Built,
    frame: Frame,
    end_ids: Vec<u32>,
    keys: Keys,
}

impl Tokenizer {
    /// Builds the tokenizer a model file describes.
    pub fn from_source(source: &TokenizerSource) -> Result<Self, TokenizerError> {
        let (built, frame) = match source {
            TokenizerSource::Json { tokenizer_json, tokenizer_config } => {
                json::build(tokenizer_json, tokenizer_config.as_ref())?
            }
            TokenizerSource::Gguf(gguf) => gguf::build(gguf)?,
        };
        let end_ids = end_ids(&built, &frame);
        let keys = Keys::default();
        let mut inner = Inner { built, frame, end_ids, keys };
        inner.keys = inner.find_keys();
        Ok(Self(Arc::new(inner)))
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        self.check_length(text)?;
        let encoded = guarded(|| self.0.built.encode(text, options.parse_special, &BTreeMap::new()));
        let ids = encoded.map_err(|reason| EncodeError::Model { reason })??;
        if !options.add_special {
            return Ok(ids);
        }
        let frame = &self.0.frame;
        Ok([frame.before.as_slice(), &ids, &frame.after].concat())
    }

    /// The ids that ask a model for what stands between `prefix` and `suffix`, with the model's own beginning
    /// tokens; `None` where its vocabulary has no tokens for that. Control tokens in both texts are text.
    pub fn encode_infill(&self, prefix: &str, suffix: &str) -> Result<Option<Vec<u32>>, EncodeError> {
        let found = INFILL_NAMES.iter().find_map(|[before, between, behind]| {
            Some([self.token_id(before)?, self.token_id(between)?, self.token_id(behind)?])
        });
        let Some([before, between, behind]) = found else { return Ok(None) };
        let text = EncodeOptions::default();
        let (prefix, suffix) = (self.encode(prefix, text)?, self.encode(suffix, text)?);
        let start = self.0.frame.before.as_slice();
        Ok(Some([start, &[before], &prefix, &[between], &suffix, &[behind]].concat()))
    }

    pub(crate) fn check_length(&self, text: &str) -> Result<(), EncodeError> {
        let looks_back = self.0.built.looks_back;
        let limit = if looks_back { TEXT_BYTES_MAX_LOOKING_BACK } else { TEXT_BYTES_MAX };
        let bytes = text.len();
        if bytes > limit { Err(EncodeError::TooLong { bytes, limit }) } else { Ok(()) }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Where control tokens are found in a text of acceptable length, in order.
    pub(crate) fn find_specials(&self, text: &str) -> Result<Vec<Range<usize>>, EncodeError> {
        let found = guarded(|| self.0.find_specials(text));
        found.map_err(|reason| EncodeError::Model { reason })?
    }

    /// A text in parts: what is text, and the control tokens that are written out in it.
    pub fn split_control(&self, text: &str) -> Result<Vec<TextPart>, EncodeError> {
        self.check_length(text)?;
        let (mut parts, mut done) = (Vec::new(), 0);
        for found in self.find_specials(text)? {
            let Some(id) = self.token_id(&text[found.clone()]).filter(|id| self.0.is_control(*id)) else {
                continue;
            };
            if found.start > done {
                parts.push(TextPart::Text(text[done..found.start].to_owned()));
            }
            parts.push(TextPart::Control(id));
            done = found.end;
        }
        if done < text.len() {
            parts.push(TextPart::Text(text[done..].to_owned()));
        }
        Ok(parts)
    }

    /// As [`Tokenizer::encode`] with control tokens, for a text in which characters stand for others where no
    /// token may be found.
    pub(crate) fn encode_hidden(
        &self,
        text: &str,
        shown: &BTreeMap<char, char>,
    ) -> Result<Vec<u32>, EncodeError> {
        let encoded = guarded(|| self.0.built.encode(text, true, shown));
        encoded.map_err(|reason| EncodeError::Model { reason })?
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. `skip_special` leaves control tokens out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, DecodeError> {
        let vocab_len = self.vocab_len();
        if let Some(&id) = ids.iter().find(|&&id| id >= vocab_len) {
            return Err(DecodeError::UnknownToken { id, vocab_len });
        }
        let mut decoder = self.stream(skip_special);
        let mut text = String::new();
        ids.iter().for_each(|&id| decoder.push_into(id, &mut text));
        text.push_str(&decoder.finish());
        Ok(text)
    }

    /// A decoder that takes ids one by one. What it gives out, joined, is what [`Tokenizer::decode`] returns.
    pub fn stream(&self, skip_special: bool) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.0.built.pieces), skip_special, true)
    }

    /// Like [`Tokenizer::stream`] for text that continues other text: a SentencePiece space at its start
    /// stays.
    pub fn stream_continuing(&self, skip_special: bool) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.0.built.pieces), skip_special, false)
    }

    /// The token as text for people, lossy; `None` beyond the vocabulary. Control tokens show their name.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.0.built.pieces.get(id).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// The bytes the token stands for; `None` beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.0.built.pieces.get(id).map(<[u8]>::to_vec)
    }

    /// The id of the token written exactly so in the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.0.built.vocab.token_to_id(text, &self.0.built.words)
    }

    /// Whether the id is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.built.pieces.is_special(id)
    }

    /// One more than the highest id. A model's logits may be longer (padding) but not shorter.
    pub fn vocab_len(&self) -> u32 {
        self.0.built.pieces.len()
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.0.frame.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.0.frame.eos
    }

    /// Every token that ends an answer: `eos`, end of turn, and their well-known names. Sorted.
    pub fn end_ids(&self) -> &[u32] {
        &self.0.end_ids
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_len())
    }
}

impl Inner {
    /// Whether only a chat template may make this token: control tokens, and what begins and ends a text,
    /// whatever kind the file says it is.
    fn is_control(&self, id: u32) -> bool {
        self.built.pieces.is_special(id)
            || self.frame.bos == Some(id)
            || self.end_ids.binary_search(&id).is_ok()
    }

    fn find_keys(&self) -> Keys {
        let added = self.built.vocab.get_added_tokens_decoder();
        let control = || added.iter().filter(|(id, _)| self.is_control(**id)).map(|(_, token)| token);
        Keys::of(control().map(|t| t.content.as_str()), control().any(|t| t.normalized))
    }

    fn find_specials(&self, text: &str) -> Result<Vec<Range<usize>>, EncodeError> {
        let words = self.built.extract(text, true, Deadline::start())?;
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter();
        let control =
            splits.filter(|(_, _, tokens)| tokens.iter().flatten().any(|token| self.is_control(token.id)));
        Ok(control.map(|(_, (start, end), _)| start..end).collect())
    }
}

impl Built {
    /// The tokens that are found in the text before it is cut into words, and the normalised rest.
    fn extract(
        &self,
        text: &str,
        parse_special: bool,
        deadline: Deadline,
    ) -> Result<PreTokenizedString, EncodeError> {
        let vocab = if parse_special { &self.vocab } else { &self.vocab_plain };
        let normalizer = self.pipeline.normalizer(deadline);
        let words = vocab.extract_and_normalize(Some(&normalizer), text);
        normalizer.outcome()?;
        Ok(words)
    }

    /// `shown`: which characters become which others once tokens were found, see
    /// [`Tokenizer::encode_hidden`].
    fn encode(
        &self,
        text: &str,
        parse_special: bool,
        shown: &BTreeMap<char, char>,
    ) -> Result<Vec<u32>, EncodeError> {
        let deadline = Deadline::start();
        let mut words = self.extract(text, parse_special, deadline)?;
        for (private, shown) in shown {
            words
                .normalize(|piece| piece.replace(*private, shown.encode_utf8(&mut [0; 4])))
                .map_err(encode_error)?;
        }
        self.pipeline.cut(&mut words, deadline)?;
        let tokenize = |word: &NormalizedString| {
            if deadline.is_past() {
                let reason = format!("it took longer than {} s", ENCODE_TIME_MAX.as_secs());
                return Err(EncodeError::Model { reason }.into());
            }
            self.words.tokenize(word.get())
        };
        words.tokenize(tokenize).map_err(encode_error)?;
        let encoding = words.into_encoding(None, 0, OffsetType::None).map_err(encode_error)?;
        Ok(encoding.get_ids().to_vec())
    }
}

fn end_ids(built: &Built, frame: &Frame) -> Vec<u32> {
    let named = END_NAMES.split(' ').filter_map(|name| built.vocab.token_to_id(name, &built.words));
    let named = named.filter(|&id| built.pieces.is_special(id));
    let mut ids: Vec<u32> = named.chain(frame.eos).chain(frame.eot).collect();
    ids.sort_unstable();
    ids.dedup();
    // Harmony's turn is of several messages: what ends one of them does not end it.
    let id =
        |name: &str| built.vocab.token_to_id(name, &built.words).filter(|&id| built.pieces.is_special(id));
    if let (Some(_), Some(_), Some(end)) = (id("<|return|>"), id("<|call|>"), id("<|end|>")) {
        ids.retain(|id| *id != end);
    }
    ids
}
