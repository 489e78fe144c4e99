//! Letting others in: the join window, certificates, people's decisions.

use std::net::SocketAddr;
use std::time::Duration;

use exo_cluster::wire::{ControlAsk, ControlReply};
use exo_cluster::{Member, Role};
use exo_identity::{ClusterId, Statement, check_words};
use exo_transport::JoinChannel;
use exo_types::NodeId;

use super::{
    EXCHANGE_MAX, JoinAnswer, JoinAsk, KIND_ANSWER, KIND_ASK, REQUESTS_MAX, Request, Welcome, unix_s,
};
use crate::core::{Command, Core, CoreEvent};
use crate::notice::Notice;

/// A question from a stranger, with where its answer goes.
pub struct Asked {
    node: NodeId,
    remote: SocketAddr,
    ask: JoinAsk,
    answer: tokio::sync::oneshot::Sender<JoinAnswer>,
}

impl Core {
    /// A stranger asks. The exchange itself runs in a task; the decision is made here.
    pub(in crate::core) fn join_incoming(&mut self, channel: JoinChannel) {
        let core = self.p.sender.clone();
        tokio::spawn(async move {
            let mut channel = channel;
            let Ok((KIND_ASK, bytes)) = channel.recv().await else { return };
            let Ok(ask) = postcard::from_bytes::<JoinAsk>(&bytes) else { return };
            let (tx, rx) = tokio::sync::oneshot::channel();
            let command =
                Command::JoinAsked(Asked { node: channel.peer, remote: channel.remote, ask, answer: tx });
            core.post(CoreEvent::Command(command));
            let Ok(Ok(answer)) = tokio::time::timeout(EXCHANGE_MAX, rx).await else { return };
            let bytes = postcard::to_allocvec(&answer).unwrap_or_default();
            if channel.send(KIND_ANSWER, &bytes).await.is_ok() {
                let _ = channel.finish().await;
            }
        });
    }

    pub(in crate::core) fn join_asked(&mut self, asked: Asked) {
        match self.decide(&asked) {
            Ok(answer) => drop(asked.answer.send(answer)),
            Err(member) => self.admit(member, asked),
        }
    }

    /// The answer, or the new member to admit.
    fn decide(&mut self, asked: &Asked) -> Result<JoinAnswer, Box<Member>> {
        let Asked { node, ask, remote, .. } = asked;
        let refused = |reason: &str| Ok(JoinAnswer::Refused { reason: reason.to_owned() });
        if ask.group != self.p.config.group {
            return refused("it belongs to another group");
        }
        if ask.probe {
            return Ok(JoinAnswer::Here { name: self.p.config.name.clone(), fresh: self.is_fresh() });
        }
        let state = self.p.coordinator.state();
        if state.is_removed(*node) {
            return refused("this node was removed from the cluster; start it with a new data folder");
        }
        if !ask.fresh {
            return refused("a node with a cluster of its own cannot join another");
        }
        // Two fresh nodes that ask each other: the lower key lets the other one in.
        let busy = self.strangers.attempt.is_some_and(|with| with != *node || self.me > *node);
        if self.strangers.grant.is_some() || busy {
            return Ok(JoinAnswer::Later);
        }
        let now = self.now();
        let lower =
            self.strangers.found.iter().find(|(n, s)| s.fresh && !s.failed && **n < self.me && **n != *node);
        if let Some((lower, s)) =
            lower.filter(|(_, s)| self.is_fresh() && now.since(s.seen) < Duration::from_secs(3))
        {
            return Ok(JoinAnswer::Elsewhere { node: *lower, addresses: s.addresses.clone() });
        }
        if let Some(member) = state.members().get(node) {
            return Err(Box::new(member.clone())); // it lost its log: admit it again
        }
        let listen = SocketAddr::new(remote.ip(), ask.port);
        let invited = self.strangers.requests.get(node).is_some_and(|r| r.admitted);
        if !invited && !self.window_open() {
            return self.shut(*node, ask, listen);
        }
        match self.certify(*node, &ask.name) {
            Ok(member) => Err(Box::new(member)),
            Err(reason) => refused(&reason),
        }
    }

