use std::time::Duration;

use exo_types::{NodeId, ShardSpec};
use proptest::prelude::*;

use super::*;
use crate::LoadFault;
use crate::testing::{MODEL, node, placement};

fn fault(kind: LoadFault) -> LoadFailure {
    LoadFailure::Fault { kind, detail: "why".into() }
}

fn epoch(counter: u64) -> Epoch {
    Epoch { counter, key: NodeId([1; 32]) }
}

/// Stage `stage` of an instance on nodes `on`, wanted of this node.
fn stage_of(id: u64, number: u32, on: &[u8], stage: u32, memory_bytes: u64) -> DesiredShard {
    let (placement, rank) = (placement(id, number, on), 0);
    DesiredShard {
        placement,
        stage,
        rank,
        model_name: "m".into(),
        holders: vec![node(2)],
        memory_bytes,
        is_ahead: false,
    }
}

/// The whole model of an instance on this node.
fn shard(id: u64, number: u32, memory_bytes: u64) -> DesiredShard {
    stage_of(id, number, &[1], 0, memory_bytes)
}

/// The whole model with room for a few tokens more: what it was loaded for serves nobody else.
fn wider(id: u64, number: u32, memory_bytes: u64) -> DesiredShard {
    let mut shard = shard(id, number, memory_bytes);
    shard.placement.cache_tokens += 32;
    shard
}

fn wish(counter: u64, revision: u64, shards: &[DesiredShard]) -> WorkerInput {
    WorkerInput::Desired(DesiredState { epoch: epoch(counter), revision, shards: shards.to_vec() })
}

/// A worker whose processor may hold 100 bytes.
fn worker() -> Worker {
    Worker::new(BTreeMap::from([(DeviceId::cpu(), 100)]))
}

fn feed(w: &mut Worker, ms: u64, input: WorkerInput) -> Vec<String> {
    show(&w.handle(Time::from_millis(ms), input).expect("not stale"))
}

fn show(actions: &[Action]) -> Vec<String> {
    let line = |a: &Action| match a {
        Action::FetchManifest { engine, .. } => format!("manifest {}", engine.0),
        Action::FetchChunks { engine, shard, .. } => format!("chunks {} {}", engine.0, shard.layers),
        Action::LoadShard { engine, spec } => format!("load {} {}", engine.0, spec.layers),
        Action::UnloadShard { engine } => format!("unload {}", engine.0),
        Action::Cancel { engine } => format!("cancel {}", engine.0),
    };
    actions.iter().map(line).collect()
}

/// Fetches and loads engine `n`, whatever else there is to do.
fn ready(w: &mut Worker, n: u64) {
    let engine = EngineId(n);
    feed(w, 0, WorkerInput::ManifestHeld(engine));
    feed(w, 0, WorkerInput::Stored(engine));
    feed(w, 0, WorkerInput::Ready(engine));
    assert!(is_ready(w, n), "{:?}", w.actual);
}

fn is_ready(w: &Worker, n: u64) -> bool {
    w.actual.iter().any(|a| a.engine == EngineId(n) && matches!(a.phase, Phase::Ready))
}

/// What serves a wanted shard.
fn serving(w: &Worker, shard: &DesiredShard) -> Option<u64> {
    w.engine_of(shard.position()).map(|engine| engine.0)
}

#[test]
fn a_shard_is_fetched_and_loaded_step_by_step_and_a_repeated_wish_starts_nothing() {
    let (mut w, s, engine) = (worker(), shard(1, 1, 60), EngineId(1));
    assert_eq!(feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&s))), ["manifest 1"]);
    assert!(feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&s))).is_empty());
    assert_eq!(feed(&mut w, 0, WorkerInput::ManifestHeld(engine)), ["chunks 1 0..4"]);
    assert_eq!(feed(&mut w, 0, WorkerInput::Stored(engine)), ["load 1 0..4"]);
    assert!(feed(&mut w, 0, WorkerInput::Ready(engine)).is_empty());
    let report = &w.reports()[0];
    assert_eq!(report.status, StageStatus::Loaded);
    assert_eq!((report.engine, report.serves), (engine, Some(s.position())));
    assert_eq!(report.spec, s.spec());
}

