//! Claims about small clusters, one scenario each.

use std::time::Duration;

use exo_types::{Epoch, Time};

use super::handle;
use super::sim::{Sim, id, ids};
use crate::config::EPOCH_JUMP_MAX;
use crate::{
    Body, Config, Heartbeat, Input, LogEnd, LossReason, Membership, Message, MessageError, NodeStatus,
    Output, Persisted, Rank, Role,
};

pub(super) fn epoch(counter: u64, key: usize) -> Epoch {
    Epoch { counter, key: id(key) }
}

pub(super) fn leader_says(epoch: Epoch) -> Message {
    let rank = Rank { served: 2, uptime_class: 0, mains_power: false, ..Rank::default() };
    let beat = Heartbeat { role: Role::Leading, rank, table: Vec::new() };
    Message { epoch: Some(epoch), incarnation: 1, body: Body::Heartbeat(beat) }
}

#[test]
fn a_node_alone_leads_at_once_and_writes_its_epoch_first() {
    let persisted = Persisted { epoch: Some(epoch(7, 3)) };
    let mut machine = Membership::new(Config::default(), id(0), persisted, Time::ZERO);
    let mine = epoch(8, 0);
    assert_eq!(machine.handle(Time::ZERO, Input::Members(ids([0]))), [Output::Persist(mine)]);
    assert!(!machine.is_leading());
    let out = machine.handle(Time::ZERO, Input::Persisted(mine));
    let wanted =
        [Output::CoordinatorChanged { epoch: mine, coordinator: id(0) }, Output::Lead { epoch: mine }];
    assert_eq!(out, wanted);
    assert!(machine.may_place());
}

#[test]
fn a_node_that_is_no_member_says_nothing() {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    assert_eq!(machine.handle(Time::ZERO, Input::Tick), []);
    assert_eq!(machine.handle(Time::from_millis(9000), Input::Members(ids([1, 2]))), []);
    assert_eq!(machine.coordinator(), None);
}

#[test]
fn nodes_that_start_together_elect_one_of_them_once() {
    let sim = Sim::settled(1, 5);
    assert_eq!(sim.agreed(), Ok(4), "equal standing: the greatest key");
    assert_eq!(sim.nodes.iter().map(|n| n.led.len()).sum::<usize>(), 1, "one election");
}

#[test]
fn a_joiner_adopts_the_epoch_it_finds_and_causes_no_election() {
    let mut sim = Sim::new(2, 3);
    sim.start_with(0, ids([0]));
    sim.run_ms(10);
    let first_epoch = sim.machine(0).epoch();
    for joiner in [1, 2] {
        sim.start_with(joiner, ids([joiner]));
        sim.run_ms(50);
        assert!(sim.machine(joiner).is_leading(), "alone it led itself");
        sim.input(0, Input::Members(ids(0..=joiner)));
        if joiner == 2 {
            sim.input(1, Input::Members(ids(0..=joiner)));
        }
        sim.join(joiner, ids(0..=joiner));
        (0..joiner).for_each(|i| sim.connect(i, joiner));
        sim.run_ms(600);
        assert_eq!(sim.machine(joiner).epoch(), first_epoch);
    }
    sim.run_ms(2000);
    assert_eq!(sim.agreed(), Ok(0));
    assert_eq!(sim.machine(0).epoch(), first_epoch);
}

#[test]
fn a_killed_member_is_suspected_at_once_and_lost_within_two_seconds() {
    let mut sim = Sim::settled(3, 3);
    let at = sim.now;
    sim.crash(0);
    sim.run_ms(20);
    for i in [1, 2] {
        assert_eq!(sim.machine(i).status(id(0)), Some(NodeStatus::Suspected));
    }
    sim.run_ms(2000);
    for i in [1, 2] {
        let (after, reason) = sim.lost_after(i, 0, at).expect("declared");
        assert!(after < Duration::from_secs(2) && reason == LossReason::Reset, "{after:?} {reason}");
    }
    assert_eq!(sim.agreed(), Ok(2), "the coordinator lived: it stays");
    assert_eq!(sim.nodes[2].led.len(), 1);
}

