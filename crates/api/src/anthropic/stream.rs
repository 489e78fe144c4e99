//! From the node's events to the dialect's.

use serde_json::value::RawValue;

use super::answer::{BlockDelta, ContentBlock, Message, MessageEnd, MessageEvent, MessageUsage, StopReason};
use super::request::Thoughts;
use crate::generate::{CallDelta, Delta, FinishReason, GenerateEvent};
use crate::summary::ExoSummary;

/// What stands for a signature: clients send it back with the thought, and drop thoughts that have none.
const SIGNATURE: &str = "exo";

/// Folds events into those of a streamed message, and into the whole one.
pub struct MessageStream {
    request: String,
    message: Message,
    /// Whether the last block of the message still grows.
    is_open: bool,
    /// Arguments of the call that grows.
    arguments: String,
    thoughts: Thoughts,
}

impl MessageStream {
    /// For the request of this id.
    pub fn new(request: String, model: String, thoughts: Thoughts) -> Self {
        let message = Message {
            id: format!("msg_{request}"),
            kind: "message".to_owned(),
            role: "assistant".to_owned(),
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: MessageUsage::default(),
            exo: None,
        };
        Self { request, message, is_open: false, arguments: String::new(), thoughts }
    }

    /// The message; `None` if it did not finish.
    pub fn into_message(self) -> Option<Message> {
        self.message.exo.is_some().then_some(self.message).filter(|message| message.stop_reason.is_some())
    }

    /// What `event` becomes; often one, sometimes none.
    pub fn push(&mut self, event: GenerateEvent) -> Vec<MessageEvent> {
        let mut out = Vec::new();
        match event {
            GenerateEvent::Queued { .. } | GenerateEvent::Watched => {}
            GenerateEvent::Started { prompt_tokens } => {
                self.message.usage.input_tokens = prompt_tokens;
                out.push(MessageEvent::MessageStart { message: self.message.clone() });
            }
            GenerateEvent::Delta(delta) => self.delta(delta, &mut out),
            GenerateEvent::Finished { reason, stop, .. } => {
                self.close(&mut out);
                self.message.stop_reason = Some(match (reason, &stop) {
                    (FinishReason::Stop, Some(_)) => StopReason::StopSequence,
                    (FinishReason::Stop, None) => StopReason::EndTurn,
                    (FinishReason::Length, _) => StopReason::MaxTokens,
                    (FinishReason::ToolCalls, _) => StopReason::ToolUse,
                });
                self.message.stop_sequence = stop;
            }
            GenerateEvent::Done(summary) => {
                let exo = ExoSummary::new(self.request.clone(), &summary);
                let usage = MessageUsage::from(summary.usage);
                (self.message.usage, self.message.exo) = (usage, Some(exo.clone()));
                let Message { stop_reason, stop_sequence, .. } = &self.message;
                let delta = MessageEnd { stop_reason: *stop_reason, stop_sequence: stop_sequence.clone() };
                out.push(MessageEvent::MessageDelta { delta, usage, exo });
                out.push(MessageEvent::MessageStop);
            }
        }
        out
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<MessageEvent>) {
        if !delta.reasoning.is_empty() && self.thoughts != Thoughts::Hidden {
            if !(self.is_open && matches!(self.message.content.last(), Some(ContentBlock::Thinking { .. }))) {
                let (thinking, signature) = (String::new(), String::new());
                self.open(ContentBlock::Thinking { thinking, signature }, out);
            }
            if self.thoughts == Thoughts::Shown {
                self.append(BlockDelta::ThinkingDelta { thinking: delta.reasoning }, out);
            }
        }
        if !delta.text.is_empty() {
            if !(self.is_open && matches!(self.message.content.last(), Some(ContentBlock::Text { .. }))) {
                self.open(ContentBlock::Text { text: String::new() }, out);
            }
            self.append(BlockDelta::TextDelta { text: delta.text }, out);
        }
        for CallDelta { begins, arguments, .. } in delta.calls {
            if let Some((id, name)) = begins {
                self.open(ContentBlock::ToolUse { id, name, input: no_input() }, out);
            }
            if !arguments.is_empty() {
                self.append(BlockDelta::InputJsonDelta { partial_json: arguments }, out);
            }
        }
    }

    fn index(&self) -> usize {
        self.message.content.len().saturating_sub(1)
    }

    /// Begins a block behind what is there.
    fn open(&mut self, block: ContentBlock, out: &mut Vec<MessageEvent>) {
        self.close(out);
        self.message.content.push(block.clone());
        self.is_open = true;
        out.push(MessageEvent::ContentBlockStart { index: self.index(), content_block: block });
    }

    fn append(&mut self, delta: BlockDelta, out: &mut Vec<MessageEvent>) {
        match (self.message.content.last_mut(), &delta) {
            (Some(ContentBlock::Text { text }), BlockDelta::TextDelta { text: more }) => text.push_str(more),
            (Some(ContentBlock::Thinking { thinking, .. }), BlockDelta::ThinkingDelta { thinking: more }) => {
                thinking.push_str(more);
            }
            (
                Some(ContentBlock::Thinking { signature, .. }),
                BlockDelta::SignatureDelta { signature: all },
            ) => {
                signature.clone_from(all);
            }
            (Some(ContentBlock::ToolUse { .. }), BlockDelta::InputJsonDelta { partial_json }) => {
                self.arguments.push_str(partial_json);
            }
            _ => {}
        }
        out.push(MessageEvent::ContentBlockDelta { index: self.index(), delta });
    }

    fn close(&mut self, out: &mut Vec<MessageEvent>) {
        if !self.is_open {
            return;
        }
        if let Some(ContentBlock::Thinking { .. }) = self.message.content.last() {
            self.append(BlockDelta::SignatureDelta { signature: SIGNATURE.to_owned() }, out);
        }
        if let Some(ContentBlock::ToolUse { input, .. }) = self.message.content.last_mut() {
            // What was cut is not JSON; the reason why it ended says so.
            *input =
                RawValue::from_string(std::mem::take(&mut self.arguments)).unwrap_or_else(|_| no_input());
        }
        self.is_open = false;
        out.push(MessageEvent::ContentBlockStop { index: self.index() });
    }
}

fn no_input() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("an empty object is JSON")
}

#[cfg(test)]
mod tests;
