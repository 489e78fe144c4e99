//! Clients and people: what they ask of which node, listed before the run, and how it went.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_cluster::wire::{Backup, Drain};
use exo_cluster::{DriverConfig, DriverStart};
use exo_machine::{BackupStart, SequenceEvent, StartRequest, StreamId};
use exo_types::{NodeId, Principal, PromptQuery, RequestId, SampledToken, SequenceId, SequenceSpec, Time};

use crate::draw::{Draw, DrawFor, hash, mix};
use crate::model::{STOP_TOKEN, VOCAB, sampling};
use crate::shape::{MODEL, instance_request};

/// Tokens that many prompts begin with: two pages.
const COMMON_TOKENS: u32 = 32;
/// Clients of the end of a run have numbers from here on.
const PROBES_FROM: usize = 1 << 20;
/// Events that a server keeps for a client that does not read them; then it ends the request.
const UNREAD_MAX: u32 = 60;
/// Clients that go on elsewhere have the number that they had, and so much more.
const RESUMED_FROM: usize = 1 << 21;

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its place in the list of its seed.
    pub index: usize,
    /// When it asks.
    pub at: Time,
    /// Which node it asks; modulo the number of nodes.
    pub node: usize,
    /// On whose behalf.
    pub principal: u8,
    /// What it asks, one for each choice.
    pub choices: Vec<Choice>,
    /// It leaves after so long, or stops one choice.
    pub cancel: Option<(Duration, Option<u16>)>,
    /// How it reads what it is told.
    pub reads: ReadPace,
}

/// How a client reads what it is told. A request is over when its client has read the end, and not before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadPace {
    /// All of it as it comes.
    #[default]
    AtOnce,
    /// Nothing for a time.
    Stalls {
        /// From so long after its request on.
        after: Duration,
        /// For so long; then all that is there.
        lasting: Duration,
    },
    /// One event, and the next after a while.
    Slowly {
        /// Between two of them.
        pause: Duration,
    },
}

impl ReadPace {
    /// What it is called where faults are counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::AtOnce => "client reads",
            Self::Stalls { .. } => "client stalls",
            Self::Slowly { .. } => "client reads slowly",
        }
    }

    /// When what comes now is read, if it is not at once.
    fn reads_at(self, begun: Time, now: Time) -> Option<Time> {
        match self {
            Self::AtOnce => None,
            Self::Stalls { after, lasting } => {
                let (from, until) = (begun + after, begun + after + lasting);
                (from <= now && now < until).then_some(until)
            }
            Self::Slowly { pause } => Some(now + pause),
        }
    }
}

/// One answer of several to the same prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Fixes what is drawn.
    pub seed: u64,
    /// Tokens at most.
    pub max_tokens: u32,
    /// Tokens that another node had made.
    pub given: Vec<u32>,
}

/// Something a person asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// When it is asked.
    pub at: Time,
    /// Which node; modulo the number of nodes.
    pub node: usize,
    /// What is asked.
    pub what: AskWhat,
}

/// What a person asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskWhat {
    /// `exo place`, again until it is done.
    Place,
    /// `exo drain` of a node, or its undoing, until it is done.
    Drain {
        /// The node.
        node: usize,
        /// For how long.
        drain: Drain,
    },
    /// `exo unload` of an instance there is, if there is one.
    Unload,
    /// `exo admin add`, on an admin's node until it is done.
    Appoint {
        /// The node that becomes one.
        node: usize,
    },
    /// `exo remove` of a node, on an admin's node until it is done.
    RemoveNode {
        /// The node.
        node: usize,
    },
}

/// The clients of a seed: so many, between these times.
pub fn list(seed: u64, count: usize, from_ms: u64, until_ms: u64) -> Vec<Client> {
    (0..count).map(|index| client(seed, index, from_ms, until_ms)).collect()
}

