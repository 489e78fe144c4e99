//! The event stream: one task looks at the node for all readers, and each reader takes what it has not had.
//!
//! Nothing is kept for a reader but how far it is. Events are kept once, in a bounded buffer; who falls out
//! of it is told and cut off, and comes again to a new snapshot. Without readers nothing runs.
//!
//! Start reading at [`Live::stream`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use exo_api::live::{ChangeFilter, changes};
use exo_api::{AlertView, Change, ClusterView, DeltaEvent, EndEvent, EndReason, Facade, SnapshotEvent};
use exo_stdx::Mutex;
use exo_stdx::unix_ms;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::encode::{push_comment, push_data};

/// Between two events: a person sees no difference, and what changes often is told once.
const PAUSE: Duration = Duration::from_millis(200);
/// What all events together may take of a reader's line. After a large one the next waits accordingly.
const BYTES_PER_S: f64 = 40e3;
/// Between two events with what only wavers.
const GAUGES_EVERY: Duration = Duration::from_secs(2);
/// Between two looks at links that were only measured again.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Between two signs of life: a reader knows within three seconds that the node is gone, and need not ask.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// For how long events are made when nobody reads them: as long as a reader takes to come again.
const STAY: Duration = Duration::from_secs(30);
/// Events that are handed to a connection at once.
const BATCH_BYTES: usize = 64 << 10;

/// The events of one server.
pub struct Live {
    shared: Arc<LiveInner>,
    tasks: TaskTracker,
    stopping: CancellationToken,
    keep_alive_every: Duration,
}

struct LiveInner {
    state: Mutex<State>,
    /// The number of the last event.
    last: watch::Sender<u64>,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    /// In the ids of all events since the task was started; others are of no use. `None` while there is no
    /// task.
    run: Option<u64>,
    readers: usize,
    /// What a reader has who has applied everything.
    shown: Option<Arc<ClusterView>>,
    events: VecDeque<SentEvent>,
    bytes: usize,
    /// The number of the last event; that of a snapshot is the one of the last event in it.
    last: u64,
    /// The run that broke off last: its readers come again.
    broken: Option<u64>,
}

/// One event, as it is sent.
struct SentEvent {
    number: u64,
    whole: Bytes,
    for_viewers: Bytes,
}

impl SentEvent {
    fn bytes(&self) -> usize {
        self.whole.len() + self.for_viewers.len()
    }
}

/// What a reader may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All of the cluster.
    Owner,
    /// The state of the cluster.
    Viewer,
}

impl Live {
    /// No reader yet.
    pub fn new(
        tasks: TaskTracker,
        stopping: CancellationToken,
        bytes_max: usize,
        keep_alive_every: Duration,
    ) -> Self {
        let shared = LiveInner { state: Mutex::default(), last: watch::Sender::new(0), bytes_max };
        Self {
            shared: Arc::new(shared),
            tasks,
            stopping,
            keep_alive_every: keep_alive_every.min(ALIVE_EVERY),
        }
    }

    /// The events from `after` on, the id of an event that the reader has, if that is remembered; else from a
    /// snapshot on. Ends when `is_over` returns true; it is asked at least with every sign of life and
    /// whenever `ended` changes.
    pub fn stream(
        &self,
        facade: &Arc<dyn Facade>,
        scope: Scope,
        after: Option<&str>,
        ended: watch::Receiver<u64>,
        is_over: Box<dyn FnMut() -> bool + Send>,
    ) -> impl Stream<Item = Bytes> + Send + 'static + use<> {
        let run = self.start(facade);
        let reader = Reader {
            news: self.shared.last.subscribe(),
            position: after
                .and_then(|id| position(id, run))
                .filter(|had| self.shared.state.lock().remembers(*had)),
            run,
            scope,
            ended,
            is_over,
            stopping: self.stopping.clone(),
            keep_alive_every: self.keep_alive_every,
            is_done: false,
            slot: ReaderSlot(self.shared.clone()),
        };
        stream::unfold(reader, |mut reader| async move {
            let bytes = reader.next().await?;
            Some((bytes, reader))
        })
    }

    /// Counts a reader, and starts the task if there is none. The number of its run.
    fn start(&self, facade: &Arc<dyn Facade>) -> u64 {
        let mut state = self.shared.state.lock();
        state.readers += 1;
        if let Some(run) = state.run {
            return run;
        }
        // Only told apart from those before: a clock is random enough.
        let run = unix_ms();
        state.run = Some(run);
        drop(state);
        let (shared, facade, stopping) = (self.shared.clone(), facade.clone(), self.stopping.clone());
        self.tasks.spawn(make_events(shared.clone(), run, async move {
            tokio::select! {
                () = shared.watch(facade) => {}
                () = stopping.cancelled() => {}
            }
        }));
        run
    }
}

