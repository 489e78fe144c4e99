//! `/v1/chat/completions`: events to chunks and answers.

use exo_api::openai::chat_response::{
    AssistantMessage, ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatTokenLogprob,
};
use exo_api::openai::{ChatChunk, ChatCompletion};
use exo_api::{Delta, FinishReason, GenerateEvent, Summary, TokenPiece};

use crate::encode::{Chunks, Head, Whole, fingerprint, push_data, usage};

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
        let content = ChatDelta { role: None, content: Some(delta.text) };
        ChatChunkChoice { index: delta.index, delta: content, logprobs, finish_reason: None }
    }

    fn usage_chunk(&self, summary: &Summary) -> ChatChunk {
        ChatChunk {
            system_fingerprint: fingerprint(summary),
            usage: Some(usage(summary)),
            exo: Some(self.head.exo(summary)),
            ..self.chunk(Vec::new())
        }
    }
}

fn logprobs(tokens: Vec<TokenPiece>) -> ChatLogprobs {
    ChatLogprobs { content: tokens.into_iter().map(ChatTokenLogprob::from).collect(), refusal: None }
}

impl Chunks for ChatChunks {
    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        match event {
            GenerateEvent::Queued { .. } | GenerateEvent::Watched => {}
            GenerateEvent::Started { .. } => {
                for index in 0..self.head.choices {
                    let role = Some("assistant".to_owned());
                    let delta = ChatDelta { role, content: Some(String::new()) };
                    let choice = ChatChunkChoice { index, delta, logprobs: None, finish_reason: None };
                    push_data(out, &self.chunk(vec![choice]));
                }
            }
            GenerateEvent::Delta(delta) if delta.text.is_empty() && delta.tokens.is_empty() => {}
            GenerateEvent::Delta(delta) => push_data(out, &self.chunk(vec![self.delta(delta)])),
            GenerateEvent::Finished { index, reason, .. } => {
                let (delta, finish_reason) = (ChatDelta::default(), Some(reason));
                let choice = ChatChunkChoice { index, delta, logprobs: None, finish_reason };
                push_data(out, &self.chunk(vec![choice]));
            }
            GenerateEvent::Done(summary) if self.include_usage => push_data(out, &self.usage_chunk(&summary)),
            GenerateEvent::Done(_) => {}
        }
    }
}

/// The whole answer.
pub struct ChatWhole {
    head: Head,
    logprobs: bool,
    choices: Vec<(String, Vec<TokenPiece>, Option<FinishReason>)>,
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
                if let Some((text, tokens, _)) = self.choices.get_mut(usize::from(delta.index)) {
                    text.push_str(&delta.text);
                    tokens.extend(delta.tokens);
                }
            }
            GenerateEvent::Finished { index, reason, .. } => {
                if let Some((_, _, finish)) = self.choices.get_mut(usize::from(index)) {
                    *finish = Some(reason);
                }
            }
            GenerateEvent::Queued { .. }
            | GenerateEvent::Watched
            | GenerateEvent::Started { .. }
            | GenerateEvent::Done(_) => {}
        }
    }

    fn finish(self, summary: &Summary) -> Option<ChatCompletion> {
        let choice = |(index, (content, tokens, finish)): (u16, (String, _, Option<FinishReason>))| {
            Some(ChatChoice {
                index,
                message: AssistantMessage { role: "assistant".to_owned(), content, refusal: None },
                logprobs: self.logprobs.then(|| logprobs(tokens)),
                finish_reason: finish?,
            })
        };
        Some(ChatCompletion {
            id: format!("chatcmpl-{}", self.head.request),
            object: "chat.completion".to_owned(),
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: fingerprint(summary),
            choices: (0..).zip(self.choices).map(choice).collect::<Option<_>>()?,
            usage: usage(summary),
            exo: self.head.exo(summary),
        })
    }
}
