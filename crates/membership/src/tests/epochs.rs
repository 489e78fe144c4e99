//! Claims about an epoch on its way to the disk: one machine, whose disk answers when the test says so.

use std::collections::BTreeSet;

use exo_types::{Epoch, Time};

use super::protocol::{epoch, leader_says};
use super::sim::{Sim, id, ids};
use crate::{Body, Config, Input, Membership, Message, Output, Persisted, Role};

/// Node 0, a member beside node 1, to which it has a link.
struct Bench {
    machine: Membership,
    now: Time,
    out: Vec<Output>,
}

impl Bench {
    fn new(persisted: Option<Epoch>) -> Self {
        let machine = Membership::new(Config::default(), id(0), Persisted { epoch: persisted }, Time::ZERO);
        let mut bench = Self { machine, now: Time::ZERO, out: Vec::new() };
        bench.feed(Input::Members(ids([0, 1])));
        bench.feed(Input::LinkUp(id(1)));
        bench
    }

    /// Follows node 1 in this epoch.
    fn following(epoch: Epoch) -> Self {
        let mut bench = Self::new(Some(epoch));
        bench.hear(leader_says(epoch));
        assert_eq!((bench.machine.coordinator(), bench.asked()), (Some(epoch.key), vec![]));
        bench
    }

    fn feed(&mut self, input: Input) {
        self.out.extend(self.machine.handle(self.now, input));
    }

    fn hear(&mut self, message: Message) {
        self.feed(Input::Message { from: id(1), message });
    }

    /// Lets time pass by quarters of a second.
    fn run(&mut self, seconds: u64, mut input: impl FnMut() -> Input) {
        for _ in 0..seconds * 4 {
            self.now = self.now + std::time::Duration::from_millis(250);
            self.feed(input());
        }
    }

    /// Epochs and roles of all messages that came out until now.
    fn said(&mut self) -> BTreeSet<(Option<Epoch>, &'static str)> {
        let messages = std::mem::take(&mut self.out).into_iter().filter_map(|output| match output {
            Output::Send { message, .. } => Some(message),
            _ => None,
        });
        messages.map(|message| (message.epoch, role(&message))).collect()
    }

    fn asked(&self) -> Vec<Epoch> {
        let asked = |o: &Output| if let Output::Persist(epoch) = o { Some(*epoch) } else { None };
        self.out.iter().filter_map(asked).collect()
    }
}

fn role(message: &Message) -> &'static str {
    match &message.body {
        Body::Heartbeat(beat) | Body::Announce(beat) => match beat.role {
            Role::Seeking => "seeks",
            Role::Following { fresh: true } => "follows",
            Role::Following { fresh: false } => "follows in doubt",
            Role::Leading => "leads",
        },
        Body::Goodbye => "goes",
    }
}

#[test]
fn no_message_says_an_epoch_before_the_disk_has_it_and_heartbeats_go_on() {
    let (old, new) = (epoch(5, 1), epoch(7, 1));
    let mut bench = Bench::following(old);
    bench.out.clear();
    bench.run(30, || Input::Message { from: id(1), message: leader_says(new) });
    assert_eq!(bench.asked(), [new], "once, however long it takes");
    let beats = bench.out.iter().filter(|o| matches!(o, Output::Send { .. })).count();
    assert!(beats >= 100, "{beats} heartbeats in 30 s");
    assert_eq!(bench.said(), BTreeSet::from([(Some(old), "follows")]));
    bench.feed(Input::Persisted(new));
    assert_eq!(bench.machine.epoch(), Some(new));
    assert_eq!(bench.said(), BTreeSet::from([(Some(new), "follows")]));
}

#[test]
fn a_candidate_leads_when_the_disk_answers_and_claims_once_until_then() {
    let mut bench = Bench::new(Some(epoch(5, 1)));
    bench.run(20, || Input::Tick);
    assert_eq!(bench.asked(), [epoch(6, 0)]);
    assert!(!bench.machine.is_leading() && !bench.machine.may_place());
    assert_eq!(bench.said(), BTreeSet::from([(Some(epoch(5, 1)), "seeks")]));
    bench.feed(Input::Persisted(epoch(6, 0)));
    assert!(bench.out.contains(&Output::Lead { epoch: epoch(6, 0) }), "{:?}", bench.out);
    assert_eq!(bench.said(), BTreeSet::from([(Some(epoch(6, 0)), "leads")]));
}