/// What is asked at the end of a run, to see whether anybody answers.
pub fn probe(seed: u64, number: usize, at: Time) -> Client {
    let mut client = client(seed, PROBES_FROM + number, 0, 0);
    for choice in &mut client.choices {
        choice.max_tokens = choice.max_tokens.min(8);
    }
    Client { at, cancel: None, ..client }
}

/// Whether this client was sent to see whether anybody answers.
pub fn is_probe(client: &Client) -> bool {
    (PROBES_FROM..RESUMED_FROM).contains(&client.index)
}

fn client(seed: u64, index: usize, from_ms: u64, until_ms: u64) -> Client {
    let draw = |field: u64| mix(seed, DrawFor::Client, index as u64 * 16 + field);
    let length = draw(1).between(1, 40) as u32;
    let shares = draw(2).per_cent(40);
    let token = |position: u32| {
        let of = if shares && position < COMMON_TOKENS { seed } else { draw(3).0 };
        (hash(of ^ u64::from(position)) % u64::from(VOCAB - 1)) as u32
    };
    let prompt: Vec<u32> = (0..length).map(token).collect();
    let choices = (0..draw(4).between(1, 2))
        .map(|choice| Choice {
            prompt: prompt.clone(),
            seed: draw(5).0.wrapping_add(choice),
            max_tokens: draw(6).between(1, 60) as u32,
            given: Vec::new(),
        })
        .collect();
    Client {
        index,
        at: draw(7).time_ms(from_ms, until_ms),
        node: draw(8).below(60) as usize,
        principal: draw(9).below(2) as u8,
        choices,
        cancel: cancel(draw(10), draw(11)),
        reads: ReadPace::AtOnce,
    }
}

/// How a client of a seed reads in the runs of everything. Most read as it comes.
pub fn reading(seed: u64, index: usize) -> ReadPace {
    let draw = |field: u64| mix(seed, DrawFor::Client, index as u64 * 16 + field);
    match draw(12).below(6) {
        0 => ReadPace::Stalls { after: draw(13).millis(0, 1500), lasting: draw(14).millis(500, 20_000) },
        1 => ReadPace::Slowly { pause: draw(13).millis(5, 200) },
        _ => ReadPace::AtOnce,
    }
}

fn cancel(whether: Draw, when: Draw) -> Option<(Duration, Option<u16>)> {
    match whether.below(20) {
        0 => Some((when.millis(1, 3000), None)),
        1 => Some((when.millis(1, 3000), Some(0))),
        _ => None,
    }
}

impl Client {
    /// The request's id.
    pub fn request(&self) -> RequestId {
        RequestId((u128::from(hash(self.index as u64)) << 64) | (self.index as u128 + 1))
    }

    /// The request's id as it was when it was begun.
    pub fn name(&self) -> RequestId {
        Self { index: self.index % RESUMED_FROM, ..self.clone() }.request()
    }

    /// The hash of its client's secret.
    pub fn proof(&self) -> [u8; 32] {
        [(self.index % RESUMED_FROM) as u8; 32]
    }

    /// Whether it can go on elsewhere: once.
    pub fn may_resume(&self) -> bool {
        self.index < PROBES_FROM
    }

    /// Whether its answer began at another node.
    pub fn is_resumed(&self) -> bool {
        self.index >= RESUMED_FROM
    }

    /// The same client behind what is left of its answer.
    pub fn resumed(&self, left: &Backup) -> Self {
        let (index, reads) = (self.index + RESUMED_FROM, ReadPace::AtOnce);
        let mut client = Self { index, cancel: None, reads, ..self.clone() };
        for (choice, tokens) in client.choices.iter_mut().zip(&left.choices) {
            choice.given = tokens.iter().map(|token| token.token).collect();
        }
        client
    }

    /// Where its answers go.
    pub fn stream(&self) -> StreamId {
        StreamId(self.index as u64)
    }

