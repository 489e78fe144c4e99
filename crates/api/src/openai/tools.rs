//! `tools`, `tool_choice` and `parallel_tool_calls`, from field to [`Tools`]; and calls in messages that come
//! back.

use serde_json::Value;

use crate::fields::{BadParam, Fields, check_count};
use crate::generate::{ToolCall, ToolDefinition, Tools};
use crate::table;
use crate::tool_lists::take_nested_tools;
use crate::tools::{
    CALLS_MAX, NAME_LEN_MAX, ToolChoice, arguments_of, check_function, check_known, choice_word,
    take_allowed, tool_call, unknown_choice,
};

/// Reads the three fields. `None` where the answer may not call anything.
pub fn take_tools(fields: &mut Fields) -> Result<Option<Tools>, BadParam> {
    let tools = take_nested_tools(fields, table::CHAT, true, NAME_LEN_MAX)?;
    let choice = fields.take_value("tool_choice");
    let is_parallel = fields.take("parallel_tool_calls", "true or false")?.unwrap_or(true);
    choice_of(choice, &tools)?.of(tools, is_parallel, "tool_choice")
}

fn choice_of(choice: Option<Value>, tools: &[ToolDefinition]) -> Result<ToolChoice, BadParam> {
    const PARAM: &str = "tool_choice";
    let choice = match choice {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => return choice_word(PARAM, &word),
        Some(choice) => choice,
    };
    let mut fields = Fields::new(choice, PARAM)?;
    let kind: String = fields.take_required("type", "a string")?;
    let found = match kind.as_str() {
        "function" => {
            let name = named(fields.take_value("function"), "tool_choice.function", tools)?;
            ToolChoice::Of { allowed: vec![name], is_required: true }
        }
        "allowed_tools" => {
            let path = "tool_choice.allowed_tools";
            let inner = fields.take_value("allowed_tools").ok_or_else(|| BadParam::missing(path))?;
            let mut inner = Fields::new(inner, path)?;
            let found = take_allowed(&mut inner, |tool, path| allowed_tool(tool, path, tools))?;
            inner.finish()?;
            found
        }
        other => return Err(unknown_choice(other)),
    };
    fields.finish()?;
    Ok(found)
}

fn allowed_tool(tool: Value, path: &str, tools: &[ToolDefinition]) -> Result<String, BadParam> {
    let mut fields = Fields::new(tool, path)?;
    let kind: String = fields.take_required("type", "a string")?;
    check_function(fields.name("type"), &kind)?;
    let name = named(fields.take_value("function"), &fields.name("function"), tools)?;
    fields.finish()?;
    Ok(name)
}

/// The name in `{"name": …}`, which must be a tool's.
fn named(function: Option<Value>, path: &str, tools: &[ToolDefinition]) -> Result<String, BadParam> {
    let mut fields = Fields::new(function.ok_or_else(|| BadParam::missing(path))?, path)?;
    let name: String = fields.take_required("name", "a string")?;
    fields.finish()?;
    check_known(&format!("{path}.name"), &name, tools)?;
    Ok(name)
}

/// Calls of an assistant's message that comes back.
pub fn take_calls(fields: &mut Fields) -> Result<Vec<ToolCall>, BadParam> {
    let path = fields.name("tool_calls");
    let calls: Vec<Value> = fields.take("tool_calls", "an array of calls")?.unwrap_or_default();
    check_count(&path, "calls", calls.len(), CALLS_MAX)?;
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
    let arguments = arguments_of(&arguments_field, arguments)?;
    Ok(tool_call(id, name, arguments))
}
