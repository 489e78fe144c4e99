//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: the request.

use exo_types::Principal;
use serde_json::{Value, json};

use super::blocks::{take_messages, take_system};
use crate::fields::{BadParam, Fields, short};
use crate::generate::{
    AnswerFormat, ChatMessage, GenerateRequest, Prompt, Reasoning, RequestPart, ToolDefinition, Tools,
};
use crate::request::{RequestContext, SamplingFields, check_results, check_stops, json_schema, token_bound};
use crate::spelling::keep_inputs;
use crate::table::{MESSAGES, MESSAGES_COUNT, Table};
use crate::tokens::{ChatPrompt, TokensQuestion, TokensRequest};
use crate::tool_lists::{flat_function, functions_and_hosted};
use crate::tools::{HostedTools, ToolChoice, check_known};

/// What an answer shows of thoughts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thoughts {
    /// The whole thought is shown.
    Shown,
    /// That there were some.
    Omitted,
    /// Nothing: nobody asked for them.
    Hidden,
}

/// A request for the next message, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct MessagesRequest {
    /// Name or id of a model.
    pub model: String,
    /// Whether the answer is streamed.
    pub streams: bool,
    /// What is shown of thoughts.
    pub thoughts: Thoughts,
    messages: Vec<ChatMessage>,
    max_tokens: Option<u32>,
    stop: Vec<String>,
    sampling: SamplingFields,
    format: AnswerFormat,
    tools: Option<Tools>,
    hosted: HostedTools,
    reasoning: Reasoning,
}

impl MessagesRequest {
    /// Reads a body, refusing by name whatever would not be honoured.
    pub fn parse(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let max_tokens = fields.take_value("max_tokens").ok_or_else(|| BadParam::missing("max_tokens"))?;
        let max_tokens = token_bound("max_tokens", Some(max_tokens))?;
        let stop: Vec<String> = fields.take("stop_sequences", "an array of strings")?.unwrap_or_default();
        let stop = check_stops("stop_sequences", stop)?;
        let streams = fields.take("stream", "true or false")?.unwrap_or(false);
        let sampling = SamplingFields::take(&mut fields)?;
        let request = Self::prompt(fields, MESSAGES)?;
        Ok(Self { max_tokens, stop, streams, sampling, ..request })
    }

    /// Reads a body that asks how many tokens a prompt has.
    pub fn parse_count(body: Value) -> Result<Self, BadParam> {
        Self::prompt(Fields::new(body, "")?, MESSAGES_COUNT)
    }

    /// What both endpoints take.
    fn prompt(mut fields: Fields, table: Table) -> Result<Self, BadParam> {
        let model = fields.take_required("model", "a string")?;
        let system = take_system(fields.take_value("system"), "system")?;
        let is_counted = table.endpoint == MESSAGES_COUNT.endpoint;
        let (mut messages, places) =
            take_messages(fields.take_required("messages", "an array of messages")?, is_counted)?;
        check_results(&mut messages, |i| format!("{}.tool_use_id", places[i]))?;
        if let Some(turns) = take_thoughts_kept(fields.take_value("context_management"))? {
            keep_thoughts(&mut messages, turns);
        }
        messages.splice(0..0, system);
        let (tools, hosted) = take_tools(&mut fields)?;
        let (reasoning, thoughts) = take_thinking(fields.take_value("thinking"))?;
        let (format, effort) = take_output_config(fields.take_value("output_config"))?;
        let format = or_older_format(format, fields.take_value("output_format"))?;
        // Whoever wants no thoughts wants no effort in them. Beside a budget both count.
        let reasoning = match (effort, reasoning) {
            (Some(effort), Reasoning::Unasked) => Reasoning::effort_unasked(effort),
            (Some(effort), Reasoning::On { tokens_max }) => Reasoning::effort(effort).within(tokens_max),
            (_, reasoning) => reasoning,
        };
        table.check(&mut fields, "")?;
        fields.finish()?;
        let (max_tokens, stop, sampling) = (None, Vec::new(), SamplingFields::default());
        let streams = false;
        Ok(Self {
            model,
            streams,
            thoughts,
            messages,
            max_tokens,
            stop,
            sampling,
            format,
            tools,
            hosted,
            reasoning,
        })
    }

    /// With the calls' inputs as they stand in `text`, the body's: there, numbers have their spelling.
    pub fn with_inputs_of(mut self, text: &str) -> Self {
        keep_inputs(&mut self.messages, text);
        self
    }

