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
        let mut client = Self { index: self.index + RESUMED_FROM, cancel: None, ..self.clone() };
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
    /// When and how it ended.
    pub ended: Option<(Time, ClientEnd)>,
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
        let run = RequestRecord { node, life, started_at: now, open, ended: None };
        self.runs.insert(client.index, (client, run));
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
        if run.ended.is_some() {
            return None;
        }
        run.ended = Some((now, ClientEnd::Left));
        Some(client.request())
    }

    /// A node's process ended, and with it the requests there. Those whose clients may go on elsewhere.
    pub fn node_died(&mut self, node: usize, now: Time) -> Vec<usize> {
        let mut left = Vec::new();
        for (client, run) in self.runs.values_mut() {
            if run.node == node && run.ended.is_none() {
                run.ended = Some((now, ClientEnd::NodeDied));
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
