//! `POST /v1/responses` and `POST /v1/responses/input_tokens`: the request.

use serde_json::{Map, Value, json};

use super::answer::Response;
use super::input::take_input;
use crate::fields::{BadParam, Fields, check_count};
use crate::generate::{
    AnswerFormat, ChatMessage, GenerateRequest, Prompt, Reasoning, RequestPart, ToolDefinition, Tools,
};
use crate::request::{
    MESSAGES_MAX, RequestContext, SamplingFields, check_results, json_schema, openai_effort, token_bound,
};
use crate::table::RESPONSES;
use crate::tokens::{ChatPrompt, TokensQuestion, TokensRequest};
use crate::tool_lists::{flat_function, functions_and_hosted};
use crate::tools::{
    HostedTools, ToolChoice, check_function, check_known, choice_word, no_parameters, take_allowed,
    unknown_choice,
};

/// A request for the next response, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct ResponsesRequest {
    /// Name or id of a model.
    pub model: String,
    /// Whether the answer is streamed.
    pub streams: bool,
    /// Whether the answer is kept, so that another may go on from it.
    pub store: bool,
    /// The answer that this one goes on from.
    pub previous: Option<String>,
    /// Whether the oldest turns may go where the conversation is too long.
    truncates: bool,
    /// Whether probabilities were asked for.
    pub logprobs: Option<u8>,
    /// What the answer repeats of the request.
    repeated: Repeated,
    input: Vec<ChatMessage>,
    places: Vec<String>,
    sampling: SamplingFields,
    format: AnswerFormat,
    tools: Option<Tools>,
    hosted: HostedTools,
    reasoning: Reasoning,
}

/// Fields as they came, for the answer's head.
#[derive(Clone, PartialEq, Debug, Default)]
struct Repeated {
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    metadata: Map<String, Value>,
    parallel_tool_calls: bool,
    reasoning: Value,
    text: Value,
    tool_choice: Value,
    tools: Vec<Value>,
    top_logprobs: Option<u8>,
}

impl ResponsesRequest {
    /// Reads a body, refusing by name whatever would not be honoured.
    pub fn parse(body: Value) -> Result<Self, BadParam> {
        let mut fields = Fields::new(body, "")?;
        let model = fields.take_required("model", "a string")?;
        let input = fields.take_value("input").ok_or_else(|| BadParam::missing("input"))?;
        let (input, places) = take_input(input)?;
        let instructions = fields.take("instructions", "a string")?;
        let max_output_tokens = token_bound("max_output_tokens", fields.take_value("max_output_tokens"))?;
        let metadata = take_metadata(&mut fields)?;
        let listed: Vec<Value> = fields.take("tools", "an array of tools")?.unwrap_or_default();
        let tool_choice = fields.take_value("tool_choice").unwrap_or_else(|| "auto".into());
        let parallel_tool_calls = fields.take("parallel_tool_calls", "true or false")?.unwrap_or(true);
        let text = with_format(fields.take_value("text").unwrap_or_else(|| json!({})));
        let reasoning =
            fields.take_value("reasoning").unwrap_or_else(|| json!({"effort": null, "summary": null}));
        let top_logprobs: Option<u8> = fields.take("top_logprobs", "a whole number between 0 and 20")?;
        let includes_logprobs = take_include(&mut fields)?;
        let store = fields.take("store", "true or false")?.unwrap_or(true);
        let previous = fields.take("previous_response_id", "a string")?;
        let streams = fields.take("stream", "true or false")?.unwrap_or(false);
        check_stream_options(&mut fields)?;
        let truncation: Option<String> = fields.take("truncation", "auto or disabled")?;
        let truncates = match truncation.as_deref() {
            None | Some("disabled") => false,
            Some("auto") => true,
            Some(other) => {
                let message = format!("`truncation` must be auto or disabled, not {other:.40}");
                return Err(BadParam::invalid("truncation", message));
            }
        };
        let sampling = SamplingFields::take(&mut fields)?;
        RESPONSES.check(&mut fields, "")?;
        fields.finish()?;
        let (tools, hosted) = tools_of(&listed, tool_choice.clone(), parallel_tool_calls)?;
        let format = format_of(text.clone())?;
        Ok(Self {
            model,
            streams,
            store,
            previous,
            truncates,
            logprobs: (includes_logprobs || top_logprobs > Some(0)).then(|| top_logprobs.unwrap_or(0)),
            input,
            places,
            sampling,
            format,
            tools,
            hosted,
            reasoning: reasoning_of(reasoning.clone())?,
            repeated: Repeated {
                instructions,
                max_output_tokens,
                metadata,
                parallel_tool_calls,
                reasoning,
                text,
                tool_choice,
                tools: listed,
                top_logprobs,
            },
        })
    }