#[test]
fn an_unplugged_member_is_suspected_in_about_a_second_and_lost_within_five() {
    let mut sim = Sim::settled(4, 3);
    let at = sim.now;
    sim.unplug(0);
    sim.run_ms(1300);
    assert_eq!(sim.machine(1).status(id(0)), Some(NodeStatus::Suspected), "a follower knows from the table");
    assert_eq!(sim.machine(1).status(id(2)), Some(NodeStatus::Alive));
    sim.run_ms(3700);
    for i in [1, 2] {
        let (after, reason) = sim.lost_after(i, 0, at).expect("declared within five seconds");
        assert!(after > Duration::from_secs(3) && reason == LossReason::Silent, "{after:?} {reason}");
    }
}

#[test]
fn either_of_two_goes_on_alone() {
    for (victim, survivor) in [(0, 1), (1, 0)] {
        for silently in [false, true] {
            let mut sim = Sim::settled(5, 2);
            if silently {
                sim.unplug(victim)
            } else {
                sim.crash(victim)
            }
            sim.run_ms(if silently { 5000 } else { 2000 });
            assert_eq!(sim.agreed(), Ok(survivor));
            assert!(sim.machine(survivor).may_place());
        }
    }
}

#[test]
fn a_goodbye_costs_a_round_trip() {
    let mut sim = Sim::settled(6, 3);
    let at = sim.now;
    sim.leave(2); // the coordinator
    sim.run_ms(300);
    assert_eq!(sim.agreed(), Ok(1));
    let (after, reason) = sim.lost_after(0, 2, at).expect("declared");
    assert!(after < Duration::from_millis(20) && reason == LossReason::Left);
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    machine.handle(Time::ZERO, Input::Leave);
    assert_eq!(machine.handle(Time::ZERO, Input::Members(ids([0]))), [], "nothing after leaving");
}

#[test]
fn a_quick_restart_is_a_loss_because_the_new_process_holds_nothing() {
    let mut sim = Sim::settled(7, 3);
    let at = sim.now;
    sim.crash(0);
    sim.run_ms(300);
    sim.start(0);
    sim.run_ms(700);
    for i in [1, 2] {
        let (after, reason) = sim.lost_after(i, 0, at).expect("declared");
        assert!(after < Duration::from_millis(800) && reason == LossReason::Restarted, "{after:?} {reason}");
    }
    assert_eq!(sim.agreed(), Ok(2), "the incumbent stays");
    assert_eq!(sim.nodes[2].led.len(), 1, "and its epoch too");
}

#[test]
fn of_halves_without_a_majority_the_one_that_serves_more_wins_whatever_the_keys() {
    for busy in [0, 4] {
        let mut sim = Sim::settled(10, 6);
        sim.crash(5);
        sim.run_ms(5000);
        // {0, 1} | {2, 3, 4} of six; with instances on 0 the smaller half serves more.
        for (a, b) in [0, 1].iter().flat_map(|a| [2, 3, 4].map(|b| (*a, b))) {
            sim.cut(a, b);
        }
        sim.run_ms(6000);
        assert!(sim.machine(4).is_leading() && sim.machine(1).is_leading());
        let lesser = sim.machine(1).epoch().max(sim.machine(4).epoch());
        let served =
            |n| Input::LocalFacts { instances_served: n, mains_power: false, log: LogEnd::default() };
        sim.input(if busy == 0 { 1 } else { 4 }, served(3));
        sim.run_ms(500);
        sim.cuts().into_iter().for_each(|(a, b)| sim.mend(a, b, true));
        sim.run_ms(3000);
        assert_eq!(sim.agreed(), Ok(if busy == 0 { 1 } else { 4 }));
        let counter = |e: Option<Epoch>| e.map(|e| e.counter);
        assert_eq!(
            counter(sim.machine(0).epoch()),
            counter(lesser).map(|c| c + 1),
            "the higher counter plus one"
        );
    }
}

