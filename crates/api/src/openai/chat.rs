//! `POST /v1/chat/completions`: the request.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::CommonFields;
use super::format::take_format;
use super::tools::{take_calls, take_tools};
use crate::fields::{BadParam, Fields, check_count, short, whole_number};
use crate::generate::{AnswerFormat, ChatMessage, GenerateRequest, Prompt, Reasoning, RequestPart, Tools};
use crate::request::{MESSAGES_MAX, RequestContext, check_results, join_parts, openai_effort, token_bound};
use crate::table;

/// Asks for the next message of a conversation. Parameters beside these are refused by name unless they ask
/// for nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Name or id of a model.
    pub model: String,
    /// The conversation: `role` is system, developer, user or assistant; `content` a string or text parts.
    pub messages: Vec<ChatMessage>,
    /// Upper bound of generated tokens per choice, at least 1. Default: what the context leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u32>,
    /// The older name of `max_completion_tokens`; -1 is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub max_tokens: Option<u32>,
    /// Report the probability of each token. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// With `logprobs`: how many of the likeliest tokens to report, 0 to 20. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u8>,
    /// What the answer must be: `text`, `json_object`, or `json_schema` with a schema. It is kept to token by
    /// token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// Extension: `{"regex": …}` or `{"lark": …}`, which the answer is kept to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub grammar: Option<Value>,
    /// Functions that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Value>,
    /// `none`, `auto`, `required`, a function or a list of allowed ones. Default `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    /// Whether an answer may have several calls. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// How much to think: `none`, `minimal`, `low`, `medium`, which asks for nothing, `high`, `xhigh`, `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Extension: most tokens of the model's thinking. Its thought is closed then, and the answer begins.
    #[schema(minimum = 1)]
    pub thinking_budget_tokens: Option<u32>,
    /// What the fields of thinking come to.
    #[serde(skip)]
    #[schema(ignore)]
    pub reasoning: Reasoning,
    /// What `response_format` and `grammar` come to.
    #[serde(skip)]
    #[schema(ignore)]
    pub format: AnswerFormat,
    /// What the fields of tools come to.
    #[serde(skip)]
    #[schema(ignore)]
    pub callable: Option<Tools>,
    /// Parameters of both endpoints.
    #[serde(flatten)]
    pub common: CommonFields,
}

impl ChatRequest {
    /// Reads a body, refusing by name whatever would not be honoured.
    pub fn parse(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let request = Self {
            model: fields.take_required("model", "a string")?,
            messages: parse_messages(fields.take_required("messages", "an array of messages")?)?,
            max_completion_tokens: token_bound(
                "max_completion_tokens",
                fields.take_value("max_completion_tokens"),
            )?,
            // LM Studio's and llama.cpp's word for no bound.
            max_tokens: token_bound(
                "max_tokens",
                fields.take_value("max_tokens").filter(|max| whole_number(max) != Some(-1)),
            )?,
            logprobs: fields.take("logprobs", "true or false")?,
            top_logprobs: fields.take("top_logprobs", "a whole number between 0 and 20")?,
            format: take_format(&mut fields)?,
            callable: take_tools(&mut fields)?,
            reasoning: take_reasoning(&mut fields)?,
            reasoning_effort: None,
            thinking_budget_tokens: None,
            response_format: None,
            grammar: None,
            tools: None,
            tool_choice: None,
            parallel_tool_calls: None,
            common: CommonFields::take(&mut fields)?,
        };
        table::CHAT.check(&mut fields, "")?;
        fields.finish()?;
        request.check_together()?;
        Ok(request)
    }