/// Has events made, and ends the run with that, by a panic too: else its readers, and all that come, would be
/// given signs of life of a view that stands still.
async fn make_events(shared: Arc<LiveInner>, run: u64, making: impl Future<Output = ()>) {
    let mut end = RunEnd { shared, run, is_broken: true };
    making.await;
    end.is_broken = false;
}

/// The end of a run, when this is dropped.
struct RunEnd {
    shared: Arc<LiveInner>,
    run: u64,
    is_broken: bool,
}

impl Drop for RunEnd {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if std::thread::panicking() {
            tracing::error!("the events of the cluster broke off; who reads them begins anew");
        }
        state.forget(self.run);
        state.broken = self.is_broken.then_some(self.run);
        drop(state);
        self.shared.last.send_modify(|_| {});
    }
}

impl LiveInner {
    /// Makes events of what the node shows, until nobody has read for a while or the node ends.
    async fn watch(&self, facade: Arc<dyn Facade>) {
        let mut views = facade.watch();
        let mut pace = Pace::new(Instant::now());
        let mut latest: Option<ClusterView> = None;
        let mut read_last = Instant::now();
        loop {
            let look = tokio::time::sleep_until(pace.next_look(Instant::now()));
            // Each view that is taken is a copy of all of it: none is taken that cannot be told yet.
            let due = pace.due;
            let next = async {
                tokio::time::sleep_until(due).await;
                views.next().await
            };
            tokio::select! {
                view = next => match view {
                    Some(view) => {
                        latest = Some(view);
                        pace.is_new = true;
                    }
                    None => return,
                },
                () = look => {}
            }
            let at = Instant::now();
            if !self.is_wanted(at, &mut read_last) {
                return;
            }
            if let (Some(wanted), Some(view)) = (pace.due(at), &latest) {
                let bytes = self.publish(view, wanted);
                pace.published(at, wanted, bytes);
            }
        }
    }

    /// Whether somebody reads or has read lately. If not, all is forgotten.
    fn is_wanted(&self, at: Instant, read_last: &mut Instant) -> bool {
        let mut state = self.state.lock();
        if state.readers > 0 {
            *read_last = at;
        }
        let is_wanted = at < *read_last + STAY;
        if !is_wanted {
            // Under the same lock: who comes after it starts another task.
            if let Some(run) = state.run {
                state.forget(run);
            }
        }
        is_wanted
    }

    /// Makes an event of what changed. Its bytes; 0 if nothing did.
    fn publish(&self, now: &ClusterView, wanted: ChangeFilter) -> usize {
        let (mut event, run, number) = {
            let mut state = self.state.lock();
            let Some(shown) = &state.shown else {
                state.shown = Some(Arc::new(now.clone()));
                drop(state);
                self.last.send_modify(|_| {});
                return 0;
            };
            let changes = changes(shown, now, wanted);
            (DeltaEvent { at_unix_ms: unix_ms(), changes }, state.run.unwrap_or(0), state.last + 1)
        };
        if event.changes.is_empty() {
            return 0;
        }
        let changes = event.changes.clone();
        let whole = encode("delta", run, number, &event);
        event.changes = event.changes.into_iter().filter_map(Change::for_viewers).collect();
        let for_viewers =
            if event.changes == changes { whole.clone() } else { encode("delta", run, number, &event) };
        let bytes = whole.len();
        self.state.lock().push(SentEvent { number, whole, for_viewers }, changes, self.bytes_max);
        self.last.send_replace(number);
        bytes
    }
}

impl State {
    /// Ends a run, unless another one has begun.
    fn forget(&mut self, run: u64) {
        if self.run == Some(run) {
            *self = Self { readers: self.readers, last: self.last, ..Self::default() };
        }
    }

