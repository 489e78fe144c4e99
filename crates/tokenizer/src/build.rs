//! The common last step of building: parts in, checked and ready tokenizer out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;
use tokenizers::{AddedToken, AddedVocabulary, Model};

use crate::TokenizerError;
use crate::guard::Deadline;
use crate::pieces::Pieces;
use crate::pipeline::{Pipeline, too_large};
use crate::word_model::WordModel;

/// Ids are indices of tables, so a file must not name one in the billions. The largest real vocabularies have
/// about 300,000.
const VOCAB_LEN_MAX: usize = 4 << 20;

/// What both kinds of source come down to.
pub(crate) struct TokenizerParts {
    pub(crate) words: WordModel,
    pub(crate) added: Vec<AddedToken>,
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    pub(crate) decoder: Value,
}

/// The working parts of a tokenizer.
pub(crate) struct Built {
    pub(crate) words: WordModel,
    pub(crate) pipeline: Pipeline,
    /// Added tokens, control tokens among them, are found in text.
    pub(crate) vocab: AddedVocabulary,
    /// The same with control tokens overlooked.
    pub(crate) vocab_plain: AddedVocabulary,
    /// An added token looks at the text before it; the crate does that in time quadratic in the text.
    pub(crate) looks_back: bool,
    pub(crate) pieces: Arc<Pieces>,
}

/// What a source says about the ends of a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) eot: Option<u32>,
}

impl TokenizerParts {
    pub(crate) fn build(self) -> Result<Built, TokenizerError> {
        let pipeline = Pipeline::from_json(&self.normalizer, &self.pre_tokenizer)?;
        let looks_back = self.added.iter().any(|t| t.lstrip || t.single_word);
        let vocab = add_tokens(&self.words, &pipeline, self.added)?;
        let mut vocab_plain = vocab.clone();
        vocab_plain.set_encode_special_tokens(true);
        let pieces = Arc::new(pieces(&self.words, &vocab, &self.decoder)?);
        Ok(Built { words: self.words, pipeline, vocab, vocab_plain, looks_back, pieces })
    }
}

fn add_tokens(
    words: &WordModel,
    pipeline: &Pipeline,
    added: Vec<AddedToken>,
) -> Result<AddedVocabulary, TokenizerError> {
    let run = pipeline.normalizer(Deadline::start());
    let mut vocab = AddedVocabulary::new();
    vocab.add_tokens(added, words, Some(&run)).map_err(|e| inconsistent(e.to_string()))?;
    run.outcome().map_err(|e| inconsistent(e.to_string()))?;
    Ok(vocab)
}

fn pieces(words: &WordModel, vocab: &AddedVocabulary, decoder: &Value) -> Result<Pieces, TokenizerError> {
    let added = vocab.get_added_tokens_decoder();
    let len = added.keys().map(|id| *id as usize + 1).chain([words.len()]).max().unwrap_or(0);
    if len == 0 {
        return Err(inconsistent("the vocabulary is empty".to_owned()));
    }
    too_large("vocabulary", len, VOCAB_LEN_MAX)?;
    let ids = 0..len as u32;
    let special = ids.clone().map(|id| added.get(&id).is_some_and(|t| t.special)).collect();
    let texts = ids.map(|id| vocab.simple_id_to_token(id).or_else(|| words.id_to_token(id)));
    Pieces::new(texts, special, decoder)
}

pub(crate) fn inconsistent(reason: String) -> TokenizerError {
    TokenizerError::Inconsistent { reason }
}

/// Runs code of the `tokenizers` crate on data from a file. Known panics (a merge longer than every token, a
/// precompiled normaliser with wild offsets) are too many to check beforehand, and the next version has
/// others; nothing shared is changed on the way, so a panic is an error like any other.
pub(crate) fn guarded<T>(what: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(what)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("the tokenizers crate panicked: {}", text.unwrap_or_default())
    })
}
