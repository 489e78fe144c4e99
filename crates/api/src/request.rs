//! What every dialect checks alike: sampling, stop strings, bounds of tokens, conversations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_types::{Principal, RequestId, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::fields::{BadParam, Fields};
use crate::generate::{AnswerFormat, ChatMessage, GenerateRequest, Prompt, Reasoning};
use crate::labels::Endpoint;
use crate::tools::is_object;

/// Most stop strings: each costs a search per token.
pub const STOPS_MAX: usize = 16;
/// Longest stop string: this much text may be held back.
pub const STOP_BYTES_MAX: usize = 512;
/// Most entries of `logit_bias`, as in OpenAI's API.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Messages of a conversation. Rendering takes memory for each, however short.
pub const MESSAGES_MAX: usize = 16_384;
/// Longest text of a schema or a grammar.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// What the server adds to a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext {
    /// Id of the request, drawn at random.
    pub request: RequestId,
    /// User on whose behalf the request runs.
    pub principal: Principal,
    /// Used when the request has no `seed`.
    pub seed: u64,
    /// How long the request may wait.
    pub queue_wait_max: Duration,
    /// Whether tools that run at their vendor are left out. They are refused otherwise.
    pub leaves_out_hosted_tools: bool,
}

impl RequestContext {
    /// A request for one answer of plain text to each prompt, which asks for nothing else.
    pub(crate) fn generate(
        self,
        endpoint: Endpoint,
        model: String,
        sampling: SamplingParams,
        prompts: Vec<Prompt>,
    ) -> GenerateRequest {
        GenerateRequest {
            request: self.request,
            endpoint,
            model,
            prompts,
            choices: 1,
            sampling,
            format: AnswerFormat::Text,
            tools: None,
            left_out_tools: Vec::new(),
            reasoning: Reasoning::Default,
            max_tokens: None,
            context_tokens_min: None,
            stop: Vec::new(),
            ignore_eos: false,
            echo: false,
            truncates: false,
            resumable: None,
            principal: self.principal,
            queue_wait_max: self.queue_wait_max,
        }
    }
}

/// How tokens are chosen. What is left out has the default named here.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SamplingFields {
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
    /// Extension: keep the most typical tokens whose probabilities sum to this. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typical_p: Option<f32>,
    /// Extension: above 1 makes tokens already seen less likely. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Extension: the penalties count so many tokens before the next, prompt included. Default 0, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty_window: Option<u32>,
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
}

impl SamplingFields {
    /// Reads them out of the body.
    pub fn take(fields: &mut Fields) -> Result<Self, BadParam> {
        Ok(Self {
            temperature: fields.take("temperature", "a number")?,
            top_p: fields.take("top_p", "a number")?,
            top_k: fields.take("top_k", "a whole number")?,
            min_p: fields.take("min_p", "a number")?,
            typical_p: fields.take("typical_p", "a number")?,
            repetition_penalty_window: take_window(fields)?,
            repetition_penalty: fields.take("repetition_penalty", "a number")?,
            presence_penalty: fields.take("presence_penalty", "a number")?,
            frequency_penalty: fields.take("frequency_penalty", "a number")?,
            logit_bias: fields.take("logit_bias", "an object of token id to number")?,
            seed: fields.take("seed", "a whole number below 2^63")?,
        })
    }

    /// The sampler's parameters, in range. `logprobs_param` is what the endpoint calls the number of
    /// likeliest tokens.
    pub fn params(
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
            typical_p: self.typical_p.unwrap_or(off.typical_p),
            penalty_window: self.repetition_penalty_window.unwrap_or(off.penalty_window),
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

fn take_window(fields: &mut Fields) -> Result<Option<u32>, BadParam> {
    let name = "repetition_penalty_window";
    fields.take(name, "a whole number").and_then(|n| n.map(|n| window(name, n)).transpose())
}

/// How many tokens penalties count, which stands at `name`.
pub fn window(name: &str, tokens: i64) -> Result<u32, BadParam> {
    u32::try_from(tokens)
        .map_err(|_| BadParam::invalid(name, format!("`{name}` is {tokens}, it must be a number of tokens")))
}

fn top_k(value: Option<i64>) -> Result<u32, BadParam> {
    match value {
        // Other servers write "all" as -1.
        None | Some(-1) => Ok(0),
        Some(k) => u32::try_from(k).map_err(|_| {
            BadParam::invalid("top_k", format!("`top_k` is {k}, it must be from 0 (all) to {}", u32::MAX))
        }),
    }
}

/// Stop strings, which the dialect calls `name`.
pub fn check_stops(name: &str, stops: Vec<String>) -> Result<Vec<String>, BadParam> {
    if stops.len() > STOPS_MAX {
        let message = format!("`{name}` has {} strings, at most {STOPS_MAX} are allowed", stops.len());
        return Err(BadParam::invalid(name, message));
    }
    match stops.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
        Some(bad) => {
            let message =
                format!("a string of `{name}` has {} bytes, it must have 1 to {STOP_BYTES_MAX}", bad.len());
            Err(BadParam::invalid(name, message))
        }
        None => Ok(stops),
    }
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
            format!("`{name}` must be a whole number of at least 1, not {}", crate::fields::short(&value)),
        )),
    }
}

