//! Tokenizers from Hugging Face folders: `tokenizer.json` with what `tokenizer_config.json` adds.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, Encoding, ModelWrapper, PostProcessor, PostProcessorWrapper, Token};

use crate::TokenizerError;
use crate::build::{Built, Frame, TokenizerParts, guarded, inconsistent};
use crate::pipeline::too_large;
use crate::word_model::WordModel;

/// The largest known `tokenizer.json` has 34 MB.
const JSON_BYTES_MAX: usize = 128 << 20;
/// Added tokens are searched all at once; real files have up to about ten thousand.
const ADDED_TOKENS_MAX: usize = 1 << 18;
/// Stands for the text while the post-processor shows what it puts around one.
const TEXT_ID: u32 = u32::MAX;

/// Everything but the model, which is read separately: it is large and its parsing is the crate's.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct ModelOnly {
    model: ModelWrapper,
}

pub(crate) fn build(bytes: &[u8], config: Option<&Value>) -> Result<(Built, Frame), TokenizerError> {
    too_large("file (bytes)", bytes.len(), JSON_BYTES_MAX)?;
    let header: Header = serde_json::from_slice(bytes).map_err(json_error)?;
    too_large("number of added tokens", header.added_tokens.len(), ADDED_TOKENS_MAX)?;
    let ModelOnly { model } =
        guarded(|| serde_json::from_slice(bytes)).map_err(inconsistent)?.map_err(json_error)?;
    let parts = TokenizerParts {
        words: WordModel::library(model),
        added: header.added_tokens,
        normalizer: header.normalizer,
        pre_tokenizer: header.pre_tokenizer,
        decoder: header.decoder,
    };
    let built = guarded(|| parts.build()).map_err(inconsistent)??;
    let mut frame = guarded(|| frame(&header.post_processor)).map_err(inconsistent)??;
    read_config(&built, config.unwrap_or(&Value::Null), &mut frame);
    Ok((built, frame))
}

fn json_error(error: serde_json::Error) -> TokenizerError {
    TokenizerError::Json { reason: error.to_string() }
}

/// What the post-processor puts before and after a text.
fn frame(json: &Value) -> Result<Frame, TokenizerError> {
    if json.is_null() {
        return Ok(Frame::default());
    }
    let processor: PostProcessorWrapper = serde_json::from_value(json.clone()).map_err(json_error)?;
    let text = Encoding::from_tokens(vec![Token::new(TEXT_ID, "x".to_owned(), (0, 1))], 0);
    let framed = processor.process(text, None, true).map_err(|e| inconsistent(e.to_string()))?;
    let ids = framed.get_ids();
    let mut around = ids.split(|&id| id == TEXT_ID);
    match (around.next(), around.next(), around.next()) {
        (Some(before), Some(after), None) => {
            Ok(Frame { before: before.to_vec(), after: after.to_vec(), ..Frame::default() })
        }
        _ => Err(inconsistent(format!("the post-processor turns one text into {} tokens", ids.len()))),
    }
}

/// `tokenizer_config.json` names the ends of a sequence and may overrule the post-processor.
fn read_config(built: &Built, config: &Value, frame: &mut Frame) {
    let id = |key: &str| {
        let text = config[key].as_str().or_else(|| config[key]["content"].as_str())?;
        built.vocab.token_to_id(text, &built.words)
    };
    (frame.bos, frame.eos) = (id("bos_token"), id("eos_token"));
    if let (Some(bos), Some(add)) = (frame.bos, config["add_bos_token"].as_bool()) {
        frame.before.retain(|&id| id != bos);
        if add {
            frame.before.insert(0, bos);
        }
    }
    if let (Some(eos), Some(add)) = (frame.eos, config["add_eos_token"].as_bool()) {
        frame.after.retain(|&id| id != eos);
        if add {
            frame.after.push(eos);
        }
    }
}