    /// What `principal` asks of the tokenizer to count the prompt. `leaves_out_hosted_tools` is as in
    /// [`RequestContext`].
    pub fn into_count(
        self,
        principal: Principal,
        leaves_out_hosted_tools: bool,
    ) -> Result<TokensRequest, BadParam> {
        self.hosted.left_out(leaves_out_hosted_tools)?;
        let opens_answer = self.messages.last().is_none_or(|last| last.role != "assistant");
        let chat = ChatPrompt {
            messages: self.messages,
            tools: self.tools,
            reasoning: self.reasoning,
            opens_answer,
        };
        Ok(TokensRequest {
            model: self.model,
            question: TokensQuestion::EncodeChat(chat),
            principal,
            with_pieces: false,
        })
    }

    /// The request as the node understands it.
    pub fn into_generate(self, context: RequestContext) -> Result<GenerateRequest, BadParam> {
        let sampling = self.sampling.params(context.seed, None, "top_logprobs")?;
        let prompts = vec![Prompt::Chat { messages: self.messages }];
        Ok(GenerateRequest {
            format: self.format,
            tools: self.tools,
            reasoning: self.reasoning,
            max_tokens: self.max_tokens,
            stop: self.stop,
            left_out_tools: self.hosted.left_out(context.leaves_out_hosted_tools)?,
            ..context.generate(crate::labels::Endpoint::Messages, self.model, sampling, prompts)
        })
    }
}

/// What this dialect calls a part of a request.
pub fn part_name(part: RequestPart) -> String {
    match part {
        RequestPart::Model | RequestPart::Context => "model".to_owned(),
        RequestPart::Prompt
        | RequestPart::Suffix
        | RequestPart::Logprobs
        | RequestPart::Pooling
        | RequestPart::Dimensions => "messages".to_owned(),
        RequestPart::Format | RequestPart::Regex | RequestPart::Lark => "output_config.format".to_owned(),
        RequestPart::Schema => "output_config.format.schema".to_owned(),
        RequestPart::LogitBias => "logit_bias".to_owned(),
        RequestPart::Tools => "tools".to_owned(),
        RequestPart::ToolSchema(i) => format!("tools[{i}].input_schema"),
        RequestPart::Thinking => "thinking".to_owned(),
        RequestPart::Effort => "output_config.effort".to_owned(),
    }
}

fn take_tools(fields: &mut Fields) -> Result<(Option<Tools>, HostedTools), BadParam> {
    let listed: Vec<Value> = fields.take("tools", "an array of tools")?.unwrap_or_default();
    let hosted_kind = |fields: &mut Fields| {
        let kind: Option<String> = fields.take("type", "a string")?;
        Ok(kind.filter(|kind| kind != "custom"))
    };
    let why = "run at their vendor and are not supported: send tools with an `input_schema`";
    let function = |fields| flat_function(fields, MESSAGES, "input_schema", None);
    let (tools, hosted) = functions_and_hosted(listed, hosted_kind, why, function)?;
    let (choice, is_parallel) = match fields.take_value("tool_choice") {
        Some(choice) => choice_of(choice, &tools)?,
        None => (ToolChoice::Auto, true),
    };
    Ok((choice.of(tools, is_parallel, "tool_choice")?, hosted))
}

fn choice_of(choice: Value, tools: &[ToolDefinition]) -> Result<(ToolChoice, bool), BadParam> {
    let mut fields = Fields::new(choice, "tool_choice")?;
    let kind: String = fields.take_required("type", "a string")?;
    let choice = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => {
            let name: String = fields.take_required("name", "a string")?;
            check_known("tool_choice.name", &name, tools)?;
            ToolChoice::Of { allowed: vec![name], is_required: true }
        }
        other => {
            let message = format!("unknown choice `{other:.40}`: use auto, any, tool or none");
            return Err(BadParam::unsupported("tool_choice.type", message));
        }
    };
    let is_single = fields.take("disable_parallel_tool_use", "true or false")?.unwrap_or(false);
    fields.finish()?;
    Ok((choice, !is_single))
}

/// What to think, and whether to show it.
fn take_thinking(thinking: Option<Value>) -> Result<(Reasoning, Thoughts), BadParam> {
    let Some(thinking) = thinking else { return Ok((Reasoning::Unasked, Thoughts::Hidden)) };
    let mut fields = Fields::new(thinking, "thinking")?;
    let kind: String = fields.take_required("type", "a string")?;
    let budget = token_bound("thinking.budget_tokens", fields.take_value("budget_tokens"))?;
    let reasoning = match kind.as_str() {
        "enabled" | "adaptive" => Reasoning::On { tokens_max: budget },
        "disabled" => Reasoning::Off,
        other => {
            let message = format!(
                "thinking of type `{other:.40}` is not supported: enabled, adaptive and disabled are"
            );
            return Err(BadParam::unsupported("thinking.type", message));
        }
    };
    let shows = match fields.take_value("display") {
        None => Thoughts::Shown,
        Some(Value::String(word)) if word == "summarized" => Thoughts::Shown,
        Some(Value::String(word)) if word == "omitted" => Thoughts::Omitted,
        Some(other) => {
            let message =
                format!("`thinking.display` must be `summarized` or `omitted`, not {}", short(&other));
            return Err(BadParam::invalid("thinking.display", message));
        }
    };
    MESSAGES.check(&mut fields, "thinking.")?;
    fields.finish()?;
    Ok((reasoning, shows))
}