    /// The request as node `driver` is asked it.
    pub fn start(&self, driver: NodeId, stages_min: u32, holders: Vec<NodeId>) -> StartRequest {
        let start = |(index, choice): (usize, &Choice)| DriverStart {
            model: MODEL,
            spec: SequenceSpec {
                sequence: SequenceId { request: self.request(), index: index as u16 },
                principal: Principal([self.principal; 16]),
                driver,
                sampling: sampling(choice.seed),
                prompt_tokens: choice.prompt.len() as u32,
                history: [&choice.prompt[..], &choice.given].concat(),
                query: PromptQuery::Nothing,
            },
            max_tokens: choice.max_tokens,
            vocab: VOCAB,
            stop_tokens: vec![STOP_TOKEN],
            ignore_eos: false,
            speculate: true,
        };
        let starts = self.choices.iter().enumerate().map(start).collect();
        let sampled = |token: &u32| SampledToken::bare(*token);
        let choices = self.choices.iter().map(|choice| choice.given.iter().map(sampled).collect());
        let backup = Backup { model: MODEL, record: vec![self.index as u8; 64], choices: choices.collect() };
        let backup = BackupStart { request: self.name(), proof: self.proof(), backup };
        let place = instance_request(stages_min, holders);
        StartRequest { config: DriverConfig::default(), starts, place, backup: Some(backup) }
    }
}

/// How a request went.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// On which node.
    pub node: usize,
    /// In which life of it: a client leaves with its node.
    pub life: u32,
    /// When it was started.
    pub started_at: Time,
    /// Choices without an end.
    pub open: u32,
    /// When and how it ended, as its node told.
    pub ended: Option<(Time, ClientEnd)>,
    /// Events that its client has not read.
    pub unread: u32,
}

impl RequestRecord {
    /// Whether its client waits, or reads still.
    pub fn is_open(&self) -> bool {
        self.ended.is_none() || self.unread > 0
    }
}

/// What comes of it that a client is behind with reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBacklog {
    /// It reads on then, because it reads like this.
    ReadsAt(Time, ReadPace),
    /// It reads on when that is read which it was told before.
    Waits,
    /// Its server keeps no more for it, and ends the request.
    CutOff(RequestId),
}

/// What comes of it that a client reads on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadProgress {
    /// It reads the next event then.
    At(Time),
    /// It has read all there is, and there will be more.
    UpToDate,
    /// It has read the end of the request.
    Over(RequestId),
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientEnd {
    /// Every choice has its whole text, but for those the client stopped.
    Answered,
    /// It was told why not.
    Failed(String),
    /// The client left.
    Left,
    /// Its node died.
    NodeDied,
}

/// All requests of a run.
#[derive(Debug, Default)]
pub struct Clients {
    runs: BTreeMap<usize, (Client, RequestRecord)>,
}

impl Clients {
    /// A request was started.
    pub fn started(&mut self, client: Client, node: usize, life: u32, now: Time) {
        let open = client.choices.len() as u32;
        let run = RequestRecord { node, life, started_at: now, open, ended: None, unread: 0 };
        self.runs.insert(client.index, (client, run));
    }

    /// A request was refused before it was started.
    pub fn refused(&mut self, index: usize, why: &str, now: Time) {
        if let Some((_, run)) = self.runs.get_mut(&index) {
            run.ended = Some((now, ClientEnd::Failed(why.to_owned())));
        }
    }

    /// A request by its stream.
    pub fn by_stream(&self, stream: StreamId) -> Option<&(Client, RequestRecord)> {
        self.runs.get(&(stream.0 as usize))
    }

    /// All of them, by number.
    pub fn all(&self) -> impl Iterator<Item = &(Client, RequestRecord)> {
        self.runs.values()
    }

    /// Those without an end.
    pub fn open(&self) -> impl Iterator<Item = &(Client, RequestRecord)> {
        self.all().filter(|(_, run)| run.ended.is_none())
    }

