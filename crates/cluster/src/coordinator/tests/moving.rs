//! What is on a drained node goes elsewhere while it serves.

use super::*;
use crate::Moving;
use crate::wire::Drain;

fn drain(bench: &mut Bench, whom: NodeId, drain: Drain) {
    let asker = if drain == Drain::Leaving { whom } else { node(1) };
    let reply = ReplyTo { node: asker, request: 9 };
    bench.feed(CoordinatorInput::Drain { reply, node: whom, drain });
}

fn moving(bench: &Bench) -> Option<Moving> {
    bench.coordinator.instances().first().and_then(|view| view.moving.clone())
}

fn nodes(bench: &Bench) -> Vec<NodeId> {
    bench.placement().stages.iter().map(|stage| stage.leader().node).collect()
}

/// What a node loads ahead, as `layers`.
fn ahead(bench: &Bench, on: NodeId) -> Vec<String> {
    let shards = bench.desired.get(&on).map_or(&[][..], |desired| &desired.shards);
    shards.iter().filter(|shard| shard.is_ahead).map(|shard| shard.spec().layers.to_string()).collect()
}

/// Every worker reports what it serves as serving, and what it loads ahead with this status.
fn report_ahead(bench: &mut Bench, status: &StageStatus) {
    for (to, desired) in bench.desired.clone() {
        let mut report = report(to.0[0], bench.free);
        report.desired = Some((desired.epoch, desired.revision));
        let status = |shard: &crate::wire::DesiredShard| match shard.is_ahead {
            true => status.clone(),
            false => StageStatus::Serving,
        };
        report.stages = desired.shards.iter().map(|shard| stage_report(shard, &status(shard))).collect();
        bench.report(to.0[0], report);
    }
}

#[test]
fn a_drained_nodes_layers_are_loaded_elsewhere_before_the_placement_changes() {
    let mut bench = Bench::ready(3, 3);
    let before = bench.placement().clone();
    let whom = before.stages[1].leader().node;
    drain(&mut bench, whom, Drain::Lasting);
    assert_eq!(bench.replies.pop(), Some(ControlReply::Done { holders: 1 }));
    assert_eq!((bench.placement(), bench.state()), (&before, Some(InstanceState::Ready)), "it serves on");
    let takes = (1..=3).map(node).find(|n| !ahead(&bench, *n).is_empty()).expect("somebody loads it");
    assert_eq!(ahead(&bench, takes), [before.stages[1].layers.to_string()], "nobody else moves");
    report_ahead(&mut bench, &StageStatus::Loading { done_bytes: 1, total_bytes: 4 });
    let Some(Moving::Loading { done_bytes, total_bytes, .. }) = moving(&bench) else { panic!() };
    // A tenth of the way is loading.
    assert_eq!(done_bytes * 1000 / total_bytes, 924, "{done_bytes} of {total_bytes}");
    assert_eq!(bench.placement(), &before);
    let wanted = bench.desired[&takes].clone();
    let mut loaded = report(takes.0[0], bench.free);
    loaded.desired = Some((wanted.epoch, wanted.revision));
    let status = |is_ahead| if is_ahead { StageStatus::Loaded } else { StageStatus::Serving };
    loaded.stages = wanted.shards.iter().map(|shard| stage_report(shard, &status(shard.is_ahead))).collect();
    let input = CoordinatorInput::Report { from: takes, report: Box::new(loaded) };
    let mut bench_before = bench.coordinator.clone();
    let out = bench_before.handle(bench.now, input);
    let untold = !out.iter().any(|o| matches!(o, CoordinatorOutput::SendDesired { .. }));
    assert!(
        untold && matches!(out[0], CoordinatorOutput::Append { .. }),
        "it stays loaded until the log has it: {out:?}"
    );
    report_ahead(&mut bench, &StageStatus::Loaded);
    assert!(bench.placement().id > before.id && !nodes(&bench).contains(&whom), "{:?}", bench.placement());
    assert_eq!(
        (nodes(&bench)[0], nodes(&bench)[2]),
        (before.stages[0].leader().node, before.stages[2].leader().node)
    );
    assert!(bench.desired[&whom].shards.is_empty() && moving(&bench).is_none());
    bench.all_report(&StageStatus::Serving);
    assert_eq!(bench.state(), Some(InstanceState::Ready));
    // Nothing goes there, until it may again.
    bench.feed(CoordinatorInput::NodeLost(nodes(&bench)[1]));
    assert!(!nodes(&bench).contains(&whom));
}

