//! `POST /api/chat` and `POST /api/generate`: the requests.

use serde_json::Value;

use super::messages::take_messages;
use super::options::{Options, named_here, take_options};
use crate::fields::{BadParam, Fields, short};
use crate::generate::{AnswerFormat, ChatMessage, GenerateRequest, Prompt, Reasoning, RequestPart, Tools};
use crate::labels::Endpoint;
use crate::request::{RequestContext, json_schema};
use crate::spelling::keep_arguments;
use crate::table::{OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_NAMED, Table};
use crate::tool_lists::take_nested_tools;
use crate::tools::{LONG_NAME_LEN_MAX, ToolChoice};

/// A request for text, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct OllamaRequest {
    /// Name or id of a model.
    pub model: String,
    /// Whether to stream, which is usual here.
    pub streams: bool,
    /// Whether it came to `/api/chat`.
    pub is_chat: bool,
    /// Whether it asks for the model to be ready and for nothing else.
    pub only_loads: bool,
    /// Whether the answer shows thoughts.
    pub shows_thoughts: bool,
    prompt: Prompt,
    tools: Option<Tools>,
    format: AnswerFormat,
    reasoning: Reasoning,
    logprobs: Option<u8>,
    truncates: bool,
    options: Options,
}

impl OllamaRequest {
    /// Reads a body of `/api/chat`, refusing by name whatever would not be honoured.
    pub fn parse_chat(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let messages: Vec<Value> = fields.take("messages", "an array of messages")?.unwrap_or_default();
        let messages = take_messages(messages)?;
        let tools = take_nested_tools(&mut fields, OLLAMA_CHAT, false, LONG_NAME_LEN_MAX)?;
        let only_loads = messages.is_empty();
        let request = Self::take(fields, OLLAMA_CHAT, Prompt::Chat { messages }, only_loads)?;
        let tools = ToolChoice::Auto.of(tools, true, "tools")?;
        Ok(Self { tools, is_chat: true, ..request })
    }

    /// Reads a body of `/api/generate`, refusing by name whatever would not be honoured.
    pub fn parse_generate(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let text: String = fields.take("prompt", "a string")?.unwrap_or_default();
        let suffix: Option<String> = fields.take("suffix", "a string")?;
        let suffix = suffix.filter(|suffix| !suffix.is_empty());
        let system: Option<String> = fields.take("system", "a string")?;
        let system = system.filter(|system| !system.is_empty());
        let is_raw = fields.take("raw", "true or false")?.unwrap_or(false);
        if system.is_some() && (is_raw || suffix.is_some()) {
            let beside = if is_raw { "raw" } else { "suffix" };
            let message =
                format!("`system` does not go with `{beside}`: no template has a place for it then");
            return Err(BadParam::invalid("system", message));
        }
        let only_loads = text.is_empty() && suffix.is_none();
        let prompt = match suffix {
            Some(suffix) => Prompt::Infill { prefix: text, suffix: suffix.into() },
            None if is_raw => Prompt::Text(text),
            None => {
                let said = |role: &str, content| ChatMessage {
                    role: role.to_owned(),
                    content,
                    ..ChatMessage::default()
                };
                let system = system.map(|system| said("system", system));
                Prompt::Chat { messages: system.into_iter().chain([said("user", text)]).collect() }
            }
        };
        Self::take(fields, OLLAMA_GENERATE, prompt, only_loads)
    }

