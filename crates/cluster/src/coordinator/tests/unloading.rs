//! What requests loaded makes room for what is placed next.

use std::time::Duration;

use super::*;

fn place(bench: &mut Bench, n: u8, is_on_demand: bool) {
    let reply = ReplyTo { node: node(1), request: n.into() };
    bench.feed(CoordinatorInput::Place { reply, request: model(n, is_on_demand) });
}

/// One node reports what it was told to load, with so many requests on each model; `room` is for this many
/// models in all.
fn load(bench: &mut Bench, room: u64, sequences: u32) {
    load_with(bench, room, 1, |stage| stage.sequences = sequences);
}

/// The same, where only one part in so many of what is held is in memory yet.
fn load_with(bench: &mut Bench, room: u64, parts: u64, change: impl FnMut(&mut crate::wire::StageReport)) {
    load_on(bench, 1, (room, parts), change);
}

/// The same of node `n`.
fn load_on(
    bench: &mut Bench,
    n: u8,
    (room, parts): (u64, u64),
    change: impl FnMut(&mut crate::wire::StageReport),
) {
    let desired = bench.desired.get(&node(n)).cloned();
    let shards = desired.iter().flat_map(|d| &d.shards);
    let mut stages: Vec<_> = shards.map(|shard| stage_report(shard, &StageStatus::Serving)).collect();
    stages.iter_mut().for_each(change);
    let held: u64 = stages.iter().map(|stage| stage.held_bytes).sum();
    let all = room * (MODEL_BYTES + (MODEL_BYTES / 2));
    let mut report = report(n, all.saturating_sub(held / parts));
    report.facts.devices[0].memory_total_bytes = all;
    report.desired = desired.map(|d| (d.epoch, d.revision));
    report.stages = stages;
    bench.report(n, report);
}

/// A node with room for so many models, on which these were placed, on demand, one after the other.
fn loaded(room: u64, models: &[u8]) -> Bench {
    let mut bench = Bench::new(1);
    load(&mut bench, room, 0);
    for &n in models {
        place(&mut bench, n, true);
        load(&mut bench, room, 0);
        bench.advance(1);
    }
    bench
}

fn names(bench: &Bench) -> Vec<&str> {
    bench.coordinator.state().instances().values().map(|i| i.request.model_name.as_str()).collect()
}

#[test]
fn what_a_request_loaded_makes_room_for_the_next_model_in_one_write() {
    let mut bench = loaded(1, &[1]);
    bench.advance(10);
    place(&mut bench, 2, true);
    assert_eq!(names(&bench), ["m2"]);
    let [.., Event::InstanceRemoved { reason, .. }, Event::InstancePlaced { .. }] = &bench.log[..] else {
        panic!("{:?}", bench.log)
    };
    assert_eq!(reason.to_string(), "unloaded to make room for m2");
    let Some(ControlReply::Placed { reasons, .. }) = bench.replies.last() else { panic!() };
    assert!(reasons.iter().any(|r| r.contains("m1 is unloaded to make room")), "{reasons:?}");
    load(&mut bench, 1, 0);
    bench.advance(10);
    place(&mut bench, 3, false);
    assert_eq!(names(&bench), ["m3"], "for what a person places, too");
}

#[test]
fn what_a_model_may_take_is_not_free_because_it_has_not_touched_it_yet() {
    let mut bench = loaded(1, &[1]);
    bench.advance(10);
    load_with(&mut bench, 1, 8, |stage| stage.sequences = 0);
    place(&mut bench, 2, true);
    assert_eq!(names(&bench), ["m2"], "not both");
}

#[test]
fn what_was_used_last_and_what_is_not_in_the_way_stay() {
    let mut bench = loaded(2, &[1, 2]);
    assert_eq!(names(&bench), ["m1", "m2"]);
    bench.advance(10);
    place(&mut bench, 3, true);
    assert_eq!(names(&bench), ["m2", "m3"], "the first was used before the second");
}

#[test]
fn a_model_in_use_makes_no_room_and_who_asks_is_to_ask_again() {
    let mut bench = loaded(1, &[1]);
    bench.advance(10);
    load(&mut bench, 1, 1);
    place(&mut bench, 2, true);
    let in_use = ControlRefusal::InUse { model_names: vec!["m1".into()] };
    assert_eq!(refusal(&bench), (&in_use, "waiting for room: m1 is in use".to_owned()));
    load(&mut bench, 1, 0);
    bench.advance(2);
    place(&mut bench, 2, true);
    assert_eq!(*refusal(&bench).0, in_use, "its request has only just ended");
    bench.advance(2);
    place(&mut bench, 2, true);
    assert_eq!(names(&bench), ["m2"]);
}

