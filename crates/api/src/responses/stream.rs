//! From the node's events to the dialect's.

use serde_json::json;

use super::answer::{
    IncompleteDetails, OutputItem, OutputText, ReasoningText, Response, ResponseError, ResponseStatus,
    ResponseUsage,
};
use super::event::{ContentPart, EventBody, ResponseEvent};
use crate::generate::{CallDelta, Delta, FinishReason, GenerateEvent, TokenPiece};
use crate::summary::{ExoSummary, TokenLogprob};

mod replay;

pub use replay::Replay;

/// How much of an item came in one delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeltaLen {
    /// Bytes of its text.
    bytes: u32,
    /// Tokens whose probabilities came with it.
    logprobs: u32,
}

/// Folds events into those of a streamed response, and into the whole one.
pub struct ResponseStream {
    request: String,
    response: Response,
    has_begun: bool,
    /// Whether the last item still grows.
    is_open: bool,
    /// The number of the next event.
    next: u32,
    /// The number of the first event that the client lacks.
    first: u32,
    /// Tokens whose text has not come yet.
    pending: Vec<TokenPiece>,
    /// Of all deltas, in their order.
    deltas: Vec<DeltaLen>,
}

impl ResponseStream {
    /// For the request of this id, whose answer has this head.
    pub fn new(request: String, head: Response) -> Self {
        let (has_begun, is_open, pending, deltas) = (false, false, Vec::new(), Vec::new());
        Self { request, response: head, has_begun, is_open, next: 0, first: 0, pending, deltas }
    }

    /// For a client that has the events up to the one of this number: they count, and do not come again.
    pub fn behind(self, last: u32) -> Self {
        Self { first: last.saturating_add(1), ..self }
    }

    /// The answer so far.
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// What came in each delta so far, for [`Replay`].
    pub fn deltas(&self) -> &[DeltaLen] {
        &self.deltas
    }

    /// Whether it is as whole as it will be.
    pub fn is_done(&self) -> bool {
        self.response.exo.is_some() && self.response.status != ResponseStatus::InProgress
    }

    /// What `event` becomes; often one, sometimes none.
    pub fn push(&mut self, event: GenerateEvent) -> Vec<ResponseEvent> {
        let mut out = Vec::new();
        match event {
            GenerateEvent::Queued { .. } | GenerateEvent::Watched => {}
            GenerateEvent::Started { .. } => self.begin(&mut out),
            GenerateEvent::Delta(delta) => self.delta(delta, &mut out),
            GenerateEvent::Finished { reason: FinishReason::Length, .. } => {
                self.finish(ResponseStatus::Incomplete, &mut out);
            }
            GenerateEvent::Finished { .. } => self.finish(ResponseStatus::Completed, &mut out),
            GenerateEvent::Done(summary) => {
                let exo = ExoSummary::new(self.request.clone(), &summary);
                self.end(Some(summary.usage.into()), Some(exo), &mut out);
            }
        }
        out
    }

    fn begin(&mut self, out: &mut Vec<ResponseEvent>) {
        self.has_begun = true;
        self.emit(EventBody::Created { response: self.whole() }, out);
        self.emit(EventBody::InProgress { response: self.whole() }, out);
    }

    /// Nothing more is said: all of it was, or it was cut.
    fn finish(&mut self, status: ResponseStatus, out: &mut Vec<ResponseEvent>) {
        self.close(status, out);
        self.response.status = status;
        if status == ResponseStatus::Incomplete {
            let reason = "max_output_tokens".to_owned();
            self.response.incomplete_details = Some(IncompleteDetails { reason });
        }
    }

    /// The last event of an answer that is finished.
    fn end(&mut self, usage: Option<ResponseUsage>, exo: Option<ExoSummary>, out: &mut Vec<ResponseEvent>) {
        (self.response.usage, self.response.exo) = (usage, exo);
        let response = self.whole();
        let end = match self.response.status {
            ResponseStatus::Incomplete => EventBody::Incomplete { response },
            _ => EventBody::Completed { response },
        };
        self.emit(end, out);
    }