#[test]
fn an_older_epoch_and_an_older_revision_are_refused() {
    let mut w = worker();
    feed(&mut w, 0, wish(2, 5, &[]));
    let refusal = |w: &mut Worker, input| w.handle(Time::ZERO, input).unwrap_err().to_string();
    assert!(refusal(&mut w, wish(1, 9, &[])).contains("is over"));
    assert!(refusal(&mut w, wish(2, 4, &[])).contains("older than 5"));
    assert!(feed(&mut w, 0, wish(3, 0, &[])).is_empty(), "a new leading counts from the start");
}

#[test]
fn after_moving_to_another_cluster_the_old_epoch_binds_no_more_and_its_shards_leave() {
    let (mut w, old) = (worker(), shard(1, 1, 60));
    feed(&mut w, 0, wish(7, 5, std::slice::from_ref(&old)));
    ready(&mut w, 1);
    assert_eq!(feed(&mut w, 0, WorkerInput::Moved), ["unload 1"]);
    assert_eq!((w.reports()[0].serves, w.reports()[0].held_bytes), (None, 60), "it is about to be free");
    assert!(feed(&mut w, 0, wish(1, 1, &[])).is_empty(), "a lower epoch of the new cluster is obeyed");
    feed(&mut w, 0, WorkerInput::Unloaded(EngineId(1)));
    assert!(w.reports().is_empty());
}

#[test]
fn unloading_comes_before_loading_when_memory_would_not_hold_both() {
    let (mut w, old, new) = (worker(), shard(1, 1, 60), wider(2, 1, 60));
    feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&old)));
    ready(&mut w, 1);
    assert_eq!(feed(&mut w, 0, wish(1, 2, std::slice::from_ref(&new))), ["unload 1", "manifest 2"]);
    feed(&mut w, 0, WorkerInput::ManifestHeld(EngineId(2)));
    assert!(feed(&mut w, 0, WorkerInput::Stored(EngineId(2))).is_empty(), "the old one still holds memory");
    assert_eq!(feed(&mut w, 0, WorkerInput::Unloaded(EngineId(1))), ["load 2 0..4"]);
}

#[test]
fn what_is_loaded_serves_the_next_placement_and_another_instance_without_any_action() {
    let mut w = worker();
    feed(&mut w, 0, wish(1, 1, &[shard(1, 1, 60)]));
    ready(&mut w, 1);
    for (revision, next) in [(2, shard(1, 2, 60)), (3, shard(9, 1, 60))] {
        assert!(feed(&mut w, 0, wish(1, revision, std::slice::from_ref(&next))).is_empty());
        assert_eq!(serving(&w, &next), Some(1));
        assert_eq!(w.reports()[0].status, StageStatus::Loaded);
    }
    assert_eq!(w.engine_of(shard(1, 2, 60).position()), None, "it serves one placement at a time");
    let other = feed(&mut w, 0, wish(1, 4, &[wider(9, 2, 60)]));
    assert_eq!(other, ["unload 1", "manifest 2"], "with another cache it is another shard");
}

#[test]
fn of_several_shards_only_what_changed_is_loaded() {
    let mut w = Worker::new(BTreeMap::from([(DeviceId::cpu(), 200)]));
    // Layers 0..2 and 2..4 of one instance are here.
    let stages = |number, on: &[u8], which: &[u32]| -> Vec<DesiredShard> {
        which.iter().map(|&stage| stage_of(1, number, on, stage, 50)).collect()
    };
    feed(&mut w, 0, wish(1, 1, &stages(1, &[1, 1], &[0, 1])));
    ready(&mut w, 1);
    ready(&mut w, 2);
    // The same layers, of which one node is to hold the second stage from now on.
    assert_eq!(feed(&mut w, 0, wish(1, 2, &stages(2, &[1, 3], &[0]))), ["unload 2"]);
    assert_eq!(serving(&w, &stages(2, &[1, 3], &[0])[0]), Some(1));
    feed(&mut w, 0, WorkerInput::Unloaded(EngineId(2)));
    // One layer less here: the shard is another one.
    let mut third = stages(3, &[1, 3], &[0]);
    third[0].placement.stages[0].layers.end = 1;
    third[0].placement.stages[0].shards[0].shard.layers.end = 1;
    let moved = feed(&mut w, 0, wish(1, 3, &third));
    assert_eq!(moved.iter().filter(|a| a.starts_with("unload 1")).count(), 1, "{moved:?}");
}

