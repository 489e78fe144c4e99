//! Text to token ids and back, streaming decode, chat templates.
//!
//! A [`Tokenizer`] is made from a [`exo_formats::TokenizerSource`]: a `tokenizer.json` as it is, or the
//! `tokenizer.ggml.*` keys of a GGUF file, rebuilt. The `tokenizers` crate does the segmenting; what
//! surrounds it here is what a server needs and the crate does not promise: regular expressions that cannot
//! run away, a decoder that costs the same for every token, and errors where the crate would panic or fall
//! silent.
//!
//! **Special tokens in text.** Control tokens (`<|eot_id|>`) written out in a text become those tokens only
//! with [`EncodeOptions::parse_special`]. Chat prompts go through [`Tokenizer::encode_chat`], where only the
//! template makes them. A raw completion's prompt takes the place of the whole rendered text, so its control
//! tokens are parsed, as llama.cpp and vLLM do.
//!
//! **Time.** Everything a file can make slow is bounded by steps. Only where a step itself can be made slow
//! (a regular expression, a template filter over a large string) a stopwatch ends the call with an error; it
//! never changes a result that is returned.
//!
//! **Architecture invariant:** no file, no socket, no model; the date in a template comes from the caller.
//!
//! Start reading at [`Tokenizer`], [`StreamDecoder`] and [`ChatTemplate`].

#![forbid(unsafe_code)]

mod bpe;
mod build;
pub mod calls;
mod chat;
mod control_keys;
mod ends;
mod errors;
mod gguf;
mod guard;
mod json;
mod pieces;
mod pipeline;
mod pre;
mod stream;
mod template;
mod to_gguf;
mod tokenizer;
mod word_model;

pub use chat::ChatError;
pub use ends::end_texts;
pub use errors::{CallFormatError, DecodeError, EncodeError, TemplateError, TokenizerError};
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, RenderOptions};
pub use to_gguf::to_gguf;
pub use tokenizer::{EncodeOptions, TextPart, Tokenizer};
