//! Whole clusters under random trouble, from a seed. `Sim` checks at every step that an epoch has one leader,
//! that no epoch falls and that nothing is led before it is on disk; here is what holds afterwards.

use std::time::Duration;

use exo_types::{Epoch, Time};
use proptest::prelude::*;

use super::sim::{Sim, id, ids};
use crate::config::EPOCH_JUMP_MAX;
use crate::{
    Body, Config, Heartbeat, Input, LossReason, Membership, Message, NodeStatus, Output, Persisted, Rank,
    Role,
};

/// One thing goes wrong, or is put right.
fn disturb(sim: &mut Sim) {
    let count = sim.nodes.len() as u64;
    let (a, b) = (sim.draw(count) as usize, sim.draw(count) as usize);
    match sim.draw(10) {
        0 | 1 if sim.up(a) => sim.crash(a),
        2 if sim.up(a) => sim.unplug(a),
        3 if sim.up(a) => sim.leave(a),
        4 | 5 if a != b => sim.cut(a, b),
        6 => {
            // a partition: everybody below `a` from everybody else
            for (low, high) in (0..a).flat_map(|l| (a..count as usize).map(move |h| (l, h))) {
                sim.cut(low, high);
            }
        }
        7 => {
            let reset = sim.draw(2) == 0;
            sim.cuts().into_iter().for_each(|(a, b)| sim.mend(a, b, reset));
        }
        _ if !sim.up(a) => sim.start(a),
        _ => {}
    }
}

fn heal(sim: &mut Sim) {
    sim.loss_permille = 0;
    sim.disk_max = sim.disk_max.min(Duration::from_millis(200));
    sim.cuts().into_iter().for_each(|(a, b)| sim.mend(a, b, true));
    (0..sim.nodes.len()).filter(|i| !sim.up(*i)).collect::<Vec<_>>().into_iter().for_each(|i| sim.start(i));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// After any trouble, a healed cluster agrees on one coordinator within ten seconds, and then nothing
    /// changes.
    #[test]
    fn a_healed_cluster_agrees_within_ten_seconds_and_stays(seed: u64, count in 2usize..=5) {
        let mut sim = Sim::new(seed, count);
        sim.delay_max = Duration::from_millis(1 + sim.draw(150));
        sim.loss_permille = sim.draw(80);
        // Mostly a disk as they are; sometimes one on which an epoch takes longer than an election.
        sim.disk_max = Duration::from_millis(if sim.draw(4) == 0 { 1500 } else { 30 });
        for i in 0..count {
            sim.start(i);
            let pause = sim.draw(400);
            sim.run_ms(pause);
        }
        for _ in 0..12 {
            disturb(&mut sim);
            let pause = sim.draw(4000);
            sim.run_ms(pause);
        }
        heal(&mut sim);
        sim.run_ms(10_000);
        let said: Vec<_> = sim.nodes.iter().map(|n| (n.lost.len(), n.coordinators.len())).collect();
        prop_assert!(sim.agreed().is_ok(), "{:?}", sim.agreed());
        sim.run_ms(5_000);
        let later: Vec<_> = sim.nodes.iter().map(|n| (n.lost.len(), n.coordinators.len())).collect();
        prop_assert_eq!(said, later, "seed {}", seed);
    }

    /// Slow and lossy, but working: nobody is declared lost, and nobody else is elected.
    #[test]
    fn nobody_with_a_working_link_is_declared_lost(seed: u64, count in 2usize..=5) {
        let mut sim = Sim::new(seed, count);
        sim.delay_max = Duration::from_millis(199);
        sim.loss_permille = 100;
        (0..count).for_each(|i| sim.start(i));
        sim.run_ms(5000);
        let settled: Vec<_> = sim.nodes.iter().map(|n| n.coordinators.len()).collect();
        sim.run_ms(120_000);
        for (i, node) in sim.nodes.iter().enumerate() {
            prop_assert!(node.lost.is_empty(), "seed {}: {i} lost {:?}", seed, node.lost);
            prop_assert_eq!(node.coordinators.len(), settled[i], "seed {}", seed);
        }
    }

    /// Whoever dies, however it dies: everybody left says so within five seconds, and one of them leads.
    #[test]
    fn the_dead_are_declared_within_five_seconds(seed: u64, count in 2usize..=5, silently: bool) {
        let mut sim = Sim::settled(seed, count);
        let after = sim.draw(3000);
        sim.run_ms(after);
        let (victim, at) = (sim.draw(count as u64) as usize, sim.now);
        if silently { sim.unplug(victim) } else { sim.crash(victim) }
        sim.run_ms(6000);
        for i in (0..count).filter(|i| *i != victim) {
            let lost = sim.lost_after(i, victim, at);
            let bound = Duration::from_millis(if silently { 5000 } else { 2000 });
            prop_assert!(lost.is_some_and(|(after, _)| after < bound), "seed {}: {i} {:?}", seed, lost);
            prop_assert!(lost.is_some_and(|(_, reason)| reason != LossReason::Restarted));
        }
        prop_assert!(sim.agreed().is_ok(), "{:?}", sim.agreed());
    }
}

