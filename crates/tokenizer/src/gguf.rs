//! Tokenizers from the metadata of GGUF files, rebuilt for the `tokenizers` crate.

use exo_formats::GgufTokenizer;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, ModelWrapper};

use crate::TokenizerError;
use crate::build::{Built, Parts, guarded, inconsistent};
use crate::pieces::byte_token;
use crate::pipeline::too_large;
use crate::pre;
use crate::tokenizer::Frame;

const TYPE_UNKNOWN: i32 = 2;
const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_NORMAL: i32 = 1;

const TOKENS_MAX: usize = 4 << 20;
/// A SentencePiece token of n characters has n - 1 ways to be merged, and each is looked up.
const SPM_TOKEN_BYTES_MAX: usize = 512;

pub(crate) fn build(source: &GgufTokenizer) -> Result<(Built, Frame), TokenizerError> {
    check(source)?;
    let (parts, frame) = match source.model.as_str() {
        "gpt2" => byte_pair(source)?,
        "llama" => sentence_piece(source)?,
        other => {
            return Err(TokenizerError::Unsupported { what: "tokenizer model", name: other.to_owned() });
        }
    };
    let built = guarded(|| parts.build()).map_err(inconsistent)??;
    Ok((built, frame))
}

fn check(source: &GgufTokenizer) -> Result<(), TokenizerError> {
    too_large("number of tokens", source.tokens.len(), TOKENS_MAX)?;
    let count = source.tokens.len();
    let same_length = |key, length: Option<usize>| match length {
        Some(length) if length != count => {
            Err(gguf(key, format!("there are {length} entries for {count} tokens")))
        }
        _ => Ok(()),
    };
    same_length("scores", source.scores.as_ref().map(Vec::len))?;
    same_length("token_type", source.token_types.as_ref().map(Vec::len))?;
    let ids = [
        ("bos_token_id", source.bos),
        ("eos_token_id", source.eos),
        ("eot_token_id", source.eot),
        ("unknown_token_id", source.unk),
    ];
    match ids.into_iter().find(|(_, id)| id.is_some_and(|id| id as usize >= count)) {
        Some((key, id)) => {
            Err(gguf(key, format!("it is {}, there are {count} tokens", id.unwrap_or_default())))
        }
        None => Ok(()),
    }
}

fn byte_pair(source: &GgufTokenizer) -> Result<(Parts, Frame), TokenizerError> {
    // Files without a name are from before names existed and mean what llama.cpp does by default.
    let name = source.pre.as_deref().unwrap_or("default");
    let pre = pre::named(name)
        .ok_or_else(|| TokenizerError::Unsupported { what: "pre-tokenizer", name: name.to_owned() })?;
    let merges = source.merges.iter().enumerate().map(|(i, merge)| {
        let halves =
            merge.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '));
        let (a, b) = halves.ok_or_else(|| gguf("merges", format!("entry {i} is not two pieces")))?;
        Ok((a.to_owned(), b.to_owned()))
    });
    let bpe = BPE::builder()
        .vocab_and_merges(vocab(source), merges.collect::<Result<_, _>>()?)
        .ignore_merges(pre.ignore_merges);
    let mut cuts: Vec<Value> = pre.patterns.iter().map(|p| split(p)).collect();
    cuts.push(json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}));
    let parts = Parts {
        model: model(|| bpe.build())?,
        added: added(source),
        normalizer: Value::Null,
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": cuts}),
        decoder: json!({"type": "ByteLevel"}),
    };
    Ok((parts, frame(source, pre.add_bos)))
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// SentencePiece merges the pair whose result scores best. As byte-pair merges: every way to put a token
/// together from two others, ordered by the token's score. That is how `transformers` converts these models.
fn sentence_piece(source: &GgufTokenizer) -> Result<(Parts, Frame), TokenizerError> {
    let scores =
        source.scores.as_ref().ok_or_else(|| gguf("scores", "SentencePiece needs them".to_owned()))?;
    let vocab = vocab(source);
    let mut bpe = BPE::builder().byte_fallback(true).fuse_unk(true);
    if let Some(unk) = source.unk {
        bpe = bpe.unk_token(source.tokens[unk as usize].clone());
    }
    bpe = bpe.vocab_and_merges(vocab.clone(), merges(source, scores, &vocab)?);
    let prefix = source.add_space_prefix.unwrap_or(true);
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let parts = Parts {
        model: model(|| bpe.build())?,
        added: added(source),
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
    };
    Ok((parts, frame(source, true)))
}

fn merges(
    source: &GgufTokenizer,
    scores: &[f32],
    vocab: &Vocab,
) -> Result<Vec<(String, String)>, TokenizerError> {
    let mut found: Vec<(f32, u32, u32, usize, usize)> = Vec::new();
    for (id, token) in source.tokens.iter().enumerate() {
        if kind(source, id) != TYPE_NORMAL || byte_token(token).is_some() {
            continue;
        }
        if token.len() > SPM_TOKEN_BYTES_MAX {
            return Err(gguf(
                "tokens",
                format!("token {id} has {} bytes, at most {SPM_TOKEN_BYTES_MAX}", token.len()),
            ));
        }
        for (at, _) in token.char_indices().skip(1) {
            if let (Some(&left), Some(&right)) = (vocab.get(&token[..at]), vocab.get(&token[at..])) {
                found.push((
                    scores[id],
                    left,
                    right,
                    token[..at].chars().count(),
                    token[at..].chars().count(),
                ));
            }
        }
    }
    // Best score first, then the longer left half, then the longer right half. The sort is stable and the list
    // is in the order of ids, as in the conversion this follows.
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.3.cmp(&a.3)).then(b.4.cmp(&a.4)));
    let text = |id: u32| source.tokens[id as usize].clone();
    Ok(found.into_iter().map(|(_, left, right, ..)| (text(left), text(right))).collect())
}

fn model(build: impl FnOnce() -> tokenizers::Result<BPE>) -> Result<ModelWrapper, TokenizerError> {
    let built = guarded(build).map_err(inconsistent)?;
    built.map(ModelWrapper::BPE).map_err(|e| gguf("merges", e.to_string()))
}

fn vocab(source: &GgufTokenizer) -> Vocab {
    source.tokens.iter().enumerate().map(|(id, text)| (text.clone(), id as u32)).collect()
}

fn kind(source: &GgufTokenizer, id: usize) -> i32 {
    source.token_types.as_ref().map_or(TYPE_NORMAL, |types| types[id])
}

/// Control tokens are found in text when asked for, user-defined ones always.
fn added(source: &GgufTokenizer) -> Vec<AddedToken> {
    let tokens = source.tokens.iter().enumerate().filter(|(_, text)| !text.is_empty());
    tokens
        .filter_map(|(id, text)| match kind(source, id) {
            TYPE_CONTROL | TYPE_UNKNOWN => Some(AddedToken::from(text.clone(), true)),
            TYPE_USER_DEFINED => Some(AddedToken::from(text.clone(), false).normalized(false)),
            _ => None,
        })
        .collect()
}

fn frame(source: &GgufTokenizer, add_bos: bool) -> Frame {
    let mut frame = Frame { bos: source.bos, eos: source.eos, eot: source.eot, ..Frame::default() };
    if source.add_bos.unwrap_or(add_bos) {
        frame.before.extend(source.bos);
    }
    if source.add_eos.unwrap_or(false) {
        frame.after.extend(source.eos);
    }
    frame
}

fn gguf(key: &'static str, reason: String) -> TokenizerError {
    TokenizerError::Gguf { key, reason }
}