#[test]
fn two_wanted_shards_of_the_same_content_have_one_each() {
    let (mut w, one, two) = (worker(), shard(1, 1, 40), shard(2, 1, 40));
    feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&one)));
    ready(&mut w, 1);
    assert_eq!(feed(&mut w, 0, wish(1, 2, &[two.clone(), one.clone()])), ["manifest 2"]);
    assert_eq!(
        (serving(&w, &one), serving(&w, &two)),
        (Some(1), Some(2)),
        "the one that was first keeps its own"
    );
    ready(&mut w, 2);
    assert_eq!(feed(&mut w, 0, wish(1, 3, std::slice::from_ref(&two))), ["unload 1"]);
}

#[test]
fn a_shard_that_waits_takes_over_what_another_instance_leaves() {
    let (mut w, one, two) = (worker(), shard(1, 1, 60), shard(2, 1, 60));
    feed(&mut w, 0, wish(1, 1, &[one.clone(), two.clone()]));
    ready(&mut w, 1);
    feed(&mut w, 0, WorkerInput::ManifestHeld(EngineId(2)));
    assert!(feed(&mut w, 0, WorkerInput::Stored(EngineId(2))).is_empty(), "there is no memory for it");
    assert!(feed(&mut w, 0, wish(1, 2, std::slice::from_ref(&two))).is_empty());
    assert_eq!((serving(&w, &two), w.actual.len()), (Some(1), 1));
}

#[test]
fn what_is_under_way_goes_on_for_the_next_placement() {
    let mut w = worker();
    feed(&mut w, 0, wish(1, 1, &[shard(1, 1, 60)]));
    feed(&mut w, 0, WorkerInput::ManifestHeld(EngineId(1)));
    assert!(feed(&mut w, 0, wish(1, 2, &[shard(1, 2, 60)])).is_empty(), "the bytes are on their way");
    assert_eq!(feed(&mut w, 0, WorkerInput::Stored(EngineId(1))), ["load 1 0..4"]);
    assert!(feed(&mut w, 0, wish(1, 3, &[shard(1, 3, 60)])).is_empty(), "so is the load");
    feed(&mut w, 0, WorkerInput::Ready(EngineId(1)));
    assert_eq!(serving(&w, &shard(1, 3, 60)), Some(1));
}

#[test]
fn what_is_wanted_again_while_it_leaves_is_loaded_anew_once_it_is_gone() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&s)));
    ready(&mut w, 1);
    assert_eq!(feed(&mut w, 0, wish(1, 2, &[])), ["unload 1"]);
    assert_eq!(feed(&mut w, 0, wish(1, 3, std::slice::from_ref(&s))), ["manifest 2"]);
    feed(&mut w, 0, WorkerInput::ManifestHeld(EngineId(2)));
    assert!(feed(&mut w, 0, WorkerInput::Stored(EngineId(2))).is_empty());
    assert_eq!(feed(&mut w, 0, WorkerInput::Unloaded(EngineId(1))), ["load 2 0..4"]);
}