    /// Whether a reader that has the event of this number can be told what came after it.
    fn remembers(&self, number: u64) -> bool {
        let oldest = self.events.front().map_or(self.last + 1, |event| event.number);
        (oldest..=self.last + 1).contains(&(number + 1))
    }

    /// Keeps an event, and forgets old ones.
    fn push(&mut self, event: SentEvent, changes: Vec<Change>, bytes_max: usize) {
        if let Some(shown) = &mut self.shown {
            // It is copied only if somebody is being told a snapshot right now.
            let shown = Arc::make_mut(shown);
            changes.into_iter().for_each(|change| change.apply(shown));
        }
        self.last = event.number;
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.bytes > bytes_max && self.events.len() > 1 {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
    }
}

/// When the next event may be made.
struct Pace {
    /// Not before.
    due: Instant,
    gauges_due: Instant,
    refresh_due: Instant,
    /// The node has shown something since the last event.
    is_new: bool,
    /// What wavers was left out of the last one.
    owes_gauges: bool,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self {
            due: now,
            gauges_due: now,
            refresh_due: now + REFRESH_EVERY,
            is_new: false,
            owes_gauges: false,
        }
    }

    fn next_look(&self, now: Instant) -> Instant {
        match (self.is_new, self.owes_gauges) {
            (true, _) => self.due,
            (false, true) => self.due.max(self.gauges_due),
            (false, false) => now + STAY,
        }
    }

    /// What an event may have in it that is made now, if one may be made.
    fn due(&self, at: Instant) -> Option<ChangeFilter> {
        let gauges = at >= self.gauges_due;
        let is_due = at >= self.due && (self.is_new || (self.owes_gauges && gauges));
        is_due.then_some(ChangeFilter { gauges, refresh: at >= self.refresh_due })
    }

    fn published(&mut self, at: Instant, wanted: ChangeFilter, bytes: usize) {
        self.due = at + PAUSE.max(Duration::from_secs_f64(bytes as f64 / BYTES_PER_S));
        (self.is_new, self.owes_gauges) = (false, !wanted.gauges);
        if wanted.gauges {
            self.gauges_due = at + GAUGES_EVERY;
        }
        if wanted.refresh {
            self.refresh_due = at + REFRESH_EVERY;
        }
    }
}

/// One reader of all.
struct Reader {
    news: watch::Receiver<u64>,
    /// The last event that it has, once it has any.
    position: Option<u64>,
    run: u64,
    scope: Scope,
    ended: watch::Receiver<u64>,
    is_over: Box<dyn FnMut() -> bool + Send>,
    stopping: CancellationToken,
    keep_alive_every: Duration,
    is_done: bool,
    slot: ReaderSlot,
}

/// Counts a reader as long as it lives.
struct ReaderSlot(Arc<LiveInner>);

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.readers = state.readers.saturating_sub(1);
    }
}

enum Next {
    Bytes(Bytes),
    End(EndReason),
    Nothing,
}

