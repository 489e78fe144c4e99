//! Finding clusters, being let in, letting in. Discovery gives addresses; trust comes from the join exchange only.
//!
//! A node that is alone in its own cluster is *fresh*. Fresh nodes join what they find: a cluster with members
//! first, else the fresh node with the lowest key, so that several fresh nodes starting together end up in one
//! cluster. A node with members never joins another cluster by itself.

mod admitting;
mod asking;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exo_discovery::Found;
use exo_types::{NodeId, Time};
use serde::{Deserialize, Serialize};

pub use admitting::Asked;

use super::{Core, CoreEvent};

/// A fresh node looks around this long before it decides whom to join.
const LOOK_AROUND: Duration = Duration::from_millis(400);
/// Between two attempts to join the same node.
const RETRY: Duration = Duration::from_secs(2);
/// After a refusal.
const RETRY_REFUSED: Duration = Duration::from_secs(15);
/// A grant that leads to no log within this time is dropped.
const GRANT_MAX: Duration = Duration::from_secs(15);
/// Nodes remembered that are no members.
const STRANGERS_MAX: usize = 64;
/// Join requests shown at once.
const REQUESTS_MAX: usize = 16;
/// Between two attempts to find out who is at an address of `--peer`.
const PROBE_EVERY: Duration = Duration::from_secs(2);
const EXCHANGE_MAX: Duration = Duration::from_secs(5);

const KIND_ASK: u8 = 1;
const KIND_ANSWER: u8 = 2;

/// Who else is out there.
pub(super) struct Strangers {
    found: BTreeMap<NodeId, Stranger>,
    manual: Vec<Manual>,
    attempt: Option<NodeId>,
    grant: Option<Grant>,
    /// Strangers that asked while the window was shut.
    pub(super) requests: BTreeMap<NodeId, Request>,
    /// Words shown at admissions, for the member list.
    pub(super) words: BTreeMap<NodeId, String>,
}

struct Stranger {
    addresses: Vec<SocketAddr>,
    name: String,
    fresh: bool,
    /// Named with `--peer`: joined whatever its key.
    named: bool,
    /// Did not answer when it was asked: others come first.
    failed: bool,
    seen: Time,
    next: Time,
}

struct Manual {
    text: String,
    node: Option<NodeId>,
    next: Time,
}

/// Someone asked to join.
pub(super) struct Request {
    pub(super) name: String,
    /// Where it listens.
    pub(super) listen: SocketAddr,
    /// When it last asked.
    asked: Time,
    /// Let in by a person; the next time it asks it is told.
    admitted: bool,
}

/// What a member told us when it let us in, until its log is here.
struct Grant {
    by: NodeId,
    by_name: String,
    welcome: Welcome,
    since: Time,
}

impl Strangers {
    /// Whether none was found, is sought, or is being let in.
    pub(super) fn nobody(&self) -> bool {
        self.found.is_empty() && self.manual.is_empty() && self.attempt.is_none() && self.grant.is_none()
    }