#[test]
fn a_late_answer_changes_nothing() {
    let (mut w, s, late) = (worker(), shard(1, 1, 60), EngineId(1));
    feed(&mut w, 0, wish(1, 1, std::slice::from_ref(&s)));
    feed(&mut w, 0, WorkerInput::ManifestHeld(late));
    feed(&mut w, 0, WorkerInput::Stored(late));
    // Cancelled, and loading once more.
    assert_eq!(feed(&mut w, 61_000, WorkerInput::Tick), ["cancel 1"]);
    feed(&mut w, 61_000, WorkerInput::Unloaded(late));
    assert_eq!(feed(&mut w, 62_000, WorkerInput::Tick), ["manifest 2"]);
    let before = w.actual.clone();
    for input in [
        WorkerInput::ManifestHeld(late),
        WorkerInput::Stored(late),
        WorkerInput::Ready(late),
        WorkerInput::Progress { engine: late, done_bytes: 7, total_bytes: 9, hub_wait_s: 0 },
        WorkerInput::Failed { engine: late, why: fault(LoadFault::Fetch) },
        WorkerInput::Failed { engine: late, why: fault(LoadFault::Device) },
        WorkerInput::Unloaded(late),
    ] {
        assert!(feed(&mut w, 62_000, input).is_empty());
        assert_eq!(w.actual, before);
    }
    // Wanted no more, and ready after that: it leaves all the same.
    feed(&mut w, 62_000, WorkerInput::ManifestHeld(EngineId(2)));
    assert_eq!(feed(&mut w, 62_000, wish(1, 2, &[])), ["cancel 2"]);
    let ready = WorkerInput::Ready(EngineId(2));
    assert!(feed(&mut w, 62_000, ready).is_empty() && !is_ready(&w, 2));
    feed(&mut w, 62_000, WorkerInput::Unloaded(EngineId(2)));
    assert!(w.actual.is_empty());
}

#[test]
fn a_failure_is_tried_again_later_and_later() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    feed(&mut w, 0, wish(1, 1, &[s]));
    let fail = |w: &mut Worker, ms, n| {
        feed(w, ms, WorkerInput::Failed { engine: EngineId(n), why: fault(LoadFault::Fetch) })
    };
    assert!(fail(&mut w, 0, 1).is_empty());
    assert_eq!(w.reports()[0].status, StageStatus::Failed { why: fault(LoadFault::Fetch), failed_loads: 0 });
    assert!(feed(&mut w, 999, WorkerInput::Tick).is_empty());
    assert_eq!(feed(&mut w, 1000, WorkerInput::Tick), ["manifest 2"]);
    fail(&mut w, 1000, 2);
    assert!(feed(&mut w, 2999, WorkerInput::Tick).is_empty());
    assert_eq!(feed(&mut w, 3000, WorkerInput::Tick), ["manifest 3"]);
    // What failed for one placement does not count against the next.
    fail(&mut w, 3000, 3);
    assert_eq!(feed(&mut w, 3000, wish(1, 2, &[shard(1, 2, 60)])), ["manifest 4"]);
}

#[test]
fn loads_that_the_device_refuses_are_counted_until_one_succeeds() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    feed(&mut w, 0, wish(1, 1, &[s]));
    let load = |w: &mut Worker, ms, n| {
        feed(w, ms, WorkerInput::ManifestHeld(EngineId(n)));
        assert_eq!(feed(w, ms, WorkerInput::Stored(EngineId(n))), [format!("load {n} 0..4")]);
    };
    for (loads, ms) in [(1, 0), (2, 1000), (3, 3000)] {
        feed(&mut w, ms, WorkerInput::Tick);
        load(&mut w, ms, loads);
        feed(&mut w, ms, WorkerInput::Failed { engine: EngineId(loads), why: fault(LoadFault::Device) });
        let told = StageStatus::Failed { why: fault(LoadFault::Device), failed_loads: loads as u32 };
        assert_eq!(w.reports()[0].status, told);
    }
    feed(&mut w, 7000, WorkerInput::Tick);
    load(&mut w, 7000, 4);
    feed(&mut w, 7000, WorkerInput::Ready(EngineId(4)));
    feed(&mut w, 8000, WorkerInput::Unloaded(EngineId(4)));
    let told = StageStatus::Failed { why: LoadFailure::LetGo, failed_loads: 0 };
    assert_eq!(w.reports()[0].status, told);
    // A device that is lost over it is for others to count.
    feed(&mut w, 9000, WorkerInput::Tick);
    load(&mut w, 9000, 5);
    feed(&mut w, 9000, WorkerInput::Failed { engine: EngineId(5), why: fault(LoadFault::Lost) });
    assert_eq!(w.reports()[0].status, StageStatus::Failed { why: fault(LoadFault::Lost), failed_loads: 0 });
}