    /// The whole conversation: what came before, and the input. Takes the input.
    pub fn conversation(&mut self, previous: Vec<ChatMessage>) -> Result<Vec<ChatMessage>, BadParam> {
        let before = previous.len();
        let mut all = previous;
        all.append(&mut self.input);
        check_count("input", "messages with those before it", all.len(), MESSAGES_MAX)?;
        let places = &self.places;
        let place = |i: usize, field: &str| {
            let place = i.checked_sub(before).and_then(|i| places.get(i));
            place.map_or_else(|| "previous_response_id".to_owned(), |place| format!("{place}{field}"))
        };
        check_results(&mut all, |i| place(i, ".call_id"))?;
        Ok(all)
    }

    /// The request as the node understands it, for a conversation that [`Self::conversation`] gave.
    pub fn into_generate(
        self,
        messages: Vec<ChatMessage>,
        context: RequestContext,
    ) -> Result<GenerateRequest, BadParam> {
        let messages = with_instructions(self.repeated.instructions, messages);
        let sampling = self.sampling.params(context.seed, self.logprobs, "top_logprobs")?;
        let prompts = vec![Prompt::Chat { messages }];
        Ok(GenerateRequest {
            format: self.format,
            tools: self.tools,
            reasoning: self.reasoning,
            max_tokens: self.repeated.max_output_tokens,
            truncates: self.truncates,
            left_out_tools: self.hosted.left_out(context.leaves_out_hosted_tools)?,
            ..context.generate(crate::labels::Endpoint::Responses, self.model, sampling, prompts)
        })
    }

    /// What is asked of the tokenizer to count the prompt of a conversation that [`Self::conversation`] gave.
    /// What a response would be refused for is refused here as well.
    pub fn into_count(
        self,
        messages: Vec<ChatMessage>,
        context: RequestContext,
    ) -> Result<TokensRequest, BadParam> {
        self.sampling.params(context.seed, self.logprobs, "top_logprobs")?;
        self.hosted.left_out(context.leaves_out_hosted_tools)?;
        let chat = ChatPrompt {
            messages: with_instructions(self.repeated.instructions, messages),
            tools: self.tools,
            reasoning: self.reasoning,
            opens_answer: true,
        };
        Ok(TokensRequest {
            model: self.model,
            question: TokensQuestion::EncodeChat(chat),
            principal: context.principal,
            with_pieces: false,
        })
    }

    /// The answer before anything is in it.
    pub fn head(&self, request: &str, created_at: u64) -> Response {
        let repeated = self.repeated.clone();
        Response {
            id: format!("resp_{request}"),
            object: "response".to_owned(),
            created_at,
            status: super::ResponseStatus::InProgress,
            error: None,
            incomplete_details: None,
            instructions: repeated.instructions,
            max_output_tokens: repeated.max_output_tokens,
            metadata: repeated.metadata,
            model: self.model.clone(),
            output: Vec::new(),
            parallel_tool_calls: repeated.parallel_tool_calls,
            previous_response_id: self.previous.clone(),
            reasoning: repeated.reasoning,
            store: self.store,
            temperature: self.sampling.temperature.unwrap_or(1.0),
            text: repeated.text,
            tool_choice: repeated.tool_choice,
            tools: repeated.tools,
            top_logprobs: repeated.top_logprobs.unwrap_or(0),
            top_p: self.sampling.top_p.unwrap_or(1.0),
            truncation: if self.truncates { "auto" } else { "disabled" }.to_owned(),
            background: false,
            usage: None,
            exo: None,
        }
    }
}

fn with_instructions(instructions: Option<String>, mut messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    if let Some(content) = instructions {
        let role = "system".to_owned();
        messages.insert(0, ChatMessage { role, content, ..ChatMessage::default() });
    }
    messages
}

/// What this dialect calls a part of a request.
pub fn part_name(part: RequestPart) -> String {
    match part {
        RequestPart::Model | RequestPart::Context => "model".to_owned(),
        RequestPart::Prompt | RequestPart::Suffix => "input".to_owned(),
        RequestPart::Format | RequestPart::Regex | RequestPart::Lark => "text.format".to_owned(),
        RequestPart::Schema => "text.format.schema".to_owned(),
        RequestPart::Tools => "tools".to_owned(),
        RequestPart::ToolSchema(i) => format!("tools[{i}].parameters"),
        RequestPart::Thinking | RequestPart::Effort => "reasoning.effort".to_owned(),
        RequestPart::Logprobs => "include".to_owned(),
        RequestPart::LogitBias => "logit_bias".to_owned(),
        RequestPart::Pooling | RequestPart::Dimensions => "input".to_owned(),
    }
}

/// What the client wants to find again with the answer, which is kept with it.
fn take_metadata(fields: &mut Fields) -> Result<Map<String, Value>, BadParam> {
    const PARAM: &str = "metadata";
    let metadata: Map<String, Value> = fields.take(PARAM, "an object")?.unwrap_or_default();
    check_count(PARAM, "pairs", metadata.len(), 16)?;
    let is_short = |text: &str, max: usize| text.chars().nth(max).is_none();
    if !metadata
        .iter()
        .all(|(key, value)| is_short(key, 64) && value.as_str().is_some_and(|v| is_short(v, 512)))
    {
        let message = "`metadata` must hold strings of at most 512 characters, under names of at most 64";
        return Err(BadParam::invalid(PARAM, message));
    }
    Ok(metadata)
}