#[test]
fn what_fits_nowhere_else_stays_and_serves_and_says_why() {
    let mut bench = Bench::ready_and_tight(2, 2);
    let before = bench.placement().clone();
    drain(&mut bench, node(2), Drain::Lasting);
    bench.all_report(&StageStatus::Serving);
    let Some(stays @ Moving::Stays { .. }) = moving(&bench) else { panic!("{:?}", moving(&bench)) };
    let reason = stays.text(&|node| format!("n{}", node.0[0]));
    assert!(
        reason.starts_with("n2 is drained") && reason.contains("no other device takes the layers there"),
        "{reason}"
    );
    let huge = Moving::Stays { node: node(2), bytes: 3_000_000_000 }.text(&|_| "n2".to_owned());
    assert!(huge.ends_with("the layers there, of 2.8 GiB"), "{huge}");
    assert_eq!((bench.placement(), bench.state()), (&before, Some(InstanceState::Ready)));
    drain(&mut bench, node(2), Drain::Over);
    assert!(moving(&bench).is_none());
    // Room comes while it is drained.
    drain(&mut bench, node(2), Drain::Leaving);
    bench.free = PLENTY;
    bench.all_report(&StageStatus::Serving);
    bench.advance(3);
    report_ahead(&mut bench, &StageStatus::Loaded);
    assert!(!nodes(&bench).contains(&node(2)), "{:?}", bench.placement());
}

/// Two nodes are drained, and a third one comes to have room for the layers of one of them.
#[test]
fn of_two_drained_nodes_one_moves_where_there_is_no_room_for_both() {
    let mut bench = Bench::ready(4, 3);
    let before = nodes(&bench);
    let empty = (1..=4).map(node).find(|n| !before.contains(n)).expect("one without a stage");
    bench.free = TIGHT;
    bench.all_report(&StageStatus::Serving);
    bench.report(empty.0[0], report(empty.0[0], TIGHT));
    drain(&mut bench, before[0], Drain::Lasting);
    drain(&mut bench, before[2], Drain::Lasting);
    assert!(matches!(moving(&bench), Some(Moving::Stays { .. })), "{:?}", moving(&bench));
    let entry = bench.coordinator.state().instances().values().next().unwrap();
    let room = entry.memory_bytes[0].max(entry.memory_bytes[2]) + (1 << 20);
    bench.report(empty.0[0], report(empty.0[0], room));
    bench.advance(3);
    assert_eq!(ahead(&bench, empty).len(), 1, "{:?}", moving(&bench));
    report_ahead(&mut bench, &StageStatus::Loaded);
    assert_eq!(nodes(&bench), [empty, before[1], before[2]]);
    bench.all_report(&StageStatus::Serving);
    bench.advance(3);
    let Some(Moving::Stays { node, .. }) = moving(&bench) else { panic!("{:?}", moving(&bench)) };
    assert_eq!((node, nodes(&bench)[2], bench.state()), (before[2], before[2], Some(InstanceState::Ready)));
}

#[test]
fn a_device_that_refuses_what_is_loaded_ahead_is_left_out() {
    let mut bench = Bench::ready(3, 3);
    let whom = bench.placement().stages[1].leader().node;
    drain(&mut bench, whom, Drain::Lasting);
    let takes = (1..=3).map(node).find(|n| !ahead(&bench, *n).is_empty()).unwrap();
    report_ahead(&mut bench, &failed_load(LoadFault::Device, "no room", 3));
    let next = (1..=3).map(node).find(|n| !ahead(&bench, *n).is_empty()).expect("another one");
    assert!(next != takes && next != whom);
    report_ahead(&mut bench, &StageStatus::Loaded);
    assert!(!nodes(&bench).contains(&whom) && bench.state() == Some(InstanceState::Placing));
}

