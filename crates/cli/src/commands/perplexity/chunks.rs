//! From a text to the chunks that are scored, as `llama-perplexity` cuts it.

use anyhow::{Context, bail};
use exo_tokenizer::{EncodeOptions, Tokenizer};

/// Chunk length unless something else is asked for: `llama-perplexity`'s.
const CONTEXT_DEFAULT: u32 = 512;
/// A chunk has tokens to see and at least one to score.
const CONTEXT_MIN: u32 = 4;

/// The tokens of a text in chunks of one length. What does not fill the last chunk is left out.
pub struct Chunks {
    tokens: Vec<u32>,
    /// What each chunk begins with in place of its own first token, if the model's prompts do.
    bos: Option<u32>,
    pub context: u32,
    pub count: u32,
}

impl Chunks {
    /// Tokenises `text` without its last line break; control tokens written out in it stay plain text unless
    /// `parse_special`.
    pub fn new(
        text: &str,
        tokenizer: &Tokenizer,
        parse_special: bool,
        context: u32,
        max: Option<u32>,
    ) -> anyhow::Result<Self> {
        let options = EncodeOptions { add_special: true, parse_special };
        let text = text.strip_suffix('\n').unwrap_or(text);
        let tokens = tokenizer.encode(text, options).context("cannot tokenise the text")?;
        let whole = (tokens.len() / context as usize) as u32;
        if whole == 0 {
            bail!(
                "the text has {} tokens, less than one chunk of {context}: give a longer text or a smaller --context",
                tokens.len()
            );
        }
        let framed = tokenizer.encode("", options).context("cannot tokenise an empty text")?;
        let bos = tokenizer.bos().filter(|bos| framed.first() == Some(bos));
        Ok(Self { tokens, bos, context, count: max.map_or(whole, |max| whole.min(max)) })
    }

    /// The tokens of a chunk.
    pub fn get(&self, index: u32) -> Vec<u32> {
        let length = self.context as usize;
        let mut chunk = self.tokens[index as usize * length..][..length].to_vec();
        if let Some(bos) = self.bos {
            chunk[0] = bos;
        }
        chunk
    }
}

/// The length of a chunk: as asked for, else the usual one, as far as the model goes.
pub fn context(asked: Option<u32>, model_max: u32) -> anyhow::Result<u32> {
    match asked {
        Some(tokens) if tokens < CONTEXT_MIN => {
            bail!("--context is {tokens}: a chunk needs at least {CONTEXT_MIN} tokens")
        }
        Some(tokens) if tokens > model_max => {
            bail!("--context is {tokens}, the model was made for {model_max} tokens")
        }
        Some(tokens) => Ok(tokens),
        None => Ok(CONTEXT_DEFAULT.min(model_max).max(CONTEXT_MIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::subject::Subject;

    #[test]
    fn chunks_tile_the_text_and_leave_out_the_rest() {
        let model = Subject::Demo.open().unwrap();
        let tokenizer = Tokenizer::from_source(&model.tokenizer).unwrap();
        let text = "one two three four five six seven eight nine ten\n";
        let all = tokenizer.encode(text.trim_end(), EncodeOptions::default()).unwrap();
        let chunks = Chunks::new(text, &tokenizer, false, 4, None).unwrap();
        assert_eq!(chunks.count as usize, all.len() / 4);
        let joined: Vec<u32> = (0..chunks.count).flat_map(|i| chunks.get(i)).collect();
        // The demo's prompts have no token of their own at the beginning.
        assert_eq!(joined, all[..joined.len()]);
        assert_eq!(Chunks::new(text, &tokenizer, false, 4, Some(1)).unwrap().count, 1);
        let control = |special| Chunks::new("<|im_end|>\n".repeat(9).as_str(), &tokenizer, special, 4, None);
        assert!(control(true).unwrap().get(0).contains(&2) && !control(false).unwrap().get(0).contains(&2));
        let with_bos = Chunks { bos: Some(7), ..chunks };
        assert_eq!((with_bos.get(1)[0], &with_bos.get(1)[1..]), (7, &all[5..8]));
    }

    #[test]
    fn a_chunk_is_as_long_as_asked_and_no_longer_than_the_model_allows() {
        assert_eq!(context(None, 40960).unwrap(), 512);
        assert_eq!(context(None, 256).unwrap(), 256);
        assert_eq!(context(Some(100), 256).unwrap(), 100);
        assert!(context(Some(257), 256).unwrap_err().to_string().contains("made for 256"));
        assert!(context(Some(3), 256).is_err());
    }
}
