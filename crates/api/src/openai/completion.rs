//! `POST /v1/completions`: the request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::CommonFields;
use crate::fields::{BadParam, Fields, short};
use crate::generate::{AnswerFormat, GenerateRequest, Prompt, Reasoning, RequestPart};
use crate::request::{RequestContext, token_bound};
use crate::table;

/// OpenAI's default of `max_tokens` on this endpoint, which clients rely on to get a short answer.
pub const MAX_TOKENS_DEFAULT: u32 = 16;

/// Asks for text to be continued. Parameters beside these are refused by name unless they ask for nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Name or id of a model.
    pub model: String,
    /// A string, an array of token ids, or an array of strings or of such arrays.
    #[schema(value_type = Object)]
    pub prompt: Value,
    /// Upper bound of generated tokens per choice, at least 1. Default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Report the probability of each token and of so many of the likeliest, 0 to 20. Not together with `echo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u8>,
    /// Begin each answer with the prompt. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// What stands behind the answer; for models with tokens for filling such holes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,
    /// Parameters of both endpoints.
    #[serde(flatten)]
    pub common: CommonFields,
}

impl CompletionRequest {
    /// Reads a body, refusing by name whatever would not be honoured.
    pub fn parse(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let request = Self {
            model: fields.take_required("model", "a string")?,
            prompt: fields.take_value("prompt").ok_or_else(|| BadParam::missing("prompt"))?,
            max_tokens: token_bound("max_tokens", fields.take_value("max_tokens"))?,
            logprobs: fields.take("logprobs", "a whole number between 0 and 20")?,
            echo: fields.take("echo", "true or false")?,
            suffix: fields.take("suffix", "a string")?,
            common: CommonFields::take(&mut fields)?,
        };
        table::COMPLETION.check(&mut fields, "")?;
        fields.finish()?;
        if request.echo == Some(true) && request.logprobs.is_some() {
            let message = "`logprobs` together with `echo` is not supported: the prompt is not scored";
            return Err(BadParam::unsupported("logprobs", message));
        }
        Ok(request)
    }

    /// The request as the node understands it.
    pub fn into_generate(self, context: RequestContext) -> Result<GenerateRequest, BadParam> {
        let prompts = parse_prompts(self.prompt)?;
        let (choices, answers) =
            (self.common.choices()?, prompts.len() * usize::from(self.common.choices()?));
        if answers > ANSWERS_MAX {
            let count = prompts.len();
            let message = format!(
                "{count} prompts with `n` {choices} are {answers} answers, {ANSWERS_MAX} at most are given"
            );
            return Err(BadParam::invalid("prompt", message));
        }
        let suffix = self.suffix.filter(|suffix| !suffix.is_empty());
        let prompts = match suffix {
            Some(suffix) => with_suffix(prompts, &suffix.into())?,
            None => prompts,
        };
        Ok(GenerateRequest {
            request: context.request,
            endpoint: crate::telemetry::Endpoint::Completions,
            choices,
            sampling: self.common.sampling.params(context.seed, self.logprobs, "logprobs")?,
            format: AnswerFormat::Text,
            tools: None,
            reasoning: Reasoning::Default,
            max_tokens: Some(self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)),
            context_tokens_min: None,
            stop: self.common.stops()?,
            ignore_eos: self.common.ignore_eos == Some(true),
            echo: self.echo == Some(true),
            principal: context.principal,
            resumable: None,
            queue_wait_max: context.queue_wait_max,
            model: self.model,
            prompts,
        })
    }
}

/// Most answers of one request, over all its prompts.
const ANSWERS_MAX: usize = 128;

/// What this endpoint calls a part of a request; it has no others.
pub fn part_name(part: RequestPart) -> String {
    match part {
        RequestPart::Model => "model".to_owned(),
        RequestPart::Logprobs => "logprobs".to_owned(),
        RequestPart::Suffix => "suffix".to_owned(),
        _ => "prompt".to_owned(),
    }
}

fn parse_prompts(prompt: Value) -> Result<Vec<Prompt>, BadParam> {
    match prompt {
        Value::String(text) => Ok(vec![Prompt::Text(text)]),
        Value::Array(items) if items.is_empty() => Err(BadParam::invalid("prompt", "`prompt` is empty")),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            Ok(vec![parse_tokens(&items, "prompt")?])
        }
        Value::Array(items) if items.iter().all(|i| i.is_string() || i.is_array()) => {
            items.into_iter().enumerate().map(|(i, item)| parse_one(item, &format!("prompt[{i}]"))).collect()
        }
        other => {
            let message = format!(
                "`prompt` must be a string, an array of token ids, or an array of these, not {}",
                short(&other)
            );
            Err(BadParam::invalid("prompt", message))
        }
    }
}

/// One of several prompts: no further level.
fn parse_one(item: Value, path: &str) -> Result<Prompt, BadParam> {
    match item {
        Value::Array(ids) if ids.is_empty() => Err(BadParam::invalid("prompt", format!("`{path}` is empty"))),
        Value::Array(ids) => parse_tokens(&ids, path),
        Value::String(text) => Ok(Prompt::Text(text)),
        other => {
            let message =
                format!("`{path}` must be a string or an array of token ids, not {}", short(&other));
            Err(BadParam::invalid("prompt", message))
        }
    }
}

fn parse_tokens(items: &[Value], path: &str) -> Result<Prompt, BadParam> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let Some(bad) = items.iter().position(|v| id(v).is_none()) else {
        return Ok(Prompt::Tokens(items.iter().filter_map(id).collect()));
    };
    Err(BadParam::invalid(
        "prompt",
        format!("`{path}[{bad}]` must be a token id, not {}", short(&items[bad])),
    ))
}

fn with_suffix(prompts: Vec<Prompt>, suffix: &Arc<str>) -> Result<Vec<Prompt>, BadParam> {
    let infill = |prompt| match prompt {
        Prompt::Text(prefix) => Ok(Prompt::Infill { prefix, suffix: suffix.clone() }),
        _ => {
            let message =
                "`suffix` goes with prompts of text, not of token ids: put the model's own tokens into them";
            Err(BadParam::unsupported("suffix", message))
        }
    };
    prompts.into_iter().map(infill).collect()
}
