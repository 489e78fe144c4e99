//! A `tokenizer.json` as the `tokenizer.ggml.*` keys of a GGUF file.
//!
//! GGUF names a way to cut text where `tokenizer.json` spells it out, so only what has a name can be written.
//! The result is built again and held against the original on texts that show where cuts differ: keys that
//! mean something else are refused, not written.

use std::collections::HashMap;

use exo_formats::{GgufTokenizer, Texts, TokenizerSource};
use serde::Deserialize;
use serde_json::Value;

use crate::build::Frame;
use crate::pieces::byte_token;
use crate::pre::{self, GPT2};
use crate::{EncodeOptions, Tokenizer, TokenizerError, json};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// Of a SentencePiece token that no merge makes; below every rank.
const SCORE_UNREACHABLE: f32 = -1e9;

/// One name for each way to cut that models of ours have; llama.cpp knows all of them.
const NAMES: [&str; 8] = ["llama-bpe", "qwen2", "tekken", "gpt-2", "gpt-4o", "dbrx", "qwen35", "starcoder"];

/// Where cuts, spaces, digits, bytes and control tokens show.
const PROBES: [&str; 8] = [
    "Hello, World! It's what they'LL say; we've 12345678 things (3.14159) to do...",
    " leading,  double   triple    spaces and\ttabs\n\n\nlines\r\n  indented\n",
    "fn main() { let x_1 = vec![0u8; 1 << 20]; } // 'quoted' \"text\" #tag @name $5 50%",
    "Ünïcödé ñandú œuvre straße Ωμέγα Привет мир 你好，世界。日本語のテキスト 한국어 ไทย עברית العربية",
    "🙂👩‍👩‍👧‍👦🇪🇺 ∑∫√ ½ ² ½ ١٢٣ \u{a0}\u{2003}\u{200b}",
    "CamelCaseWords ALLCAPS mixedCASE don't can't I'm you're he'd x's",
    "a",
    "",
];

/// The keys of a GGUF file for this tokenizer, with a text for each of `vocab` rows of the embedding table.
pub fn to_gguf(source: &TokenizerSource, vocab: u32) -> Result<GgufTokenizer, TokenizerError> {
    let keys = match source {
        TokenizerSource::Gguf(keys) => return Ok(keys.clone()),
        TokenizerSource::Json { tokenizer_json, tokenizer_config } => {
            let (_, frame) = json::build(tokenizer_json, tokenizer_config.as_ref())?;
            let document: Document =
                serde_json::from_slice(tokenizer_json).map_err(|e| none(format!("it is unusual: {e}")))?;
            convert(&document, &frame, vocab)?
        }
    };
    compare(source, &keys)?;
    Ok(keys)
}

fn none(reason: impl Into<String>) -> TokenizerError {
    TokenizerError::NoGguf { reason: reason.into() }
}

/// The parts of `tokenizer.json` that are looked at.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Bpe,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Bpe {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Written either way, by older and newer versions.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

impl Merge {
    fn halves(&self) -> Result<(&str, &str), TokenizerError> {
        let halves = match self {
            Self::Text(text) => text.split_once(' '),
            Self::Pair(left, right) => Some((left.as_str(), right.as_str())),
        };
        let sound = halves.filter(|(left, right)| !left.contains(' ') && !right.contains(' '));
        sound.ok_or_else(|| none("a merge has a space in it"))
    }
}

fn convert(document: &Document, frame: &Frame, vocab: u32) -> Result<GgufTokenizer, TokenizerError> {
    let model = &document.model;
    if model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
        return Err(none(format!(
            "its model is {}, only BPE is supported",
            model.kind.as_deref().unwrap_or_default()
        )));
    }
    let mut keys = GgufTokenizer { bos: frame.bos, eos: frame.eos, eot: frame.eot, ..Default::default() };
    keys.add_bos = Some(framed(&frame.before, &mut keys.bos, "before")?);
    keys.add_eos = Some(framed(&frame.after, &mut keys.eos, "after")?);
    if model.byte_fallback {
        sentence_piece(document, &mut keys);
    } else {
        keys.model = "gpt2".to_owned();
        keys.pre = Some(name_of_cuts(document)?.to_owned());
        let merge = |merge: &Merge| merge.halves().map(|(left, right)| format!("{left} {right}"));
        keys.merges = model.merges.iter().map(merge).collect::<Result<_, _>>()?;
    }
    tokens(document, vocab, &mut keys)?;
    if model.byte_fallback {
        keys.scores = Some(scores(model, &keys.tokens)?);
    }
    Ok(keys)
}

/// Whether a text is framed by the one token that keys can name there.
fn framed(tokens: &[u32], named: &mut Option<u32>, side: &str) -> Result<bool, TokenizerError> {
    match tokens {
        [] => Ok(false),
        [one] if named.is_none_or(|id| id == *one) => {
            *named = Some(*one);
            Ok(true)
        }
        _ => Err(none(format!("it puts tokens {tokens:?} {side} a text"))),
    }
}