#[test]
fn the_half_with_a_majority_wins_whatever_the_other_serves_and_however_late_its_epoch() {
    for again in 0..3 {
        let mut sim = Sim::settled(10, 5);
        for (a, b) in [0, 1].iter().flat_map(|a| [2, 3, 4].map(|b| (*a, b))) {
            sim.cut(a, b);
        }
        sim.run_ms(6000);
        assert!(sim.machine(4).is_leading() && sim.machine(1).is_leading());
        let log = LogEnd::default();
        sim.input(1, Input::LocalFacts { instances_served: 9, mains_power: true, log });
        (0..again).for_each(|_| {
            sim.input(1, Input::Renew);
            sim.run_ms(1100);
        });
        let later = sim.machine(1).epoch();
        assert!(later > sim.machine(4).epoch());
        sim.cuts().into_iter().for_each(|(a, b)| sim.mend(a, b, true));
        sim.run_ms(3000);
        assert_eq!(sim.agreed(), Ok(4));
        assert!(sim.machine(4).epoch() > later, "those that were in the later one follow");
    }
}

#[test]
fn a_coordinator_that_a_majority_follows_yields_to_no_announcement_and_begins_no_epoch_for_it() {
    let mut sim = Sim::settled(10, 3);
    let mine = sim.machine(2).epoch();
    assert!(sim.machine(2).is_leading());
    let rank = Rank { majority: true, served: u32::MAX, uptime_class: 9, ..Rank::default() };
    let beat = || Heartbeat { role: Role::Leading, rank, table: Vec::new() };
    for ms in 0..50 {
        let bodies = [Body::Announce(beat()), Body::Heartbeat(beat())];
        for (body, to) in bodies.into_iter().flat_map(|body| [(body.clone(), 1), (body, 2)]) {
            let claimed = Some(epoch(9 + ms, 0));
            let message = Message { epoch: claimed, incarnation: 1, body };
            sim.input(to, Input::Message { from: id(0), message });
        }
        sim.run_ms(50);
        let told = [1, 2].map(|i| (sim.machine(i).coordinator(), sim.machine(i).epoch()));
        assert_eq!(told, [(Some(id(2)), mine); 2]);
    }
    // One that most do not follow any more yields: it may be what was cut off.
    sim.crash(1);
    sim.run_ms(3000);
    let message = Message { epoch: Some(epoch(90, 0)), incarnation: 1, body: Body::Announce(beat()) };
    sim.input(2, Input::Message { from: id(0), message });
    sim.run_ms(100);
    assert_eq!(sim.machine(2).coordinator(), Some(id(0)));
}

/// The others follow it there when their disks have written the new epoch.
#[test]
fn a_coordinator_yields_to_no_announcement_either_while_its_followers_are_in_its_epoch_before() {
    let mut sim = Sim::settled(10, 3);
    sim.run_ms(1100);
    sim.disk_max = Duration::from_millis(50);
    let before = sim.machine(2).epoch();
    sim.input(2, Input::Renew);
    while sim.machine(2).epoch() == before {
        sim.run_ms(1);
    }
    assert_eq!(sim.machine(1).epoch(), before);
    let rank = Rank { majority: true, served: u32::MAX, ..Rank::default() };
    let beat = Heartbeat { role: Role::Leading, rank, table: Vec::new() };
    let message = Message { epoch: Some(epoch(90, 0)), incarnation: 1, body: Body::Announce(beat) };
    sim.input(2, Input::Message { from: id(0), message });
    sim.run_ms(1000);
    assert_eq!((sim.agreed(), sim.machine(2).epoch().map(|e| e.counter < 90)), (Ok(2), Some(true)));
}

#[test]
fn a_coordinator_that_hears_nobody_places_nothing_until_the_others_are_declared_lost() {
    let mut sim = Sim::settled(11, 3);
    assert!(sim.machine(2).may_place());
    [0, 1].iter().for_each(|i| sim.cut(*i, 2));
    sim.run_ms(1500);
    assert!(sim.machine(2).is_leading() && !sim.machine(2).may_place());
    sim.run_ms(4000);
    assert!(sim.machine(2).may_place(), "a lone survivor goes on");
}

