//! The events of an answer that is whole already.

use std::vec::IntoIter;

use super::{DeltaLen, ResponseStream};
use crate::generate::CallDelta;
use crate::responses::answer::{OutputItem, Response, ResponseStatus, ResponseUsage};
use crate::responses::event::ResponseEvent;
use crate::summary::ExoSummary;

/// The events that a whole answer came in, once more and with the same numbers. They are made as they are
/// read: all at once they would take many times what the answer takes.
pub struct Replay {
    stream: ResponseStream,
    items: IntoIter<OutputItem>,
    deltas: IntoIter<DeltaLen>,
    /// The item of which some is told.
    open: Option<OpenItem>,
    /// What comes behind all items.
    end: Option<End>,
}

/// An item, and how much of it is told.
struct OpenItem {
    item: OutputItem,
    bytes: usize,
    logprobs: usize,
}

/// What the last event of an answer has beside its items.
struct End {
    status: ResponseStatus,
    usage: Option<ResponseUsage>,
    exo: Option<ExoSummary>,
}

impl Replay {
    /// Of this answer, which came in these deltas, for a client that has its events up to the one of the
    /// number `after`.
    pub fn new(mut whole: Response, deltas: Vec<DeltaLen>, after: Option<u32>) -> Self {
        let items = std::mem::take(&mut whole.output).into_iter();
        let request = whole.id.strip_prefix("resp_").unwrap_or(&whole.id).to_owned();
        let end = End { status: whole.status, usage: whole.usage.take(), exo: whole.exo.take() };
        (whole.status, whole.incomplete_details) = (ResponseStatus::InProgress, None);
        let mut stream = ResponseStream::new(request, whole);
        if let Some(last) = after {
            stream = stream.behind(last);
        }
        Self { stream, items, deltas: deltas.into_iter(), open: None, end: Some(end) }
    }

    /// Tells the next delta of an item; gives it back unless that was the last.
    fn delta(&mut self, open: OpenItem, out: &mut Vec<ResponseEvent>) -> Option<OpenItem> {
        let OpenItem { item, bytes, mut logprobs } = open;
        let rest = text_of(&item).get(bytes..).unwrap_or_default();
        // A call without arguments has no delta.
        let next = if rest.is_empty() { None } else { self.deltas.next() };
        let text = next.and_then(|next| rest.get(..next.bytes as usize)).unwrap_or(rest).to_owned();
        let (is_last, told) = (text.len() == rest.len(), bytes + text.len());
        match &item {
            OutputItem::Reasoning { .. } => self.stream.think(text, out),
            OutputItem::Message { content, .. } => {
                let all = content.first().map(|part| part.logprobs.as_slice()).unwrap_or_default();
                let rest = all.get(logprobs..).unwrap_or_default();
                let scored = next.and_then(|next| rest.get(..next.logprobs as usize)).unwrap_or(rest);
                logprobs += scored.len();
                self.stream.say(text, scored.to_vec(), out);
            }
            OutputItem::FunctionCall { call_id, name, .. } => {
                let begins = (bytes == 0).then(|| (call_id.clone(), name.clone()));
                self.stream.call(CallDelta { index: 0, begins, arguments: text }, out);
            }
        }
        (!is_last).then_some(OpenItem { item, bytes: told, logprobs })
    }
}

impl Iterator for Replay {
    type Item = Vec<ResponseEvent>;

    /// The next few events; none of them where the client has them.
    fn next(&mut self) -> Option<Vec<ResponseEvent>> {
        let mut out = Vec::new();
        if !self.stream.has_begun {
            self.stream.begin(&mut out);
            return Some(out);
        }
        let begun = |item| OpenItem { item, bytes: 0, logprobs: 0 };
        match self.open.take().or_else(|| self.items.next().map(begun)) {
            Some(open) => self.open = self.delta(open, &mut out),
            None => {
                let End { status, usage, exo } = self.end.take()?;
                self.stream.finish(status, &mut out);
                self.stream.end(usage, exo, &mut out);
            }
        }
        Some(out)
    }
}

/// What comes in deltas of an item. An answer made here has its text in one part.
fn text_of(item: &OutputItem) -> &str {
    let text = match item {
        OutputItem::Reasoning { content, .. } => content.first().map(|part| part.text.as_str()),
        OutputItem::Message { content, .. } => content.first().map(|part| part.text.as_str()),
        OutputItem::FunctionCall { arguments, .. } => Some(arguments.as_str()),
    };
    text.unwrap_or_default()
}
