//! Whole clusters in one thread: every machine of this crate, messages through the real codec, an invented network
//! that loses, delays and reorders, nodes that crash and come back. One seed is one run.

mod node;
mod rng;
mod world;

use exo_cluster::DriverPhase;

use crate::world::{Chance, World};

/// Seconds within which a request must end, whatever happens: queueing, one stalled answer, detection.
const REQUEST_BOUND_S: u64 = 200;

/// Runs a cluster with requests spread over the first minute, then waits until every bound has passed.
fn run(seed: u64, nodes: u8, chance: Chance) -> World {
    let mut world = World::new(seed, nodes, chance);
    world.run_until(60 + REQUEST_BOUND_S);
    world
}

/// What must hold at the end of every run, whatever happened in it.
fn assert_promises(world: &World, seed: u64) {
    for request in &world.requests {
        let gone = world.life(request.node) != request.life; // its client left with its node
        let ended =
            request.ended_at.is_some_and(|at| at.since(request.started_at).as_secs() <= REQUEST_BOUND_S);
        assert!(gone || ended, "seed {seed}: {request:?} did not end in {REQUEST_BOUND_S} s");
    }
    for node in world.nodes.values().filter(|n| n.alive) {
        assert!(node.drivers.values().all(|d| d.phase() == DriverPhase::Over), "seed {seed}");
        for (key, scheduler) in &node.schedulers {
            let stats = scheduler.stats();
            let idle = (stats.running, stats.queued, stats.pages_claimed) == (0, 0, 0);
            assert!(idle, "seed {seed}: {key:?} keeps {stats:?}");
        }
        for (key, stage) in node.stages.iter().filter(|(key, _)| world.is_current(**key)) {
            assert_eq!(stage.sequences_open(), 0, "seed {seed}: {key:?} keeps sequences");
        }
    }
}

#[test]
fn a_quiet_cluster_answers_every_request_completely() {
    for seed in 0..10 {
        let world = run(seed, 3, Chance::default());
        assert_promises(&world, seed);
        let answered = world.requests.iter().filter(|r| r.failure.is_none()).count();
        assert_eq!(answered, world.requests.len(), "seed {seed}: {:?}", world.requests);
        assert!(world.tokens_shown > 100, "seed {seed}: only {} tokens", world.tokens_shown);
    }
}

#[test]
fn every_request_ends_although_nodes_crash_and_messages_are_lost() {
    let (mut failed, mut answered) = (0, 0);
    for seed in 0..60 {
        let chance = Chance {
            crashes: (seed % 4) as u32,
            loss_per_10_000: [0, 0, 10, 40][(seed / 4 % 4) as usize],
            device_failures_per_10_000: [0, 50][(seed / 16 % 2) as usize],
        };
        let world = run(seed, 3 + (seed % 2) as u8, chance);
        assert_promises(&world, seed);
        failed += world.requests.iter().filter(|r| r.failure.is_some()).count();
        answered += world.requests.iter().filter(|r| r.ended_at.is_some() && r.failure.is_none()).count();
    }
    assert!(
        failed > 20 && answered > 500,
        "the runs were too kind or too cruel: {failed} failed, {answered} answered"
    );
}

#[test]
fn a_cluster_that_lost_a_node_serves_again_on_the_others() {
    for seed in 100..120 {
        let world = run(seed, 4, Chance { crashes: 1, ..Chance::default() });
        assert_promises(&world, seed);
        let late = world.requests.iter().filter(|r| r.started_at.0 > 50_000_000 && r.ended_at.is_some());
        assert!(
            late.clone().count() > 0 && late.clone().any(|r| r.failure.is_none()),
            "seed {seed}: {:?}",
            world.requests
        );
        assert!(world.leader_ready(), "seed {seed}: the instance is not ready again");
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let chance = Chance { crashes: 2, loss_per_10_000: 20, device_failures_per_10_000: 20 };
    let (a, b) = (run(7, 4, chance), run(7, 4, chance));
    assert_eq!((a.events, a.tokens_shown, a.requests), (b.events, b.tokens_shown, b.requests));
}
