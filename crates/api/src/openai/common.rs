//! Parameters that both endpoints share, from field to [`SamplingParams`].

use std::collections::BTreeMap;
use std::time::Duration;

use exo_types::{Principal, RequestId, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::{BadParam, Fields};

/// Most answers of one request: each is a sequence with its own KV cache.
pub const CHOICES_MAX: u16 = 16;
/// Most stop strings: each costs a search per token.
pub const STOPS_MAX: usize = 16;
/// Longest stop string: this much text may be held back.
pub const STOP_BYTES_MAX: usize = 512;
/// Most entries of `logit_bias`, as in OpenAI's API.
pub const LOGIT_BIAS_MAX: usize = 1024;

/// What the server adds to a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext {
    /// Drawn at random.
    pub request: RequestId,
    /// On whose behalf.
    pub principal: Principal,
    /// Used when the request has no `seed`.
    pub seed: u64,
    /// How long it may wait.
    pub queue_wait_max: Duration,
}

/// Parameters of both endpoints. What is left out has the default named here.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CommonFields {
    /// 0 is greedy, at most 2. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Nucleus: keep the likeliest tokens whose probabilities sum to this. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Extension: keep the k likeliest tokens. Default 0, all (-1 too).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Extension: drop tokens less likely than this times the likeliest. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Extension: above 1 makes tokens already seen less likely. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from generated tokens, -2 to 2. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence from generated tokens, -2 to 2. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Token id to bias, -100 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The same seed, prompt and parameters give the same text. Default: drawn at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// How many answers, 1 to 16. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u16>,
    /// A string or up to 16 of them; the text ends before the first that appears.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Value>,
    /// Send the answer in pieces as server-sent events. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// What else to stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Extension, for benchmarks: go on past the end-of-text token. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
}

/// What else to stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// End with a chunk that has no choices but the usage. Default false.
    #[serde(default)]
    pub include_usage: bool,
}

impl CommonFields {
    /// Reads them out of the body.
    pub fn take(fields: &mut Fields) -> Result<Self, BadParam> {
        Ok(Self {
            temperature: fields.take("temperature", "a number")?,
            top_p: fields.take("top_p", "a number")?,
            top_k: fields.take("top_k", "a whole number")?,
            min_p: fields.take("min_p", "a number")?,
            repetition_penalty: fields.take("repetition_penalty", "a number")?,
            presence_penalty: fields.take("presence_penalty", "a number")?,
            frequency_penalty: fields.take("frequency_penalty", "a number")?,
            logit_bias: fields.take("logit_bias", "an object of token id to number")?,
            seed: fields.take("seed", "a whole number below 2^63")?,
            n: fields.take("n", "a whole number between 1 and 16")?,
            stop: fields.take_value("stop"),
            stream: fields.take("stream", "true or false")?,
            stream_options: take_stream_options(fields)?,
            ignore_eos: fields.take("ignore_eos", "true or false")?,
        })
    }

    /// Whether to stream.
    pub fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    /// Whether to end the stream with the usage.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.is_some_and(|o| o.include_usage)
    }

    /// Number of answers.
    pub fn choices(&self) -> Result<u16, BadParam> {
        match self.n.unwrap_or(1) {
            n @ 1..=CHOICES_MAX => Ok(n),
            n => Err(BadParam::invalid("n", format!("`n` is {n}, it must be between 1 and {CHOICES_MAX}"))),
        }
    }

    /// Stop strings.
    pub fn stops(&self) -> Result<Vec<String>, BadParam> {
        let stops: Vec<String> = match &self.stop {
            None => Vec::new(),
            Some(Value::String(one)) => vec![one.clone()],
            Some(many) => serde_json::from_value(many.clone())
                .map_err(|_| BadParam::invalid("stop", "`stop` must be a string or an array of strings"))?,
        };
        if stops.len() > STOPS_MAX {
            let n = stops.len();
            return Err(BadParam::invalid(
                "stop",
                format!("`stop` has {n} strings, at most {STOPS_MAX} are allowed"),
            ));
        }
        match stops.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
            Some(bad) => Err(BadParam::invalid(
                "stop",
                format!("a string of `stop` has {} bytes, it must have 1 to {STOP_BYTES_MAX}", bad.len()),
            )),
            None => Ok(stops),
        }
    }

    /// The sampler's parameters, in range. `logprobs_param` is what the endpoint calls the number of likeliest
    /// tokens.
    pub fn sampling(
        &self,
        seed: u64,
        logprobs: Option<u8>,
        logprobs_param: &str,
    ) -> Result<SamplingParams, BadParam> {
        let off = SamplingParams::greedy();
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: top_k(self.top_k)?,
            top_p: self.top_p.unwrap_or(off.top_p),
            min_p: self.min_p.unwrap_or(off.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(off.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(off.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            logit_bias: self.bias()?,
            seed: self.seed.map_or(seed, i64::cast_unsigned),
            logprobs,
            constraint: None,
        };
        params.check().map_err(|e| {
            let name = if e.name == "top_logprobs" { logprobs_param } else { e.name };
            BadParam::invalid(
                name,
                format!("`{name}` is {}, it must be between {} and {}", e.value, e.min, e.max),
            )
        })?;
        Ok(params)
    }

    fn bias(&self) -> Result<BTreeMap<u32, f32>, BadParam> {
        let Some(bias) = &self.logit_bias else { return Ok(BTreeMap::new()) };
        if bias.len() > LOGIT_BIAS_MAX {
            let message =
                format!("`logit_bias` has {} entries, at most {LOGIT_BIAS_MAX} are allowed", bias.len());
            return Err(BadParam::invalid("logit_bias", message));
        }
        bias.iter()
            .map(|(token, value)| Some((token.parse().ok()?, *value)))
            .collect::<Option<_>>()
            .ok_or_else(|| BadParam::invalid("logit_bias", "the keys of `logit_bias` must be token ids"))
    }
}

fn top_k(value: Option<i64>) -> Result<u32, BadParam> {
    match value {
        // Other servers write "all" as -1.
        None | Some(-1) => Ok(0),
        Some(k) => u32::try_from(k)
            .map_err(|_| BadParam::invalid("top_k", format!("`top_k` is {k}, it must be 0 (all) or more"))),
    }
}

fn take_stream_options(fields: &mut Fields) -> Result<Option<StreamOptions>, BadParam> {
    let Some(value) = fields.take_value("stream_options") else { return Ok(None) };
    let mut inner = Fields::new(value, "stream_options")?;
    let include_usage = inner.take("include_usage", "true or false")?.unwrap_or(false);
    if inner.take::<bool>("include_obfuscation", "true or false")? == Some(true) {
        let name = "stream_options.include_obfuscation";
        return Err(BadParam::unsupported(name, format!("`{name}` is not supported")));
    }
    inner.finish()?;
    Ok(Some(StreamOptions { include_usage }))
}

/// An upper bound of tokens: at least 1, and as large as one likes (the context bounds it).
pub fn token_bound(name: &str, value: Option<Value>) -> Result<Option<u32>, BadParam> {
    let Some(value) = value else { return Ok(None) };
    match value.as_f64() {
        Some(0.0) => Err(BadParam::invalid(name, format!("`{name}` is 0, it must be at least 1"))),
        // The cast saturates: beyond u32 is beyond every context.
        Some(n) if n >= 1.0 && n.fract() == 0.0 => Ok(Some(n as u32)),
        _ => Err(BadParam::invalid(
            name,
            format!("`{name}` must be a whole number of at least 1, not {}", super::fields::short(&value)),
        )),
    }
}