/// Two nodes have one model together, and one of them is lost.
#[test]
fn what_lost_a_stage_under_requests_makes_no_room_while_their_answers_may_go_on() {
    for (sequences, stays) in [(1, true), (0, false)] {
        let mut bench = Bench::new(2);
        let report = |bench: &mut Bench, sequences: u32| {
            (1..=2).for_each(|n| load_on(bench, n, (1, 1), |stage| stage.sequences = sequences));
        };
        report(&mut bench, 0);
        let mut large = model(1, true);
        for layer in &mut large.shape.layers {
            (layer.weight_bytes, layer.packed_bytes) = (MODEL_BYTES / 2, MODEL_BYTES / 2);
        }
        let reply = ReplyTo { node: node(1), request: 1 };
        bench.feed(CoordinatorInput::Place { reply, request: large });
        assert_eq!(bench.placement().stages.len(), 2, "neither holds it alone");
        report(&mut bench, 0);
        assert_eq!(bench.state(), Some(InstanceState::Ready));
        bench.advance(20);
        report(&mut bench, sequences);
        bench.advance(5);
        bench.feed(CoordinatorInput::NodeLost(node(2)));
        assert!(matches!(bench.state(), Some(InstanceState::Waiting { .. })), "{:?}", bench.state());
        load_on(&mut bench, 1, (1, 1), |stage| stage.sequences = 0);
        bench.advance(10);
        place(&mut bench, 2, true);
        assert_eq!(names(&bench), [if stays { "m1" } else { "m2" }], "with {sequences} requests");
        if stays {
            assert_eq!(refusal(&bench).1, "waiting for room: m1 is in use");
            bench.advance(110);
            place(&mut bench, 2, true);
            assert_eq!(names(&bench), ["m2"], "by now they have ended");
        }
    }
}

#[test]
fn what_a_person_asked_for_stays_and_so_does_all_where_no_room_would_do() {
    let mut bench = loaded(1, &[1]);
    place(&mut bench, 1, false);
    assert!(matches!(bench.log.last(), Some(Event::InstanceKept { .. })), "{:?}", bench.log);
    bench.advance(10);
    place(&mut bench, 2, true);
    let (refusal_of_two, message) = refusal(&bench);
    let does_not_fit = matches!(refusal_of_two, ControlRefusal::DoesNotFit(_));
    assert!(does_not_fit && names(&bench) == ["m1"], "{message}");

    let mut bench = loaded(1, &[1]);
    bench.advance(10);
    let mut large = model(2, true);
    large.shape.layers.iter_mut().for_each(|layer| layer.packed_bytes = 4 * MODEL_BYTES);
    large.shape.layers.iter_mut().for_each(|layer| layer.weight_bytes = 4 * MODEL_BYTES);
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 7 }, request: large });
    assert!(matches!(refusal(&bench).0, ControlRefusal::DoesNotFit(_)) && names(&bench) == ["m1"]);
}

#[test]
fn a_request_between_two_reports_is_use() {
    let mut bench = loaded(3, &[1]);
    bench.coordinator.unload_idle_after = Some(Duration::from_secs(60));
    for busy_us in [10, 20, 30] {
        bench.advance(50);
        load_with(&mut bench, 3, 1, |stage| stage.busy_us = busy_us);
    }
    assert_eq!(names(&bench), ["m1"], "it was never seen with a request, and computed");
    bench.advance(50);
    load_with(&mut bench, 3, 1, |stage| stage.busy_us = 30);
    bench.advance(15);
    assert_eq!(names(&bench), [""; 0]);
}

#[test]
fn what_a_request_loaded_goes_when_none_used_it_for_long_and_what_a_person_placed_stays() {
    let mut bench = loaded(3, &[1, 2]);
    place(&mut bench, 3, false);
    load(&mut bench, 3, 0);
    bench.advance(3600);
    assert_eq!(names(&bench), ["m1", "m2", "m3"], "unless a time is set, nothing goes");
    let mut bench = loaded(3, &[1, 2]);
    bench.coordinator.unload_idle_after = Some(Duration::from_secs(60));
    place(&mut bench, 2, false);
    bench.advance(50);
    load(&mut bench, 3, 1);
    bench.advance(50);
    assert_eq!(names(&bench), ["m1", "m2"], "it had a request between");
    load(&mut bench, 3, 0);
    bench.advance(55);
    assert_eq!(names(&bench), ["m1", "m2"]);
    bench.advance(10);
    assert_eq!(names(&bench), ["m2"], "a person asked for the other");
    let Some(Event::InstanceRemoved { reason, .. }) = bench.log.last() else { panic!("{:?}", bench.log) };
    assert_eq!(reason.to_string(), "unloaded: a request had loaded it, and none used it for 60 s");
    bench.advance(3600);
    assert_eq!(names(&bench), ["m2"]);
    place(&mut bench, 1, true);
    assert_eq!(names(&bench), ["m2", "m1"], "the next request has it placed again");
}