impl Reader {
    /// What comes next; `None` behind the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        let silent = Instant::now() + self.keep_alive_every;
        loop {
            // Both before the look, so that nothing that comes after it is missed.
            self.news.mark_unchanged();
            self.ended.mark_unchanged();
            if (self.is_over)() {
                return Some(self.end(EndReason::SignedOut));
            }
            match self.look() {
                Next::Bytes(bytes) => return Some(bytes),
                Next::End(reason) => return Some(self.end(reason)),
                Next::Nothing => {}
            }
            tokio::select! {
                _ = self.news.changed() => {}
                Ok(()) = self.ended.changed() => {}
                () = self.stopping.cancelled() => return Some(self.end(EndReason::Stopping)),
                () = tokio::time::sleep_until(silent) => {
                    if (self.is_over)() {
                        return Some(self.end(EndReason::SignedOut));
                    }
                    let mut comment = String::new();
                    push_comment(&mut comment, "keep-alive");
                    return Some(comment.into());
                }
            }
        }
    }

    /// What is there that this reader has not had.
    fn look(&mut self) -> Next {
        let shared = self.slot.0.clone();
        let state = shared.state.lock();
        if state.run != Some(self.run) {
            let is_broken = state.broken == Some(self.run);
            return Next::End(if is_broken { EndReason::Slow } else { EndReason::Stopping });
        }
        let Some(position) = self.position else {
            return self.snapshot(state.shown.clone(), state.last);
        };
        if !state.remembers(position) {
            return Next::End(EndReason::Slow);
        }
        let mut batch = BytesMut::new();
        let mut had = position;
        // Numbers have no gaps.
        let skipped = state.events.front().map_or(0, |first| (position + 1).saturating_sub(first.number));
        for event in state.events.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)) {
            let bytes = if self.scope == Scope::Owner { &event.whole } else { &event.for_viewers };
            if !batch.is_empty() && batch.len() + bytes.len() > BATCH_BYTES {
                break;
            }
            batch.extend_from_slice(bytes);
            had = event.number;
        }
        drop(state);
        self.position = Some(had);
        if batch.is_empty() { Next::Nothing } else { Next::Bytes(batch.freeze()) }
    }

    fn snapshot(&mut self, shown: Option<Arc<ClusterView>>, last: u64) -> Next {
        let Some(shown) = shown else { return Next::Nothing };
        self.position = Some(last);
        let mut cluster = ClusterView::clone(&shown);
        if self.scope == Scope::Viewer {
            cluster = for_viewers(cluster);
        }
        let event = SnapshotEvent { at_unix_ms: unix_ms(), cluster };
        Next::Bytes(encode("snapshot", self.run, last, &event))
    }

    fn end(&mut self, reason: EndReason) -> Bytes {
        self.is_done = true;
        let mut out = String::from("event: end\n");
        push_data(&mut out, &EndEvent { reason });
        out.into()
    }
}

/// What is shown to somebody who may only look at the cluster.
pub fn for_viewers(cluster: ClusterView) -> ClusterView {
    let alerts = cluster.alerts.into_iter().filter(AlertView::is_for_viewers).collect();
    let (join_requests, other_clusters, warnings) = (Vec::new(), Vec::new(), Vec::new());
    ClusterView { join_requests, other_clusters, warnings, alerts, ..cluster }
}

/// One event with its id.
fn encode(name: &str, run: u64, number: u64, event: &impl serde::Serialize) -> Bytes {
    let mut out = format!("id: {run:x}-{number}\nevent: {name}\n");
    push_data(&mut out, event);
    out.into()
}

