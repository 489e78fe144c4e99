use std::time::Duration;

use exo_types::NodeId;
use proptest::prelude::*;

use super::*;
use crate::testing::{MODEL, node, placement};

fn epoch(counter: u64) -> Epoch {
    Epoch { counter, key: NodeId([1; 32]) }
}

/// The whole model of an instance on this node.
fn shard(id: u64, generation: u32, memory_bytes: u64) -> DesiredShard {
    let placement = placement(id, generation, &[1]);
    DesiredShard { placement, stage: 0, model_name: "m".into(), holders: vec![node(2)], memory_bytes }
}

fn wish(counter: u64, revision: u64, shards: &[DesiredShard]) -> WorkerInput {
    WorkerInput::Desired(DesiredState { epoch: epoch(counter), revision, shards: shards.to_vec() })
}

/// A worker whose processor may hold 100 bytes.
fn worker() -> Worker {
    Worker::new(WorkerConfig::default(), BTreeMap::from([(DeviceId::cpu(), 100)]))
}

fn feed(w: &mut Worker, ms: u64, input: WorkerInput) -> Vec<String> {
    show(&w.handle(Time::from_millis(ms), input).expect("not stale"))
}

fn show(actions: &[Action]) -> Vec<String> {
    let line = |a: &Action| match a {
        Action::FetchManifest { key, .. } => format!("manifest {}.{}", key.instance.0, key.generation),
        Action::FetchChunks { key, .. } => format!("chunks {}.{}", key.instance.0, key.generation),
        Action::LoadShard { key, .. } => format!("load {}.{}", key.instance.0, key.generation),
        Action::AdoptShard { from, to, .. } => {
            format!("adopt {}.{} as {}.{}", from.instance.0, from.generation, to.instance.0, to.generation)
        }
        Action::UnloadShard { key } => format!("unload {}.{}", key.instance.0, key.generation),
        Action::Cancel { key } => format!("cancel {}.{}", key.instance.0, key.generation),
    };
    actions.iter().map(line).collect()
}

fn ready(w: &mut Worker, shard: &DesiredShard) {
    let key = key_of(shard);
    feed(w, 0, WorkerInput::ManifestHeld(key));
    feed(w, 0, WorkerInput::Stored(key));
    feed(w, 0, WorkerInput::Ready(key));
}

#[test]
fn a_shard_is_fetched_and_loaded_step_by_step_and_a_repeated_wish_starts_nothing() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    let key = key_of(&s);
    assert_eq!(feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&s))), ["manifest 1.1"]);
    assert!(feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&s))).is_empty());
    assert_eq!(feed(&mut w, 0, WorkerInput::ManifestHeld(key)), ["chunks 1.1"]);
    assert_eq!(feed(&mut w, 0, WorkerInput::Stored(key)), ["load 1.1"]);
    assert!(feed(&mut w, 0, WorkerInput::Ready(key)).is_empty());
    assert_eq!(w.reports()[0].status, StageStatus::Loaded);
}

#[test]
fn an_older_reign_and_an_older_revision_are_refused() {
    let mut w = worker();
    feed(&mut w, 0, wish(2, 5, &[]));
    let refusal = |w: &mut Worker, input| w.handle(Time::ZERO, input).unwrap_err().to_string();
    assert!(refusal(&mut w, wish(1, 9, &[])).contains("is over"));
    assert!(refusal(&mut w, wish(2, 4, &[])).contains("older than 5"));
    assert!(feed(&mut w, 0, wish(3, 0, &[])).is_empty(), "a new reign counts from the start");
}

#[test]
fn after_moving_to_another_cluster_the_old_reign_binds_no_more_and_its_shards_leave() {
    let (mut w, old) = (worker(), shard(1, 1, 60));
    feed(&mut w, 0, wish(7, 5, std::slice::from_ref(&old)));
    ready(&mut w, &old);
    assert_eq!(feed(&mut w, 0, WorkerInput::Moved), ["unload 1.1"]);
    assert!(feed(&mut w, 0, wish(1, 1, &[])).is_empty(), "a lower epoch of the new cluster is obeyed");
}

