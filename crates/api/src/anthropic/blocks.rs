//! Messages and the system's prompt: from content blocks to the neutral conversation.

use serde_json::Value;

use crate::fields::{BadParam, Fields, check_count, short};
use crate::generate::{ChatMessage, ToolCall};
use crate::request::MESSAGES_MAX;
use crate::table::MESSAGES;
use crate::tools::{CALLS_MAX, tool_call};

/// The system's prompt, if there is one.
pub fn take_system(system: Option<Value>, path: &str) -> Result<Option<ChatMessage>, BadParam> {
    let Some(system) = system else { return Ok(None) };
    let content = texts(system, path)?;
    Ok(Some(ChatMessage { role: "system".to_owned(), content, ..ChatMessage::default() }))
}

/// The conversation, and of each of its messages where it stands in the request. `may_end_with_answer`: it is
/// only counted.
pub fn take_messages(
    values: Vec<Value>,
    may_end_with_answer: bool,
) -> Result<(Vec<ChatMessage>, Vec<String>), BadParam> {
    if values.is_empty() {
        return Err(BadParam::invalid("messages", "`messages` must hold at least one message"));
    }
    check_count("messages", "messages", values.len(), MESSAGES_MAX)?;
    let mut turns = Turns::default();
    let last = values.len() - 1;
    for (i, value) in values.into_iter().enumerate() {
        let path = format!("messages[{i}]");
        let mut fields = Fields::new(value, &path)?;
        let role: String = fields.take_required("role", "a string")?;
        let content =
            fields.take_value("content").ok_or_else(|| BadParam::missing(fields.name("content")))?;
        let content_path = fields.name("content");
        // An answer was nothing where its end came within a thought that is not shown.
        if role != "assistant" && content.as_array().is_some_and(Vec::is_empty) {
            let message = format!("`{content_path}` must hold at least one block");
            return Err(BadParam::invalid(content_path, message));
        }
        MESSAGES.check(&mut fields, "messages[].")?;
        fields.finish()?;
        match role.as_str() {
            "user" => turns.user(content, &content_path)?,
            "system" => turns.push("system", texts(content, &content_path)?, &path),
            "assistant" if i == last && !may_end_with_answer => {
                let message = format!(
                    "`{path}` is the assistant's and the last: continuing it (prefill) is not supported, end with a \
                     message of the user"
                );
                return Err(BadParam::unsupported(path, message));
            }
            "assistant" => turns.assistant(content, &content_path)?,
            other => {
                let message = format!("unknown role `{other:.40}`: use user, assistant or system");
                return Err(BadParam::invalid(format!("{path}.role"), message));
            }
        }
    }
    check_count("messages", "turns and results", turns.messages.len(), MESSAGES_MAX)?;
    Ok((turns.messages, turns.places))
}

/// The conversation while it is read.
#[derive(Default)]
struct Turns {
    messages: Vec<ChatMessage>,
    places: Vec<String>,
}

impl Turns {
    /// A text of `role`; it goes on with the message before it if that has the same role, as the dialect has
    /// it.
    fn push(&mut self, role: &str, content: String, place: &str) {
        if let Some(last) = self.messages.last_mut().filter(|last| last.role == role) {
            join(&mut last.content, &content);
            return;
        }
        self.message(ChatMessage { role: role.to_owned(), content, ..ChatMessage::default() }, place);
    }

    fn message(&mut self, message: ChatMessage, place: &str) {
        self.messages.push(message);
        self.places.push(place.to_owned());
    }

    /// A message of the user: texts and results, in their order.
    fn user(&mut self, content: Value, path: &str) -> Result<(), BadParam> {
        let blocks = match blocks(content, path)? {
            Blocks::Text(text) => {
                self.push("user", text, path);
                return Ok(());
            }
            Blocks::List(blocks) => blocks,
        };
        for (block, path) in blocks {
            match Block::read(block, &path)? {
                Block::Text(text) => self.push("user", text, &path),
                Block::Result { id, content } => {
                    let (role, tool_call_id) = ("tool".to_owned(), Some(id));
                    self.message(
                        ChatMessage { role, content, tool_call_id, ..ChatMessage::default() },
                        &path,
                    );
                }
                Block::Call(_) | Block::Thinking(_) | Block::Redacted => {
                    let message = "the block is the assistant's, not the user's";
                    return Err(BadParam::invalid(format!("{path}.type"), message));
                }
            }
        }
        Ok(())
    }

