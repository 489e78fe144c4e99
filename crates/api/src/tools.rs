//! What every dialect checks alike in tools and calls.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::fields::{BadParam, Fields, check_count, short};
use crate::generate::{CalledFunction, ToolCall, ToolDefinition, Tools};

/// Most tools of one request.
pub const TOOLS_MAX: usize = 512;
/// Longest name of a tool, as in OpenAI's chat completions.
pub const NAME_LEN_MAX: usize = 64;
/// The same in Anthropic's API and in responses.
pub const LONG_NAME_LEN_MAX: usize = 128;
/// Most calls of one message.
pub const CALLS_MAX: usize = 128;

/// What a request says of calling.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ToolChoice {
    /// Nothing may be called.
    None,
    /// Any tool may be.
    #[default]
    Auto,
    /// Some tool must be.
    Required,
    /// One of these may be, or must be.
    Of {
        /// Names of the tools, at least one.
        allowed: Vec<String>,
        /// Whether one of them must be called.
        is_required: bool,
    },
}

impl ToolChoice {
    /// What an answer may call; `None` where there are no tools. `param` is the dialect's name of the
    /// choice.
    ///
    /// Where nothing may be called the tools stay: the conversation before was had with them, and a prompt
    /// that begins otherwise would be computed anew from its first token.
    pub fn of(
        self,
        definitions: Vec<ToolDefinition>,
        is_parallel: bool,
        param: &str,
    ) -> Result<Option<Tools>, BadParam> {
        let all = || definitions.iter().map(|tool| tool.name.clone()).collect();
        let (is_required, allowed) = match self {
            Self::None | Self::Auto if definitions.is_empty() => return Ok(None),
            Self::Required if definitions.is_empty() => {
                let message = format!("`{param}` requires a call and there are no `tools`");
                return Err(BadParam::invalid(param, message));
            }
            Self::None => (false, Vec::new()),
            Self::Auto => (false, all()),
            Self::Required => (true, all()),
            Self::Of { allowed, is_required } => (is_required, allowed),
        };
        Ok(Some(Tools { definitions, allowed, is_required, is_parallel }))
    }
}

/// A choice in one of OpenAI's words.
pub fn choice_word(param: &str, word: &str) -> Result<ToolChoice, BadParam> {
    match word {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!("unknown choice `{other:.40}`: use none, auto, required or a tool");
            Err(BadParam::invalid(param, message))
        }
    }
}

/// The tools that OpenAI's `allowed_tools` lists, and whether one must be called. `name` reads one of them.
pub fn take_allowed(
    fields: &mut Fields,
    name: impl Fn(Value, &str) -> Result<String, BadParam>,
) -> Result<ToolChoice, BadParam> {
    let mode: String = fields.take_required("mode", "`auto` or `required`")?;
    if !["auto", "required"].contains(&mode.as_str()) {
        let param = fields.name("mode");
        let message = format!("`{param}` must be `auto` or `required`");
        return Err(BadParam::invalid(param, message));
    }
    let param = fields.name("tools");
    let listed: Vec<Value> = fields.take_required("tools", "an array of tools")?;
    check_count(&param, "tools", listed.len(), TOOLS_MAX)?;
    if listed.is_empty() {
        return Err(BadParam::invalid(param, "no tool is allowed: send `none`"));
    }
    let name = |(i, tool)| name(tool, &format!("{param}[{i}]"));
    let allowed = listed.into_iter().enumerate().map(name).collect::<Result<_, _>>()?;
    Ok(ToolChoice::Of { allowed, is_required: mode == "required" })
}

/// A choice of a type that OpenAI's dialects do not have.
pub fn unknown_choice(kind: &str) -> BadParam {
    let message =
        format!("`tool_choice` of type `{kind:.40}` is not supported: function and allowed_tools are");
    BadParam::unsupported("tool_choice.type", message)
}

