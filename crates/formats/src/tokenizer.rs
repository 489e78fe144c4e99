//! Where a model's tokenizer comes from. The bytes, not the tokenizer: that is room `tokenizer`.

use crate::Texts;

/// The material a tokenizer is built from.
#[derive(Clone, PartialEq, Debug)]
pub enum TokenizerSource {
    /// A Hugging Face folder.
    Json {
        /// `tokenizer.json`, whole and unparsed.
        tokenizer_json: Vec<u8>,
        /// `tokenizer_config.json`, if there is one.
        tokenizer_config: Option<serde_json::Value>,
    },
    /// The `tokenizer.ggml.*` keys of a GGUF file.
    Gguf(GgufTokenizer),
}

/// The `tokenizer.ggml.*` keys of a GGUF file. Lists that speak of tokens are as long as `tokens`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GgufTokenizer {
    /// `gpt2` (byte-level BPE) or `llama` (SentencePiece); others as the file says.
    pub model: String,
    /// Which pre-tokenizer, for example `llama-bpe` or `qwen2`.
    pub pre: Option<String>,
    /// Text of each token.
    pub tokens: Texts,
    /// Score of each token, for SentencePiece.
    pub scores: Option<Vec<f32>>,
    /// Kind of each token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// BPE merges, best first: two pieces with a space between.
    pub merges: Texts,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// Unknown text.
    pub unk: Option<u32>,
    /// Padding between sequences.
    pub pad: Option<u32>,
    /// Whether a prompt starts with `bos`; `None` leaves it to the tokenizer's kind.
    pub add_bos: Option<bool>,
    /// Whether a prompt ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether SentencePiece puts a space before the text.
    pub add_space_prefix: Option<bool>,
}
