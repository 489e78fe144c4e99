//! What this process counts as it works: requests of its clients, bytes to and from members, bytes of
//! fetches. The loop reads it once a second; whoever counts waits for no one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use exo_api::{
    DURATION_BOUNDS_S, Embeddings, Endpoint, FIRST_TOKEN_BOUNDS_S, GenerateError, GenerateEvent,
    GenerateStream, RequestEnd, Summary, TOKEN_BOUNDS_S,
};
use exo_cluster::wire::limits::{COUNTED_ENDS_MAX, COUNTED_MODELS_MAX};
use exo_cluster::wire::{ModelTotals, Traffic};
use exo_machine::LinkId;
use exo_stdx::Mutex;
use exo_types::NodeId;
use futures_util::StreamExt;

use crate::packets::PacketWindows;

/// Members whose bytes are counted; above that those without a link are forgotten.
const MEMBERS_MAX: usize = 512;
/// The name under which models are counted together that are too many to be counted apart.
const OTHER_MODELS: &str = "other";

/// All of it.
#[derive(Debug, Default)]
pub struct Meters {
    requests: Mutex<BTreeMap<String, ModelTotals>>,
    links: Mutex<BTreeMap<NodeId, Arc<LinkMeter>>>,
    pub transfers: TransferMeter,
}

/// Bytes of frames to and from one member.
#[derive(Debug, Default)]
pub struct LinkMeter {
    sent: AtomicU64,
    received: AtomicU64,
    /// The addresses of this machine that the open data links to it run over.
    over: Mutex<BTreeMap<LinkId, Option<IpAddr>>>,
}

/// A data link that is open. Dropping it says that it is not any more.
pub struct OpenDataLink {
    meter: Arc<LinkMeter>,
    link: LinkId,
}

impl Drop for OpenDataLink {
    fn drop(&mut self) {
        self.meter.over.lock().remove(&self.link);
    }
}

impl LinkMeter {
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A data link stands, over this address of the machine, until what is given back is dropped.
    pub fn runs_over(self: &Arc<Self>, link: LinkId, local: Option<IpAddr>) -> OpenDataLink {
        self.over.lock().insert(link, local);
        OpenDataLink { meter: self.clone(), link }
    }
}

/// Fetches that run, and what all of them brought.
#[derive(Debug, Default)]
pub struct TransferMeter {
    running: AtomicU32,
    bytes: AtomicU64,
}

impl TransferMeter {
    /// A fetch runs until the guard is dropped.
    pub fn begin(meters: &Arc<Meters>) -> RunningTransfer {
        meters.transfers.running.fetch_add(1, Ordering::Relaxed);
        RunningTransfer(meters.clone())
    }