/// Whether probabilities are among what is to be included. The rest is of tools that do not run here, or
/// comes in clear.
fn take_include(fields: &mut Fields) -> Result<bool, BadParam> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    const NOTHING: [&str; 7] = [
        "reasoning.encrypted_content",
        "web_search_call.results",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
    ];
    let include: Vec<String> = fields.take("include", "an array of strings")?.unwrap_or_default();
    let known = |word: &&String| *word == LOGPROBS || NOTHING.contains(&word.as_str());
    if let Some(other) = include.iter().find(|word| !known(word)) {
        return Err(BadParam::unsupported("include", format!("`{other:.60}` cannot be included")));
    }
    Ok(include.iter().any(|word| word == LOGPROBS))
}

fn check_stream_options(fields: &mut Fields) -> Result<(), BadParam> {
    let Some(options) = fields.take_value("stream_options") else { return Ok(()) };
    let mut fields = Fields::new(options, "stream_options")?;
    RESPONSES.check(&mut fields, "stream_options.")?;
    fields.finish()
}

fn tools_of(
    listed: &[Value],
    choice: Value,
    is_parallel: bool,
) -> Result<(Option<Tools>, HostedTools), BadParam> {
    let hosted_kind = |fields: &mut Fields| {
        let kind: String = fields.take_required("type", "a string")?;
        Ok(Some(kind).filter(|kind| kind != "function"))
    };
    let function = |fields| flat_function(fields, RESPONSES, "parameters", Some(no_parameters()));
    let why = "are not supported, only `function` is";
    let (tools, hosted) = functions_and_hosted(listed.to_vec(), hosted_kind, why, function)?;
    Ok((choice_of(choice, &tools)?.of(tools, is_parallel, "tool_choice")?, hosted))
}

fn choice_of(choice: Value, tools: &[ToolDefinition]) -> Result<ToolChoice, BadParam> {
    const PARAM: &str = "tool_choice";
    if let Value::String(word) = &choice {
        return choice_word(PARAM, word);
    }
    let mut fields = Fields::new(choice, PARAM)?;
    let kind: String = fields.take_required("type", "a string")?;
    let choice = match kind.as_str() {
        "function" => {
            let name: String = fields.take_required("name", "a string")?;
            check_known("tool_choice.name", &name, tools)?;
            ToolChoice::Of { allowed: vec![name], is_required: true }
        }
        "allowed_tools" => take_allowed(&mut fields, |tool, path| allowed_name(tool, path, tools))?,
        other => return Err(unknown_choice(other)),
    };
    fields.finish()?;
    Ok(choice)
}

fn allowed_name(tool: Value, path: &str, tools: &[ToolDefinition]) -> Result<String, BadParam> {
    let mut fields = Fields::new(tool, path)?;
    let kind: String = fields.take_required("type", "a string")?;
    check_function(fields.name("type"), &kind)?;
    let name: String = fields.take_required("name", "a string")?;
    check_known(&fields.name("name"), &name, tools)?;
    fields.finish()?;
    Ok(name)
}

/// Clients read the format out of every answer, whether or not they asked for one.
fn with_format(mut text: Value) -> Value {
    if let Some(words) = text.as_object_mut()
        && words.get("format").is_none_or(Value::is_null)
    {
        words.insert("format".to_owned(), json!({"type": "text"}));
    }
    text
}

fn format_of(text: Value) -> Result<AnswerFormat, BadParam> {
    let mut fields = Fields::new(text, "text")?;
    let format = fields.take_value("format");
    RESPONSES.check(&mut fields, "text.")?;
    fields.finish()?;
    let Some(format) = format else { return Ok(AnswerFormat::Text) };
    let mut fields = Fields::new(format, "text.format")?;
    let kind: String = fields.take_required("type", "a string")?;
    let format = match kind.as_str() {
        "text" => AnswerFormat::Text,
        "json_object" => AnswerFormat::JsonObject,
        "json_schema" => {
            let name = fields.name("schema");
            let schema = fields.take_value("schema").ok_or_else(|| BadParam::missing(&name))?;
            json_schema(&name, schema)?
        }
        other => {
            let message = format!("`{other:.40}` is not supported: text, json_object and json_schema are");
            return Err(BadParam::unsupported("text.format.type", message));
        }
    };
    RESPONSES.check(&mut fields, "text.format.")?;
    fields.finish()?;
    Ok(format)
}

/// What to think. The dialect's usual effort is what the model does by itself.
fn reasoning_of(reasoning: Value) -> Result<Reasoning, BadParam> {
    let mut fields = Fields::new(reasoning, "reasoning")?;
    let effort = fields.take("effort", "a string")?;
    let budget = token_bound("reasoning.max_tokens", fields.take_value("max_tokens"))?;
    RESPONSES.check(&mut fields, "reasoning.")?;
    fields.finish()?;
    Ok(openai_effort("reasoning.effort", effort)?.within(budget))
}