/// The number in an id of this run.
fn position(id: &str, run: u64) -> Option<u64> {
    let (of, number) = id.trim().split_once('-')?;
    (u64::from_str_radix(of, 16) == Ok(run)).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 7;

    fn shared(bytes_max: usize) -> Arc<LiveInner> {
        let state = State { run: Some(RUN), readers: 1, ..State::default() };
        Arc::new(LiveInner { state: Mutex::new(state), last: watch::Sender::new(0), bytes_max })
    }

    fn view(warning: &str) -> ClusterView {
        let warning = exo_api::WarningView { at_unix_s: 1, text: warning.to_owned() };
        ClusterView { warnings: vec![warning], ..ClusterView::default() }
    }

    fn reader(shared: &Arc<LiveInner>) -> Reader {
        Reader {
            news: shared.last.subscribe(),
            position: None,
            run: RUN,
            scope: Scope::Owner,
            ended: watch::Sender::new(0).subscribe(),
            is_over: Box::new(|| false),
            stopping: CancellationToken::new(),
            keep_alive_every: Duration::from_millis(10),
            is_done: false,
            slot: ReaderSlot(shared.clone()),
        }
    }

    fn text(bytes: Option<Bytes>) -> String {
        String::from_utf8(bytes.expect("something").to_vec()).expect("text")
    }

    #[tokio::test]
    async fn a_slow_reader_is_cut_off_and_costs_nothing_until_then() {
        let shared = shared(1000);
        shared.publish(&view("0"), ChangeFilter::default());
        let mut slow = reader(&shared);
        assert!(text(slow.next().await).contains("event: snapshot"));
        for number in 1..50 {
            shared.publish(&view(&number.to_string()), ChangeFilter::default());
            assert!(shared.state.lock().bytes <= 1000);
        }
        assert_eq!(text(slow.next().await), "event: end\ndata: {\"reason\":\"slow\"}\n\n");
        assert!(slow.next().await.is_none());
    }

    #[tokio::test]
    async fn readers_of_a_run_that_panicked_are_told_to_come_again_and_begin_another() {
        let shared = shared(1000);
        shared.publish(&view("0"), ChangeFilter::default());
        let mut reader = reader(&shared);
        text(reader.next().await);
        let broken = make_events(shared.clone(), RUN, async { panic!("a bug in what a view becomes") });
        assert!(tokio::spawn(broken).await.is_err());
        assert_eq!(text(reader.next().await), "event: end\ndata: {\"reason\":\"slow\"}\n\n");
        assert_eq!(shared.state.lock().run, None, "who comes next starts another task");
    }

    #[tokio::test]
    async fn a_reader_in_time_gets_each_event_once_and_then_signs_of_life() {
        let shared = shared(1 << 20);
        shared.publish(&view("0"), ChangeFilter::default());
        let mut reader = reader(&shared);
        text(reader.next().await);
        shared.publish(&view("1"), ChangeFilter::default());
        shared.publish(&view("1"), ChangeFilter::default());
        shared.publish(&view("2"), ChangeFilter::default());
        let both = text(reader.next().await);
        assert_eq!(both.matches("event: delta").count(), 2, "{both}");
        assert!(both.starts_with("id: 7-1\n") && both.contains("id: 7-2\n"), "{both}");
        assert_eq!(text(reader.next().await), ": keep-alive\n");
    }

    #[test]
    fn what_wavers_waits_for_its_time_and_a_large_event_for_the_line() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        assert_eq!(pace.due(began), None, "nothing was shown yet");
        pace.is_new = true;
        let wanted = pace.due(began).expect("due");
        assert!(wanted.gauges && !wanted.refresh);
        pace.published(began, wanted, 100_000);
        pace.is_new = true;
        assert_eq!(pace.due(began + Duration::from_secs(2)), None, "40 kB/s");
        let later = began + Duration::from_millis(2600);
        assert!(pace.due(later).is_some_and(|wanted| wanted.gauges));
        pace.published(later, ChangeFilter { gauges: true, refresh: false }, 10);
        pace.is_new = true;
        let soon = pace.due(later + PAUSE).expect("due");
        assert!(!soon.gauges);
        pace.published(later + PAUSE, soon, 10);
        assert_eq!(pace.next_look(later + PAUSE), later + GAUGES_EVERY);
        assert!(pace.due(later + GAUGES_EVERY).is_some_and(|wanted| wanted.gauges));
    }

    /// 100 nodes of four devices, each with a link to every other one, and a model over all of them: at each
    /// tick every sensor, link and rate is another one, by more than is passed over.
    fn busy(tick: u64) -> ClusterView {
        let wander = |n: u64| ((n * 7 + tick * 13) % 40) as f64;
        let device = |n: u64, d: u64| {
            serde_json::json!({
                "id": format!("cuda:{d}"), "kind": "discrete_gpu", "name": "A described card", "backend": "cuda/sm_89",
                "memory_total_bytes": 24_u64 << 30, "memory_free_bytes": ((tick + n + d) % 24) << 30,
                "compute_units": 128, "read_bytes_per_s": 1e12, "flops_per_s": 1e14, "support": "full", "support_reason": "",
                "sensors": {"temperature_c": 40.0 + wander(n + d), "power_w": 100.0 + 5.0 * wander(n + d),
                            "clock_mhz": 1000.0 + 50.0 * wander(n + d), "utilisation": wander(n + d) / 40.0}
            })
        };
        let node = |n: u64| {
            serde_json::json!({
                "id": format!("{n:064x}"), "name": format!("rack-{n}"), "is_self": n == 0, "role": "worker", "status": "alive",
                "version": "1", "platform": "linux x86_64", "addresses": ["10.0.0.1:52416"], "mains_power": true,
                "process_bytes": ((tick + n) % 9) << 30, "devices": (0..4).map(|d| device(n, d)).collect::<Vec<_>>()
            })
        };
        let link = |from: u64, to: u64| {
            serde_json::json!({
                "from": format!("{from:064x}"), "to": format!("{to:064x}"), "rtt_ms": 0.2 + wander(from + to) / 40.0,
                "rtt_samples": tick, "rtt_age_s": 0.5, "bytes_per_s": 1e9, "bandwidth_samples": 3,
                "bandwidth_age_s": tick, "transport": "quic"
            })
        };
        let stage = |n: u64| {
            serde_json::json!({
                "node": format!("{n:064x}"), "node_name": format!("rack-{n}"), "device": "cuda:0", "layers": {"start": n, "end": n + 1},
                "embedding": n == 0, "head": n == 99, "weight_bytes": 1, "weight_bytes_held": 1, "kv_bytes": 1,
                "time_share": wander(n) / 4000.0
            })
        };
        let instance = serde_json::json!({
            "id": "i1", "model": "m", "model_id": "m", "state": {"kind": "ready"}, "placement": "p1", "context_tokens": 1,
            "slots": 64, "kv": "f16", "stages": (0..100).map(stage).collect::<Vec<_>>(),
            "measured_tokens_per_s": 10.0 + wander(0)
        });
        let links =
            (0..100).flat_map(|from| (0..100).filter(move |to| *to != from).map(move |to| link(from, to)));
        serde_json::from_value(serde_json::json!({
            "cluster": null, "self_node": "x", "epoch": null, "nodes": (0..100).map(node).collect::<Vec<_>>(),
            "links": links.collect::<Vec<_>>(), "instances": [instance],
            "join_window": {"open": false, "open_until_unix_s": null}, "join_requests": [],
            "journal": {"entries": 1, "head": ""}, "warnings": []
        }))
        .expect("a view")
    }

    /// What a reader has that applies all it is sent, and the bytes of that behind the snapshot.
    struct Applied {
        view: ClusterView,
        bytes: u64,
    }

    impl Applied {
        fn snapshot(reader: &mut Reader) -> Self {
            let Next::Bytes(first) = reader.look() else { panic!("no snapshot") };
            let first = text(Some(first));
            let data = first.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
            let event: SnapshotEvent = serde_json::from_str(data).expect("a snapshot");
            Self { view: event.cluster, bytes: 0 }
        }

        fn take(&mut self, reader: &mut Reader) {
            while let Next::Bytes(bytes) = reader.look() {
                self.bytes += bytes.len() as u64;
                let events = text(Some(bytes));
                for data in events.lines().filter_map(|line| line.strip_prefix("data: ")) {
                    let event: DeltaEvent = serde_json::from_str(data).expect("a delta");
                    event.changes.into_iter().for_each(|change| change.apply(&mut self.view));
                }
            }
        }
    }

    #[test]
    fn a_hundred_busy_nodes_take_a_reader_less_than_fifty_kilobytes_a_second_and_it_ends_where_they_are() {
        const BUSY_S: u64 = 30;
        const QUIET_S: u64 = 20;
        let (shared, began) = (shared(1 << 20), Instant::now());
        shared.publish(&busy(0), ChangeFilter::default());
        let mut reader = reader(&shared);
        let mut applied = Applied::snapshot(&mut reader);
        let mut pace = Pace::new(began);
        let mut show = |tick: u64, is_new: bool, now: &dyn Fn() -> ClusterView| {
            let at = began + Duration::from_millis(100 * tick);
            pace.is_new |= is_new;
            if let Some(wanted) = pace.due(at) {
                let bytes = shared.publish(&now(), wanted);
                pace.published(at, wanted, bytes);
            }
        };
        for tick in 1..=BUSY_S * 10 {
            show(tick, true, &|| busy(tick));
            applied.take(&mut reader);
        }
        let bytes = applied.bytes;
        eprintln!("{bytes} bytes in {BUSY_S} s");
        assert!(bytes < 50_000 * BUSY_S, "{bytes} bytes in {BUSY_S} s");
        assert!(bytes > 10_000 * BUSY_S, "busy nodes are told of: {bytes} bytes in {BUSY_S} s");
        let mut last = busy(BUSY_S * 10 + 1);
        last.nodes.iter_mut().for_each(|node| "2".clone_into(&mut node.version));
        for tick in 1..=QUIET_S * 10 {
            show(BUSY_S * 10 + tick, tick == 1, &|| last.clone());
            applied.take(&mut reader);
        }
        assert_eq!(applied.view.nodes.iter().filter(|node| node.version == "2").count(), 100);
        let untold = changes(&applied.view, &last, ChangeFilter { gauges: true, refresh: false });
        assert!(untold.is_empty(), "{untold:?}");
        assert!(applied.bytes < 50_000 * (BUSY_S + QUIET_S), "{} bytes", applied.bytes);
    }
}