    fn check_together(&self) -> Result<(), BadParam> {
        if self.top_logprobs.is_some_and(|n| n > 0) && self.logprobs != Some(true) {
            return Err(BadParam::invalid("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
        }
        let may_call = self.callable.as_ref().is_some_and(Tools::are_callable);
        if may_call && matches!(self.format, AnswerFormat::Regex(_) | AnswerFormat::Lark(_)) {
            let message = "`grammar` together with `tools` is not supported: send one of them, a `response_format` instead, or \
                           `tool_choice`: \"none\"";
            return Err(BadParam::unsupported("grammar", message));
        }
        let is_bound = self.format != AnswerFormat::Text || may_call || self.reasoning.tokens_max().is_some();
        if self.common.ignore_eos == Some(true) && is_bound {
            let message = "`ignore_eos` does not go with a format, tools or a budget of thinking: an answer that is complete has to end";
            return Err(BadParam::invalid("ignore_eos", message));
        }
        match (self.max_tokens, self.max_completion_tokens) {
            (Some(a), Some(b)) if a != b => Err(BadParam::invalid(
                "max_tokens",
                format!("`max_tokens` is {a} and `max_completion_tokens` is {b}: send one of them"),
            )),
            _ => Ok(()),
        }
    }

    /// The request as the node understands it.
    pub fn into_generate(self, context: RequestContext) -> Result<GenerateRequest, BadParam> {
        let logprobs = (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0));
        let choices = self.common.choices()?;
        let sampling = self.common.sampling.params(context.seed, logprobs, "top_logprobs")?;
        let prompts = vec![Prompt::Chat { messages: self.messages }];
        Ok(GenerateRequest {
            choices,
            format: self.format,
            tools: self.callable,
            reasoning: self.reasoning,
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            stop: self.common.stops()?,
            ignore_eos: self.common.ignore_eos == Some(true),
            ..context.generate(crate::labels::Endpoint::Chat, self.model, sampling, prompts)
        })
    }
}

/// What this endpoint calls a part of a request.
pub fn part_name(part: RequestPart) -> String {
    match part {
        RequestPart::Model | RequestPart::Context => "model".to_owned(),
        RequestPart::Prompt | RequestPart::Suffix => "messages".to_owned(),
        RequestPart::Format => "response_format".to_owned(),
        RequestPart::Schema => "response_format.json_schema.schema".to_owned(),
        RequestPart::Regex => "grammar.regex".to_owned(),
        RequestPart::Lark => "grammar.lark".to_owned(),
        RequestPart::Tools => "tools".to_owned(),
        RequestPart::ToolSchema(i) => format!("tools[{i}].function.parameters"),
        RequestPart::Thinking | RequestPart::Effort => "reasoning_effort".to_owned(),
        RequestPart::Logprobs => "logprobs".to_owned(),
        RequestPart::LogitBias => "logit_bias".to_owned(),
        RequestPart::Pooling | RequestPart::Dimensions => "messages".to_owned(),
    }
}

/// What the fields say of the thinking.
fn take_reasoning(fields: &mut Fields) -> Result<Reasoning, BadParam> {
    const BUDGET: &str = "thinking_budget_tokens";
    let asked = openai_effort("reasoning_effort", fields.take("reasoning_effort", "a string")?)?;
    let asked = match take_enable_thinking(fields)? {
        Some(false) if matches!(asked, Reasoning::Effort { .. }) => {
            let message = "`chat_template_kwargs.enable_thinking` is false and `reasoning_effort` asks for thoughts: send one of them";
            return Err(BadParam::invalid("chat_template_kwargs.enable_thinking", message));
        }
        Some(false) => Reasoning::Off,
        Some(true) if asked == Reasoning::Off => {
            let message = "`chat_template_kwargs.enable_thinking` is true and `reasoning_effort` is `none`: send one of them";
            return Err(BadParam::invalid("chat_template_kwargs.enable_thinking", message));
        }
        Some(true) if asked == Reasoning::Default => Reasoning::On { tokens_max: None },
        _ => asked,
    };
    Ok(asked.within(token_bound(BUDGET, fields.take_value(BUDGET))?))
}

/// What other servers' clients say in the variables of a template. Only whether to think is read.
fn take_enable_thinking(fields: &mut Fields) -> Result<Option<bool>, BadParam> {
    let Some(variables) = fields.take_value("chat_template_kwargs") else { return Ok(None) };
    let mut variables = Fields::new(variables, "chat_template_kwargs")?;
    let thinks = variables.take("enable_thinking", "true or false")?;
    variables.finish()?;
    Ok(thinks)
}

pub(super) fn parse_messages(values: Vec<Value>) -> Result<Vec<ChatMessage>, BadParam> {
    if values.is_empty() {
        return Err(BadParam::invalid("messages", "`messages` must hold at least one message"));
    }
    check_count("messages", "messages", values.len(), MESSAGES_MAX)?;
    let message = |(i, value)| parse_message(value, &format!("messages[{i}]"));
    let mut messages = values.into_iter().enumerate().map(message).collect::<Result<Vec<_>, _>>()?;
    check_results(&mut messages, |i| format!("messages[{i}].tool_call_id"))?;
    Ok(messages)
}

fn parse_message(value: Value, path: &str) -> Result<ChatMessage, BadParam> {
    let mut fields = Fields::new(value, path)?;
    let role: String = fields.take_required("role", "a string")?;
    let role = match role.as_str() {
        "system" | "user" | "assistant" => role,
        // OpenAI's newer word for the same thing; templates know only the older one.
        "developer" => "system".to_owned(),
        "tool" => return parse_result(fields),
        "function" => {
            let name = fields.name("role");
            return Err(BadParam::unsupported(name, format!("messages of role `{role}` are not supported")));
        }
        other => {
            let message =
                format!("unknown role `{other:.40}`: use system, developer, user, assistant or tool");
            return Err(BadParam::invalid(fields.name("role"), message));
        }
    };
    let tool_calls = take_calls(&mut fields)?;
    let thought: Option<String> = fields.take("reasoning_content", "a string")?;
    // Its name in the answers of other servers, and beside the usual one in ours.
    let other_thought: Option<String> = fields.take("reasoning", "a string")?;
    for (name, is_there) in [
        ("tool_calls", !tool_calls.is_empty()),
        ("reasoning_content", thought.is_some()),
        ("reasoning", other_thought.is_some()),
    ] {
        if is_there && role != "assistant" {
            let name = fields.name(name);
            let message = format!("`{name}` is the assistant's, not one of role `{role}`");
            return Err(BadParam::invalid(name, message));
        }
    }
    if fields.take_value("tool_call_id").is_some_and(|id| id != Value::Array(Vec::new())) {
        let name = fields.name("tool_call_id");
        let message = format!("`{name}` belongs to messages of role `tool`");
        return Err(BadParam::invalid(name, message));
    }
    table::CHAT.check(&mut fields, "messages[].")?;
    let content_name = fields.name("content");
    let content = match fields.take_value("content") {
        Some(content) => parse_content(content, &content_name)?,
        None if !tool_calls.is_empty() => String::new(),
        None => return Err(BadParam::missing(&content_name)),
    };
    let name = fields.take("name", "a string")?;
    fields.finish()?;
    let reasoning_content = thought.or(other_thought);
    Ok(ChatMessage { role, content, name, reasoning_content, tool_calls, tool_call_id: None })
}

/// A tool's result.
fn parse_result(mut fields: Fields) -> Result<ChatMessage, BadParam> {
    let id: String = fields.take_required("tool_call_id", "a string")?;
    let content_name = fields.name("content");
    let content = fields.take_value("content").ok_or_else(|| BadParam::missing(&content_name))?;
    let content = parse_content(content, &content_name)?;
    let name = fields.take("name", "a string")?;
    table::CHAT.check(&mut fields, "messages[].")?;
    fields.finish()?;
    Ok(ChatMessage {
        role: "tool".to_owned(),
        content,
        name,
        tool_call_id: Some(id),
        ..ChatMessage::default()
    })
}

fn parse_content(content: Value, path: &str) -> Result<String, BadParam> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let part = |(i, part)| parse_part(part, &format!("{path}[{i}]"));
            let parts = parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?;
            Ok(join_parts(parts))
        }
        other => {
            let message =
                format!("`{path}` must be a string or an array of text parts, not {}", short(&other));
            Err(BadParam::invalid(path, message))
        }
    }
}

fn parse_part(part: Value, path: &str) -> Result<String, BadParam> {
    let mut fields = Fields::new(part, path)?;
    let kind: String = fields.take_required("type", "a string")?;
    if kind != "text" {
        let message = format!("parts of type `{kind:.40}` are not supported, only `text` is");
        return Err(BadParam::unsupported(fields.name("type"), message));
    }
    let text = fields.take_required("text", "a string")?;
    table::CHAT.check(&mut fields, "messages[].content[].")?;
    fields.finish()?;
    Ok(text)
}