    /// The node told the client something. Gives the request if the client is through with it, and lets go of
    /// its stream.
    pub fn told(&mut self, stream: StreamId, event: &SequenceEvent, now: Time) -> Option<RequestId> {
        let (client, run) = self.runs.get_mut(&(stream.0 as usize))?;
        if run.ended.is_some() {
            return None;
        }
        let failure = match event {
            SequenceEvent::Ended { .. } => {
                run.open = run.open.saturating_sub(1);
                if run.open == 0 {
                    run.ended = Some((now, ClientEnd::Answered));
                    return Some(client.request());
                }
                return None;
            }
            SequenceEvent::Refused(error) => format!("refused: {error}"),
            SequenceEvent::Failed { kind, message, .. } => format!("{kind:?}: {message}"),
            _ => return None,
        };
        run.ended = Some((now, ClientEnd::Failed(failure)));
        Some(client.request())
    }

    /// The client leaves. Its request, if it was open.
    pub fn left(&mut self, index: usize, now: Time) -> Option<RequestId> {
        let (client, run) = self.runs.get_mut(&index)?;
        if !run.is_open() {
            return None;
        }
        run.unread = 0;
        run.ended.get_or_insert((now, ClientEnd::Left));
        Some(client.request())
    }

    /// The node has something for the client. `None` if it reads that at once, or is told nothing any more.
    pub fn behind(&mut self, stream: StreamId, now: Time) -> Option<ReadBacklog> {
        let (client, run) = self.runs.get_mut(&(stream.0 as usize))?;
        let reads_at = client.reads.reads_at(run.started_at, now);
        if run.ended.is_some() || (reads_at.is_none() && run.unread == 0) {
            return None;
        }
        run.unread += 1;
        if run.unread > UNREAD_MAX {
            run.unread = 0;
            run.ended = Some((now, ClientEnd::Left));
            return Some(ReadBacklog::CutOff(client.request()));
        }
        Some(match reads_at {
            Some(at) if run.unread == 1 => ReadBacklog::ReadsAt(at, client.reads),
            _ => ReadBacklog::Waits,
        })
    }

    /// The client reads on, if it is behind.
    pub fn read(&mut self, index: usize, now: Time) -> Option<ReadProgress> {
        let (client, run) = self.runs.get_mut(&index).filter(|(_, run)| run.unread > 0)?;
        let pause = match client.reads {
            ReadPace::Slowly { pause } if run.unread > 1 => Some(pause),
            _ => None,
        };
        run.unread = if pause.is_some() { run.unread - 1 } else { 0 };
        Some(match (pause, &run.ended) {
            (Some(pause), _) => ReadProgress::At(now + pause),
            (None, Some(_)) => ReadProgress::Over(client.request()),
            (None, None) => ReadProgress::UpToDate,
        })
    }

