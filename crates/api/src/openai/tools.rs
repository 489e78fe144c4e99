//! `tools`, `tool_choice` and `parallel_tool_calls`, from field to [`Tools`]; and calls in messages that come back.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::fields::{BadParam, Fields, short};
use super::table;
use crate::generate::{CalledFunction, ToolCall, ToolDefinition, Tools};

/// Most tools of one request.
pub const TOOLS_MAX: usize = 512;
/// Longest name of a tool, as in OpenAI's API.
const NAME_LEN_MAX: usize = 64;
/// Most calls of one message.
const CALLS_MAX: usize = 128;

/// Reads the three fields. `None` where the answer may not call anything.
pub fn take_tools(fields: &mut Fields) -> Result<Option<Tools>, BadParam> {
    let definitions: Vec<Value> = fields.take("tools", "an array of tools")?.unwrap_or_default();
    let choice = fields.take_value("tool_choice");
    let is_parallel = fields.take("parallel_tool_calls", "true or false")?.unwrap_or(true);
    if definitions.len() > TOOLS_MAX {
        let message = format!("`tools` holds {} tools, {TOOLS_MAX} at most are taken", definitions.len());
        return Err(BadParam::invalid("tools", message));
    }
    let mut names = BTreeSet::new();
    let mut tools = Vec::with_capacity(definitions.len());
    for (i, definition) in definitions.into_iter().enumerate() {
        let tool = definition_of(definition, &format!("tools[{i}]"))?;
        if !names.insert(tool.name.clone()) {
            let message =
                format!("two tools are named `{}`: which one is called could not be told", tool.name);
            return Err(BadParam::invalid(format!("tools[{i}].function.name"), message));
        }
        tools.push(tool);
    }
    let Some((is_required, allowed)) = choice_of(choice, &tools)? else { return Ok(None) };
    if tools.is_empty() {
        return Ok(None);
    }
    Ok(Some(Tools { definitions: tools, allowed, is_required, is_parallel }))
}

fn definition_of(value: Value, path: &str) -> Result<ToolDefinition, BadParam> {
    let shown = shown_to_the_model(&value);
    let mut fields = Fields::new(value, path)?;
    let kind: String = fields.take_required("type", "a string")?;
    if kind != "function" {
        let message = format!("tools of type `{kind:.40}` are not supported, only `function` is");
        return Err(BadParam::unsupported(fields.name("type"), message));
    }
    let name = fields.name("function");
    let function = fields.take_value("function").ok_or_else(|| BadParam::missing(&name))?;
    table::CHAT.check(&mut fields, "tools[].")?;
    fields.finish()?;
    let mut function = Fields::new(function, &name)?;
    let (name_field, parameters_field) = (function.name("name"), function.name("parameters"));
    let name: String = function.take_required("name", "a string")?;
    check_name(&name_field, &name)?;
    let _: Option<String> = function.take("description", "a string")?;
    let is_strict = function.take("strict", "true or false")?.unwrap_or(false);
    let parameters =
        function.take_value("parameters").unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    table::CHAT.check(&mut function, "tools[].function.")?;
    function.finish()?;
    if !parameters.is_object() {
        let message =
            format!("`{parameters_field}` must be a JSON schema of an object, not {}", short(&parameters));
        return Err(BadParam::invalid(parameters_field, message));
    }
    Ok(ToolDefinition { name, definition: shown, parameters, is_strict })
}

/// The tool as the template prints it: as it was sent, without what is for us.
fn shown_to_the_model(tool: &Value) -> Value {
    let mut shown = tool.clone();
    for place in ["", "/function"] {
        if let Some(words) = shown.pointer_mut(place).and_then(Value::as_object_mut) {
            words.retain(|word, _| !["strict", "cache_control"].contains(&word.as_str()));
        }
    }
    shown
}

/// A name that stands as it is in JSON, in every template.
fn check_name(param: &str, name: &str) -> Result<(), BadParam> {
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if is_plain && (1..=NAME_LEN_MAX).contains(&name.len()) {
        return Ok(());
    }
    let message = format!("`{param}` must have 1 to {NAME_LEN_MAX} letters, digits and signs of `_-.`");
    Err(BadParam::invalid(param, message))
}

