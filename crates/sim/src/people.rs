//! Clients and people at work: requests to nodes, and what comes of them.

use std::time::Duration;

use exo_cluster::wire::{ControlAsk, ControlRefusal, ControlReply, Drain};
use exo_machine::{Answer, Input, Question, ReplyId, SequenceEvent, StreamId};
use exo_trust::Act;
use exo_types::{NodeId, RequestId};

use crate::clients::{self, AskWhat, ClientEnd, ReadBacklog, ReadProgress};
use crate::node::Node;
use crate::shape::instance_request;
use crate::upheaval::SERVES_WITHIN;
use crate::world::{Event, World, WorldEvent};

/// A person who got no answer asks again after this long, so often.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASKS_MAX: u32 = 30;
/// Between two requests at the end of a run.
const PROBE_EVERY: Duration = Duration::from_secs(2);

impl World {
    /// Members of a node's cluster that have the model.
    fn holders(&self, asked: usize) -> Vec<NodeId> {
        let own = self.nodes[asked].id;
        let members = self.nodes[asked].disk.content().trust.view().members();
        let is_known = |node: &&Node| node.has_model && (node.id == own || members.contains_key(&node.id));
        self.nodes.iter().filter(is_known).map(|node| node.id).collect()
    }

    /// The first node from `wanted` on that runs.
    fn running_from(&self, wanted: usize) -> Option<usize> {
        let count = self.nodes.len();
        (0..count).map(|step| (wanted + step) % count).find(|node| self.nodes[*node].process.is_some())
    }

    // ---- requests ----

    /// A client looks for a node.
    pub(crate) fn client(&mut self, index: usize) {
        let wanted = self.scenario.clients[index].node;
        if let Some(node) = self.running_from(wanted) {
            let client = self.scenario.clients[index].clone();
            let life = self.nodes[node].life;
            self.clients.started(client, node, life, self.now);
            self.hand_to(node, Event::Client(self.scenario.clients[index].index));
        }
    }

    /// Its request reaches the node.
    pub(crate) fn client_at(&mut self, node: usize, index: usize) {
        let Some((client, run)) = self.clients.by_stream(StreamId(index as u64)) else { return };
        if run.ended.is_some() {
            return;
        }
        let (driver, holders) = (self.nodes[node].id, self.holders(node));
        if holders.is_empty() {
            // What is around the machine refuses the name of a model that no member has.
            return self.clients.refused(index, "no member has the model", self.now);
        }
        let request = Box::new(client.start(driver, self.scenario.stages_min, holders));
        let (stream, cancel) = (client.stream(), client.cancel);
        if let Some((after, choice)) = cancel {
            self.process_at(self.now + after, node, Event::Leave(index, choice));
        }
        self.feed(node, Input::Start { stream, request });
    }

    pub(crate) fn client_leaves(&mut self, node: usize, index: usize, choice: Option<u16>) {
        let request = match choice {
            None => self.clients.left(index, self.now),
            Some(_) => self.clients.by_stream(StreamId(index as u64)).map(|(client, _)| client.request()),
        };
        if let Some(request) = request {
            self.feed(node, Input::Cancel { request, index: choice });
        }
    }

    /// A node tells a client something.
    pub(crate) fn emitted(&mut self, node: usize, stream: StreamId, event: &SequenceEvent) {
        let behind = self.clients.behind(stream, self.now);
        let over = self.clients.told(stream, event, self.now);
        match (behind, over) {
            (None, Some(request)) => self.over(node, request),
            (None, None) | (Some(ReadBacklog::Waits), _) => {}
            (Some(ReadBacklog::ReadsAt(at, reads)), _) => {
                self.fired(reads.name());
                self.process_at(at, node, Event::Read(stream.0 as usize));
            }
            (Some(ReadBacklog::CutOff(request)), _) => {
                self.fired("client cut off for not reading");
                self.over(node, request);
            }
        }
    }

    /// A client has let go of its request.
    fn over(&mut self, node: usize, request: RequestId) {
        self.input_at(self.now, node, Input::Cancel { request, index: None });
    }

    /// A client that is behind reads on.
    pub(crate) fn client_reads(&mut self, node: usize, index: usize) {
        match self.clients.read(index, self.now) {
            Some(ReadProgress::At(at)) => self.process_at(at, node, Event::Read(index)),
            Some(ReadProgress::Over(request)) => self.over(node, request),
            Some(ReadProgress::UpToDate) | None => {}
        }
    }

    /// Somebody asks until somebody answers.
    pub(crate) fn probe(&mut self, number: usize) {
        let is_answered = self.clients.all().any(|(client, run)| {
            clients::is_probe(client) && matches!(run.ended, Some((_, ClientEnd::Answered)))
        });
        if is_answered || self.now > self.calm_from() + SERVES_WITHIN {
            return;
        }
        let client = clients::probe(self.scenario.seed, number, self.now);
        if let Some(node) = self.running_from(client.node % self.nodes.len()) {
            let (index, life) = (client.index, self.nodes[node].life);
            self.clients.started(client, node, life, self.now);
            self.hand_to(node, Event::Client(index));
        }
        self.at(self.now + PROBE_EVERY, WorldEvent::Probe(number + 1));
    }