    /// A node's process ended, and with it the requests there, and what clients had not read of their
    /// answers. Those whose clients may go on elsewhere.
    pub fn node_died(&mut self, node: usize, now: Time) -> Vec<usize> {
        let mut left = Vec::new();
        for (client, run) in self.runs.values_mut() {
            if run.node == node && run.is_open() {
                (run.ended, run.unread) = (Some((now, ClientEnd::NodeDied)), 0);
                left.extend(Some(client.index).filter(|_| client.may_resume()));
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_list_begins_with_the_shorter_one() {
        let long = list(4711, 12, 2000, 30_000);
        assert_eq!(list(4711, 5, 2000, 30_000), long[..5]);
    }

    fn watched(clients: &mut Clients, index: usize, at_ms: u64) -> Option<ReadBacklog> {
        clients.behind(StreamId(index as u64), Time::from_millis(at_ms))
    }

    fn failed() -> SequenceEvent {
        let (kind, message) = (exo_types::FailureKind::Device, "why".to_owned());
        SequenceEvent::Failed { kind, message, busy: None }
    }

    fn started(reads: ReadPace) -> (Clients, Client) {
        let client = Client { reads, ..list(1, 1, 0, 1000).remove(0) };
        let mut clients = Clients::default();
        clients.started(client.clone(), 0, 1, Time::from_millis(1000));
        (clients, client)
    }

    #[test]
    fn who_stalls_reads_all_when_it_goes_on_and_ends_its_request_when_it_has_read_the_end() {
        let (after, lasting) = (Duration::from_millis(10), Duration::from_millis(100));
        let reads = ReadPace::Stalls { after, lasting };
        let (mut clients, client) = started(reads);
        assert_eq!(watched(&mut clients, 0, 1005), None);
        let goes_on = Time::from_millis(1110);
        assert_eq!(watched(&mut clients, 0, 1010), Some(ReadBacklog::ReadsAt(goes_on, reads)));
        assert_eq!(watched(&mut clients, 0, 1050), Some(ReadBacklog::Waits));
        assert_eq!(clients.read(0, goes_on), Some(ReadProgress::UpToDate));
        assert_eq!((watched(&mut clients, 0, 1111), clients.read(0, goes_on)), (None, None));

        let (mut clients, _) = started(reads);
        watched(&mut clients, 0, 1010);
        assert_eq!(clients.told(client.stream(), &failed(), Time::from_millis(1020)), Some(client.request()));
        assert!(clients.open().next().is_none(), "its node has told the end");
        assert_eq!(clients.read(0, goes_on), Some(ReadProgress::Over(client.request())));
    }

    #[test]
    fn who_reads_slowly_reads_one_after_the_other_and_who_is_too_far_behind_is_cut_off() {
        let pause = Duration::from_millis(50);
        let reads = ReadPace::Slowly { pause };
        let (mut clients, client) = started(reads);
        assert_eq!(
            watched(&mut clients, 0, 1000),
            Some(ReadBacklog::ReadsAt(Time::from_millis(1050), reads))
        );
        assert_eq!(watched(&mut clients, 0, 1001), Some(ReadBacklog::Waits));
        assert_eq!(clients.read(0, Time::from_millis(1050)), Some(ReadProgress::At(Time::from_millis(1100))));
        assert_eq!(clients.read(0, Time::from_millis(1100)), Some(ReadProgress::UpToDate));
        for _ in 0..UNREAD_MAX {
            assert_ne!(watched(&mut clients, 0, 1200), None);
        }
        assert_eq!(watched(&mut clients, 0, 1200), Some(ReadBacklog::CutOff(client.request())));
        assert!(clients.all().all(|(_, run)| !run.is_open()));
    }

    /// The end of an answer that nobody has read is lost with its node: its client asks elsewhere.
    #[test]
    fn an_answer_that_was_not_read_to_its_end_is_open_when_its_node_dies() {
        let at = Time::from_millis(1020);
        for (lasting_ms, left) in [(100, vec![0]), (1, vec![])] {
            let (after, lasting) = (Duration::from_millis(10), Duration::from_millis(lasting_ms));
            let (mut clients, client) = started(ReadPace::Stalls { after, lasting });
            watched(&mut clients, 0, 1020);
            clients.told(client.stream(), &failed(), at);
            assert_eq!(clients.node_died(0, at), left, "{lasting_ms} ms");
        }
    }

    #[test]
    fn prompts_and_choices_are_as_promised_and_some_prompts_share_their_beginning() {
        let clients = list(1, 200, 0, 1000);
        for client in &clients {
            assert!((1..=2).contains(&client.choices.len()));
            for choice in &client.choices {
                assert!((1..=40).contains(&choice.prompt.len()) && (1..=60).contains(&choice.max_tokens));
                assert!(choice.prompt.iter().all(|&token| token < VOCAB));
            }
        }
        let long = clients.iter().filter(|c| c.choices[0].prompt.len() > 32);
        let shared = long.filter(|c| c.choices[0].prompt[..32] == common(1)).count();
        assert!(shared > 5, "only {shared}");
    }

    fn common(seed: u64) -> Vec<u32> {
        (0..32).map(|position| (hash(seed ^ position) % u64::from(VOCAB - 1)) as u32).collect()
    }
}