/// An answer that is a value of `schema`, which stands at `name`.
pub fn json_schema(name: &str, schema: Value) -> Result<AnswerFormat, BadParam> {
    check_source_len(name, schema.to_string().len())?;
    Ok(AnswerFormat::JsonSchema(schema))
}

/// A schema or grammar of at most the bytes that are taken.
pub fn check_source_len(name: &str, bytes: usize) -> Result<(), BadParam> {
    if bytes <= SOURCE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("`{name}` has {bytes} bytes, at most {SOURCE_BYTES_MAX} are taken");
    Err(BadParam::invalid(name, message))
}

/// Text parts of one message, each on lines of its own: clients send a task, files and what is around them as
/// parts.
pub fn join_parts(parts: Vec<String>) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// How much thinking OpenAI's dialects ask for. Their usual effort is what the model does by itself.
pub fn openai_effort(param: &str, effort: Option<String>) -> Result<Reasoning, BadParam> {
    const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    match effort.as_deref() {
        None | Some("medium") => Ok(Reasoning::Default),
        Some("none") => Ok(Reasoning::Off),
        Some(word) if EFFORTS.contains(&word) => Ok(Reasoning::effort(word)),
        Some(other) => {
            let message = format!("unknown effort `{other:.40}`: use one of {}", EFFORTS.join(", "));
            Err(BadParam::invalid(param, message))
        }
    }
}

/// Every result answers a call before it; gives results the names of their tools. `result_id` says where in
/// the request the id stands that a message answers.
pub fn check_results(
    messages: &mut [ChatMessage],
    result_id: impl Fn(usize) -> String,
) -> Result<(), BadParam> {
    let (mut called, mut answered) = (BTreeMap::new(), BTreeSet::new());
    for (i, message) in messages.iter_mut().enumerate() {
        for call in &message.tool_calls {
            called.insert(call.id.clone(), call.function.name.clone());
        }
        let Some(id) = &message.tool_call_id else { continue };
        let Some(name) = called.get(id) else {
            let message = format!("no message before it has a call `{id:.64}`");
            return Err(BadParam::invalid(result_id(i), message));
        };
        message.name.get_or_insert_with(|| name.clone());
        answered.insert(id.clone());
    }
    say_cut_calls(messages, &answered);
    Ok(())
}

/// A call that `max_tokens` cut comes back in a conversation that goes on: no template prints half a JSON
/// object, so it becomes the text that it is. One that was answered, as clients do that tell the model of
/// their own error, stays a call too, without arguments: its result has to follow one.
fn say_cut_calls(messages: &mut [ChatMessage], answered: &BTreeSet<String>) {
    for message in messages.iter_mut() {
        for mut call in std::mem::take(&mut message.tool_calls) {
            if !is_object(&call.function.arguments) {
                let text = format!("{} {}", call.function.name, call.function.arguments);
                message.content = join_parts(vec![std::mem::take(&mut message.content), text]);
                if !answered.contains(&call.id) {
                    continue;
                }
                call.function.arguments = "{}".to_owned();
            }
            message.tool_calls.push(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CalledFunction, ToolCall};

    fn call(id: &str, arguments: &str) -> ToolCall {
        let function = CalledFunction { name: "w".to_owned(), arguments: arguments.to_owned() };
        ToolCall { id: id.to_owned(), kind: "function".to_owned(), function }
    }

    #[test]
    fn a_call_that_was_cut_is_text_and_what_answers_it_has_a_call_to_follow() {
        let said = ChatMessage {
            role: "assistant".to_owned(),
            content: "I look.".to_owned(),
            tool_calls: vec![call("a", r#"{"x":1}"#), call("b", r#"{"x":"#), call("c", r#"{"y":"#)],
            ..ChatMessage::default()
        };
        let result = ChatMessage {
            role: "tool".to_owned(),
            content: "no JSON".to_owned(),
            tool_call_id: Some("b".to_owned()),
            ..ChatMessage::default()
        };
        let mut messages = [said, result];
        check_results(&mut messages, |i| i.to_string()).unwrap();
        assert_eq!(messages[0].content, "I look.\nw {\"x\":\nw {\"y\":");
        assert_eq!(messages[0].tool_calls, [call("a", r#"{"x":1}"#), call("b", "{}")]);
        assert_eq!(messages[1].name.as_deref(), Some("w"));
    }
}
