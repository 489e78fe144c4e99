//! Messages: from fields to the neutral conversation.

use serde_json::{Value, json};

use crate::fields::{BadParam, Fields, check_count, short};
use crate::generate::{ChatMessage, ToolCall};
use crate::request::MESSAGES_MAX;
use crate::table::OLLAMA_CHAT;
use crate::tools::{CALLS_MAX, tool_call};

/// The conversation. Results name no call in this dialect: each answers the first call that has no answer
/// yet, of the tool that it names.
pub fn take_messages(values: Vec<Value>) -> Result<Vec<ChatMessage>, BadParam> {
    check_count("messages", "messages", values.len(), MESSAGES_MAX)?;
    let mut unanswered: Vec<(String, String)> = Vec::new();
    let mut messages = Vec::new();
    for (i, value) in values.into_iter().enumerate() {
        let path = format!("messages[{i}]");
        let mut fields = Fields::new(value, &path)?;
        let role: String = fields.take_required("role", "a string")?;
        let content: String = fields.take("content", "a string")?.unwrap_or_default();
        let reasoning_content: Option<String> = fields.take("thinking", "a string")?;
        let calls: Vec<Value> = fields.take("tool_calls", "an array of calls")?.unwrap_or_default();
        let tool_name = take_tool_name(&mut fields, &role)?;
        let named_call: Option<String> = fields.take("tool_call_id", "a string")?;
        OLLAMA_CHAT.check(&mut fields, "messages[].")?;
        fields.finish()?;
        if !["system", "user", "assistant", "tool"].contains(&role.as_str()) {
            let message = format!("unknown role `{role:.40}`: use system, user, assistant or tool");
            return Err(BadParam::invalid(format!("{path}.role"), message));
        }
        check_role(&path, &role, calls.is_empty(), reasoning_content.is_none())?;
        check_count(&format!("{path}.tool_calls"), "calls", calls.len(), CALLS_MAX)?;
        let mut message = ChatMessage { role, content, reasoning_content, ..ChatMessage::default() };
        if message.role == "tool" {
            let is_it = |(id, name): &(String, String)| {
                named_call.as_ref().is_none_or(|named| named == id)
                    && tool_name.as_ref().is_none_or(|named| named == name)
            };
            let Some(at) = unanswered.iter().position(is_it) else {
                let message = format!("`{path}` answers no call of a message before it");
                return Err(BadParam::invalid(path, message));
            };
            let (id, name) = unanswered.remove(at);
            (message.tool_call_id, message.name) = (Some(id), Some(name));
        }
        for (j, call) in calls.into_iter().enumerate() {
            let call = take_call(call, &format!("{path}.tool_calls[{j}]"), format!("call_{i}_{j}"))?;
            unanswered.push((call.id.clone(), call.function.name.clone()));
            message.tool_calls.push(call);
        }
        messages.push(message);
    }
    Ok(messages)
}

/// The tool whose result it is, also by the older name of the field, which only results have.
fn take_tool_name(fields: &mut Fields, role: &str) -> Result<Option<String>, BadParam> {
    let older: Option<String> = if role == "tool" { fields.take("name", "a string")? } else { None };
    Ok(fields.take("tool_name", "a string")?.or(older))
}

fn check_role(path: &str, role: &str, has_no_calls: bool, has_no_thought: bool) -> Result<(), BadParam> {
    for (name, is_absent) in [("tool_calls", has_no_calls), ("thinking", has_no_thought)] {
        if !is_absent && role != "assistant" {
            let name = format!("{path}.{name}");
            let message = format!("`{name}` is the assistant's, not one of role `{role}`");
            return Err(BadParam::invalid(name, message));
        }
    }
    Ok(())
}

fn take_call(call: Value, path: &str, id: String) -> Result<ToolCall, BadParam> {
    let mut fields = Fields::new(call, path)?;
    let id = fields.take("id", "a string")?.unwrap_or(id);
    let name = fields.name("function");
    let function = fields.take_value("function").ok_or_else(|| BadParam::missing(&name))?;
    OLLAMA_CHAT.check(&mut fields, "messages[].tool_calls[].")?;
    fields.finish()?;
    let mut function = Fields::new(function, &name)?;
    let arguments_field = function.name("arguments");
    let name = function.take_required("name", "a string")?;
    let arguments = function.take_value("arguments").unwrap_or_else(|| json!({}));
    OLLAMA_CHAT.check(&mut function, "messages[].tool_calls[].function.")?;
    function.finish()?;
    if !arguments.is_object() {
        let message = format!("`{arguments_field}` must be an object, not {}", short(&arguments));
        return Err(BadParam::invalid(arguments_field, message));
    }
    Ok(tool_call(id, name, arguments.to_string()))
}
