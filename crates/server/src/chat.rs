//! `/v1/chat/completions`: events to chunks and answers.

use exo_api::openai::chat_response::{
    AnsweredCall, AnsweredFunction, AssistantMessage, ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs,
    StreamedCall,
};
use exo_api::openai::{ChatChunk, ChatCompletion};
use exo_api::summary::TokenLogprob;
use exo_api::{Delta, FinishReason, GenerateEvent, Summary, TokenPiece};

use crate::encode::{Chunks, Head, Whole, fingerprint, push_data, push_done};

/// Chunks of a streamed answer.
pub struct ChatChunks {
    head: Head,
    logprobs: bool,
    include_usage: bool,
}

impl ChatChunks {
    /// For one request.
    pub fn new(head: Head, logprobs: bool, include_usage: bool) -> Self {
        Self { head, logprobs, include_usage }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: format!("chatcmpl-{}", self.head.request),
            object: "chat.completion.chunk".to_owned(),
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: None,
            choices,
            usage: None,
            exo: None,
        }
    }

    fn delta(&self, delta: Delta) -> ChatChunkChoice {
        let logprobs = self.logprobs.then(|| logprobs(delta.tokens));
        let is_aside = !delta.reasoning.is_empty() || !delta.calls.is_empty();
        let thought = Some(delta.reasoning).filter(|text| !text.is_empty());
        let content = ChatDelta {
            role: None,
            content: Some(delta.text).filter(|text| !text.is_empty() || !is_aside),
            reasoning_content: thought.clone(),
            reasoning: thought,
            tool_calls: delta.calls.into_iter().map(StreamedCall::from).collect(),
        };
        ChatChunkChoice { index: delta.index, delta: content, logprobs, finish_reason: None }
    }

    /// Names what of the tools' schemas is not enforced, where no usage was asked for. It has a choice, as
    /// clients expect that ask for none.
    fn unenforced_chunk(&self, summary: &Summary) -> ChatChunk {
        let (delta, logprobs, finish_reason) = (ChatDelta::default(), None, None);
        let choice = ChatChunkChoice { index: 0, delta, logprobs, finish_reason };
        ChatChunk { exo: Some(self.head.exo(summary)), ..self.chunk(vec![choice]) }
    }

    fn usage_chunk(&self, summary: &Summary) -> ChatChunk {
        ChatChunk {
            system_fingerprint: fingerprint(&summary.kernels),
            usage: Some(summary.usage.into()),
            exo: Some(self.head.exo(summary)),
            ..self.chunk(Vec::new())
        }
    }
}

fn logprobs(tokens: Vec<TokenPiece>) -> ChatLogprobs {
    ChatLogprobs { content: tokens.into_iter().map(TokenLogprob::from).collect(), refusal: None }
}

impl Chunks for ChatChunks {
    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        match event {
            GenerateEvent::Queued { .. } | GenerateEvent::Watched => {}
            GenerateEvent::Started { .. } => {
                for index in 0..self.head.choices {
                    let role = Some("assistant".to_owned());
                    let delta = ChatDelta { role, content: Some(String::new()), ..ChatDelta::default() };
                    let choice = ChatChunkChoice { index, delta, logprobs: None, finish_reason: None };
                    push_data(out, &self.chunk(vec![choice]));
                }
            }
            GenerateEvent::Delta(delta) if delta.is_empty() => {}
            GenerateEvent::Delta(delta) => push_data(out, &self.chunk(vec![self.delta(delta)])),
            GenerateEvent::Finished { index, reason, kernels, .. } => {
                let (delta, finish_reason) = (ChatDelta::default(), Some(reason));
                let choice = ChatChunkChoice { index, delta, logprobs: None, finish_reason };
                let system_fingerprint = fingerprint(&kernels);
                push_data(out, &ChatChunk { system_fingerprint, ..self.chunk(vec![choice]) });
            }
            GenerateEvent::Done(summary) => {
                if self.include_usage {
                    push_data(out, &self.usage_chunk(&summary));
                } else if !summary.unenforced.is_empty() {
                    push_data(out, &self.unenforced_chunk(&summary));
                }
                push_done(out);
            }
        }
    }
}

/// The whole answer.
pub struct ChatWhole {
    head: Head,
    logprobs: bool,
    choices: Vec<WholeChoice>,
}

/// A choice while it grows.
#[derive(Default)]
struct WholeChoice {
    text: String,
    reasoning: String,
    calls: Vec<AnsweredCall>,
    tokens: Vec<TokenPiece>,
    finish: Option<FinishReason>,
}

impl WholeChoice {
    fn push(&mut self, delta: Delta) {
        self.text.push_str(&delta.text);
        self.reasoning.push_str(&delta.reasoning);
        self.tokens.extend(delta.tokens);
        for call in delta.calls {
            if let Some((id, name)) = call.begins {
                let function = AnsweredFunction { name, arguments: String::new() };
                self.calls.push(AnsweredCall { id, kind: "function".to_owned(), function });
            }
            if let Some(last) = self.calls.last_mut() {
                last.function.arguments.push_str(&call.arguments);
            }
        }
    }

    /// `None` if it has not finished.
    fn finish(self, index: u16, with_logprobs: bool) -> Option<ChatChoice> {
        let thought = Some(self.reasoning).filter(|text| !text.is_empty());
        let message = AssistantMessage {
            role: "assistant".to_owned(),
            content: Some(self.text).filter(|text| !text.is_empty() || self.calls.is_empty()),
            refusal: None,
            reasoning_content: thought.clone(),
            reasoning: thought,
            tool_calls: self.calls,
        };
        let logprobs = with_logprobs.then(|| logprobs(self.tokens));
        Some(ChatChoice { index, message, logprobs, finish_reason: self.finish? })
    }
}

impl ChatWhole {
    /// For one request.
    pub fn new(head: Head, logprobs: bool) -> Self {
        let choices = (0..head.choices).map(|_| Default::default()).collect();
        Self { head, logprobs, choices }
    }
}

impl Whole for ChatWhole {
    type Answer = ChatCompletion;

    fn push(&mut self, event: GenerateEvent) {
        match event {
            GenerateEvent::Delta(delta) => {
                if let Some(choice) = self.choices.get_mut(usize::from(delta.index)) {
                    choice.push(delta);
                }
            }
            GenerateEvent::Finished { index, reason, .. } => {
                if let Some(choice) = self.choices.get_mut(usize::from(index)) {
                    choice.finish = Some(reason);
                }
            }
            GenerateEvent::Queued { .. }
            | GenerateEvent::Watched
            | GenerateEvent::Started { .. }
            | GenerateEvent::Done(_) => {}
        }
    }

    fn finish(self, summary: &Summary) -> Option<ChatCompletion> {
        let choice = |(index, choice): (u16, WholeChoice)| choice.finish(index, self.logprobs);
        Some(ChatCompletion {
            id: format!("chatcmpl-{}", self.head.request),
            object: "chat.completion".to_owned(),
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: fingerprint(&summary.kernels),
            choices: (0..).zip(self.choices).map(choice).collect::<Option<_>>()?,
            usage: summary.usage.into(),
            exo: self.head.exo(summary),
        })
    }
}