#[test]
fn a_node_cut_off_from_the_coordinator_alone_does_not_usurp_it() {
    let mut sim = Sim::settled(12, 3);
    sim.cut(0, 2);
    sim.run_ms(30_000);
    assert!(sim.machine(2).is_leading());
    assert_eq!(sim.nodes.iter().map(|n| n.led.len()).sum::<usize>(), 1, "no second election");
    assert_eq!(sim.machine(1).coordinator(), Some(id(2)));
    sim.mend(0, 2, true);
    sim.run_ms(1500);
    assert_eq!(sim.agreed(), Ok(2));
}

#[test]
fn a_coordinator_with_a_lower_epoch_than_a_returning_member_raises_its_own() {
    let mut sim = Sim::settled(13, 2);
    sim.crash(0);
    sim.run_ms(2500);
    let mut machine =
        Membership::new(Config::default(), id(0), Persisted { epoch: Some(epoch(40, 5)) }, sim.now);
    machine.handle(sim.now, Input::Members(ids([0, 1])));
    let out = machine.handle(sim.now, Input::LinkUp(id(1)));
    let said =
        out.into_iter().find_map(|o| if let Output::Send { message, .. } = o { Some(message) } else { None });
    sim.input(1, Input::Message { from: id(0), message: said.expect("a heartbeat on connecting") });
    sim.run_ms(10);
    assert_eq!(sim.machine(1).epoch(), Some(epoch(41, 1)));
}

#[test]
fn lower_epochs_are_not_followed_and_wild_jumps_are_not_heard() {
    let fresh = |persisted| {
        let mut machine =
            Membership::new(Config::default(), id(0), Persisted { epoch: persisted }, Time::ZERO);
        machine.handle(Time::ZERO, Input::Members(ids([0, 1])));
        machine
    };
    let hear = |machine: &mut Membership, message| {
        handle(machine, Time::ZERO, Input::Message { from: id(1), message });
        (machine.coordinator(), machine.status(id(1)))
    };
    let (alive, unseen) = (Some(NodeStatus::Alive), Some(NodeStatus::Unseen));
    assert_eq!(hear(&mut fresh(Some(epoch(6, 1))), leader_says(epoch(5, 1))), (None, alive));
    assert_eq!(hear(&mut fresh(Some(epoch(5, 1))), leader_says(epoch(5, 1))), (Some(id(1)), alive));
    let edge = 5 + EPOCH_JUMP_MAX;
    assert_eq!(hear(&mut fresh(Some(epoch(5, 1))), leader_says(epoch(edge, 1))), (Some(id(1)), alive));
    assert_eq!(hear(&mut fresh(Some(epoch(5, 1))), leader_says(epoch(edge + 1, 1))), (None, unseen));
    assert_eq!(hear(&mut fresh(None), leader_says(epoch(u64::MAX, 1))), (None, unseen));
    assert_eq!(
        hear(&mut fresh(None), leader_says(epoch(5, 2))),
        (None, alive),
        "nobody leads another's epoch"
    );
}

#[test]
fn a_removed_member_is_lost_and_falls_silent() {
    let mut sim = Sim::settled(14, 3);
    let at = sim.now;
    for i in 0..3 {
        sim.input(i, Input::Members(ids([1, 2])));
    }
    assert_eq!(sim.lost_after(1, 0, at), Some((Duration::ZERO, LossReason::Removed)));
    assert_eq!(sim.machine(0).coordinator(), None);
    let heard = sim.nodes[2].lost.len();
    sim.run_ms(6000);
    assert_eq!(sim.nodes[2].lost.len(), heard);
    assert_eq!(sim.machine(2).status(id(0)), None);
}

