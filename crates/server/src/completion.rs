//! `/v1/completions`: events to chunks and answers.

use exo_api::openai::Completion;
use exo_api::openai::completion_response::{CompletionChoice, CompletionLogprobs, TextOffset};
use exo_api::{Delta, GenerateEvent, Summary};

use crate::encode::{Chunks, Head, Whole, fingerprint, push_data, push_done};

/// Chunks of a streamed answer.
pub struct CompletionChunks {
    parts: CompletionState,
    include_usage: bool,
}

impl CompletionChunks {
    /// For one request.
    pub fn new(head: Head, logprobs: bool, include_usage: bool) -> Self {
        Self { parts: CompletionState::new(head, logprobs), include_usage }
    }
}

impl Chunks for CompletionChunks {
    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        if let GenerateEvent::Done(summary) = &event {
            if self.include_usage {
                push_data(out, &self.parts.end(Vec::new(), summary));
            }
            push_done(out);
            return;
        }
        let system_fingerprint = match &event {
            GenerateEvent::Finished { kernels, .. } => fingerprint(kernels),
            _ => None,
        };
        if let Some(choice) = self.parts.choice(event) {
            push_data(out, &Completion { system_fingerprint, ..self.parts.answer(vec![choice]) });
        }
    }
}

/// The whole answer.
pub struct CompletionWhole {
    parts: CompletionState,
    choices: Vec<CompletionChoice>,
}

impl CompletionWhole {
    /// For one request.
    pub fn new(head: Head, logprobs: bool) -> Self {
        let empty = |index| CompletionChoice {
            text: String::new(),
            index,
            logprobs: logprobs.then(CompletionLogprobs::default),
            finish_reason: None,
        };
        Self { choices: (0..head.choices).map(empty).collect(), parts: CompletionState::new(head, logprobs) }
    }
}

impl Whole for CompletionWhole {
    type Answer = Completion;

    fn push(&mut self, event: GenerateEvent) {
        let Some(new) = self.parts.choice(event) else { return };
        let Some(choice) = self.choices.get_mut(usize::from(new.index)) else { return };
        choice.text.push_str(&new.text);
        choice.finish_reason = choice.finish_reason.or(new.finish_reason);
        if let (Some(all), Some(more)) = (&mut choice.logprobs, new.logprobs) {
            all.append(more);
        }
    }

    fn finish(self, summary: &Summary) -> Option<Completion> {
        let complete = self.choices.iter().all(|c| c.finish_reason.is_some());
        complete.then(|| self.parts.end(self.choices, summary))
    }
}

/// What chunks and answers share: the head, and how far each choice's text has come.
struct CompletionState {
    head: Head,
    logprobs: bool,
    offsets: Vec<TextOffset>,
}

impl CompletionState {
    fn new(head: Head, logprobs: bool) -> Self {
        Self { offsets: vec![TextOffset::default(); usize::from(head.choices)], head, logprobs }
    }

    fn answer(&self, choices: Vec<CompletionChoice>) -> Completion {
        Completion {
            id: format!("cmpl-{}", self.head.request),
            object: "text_completion".to_owned(),
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: None,
            choices,
            usage: None,
            exo: None,
        }
    }

    fn end(&self, choices: Vec<CompletionChoice>, summary: &Summary) -> Completion {
        Completion {
            system_fingerprint: fingerprint(&summary.kernels),
            usage: Some(summary.usage.into()),
            exo: Some(self.head.exo(summary)),
            ..self.answer(choices)
        }
    }

    /// What `event` adds to a choice.
    fn choice(&mut self, event: GenerateEvent) -> Option<CompletionChoice> {
        match event {
            GenerateEvent::Delta(delta) if delta.is_empty() => None,
            GenerateEvent::Delta(delta) => Some(self.delta(delta)),
            GenerateEvent::Finished { index, reason, .. } => {
                let finish_reason = Some(reason);
                Some(CompletionChoice { text: String::new(), index, logprobs: None, finish_reason })
            }
            GenerateEvent::Queued { .. }
            | GenerateEvent::Watched
            | GenerateEvent::Started { .. }
            | GenerateEvent::Done(_) => None,
        }
    }

    fn delta(&mut self, delta: Delta) -> CompletionChoice {
        let mut logprobs = self.logprobs.then(CompletionLogprobs::default);
        if let (Some(logprobs), Some(offset)) =
            (&mut logprobs, self.offsets.get_mut(usize::from(delta.index)))
        {
            delta.tokens.into_iter().for_each(|piece| logprobs.push(piece, offset));
        }
        CompletionChoice { text: delta.text, index: delta.index, logprobs, finish_reason: None }
    }
}