#[test]
fn unloading_comes_before_loading_when_memory_would_not_hold_both() {
    let (mut w, old, new) = (worker(), shard(1, 1, 60), shard(2, 1, 60));
    feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&old)));
    ready(&mut w, &old);
    assert_eq!(feed(&mut w, 0, wish(1, 2, std::slice::from_ref(&new))), ["unload 1.1", "manifest 2.1"]);
    feed(&mut w, 0, WorkerInput::ManifestHeld(key_of(&new)));
    assert!(feed(&mut w, 0, WorkerInput::Stored(key_of(&new))).is_empty(), "the old one still holds memory");
    assert_eq!(feed(&mut w, 0, WorkerInput::Unloaded(key_of(&old))), ["load 2.1"]);
}

#[test]
fn a_new_generation_adopts_the_same_weights() {
    let (mut w, old, new) = (worker(), shard(1, 1, 60), shard(1, 2, 60));
    feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&old)));
    ready(&mut w, &old);
    assert_eq!(feed(&mut w, 0, wish(1, 2, std::slice::from_ref(&new))), ["adopt 1.1 as 1.2"]);
    let mut wider = shard(1, 3, 60);
    wider.placement.cache_tokens += 32;
    feed(&mut w, 0, WorkerInput::Ready(key_of(&new)));
    assert_eq!(feed(&mut w, 0, wish(1, 3, &[wider])), ["unload 1.2", "manifest 1.3"], "another cache");
}

#[test]
fn a_failure_is_tried_again_later_and_later() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    let key = key_of(&s);
    feed(&mut w, 0, wish(1, 1, &[s]));
    let fail = |w: &mut Worker, ms| feed(w, ms, WorkerInput::Failed { key, reason: "no".into() });
    assert!(fail(&mut w, 0).is_empty());
    assert_eq!(w.reports()[0].status, StageStatus::Failed { reason: "no".into(), failed_loads: 0 });
    assert!(feed(&mut w, 999, WorkerInput::Tick).is_empty());
    assert_eq!(feed(&mut w, 1000, WorkerInput::Tick), ["manifest 1.1"]);
    fail(&mut w, 1000);
    assert!(feed(&mut w, 2999, WorkerInput::Tick).is_empty());
    assert_eq!(feed(&mut w, 3000, WorkerInput::Tick), ["manifest 1.1"]);
}

#[test]
fn loads_that_the_device_refuses_are_counted_until_one_succeeds() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    let key = key_of(&s);
    feed(&mut w, 0, wish(1, 1, &[s]));
    let load = |w: &mut Worker, ms| {
        feed(w, ms, WorkerInput::ManifestHeld(key));
        assert_eq!(feed(w, ms, WorkerInput::Stored(key)), ["load 1.1"]);
    };
    for (loads, ms) in [(1, 0), (2, 1000), (3, 3000)] {
        feed(&mut w, ms, WorkerInput::Tick);
        load(&mut w, ms);
        feed(&mut w, ms, WorkerInput::Refused { key, reason: "full".into() });
        let told = StageStatus::Failed { reason: "full".into(), failed_loads: loads };
        assert_eq!(w.reports()[0].status, told);
    }
    feed(&mut w, 7000, WorkerInput::Tick);
    load(&mut w, 7000);
    feed(&mut w, 7000, WorkerInput::Ready(key));
    feed(&mut w, 8000, WorkerInput::Unloaded(key));
    let told = StageStatus::Failed { reason: "the device let go of it".into(), failed_loads: 0 };
    assert_eq!(w.reports()[0].status, told);
    // A device that is lost over it is for others to count.
    feed(&mut w, 9000, WorkerInput::Tick);
    load(&mut w, 9000);
    feed(&mut w, 9000, WorkerInput::Failed { key, reason: "lost".into() });
    assert_eq!(w.reports()[0].status, StageStatus::Failed { reason: "lost".into(), failed_loads: 0 });
}

#[test]
fn an_action_without_progress_is_cancelled_and_one_with_progress_is_not() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    let key = key_of(&s);
    feed(&mut w, 0, wish(1, 1, &[s]));
    feed(&mut w, 0, WorkerInput::ManifestHeld(key));
    feed(&mut w, 50_000, WorkerInput::Progress { key, done_bytes: 1, total_bytes: 9 });
    feed(&mut w, 100_000, WorkerInput::Progress { key, done_bytes: 1, total_bytes: 9 });
    assert!(feed(&mut w, 110_000, WorkerInput::Tick).is_empty());
    assert_eq!(feed(&mut w, 110_001, WorkerInput::Tick), ["cancel 1.1"], "the same byte is no progress");
    assert!(feed(&mut w, 111_001, WorkerInput::Tick).is_empty(), "not before it has stopped");
    assert_eq!(feed(&mut w, 112_000, WorkerInput::Unloaded(key)), ["manifest 1.1"]);
}