/// Any message, honest or not, from plausible to extreme.
fn any_message() -> impl Strategy<Value = Message> {
    let counter = prop_oneof![0u64..20, Just(EPOCH_JUMP_MAX), any::<u64>()];
    let epoch =
        proptest::option::of((counter, 0usize..4).prop_map(|(counter, i)| Epoch { counter, key: id(i) }));
    let role = prop_oneof![
        Just(Role::Seeking),
        any::<bool>().prop_map(|fresh| Role::Following { fresh }),
        Just(Role::Leading)
    ];
    let seen = prop_oneof![
        Just(NodeStatus::Unseen),
        Just(NodeStatus::Alive),
        Just(NodeStatus::Suspected),
        Just(NodeStatus::Lost(LossReason::Silent))
    ];
    let table = proptest::collection::vec((0usize..4, seen).prop_map(|(i, seen)| (id(i), seen)), 0..6);
    let beat = (role, any::<u32>(), any::<u8>(), table).prop_map(|(role, served, uptime_class, table)| {
        Heartbeat { role, rank: Rank { served, uptime_class, mains_power: false, ..Rank::default() }, table }
    });
    let body = prop_oneof![
        4 => beat.clone().prop_map(Body::Heartbeat),
        2 => beat.prop_map(Body::Announce),
        1 => Just(Body::Goodbye),
    ];
    (epoch, 0u64..3, body).prop_map(|(epoch, incarnation, body)| Message { epoch, incarnation, body })
}

/// Few outputs; epochs given to the disk only grow; nothing is led or said in an epoch that is not there.
fn check_lies(out: &[Output], asked: &mut Option<Epoch>, disk: Option<Epoch>) -> Result<(), TestCaseError> {
    prop_assert!(out.len() < 20, "{:?}", out);
    for output in out {
        match output {
            Output::Persist(epoch) => prop_assert!(asked.replace(*epoch) < Some(*epoch)),
            Output::Lead { epoch } => prop_assert_eq!((epoch.key, Some(*epoch)), (id(0), disk)),
            Output::Send { message, .. } => prop_assert!(message.epoch <= disk),
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    /// A lying member can confuse, not break: no panic, no flood, no falling epoch, no lead under another's
    /// name.
    #[test]
    fn lies_neither_break_the_machine_nor_lower_its_epoch(
        said in proptest::collection::vec((1usize..3, any_message(), 0u64..3000, any::<bool>()), 1..60)
    ) {
        let mut machine = Membership::new(Config::default(), id(0), Persisted::default(), Time::ZERO);
        machine.handle(Time::ZERO, Input::Members(ids(0..3)));
        let (mut now, mut asked, mut disk) = (Time::ZERO, None, None);
        for (from, message, pause_ms, answered) in said {
            now = now + Duration::from_millis(pause_ms);
            let mut out = machine.handle(now, Input::Message { from: id(from), message });
            if let Some(epoch) = asked.filter(|_| answered && asked != disk) {
                check_lies(&out, &mut asked, disk)?;
                disk = Some(epoch);
                out = machine.handle(now, Input::Persisted(epoch));
            }
            check_lies(&out, &mut asked, disk)?;
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert!(message.check().is_ok());
        }
    }
}