    /// The end of an answer that failed, behind all that the client has. Clients take no event before the
    /// first: one that failed before it began begins with it.
    pub fn fail(&mut self, code: &str, message: &str) -> Vec<ResponseEvent> {
        let mut out = Vec::new();
        self.is_open = false;
        self.forget_the_large();
        self.next = self.next.max(self.first);
        if !self.has_begun && self.first == 0 {
            self.emit(EventBody::Created { response: self.whole() }, &mut out);
        }
        let (code, message) = (code.to_owned(), message.to_owned());
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(ResponseError { code, message });
        self.emit(EventBody::Failed { response: self.whole() }, &mut out);
        out
    }

    /// The end of an answer that failed goes out whether or not there is room for it: without what may be of
    /// any size.
    fn forget_the_large(&mut self) {
        let response = &mut self.response;
        (response.output, response.tools, response.instructions) = (Vec::new(), Vec::new(), None);
        response.metadata.clear();
        response.text =
            json!({"format": {"type": response.text["format"]["type"].as_str().unwrap_or("text")}});
        response.reasoning = json!({"effort": null, "summary": null});
        if !response.tool_choice.is_string() {
            response.tool_choice = "auto".into();
        }
    }

    fn whole(&self) -> Box<Response> {
        Box::new(self.response.clone())
    }

    fn emit(&mut self, body: EventBody, out: &mut Vec<ResponseEvent>) {
        if self.next >= self.first {
            out.push(ResponseEvent { body, sequence_number: self.next });
        }
        self.next = self.next.saturating_add(1);
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<ResponseEvent>) {
        let is_text = !delta.text.is_empty();
        // Where a character has begun in a thought or in a call, its tokens are none of the text.
        let is_aside = !delta.reasoning.is_empty() || !is_text && !delta.calls.is_empty();
        if is_aside {
            self.pending.clear();
        }
        if !delta.reasoning.is_empty() {
            self.think(delta.reasoning, out);
        }
        // Tokens without a text are of one that comes, or of a thought or a call; one that begins a character
        // may be the first of a text.
        let begins_char = |token: &TokenPiece| std::str::from_utf8(&token.bytes).is_err();
        if is_text {
            let mut tokens = std::mem::take(&mut self.pending);
            tokens.extend(delta.tokens);
            self.say(delta.text, tokens.into_iter().map(TokenLogprob::from).collect(), out);
        } else if self.is_saying() || !is_aside && delta.tokens.iter().any(begins_char) {
            self.pending.extend(delta.tokens);
        }
        for call in delta.calls {
            self.call(call, out);
        }
    }

    fn is_saying(&self) -> bool {
        self.is_open && matches!(self.response.output.last(), Some(OutputItem::Message { .. }))
    }

    fn think(&mut self, delta: String, out: &mut Vec<ResponseEvent>) {
        if !(self.is_open && matches!(self.response.output.last(), Some(OutputItem::Reasoning { .. }))) {
            self.close(ResponseStatus::Completed, out);
            let (summary, content, status) = (Vec::new(), Vec::new(), ResponseStatus::InProgress);
            self.open(OutputItem::Reasoning { id: self.item_id("rs"), summary, content, status }, out);
            let part = ReasoningText { kind: "reasoning_text".to_owned(), text: String::new() };
            self.part_added(ContentPart::Reasoning(part.clone()), out);
            if let Some(OutputItem::Reasoning { content, .. }) = self.response.output.last_mut() {
                content.push(part);
            }
        }
        let (item_id, output_index) = self.last();
        if let Some(OutputItem::Reasoning { content, .. }) = self.response.output.last_mut()
            && let Some(part) = content.last_mut()
        {
            part.text.push_str(&delta);
        }
        self.note_delta(delta.len(), 0);
        self.emit(EventBody::ReasoningDelta { item_id, output_index, content_index: 0, delta }, out);
    }

    fn say(&mut self, delta: String, logprobs: Vec<TokenLogprob>, out: &mut Vec<ResponseEvent>) {
        if !self.is_saying() {
            self.close(ResponseStatus::Completed, out);
            let (role, content, status) = ("assistant".to_owned(), Vec::new(), ResponseStatus::InProgress);
            self.open(OutputItem::Message { id: self.item_id("msg"), status, role, content }, out);
            let (annotations, logprobs) = (Vec::new(), Vec::new());
            let part =
                OutputText { kind: "output_text".to_owned(), text: String::new(), annotations, logprobs };
            self.part_added(ContentPart::Text(part.clone()), out);
            if let Some(OutputItem::Message { content, .. }) = self.response.output.last_mut() {
                content.push(part);
            }
        }
        let (item_id, output_index) = self.last();
        if let Some(OutputItem::Message { content, .. }) = self.response.output.last_mut()
            && let Some(part) = content.last_mut()
        {
            part.text.push_str(&delta);
            part.logprobs.extend(logprobs.iter().cloned());
        }
        self.note_delta(delta.len(), logprobs.len());
        self.emit(EventBody::TextDelta { item_id, output_index, content_index: 0, delta, logprobs }, out);
    }