    /// A client whose node died asks another one for the rest of its answer.
    pub(crate) fn claim(&mut self, index: usize) {
        let Some((client, run)) = self.clients.by_stream(StreamId(index as u64)) else { return };
        let (request, proof, before) = (client.name(), client.proof(), run.node);
        let Some(node) = self.running_from(before + 1) else { return };
        self.attempts += 1;
        let reply = ReplyId(self.attempts);
        self.claims.insert((node, reply), index);
        self.input_at(self.now, node, Input::Ask { reply, question: Question::Claim { request, proof } });
    }

    /// What is left of a client's answer.
    fn claimed(&mut self, node: usize, index: usize, answer: Answer) {
        let Answer::Claimed(Ok(left)) = answer else {
            self.fired("claim in vain");
            return self.tell(|| format!("client {index} does not go on at n{node}: {answer:?}"));
        };
        let Some((client, _)) = self.clients.by_stream(StreamId(index as u64)) else { return };
        let (client, life) = (client.resumed(&left), self.nodes[node].life);
        let index = client.index;
        self.tell(|| format!("client {index} goes on at n{node}"));
        self.clients.started(client, node, life, self.now);
        self.hand_to(node, Event::Client(index));
    }

    // ---- questions of people ----

    /// A person looks for a node.
    pub(crate) fn person(&mut self, index: usize, times: u32) {
        let ask = self.scenario.asks[index];
        let asked = match ask.what {
            AskWhat::Place | AskWhat::Unload | AskWhat::Drain { .. } => {
                self.running_from((ask.node + times as usize) % self.nodes.len())
            }
            // Only an admin may.
            AskWhat::Appoint { .. } | AskWhat::RemoveNode { .. } => {
                Some(ask.node % self.nodes.len()).filter(|node| self.nodes[*node].process.is_some())
            }
        };
        match asked {
            Some(node) => self.hand_to(node, Event::Ask(index, times)),
            None => self.ask_later(index, times),
        }
    }

    fn ask_later(&mut self, index: usize, times: u32) {
        // A drain that comes after its undoing would be for good.
        let is_once =
            matches!(self.scenario.asks[index].what, AskWhat::Drain { drain, .. } if drain != Drain::Over);
        if times < ASKS_MAX && !is_once {
            self.at(self.now + ASK_AGAIN, WorldEvent::Ask(index, times + 1));
        }
    }

    pub(crate) fn person_at(&mut self, node: usize, index: usize, times: u32) {
        let question = match self.scenario.asks[index].what {
            AskWhat::Place => {
                let request = instance_request(self.scenario.stages_min, self.holders(node));
                Question::Coordinator(Box::new(ControlAsk::Place(request)))
            }
            AskWhat::Drain { node: whom, drain } => {
                let node = self.nodes[whom].id;
                Question::Coordinator(Box::new(ControlAsk::Drain { node, drain }))
            }
            AskWhat::Unload => Question::Instances,
            AskWhat::Appoint { node: whom } => {
                let (node, name) = (self.nodes[whom].id, self.nodes[whom].name.clone());
                Question::Act(Act::Appoint { node, name })
            }
            AskWhat::RemoveNode { node: whom } => {
                Question::Act(Act::Remove { node: self.nodes[whom].id, reason: "sold".to_owned() })
            }
        };
        self.ask(node, (index, times), question);
    }

    fn ask(&mut self, node: usize, who: (usize, u32), question: Question) {
        self.attempts += 1;
        let reply = ReplyId(self.attempts);
        self.asks.insert((node, reply), who);
        self.input_at(self.now, node, Input::Ask { reply, question });
    }

    /// A node answers a person.
    pub(crate) fn replied(&mut self, node: usize, reply: ReplyId, answer: Answer) {
        if let Some(index) = self.claims.remove(&(node, reply)) {
            return self.claimed(node, index, answer);
        }
        let Some((index, times)) = self.asks.remove(&(node, reply)) else {
            return self.fail(
                "effects_make_sense",
                format!("n{node} answers {reply:?}, which nobody asked or twice"),
            );
        };
        match answer {
            Answer::Instances(views) => {
                let Some(view) = views.first() else { return };
                let ask = ControlAsk::RemoveInstance { instance: view.instance() };
                self.ask(node, (index, times), Question::Coordinator(Box::new(ask)));
            }
            Answer::Acted(Err(reason)) => {
                self.tell(|| format!("n{node} does not do what was asked: {reason}"));
                self.ask_later(index, times);
            }
            Answer::Coordinator(None) => self.ask_later(index, times),
            Answer::Coordinator(Some(reply)) => {
                let again = matches!(
                    *reply,
                    ControlReply::Refused(ControlRefusal::NotCoordinator(_) | ControlRefusal::LogFailed(_))
                );
                if again {
                    self.ask_later(index, times);
                }
            }
            other => self.tell(|| format!("n{node} answers {other:?}")),
        }
    }
}
