//! Tokenizers from the metadata of GGUF files.

use exo_formats::GgufTokenizer;
use serde_json::{Value, json};
use tokenizers::AddedToken;

use crate::TokenizerError;
use crate::bpe::{Bpe, Ids, Merge, Rules};
use crate::build::{Built, Frame, TokenizerParts, guarded, inconsistent};
use crate::pieces::byte_token;
use crate::pipeline::too_large;
use crate::pre;
use crate::word_model::WordModel;

const TYPE_UNKNOWN: i32 = 2;
const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_NORMAL: i32 = 1;

const TOKENS_MAX: usize = 4 << 20;
/// A SentencePiece token of n characters has n - 1 ways to be merged, and each is looked up.
const SPM_TOKEN_BYTES_MAX: usize = 512;
/// Pairs of tokens that make a token: real vocabularies have three for each of theirs.
const SPM_MERGES_MAX: usize = 8 << 20;

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

fn byte_pair(source: &GgufTokenizer) -> Result<(TokenizerParts, Frame), TokenizerError> {
    // Files without a name are from before names existed and mean what llama.cpp does by default.
    let name = source.pre.as_deref().unwrap_or("default");
    let pre = pre::named(name)
        .ok_or_else(|| TokenizerError::Unsupported { what: "pre-tokenizer", name: name.to_owned() })?;
    let ids = Ids::of(&source.tokens);
    let merges = stated_merges(source, &ids)?;
    let rules = Rules { ignore_merges: pre.ignore_merges, ..Rules::default() };
    let mut cuts: Vec<Value> = pre.patterns.iter().map(|p| split(p)).collect();
    cuts.push(json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}));
    let parts = TokenizerParts {
        words: WordModel::Pairs(Bpe::new(source.tokens.clone(), ids, merges, rules)),
        added: added(source),
        normalizer: Value::Null,
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": cuts}),
        decoder: json!({"type": "ByteLevel"}),
    };
    Ok((parts, frame(source, pre.add_bos)))
}

fn stated_merges(source: &GgufTokenizer, ids: &Ids) -> Result<Vec<Merge>, TokenizerError> {
    let mut merges = Vec::with_capacity(source.merges.len());
    let mut whole = String::new();
    for (i, merge) in source.merges.iter().enumerate() {
        let halves =
            merge.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '));
        let (left, right) = halves.ok_or_else(|| gguf("merges", format!("entry {i} is not two pieces")))?;
        whole.clear();
        whole.extend([left, right]);
        let id = |text: &str| {
            let found = ids.find(&source.tokens, text);
            found.ok_or_else(|| gguf("merges", format!("entry {i}: `{text}` is not a token")))
        };
        merges.push(Merge { left: id(left)?, right: id(right)?, into: id(&whole)? });
    }
    Ok(merges)
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// SentencePiece merges the pair whose result scores best. As byte-pair merges: every way to put a token
/// together from two others, ordered by the token's score. That is how `transformers` converts these models.
fn sentence_piece(source: &GgufTokenizer) -> Result<(TokenizerParts, Frame), TokenizerError> {
    let scores =
        source.scores.as_ref().ok_or_else(|| gguf("scores", "SentencePiece needs them".to_owned()))?;
    let ids = Ids::of(&source.tokens);
    let merges = scored_merges(source, scores, &ids)?;
    let rules = Rules { ignore_merges: false, byte_fallback: true, unknown: source.unk };
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
    let parts = TokenizerParts {
        words: WordModel::Pairs(Bpe::new(source.tokens.clone(), ids, merges, rules)),
        added: added(source),
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
    };
    Ok((parts, frame(source, true)))
}

fn scored_merges(source: &GgufTokenizer, scores: &[f32], ids: &Ids) -> Result<Vec<Merge>, TokenizerError> {
    let mut found: Vec<(f32, Merge, usize, usize)> = Vec::new();
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
        // Of texts that stand twice the last is the token.
        let into = ids.find(&source.tokens, token).unwrap_or(id as u32);
        for (at, _) in token.char_indices().skip(1) {
            let half = |text: &str| Some((ids.find(&source.tokens, text)?, text.chars().count()));
            if let (Some((left, left_len)), Some((right, right_len))) =
                (half(&token[..at]), half(&token[at..]))
            {
                found.push((scores[id], Merge { left, right, into }, left_len, right_len));
            }
        }
        if found.len() > SPM_MERGES_MAX {
            return Err(gguf("tokens", format!("they make more than {SPM_MERGES_MAX} merges")));
        }
    }
    // Best score first, then the longer left half, then the longer right half. The sort is stable and the
    // list is in the order of ids, as in the conversion this follows.
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.2.cmp(&a.2)).then(b.3.cmp(&a.3)));
    Ok(found.into_iter().map(|(_, merge, ..)| merge).collect())
}

fn kind(source: &GgufTokenizer, id: usize) -> i32 {
    source.token_types.as_ref().map_or(TYPE_NORMAL, |types| types[id])
}

/// Control tokens are found in text when asked for, user-defined ones always.
fn added(source: &GgufTokenizer) -> Vec<AddedToken> {
    let tokens = source.tokens.iter().enumerate().filter(|(_, text)| !text.is_empty());
    tokens
        .filter_map(|(id, text)| match kind(source, id) {
            TYPE_CONTROL | TYPE_UNKNOWN => Some(AddedToken::from(text.to_owned(), true)),
            TYPE_USER_DEFINED => Some(AddedToken::from(text.to_owned(), false).normalized(false)),
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