#[test]
fn memory_that_nobody_will_free_is_reported_with_numbers() {
    let (mut w, s) = (worker(), shard(1, 1, 101));
    let key = key_of(&s);
    feed(&mut w, 0, wish(1, 1, &[s]));
    feed(&mut w, 0, WorkerInput::ManifestHeld(key));
    assert!(feed(&mut w, 0, WorkerInput::Stored(key)).is_empty());
    let StageStatus::Failed { reason, .. } = &w.reports()[0].status else { panic!("{:?}", w.reports()) };
    assert!(reason.contains("needs 101 bytes, 100 are free"), "{reason}");
}

/// Any phase, for starting anywhere.
fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Absent),
        Just(Phase::FetchingManifest),
        Just(Phase::ManifestHeld),
        Just(Phase::FetchingChunks { done_bytes: 0, total_bytes: 0 }),
        Just(Phase::Stored),
        Just(Phase::Loading { done_bytes: 0, total_bytes: 0 }),
        Just(Phase::Ready),
        Just(Phase::Unloading),
    ]
}

/// What the world answers to whatever is under way.
fn answer(entry: &ActualShard, works: bool) -> Option<WorkerInput> {
    let key = entry.key;
    let failed = WorkerInput::Failed { key, reason: "chance".into() };
    match entry.phase {
        Phase::Unloading => Some(WorkerInput::Unloaded(key)),
        Phase::FetchingManifest | Phase::FetchingChunks { .. } | Phase::Loading { .. } if !works => {
            Some(failed)
        }
        Phase::FetchingManifest => Some(WorkerInput::ManifestHeld(key)),
        Phase::FetchingChunks { .. } => Some(WorkerInput::Stored(key)),
        Phase::Loading { .. } => Some(WorkerInput::Ready(key)),
        Phase::Absent | Phase::ManifestHeld | Phase::Stored | Phase::Ready => None,
    }
}

proptest! {
    /// From any state, with chance failures, the worker reaches what is wanted, and memory is never exceeded by
    /// anything it starts.
    #[test]
    fn any_state_reaches_the_desired_one(
        before in proptest::collection::vec((1u64..5, 1u32..3, phase()), 0..4),
        wanted in proptest::collection::btree_set((1u64..5, 1u32..3), 0..3),
        luck in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let mut w = worker();
        for (id, generation, phase) in before {
            let mut entry = absent(&shard(id, generation, 30), Time::ZERO);
            entry.phase = phase;
            if w.actual.iter().all(|a| a.key != entry.key) {
                w.actual.push(entry);
            }
        }
        prop_assert!(w.actual.iter().all(|a| a.model == MODEL));
        // 3 x 30 fit beside nothing else; what was there before may be more than fits and must go first.
        let shards: Vec<DesiredShard> = wanted.iter().map(|&(id, generation)| shard(id, generation, 30)).collect();
        let mut now = Time::ZERO;
        let mut input = wish(1, 1, &shards);
        for round in 0..400 {
            for action in w.handle(now, input).unwrap() {
                if let Action::LoadShard { .. } = action {
                    let held: u64 =
                        w.actual.iter().filter(|a| a.phase.holds_memory()).map(|a| a.memory_bytes).sum();
                    prop_assert!(held <= 100, "{held} bytes are held after {action:?}");
                }
            }
            let works = luck.get(round).copied().unwrap_or(true);
            input = w.actual.iter().find_map(|a| answer(a, works)).unwrap_or(WorkerInput::Tick);
            now = now + Duration::from_secs(1);
        }
        let mut ready: Vec<(u64, u32)> = w.actual.iter().map(|a| (a.key.instance.0, a.key.generation)).collect();
        ready.sort_unstable();
        prop_assert_eq!(ready, wanted.into_iter().collect::<Vec<_>>());
        let all_ready = w.actual.iter().all(|a| matches!(a.phase, Phase::Ready));
        prop_assert!(all_ready, "{:?}", w.actual);
    }
}
