//! What turns a word into tokens: byte-pair encoding of our own, or a model of the `tokenizers` crate.
//!
//! GGUF files get ours, whose memory matters beside four-bit weights. A `tokenizer.json` may hold other kinds
//! (Unigram, WordPiece), and lies beside weights several times as large.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, ModelWrapper, Token};

use crate::bpe::Bpe;

/// A vocabulary and the way to its tokens.
pub(crate) enum WordModel {
    Pairs(Bpe),
    Library(ModelWrapper),
}

impl WordModel {
    /// A model that was read from a file, without what only training needs.
    pub(crate) fn library(mut model: ModelWrapper) -> Self {
        if let ModelWrapper::BPE(bpe) = &mut model {
            // Dropout is for training. The cache is per thread and never freed: too dear for what it saves.
            bpe.dropout = None;
            bpe.resize_cache(0);
        }
        Self::Library(model)
    }

    /// One more than the highest id.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pairs(bpe) => bpe.texts().len(),
            Self::Library(model) => model.get_vocab().into_values().max().map_or(0, |id| id as usize + 1),
        }
    }
}

/// For the crate's search of added tokens, which asks a vocabulary for ids.
impl Model for WordModel {
    type Trainer = TrainerWrapper;

    /// Of ours only the ids are filled in: nobody looks at texts and offsets.
    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Self::Pairs(bpe) => {
                Ok(bpe.cut(word).into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect())
            }
            Self::Library(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, text: &str) -> Option<u32> {
        match self {
            Self::Pairs(bpe) => bpe.id(text),
            Self::Library(model) => model.token_to_id(text),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Pairs(bpe) => bpe.texts().get(id as usize).map(str::to_owned),
            Self::Library(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Pairs(bpe) => {
                (0..).zip(bpe.texts().iter()).map(|(id, text)| (text.to_owned(), id)).collect()
            }
            Self::Library(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Pairs(bpe) => bpe.texts().len(),
            Self::Library(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        match self {
            Self::Pairs(_) => Err("a tokenizer of a GGUF file is written by `exo quantize`".into()),
            Self::Library(model) => model.save(folder, prefix),
        }
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Self::Pairs(_) => BpeTrainer::default().into(),
            Self::Library(model) => model.get_trainer(),
        }
    }
}
