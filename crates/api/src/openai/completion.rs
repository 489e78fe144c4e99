//! `POST /v1/completions`: the request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::CommonFields;
use crate::embed::take_prompts;
use crate::fields::{BadParam, Fields};
use crate::generate::{GenerateRequest, Prompt, RequestPart};
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
    pub prompt: Value,
    /// Upper bound of generated tokens per choice; 0 only with `echo`. Default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Report the probability of each token and of so many of the likeliest, 0 to 20; with `echo` of the
    /// prompt's too.
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
            max_tokens: take_max_tokens(&mut fields)?,
            logprobs: fields.take("logprobs", "a whole number between 0 and 20")?,
            echo: fields.take("echo", "true or false")?,
            suffix: fields.take("suffix", "a string")?,
            common: CommonFields::take(&mut fields)?,
        };
        table::COMPLETION.check(&mut fields, "")?;
        fields.finish()?;
        if request.max_tokens == Some(0) && request.echo != Some(true) {
            let message = "`max_tokens` is 0, and only with `echo` there is something to answer then";
            return Err(BadParam::invalid("max_tokens", message));
        }
        Ok(request)
    }

    /// The request as the node understands it.
    pub fn into_generate(self, context: RequestContext) -> Result<GenerateRequest, BadParam> {
        let prompts = take_prompts("prompt", self.prompt)?;
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
        let sampling = self.common.sampling.params(context.seed, self.logprobs, "logprobs")?;
        Ok(GenerateRequest {
            choices,
            max_tokens: Some(self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)),
            stop: self.common.stops()?,
            ignore_eos: self.common.ignore_eos == Some(true),
            echo: self.echo == Some(true),
            ..context.generate(crate::labels::Endpoint::Completions, self.model, sampling, prompts)
        })
    }
}

/// An upper bound that may be 0.
fn take_max_tokens(fields: &mut Fields) -> Result<Option<u32>, BadParam> {
    match fields.take_value("max_tokens") {
        Some(zero) if zero.as_f64() == Some(0.0) => Ok(Some(0)),
        value => token_bound("max_tokens", value),
    }
}

/// Most answers of one request, over all its prompts.
const ANSWERS_MAX: usize = 64;

/// What this endpoint calls a part of a request; it has no others.
pub fn part_name(part: RequestPart) -> String {
    match part {
        RequestPart::Model => "model".to_owned(),
        RequestPart::Logprobs => "logprobs".to_owned(),
        RequestPart::LogitBias => "logit_bias".to_owned(),
        RequestPart::Suffix => "suffix".to_owned(),
        _ => "prompt".to_owned(),
    }
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