/// Whether a call is required, and which tools may be called; `None` for no call.
fn choice_of(
    choice: Option<Value>,
    tools: &[ToolDefinition],
) -> Result<Option<(bool, Vec<String>)>, BadParam> {
    const PARAM: &str = "tool_choice";
    let all = || tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    let choice = match choice {
        None => return Ok(Some((false, all()))),
        Some(Value::String(word)) => {
            return match word.as_str() {
                "none" => Ok(None),
                "auto" => Ok(Some((false, all()))),
                "required" if tools.is_empty() => {
                    Err(BadParam::invalid(PARAM, "`tool_choice` is required and there are no `tools`"))
                }
                "required" => Ok(Some((true, all()))),
                other => {
                    let message = format!("`{other:.40}` is no choice: none, auto, required or a tool are");
                    Err(BadParam::invalid(PARAM, message))
                }
            };
        }
        Some(choice) => choice,
    };
    let mut fields = Fields::new(choice, PARAM)?;
    let kind: String = fields.take_required("type", "a string")?;
    let found = match kind.as_str() {
        "function" => (true, vec![named(fields.take_value("function"), "tool_choice.function", tools)?]),
        "allowed_tools" => {
            let path = "tool_choice.allowed_tools";
            let inner = fields.take_value("allowed_tools").ok_or_else(|| BadParam::missing(path))?;
            let mut inner = Fields::new(inner, path)?;
            let mode: String = inner.take_required("mode", "`auto` or `required`")?;
            if !["auto", "required"].contains(&mode.as_str()) {
                let message = format!("`{path}.mode` must be `auto` or `required`");
                return Err(BadParam::invalid(format!("{path}.mode"), message));
            }
            let listed: Vec<Value> = inner.take_required("tools", "an array of tools")?;
            inner.finish()?;
            let name = |(i, tool): (usize, Value)| allowed(tool, &format!("{path}.tools[{i}]"), tools);
            let names = listed.into_iter().enumerate().map(name).collect::<Result<Vec<_>, _>>()?;
            if names.is_empty() {
                return Err(BadParam::invalid(format!("{path}.tools"), "no tool is allowed: send `none`"));
            }
            (mode == "required", names)
        }
        other => {
            let message = format!(
                "`tool_choice` of type `{other:.40}` is not supported: function and allowed_tools are"
            );
            return Err(BadParam::unsupported("tool_choice.type", message));
        }
    };
    fields.finish()?;
    Ok(Some(found))
}

fn allowed(tool: Value, path: &str, tools: &[ToolDefinition]) -> Result<String, BadParam> {
    let mut fields = Fields::new(tool, path)?;
    let kind: String = fields.take_required("type", "a string")?;
    if kind != "function" {
        return Err(BadParam::unsupported(
            fields.name("type"),
            "only tools of type `function` are supported",
        ));
    }
    let name = named(fields.take_value("function"), &fields.name("function"), tools)?;
    fields.finish()?;
    Ok(name)
}

/// The name in `{"name": …}`, which must be a tool's.
fn named(function: Option<Value>, path: &str, tools: &[ToolDefinition]) -> Result<String, BadParam> {
    let mut fields = Fields::new(function.ok_or_else(|| BadParam::missing(path))?, path)?;
    let name: String = fields.take_required("name", "a string")?;
    fields.finish()?;
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(name);
    }
    let message = format!("there is no tool `{name:.64}` in `tools`");
    Err(BadParam::invalid(format!("{path}.name"), message))
}

/// Calls of an assistant's message that comes back.
pub fn take_calls(fields: &mut Fields) -> Result<Vec<ToolCall>, BadParam> {
    let path = fields.name("tool_calls");
    let calls: Vec<Value> = fields.take("tool_calls", "an array of calls")?.unwrap_or_default();
    if calls.len() > CALLS_MAX {
        let message = format!("`{path}` holds {} calls, {CALLS_MAX} at most are taken", calls.len());
        return Err(BadParam::invalid(path, message));
    }
    calls.into_iter().enumerate().map(|(i, call)| call_of(call, &format!("{path}[{i}]"))).collect()
}

fn call_of(call: Value, path: &str) -> Result<ToolCall, BadParam> {
    let mut fields = Fields::new(call, path)?;
    let kind: Option<String> = fields.take("type", "a string")?;
    if kind.as_deref().is_some_and(|kind| kind != "function") {
        return Err(BadParam::unsupported(
            fields.name("type"),
            "only calls of type `function` are supported",
        ));
    }
    let id: String = fields.take_required("id", "a string")?;
    // What streamed deltas, kept as they were, have.
    let _: Option<u32> = fields.take("index", "a whole number")?;
    let name = fields.name("function");
    let function = fields.take_value("function").ok_or_else(|| BadParam::missing(&name))?;
    table::CHAT.check(&mut fields, "messages[].tool_calls[].")?;
    fields.finish()?;
    let mut function = Fields::new(function, &name)?;
    let name = function.take_required("name", "a string")?;
    let arguments_field = function.name("arguments");
    let arguments: String = function.take_required("arguments", "a string of JSON")?;
    table::CHAT.check(&mut function, "messages[].tool_calls[].function.")?;
    function.finish()?;
    let arguments = match arguments.trim() {
        "" => Value::Object(Map::new()),
        text => serde_json::from_str(text).ok().filter(Value::is_object).ok_or_else(|| {
            BadParam::invalid(
                &arguments_field,
                format!("`{arguments_field}` is not a JSON object in a string"),
            )
        })?,
    };
    Ok(ToolCall { id, kind: "function".to_owned(), function: CalledFunction { name, arguments } })
}
