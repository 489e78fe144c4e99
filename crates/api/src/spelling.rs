//! Arguments of calls that come back as objects inside a body, kept as the text that they are: a document's
//! numbers lose their spelling when it is read.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::generate::{ChatMessage, ToolCall};

#[derive(Deserialize)]
struct Body<'t> {
    #[serde(borrow)]
    messages: Vec<Message<'t>>,
}

#[derive(Deserialize)]
struct Message<'t> {
    #[serde(borrow)]
    content: Option<&'t RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Call<'t>>>,
}

#[derive(Deserialize)]
struct Block<'t> {
    #[serde(borrow)]
    input: Option<&'t RawValue>,
}

#[derive(Deserialize)]
struct Call<'t> {
    #[serde(borrow)]
    function: Option<Function<'t>>,
}

#[derive(Deserialize)]
struct Function<'t> {
    #[serde(borrow)]
    arguments: Option<&'t RawValue>,
}

/// Gives the calls of `messages` the arguments as they stand in the body's text, in `input` of content
/// blocks.
pub fn keep_inputs(messages: &mut [ChatMessage], text: &str) {
    keep(messages, text, |message| {
        let Some(content) = message.content.filter(|content| content.get().starts_with('[')) else {
            return Some(Vec::new());
        };
        let blocks: Vec<Block<'_>> = serde_json::from_str(content.get()).ok()?;
        Some(blocks.into_iter().filter_map(|block| block.input).collect())
    });
}

/// The same, in `function.arguments` of calls.
pub fn keep_arguments(messages: &mut [ChatMessage], text: &str) {
    keep(messages, text, |message| {
        let calls = message.tool_calls.into_iter().flatten();
        calls.map(|call| call.function?.arguments).collect()
    });
}

/// Nothing is changed where the text does not have as many of them as there are calls: one left its arguments
/// out, or a name stands twice.
fn keep<'t>(
    messages: &mut [ChatMessage],
    text: &'t str,
    sources: impl Fn(Message<'t>) -> Option<Vec<&'t RawValue>>,
) {
    let mut calls: Vec<&mut ToolCall> = messages.iter_mut().flat_map(|m| &mut m.tool_calls).collect();
    if calls.is_empty() {
        return;
    }
    let Ok(body) = serde_json::from_str::<Body<'_>>(text) else { return };
    let Some(sources) = body.messages.into_iter().map(sources).collect::<Option<Vec<_>>>() else { return };
    let sources = sources.concat();
    if sources.len() != calls.len() {
        return;
    }
    for (call, source) in calls.iter_mut().zip(sources) {
        source.get().clone_into(&mut call.function.arguments);
    }
}