#[test]
fn a_frozen_process_does_not_declare_the_others_lost_when_it_thaws() {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    machine.handle(Time::ZERO, Input::Members(ids([0, 1])));
    machine.handle(Time::ZERO, Input::LinkUp(id(1)));
    let message = leader_says(epoch(1, 1));
    handle(&mut machine, Time::from_millis(10), Input::Message { from: id(1), message });
    let out = machine.handle(Time::from_millis(60_000), Input::Tick);
    assert!(
        !out.iter().any(|o| matches!(o, Output::NodeLost { .. } | Output::CoordinatorLost { .. })),
        "{out:?}"
    );
    let lost = (1..60).flat_map(|i| machine.handle(Time::from_millis(60_000 + 100 * i), Input::Tick));
    assert!(
        lost.filter(|o| matches!(o, Output::NodeLost { .. })).count() == 1,
        "silence after the thaw counts"
    );
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let good = leader_says(epoch(5, 1)).encode();
    assert!(Message::decode(&good).is_ok());
    assert!(matches!(Message::decode(&good[..good.len() - 1]), Err(MessageError::Malformed { .. })));
    assert!(matches!(
        Message::decode(&[good.clone(), vec![0]].concat()),
        Err(MessageError::OutOfBounds { .. })
    ));
    assert!(matches!(Message::decode(&vec![0; 1 << 20]), Err(MessageError::TooLong { .. })));
}

#[test]
fn a_coordinator_nobody_follows_steps_down_when_a_member_is_led_out_of_its_sight() {
    let mut sim = Sim::settled(15, 3);
    [0, 1].iter().for_each(|i| sim.cut(*i, 2));
    sim.run_ms(6000);
    assert!(sim.machine(2).is_leading() && sim.machine(1).is_leading(), "two halves");
    sim.mend(0, 2, true);
    sim.run_ms(6000);
    assert!(!sim.machine(2).is_leading(), "0 follows 1, whom 2 cannot hear");
    assert_eq!(sim.machine(0).coordinator(), Some(id(1)));
    assert_eq!(sim.machine(2).followed_elsewhere(), Some((id(0), id(1))));
    assert!([0, 1].iter().all(|i| sim.machine(*i).followed_elsewhere().is_none()));
    sim.mend(1, 2, true);
    sim.run_ms(1500);
    assert_eq!(sim.agreed(), Ok(1));
    assert_eq!(sim.machine(2).followed_elsewhere(), None);
}

#[test]
fn a_late_message_does_not_raise_a_node_that_said_goodbye() {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    machine.handle(Time::ZERO, Input::Members(ids([0, 1])));
    let mut hear = |message| {
        handle(&mut machine, Time::ZERO, Input::Message { from: id(1), message });
        machine.status(id(1))
    };
    let beat = leader_says(epoch(1, 1));
    assert_eq!(hear(beat.clone()), Some(NodeStatus::Alive));
    assert_eq!(
        hear(Message { body: Body::Goodbye, ..beat.clone() }),
        Some(NodeStatus::Lost(LossReason::Left))
    );
    assert_eq!(hear(beat.clone()), Some(NodeStatus::Lost(LossReason::Left)));
    assert_eq!(hear(Message { incarnation: 2, ..beat }), Some(NodeStatus::Alive), "another run");
}

/// Node 0, which leads epoch 1 and whom node 1 follows, with a model here and on mains power for an hour.
fn leading() -> (Membership, Time) {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    handle(&mut machine, Time::ZERO, Input::Members(ids([0])));
    let mut now = Time::from_millis(3_600_000);
    for ms in (0..3_600_000).step_by(1000) {
        machine.handle(Time::from_millis(ms), Input::Tick);
    }
    handle(&mut machine, now, Input::Members(ids([0, 1])));
    handle(
        &mut machine,
        now,
        Input::LocalFacts { instances_served: 3, mains_power: true, log: LogEnd::default() },
    );
    now = now + Duration::from_millis(10);
    handle(&mut machine, now, Input::Message { from: id(1), message: follower_says(epoch(1, 0)) });
    assert!(machine.is_leading() && machine.may_place());
    (machine, now)
}

fn follower_says(epoch: Epoch) -> Message {
    let rank = Rank { served: 1, uptime_class: 0, mains_power: false, ..Rank::default() };
    let beat = Heartbeat { role: Role::Following { fresh: true }, rank, table: Vec::new() };
    Message { epoch: Some(epoch), incarnation: 1, body: Body::Heartbeat(beat) }
}

