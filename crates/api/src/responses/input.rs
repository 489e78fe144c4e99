//! `input`: from items to the neutral conversation.

use serde_json::Value;

use crate::fields::{BadParam, Fields, check_count, short};
use crate::generate::ChatMessage;
use crate::request::{MESSAGES_MAX, join_parts};
use crate::table::RESPONSES;
use crate::tools::{CALLS_MAX, arguments_of, tool_call};

/// The conversation, and of each of its messages where it stands in the request.
pub fn take_input(input: Value) -> Result<(Vec<ChatMessage>, Vec<String>), BadParam> {
    let mut turns = Turns::default();
    match input {
        Value::String(text) => turns.message("user", text, "input"),
        Value::Array(items) if items.is_empty() => {
            return Err(BadParam::invalid("input", "`input` must hold at least one item"));
        }
        Value::Array(items) => {
            check_count("input", "items", items.len(), MESSAGES_MAX)?;
            for (i, item) in items.into_iter().enumerate() {
                turns.item(item, &format!("input[{i}]"))?;
            }
            if turns.messages.is_empty() {
                let message = "`input` holds nothing that can be read: its thoughts are encrypted or empty";
                return Err(BadParam::invalid("input", message));
            }
        }
        other => {
            let message = format!("`input` must be a string or an array of items, not {}", short(&other));
            return Err(BadParam::invalid("input", message));
        }
    }
    Ok((turns.messages, turns.places))
}

/// The conversation while it is read.
#[derive(Default)]
struct Turns {
    messages: Vec<ChatMessage>,
    places: Vec<String>,
}

impl Turns {
    fn push(&mut self, message: ChatMessage, place: &str) {
        self.messages.push(message);
        self.places.push(place.to_owned());
    }

    fn message(&mut self, role: &str, content: String, place: &str) {
        // A thought stands before the text that came of it.
        if let Some(last) = self.messages.last_mut().filter(|last| {
            role == "assistant" && last.role == role && last.content.is_empty() && last.tool_calls.is_empty()
        }) {
            last.content = content;
            return;
        }
        self.push(ChatMessage { role: role.to_owned(), content, ..ChatMessage::default() }, place);
    }

    /// The assistant's turn that items belong to which are no messages.
    fn assistant(&mut self, place: &str) -> &mut ChatMessage {
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            let role = "assistant".to_owned();
            self.push(ChatMessage { role, ..ChatMessage::default() }, place);
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn item(&mut self, item: Value, path: &str) -> Result<(), BadParam> {
        let mut fields = Fields::new(item, path)?;
        let kind: Option<String> = fields.take("type", "a string")?;
        match kind.as_deref() {
            None | Some("message") => self.take_message(&mut fields, path)?,
            Some("function_call") => self.take_call(&mut fields, path)?,
            Some("function_call_output") => self.take_result(&mut fields, path)?,
            Some("reasoning") => self.take_thought(&mut fields, path)?,
            Some(other) => {
                let message = format!(
                    "items of type `{other:.40}` are not supported: message, function_call, function_call_output and \
                     reasoning are"
                );
                return Err(BadParam::unsupported(fields.name("type"), message));
            }
        }
        RESPONSES.check(&mut fields, "input[].")?;
        fields.finish()
    }

    fn take_message(&mut self, fields: &mut Fields, path: &str) -> Result<(), BadParam> {
        let role: String = fields.take_required("role", "a string")?;
        let role = match role.as_str() {
            "user" | "assistant" | "system" => role.as_str(),
            "developer" => "system",
            other => {
                let message = format!("unknown role `{other:.40}`: use user, assistant, system or developer");
                return Err(BadParam::invalid(fields.name("role"), message));
            }
        };
        let content_path = fields.name("content");
        let content = fields.take_value("content").ok_or_else(|| BadParam::missing(&content_path))?;
        if content.as_array().is_some_and(Vec::is_empty) {
            let message = format!("`{content_path}` must hold at least one part");
            return Err(BadParam::invalid(content_path, message));
        }
        let content = texts(content, &content_path, "input[].content[].", &["input_text", "output_text"])?;
        self.message(role, content, path);
        Ok(())
    }

    fn take_call(&mut self, fields: &mut Fields, path: &str) -> Result<(), BadParam> {
        let id = fields.take_required("call_id", "a string")?;
        let name = fields.take_required("name", "a string")?;
        let arguments_field = fields.name("arguments");
        let arguments: String = fields.take_required("arguments", "a string of JSON")?;
        let arguments = arguments_of(&arguments_field, arguments)?;
        let turn = self.assistant(path);
        turn.tool_calls.push(tool_call(id, name, arguments));
        check_count("input", "calls of one turn", turn.tool_calls.len(), CALLS_MAX)
    }

    fn take_result(&mut self, fields: &mut Fields, path: &str) -> Result<(), BadParam> {
        let tool_call_id = Some(fields.take_required("call_id", "a string")?);
        let name = fields.take("name", "a string")?;
        let output_path = fields.name("output");
        let output = fields.take_value("output").ok_or_else(|| BadParam::missing(&output_path))?;
        let content = texts(output, &output_path, "input[].output[].", &["input_text"])?;
        let role = "tool".to_owned();
        self.push(ChatMessage { role, content, name, tool_call_id, ..ChatMessage::default() }, path);
        Ok(())
    }

    /// A thought: as it was, or, where only its summary is there, that.
    fn take_thought(&mut self, fields: &mut Fields, path: &str) -> Result<(), BadParam> {
        let mut take = |name: &str, kind: &str| {
            let (at, place) = (fields.name(name), format!("input[].{name}[]."));
            match fields.take_value(name) {
                Some(parts) => texts(parts, &at, &place, &[kind]),
                None => Ok(String::new()),
            }
        };
        let (thought, summary) = (take("content", "reasoning_text")?, take("summary", "summary_text")?);
        let thought = if thought.is_empty() { summary } else { thought };
        // What another server encrypted cannot be read here.
        if thought.is_empty() {
            return Ok(());
        }
        // A thought begins the turn that comes of it.
        let role = "assistant".to_owned();
        self.push(ChatMessage { role, reasoning_content: Some(thought), ..ChatMessage::default() }, path);
        Ok(())
    }
}

/// A string, or parts of `kinds` put together.
fn texts(content: Value, path: &str, place: &str, kinds: &[&str]) -> Result<String, BadParam> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let message = format!("`{path}` must be a string or an array of parts, not {}", short(&other));
            return Err(BadParam::invalid(path, message));
        }
    };
    let part = |(i, part): (usize, Value)| {
        let mut fields = Fields::new(part, &format!("{path}[{i}]"))?;
        let kind: String = fields.take_required("type", "a string")?;
        if !kinds.contains(&kind.as_str()) {
            let message =
                format!("parts of type `{kind:.40}` are not supported here: {} are", kinds.join(", "));
            return Err(BadParam::unsupported(fields.name("type"), message));
        }
        let text: String = fields.take_required("text", "a string")?;
        RESPONSES.check(&mut fields, place)?;
        fields.finish()?;
        Ok(text)
    };
    Ok(join_parts(parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?))
}