    /// What both endpoints take.
    fn take(mut fields: Fields, table: Table, prompt: Prompt, only_loads: bool) -> Result<Self, BadParam> {
        let model = fields.take_required("model", "a string")?;
        let streams = fields.take("stream", "true or false")?.unwrap_or(true);
        let format = take_format(fields.take_value("format"))?;
        let (reasoning, shows_thoughts) = take_think(fields.take_value("think"))?;
        let logprobs = fields.take("logprobs", "true or false")?.unwrap_or(false);
        let top: Option<u8> = fields.take("top_logprobs", "a whole number between 0 and 20")?;
        if top.is_some_and(|top| top > 0) && !logprobs {
            return Err(BadParam::invalid("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
        }
        let keep_alive = fields.take_value("keep_alive");
        if only_loads && keep_alive.as_ref().is_some_and(is_zero) {
            let message = "nothing is unloaded for a request, as others may use the model: what requests loaded makes room when another model \
                 needs it, and `exo unload` unloads it now";
            return Err(BadParam::unsupported("keep_alive", message));
        }
        let truncates = fields.take("truncate", "true or false")?.unwrap_or(false);
        let options = take_options(&mut fields, table)?;
        table.check(&mut fields, "")?;
        fields.finish()?;
        // Any token will do where only the model is to be ready.
        let prompt = if only_loads { Prompt::Tokens(vec![0]) } else { prompt };
        Ok(Self {
            model,
            streams,
            is_chat: false,
            only_loads,
            shows_thoughts,
            prompt,
            tools: None,
            format,
            reasoning,
            logprobs: logprobs.then(|| top.unwrap_or(0)),
            truncates,
            options,
        })
    }

    /// With the calls' arguments as they stand in `text`, the body's: there, numbers have their spelling.
    pub fn with_arguments_of(mut self, text: &str) -> Self {
        if let Prompt::Chat { messages } = &mut self.prompt {
            keep_arguments(messages, text);
        }
        self
    }

    /// The request as the node understands it.
    pub fn into_generate(self, context: RequestContext) -> Result<GenerateRequest, BadParam> {
        let Options { sampling, stop, max_tokens, context_tokens } = self.options;
        let sampling = sampling.params(context.seed, self.logprobs, "top_logprobs").map_err(named_here)?;
        let is_asked = !self.only_loads;
        let endpoint = if self.is_chat { Endpoint::OllamaChat } else { Endpoint::OllamaGenerate };
        Ok(GenerateRequest {
            format: if is_asked { self.format } else { AnswerFormat::Text },
            tools: self.tools.filter(|_| is_asked),
            reasoning: self.reasoning,
            max_tokens: if is_asked { max_tokens } else { Some(1) },
            context_tokens_min: context_tokens,
            stop,
            truncates: self.truncates,
            ..context.generate(endpoint, self.model, sampling, vec![self.prompt])
        })
    }
}

/// What this dialect calls a part of a request.
pub fn part_name(part: RequestPart, is_chat: bool) -> String {
    match part {
        RequestPart::Model => "model".to_owned(),
        RequestPart::Prompt if is_chat => "messages".to_owned(),
        RequestPart::Prompt => "prompt".to_owned(),
        RequestPart::Suffix => "suffix".to_owned(),
        RequestPart::Context => "options.num_ctx".to_owned(),
        RequestPart::Format | RequestPart::Schema | RequestPart::Regex | RequestPart::Lark => {
            "format".to_owned()
        }
        RequestPart::Tools => "tools".to_owned(),
        RequestPart::ToolSchema(i) => format!("tools[{i}].function.parameters"),
        RequestPart::Thinking | RequestPart::Effort => "think".to_owned(),
        RequestPart::Logprobs => "logprobs".to_owned(),
        RequestPart::LogitBias => "logit_bias".to_owned(),
        RequestPart::Pooling => "pooling".to_owned(),
        RequestPart::Dimensions => "dimensions".to_owned(),
    }
}

/// `0`, `"0"`, `"0s"`: not at all.
fn is_zero(keep_alive: &Value) -> bool {
    match keep_alive {
        Value::String(text) => text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) == "0",
        other => other.as_f64() == Some(0.0),
    }
}

fn take_format(format: Option<Value>) -> Result<AnswerFormat, BadParam> {
    match format {
        None => Ok(AnswerFormat::Text),
        Some(Value::String(word)) if word.is_empty() => Ok(AnswerFormat::Text),
        Some(Value::String(word)) if word == "json" => Ok(AnswerFormat::JsonObject),
        Some(schema @ Value::Object(_)) => json_schema("format", schema),
        Some(other) => {
            let message = format!("`format` must be \"json\" or a JSON schema, not {}", short(&other));
            Err(BadParam::invalid("format", message))
        }
    }
}

/// What is asked for of the thinking, and whether the answer shows it.
fn take_think(think: Option<Value>) -> Result<(Reasoning, bool), BadParam> {
    const EFFORTS: [&str; 3] = ["low", "medium", "high"];
    match think {
        None => Ok((Reasoning::Default, true)),
        Some(Value::Bool(true)) => Ok((Reasoning::Required, true)),
        Some(Value::Bool(false)) => Ok((Reasoning::Off, false)),
        Some(Value::String(word)) if EFFORTS.contains(&word.as_str()) => Ok((Reasoning::effort(word), true)),
        Some(other) => {
            let message = format!("`think` must be true, false, low, medium or high, not {}", short(&other));
            Err(BadParam::invalid("think", message))
        }
    }
}

/// A request about one model: `/api/show` and `/api/pull`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedModel {
    /// Name of the model.
    pub model: String,
    /// Whether the answer is streamed.
    pub streams: bool,
}

impl NamedModel {
    /// Reads a body.
    pub fn parse(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let model: Option<String> = fields.take("model", "a string")?;
        let older: Option<String> = fields.take("name", "a string")?;
        let streams = fields.take("stream", "true or false")?.unwrap_or(true);
        OLLAMA_NAMED.check(&mut fields, "")?;
        fields.finish()?;
        // Its own client writes both, and the older one is empty.
        let mut named = model.into_iter().chain(older);
        let model = named.find(|name| !name.is_empty()).ok_or_else(|| BadParam::missing("model"))?;
        Ok(Self { model, streams })
    }
}
