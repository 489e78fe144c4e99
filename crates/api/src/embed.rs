//! Texts to vectors, whatever the dialect.

use std::time::Duration;

use exo_types::{Pooling, Principal, RequestId};
use serde_json::Value;

use crate::fields::{BadParam, Fields, short, token_id};
use crate::generate::Prompt;
use crate::labels::Endpoint;

/// Most texts of one request, as in OpenAI's API.
pub const INPUTS_MAX: usize = 2048;

/// A checked request for vectors.
#[derive(Clone, PartialEq, Debug)]
pub struct EmbedRequest {
    /// Drawn by the server.
    pub request: RequestId,
    /// Where it came in.
    pub endpoint: Endpoint,
    /// The model's name, or the hexadecimal form of its id.
    pub model: String,
    /// Texts or tokens, at least one.
    pub inputs: Vec<Prompt>,
    /// How rows become one vector; left out, as the model's metadata or else the node's setting say.
    pub pooling: Option<Pooling>,
    /// Elements of each vector, the first; left out, all of them.
    pub dimensions: Option<u32>,
    /// Whether what is too long loses its end. It is an error otherwise.
    pub truncates: bool,
    /// The context that the model must have.
    pub context_tokens_min: Option<u32>,
    /// User on whose behalf the request runs.
    pub principal: Principal,
    /// How long the request may wait for placing, loading and free slots.
    pub queue_wait_max: Duration,
}

/// Says that a request for vectors is watched, or has come on, and how many bytes its vectors take by now.
/// Whoever waits for its answer counts its silence from there.
pub type SignOfLife = Box<dyn Fn(usize) + Send + Sync>;

/// The vectors.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Embeddings {
    /// One for each input, each of length 1.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs that were read.
    pub prompt_tokens: u64,
    /// Tokens that were left out because an input was too long.
    pub truncated_tokens: u64,
    /// From arrival to the first input at work.
    pub queued_ms: f64,
    /// From arrival to the last vector.
    pub total_ms: f64,
    /// The model's id in full.
    pub model_id: String,
    /// Kernel families that computed them, each once.
    pub kernels: Vec<String>,
}

/// One or several prompts that stand at `name`: a string, token ids, or an array of these.
pub fn take_prompts(name: &str, prompt: Value) -> Result<Vec<Prompt>, BadParam> {
    match prompt {
        Value::String(text) => Ok(vec![Prompt::Text(text)]),
        Value::Array(items) if items.is_empty() => Err(BadParam::invalid(name, format!("`{name}` is empty"))),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            Ok(vec![take_tokens(name, &items, name)?])
        }
        Value::Array(items) if items.iter().all(|i| i.is_string() || i.is_array()) => {
            let items = items.into_iter().enumerate();
            items.map(|(i, item)| take_one(name, item, &format!("{name}[{i}]"))).collect()
        }
        other => {
            let message = format!(
                "`{name}` must be a string, an array of token ids, or an array of these, not {}",
                short(&other)
            );
            Err(BadParam::invalid(name, message))
        }
    }
}

/// One of several prompts: no further level.
fn take_one(name: &str, item: Value, path: &str) -> Result<Prompt, BadParam> {
    match item {
        Value::Array(ids) if ids.is_empty() => Err(BadParam::invalid(name, format!("`{path}` is empty"))),
        Value::Array(ids) => take_tokens(name, &ids, path),
        Value::String(text) => Ok(Prompt::Text(text)),
        other => {
            let message =
                format!("`{path}` must be a string or an array of token ids, not {}", short(&other));
            Err(BadParam::invalid(name, message))
        }
    }
}

fn take_tokens(name: &str, items: &[Value], path: &str) -> Result<Prompt, BadParam> {
    let Some(bad) = items.iter().position(|item| token_id(item).is_none()) else {
        return Ok(Prompt::Tokens(items.iter().filter_map(token_id).collect()));
    };
    let message = format!("`{path}[{bad}]` must be a token id, not {}", short(&items[bad]));
    Err(BadParam::invalid(name, message))
}

/// The inputs of a request for vectors.
pub(crate) fn take_inputs(name: &str, fields: &mut Fields) -> Result<Vec<Prompt>, BadParam> {
    let value = fields.take_value(name).ok_or_else(|| BadParam::missing(name))?;
    let inputs = take_prompts(name, value)?;
    crate::fields::check_count(name, "inputs", inputs.len(), INPUTS_MAX)?;
    Ok(inputs)
}

/// `pooling`: an extension, for models that do not say it themselves.
pub(crate) fn take_pooling(fields: &mut Fields) -> Result<Option<Pooling>, BadParam> {
    fields.take("pooling", "first, mean or last")
}

/// `dimensions`: how many elements of each vector.
pub(crate) fn take_dimensions(fields: &mut Fields) -> Result<Option<u32>, BadParam> {
    crate::request::token_bound("dimensions", fields.take_value("dimensions"))
}
