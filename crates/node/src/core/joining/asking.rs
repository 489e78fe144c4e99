//! Joining another's cluster: whom to ask, what to make of the answer, moving in.

use std::net::SocketAddr;
use std::time::Duration;

use exo_cluster::wire::{ControlMessage, LogMessage};
use exo_cluster::{Event, State};
use exo_identity::{MemberCert, check_words};
use exo_types::{LogHead, NodeId, Time};

use super::{
    Grant, JoinAnswer, JoinAsk, JoinOutcome, LOOK_AROUND, RETRY, RETRY_REFUSED, Stranger, Welcome, exchange,
};
use crate::core::{Core, CoreEvent};
use crate::notice::Notice;

impl Core {
    /// Alone in a cluster of its own.
    pub(in crate::core) fn is_fresh(&self) -> bool {
        self.p.coordinator.state().members().len() <= 1
    }

    pub(super) fn whom_to_join(&self, now: Time) -> Option<NodeId> {
        // Moving in replaces this node's instances: not while somebody waits for an answer from them.
        let idle =
            self.strangers.attempt.is_none() && self.strangers.grant.is_none() && self.drivers.is_empty();
        if !self.is_fresh() || !idle {
            return None;
        }
        let ready =
            |s: &Stranger| now.since(s.seen) >= LOOK_AROUND && now >= s.next && !s.addresses.is_empty();
        let found = &self.strangers.found;
        let named = found.iter().find(|(_, s)| s.named && ready(s)).map(|(n, _)| *n);
        let with_members = found.iter().find(|(_, s)| !s.fresh && ready(s)).map(|(n, _)| *n);
        // Who did not answer is not waited for: a dead node's record may last for minutes.
        let mut fresh = found.iter().filter(|(_, s)| s.fresh && !s.failed);
        let lowest_fresh = fresh.next().filter(|(n, s)| **n < self.me && ready(s));
        let again = || found.iter().find(|(n, s)| s.fresh && s.failed && **n < self.me && ready(s));
        if self.p.config.trust_closed {
            return named; // only whom a person named
        }
        named.or(with_members).or(lowest_fresh.or_else(again).map(|(n, _)| *n))
    }

    pub(super) fn try_to_join(&mut self, node: NodeId, now: Time) {
        let Some(stranger) = self.strangers.found.get_mut(&node) else { return };
        stranger.next = now + RETRY;
        let addresses = stranger.addresses.clone();
        self.strangers.attempt = Some(node);
        let ask = JoinAsk {
            name: self.p.config.name.clone(),
            group: self.p.config.group.clone(),
            port: self.p.endpoint.local_addr().port(),
            fresh: true,
            probe: false,
        };
        let (endpoint, core) = (self.p.endpoint.clone(), self.p.sender.clone());
        tokio::spawn(async move {
            let mut outcome = JoinOutcome {
                probe: false,
                with: node,
                address: addresses[0],
                answer: Err("no address".to_owned()),
            };
            for address in addresses {
                outcome.address = address;
                outcome.answer = match exchange(&endpoint, address, &ask).await {
                    Ok((proven, answer)) if proven == node => Ok(answer),
                    Ok((proven, _)) => Err(format!("{proven} answers there instead")),
                    Err(reason) => Err(reason),
                };
                if outcome.answer.is_ok() {
                    break;
                }
            }
            core.post(CoreEvent::Joined(outcome));
        });
    }

    /// Our question was answered.
    pub(in crate::core) fn joined(&mut self, outcome: JoinOutcome) {
        let JoinOutcome { probe, with, address, answer } = outcome;
        if probe {
            let Ok(JoinAnswer::Here { name, fresh }) = answer else { return };
            if !self.p.members.contains(with) && with != self.me {
                self.stranger(with, vec![address], name, fresh);
                if let Some(stranger) = self.strangers.found.get_mut(&with) {
                    stranger.named = true;
                }
            }
            return;
        }
        if self.strangers.attempt != Some(with) {
            return;
        }
        self.strangers.attempt = None;
        let now = self.now();
        if let (Some(stranger), Ok(_)) = (self.strangers.found.get_mut(&with), &answer) {
            stranger.failed = false;
        }
        match answer {
            Ok(JoinAnswer::Welcome(welcome)) => self.welcomed(with, address, *welcome),
            Ok(JoinAnswer::Elsewhere { node, addresses }) if node != self.me => {
                self.stranger(node, addresses, node.to_string(), false);
            }
            Ok(JoinAnswer::Refused { reason }) => {
                if let Some(stranger) = self.strangers.found.get_mut(&with) {
                    stranger.next = now + RETRY_REFUSED;
                    let by = stranger.name.clone();
                    self.notice(Notice::Refused { by, reason });
                }
            }
            Ok(_) => {
                if let Some(stranger) = self.strangers.found.get_mut(&with) {
                    stranger.next = now + Duration::from_millis(300);
                }
            }
            Err(reason) => {
                tracing::debug!(peer = %with, reason, "join attempt failed");
                if let Some(stranger) = self.strangers.found.get_mut(&with) {
                    stranger.failed = true;
                    stranger.next = now + if stranger.named { RETRY } else { RETRY_REFUSED };
                }
            }
        }
    }