    /// A message of the assistant: thoughts, text and calls.
    fn assistant(&mut self, content: Value, path: &str) -> Result<(), BadParam> {
        let mut said = ChatMessage { role: "assistant".to_owned(), ..ChatMessage::default() };
        match blocks(content, path)? {
            Blocks::Text(text) => said.content = text,
            Blocks::List(blocks) => {
                for (block, path) in blocks {
                    match Block::read(block, &path)? {
                        Block::Text(text) => join(&mut said.content, &text),
                        Block::Thinking(text) => join(said.reasoning_content.get_or_insert_default(), &text),
                        Block::Call(call) => said.tool_calls.push(call),
                        // What another server encrypted cannot be read here.
                        Block::Redacted => {}
                        Block::Result { .. } => {
                            let message = "a result is the user's, not the assistant's";
                            return Err(BadParam::invalid(format!("{path}.type"), message));
                        }
                    }
                }
            }
        }
        check_count(path, "calls", said.tool_calls.len(), CALLS_MAX)?;
        match self.messages.last_mut().filter(|last| last.role == "assistant" && last.tool_calls.is_empty()) {
            Some(last) => {
                join(&mut last.content, &said.content);
                if let Some(thought) = said.reasoning_content {
                    join(last.reasoning_content.get_or_insert_default(), &thought);
                }
                last.tool_calls = said.tool_calls;
            }
            None => self.message(said, path),
        }
        Ok(())
    }
}

/// Texts of one turn stand on lines of their own.
fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

enum Blocks {
    Text(String),
    List(Vec<(Value, String)>),
}

fn blocks(content: Value, path: &str) -> Result<Blocks, BadParam> {
    match content {
        Value::String(text) => Ok(Blocks::Text(text)),
        Value::Array(blocks) => {
            let place = |(i, block)| (block, format!("{path}[{i}]"));
            Ok(Blocks::List(blocks.into_iter().enumerate().map(place).collect()))
        }
        other => {
            let message = format!("`{path}` must be a string or an array of blocks, not {}", short(&other));
            Err(BadParam::invalid(path, message))
        }
    }
}

/// A string or text blocks, and nothing else.
fn texts(content: Value, path: &str) -> Result<String, BadParam> {
    let blocks = match blocks(content, path)? {
        Blocks::Text(text) => return Ok(text),
        Blocks::List(blocks) => blocks,
    };
    let mut all = String::new();
    for (block, path) in blocks {
        match Block::read(block, &path)? {
            Block::Text(text) => join(&mut all, &text),
            _ => {
                let message = "only blocks of type `text` may stand here";
                return Err(BadParam::unsupported(format!("{path}.type"), message));
            }
        }
    }
    Ok(all)
}

/// A content block.
enum Block {
    Text(String),
    Thinking(String),
    Redacted,
    Call(ToolCall),
    Result { id: String, content: String },
}

impl Block {
    fn read(block: Value, path: &str) -> Result<Self, BadParam> {
        let mut fields = Fields::new(block, path)?;
        let kind: String = fields.take_required("type", "a string")?;
        let block = match kind.as_str() {
            "text" => Self::Text(fields.take_required("text", "a string")?),
            "thinking" => Self::Thinking(fields.take_required("thinking", "a string")?),
            "redacted_thinking" => Self::Redacted,
            "tool_use" => {
                let id = fields.take_required("id", "a string")?;
                let name = fields.take_required("name", "a string")?;
                let input_field = fields.name("input");
                let input = fields.take_value("input").ok_or_else(|| BadParam::missing(&input_field))?;
                if !input.is_object() {
                    let message = format!("`{input_field}` must be an object, not {}", short(&input));
                    return Err(BadParam::invalid(input_field, message));
                }
                Self::Call(tool_call(id, name, input.to_string()))
            }
            "tool_result" => Self::result(&mut fields)?,
            other => {
                let message = format!(
                    "blocks of type `{other:.40}` are not supported: text, tool_use, tool_result, thinking and \
                     redacted_thinking are"
                );
                return Err(BadParam::unsupported(fields.name("type"), message));
            }
        };
        MESSAGES.check(&mut fields, "messages[].content[].")?;
        fields.finish()?;
        Ok(block)
    }

    fn result(fields: &mut Fields) -> Result<Self, BadParam> {
        let id = fields.take_required("tool_use_id", "a string")?;
        let path = fields.name("content");
        let content = match fields.take_value("content") {
            Some(content) => texts(content, &path)?,
            None => String::new(),
        };
        let is_error = fields.take("is_error", "true or false")?.unwrap_or(false);
        // Templates have no place for it, so that the model is told in words.
        let content = if is_error { format!("Error: {content}") } else { content };
        Ok(Self::Result { id, content })
    }
}