    fn shut(&mut self, node: NodeId, ask: &JoinAsk, listen: SocketAddr) -> Result<JoinAnswer, Box<Member>> {
        let known = self.strangers.requests.contains_key(&node);
        let name: String = ask.name.chars().filter(|c| !c.is_control()).take(64).collect();
        let now = self.now();
        if let Some(request) = self.strangers.requests.get_mut(&node) {
            request.asked = now;
        }
        if !known && self.strangers.requests.len() >= REQUESTS_MAX {
            // Throw-away keys must not keep the one a person waits for out of sight.
            let others = self.strangers.requests.iter().filter(|(_, r)| !r.admitted);
            let oldest = others.min_by_key(|(_, r)| r.asked).map(|(n, _)| *n);
            oldest.map(|n| self.strangers.requests.remove(&n));
        }
        if !known {
            let request = Request { name: name.clone(), listen, asked: now, admitted: false };
            self.strangers.requests.insert(node, request);
            self.view_stale = true;
            self.notice(Notice::Asks { name: name.clone(), words: check_words(self.me, node).join(" ") });
        }
        let reason = format!("its join window is shut; let this node in there with `exo admit {name}`");
        Ok(JoinAnswer::Refused { reason })
    }

    /// Whether strangers on the local network join on sight.
    pub(in crate::core) fn window_open(&self) -> bool {
        unix_s() < self.p.coordinator.state().join_window_until_unix_s()
    }

    fn certify(&self, node: NodeId, name: &str) -> Result<Member, String> {
        let state = self.p.coordinator.state();
        if !state.admins().any(|n| n == self.me) {
            return Err("it is not an admin of its cluster; ask the founder's node".to_owned());
        }
        let Some((cluster, _)) = state.cluster() else { return Err("it has no cluster yet".to_owned()) };
        let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        let name = if name.is_empty() { node.to_string() } else { name };
        let (cluster, role) = (ClusterId(cluster.0), exo_identity::Role::Worker);
        let statement = Statement::new(self.me, cluster, node, &name, role, unix_s());
        let certificate = self.p.key.certify(statement).encode();
        Ok(Member { node, name, role: Role::Worker, certificate })
    }

    /// Has the coordinator record the member, then welcomes it.
    fn admit(&mut self, member: Box<Member>, asked: Asked) {
        let Some((_, coordinator)) = self.leader else {
            return drop(asked.answer.send(JoinAnswer::Later));
        };
        let state = self.p.coordinator.state();
        let Some((cluster, _)) = state.cluster() else { return drop(asked.answer.send(JoinAnswer::Later)) };
        let addresses = if coordinator == self.me {
            Vec::new() // it has just reached us
        } else {
            self.peers.get(&coordinator).map(|p| p.addresses.clone()).unwrap_or_default()
        };
        let welcome = Welcome {
            name: self.p.config.name.clone(),
            cluster: cluster.0,
            certificate: member.certificate.clone(),
            coordinator,
            coordinator_addresses: addresses,
        };
        let listen = SocketAddr::new(asked.remote.ip(), asked.ask.port);
        let reply = self.ask(ControlAsk::Admit(*member.clone()));
        let core = self.p.sender.clone();
        tokio::spawn(async move {
            let answer = match reply.await {
                Ok(ControlReply::Done) => {
                    core.post(CoreEvent::Command(Command::MemberIn { member, listen }));
                    JoinAnswer::Welcome(Box::new(welcome))
                }
                Ok(ControlReply::Refused { message, .. }) => JoinAnswer::Refused { reason: message },
                _ => JoinAnswer::Later,
            };
            let _ = asked.answer.send(answer);
        });
    }

    /// A member was recorded because it asked here.
    pub(in crate::core) fn member_in(&mut self, member: &Member, listen: SocketAddr) {
        self.strangers.requests.remove(&member.node);
        self.strangers.found.remove(&member.node);
        self.members_changed();
        self.peer(member.node).prefer(listen);
        let words = check_words(self.me, member.node).join(" ");
        self.strangers.words.insert(member.node, words.clone());
        self.notice(Notice::Admitted { name: member.name.clone(), words });
    }

    /// A person lets a stranger in that has asked. It learns of it when it asks again.
    pub(in crate::core) fn invite(&mut self, node: NodeId) -> Option<String> {
        let request = self.strangers.requests.get_mut(&node)?;
        request.admitted = true;
        Some(request.name.clone())
    }
}
