//! The `tokenizer.ggml.*` keys.

use super::{GgufError, Metadata};
use crate::GgufTokenizer;

/// Texts of control tokens that end a turn or a message whatever the keys say: a GGUF file has one `eos` key
/// where a `generation_config.json` lists several ids.
const END_TEXTS: &str = "\
    <|eot_id|> <|eom_id|> <|end_of_text|> <|im_end|> <|endoftext|> <|end|> <end_of_turn> <EOT> </s>";
const CONTROL: i32 = 3;

/// Reads the tokenizer keys. Every list that speaks of tokens has one entry per token.
pub(super) fn read(m: &Metadata, bytes: &[u8]) -> Result<GgufTokenizer, GgufError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let missing = |key: &str| GgufError {
        field: format!("metadata `{key}`"),
        offset: 0,
        problem: "is missing: the file carries no tokenizer".to_owned(),
    };
    let model = m.text("tokenizer.ggml.model")?.ok_or_else(|| missing("tokenizer.ggml.model"))?.to_owned();
    let tokens = m.texts(bytes, TOKENS)?.ok_or_else(|| missing(TOKENS))?;
    let id = |name: &str| m.u32(&format!("tokenizer.ggml.{name}_token_id"));
    let read = GgufTokenizer {
        model,
        pre: m.text("tokenizer.ggml.pre")?.map(str::to_owned),
        scores: m.f32s(bytes, "tokenizer.ggml.scores")?,
        token_types: m.i32s(bytes, "tokenizer.ggml.token_type")?,
        merges: m.texts(bytes, "tokenizer.ggml.merges")?.unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        unk: id("unknown")?,
        pad: id("padding")?,
        add_bos: m.flag("tokenizer.ggml.add_bos_token")?,
        add_eos: m.flag("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: m.flag("tokenizer.ggml.add_space_prefix")?,
        tokens,
    };
    let lists = [
        ("tokenizer.ggml.scores", read.scores.as_ref().map(Vec::len)),
        ("tokenizer.ggml.token_type", read.token_types.as_ref().map(Vec::len)),
    ];
    for (key, len) in lists {
        if let Some(len) = len.filter(|len| *len != read.tokens.len()) {
            let problem = format!("has {len} elements for {} tokens", read.tokens.len());
            return Err(m.error(key, problem));
        }
    }
    Ok(read)
}

/// Every token that ends a generation: those the keys name, and control tokens that always do.
pub(super) fn ends(tokenizer: &GgufTokenizer, eom: Option<u32>) -> Vec<u32> {
    let by_key = [tokenizer.eos, tokenizer.eot, eom].into_iter().flatten();
    let kinds = tokenizer.token_types.as_deref().unwrap_or_default();
    let by_text = tokenizer.tokens.iter().zip(kinds).enumerate().filter_map(|(i, (text, kind))| {
        let ends = *kind == CONTROL && END_TEXTS.split(' ').any(|end| end == text);
        ends.then(|| u32::try_from(i).ok()).flatten()
    });
    let mut all: Vec<u32> =
        by_key.chain(by_text).filter(|id| (*id as usize) < tokenizer.tokens.len()).collect();
    all.sort_unstable();
    all.dedup();
    all
}