    fn welcomed(&mut self, by: NodeId, address: SocketAddr, welcome: Welcome) {
        if let Err(reason) = check_welcome(self.me, &welcome) {
            return self.notice(Notice::Refused { by: by.to_string(), reason });
        }
        tracing::debug!(peer = %by, "let in; fetching the log");
        let coordinator = welcome.coordinator;
        let addresses = welcome.coordinator_addresses.clone();
        let by_name = welcome.name.clone();
        self.strangers.grant = Some(Grant { by, by_name, welcome, since: self.now() });
        self.members_changed();
        if coordinator == by {
            self.peer(by).prefer(address);
        }
        self.peer(coordinator).remember(addresses);
    }

    /// Nodes that may connect although our own log does not know them: who let us in.
    pub(in crate::core) fn joining_members(&self) -> Vec<NodeId> {
        self.strangers.grant.iter().flat_map(|g| [g.by, g.welcome.coordinator]).collect()
    }

    /// While we wait for the log of the cluster that let us in, its coordinator is asked for all of it.
    pub(in crate::core) fn pull_for_join(&mut self, node: NodeId) -> bool {
        let wanted = self.strangers.grant.as_ref().is_some_and(|g| g.welcome.coordinator == node);
        if wanted {
            let pull = LogMessage::Pull { index: 0, hash: [0; 32] };
            self.send_control(node, ControlMessage::Log(pull));
        }
        wanted
    }

    /// The log of the cluster that let us in: from now on its state is ours.
    pub(in crate::core) fn join_log(&mut self, from: NodeId, message: &LogMessage) -> bool {
        let Some(grant) = self.strangers.grant.take_if(|g| g.welcome.coordinator == from) else {
            return false;
        };
        match whole_state(message, &grant.welcome, self.me) {
            Ok((head, state)) => self.move_in(head, &state, grant),
            Err(reason) => {
                self.notice(Notice::Refused { by: grant.by_name, reason });
                self.members_changed();
            }
        }
        true
    }

    fn move_in(&mut self, head: LogHead, state: &State, grant: Grant) {
        self.feed_coordinator(exo_cluster::CoordinatorInput::Follow);
        self.feed_worker(exo_cluster::WorkerInput::Moved);
        self.leader = None;
        self.log_restore(head, &state.encode());
        // The restored members are fed as the new home, not as a change of the old one.
        let members = state.members().keys().copied().collect();
        self.feed_membership(exo_membership::Input::Joined(members));
        self.members_changed();
        let linked: Vec<_> = self.peers.iter().filter(|(_, p)| p.is_linked()).map(|(n, _)| *n).collect();
        for node in linked {
            self.feed_membership(exo_membership::Input::LinkUp(node));
        }
        let words = check_words(self.me, grant.by).join(" ");
        self.strangers.words.insert(grant.by, words.clone());
        self.strangers.found.clear();
        self.notice(Notice::Joined { by: grant.by_name, words });
        self.report_now();
    }
}

fn check_welcome(me: NodeId, welcome: &Welcome) -> Result<(), String> {
    let certificate = MemberCert::decode(&welcome.certificate).map_err(|e| e.to_string())?;
    if certificate.statement.node != me || certificate.statement.cluster.0 != welcome.cluster {
        return Err("it sent a certificate for another node or cluster".to_owned());
    }
    // Whether the issuer is an admin shows in the log, which must name this node with this certificate.
    certificate.verify(|_| true).map_err(|e| e.to_string())
}

/// The state a joiner starts from: complete, founded, and with the joiner in it.
fn whole_state(message: &LogMessage, welcome: &Welcome, me: NodeId) -> Result<(LogHead, State), String> {
    let (head, state) = match message {
        LogMessage::Snapshot { index, hash, state, .. } => {
            (LogHead { index: *index, hash: *hash }, State::decode(state).map_err(|e| e.to_string())?)
        }
        LogMessage::Entries { after_index: 0, after_hash, entries, .. } => {
            let mut state = State::default();
            for entry in entries {
                let event = Event::decode(entry).map_err(|e| e.to_string())?;
                state.apply(&event).map_err(|e| e.to_string())?;
            }
            (LogHead { index: 0, hash: *after_hash }.then_all(entries), state)
        }
        _ => return Err("its log does not begin at the beginning".to_owned()),
    };
    if state.cluster().is_none_or(|(id, _)| id.0 != welcome.cluster) {
        return Err("its log is of another cluster".to_owned());
    }
    if !state.members().contains_key(&me) {
        return Err("its log does not name this node as a member".to_owned());
    }
    Ok((head, state))
}
