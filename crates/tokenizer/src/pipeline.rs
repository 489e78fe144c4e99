//! What happens to a text before the model cuts it: normalising, then splitting into words.
//!
//! Read from the JSON of `tokenizer.json`. Steps that run a pattern of the file are ours, behind the guard;
//! the rest are the `tokenizers` crate's.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tokenizers::normalizer::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use crate::guard::{Deadline, FoundMatches, GuardedRegex};
use crate::{EncodeError, TokenizerError, pre};

/// Longest text put in the place of a match, or before a text. Real files use one to three characters; a long
/// one would multiply the text.
const INSERT_BYTES_MAX: usize = 16;
/// Steps of either kind. Real files have up to a dozen.
const STEPS_MAX: usize = 64;
/// Longest text a normaliser may make.
const NORMALIZED_BYTES_MAX: usize = 8 << 20;

/// The steps of one tokenizer.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    normalize: Vec<Normalize>,
    cut: Vec<Cut>,
}

#[derive(Debug)]
enum Normalize {
    Replace { regex: GuardedRegex, content: String },
    Library(NormalizerWrapper),
}

#[derive(Debug)]
enum Cut {
    Split { regex: GuardedRegex, behavior: SplitDelimiterBehavior, invert: bool },
    PrefixSpace,
    Library(PreTokenizerWrapper),
}

impl Pipeline {
    /// From the `normalizer` and `pre_tokenizer` of a `tokenizer.json`; null or absent does nothing.
    pub(crate) fn from_json(normalizer: &Value, pre_tokenizer: &Value) -> Result<Self, TokenizerError> {
        let mut pipeline = Self::default();
        pipeline.read_normalizer(normalizer)?;
        pipeline.read_pre_tokenizer(pre_tokenizer)?;
        Ok(pipeline)
    }

    /// The normaliser for one text. Ask it for its [`NormalizerRun::outcome`] afterwards.
    pub(crate) fn normalizer(&self, deadline: Deadline) -> NormalizerRun<'_> {
        NormalizerRun { steps: &self.normalize, deadline, failure: Mutex::new(None) }
    }

    /// Splits what is not yet a token into words.
    pub(crate) fn cut(&self, text: &mut PreTokenizedString, deadline: Deadline) -> Result<(), EncodeError> {
        self.cut.iter().try_for_each(|step| step.apply(text, deadline).map_err(encode_error))
    }

    fn read_normalizer(&mut self, json: &Value) -> Result<(), TokenizerError> {
        check_steps(self.normalize.len())?;
        match json["type"].as_str() {
            None if json.is_null() => return Ok(()),
            Some("Sequence") => {
                return items(json, "normalizers")?.iter().try_for_each(|one| self.read_normalizer(one));
            }
            Some("Replace") => {
                let content = json["content"].as_str().unwrap_or_default().to_owned();
                check_insert(&content)?;
                self.normalize.push(Normalize::Replace { regex: pattern(json)?, content });
            }
            Some("Prepend") => {
                check_insert(json["prepend"].as_str().unwrap_or_default())?;
                self.normalize.push(Normalize::Library(library("normalizer", json)?));
            }
            _ => self.normalize.push(Normalize::Library(library("normalizer", json)?)),
        }
        Ok(())
    }

    fn read_pre_tokenizer(&mut self, json: &Value) -> Result<(), TokenizerError> {
        check_steps(self.cut.len())?;
        match json["type"].as_str() {
            None if json.is_null() => return Ok(()),
            Some("Sequence") => {
                return items(json, "pretokenizers")?.iter().try_for_each(|one| self.read_pre_tokenizer(one));
            }
            Some("Split") => self.cut.push(Cut::Split {
                regex: pattern(json)?,
                behavior: library("pre_tokenizer", &json["behavior"])?,
                invert: json["invert"].as_bool().unwrap_or(false),
            }),
            Some("ByteLevel") => {
                if json["add_prefix_space"].as_bool().unwrap_or(true) {
                    self.cut.push(Cut::PrefixSpace);
                }
                if json["use_regex"].as_bool().unwrap_or(true) {
                    self.cut.push(Cut::isolate(pre::GPT2)?);
                }
                self.cut.push(Cut::Library(ByteLevel::new(false, false, false).into()));
            }
            _ => self.cut.push(Cut::Library(library("pre_tokenizer", json)?)),
        }
        Ok(())
    }
}