    pub fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many run, and how many bytes have come.
    pub fn now(&self) -> (u32, u64) {
        (self.running.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

pub struct RunningTransfer(Arc<Meters>);

impl Drop for RunningTransfer {
    fn drop(&mut self) {
        self.0.transfers.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meters {
    /// Where bytes to and from a member are counted.
    pub fn link(&self, node: NodeId) -> Arc<LinkMeter> {
        let mut links = self.links.lock();
        if links.len() >= MEMBERS_MAX {
            links.retain(|_, meter| Arc::strong_count(meter) > 1);
        }
        links.entry(node).or_default().clone()
    }

    /// Bytes to and from every member, with the packets that its connections have counted, where they do.
    pub fn traffic(&self, packets: &PacketWindows) -> BTreeMap<NodeId, Traffic> {
        let links = self.links.lock();
        let traffic = |node: &NodeId, meter: &LinkMeter| Traffic {
            sent_bytes: meter.sent.load(Ordering::Relaxed),
            received_bytes: meter.received.load(Ordering::Relaxed),
            packets: packets.counted(node),
            recent_packets: packets.recent(node),
        };
        links.iter().map(|(node, meter)| (*node, traffic(node, meter))).collect()
    }

    /// Whether the data link to each member runs over a radio of this machine, as far as that is known of the
    /// machine's addresses: the newest of those that are open, if two are for a moment.
    pub fn wireless(&self, by_address: &BTreeMap<IpAddr, bool>) -> BTreeMap<NodeId, bool> {
        let links = self.links.lock();
        let is_wireless = |meter: &LinkMeter| {
            let over = meter.over.lock();
            let (_, local) = over.last_key_value()?;
            by_address.get(local.as_ref()?).copied()
        };
        links.iter().filter_map(|(node, meter)| Some((*node, is_wireless(meter)?))).collect()
    }

    pub fn requests(&self) -> Vec<ModelTotals> {
        self.requests.lock().values().cloned().collect()
    }

    /// A request has come.
    pub fn request(self: &Arc<Self>, endpoint: Endpoint, choices: u16) -> RequestWatch {
        RequestWatch {
            meters: self.clone(),
            endpoint,
            choices,
            model: String::new(),
            arrived: Instant::now(),
            finished: None,
            read: 0,
            positions: BTreeMap::new(),
            is_counted: false,
        }
    }

    fn count(&self, model: &str, endpoint: Endpoint, end: RequestEnd, change: impl FnOnce(&mut ModelTotals)) {
        let mut requests = self.requests.lock();
        // One place is kept for all that are too many.
        let is_room = requests.len() + 1 < COUNTED_MODELS_MAX || requests.contains_key(model);
        let name = if is_room { model } else { OTHER_MODELS };
        let totals = requests.entry(name.to_owned()).or_default();
        name.clone_into(&mut totals.model);
        let (endpoint, end) = (endpoint.number(), end.number());
        match totals.ended.iter().position(|(e, r, _)| (*e, *r) == (endpoint, end)) {
            Some(at) => totals.ended[at].2 += 1,
            None if totals.ended.len() < COUNTED_ENDS_MAX => totals.ended.push((endpoint, end, 1)),
            None => {}
        }
        change(totals);
    }
}

/// Follows one request to its end, which is counted once. Dropped before that, its client has left.
pub struct RequestWatch {
    meters: Arc<Meters>,
    endpoint: Endpoint,
    choices: u16,
    /// Set once it is known: a name that a client made up is none to count by.
    pub model: String,
    arrived: Instant,
    /// Why the last of its choices ended.
    finished: Option<RequestEnd>,
    /// Tokens of its prompt, once it has begun.
    read: u32,
    /// How far each choice is: an answer that is cut off has cost its tokens, too.
    positions: BTreeMap<u16, u32>,
    is_counted: bool,
}

impl RequestWatch {
    /// The same stream, watched.
    pub fn over(mut self, stream: GenerateStream) -> GenerateStream {
        Box::pin(stream.map(move |item| {
            match &item {
                Ok(GenerateEvent::Finished { reason, .. }) => self.finished = Some((*reason).into()),
                Ok(GenerateEvent::Done(summary)) => self.done(summary),
                Ok(GenerateEvent::Started { prompt_tokens }) => self.read = *prompt_tokens,
                Ok(GenerateEvent::Delta(delta)) => {
                    self.positions.insert(delta.index, delta.position);
                }
                Ok(_) => {}
                Err(error) => self.failed(error),
            }
            item
        }))
    }

    /// All its vectors were made.
    pub fn embedded(&mut self, embeddings: &Embeddings) {
        let seconds = self.arrived.elapsed().as_secs_f64();
        self.end(RequestEnd::Stop, |totals| {
            totals.prompt_tokens += embeddings.prompt_tokens;
            totals.duration.observe(&DURATION_BOUNDS_S, seconds);
            totals.queue.observe(&DURATION_BOUNDS_S, embeddings.queued_ms / 1e3);
        });
    }

    pub fn failed(&mut self, error: &GenerateError) {
        self.cut_off(error.into());
    }

    fn cut_off(&mut self, end: RequestEnd) {
        let (read, generated) =
            (self.read, self.positions.values().map(|position| u64::from(*position)).sum::<u64>());
        self.end(end, |totals| {
            totals.prompt_tokens += u64::from(read);
            totals.completion_tokens += generated;
        });
    }

    fn done(&mut self, summary: &Summary) {
        let seconds = self.arrived.elapsed().as_secs_f64();
        let (usage, timings) = (summary.usage, summary.timings);
        let end = self.finished.unwrap_or(RequestEnd::Stop);
        let choices = f64::from(self.choices.max(1));
        self.end(end, |totals| {
            totals.prompt_tokens += u64::from(usage.prompt_tokens);
            totals.cached_tokens += u64::from(usage.cached_tokens);
            totals.completion_tokens += u64::from(usage.completion_tokens);
            totals.duration.observe(&DURATION_BOUNDS_S, seconds);
            totals.queue.observe(&DURATION_BOUNDS_S, timings.queued_ms / 1e3);
            totals.first_token.observe(&FIRST_TOKEN_BOUNDS_S, timings.ttft_ms / 1e3);
            totals.prefill.observe(&DURATION_BOUNDS_S, (timings.ttft_ms - timings.queued_ms) / 1e3);
            // The rate is that of all choices together.
            if let Some(rate) = timings.tokens_per_s.filter(|rate| *rate > 0.0) {
                totals.token.observe(&TOKEN_BOUNDS_S, choices / rate);
            }
        });
    }

    fn end(&mut self, end: RequestEnd, change: impl FnOnce(&mut ModelTotals)) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.meters.count(&self.model, self.endpoint, end, change);
        }
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        self.cut_off(RequestEnd::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use exo_api::{Delta, FinishReason, Timings, Usage};

    use super::*;

    fn summary() -> Summary {
        Summary {
            usage: Usage { prompt_tokens: 10, completion_tokens: 5, cached_tokens: 4, ..Usage::default() },
            timings: Timings {
                queued_ms: 100.0,
                ttft_ms: 400.0,
                prompt_tokens_per_s: None,
                tokens_per_s: Some(20.0),
            },
            times: None,
            model_id: String::new(),
            kernels: Vec::new(),
            stages: 1,
            unenforced: Vec::new(),
            resumed: Vec::new(),
            left_out_messages: 0,
            left_out_tools: Vec::new(),
        }
    }

    #[test]
    fn a_link_is_wireless_by_the_address_that_it_runs_over_and_unknown_without_one() {
        let [radio, cable, unknown] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let (meters, by_address) = (Meters::default(), BTreeMap::from([(radio, true), (cable, false)]));
        let opened =
            |number: u8, link, local| meters.link(NodeId([number; 32])).runs_over(LinkId(link), local);
        let mut open: Vec<_> = [Some(radio), Some(cable), Some(unknown), None]
            .into_iter()
            .zip(1..)
            .map(|(local, number)| opened(number, u64::from(number), local))
            .collect();
        let is_wireless = || meters.wireless(&by_address);
        let expected = BTreeMap::from([(NodeId([1; 32]), true), (NodeId([2; 32]), false)]);
        assert_eq!(is_wireless(), expected);
        let replaced = opened(2, 5, Some(radio));
        assert_eq!(is_wireless().get(&NodeId([2; 32])), Some(&true), "the newer one");
        drop(replaced);
        assert_eq!(is_wireless(), expected, "the one that lost the race says nothing any more");
        open.clear();
        assert_eq!(is_wireless(), BTreeMap::new());
    }

    fn watch(meters: &Arc<Meters>, model: &str) -> RequestWatch {
        let mut watch = meters.request(Endpoint::Chat, 1);
        model.clone_into(&mut watch.model);
        watch
    }

    async fn run(watch: RequestWatch, events: Vec<Result<GenerateEvent, GenerateError>>) {
        let mut stream = watch.over(Box::pin(futures_util::stream::iter(events)));
        while stream.next().await.is_some() {}
    }

    #[tokio::test]
    async fn each_request_is_counted_once_by_how_it_ended() {
        let meters = Arc::new(Meters::default());
        let finished = GenerateEvent::Finished {
            index: 0,
            reason: FinishReason::Length,
            stop: None,
            completion_tokens: 5,
            kernels: Vec::new(),
        };
        run(watch(&meters, "m"), vec![Ok(finished), Ok(GenerateEvent::Done(summary()))]).await;
        let deadline = GenerateError::Deadline { waited_ms: 1, reason: String::new() };
        run(watch(&meters, "m"), vec![Err(deadline)]).await;
        // Its client left, before and after it began.
        drop(watch(&meters, "m").over(Box::pin(futures_util::stream::pending())));
        let delta = Delta { position: 7, ..Delta::default() };
        let begun = [Ok(GenerateEvent::Started { prompt_tokens: 3 }), Ok(GenerateEvent::Delta(delta))];
        let mut cut = watch(&meters, "m").over(Box::pin(futures_util::stream::iter(begun)));
        for _ in 0..2 {
            cut.next().await;
        }
        drop(cut);
        let [totals] = &meters.requests()[..] else { panic!("{:?}", meters.requests()) };
        let count = |end: RequestEnd| {
            let found = totals.ended.iter().find(|(_, reason, _)| *reason == end.number());
            found.map_or(0, |(_, _, count)| *count)
        };
        let ends = [RequestEnd::Length, RequestEnd::Deadline, RequestEnd::Cancelled, RequestEnd::Stop];
        assert_eq!(ends.map(count), [1, 1, 2, 0]);
        assert_eq!(
            (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens),
            (10 + 3, 5 + 7, 4)
        );
        assert_eq!(
            (totals.token.sum_us, totals.queue.sum_us, totals.prefill.sum_us),
            (50_000, 100_000, 300_000)
        );
    }

    #[test]
    fn models_are_bounded_and_those_that_are_too_many_are_counted_together() {
        let meters = Arc::new(Meters::default());
        for number in 0..100 {
            drop(watch(&meters, &format!("m{number}")));
        }
        let requests = meters.requests();
        assert_eq!(requests.len(), COUNTED_MODELS_MAX);
        let ended = |totals: &ModelTotals| totals.ended.iter().map(|(_, _, count)| count).sum::<u64>();
        assert_eq!(requests.iter().map(ended).sum::<u64>(), 100);
        let other = requests.iter().find(|totals| totals.model == OTHER_MODELS).unwrap();
        assert_eq!(ended(other), 100 - COUNTED_MODELS_MAX as u64 + 1);
    }
}