#[test]
fn a_higher_epoch_replaces_the_one_that_waits_and_no_other_does() {
    let mut bench = Bench::following(epoch(5, 1));
    for (counter, asked) in [(7, vec![7]), (7, vec![]), (6, vec![]), (9, vec![9]), (8, vec![])] {
        bench.out.clear();
        bench.hear(leader_says(epoch(counter, 1)));
        let wanted: Vec<_> = asked.into_iter().map(|counter| epoch(counter, 1)).collect();
        assert_eq!(bench.asked(), wanted, "{counter}");
    }
    bench.feed(Input::Persisted(epoch(7, 1)));
    assert_eq!(bench.machine.epoch(), Some(epoch(5, 1)), "another has taken its place");
    bench.feed(Input::Persisted(epoch(9, 1)));
    assert_eq!(bench.machine.epoch(), Some(epoch(9, 1)));
    bench.feed(Input::Persisted(epoch(9, 1)));
    bench.feed(Input::Persisted(epoch(12, 1)));
    assert_eq!(bench.machine.epoch(), Some(epoch(9, 1)), "an answer to no question moves nothing");
}

#[test]
fn a_leader_goes_on_in_its_epoch_until_the_one_it_lost_to_is_on_disk() {
    let mut bench = Bench::new(None);
    bench.run(10, || Input::Tick);
    bench.feed(Input::Persisted(epoch(1, 0)));
    bench.out.clear();
    bench.hear(leader_says(epoch(4, 1)));
    assert_eq!(bench.asked(), [epoch(4, 1)]);
    assert!(bench.machine.is_leading() && !bench.out.contains(&Output::StepDown));
    bench.out.clear();
    bench.feed(Input::Persisted(epoch(4, 1)));
    let changed = Output::CoordinatorChanged { epoch: epoch(4, 1), coordinator: id(1) };
    let wanted = [Output::StepDown, Output::CoordinatorLost { epoch: epoch(1, 0) }, changed];
    assert_eq!(bench.out[..3], wanted);
}

/// Alone, with a claim on its way to the disk.
fn claiming() -> Bench {
    let mut bench = Bench::new(None);
    bench.now = Time::from_millis(9000);
    bench.feed(Input::Members(ids([0])));
    assert_eq!(bench.asked(), [epoch(1, 0)]);
    bench.out.clear();
    bench
}

#[test]
fn an_answer_after_joining_another_cluster_moves_nothing() {
    let mut bench = claiming();
    bench.feed(Input::Joined(ids([0, 1])));
    bench.feed(Input::Persisted(epoch(1, 0)));
    assert_eq!((bench.machine.epoch(), bench.machine.coordinator()), (None, None));
    bench.feed(Input::Members(ids([0])));
    assert_eq!(bench.asked(), [epoch(2, 0)], "no claim bears the name of one that was given up");
}

#[test]
fn an_answer_after_leaving_moves_nothing_and_is_not_forgotten() {
    let mut bench = claiming();
    bench.feed(Input::Members(ids([1])));
    bench.feed(Input::Persisted(epoch(1, 0)));
    assert_eq!((bench.machine.coordinator(), bench.asked()), (None, vec![]));
    bench.feed(Input::Members(ids([0])));
    assert_eq!(bench.asked(), [epoch(2, 0)], "above what the disk has");
}

#[test]
fn an_epoch_that_a_node_left_while_writing_is_not_written_again() {
    let mut bench = Bench::following(epoch(5, 1));
    bench.hear(leader_says(epoch(7, 1)));
    bench.feed(Input::Members(ids([1])));
    bench.feed(Input::Members(ids([0, 1])));
    bench.out.clear();
    bench.hear(leader_says(epoch(7, 1)));
    assert_eq!((bench.asked(), bench.machine.coordinator()), (vec![], None), "its write is under way");
    bench.feed(Input::Persisted(epoch(7, 1)));
    assert_eq!(bench.machine.coordinator(), Some(id(1)));
}

#[test]
fn nodes_whose_disks_take_up_to_a_second_agree_and_lose_nobody() {
    let mut sim = Sim::new(16, 3);
    sim.disk_max = std::time::Duration::from_millis(1000);
    (0..3).for_each(|i| sim.start(i));
    sim.run_ms(12_000);
    assert!(sim.agreed().is_ok(), "{:?}", sim.agreed());
    assert!(sim.nodes.iter().all(|node| node.lost.is_empty()));
}