#[test]
fn a_coordinator_that_was_away_orders_nothing_and_does_not_win_against_who_served_meanwhile() {
    for (after_ms, input) in [(30_000, Input::Tick), (0, Input::Slept)] {
        let (mut machine, now) = leading();
        let woken = now + Duration::from_millis(after_ms);
        handle(&mut machine, woken, input);
        assert!(machine.is_leading() && !machine.may_place(), "it asks first");
        handle(&mut machine, woken, Input::Message { from: id(1), message: leader_says(epoch(2, 1)) });
        assert_eq!(machine.coordinator(), Some(id(1)));
    }
}

#[test]
fn a_coordinator_that_was_away_goes_on_when_a_member_says_that_it_follows() {
    let (mut machine, now) = leading();
    let woken = now + Duration::from_millis(3_000);
    handle(&mut machine, woken, Input::Tick);
    assert!(!machine.may_place());
    handle(&mut machine, woken, Input::Message { from: id(1), message: follower_says(epoch(1, 0)) });
    assert!(machine.is_leading() && machine.may_place());
}

#[test]
fn an_epoch_that_the_disk_refused_is_asked_for_again_and_nothing_is_done_in_it_before() {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    let first = machine.handle(Time::ZERO, Input::Members(ids([0])));
    assert_eq!(first, [Output::Persist(epoch(1, 0))]);
    assert!(machine.handle(Time::ZERO, Input::NotPersisted(epoch(1, 0))).is_empty() && !machine.is_leading());
    assert!(machine.handle(Time::from_millis(999), Input::Tick).is_empty());
    let again = machine.handle(Time::from_millis(1000), Input::Tick);
    assert_eq!(
        again,
        [Output::Persist(epoch(2, 0))],
        "a number that may be on the disk is not claimed twice"
    );
    // The same of an epoch to follow.
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    machine.handle(Time::ZERO, Input::Members(ids([0, 1])));
    let hear = |machine: &mut Membership, ms| {
        let message = leader_says(epoch(4, 1));
        let out = machine.handle(Time::from_millis(ms), Input::Message { from: id(1), message });
        out.contains(&Output::Persist(epoch(4, 1)))
    };
    assert!(hear(&mut machine, 0));
    machine.handle(Time::ZERO, Input::NotPersisted(epoch(4, 1)));
    assert!(!hear(&mut machine, 500) && hear(&mut machine, 1000) && machine.coordinator().is_none());
}

#[test]
fn a_coordinator_that_cannot_write_leaves_the_lead_to_another() {
    let mut sim = Sim::settled(16, 3);
    sim.input(2, Input::StepAside);
    sim.run_ms(3000);
    assert_eq!(sim.agreed(), Ok(1));
    let mut alone = Sim::settled(17, 1);
    alone.input(0, Input::StepAside);
    assert!(alone.machine(0).is_leading(), "there is nobody else");
}

#[test]
fn who_waits_for_its_disk_does_not_claim_what_another_may_have() {
    let mut sim = Sim::settled(16, 3);
    // The next in line cannot write either, and says so for as long as that lasts.
    for _ in 0..150 {
        sim.input(1, Input::StepAside);
        sim.input(2, Input::StepAside);
        sim.run_ms(100);
    }
    assert_eq!(sim.agreed(), Ok(0));
}

#[test]
fn an_announcement_takes_no_node_from_a_coordinator_that_it_hears() {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    handle(&mut machine, Time::ZERO, Input::Members(ids([0, 1, 2])));
    handle(&mut machine, Time::ZERO, Input::Message { from: id(1), message: leader_says(epoch(1, 1)) });
    let rank = Rank { served: 900, uptime_class: 9, mains_power: true, ..Rank::default() };
    let beat = Heartbeat { role: Role::Leading, rank, table: Vec::new() };
    let announced = |counter| Message {
        epoch: Some(epoch(counter, 2)),
        incarnation: 1,
        body: Body::Announce(Heartbeat { ..beat.clone() }),
    };
    handle(&mut machine, Time::from_millis(10), Input::Message { from: id(2), message: announced(7) });
    assert_eq!(machine.coordinator(), Some(id(1)), "it is heard");
    let follows = follower_says(epoch(7, 2));
    handle(&mut machine, Time::from_millis(20), Input::Message { from: id(1), message: follows });
    handle(&mut machine, Time::from_millis(30), Input::Message { from: id(2), message: announced(7) });
    assert_eq!(machine.coordinator(), Some(id(2)), "it stepped down");
}

