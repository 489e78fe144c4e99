//! `POST /v1/embeddings`: the request and its answer.

use exo_types::Pooling;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::usage::UsageBody;
use crate::embed::{EmbedRequest, Embeddings, take_dimensions, take_inputs, take_pooling};
use crate::fields::{BadParam, Fields};
use crate::generate::{Prompt, RequestPart};
use crate::request::RequestContext;
use crate::table::EMBEDDINGS;

/// A request for vectors, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct EmbeddingsRequest {
    /// Name or id of a model.
    pub model: String,
    /// How vectors are written.
    pub encoding: Encoding,
    inputs: Vec<Prompt>,
    pooling: Option<Pooling>,
    dimensions: Option<u32>,
}

/// How vectors are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// An array of numbers.
    #[default]
    Float,
    /// Base64 of the elements as little-endian f32, one behind the other.
    Base64,
}

impl EmbeddingsRequest {
    /// Reads a body, refusing by name whatever would not be honoured.
    pub fn parse(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let request = Self {
            model: fields.take_required("model", "a string")?,
            encoding: fields.take("encoding_format", "float or base64")?.unwrap_or_default(),
            inputs: take_inputs("input", &mut fields)?,
            pooling: take_pooling(&mut fields)?,
            dimensions: take_dimensions(&mut fields)?,
        };
        EMBEDDINGS.check(&mut fields, "")?;
        fields.finish()?;
        Ok(request)
    }

    /// The request as the node understands it.
    pub fn into_embed(self, context: RequestContext) -> EmbedRequest {
        EmbedRequest {
            request: context.request,
            endpoint: crate::labels::Endpoint::Embeddings,
            model: self.model,
            inputs: self.inputs,
            pooling: self.pooling,
            dimensions: self.dimensions,
            truncates: false,
            context_tokens_min: None,
            principal: context.principal,
            queue_wait_max: context.queue_wait_max,
        }
    }
}

/// What this endpoint calls a part of a request.
pub fn part_name(part: RequestPart) -> String {
    match part {
        RequestPart::Model => "model",
        RequestPart::Pooling => "pooling",
        RequestPart::Dimensions => "dimensions",
        _ => "input",
    }
    .to_owned()
}

/// The vectors of a request.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct EmbeddingList {
    /// Always `list`.
    pub object: String,
    /// One vector for each input, in order.
    pub data: Vec<EmbeddingObject>,
    /// The model's name, as the request gave it.
    pub model: String,
    /// Tokens that the request took.
    pub usage: UsageBody,
}

/// The vector of one input.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct EmbeddingObject {
    /// Always `embedding`.
    pub object: String,
    /// Number of the input, from 0.
    pub index: u32,
    /// It, of length 1.
    pub embedding: EmbeddingVector,
}

/// The elements of a vector.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingVector {
    /// The vector as numbers.
    Float(Vec<f32>),
    /// Base64 of the elements as little-endian f32, one behind the other.
    Base64(String),
}

impl EmbeddingList {
    /// The answer to a request for `model`.
    pub fn new(model: String, encoding: Encoding, embeddings: Embeddings) -> Self {
        let vector = |vector: Vec<f32>| match encoding {
            Encoding::Float => EmbeddingVector::Float(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                EmbeddingVector::Base64(data_encoding::BASE64.encode(&bytes))
            }
        };
        let object = |(index, elements)| EmbeddingObject {
            object: "embedding".to_owned(),
            index,
            embedding: vector(elements),
        };
        let usage = UsageBody::of_prompt(embeddings.prompt_tokens);
        let data = (0..).zip(embeddings.vectors).map(object).collect();
        Self { object: "list".to_owned(), data, model, usage }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(body: Value) -> String {
        EmbeddingsRequest::parse(body).unwrap_err().message
    }

    #[test]
    fn inputs_are_a_string_a_list_tokens_or_lists_of_tokens() {
        let inputs =
            |input: Value| EmbeddingsRequest::parse(json!({"model": "m", "input": input})).unwrap().inputs;
        assert_eq!(inputs(json!("a")), [Prompt::Text("a".into())]);
        assert_eq!(inputs(json!(["a", "b"])), [Prompt::Text("a".into()), Prompt::Text("b".into())]);
        assert_eq!(inputs(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(inputs(json!([[1], [2, 3]])), [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
    }

    #[test]
    fn what_is_not_honoured_is_refused_by_name() {
        let body = |name: &str, value: Value| json!({"model": "m", "input": "a", name: value});
        assert!(refusal(body("encoding_format", json!("int8"))).contains("`encoding_format`"));
        assert!(refusal(body("pooling", json!("cls"))).contains("`pooling`"));
        assert!(refusal(body("dimensions", json!(0))).contains("`dimensions` is 0"));
        assert!(refusal(body("truncate", json!(true))).contains("`truncate`"));
        assert!(refusal(json!({"model": "m", "input": []})).contains("`input` is empty"));
        let many = vec!["a"; crate::embed::INPUTS_MAX + 1];
        assert!(refusal(json!({"model": "m", "input": many})).contains("2048 at most"));
    }

    #[test]
    fn base64_is_the_bytes_of_the_numbers() {
        let embeddings =
            Embeddings { vectors: vec![vec![1.0, -0.5]], prompt_tokens: 3, ..Embeddings::default() };
        let list = EmbeddingList::new("m".into(), Encoding::Base64, embeddings.clone());
        let json = serde_json::to_value(list).unwrap();
        assert_eq!(json["data"][0]["embedding"], "AACAPwAAAL8=");
        assert_eq!((&json["usage"]["prompt_tokens"], &json["usage"]["total_tokens"]), (&json!(3), &json!(3)));
        let list = EmbeddingList::new("m".into(), Encoding::Float, embeddings);
        assert_eq!(serde_json::to_value(list).unwrap()["data"][0]["embedding"], json!([1.0, -0.5]));
    }
}