#[test]
fn a_disk_without_room_counts_like_a_device_that_refuses() {
    let (mut w, s) = (worker(), shard(1, 1, 60));
    feed(&mut w, 0, wish(1, 1, &[s]));
    for (loads, ms) in [(1, 0), (2, 1000), (3, 3000)] {
        feed(&mut w, ms, WorkerInput::Tick);
        feed(&mut w, ms, WorkerInput::ManifestHeld(EngineId(loads)));
        feed(&mut w, ms, WorkerInput::Failed { engine: EngineId(loads), why: fault(LoadFault::DiskRoom) });
        let told = StageStatus::Failed { why: fault(LoadFault::DiskRoom), failed_loads: loads as u32 };
        assert_eq!(w.reports()[0].status, told);
    }
}

#[test]
fn an_action_without_progress_is_cancelled_and_one_with_progress_is_not() {
    let (mut w, s, engine) = (worker(), shard(1, 1, 60), EngineId(1));
    feed(&mut w, 0, wish(1, 1, &[s]));
    feed(&mut w, 0, WorkerInput::ManifestHeld(engine));
    feed(&mut w, 50_000, WorkerInput::Progress { engine, done_bytes: 1, total_bytes: 9, hub_wait_s: 0 });
    feed(&mut w, 100_000, WorkerInput::Progress { engine, done_bytes: 1, total_bytes: 9, hub_wait_s: 0 });
    assert!(feed(&mut w, 110_000, WorkerInput::Tick).is_empty());
    assert_eq!(feed(&mut w, 110_001, WorkerInput::Tick), ["cancel 1"], "the same byte is no progress");
    assert!(feed(&mut w, 111_001, WorkerInput::Tick).is_empty(), "not before it has stopped");
    assert_eq!(feed(&mut w, 112_000, WorkerInput::Unloaded(engine)), ["manifest 2"]);
}

#[test]
fn a_wait_that_the_hub_asks_for_puts_the_deadline_off_and_is_reported() {
    let (mut w, s, engine) = (worker(), shard(1, 1, 60), EngineId(1));
    feed(&mut w, 0, wish(1, 1, &[s]));
    feed(&mut w, 0, WorkerInput::ManifestHeld(engine));
    let progress = |hub_wait_s| WorkerInput::Progress { engine, done_bytes: 1, total_bytes: 9, hub_wait_s };
    for (ms, left) in [(50_000, 300), (100_000, 250), (150_000, 200)] {
        feed(&mut w, ms, progress(left));
        assert!(feed(&mut w, ms + 1000, WorkerInput::Tick).is_empty());
    }
    let waits = StageStatus::Fetching { done_bytes: 1, total_bytes: 9, hub_wait_s: 200 };
    assert_eq!(w.reports()[0].status, waits);
    feed(&mut w, 151_000, progress(0));
    assert_eq!(feed(&mut w, 210_001, WorkerInput::Tick), ["cancel 1"]);
}

#[test]
fn memory_that_nobody_will_free_is_reported_with_numbers() {
    let (mut w, s) = (worker(), shard(1, 1, 101));
    feed(&mut w, 0, wish(1, 1, &[s]));
    feed(&mut w, 0, WorkerInput::ManifestHeld(EngineId(1)));
    assert!(feed(&mut w, 0, WorkerInput::Stored(EngineId(1))).is_empty());
    let StageStatus::Failed { why, .. } = &w.reports()[0].status else { panic!("{:?}", w.reports()) };
    assert!(matches!(why, LoadFailure::NoMemory { needed_bytes: 101, free_bytes: 100, .. }), "{why:?}");
    assert!(why.to_string().contains("needs 101 B, 100 B are free"), "{why}");
}

