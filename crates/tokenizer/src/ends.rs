//! The texts that begin and end a turn, from a tokenizer's source alone: for lists of models, which must not
//! wait for vocabularies.

use exo_formats::TokenizerSource;
use serde_json::Value;

use crate::tokenizer::END_NAMES;

/// The text of the token that begins a text, of the one that ends it, and all texts that may end a turn:
/// those of `eos_ids`, of the source's own ends, and the well-known names.
pub fn end_texts(source: &TokenizerSource, eos_ids: &[u32]) -> (Option<String>, Option<String>, Vec<String>) {
    let (begin, end, more) = match source {
        TokenizerSource::Gguf(keys) => {
            let text = |id: u32| keys.tokens.get(id as usize).map(str::to_owned);
            let named = eos_ids.iter().copied().chain(keys.eot).filter_map(text).collect();
            (keys.bos.and_then(text), keys.eos.and_then(text), named)
        }
        TokenizerSource::Json { tokenizer_config, .. } => {
            let config = tokenizer_config.as_ref().unwrap_or(&Value::Null);
            let text =
                |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
            let added = |id: &u32| text(&config["added_tokens_decoder"][id.to_string()]);
            (
                text(&config["bos_token"]),
                text(&config["eos_token"]),
                eos_ids.iter().filter_map(added).collect(),
            )
        }
    };
    let mut ends: Vec<String> = more;
    ends.extend(end.clone());
    ends.extend(END_NAMES.split(' ').map(str::to_owned));
    (begin, end, ends)
}
