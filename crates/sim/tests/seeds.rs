//! Seeds in CI: what must hold whatever goes wrong, and that a seed is a run.
//!
//! A seed that fails here is run again with `cargo xtask sim --seed N`, which makes it smaller.

use std::collections::BTreeMap;

use exo_sim::shrink::Broken;
use exo_sim::{Kind, Options, Report, RunSelection, faults, run, run_with};

const SEEDS: u64 = 500;
const THREADS: u64 = 2;

fn must_hold(choice: RunSelection) -> Report {
    let report = run(&choice);
    if let Some(failure) = report.failure {
        panic!("{}", Broken { choice, failure }.describe());
    }
    report
}

/// Runs every seed, on two threads, and says which are broken.
#[test]
fn whatever_goes_wrong_the_invariants_hold() {
    let part = |first: u64| {
        let seeds = (first..SEEDS).step_by(THREADS as usize);
        let (mut broken, mut answered, mut failed, mut resumed) = (Vec::new(), 0, 0, 0);
        for seed in seeds {
            let choice = RunSelection::all(seed, Kind::Faults);
            let report = run(&choice);
            answered += report.answered;
            failed += report.failed.len();
            resumed += report.resumed;
            broken.extend(report.failure.map(|failure| Broken { choice, failure }.describe()));
        }
        (broken, answered, failed, resumed)
    };
    let (mut broken, mut answered, mut failed, mut resumed) = (Vec::new(), 0, 0, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || part(first))).collect();
        for thread in threads {
            let part = thread.join().expect("runs catch their panics");
            broken.extend(part.0);
            answered += part.1;
            failed += part.2;
            resumed += part.3;
        }
    });
    assert!(broken.is_empty(), "{} of {SEEDS} seeds are broken:\n{}", broken.len(), broken.join("\n"));
    assert!(
        answered > 4 * failed && failed > 100,
        "too kind or too cruel: {answered} answered, {failed} failed"
    );
    assert!(resumed > 5, "{resumed} clients went on at another node when theirs had died");
}

/// A fault that never happens would prove nothing.
#[test]
fn in_50_runs_of_everything_the_invariants_hold_and_all_that_may_go_wrong_does() {
    let mut fired: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..50 {
        for (name, times) in must_hold(RunSelection::all(seed, Kind::Everything)).fired {
            *fired.entry(name).or_default() += times;
        }
    }
    let besides = [
        "client stalls",
        "client reads slowly",
        "client cut off for not reading",
        "load out of memory",
        "step out of memory",
    ];
    let expected = faults::names().into_iter().chain(besides);
    let silent: Vec<_> = expected.filter(|name| !fired.contains_key(name)).collect();
    assert!(silent.is_empty(), "{silent:?} never happened: {fired:?}");
}

#[test]
fn a_quiet_cluster_answers_every_request_completely() {
    for seed in 0..20 {
        let report = must_hold(RunSelection::all(seed, Kind::Quiet));
        assert!(report.answered > 3, "seed {seed}: {} answered", report.answered);
    }
}

#[test]
fn fresh_nodes_become_one_cluster() {
    for seed in 0..20 {
        must_hold(RunSelection::all(seed, Kind::Join));
    }
}

#[test]
fn lies_about_members_change_nothing() {
    let mut answered = 0;
    for seed in 0..150 {
        answered += must_hold(RunSelection::all(seed, Kind::Lies)).answered;
    }
    assert!(answered > 1000, "{answered} answered");
}

#[test]
fn lies_on_the_data_channel_change_nothing() {
    let mut answered = 0;
    for seed in 0..100 {
        answered += must_hold(RunSelection::all(seed, Kind::Wire)).answered;
    }
    assert!(answered > 600, "{answered} answered");
}

#[test]
fn a_stranger_gets_nothing_and_disturbs_nobody() {
    let mut answered = 0;
    for seed in 0..150 {
        answered += must_hold(RunSelection::all(seed, Kind::Strangers)).answered;
    }
    assert!(answered > 1000, "{answered} answered");
}

/// For 1,000: `cargo xtask sim --kind window --seeds 0..1000`.
#[test]
fn at_join_windows_who_may_comes_in_and_nobody_else_and_strangers_keep_no_new_nodes_apart() {
    let mut joined = 0;
    for seed in 0..40 {
        let fired = must_hold(RunSelection::all(seed, Kind::Window)).fired;
        joined += u32::from(fired.keys().any(|name| name.starts_with("one cluster")));
    }
    assert!(joined > 5, "{joined} runs in which new nodes become one cluster");
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in [3, 7] {
        let choice = RunSelection { seconds: Some(20), ..RunSelection::all(seed, Kind::Faults) };
        let hashed = || run_with(&choice, Options { is_hashed: true, ..Options::default() });
        let (once, again) = (hashed(), hashed());
        assert_eq!((once.hash, once.handles), (again.hash, again.handles));
    }
}