fn tokens(document: &Document, vocab: u32, keys: &mut GgufTokenizer) -> Result<(), TokenizerError> {
    let model = &document.model;
    let mut texts: Vec<Option<&str>> = vec![None; vocab as usize];
    let mut types = vec![UNUSED; vocab as usize];
    let known = model.vocab.iter().map(|(text, id)| (*id, text.as_str(), None));
    let added = document.added_tokens.iter().map(|a| (a.id, a.content.as_str(), Some(a.special)));
    for (id, text, special) in known.chain(added) {
        let Some(slot) = texts.get_mut(id as usize) else {
            return Err(none(format!("it has a token {id}, the model's table has {vocab} rows")));
        };
        *slot = Some(text);
        types[id as usize] = match special {
            Some(true) => CONTROL,
            Some(false) => USER_DEFINED,
            None if model.byte_fallback && byte_token(text).is_some() => BYTE,
            None => NORMAL,
        };
    }
    if let Some(unk) = model.unk_token.as_ref().and_then(|text| model.vocab.get(text)) {
        keys.unk = Some(*unk);
        types[*unk as usize] = UNKNOWN;
    }
    let named = |(id, text): (usize, Option<&str>)| text.map_or_else(|| format!("[PAD{id}]"), str::to_owned);
    keys.tokens = texts.into_iter().enumerate().map(named).collect();
    keys.token_types = Some(types);
    Ok(())
}

/// The name of how byte-level text is cut.
fn name_of_cuts(document: &Document) -> Result<&'static str, TokenizerError> {
    check_normalizer(&document.normalizer)?;
    let mut patterns = Vec::new();
    collect_cuts(&document.pre_tokenizer, &mut patterns)?;
    let fits = |name: &&&str| {
        let named = pre::named(name);
        named.is_some_and(|p| p.ignore_merges == document.model.ignore_merges && p.patterns == patterns)
    };
    let unnamed = || none(format!("no GGUF name stands for its way to cut text, {patterns:?}"));
    NAMES.iter().find(fits).copied().ok_or_else(unnamed)
}

/// Composing characters (NFC) is left out by GGUF files of such models; anything else would change tokens.
fn check_normalizer(normalizer: &Value) -> Result<(), TokenizerError> {
    match normalizer["type"].as_str() {
        None if normalizer.is_null() => Ok(()),
        Some("NFC") => Ok(()),
        Some("Sequence") => {
            normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_normalizer)
        }
        other => Err(none(format!("it normalises text ({})", other.unwrap_or("in an unknown way")))),
    }
}

fn collect_cuts(cut: &Value, patterns: &mut Vec<String>) -> Result<(), TokenizerError> {
    let flag = |name: &str, usual: bool| cut[name].as_bool().unwrap_or(usual);
    match cut["type"].as_str() {
        Some("Sequence") => {
            let mut steps = cut["pretokenizers"].as_array().into_iter().flatten();
            steps.try_for_each(|step| collect_cuts(step, patterns))
        }
        Some("Split") if cut["behavior"] == "Isolated" && !flag("invert", false) => {
            let pattern = cut["pattern"]["Regex"].as_str();
            patterns.push(pattern.ok_or_else(|| none("it cuts at a fixed text"))?.to_owned());
            Ok(())
        }
        Some("Digits") if flag("individual_digits", false) => {
            patterns.push(r"\p{N}".to_owned());
            Ok(())
        }
        Some("ByteLevel") if !flag("add_prefix_space", true) => {
            if flag("use_regex", true) {
                patterns.push(GPT2.to_owned());
            }
            Ok(())
        }
        other => Err(none(format!("it cuts text by {}", other.unwrap_or("nothing")))),
    }
}

/// SentencePiece as `tokenizer.json` writes it: spaces are `▁`, and one stands before the text or not.
fn sentence_piece(document: &Document, keys: &mut GgufTokenizer) {
    let text = document.normalizer.to_string();
    let scheme = document.pre_tokenizer["prepend_scheme"].as_str();
    keys.model = "llama".to_owned();
    keys.pre = Some("default".to_owned());
    keys.add_space_prefix = Some(text.contains("Prepend") || scheme.is_some_and(|s| s != "never"));
}

/// SentencePiece merges what scores best, byte-pair merging what stands first: the rank is the score.
fn scores(model: &Bpe, tokens: &Texts) -> Result<Vec<f32>, TokenizerError> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, merge) in model.merges.iter().enumerate() {
        let (left, right) = merge.halves()?;
        ranks.entry([left, right].concat()).or_insert(rank);
    }
    let score = |text: &str| match ranks.get(text) {
        Some(rank) => -(*rank as f32),
        None if text.chars().count() > 1 => SCORE_UNREACHABLE,
        None => 0.0,
    };
    Ok(tokens.iter().map(score).collect())
}

/// Whether both cut the probes alike.
fn compare(original: &TokenizerSource, keys: &GgufTokenizer) -> Result<(), TokenizerError> {
    let written = Tokenizer::from_source(&TokenizerSource::Gguf(keys.clone()))?;
    let original = Tokenizer::from_source(original)?;
    for text in PROBES {
        for parse_special in [false, true] {
            let options = EncodeOptions { add_special: true, parse_special };
            let encode = |t: &Tokenizer| t.encode(text, options).map_err(|e| none(e.to_string()));
            if encode(&original)? != encode(&written)? {
                return Err(none(format!("{text:?} would become other tokens")));
            }
        }
    }
    Ok(())
}
