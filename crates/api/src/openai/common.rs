//! Parameters that chat and completions share.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::fields::{BadParam, Fields};
use crate::request::{SamplingFields, check_stops};

/// Most answers of one request: each is a sequence with its own KV cache.
pub const CHOICES_MAX: u16 = 16;

/// Parameters of both endpoints. What is left out has the default named here.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CommonFields {
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// How many answers, 1 to 16. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u16>,
    /// A string or up to 16 of them; the text ends before the first that appears.
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
        let common = Self {
            sampling: SamplingFields::take(fields)?,
            n: fields.take("n", "a whole number between 1 and 16")?,
            stop: fields.take_value("stop"),
            stream: fields.take("stream", "true or false")?,
            stream_options: take_stream_options(fields)?,
            ignore_eos: fields.take("ignore_eos", "true or false")?,
        };
        if common.includes_usage() && !common.streams() {
            let message =
                "`stream_options` is for answers that stream: send `stream: true` with it, or leave it out";
            return Err(BadParam::invalid("stream_options", message));
        }
        Ok(common)
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
        check_stops("stop", stops)
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
