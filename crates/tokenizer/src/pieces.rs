//! What each token stands for, as bytes, worked out once.
//!
//! `tokenizer.json` describes decoding as a chain of operations over the whole list of tokens. For every
//! chain a language model uses, all but the very start of the text can be done token by token, and therefore
//! in advance.

use serde_json::Value;

use crate::TokenizerError;

/// The bytes of every token, end to end, and what happens at the start of a text.
#[derive(Debug)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// Where the bytes of each id end.
    ends: Vec<u32>,
    special: Vec<bool>,
    pub(crate) start: Start,
    /// A space between any two tokens: what a tokenizer without a decoder means.
    pub(crate) spaced: bool,
}

/// What the start of a decoded text loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Start {
    #[default]
    Nothing,
    /// Up to so many of this character.
    Strip { content: char, count: usize },
    /// Every space of the first token (Metaspace's own rule).
    FirstTokenSpaces,
}

impl Pieces {
    /// `tokens` are the vocabulary's texts in the order of ids, `None` where an id is not used.
    pub(crate) fn new(
        tokens: impl Iterator<Item = Option<String>>,
        special: Vec<bool>,
        decoder: &Value,
    ) -> Result<Self, TokenizerError> {
        let chain = Chain::from_json(decoder)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(special.len()));
        for token in tokens {
            bytes.extend(chain.apply(token.unwrap_or_default()));
            let end = u32::try_from(bytes.len());
            ends.push(
                end.map_err(|_| TokenizerError::Inconsistent { reason: "tokens exceed 4 GiB".into() })?,
            );
        }
        bytes.shrink_to_fit();
        Ok(Self { bytes, ends, special, start: chain.start, spaced: decoder.is_null() })
    }

    pub(crate) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)? as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before as usize] as usize);
        Some(&self.bytes[start..end])
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

/// A decoder of `tokenizer.json`, split into what is done per token and what at the start.
#[derive(Default)]
struct Chain {
    steps: Vec<Step>,
    start: Start,
    fused: bool,
}

enum Step {
    Replace { pattern: String, content: String },
    Strip { content: char, start: usize, stop: usize },
    ByteFallback,
    ByteLevel(Vec<Option<u8>>),
}

impl Chain {
    fn from_json(json: &Value) -> Result<Self, TokenizerError> {
        let mut chain = Self::default();
        chain.read(json)?;
        Ok(chain)
    }

    fn read(&mut self, json: &Value) -> Result<(), TokenizerError> {
        let kind = json["type"].as_str().unwrap_or_default();
        let unsupported = |what: &str| TokenizerError::Unsupported { what: "decoder", name: what.to_owned() };
        if self.fused && !matches!(kind, "Strip" | "Fuse") {
            return Err(unsupported(&format!("{kind} after Fuse")));
        }
        match kind {
            "" if json.is_null() => {}
            "Sequence" => {
                let list = json["decoders"].as_array().ok_or_else(|| unsupported("Sequence of nothing"))?;
                list.iter().try_for_each(|one| self.read(one))?;
            }
            "Fuse" => self.fused = true,
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "ByteLevel" => self.steps.push(Step::ByteLevel(byte_level_table())),
            "Replace" => {
                let (pattern, content) = (json["pattern"]["String"].as_str(), json["content"].as_str());
                let pattern =
                    pattern.filter(|p| !p.is_empty()).ok_or_else(|| unsupported("Replace by Regex"))?;
                let (pattern, content) = (pattern.to_owned(), content.unwrap_or_default().to_owned());
                self.steps.push(Step::Replace { pattern, content });
            }
            "Metaspace" => {
                let mark = json["replacement"].as_str().unwrap_or("▁").to_owned();
                self.steps.push(Step::Replace { pattern: mark, content: " ".to_owned() });
                if json["prepend_scheme"].as_str() != Some("never") {
                    self.start = Start::FirstTokenSpaces;
                }
            }
            "Strip" => self.read_strip(json).ok_or_else(|| unsupported("Strip at the end"))?,
            other => return Err(unsupported(other)),
        }
        Ok(())
    }

    fn read_strip(&mut self, json: &Value) -> Option<()> {
        let content = json["content"].as_str()?.chars().next()?;
        let start = usize::try_from(json["start"].as_u64()?).ok()?;
        let stop = usize::try_from(json["stop"].as_u64()?).ok()?;
        if !self.fused {
            self.steps.push(Step::Strip { content, start, stop });
        } else if stop > 0 {
            return None; // nobody knows where a stream ends before it has ended
        } else {
            self.start = Start::Strip { content, count: start };
        }
        Some(())
    }

    fn apply(&self, token: String) -> Vec<u8> {
        let mut text = token;
        for step in &self.steps {
            match step {
                Step::Replace { pattern, content } => text = text.replace(pattern, content),
                Step::Strip { content, start, stop } => text = strip(&text, *content, *start, *stop),
                Step::ByteFallback => {
                    if let Some(byte) = byte_token(&text) {
                        return vec![byte];
                    }
                }
                Step::ByteLevel(table) => {
                    let byte = |c: char| table.get(c as usize).copied().flatten();
                    // A text with any other character stands for itself: an added token.
                    return text
                        .chars()
                        .map(byte)
                        .collect::<Option<_>>()
                        .unwrap_or_else(|| text.into_bytes());
                }
            }
        }
        text.into_bytes()
    }
}

fn strip(text: &str, content: char, start: usize, stop: usize) -> String {
    let head = text.chars().take(start).take_while(|&c| c == content).count() * content.len_utf8();
    let text = &text[head..];
    let tail = text.chars().rev().take(stop).take_while(|&c| c == content).count() * content.len_utf8();
    text[..text.len() - tail].to_owned()
}

/// The byte of a token like `<0x0A>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// GPT-2's alphabet read backwards: printable bytes stand for themselves, the others for the characters from
/// U+0100 on, in order.
fn byte_level_table() -> Vec<Option<u8>> {
    let mut table = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            table[usize::from(byte)] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pieces(decoder: Value, tokens: &[&str]) -> Result<Vec<String>, TokenizerError> {
        let texts = tokens.iter().map(|t| Some((*t).to_owned()));
        let pieces = Pieces::new(texts, vec![false; tokens.len()], &decoder)?;
        Ok((0..pieces.len())
            .map(|id| pieces.get(id).unwrap_or_default().escape_ascii().to_string())
            .collect())
    }

    #[test]
    fn byte_level_covers_all_bytes() {
        let mut bytes: Vec<u8> = byte_level_table().into_iter().flatten().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        let decoded = pieces(json!({"type": "ByteLevel"}), &["Ġa", "Ċ", "<|x y|>", "Ã"]);
        assert_eq!(decoded, Ok(vec![" a".into(), "\\n".into(), "<|x y|>".into(), "\\xc3".into()]));
    }

    #[test]
    fn byte_tokens_become_bytes_and_marks_become_spaces() {
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        let decoded = pieces(decoder, &["▁Hi▁x", "<0xE2>", "<0xZZ>"]);
        assert_eq!(decoded, Ok(vec![" Hi x".into(), "\\xe2".into(), "<0xZZ>".into()]));
    }

    #[test]
    fn decoders_that_cannot_stream_are_named() {
        let name = |json| pieces(json, &[]).expect_err("refused").to_string();
        assert!(name(json!({"type": "WordPiece"})).contains("`WordPiece`"));
        let late = json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]});
        assert!(name(late).contains("`ByteFallback after Fuse`"));
    }
}