/// The tool as the template prints it: as it was sent, without what is for us.
pub fn shown_to_the_model(tool: &Value) -> Value {
    let mut shown = tool.clone();
    for place in ["", "/function"] {
        if let Some(words) = shown.pointer_mut(place).and_then(Value::as_object_mut) {
            words.retain(|word, _| !["strict", "cache_control"].contains(&word.as_str()));
        }
    }
    shown
}

/// What is sent for a tool that takes nothing.
pub fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}})
}

/// Only functions are tools here.
pub fn check_function(param: String, kind: &str) -> Result<(), BadParam> {
    match kind {
        "function" => Ok(()),
        other => {
            let message = format!("tools of type `{other:.40}` are not supported, only `function` is");
            Err(BadParam::unsupported(param, message))
        }
    }
}

/// A name that stands as it is in JSON, in every template.
pub fn check_name(param: &str, name: &str, len_max: usize) -> Result<(), BadParam> {
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if is_plain && (1..=len_max).contains(&name.len()) {
        return Ok(());
    }
    let message = format!("`{param}` must have 1 to {len_max} letters, digits and signs of `_-.`");
    Err(BadParam::invalid(param, message))
}

/// No two tools of one name.
pub fn check_distinct(tools: &[ToolDefinition], param: impl Fn(usize) -> String) -> Result<(), BadParam> {
    let mut names = BTreeSet::new();
    match tools.iter().position(|tool| !names.insert(&tool.name)) {
        Some(i) => {
            let name = &tools[i].name;
            let message = format!("two tools are named `{name}`: which one is called could not be told");
            Err(BadParam::invalid(param(i), message))
        }
        None => Ok(()),
    }
}

/// The name of a tool that there is.
pub fn check_known(param: &str, name: &str, tools: &[ToolDefinition]) -> Result<(), BadParam> {
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(());
    }
    Err(BadParam::invalid(param, format!("there is no tool `{name:.128}` in `tools`")))
}

/// The schema of a tool's arguments, so far as it can be told without compiling it.
pub fn check_parameters(param: &str, schema: &Value) -> Result<(), BadParam> {
    if schema.is_object() {
        return Ok(());
    }
    let message = format!("`{param}` must be a JSON schema of an object, not {}", short(schema));
    Err(BadParam::invalid(param, message))
}

/// Arguments that came back as text: an object, or the beginning of one.
pub fn arguments_of(param: &str, text: String) -> Result<String, BadParam> {
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    let is_cut = || {
        let read = serde_json::from_str::<serde::de::IgnoredAny>(&text);
        text.trim_start().starts_with('{') && read.is_err_and(|error| error.is_eof())
    };
    if is_object(&text) || is_cut() {
        return Ok(text);
    }
    Err(BadParam::invalid(param, format!("`{param}` is not a JSON object in a string")))
}

/// Whether a text is a JSON object that templates can print.
pub fn is_object(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
}

/// A tool as templates print it.
pub fn definition(
    name: String,
    description: Option<String>,
    parameters: Value,
    is_strict: bool,
) -> ToolDefinition {
    let mut function = Map::new();
    function.insert("name".to_owned(), name.clone().into());
    if let Some(description) = description {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), parameters.clone());
    let definition = serde_json::json!({"type": "function", "function": function});
    ToolDefinition { name, definition, parameters, is_strict }
}

/// A call of a message that comes back.
pub fn tool_call(id: String, name: String, arguments: String) -> ToolCall {
    ToolCall { id, kind: "function".to_owned(), function: CalledFunction { name, arguments } }
}

/// Tools of a request that run at their vendor: the kind of each, and what to say where they are refused.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct HostedTools(Vec<(String, BadParam)>);

impl HostedTools {
    pub(crate) fn add(&mut self, kind: String, refusal: BadParam) {
        self.0.push((kind, refusal));
    }

    /// The kinds, where they are left out; else the refusal of the first.
    pub(crate) fn left_out(self, is_allowed: bool) -> Result<Vec<String>, BadParam> {
        let mut kinds = Vec::new();
        for (kind, refusal) in self.0 {
            if !is_allowed {
                return Err(refusal);
            }
            kinds.push(kind);
        }
        Ok(kinds)
    }
}