/// Any phase, for starting anywhere.
fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Absent),
        Just(Phase::FetchingManifest),
        Just(Phase::ManifestHeld),
        Just(Phase::FetchingChunks { done_bytes: 0, total_bytes: 0, hub_wait_s: 0 }),
        Just(Phase::Stored),
        Just(Phase::Loading { done_bytes: 0, total_bytes: 0 }),
        Just(Phase::Ready),
        Just(Phase::Unloading),
    ]
}

/// What the world answers to whatever is under way.
fn answer(entry: &ActualShard, works: bool) -> Option<WorkerInput> {
    let engine = entry.engine;
    let failed = WorkerInput::Failed { engine, why: fault(LoadFault::Fetch) };
    match entry.phase {
        Phase::Unloading => Some(WorkerInput::Unloaded(engine)),
        Phase::FetchingManifest | Phase::FetchingChunks { .. } | Phase::Loading { .. } if !works => {
            Some(failed)
        }
        Phase::FetchingManifest => Some(WorkerInput::ManifestHeld(engine)),
        Phase::FetchingChunks { .. } => Some(WorkerInput::Stored(engine)),
        Phase::Loading { .. } => Some(WorkerInput::Ready(engine)),
        Phase::Absent | Phase::ManifestHeld | Phase::Stored | Phase::Ready => None,
    }
}

/// The whole model, or one with a larger cache.
fn any_shard((id, number, is_wider): (u64, u32, bool)) -> DesiredShard {
    if is_wider { wider(id, number, 30) } else { shard(id, number, 30) }
}

proptest! {
    /// From any state, with chance failures, the worker reaches what is wanted; memory is never exceeded by
    /// anything it starts, and what is loaded with a wanted content is loaded to the end.
    #[test]
    fn any_state_reaches_the_desired_one(
        before in proptest::collection::vec((1u64..5, 1u32..3, any::<bool>(), phase()), 0..4),
        wanted in proptest::collection::btree_map((1u64..5, 1u32..3), any::<bool>(), 0..3),
        luck in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let mut w = worker();
        for (id, number, is_wider, phase) in before {
            w.engine_last = EngineId(w.engine_last.0 + 1);
            let mut entry = ActualShard::absent(w.engine_last, &any_shard((id, number, is_wider)), Time::ZERO);
            entry.phase = phase;
            if w.actual.iter().all(|a| a.serves != entry.serves) {
                w.actual.push(entry);
            }
        }
        prop_assert!(w.actual.iter().all(|a| a.spec.model == MODEL));
        // 3 x 30 fit beside nothing else; what was there before may be more than fits and must go first.
        let shards: Vec<DesiredShard> = wanted.into_iter().map(|((id, number), is_wider)| any_shard((id, number, is_wider))).collect();
        let loaded = |w: &Worker, spec: &ShardSpec| -> Vec<EngineId> {
            let is_it = |a: &&ActualShard| matches!(a.phase, Phase::Ready) && a.spec == *spec;
            w.actual.iter().filter(is_it).map(|a| a.engine).collect()
        };
        // As many of each content as were loaded and are wanted stay.
        let reusable: Vec<(ShardSpec, Vec<EngineId>, usize)> = shards.iter().map(|d| {
            let spec = d.spec();
            let (engines, times) = (loaded(&w, &spec), shards.iter().filter(|o| o.spec() == spec).count());
            let staying = engines.len().min(times);
            (spec, engines, staying)
        }).collect();
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
        prop_assert_eq!(w.actual.len(), shards.len());
        for shard in &shards {
            let engine = w.engine_of(shard.position());
            let entry = w.actual.iter().find(|a| Some(a.engine) == engine);
            let serves = |a: &ActualShard| matches!(a.phase, Phase::Ready) && a.spec == shard.spec();
            prop_assert!(entry.is_some_and(serves), "{:?}", w.actual);
        }
        for (spec, engines, staying) in reusable {
            let stayed = loaded(&w, &spec).iter().filter(|engine| engines.contains(engine)).count();
            prop_assert_eq!(stayed, staying);
        }
    }
}