impl Cut {
    fn isolate(source: &str) -> Result<Self, TokenizerError> {
        let behavior = SplitDelimiterBehavior::Isolated;
        Ok(Self::Split { regex: GuardedRegex::new(source)?, behavior, invert: false })
    }

    fn apply(&self, text: &mut PreTokenizedString, deadline: Deadline) -> tokenizers::Result<()> {
        match self {
            Self::Split { regex, behavior, invert } => text.split(|_, piece| {
                let matches = regex.find_all(piece.get(), deadline)?;
                piece.split(FoundMatches { matches, invert: *invert }, *behavior)
            }),
            Self::PrefixSpace => text.normalize(|piece| {
                if !piece.get().starts_with(' ') {
                    piece.prepend(" ");
                }
                Ok(())
            }),
            Self::Library(step) => step.pre_tokenize(text),
        }
    }
}

/// The normaliser at work on one text. The crate throws its errors away, so they are kept here.
pub(crate) struct NormalizerRun<'a> {
    steps: &'a [Normalize],
    deadline: Deadline,
    /// Behind a lock because the crate wants normalisers to be `Sync`.
    failure: Mutex<Option<EncodeError>>,
}

impl NormalizerRun<'_> {
    /// What went wrong since the beginning, if anything did.
    pub(crate) fn outcome(self) -> Result<(), EncodeError> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Normalizer for NormalizerRun<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            *failure = self.steps.iter().try_for_each(|step| step.apply(text, self.deadline)).err();
        }
        Ok(())
    }
}

impl Normalize {
    fn apply(&self, text: &mut NormalizedString, deadline: Deadline) -> Result<(), EncodeError> {
        match self {
            Self::Replace { regex, content } => {
                let matches = regex.find_all(text.get(), deadline)?;
                check_normalized(text.get().len() + matches.len() * content.len())?;
                text.replace(FoundMatches { matches, invert: false }, content).map_err(encode_error)?;
            }
            Self::Library(step) => step.normalize(text).map_err(encode_error)?,
        }
        check_normalized(text.get().len())
    }
}

fn check_normalized(bytes: usize) -> Result<(), EncodeError> {
    let limit = NORMALIZED_BYTES_MAX;
    if bytes > limit { Err(EncodeError::TooLong { bytes, limit }) } else { Ok(()) }
}

/// Finds our own error again where it went through the crate.
pub(crate) fn encode_error(error: Box<dyn std::error::Error + Send + Sync>) -> EncodeError {
    match error.downcast::<EncodeError>() {
        Ok(ours) => *ours,
        Err(other) => EncodeError::Model { reason: other.to_string() },
    }
}

fn pattern(json: &Value) -> Result<GuardedRegex, TokenizerError> {
    match (json["pattern"]["Regex"].as_str(), json["pattern"]["String"].as_str()) {
        (Some(regex), _) => GuardedRegex::new(regex),
        (None, Some(text)) => GuardedRegex::new(&fancy_regex::escape(text)),
        _ => Err(TokenizerError::Json { reason: format!("{} has no pattern", json["type"]) }),
    }
}

fn library<T: serde::de::DeserializeOwned>(part: &str, json: &Value) -> Result<T, TokenizerError> {
    serde_json::from_value(json.clone()).map_err(|e| TokenizerError::Json { reason: format!("{part}: {e}") })
}

fn items<'a>(json: &'a Value, key: &str) -> Result<&'a [Value], TokenizerError> {
    let list = json[key].as_array();
    Ok(list.ok_or_else(|| TokenizerError::Json { reason: format!("a Sequence has no {key}") })?)
}

fn check_insert(text: &str) -> Result<(), TokenizerError> {
    too_large("inserted text (bytes)", text.len(), INSERT_BYTES_MAX)
}

fn check_steps(count: usize) -> Result<(), TokenizerError> {
    too_large("number of steps", count, STEPS_MAX)
}

pub(crate) fn too_large(what: &'static str, actual: usize, limit: usize) -> Result<(), TokenizerError> {
    if actual > limit {
        return Err(TokenizerError::TooLarge { what, actual: actual as u64, limit: limit as u64 });
    }
    Ok(())
}