/// As any load: a hub that gives nothing for a quarter of an hour gives nothing.
#[test]
fn a_move_that_a_hub_holds_up_for_too_long_goes_elsewhere() {
    let mut bench = Bench::ready(3, 3);
    let whom = bench.placement().stages[1].leader().node;
    drain(&mut bench, whom, Drain::Lasting);
    let takes = (1..=3).map(node).find(|n| !ahead(&bench, *n).is_empty()).unwrap();
    let waits = StageStatus::Fetching { done_bytes: 1, total_bytes: 4, hub_wait_s: 300 };
    report_ahead(&mut bench, &waits);
    for _ in 0..9 {
        bench.advance(100);
        report_ahead(&mut bench, &waits);
        assert_eq!(ahead(&bench, takes).len(), 1, "the hub has it wait");
    }
    bench.advance(121);
    bench.advance(1);
    let next = (1..=3).map(node).find(|n| !ahead(&bench, *n).is_empty()).expect("another one");
    assert!(next != takes && next != whom, "{next} after {takes}");
}

#[test]
fn a_loss_ends_a_move_and_is_repaired_with_the_drained_node_where_it_is() {
    let mut bench = Bench::ready(3, 3);
    let before = nodes(&bench);
    drain(&mut bench, before[1], Drain::Lasting);
    bench.feed(CoordinatorInput::NodeLost(before[2]));
    assert_eq!(nodes(&bench), [before[0], before[1], before[0]], "what stands stays");
}

#[test]
fn only_members_are_drained() {
    let mut bench = Bench::new(2);
    drain(&mut bench, node(7), Drain::Lasting);
    let Some(ControlReply::Refused(ControlRefusal::Unknown(_))) = bench.replies.pop() else { panic!() };
    drain(&mut bench, node(2), Drain::Lasting);
    bench.place(2);
    let (why, message) = refusal(&bench);
    assert!(matches!(why, ControlRefusal::Invalid(InvalidAsk::NoPlan(_))), "{why:?}");
    assert!(message.contains('1'), "{message}");
}

#[test]
fn only_a_node_itself_leaves_and_not_for_longer_than_it_says_so() {
    let mut bench = Bench::ready(3, 3);
    let whom = bench.placement().stages[1].leader().node;
    let reply = ReplyTo { node: node(1), request: 9 };
    bench.feed(CoordinatorInput::Drain { reply, node: node(2), drain: Drain::Leaving });
    let Some(ControlReply::Refused(ControlRefusal::Invalid(_))) = bench.replies.pop() else { panic!() };
    drain(&mut bench, whom, Drain::Leaving);
    assert!(moving(&bench).is_some());
    bench.advance(4);
    assert!(moving(&bench).is_none() && bench.desired.values().all(|d| d.shards.iter().all(|s| !s.is_ahead)));
}

#[test]
fn a_node_whose_reports_say_that_it_ends_is_given_nothing_and_its_layers_move() {
    let mut bench = Bench::ready(3, 3);
    let whom = bench.placement().stages[1].leader().node;
    let tell = |bench: &mut Bench, is_leaving: bool| {
        let desired = bench.desired[&whom].clone();
        let mut report = report(whom.0[0], bench.free);
        report.desired = Some((desired.epoch, desired.revision));
        report.stages = desired.shards.iter().map(|s| stage_report(s, &StageStatus::Serving)).collect();
        report.is_leaving = is_leaving;
        bench.report(whom.0[0], report);
    };
    tell(&mut bench, true);
    assert!(moving(&bench).is_some(), "{:?}", bench.state());
    tell(&mut bench, false);
    assert!(moving(&bench).is_none(), "it stays after all");
    tell(&mut bench, true);
    let other = nodes(&bench).into_iter().find(|node| *node != whom).unwrap();
    bench.feed(CoordinatorInput::NodeLost(other));
    assert_eq!(nodes(&bench).iter().filter(|node| **node == whom).count(), 1, "no more than it has");
}

