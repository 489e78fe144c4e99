//! Requests of this node's clients as this crate knows them: those that run, so that they can be cancelled,
//! and the last that have ended. Never their text.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exo_api::telemetry::Endpoint;
use exo_api::{
    EmbedRequest, Embeddings, FinishReason, GenerateEvent, GenerateRequest, RecentRequestView, Summary,
};
use exo_stdx::Mutex;
use exo_stdx::unix_ms;
use exo_types::{Principal, RequestId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::errors::ApiError;

/// Ended requests that are remembered: a page of them. With what is asked for as a model cut to size, some
/// 100 KiB.
const RECENT_MAX: usize = 200;
/// A request may ask for a model of any name.
const MODEL_CHARS_MAX: usize = 200;

/// All of them.
#[derive(Default)]
pub struct Requests(Mutex<RequestTable>);

#[derive(Default)]
struct RequestTable {
    running: HashMap<RequestId, CancellationToken>,
    /// The last first.
    recent: VecDeque<RecentRequestView>,
}

/// One that runs. Dropped before its end, its client has left.
pub struct Tracked {
    all: Arc<Requests>,
    /// As the node knows it, and as its client does where its answer goes on from another node.
    ids: [RequestId; 2],
    /// Cancelled when somebody ends it.
    pub cancelled: CancellationToken,
    began: Instant,
    view: Option<RecentRequestView>,
}

impl Requests {
    /// Counts a request as running.
    pub fn track(self: &Arc<Self>, request: &GenerateRequest) -> Tracked {
        let resumed = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref());
        let ids = [resumed.map_or(request.request, |resumed| resumed.run), request.request];
        self.begin(ids, request.endpoint, &request.model, request.principal)
    }

    /// Counts a request for vectors as running.
    pub fn track_embedding(self: &Arc<Self>, request: &EmbedRequest) -> Tracked {
        self.begin([request.request; 2], request.endpoint, &request.model, request.principal)
    }

    fn begin(
        self: &Arc<Self>,
        ids: [RequestId; 2],
        endpoint: Endpoint,
        model: &str,
        principal: Principal,
    ) -> Tracked {
        let cancelled = CancellationToken::new();
        let mut known = self.0.lock();
        ids.iter().for_each(|id| drop(known.running.insert(*id, cancelled.clone())));
        let view = RecentRequestView {
            id: ids[1].to_string(),
            endpoint: endpoint.as_str().to_owned(),
            model: exo_types::printable(model, MODEL_CHARS_MAX),
            principal: principal.label(),
            started_unix_ms: unix_ms(),
            total_ms: 0,
            end: String::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            tokens: 0,
            queue_ms: None,
            ttft_ms: None,
            tokens_per_s: None,
            stages: 0,
            times: None,
        };
        Tracked { all: self.clone(), ids, cancelled, began: Instant::now(), view: Some(view) }
    }

    /// Ends a request; whether it runs here.
    pub fn cancel(&self, request: RequestId) -> bool {
        let known = self.0.lock();
        let running = known.running.get(&request);
        running.inspect(|running| running.cancel()).is_some()
    }

    /// The last that have ended, the last first.
    pub fn recent(&self) -> Vec<RecentRequestView> {
        self.0.lock().recent.iter().cloned().collect()
    }
}

impl Tracked {
    /// Takes in an event of the answer.
    pub fn take(&mut self, event: &GenerateEvent) {
        let Some(view) = &mut self.view else { return };
        match event {
            GenerateEvent::Started { prompt_tokens } => view.prompt_tokens = u64::from(*prompt_tokens),
            GenerateEvent::Delta(delta) if !delta.is_empty() => {
                let waited = || millis(self.began.elapsed());
                view.ttft_ms.get_or_insert_with(waited);
                // Of one choice exactly; of several, of the one that is ahead until the summary tells.
                view.tokens = view.tokens.max(u64::from(delta.position));
            }
            GenerateEvent::Finished { reason, .. } => view.end = end_word(*reason).to_owned(),
            GenerateEvent::Done(summary) => self.done(summary),
            _ => {}
        }
    }

    /// Takes in that all its vectors were made.
    pub fn embedded(&mut self, embeddings: &Embeddings) {
        if let Some(view) = &mut self.view {
            view.prompt_tokens = embeddings.prompt_tokens;
            view.queue_ms = Some(embeddings.queued_ms as u64);
        }
        self.end("stop");
    }

    /// Takes in that it failed.
    pub fn failed(&mut self, error: &ApiError) {
        self.end(error.code);
    }

    fn done(&mut self, summary: &Summary) {
        if let Some(view) = &mut self.view {
            let (usage, timings) = (&summary.usage, &summary.timings);
            view.prompt_tokens = u64::from(usage.prompt_tokens);
            view.cached_tokens = u64::from(usage.cached_tokens);
            view.tokens = u64::from(usage.completion_tokens);
            view.queue_ms = Some(timings.queued_ms as u64);
            view.ttft_ms = Some(timings.ttft_ms as u64);
            (view.tokens_per_s, view.stages) = (timings.tokens_per_s, summary.stages);
            view.times = summary.times.clone();
            let end = std::mem::take(&mut view.end);
            self.end(if end.is_empty() { "stop" } else { &end });
        }
    }

    fn end(&mut self, how: &str) {
        let Some(mut view) = self.view.take() else { return };
        how.clone_into(&mut view.end);
        view.total_ms = millis(self.began.elapsed());
        let mut known = self.all.0.lock();
        self.ids.iter().for_each(|id| drop(known.running.remove(id)));
        known.recent.truncate(RECENT_MAX - 1);
        known.recent.push_front(view);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.end("client_left");
    }
}

fn end_word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