/// How many of the assistant's last turns keep their thoughts; `None` where all do.
fn take_thoughts_kept(management: Option<Value>) -> Result<Option<usize>, BadParam> {
    let Some(management) = management else { return Ok(None) };
    let mut fields = Fields::new(management, "context_management")?;
    let edits: Vec<Value> = fields.take("edits", "an array of edits")?.unwrap_or_default();
    fields.finish()?;
    let mut kept = None;
    for (i, edit) in edits.into_iter().enumerate() {
        let mut fields = Fields::new(edit, &format!("context_management.edits[{i}]"))?;
        let kind: String = fields.take_required("type", "a string")?;
        if kind != "clear_thinking_20251015" {
            let message = format!("edits of type `{kind:.40}` are not supported: clear_thinking_20251015 is");
            return Err(BadParam::unsupported(fields.name("type"), message));
        }
        let path = fields.name("keep");
        let keep = fields.take_value("keep").unwrap_or_else(|| json!({"type": "thinking_turns", "value": 1}));
        fields.finish()?;
        if keep == "all" {
            continue;
        }
        let mut fields = Fields::new(keep, &path)?;
        let kind: String = fields.take_required("type", "a string")?;
        let turns: Option<usize> = fields.take("value", "a whole number of at least 1")?;
        fields.finish()?;
        match (kind.as_str(), turns) {
            ("all", None) => {}
            ("thinking_turns", Some(turns @ 1..)) => {
                kept = Some(kept.map_or(turns, |kept: usize| kept.min(turns)));
            }
            _ => {
                let message =
                    format!("`{path}` must be `all`, or `thinking_turns` with a `value` of at least 1");
                return Err(BadParam::invalid(path, message));
            }
        }
    }
    Ok(kept)
}

/// Leaves the thoughts of the last so many turns that have some. A turn is all that the assistant says and
/// calls until the user speaks again.
fn keep_thoughts(messages: &mut [ChatMessage], turns: usize) {
    let (mut seen, mut is_counted) = (0, false);
    for i in (0..messages.len()).rev() {
        // What the user says along with a result belongs to the turn.
        let is_end = messages[i].role == "user" && (i == 0 || messages[i - 1].role != "tool");
        is_counted &= !is_end;
        let message = &mut messages[i];
        if message.reasoning_content.is_none() {
            continue;
        }
        seen += usize::from(!is_counted);
        is_counted = true;
        if seen > turns {
            message.reasoning_content = None;
        }
    }
}

/// What the answer must be, and an effort other than the dialect's usual one.
fn take_output_config(config: Option<Value>) -> Result<(AnswerFormat, Option<String>), BadParam> {
    const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
    let Some(config) = config else { return Ok((AnswerFormat::Text, None)) };
    let mut fields = Fields::new(config, "output_config")?;
    let effort: Option<String> = fields.take("effort", "a string")?;
    if let Some(other) = effort.as_ref().filter(|word| !EFFORTS.contains(&word.as_str())) {
        let message = format!("unknown effort `{other:.40}`: use one of {}", EFFORTS.join(", "));
        return Err(BadParam::invalid("output_config.effort", message));
    }
    let format = match fields.take_value("format") {
        Some(format) => format_of(format, "output_config.format")?,
        None => AnswerFormat::Text,
    };
    MESSAGES.check(&mut fields, "output_config.")?;
    fields.finish()?;
    Ok((format, effort.filter(|word| word != "high")))
}

/// What the answer must be where that comes by its older name, as older clients send it.
fn or_older_format(format: AnswerFormat, older: Option<Value>) -> Result<AnswerFormat, BadParam> {
    const OLDER: &str = "output_format";
    match older {
        None => Ok(format),
        Some(older) if format == AnswerFormat::Text => format_of(older, OLDER),
        Some(_) => {
            let message = "`output_format` is the older name of `output_config.format`: send one of them";
            Err(BadParam::invalid(OLDER, message))
        }
    }
}

fn format_of(format: Value, path: &str) -> Result<AnswerFormat, BadParam> {
    let mut fields = Fields::new(format, path)?;
    let kind: String = fields.take_required("type", "a string")?;
    if kind != "json_schema" {
        let message = format!("unknown format `{kind:.40}`: use json_schema");
        return Err(BadParam::unsupported(fields.name("type"), message));
    }
    let name = fields.name("schema");
    let schema = fields.take_value("schema").ok_or_else(|| BadParam::missing(&name))?;
    fields.finish()?;
    json_schema(&name, schema)
}