    fn call(&mut self, call: CallDelta, out: &mut Vec<ResponseEvent>) {
        if let Some((call_id, name)) = call.begins {
            self.close(ResponseStatus::Completed, out);
            let (id, arguments, status) = (self.item_id("fc"), String::new(), ResponseStatus::InProgress);
            self.open(OutputItem::FunctionCall { id, call_id, name, arguments, status }, out);
        }
        if call.arguments.is_empty() {
            return;
        }
        let (item_id, output_index) = self.last();
        if let Some(OutputItem::FunctionCall { arguments, .. }) = self.response.output.last_mut() {
            arguments.push_str(&call.arguments);
        }
        self.note_delta(call.arguments.len(), 0);
        self.emit(EventBody::ArgumentsDelta { item_id, output_index, delta: call.arguments }, out);
    }

    fn note_delta(&mut self, bytes: usize, logprobs: usize) {
        let [bytes, logprobs] = [bytes, logprobs].map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        self.deltas.push(DeltaLen { bytes, logprobs });
    }

    /// The id of the next item, from what it is a part of: an answer that goes on elsewhere has the same.
    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}_{}", self.request, self.response.output.len())
    }

    /// The last item's id and place.
    fn last(&self) -> (String, usize) {
        let output = &self.response.output;
        (output.last().map(|item| item.id().to_owned()).unwrap_or_default(), output.len().saturating_sub(1))
    }

    fn open(&mut self, item: OutputItem, out: &mut Vec<ResponseEvent>) {
        self.response.output.push(item.clone());
        self.is_open = true;
        let (_, output_index) = self.last();
        self.emit(EventBody::ItemAdded { output_index, item }, out);
    }

    fn part_added(&mut self, part: ContentPart, out: &mut Vec<ResponseEvent>) {
        let (item_id, output_index) = self.last();
        self.emit(EventBody::PartAdded { item_id, output_index, content_index: 0, part }, out);
    }

    /// Ends the item that grows, if there is one.
    fn close(&mut self, status: ResponseStatus, out: &mut Vec<ResponseEvent>) {
        self.pending.clear();
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let ((item_id, output_index), content_index) = (self.last(), 0);
        let Some(item) = self.response.output.last_mut() else { return };
        item.set_status(status);
        let mut item = item.clone();
        // Probabilities come with the text's end and with the answer's; once more would be megabytes more.
        let mut scored = Vec::new();
        if let OutputItem::Message { content, .. } = &mut item {
            scored.extend(content.iter_mut().map(|part| std::mem::take(&mut part.logprobs)));
        }
        let part_done = |item_id, part| EventBody::PartDone { item_id, output_index, content_index, part };
        match &item {
            OutputItem::Reasoning { content, .. } => {
                for part in content {
                    let (item_id, text) = (item_id.clone(), part.text.clone());
                    let done = EventBody::ReasoningDone {
                        item_id: item_id.clone(),
                        output_index,
                        content_index,
                        text,
                    };
                    self.emit(done, out);
                    self.emit(part_done(item_id, ContentPart::Reasoning(part.clone())), out);
                }
            }
            OutputItem::Message { content, .. } => {
                for (part, logprobs) in content.iter().zip(scored) {
                    let text = part.text.clone();
                    let item_id = item_id.clone();
                    let done = EventBody::TextDone {
                        item_id: item_id.clone(),
                        output_index,
                        content_index,
                        text,
                        logprobs,
                    };
                    self.emit(done, out);
                    self.emit(part_done(item_id, ContentPart::Text(part.clone())), out);
                }
            }
            OutputItem::FunctionCall { name, arguments, .. } => {
                let (name, arguments) = (name.clone(), arguments.clone());
                self.emit(EventBody::ArgumentsDone { item_id, output_index, name, arguments }, out);
            }
        }
        self.emit(EventBody::ItemDone { output_index, item }, out);
    }
}

#[cfg(test)]
mod tests;