#[test]
fn what_is_loaded_ahead_is_kept_when_its_node_is_lost_before() {
    let mut bench = Bench::ready(3, 3);
    let whom = bench.placement().stages[1].leader().node;
    drain(&mut bench, whom, Drain::Lasting);
    let takes = (1..=3).map(node).find(|n| !ahead(&bench, *n).is_empty()).unwrap();
    let before = bench.desired[&takes].clone();
    let out = bench.coordinator.handle(bench.now, CoordinatorInput::NodeLost(whom));
    let less = out.iter().any(|o| matches!(o, CoordinatorOutput::SendDesired { to, .. } if *to == takes));
    assert!(!less, "nothing is unloaded before the log has the next placement: {out:?}");
    bench.feed(CoordinatorInput::Appended(AppendId(3)));
    let spec = before.shards.iter().find(|s| s.is_ahead).unwrap().spec();
    assert!(
        bench.desired[&takes].shards.iter().any(|s| !s.is_ahead && s.spec() == spec),
        "it becomes a stage"
    );
}

#[test]
fn a_term_does_not_end_a_move_and_the_loss_of_its_device_begins_another() {
    let mut bench = Bench::ready(4, 3);
    let whom = bench.placement().stages[1].leader().node;
    drain(&mut bench, whom, Drain::Lasting);
    let takes = (1..=4).map(node).find(|n| !ahead(&bench, *n).is_empty()).unwrap();
    let mut between = bench.coordinator.clone();
    let mut wiring = report(1, PLENTY);
    let own = bench.desired[&node(1)].shards.iter().filter(|shard| !shard.is_ahead);
    wiring.stages = own.map(|shard| stage_report(shard, &StageStatus::Loaded)).collect();
    let out = between.handle(bench.now, CoordinatorInput::Report { from: node(1), report: Box::new(wiring) });
    assert_eq!(between.instances()[0].state, InstanceState::Wiring, "its scheduler opens the links again");
    assert!(!out.iter().any(|o| matches!(o, CoordinatorOutput::SendDesired { .. })), "{out:?}");
    report_ahead(&mut bench, &StageStatus::Loading { done_bytes: 1, total_bytes: 4 });
    let before = nodes(&bench);
    drain(&mut bench, takes, Drain::Lasting);
    let next = (1..=4).map(node).find(|n| !ahead(&bench, *n).is_empty()).expect("another one");
    assert!(next != takes && next != whom && nodes(&bench) == before, "{:?}", moving(&bench));
}

#[test]
fn a_removed_node_is_drained_no_more() {
    let mut bench = Bench::new(3);
    drain(&mut bench, node(3), Drain::Lasting);
    bench.feed(members(2));
    assert!(bench.coordinator.state().drained().is_empty());
}

#[test]
fn a_log_that_cannot_be_written_is_not_asked_at_once_to_forget_a_removed_node() {
    let mut bench = Bench::new(2);
    drain(&mut bench, node(2), Drain::Lasting);
    let appends = |out: Vec<CoordinatorOutput>| {
        let append = |o| match o {
            CoordinatorOutput::Append { append, .. } => Some(append),
            _ => None,
        };
        out.into_iter().filter_map(append).collect::<Vec<_>>()
    };
    let [append] = appends(bench.coordinator.handle(bench.now, members(1)))[..] else {
        panic!("it is forgotten")
    };
    let failed = CoordinatorInput::AppendFailed { append, reason: "disk full".into() };
    assert!(appends(bench.coordinator.handle(bench.now, failed)).is_empty());
    assert!(appends(bench.coordinator.handle(bench.now, CoordinatorInput::Tick)).is_empty());
    bench.advance(1);
    assert!(bench.coordinator.state().drained().is_empty(), "a second later it is");
}

/// What serves on a drained node stays until its layers are elsewhere: beside it there must be room for them.
#[test]
fn layers_of_a_drained_node_do_not_move_to_memory_that_they_fill_themselves() {
    for (free_percent, moves) in [(50, false), (150, true)] {
        let mut bench = Bench::ready(2, 1);
        let entry = bench.coordinator.state().instances().values().next().unwrap().clone();
        let from = entry.placement.stages[0].leader().node;
        for n in 1..=2 {
            let free_bytes = entry.memory_bytes[0] * free_percent / 100;
            bench.report_shared(n, report(n, PLENTY), free_bytes, &StageStatus::Serving);
        }
        drain(&mut bench, from, Drain::Lasting);
        bench.advance(1);
        let moving = bench.coordinator.instances().remove(0).moving;
        assert_eq!(matches!(moving, Some(Moving::Loading { .. })), moves, "{moving:?}");
    }
}