#[test]
fn a_refused_port_behind_a_reset_is_a_death_at_once_and_alone_says_nothing() {
    let mut sim = Sim::settled(1, 2);
    let lost = |sim: &Sim| sim.machine(0).status(id(1));
    sim.input(0, Input::Refused(id(1)));
    assert_eq!(lost(&sim), Some(NodeStatus::Alive), "a firewall refuses, too");
    sim.input(0, Input::LinkReset(id(1)));
    assert_eq!(lost(&sim), Some(NodeStatus::Suspected));
    sim.input(0, Input::LinkUp(id(1)));
    sim.input(0, Input::Refused(id(1)));
    assert!(!matches!(lost(&sim), Some(NodeStatus::Lost(_))), "it has come back meanwhile");
    sim.input(0, Input::LinkReset(id(1)));
    sim.input(0, Input::Refused(id(1)));
    assert_eq!(lost(&sim), Some(NodeStatus::Lost(LossReason::Refused)));
}

#[test]
fn a_member_whose_messages_do_not_come_is_kept_while_its_data_link_lives_and_lost_after_ten_seconds() {
    let mut sim = Sim::settled(23, 3);
    let coordinator = sim.agreed().unwrap();
    let member = (coordinator + 1) % 3;
    sim.cut(coordinator, member);
    let cut = sim.now;
    for half_seconds in 1..=22 {
        sim.run_ms(500);
        let now = sim.now;
        for (at, of) in [(coordinator, member), (member, coordinator)] {
            sim.input(at, Input::Signs(vec![(id(of), now)]));
        }
        if half_seconds <= 18 {
            assert_eq!(sim.agreed(), Ok(coordinator), "after {half_seconds} half seconds");
        }
    }
    for (at, of) in [(coordinator, member), (member, coordinator)] {
        let (after, reason) = sim.lost_after(at, of, cut).unwrap();
        assert_eq!(reason, LossReason::NoMessage);
        assert!((9_000..=10_100).contains(&after.as_millis()), "{after:?}");
    }
}

#[test]
fn who_has_seen_less_does_not_claim_before_who_has_seen_more() {
    let facts = |index| Input::LocalFacts {
        instances_served: 0,
        mains_power: false,
        log: LogEnd { trust: 3, epoch: 2, index },
    };
    let mut sim = Sim::settled(41, 3);
    assert_eq!(sim.agreed(), Ok(2));
    // The greatest keys lead when all else is equal; only node 0 has the last entry.
    sim.input(1, facts(4));
    sim.input(0, facts(5));
    sim.run_ms(1000);
    sim.crash(2);
    sim.run_ms(6000);
    assert_eq!(sim.agreed(), Ok(0));
}

#[test]
fn a_coordinator_that_sent_what_cannot_be_is_not_followed_for_a_while() {
    let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
    handle(&mut machine, Time::ZERO, Input::Members(ids([0, 1])));
    let (now, first_epoch) = (Time::from_millis(50), epoch(1, 1));
    handle(&mut machine, now, Input::Message { from: id(1), message: leader_says(first_epoch) });
    handle(&mut machine, now, Input::Persisted(first_epoch));
    assert_eq!(machine.coordinator(), Some(id(1)));
    let until = Time::from_millis(10_050);
    handle(&mut machine, now, Input::Distrust { node: id(1), until });
    assert_eq!(machine.coordinator(), None);
    let mut out = Vec::new();
    for ms in [400, 800, 1200] {
        let message = leader_says(first_epoch);
        out = machine.handle(Time::from_millis(ms), Input::Message { from: id(1), message });
        assert!(machine.coordinator() != Some(id(1)), "{out:?}");
    }
    assert!(
        out.iter().any(|o| matches!(o, Output::Persist(epoch) if epoch.key == id(0))),
        "it leads itself: {out:?}"
    );
}