    pub(super) fn new(peers: &[String]) -> Self {
        let manual = peers.iter().map(|text| Manual { text: text.clone(), node: None, next: Time::ZERO });
        Self {
            found: BTreeMap::new(),
            manual: manual.collect(),
            attempt: None,
            grant: None,
            requests: BTreeMap::new(),
            words: BTreeMap::new(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct JoinAsk {
    name: String,
    group: String,
    port: u16,
    fresh: bool,
    /// Only asks who is there.
    probe: bool,
}

#[derive(Clone, Serialize, Deserialize)]
enum JoinAnswer {
    Welcome(Box<Welcome>),
    /// Ask again soon: the answering node is about to join somebody itself, or waits for its coordinator.
    Later,
    /// Ask this node instead.
    Elsewhere {
        node: NodeId,
        addresses: Vec<SocketAddr>,
    },
    Refused {
        reason: String,
    },
    /// To a probe.
    Here {
        name: String,
        fresh: bool,
    },
}

#[derive(Clone, Serialize, Deserialize)]
struct Welcome {
    name: String,
    cluster: [u8; 16],
    certificate: Vec<u8>,
    coordinator: NodeId,
    coordinator_addresses: Vec<SocketAddr>,
}

/// How our attempt to join ended.
pub struct JoinOutcome {
    /// Only asked who is there.
    probe: bool,
    with: NodeId,
    address: SocketAddr,
    answer: Result<JoinAnswer, String>,
}

impl Core {
    pub(super) fn found(&mut self, found: Found) {
        let Some(node) = found.node.filter(|n| *n != self.me) else { return };
        if found.txt.get("group").is_some_and(|g| *g != self.p.config.group) {
            return;
        }
        if found.lost {
            self.strangers.found.remove(&node);
            return;
        }
        if self.p.members.contains(node) {
            let peer = self.peer(node);
            peer.remember(found.addrs);
            peer.hurry();
            return;
        }
        let fresh = found.txt.get("fresh").is_some_and(|f| f == "1");
        let name = found.txt.get("name").cloned().unwrap_or_else(|| node.to_string());
        self.stranger(node, found.addrs, name, fresh);
    }

    fn stranger(&mut self, node: NodeId, addresses: Vec<SocketAddr>, name: String, fresh: bool) {
        let now = self.now();
        if self.strangers.found.len() >= STRANGERS_MAX && !self.strangers.found.contains_key(&node) {
            return;
        }
        let entry = self.strangers.found.entry(node).or_insert_with(|| Stranger {
            addresses: Vec::new(),
            name: name.clone(),
            fresh,
            named: false,
            failed: false,
            seen: now,
            next: Time::ZERO,
        });
        if entry.addresses != addresses {
            entry.failed = false;
        }
        (entry.addresses, entry.name) = (addresses, name);
        if entry.fresh && !fresh {
            entry.next = Time::ZERO; // it has a cluster now: worth asking at once
        }
        entry.fresh = fresh;
    }

    /// Says who and how we are to whoever looks.
    pub(super) fn announce(&mut self) {
        let fresh = if self.is_fresh() { "1" } else { "0" };
        let mut txt = crate::start::announcement(&self.p.config);
        txt.insert("fresh".to_owned(), fresh.to_owned());
        if let Some(discovery) = &mut self.p.discovery
            && let Err(error) = discovery.update_txt(txt)
        {
            tracing::warn!(%error, "discovery says something old of this node");
        }
    }

    pub(super) fn tick_joining(&mut self) {
        self.probe_manual();
        let now = self.now();
        if self.strangers.grant.as_ref().is_some_and(|g| now.since(g.since) > GRANT_MAX) {
            self.strangers.grant = None;
            self.members_changed();
        }
        if let Some(node) = self.whom_to_join(now) {
            self.try_to_join(node, now);
        }
    }

    fn probe_manual(&mut self) {
        let now = self.now();
        let members = self.p.members.clone();
        let due = |m: &&mut Manual| now >= m.next && m.node.is_none_or(|n| !members.contains(n));
        for manual in self.strangers.manual.iter_mut().filter(due) {
            manual.next = now + PROBE_EVERY;
            let (text, endpoint, core) =
                (manual.text.clone(), self.p.endpoint.clone(), self.p.sender.clone());
            let group = self.p.config.group.clone();
            tokio::spawn(async move {
                let lookup = tokio::time::timeout(EXCHANGE_MAX, tokio::net::lookup_host(text.as_str())).await;
                let Ok(Ok(mut addresses)) = lookup else { return };
                let Some(address) = addresses.next() else { return };
                let ask = JoinAsk { name: String::new(), group, port: 0, fresh: false, probe: true };
                let node = exchange(&endpoint, address, &ask).await;
                let (node, answer) = match node {
                    Ok((node, answer)) => (Some(node), Some(answer)),
                    Err(_) => (None, None),
                };
                if let (Some(node), Some(answer)) = (node, answer) {
                    core.post(CoreEvent::Joined(JoinOutcome {
                        probe: true,
                        with: node,
                        address,
                        answer: Ok(answer),
                    }));
                }
                core.post(CoreEvent::Probed { address, node });
            });
        }
    }

    /// An address of `--peer` belongs to this node, or nobody answered there.
    pub(super) fn probed(&mut self, address: SocketAddr, node: Option<NodeId>) {
        let Some(node) = node.filter(|n| *n != self.me) else { return };
        if self.p.members.contains(node) {
            self.peer(node).prefer(address);
        }
        for manual in &mut self.strangers.manual {
            let same = manual.text.parse::<SocketAddr>().is_ok_and(|a| a == address);
            if same {
                manual.node = Some(node);
            }
        }
    }
}

/// Seconds since 1970 by this machine's clock.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

async fn exchange(
    endpoint: &exo_transport::Endpoint,
    address: SocketAddr,
    ask: &JoinAsk,
) -> Result<(NodeId, JoinAnswer), String> {
    let mut channel =
        endpoint.dial_join(address, EXCHANGE_MAX).await.map_err(|e| crate::engine_host::chain(&e))?;
    let bytes = postcard::to_allocvec(ask).map_err(|e| e.to_string())?;
    channel.send(KIND_ASK, &bytes).await.map_err(|e| e.to_string())?;
    let (kind, bytes) = channel.recv().await.map_err(|e| e.to_string())?;
    if kind != KIND_ANSWER {
        return Err(format!("an answer of kind {kind}"));
    }
    let answer = postcard::from_bytes(&bytes).map_err(|e| format!("an answer that is none: {e}"))?;
    let peer = channel.peer;
    let _ = channel.finish().await;
    Ok((peer, answer))
}
