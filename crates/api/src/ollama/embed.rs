//! `POST /api/embed` and `POST /api/embeddings`: the requests and their answers.

use exo_types::Pooling;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::options::take_context;
use crate::embed::{EmbedRequest, Embeddings, take_dimensions, take_inputs, take_pooling};
use crate::fields::{BadParam, Fields};
use crate::generate::{Prompt, RequestPart};
use crate::request::RequestContext;
use crate::table::{OLLAMA_EMBED, OLLAMA_EMBEDDINGS, Table};

/// A request for vectors, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct OllamaEmbed {
    /// Name or id of a model.
    pub model: String,
    inputs: Vec<Prompt>,
    pooling: Option<Pooling>,
    dimensions: Option<u32>,
    truncates: bool,
    context_tokens: Option<u32>,
}

impl OllamaEmbed {
    /// Reads a body of `/api/embed`.
    pub fn parse_embed(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let inputs = take_inputs("input", &mut fields)?;
        let dimensions = take_dimensions(&mut fields)?;
        // What is usual in this dialect.
        let truncates = fields.take("truncate", "true or false")?.unwrap_or(true);
        Self::take(fields, OLLAMA_EMBED, inputs, dimensions, truncates)
    }

    /// Reads a body of `/api/embeddings`, the older form: one text.
    pub fn parse_embeddings(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let prompt: String = fields.take_required("prompt", "a string")?;
        Self::take(fields, OLLAMA_EMBEDDINGS, vec![Prompt::Text(prompt)], None, true)
    }

    fn take(
        mut fields: Fields,
        table: Table,
        inputs: Vec<Prompt>,
        dimensions: Option<u32>,
        truncates: bool,
    ) -> Result<Self, BadParam> {
        let model = fields.take_required("model", "a string")?;
        let pooling = take_pooling(&mut fields)?;
        let context_tokens = take_context(&mut fields, table)?;
        table.check(&mut fields, "")?;
        fields.finish()?;
        Ok(Self { model, inputs, pooling, dimensions, truncates, context_tokens })
    }

    /// The request as the node understands it.
    pub fn into_embed(self, context: RequestContext) -> EmbedRequest {
        EmbedRequest {
            request: context.request,
            endpoint: crate::labels::Endpoint::OllamaEmbed,
            model: self.model,
            inputs: self.inputs,
            pooling: self.pooling,
            dimensions: self.dimensions,
            truncates: self.truncates,
            context_tokens_min: self.context_tokens,
            principal: context.principal,
            queue_wait_max: context.queue_wait_max,
        }
    }
}

/// What these endpoints call a part of a request.
pub fn embed_part_name(part: RequestPart, input: &str) -> String {
    match part {
        RequestPart::Model => "model",
        RequestPart::Pooling => "pooling",
        RequestPart::Dimensions => "dimensions",
        RequestPart::Context => "options.num_ctx",
        _ => input,
    }
    .to_owned()
}

/// The answer of `/api/embed`.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct OllamaEmbeddings {
    /// The model's name, as the request gave it.
    pub model: String,
    /// One vector for each input, each of length 1.
    pub embeddings: Vec<Vec<f32>>,
    /// Nanoseconds that the request took in all.
    pub total_duration: u64,
    /// Nanoseconds until the first input was begun: of loading and waiting.
    pub load_duration: u64,
    /// Tokens of all inputs that were read.
    pub prompt_eval_count: u64,
    /// Extension: tokens at the ends of inputs that were left out, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

/// The answer of `/api/embeddings`.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct OllamaEmbedding {
    /// The vector, of length 1.
    pub embedding: Vec<f32>,
    /// Extension: tokens at the end of the text that were left out, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

impl OllamaEmbeddings {
    /// The answer to a request for `model`.
    pub fn new(model: String, embeddings: Embeddings) -> Self {
        // The casts saturate.
        let ns = |ms: f64| (ms * 1e6) as u64;
        Self {
            model,
            total_duration: ns(embeddings.total_ms),
            load_duration: ns(embeddings.queued_ms),
            prompt_eval_count: embeddings.prompt_tokens,
            truncated_tokens: truncated(&embeddings),
            embeddings: embeddings.vectors,
        }
    }
}

impl OllamaEmbedding {
    /// Of the one text.
    pub fn new(mut embeddings: Embeddings) -> Self {
        let truncated_tokens = truncated(&embeddings);
        Self { embedding: embeddings.vectors.pop().unwrap_or_default(), truncated_tokens }
    }
}

fn truncated(embeddings: &Embeddings) -> Option<u64> {
    Some(embeddings.truncated_tokens).filter(|tokens| *tokens > 0)
}
