//! Whether an instance should be elsewhere, and the move there.

use exo_types::ModelId;

use super::*;
use crate::Moving;
use crate::ReplanReason;
use crate::wire::ReplanReport;

/// A request whose layers take their time.
fn large() -> InstanceRequest {
    let mut request = request();
    for layer in &mut request.shape.layers {
        (layer.weight_bytes, layer.packed_bytes, layer.flops_per_token) = (100 << 20, 100 << 20, 200 << 20);
    }
    request
}

/// Two nodes of which one serves, and a third that is so many times as fast.
fn joined(faster: f64) -> Bench {
    let mut bench = Bench::new(2);
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 1 }, request: large() });
    bench.all_report(&StageStatus::Serving);
    assert_eq!(bench.state(), Some(InstanceState::Ready), "{:?}", bench.replies);
    bench.feed(members(3));
    bench.feed(CoordinatorInput::NodeUp(node(3)));
    bench.report(3, fast(faster));
    bench
}

fn fast(times: f64) -> NodeReport {
    let mut report = report(3, PLENTY);
    let device = &mut report.facts.devices[0];
    (device.read_bytes_per_s, device.flops_per_s) = (Some(1e10 * times), Some(1e11 * times));
    report
}

fn replan(bench: &mut Bench, carry_out: bool) -> ReplanReport {
    let instance = bench.placement().instance;
    let reply = ReplyTo { node: node(2), request: 7 };
    bench.feed(CoordinatorInput::Replan { reply, instance, carry_out });
    match bench.replies.pop() {
        Some(ControlReply::Replanned(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_is_much_faster_is_worth_a_move_and_the_old_one_serves_meanwhile() {
    let mut bench = joined(4.0);
    let before = bench.placement().clone();
    let said = replan(&mut bench, false);
    assert!(said.is_better() && !said.is_moved && said.then_ns * 2 < said.now_ns, "{said:?}");
    assert_eq!((said.load_bytes, said.fetch_bytes), (4 * (100 << 20) + 1000, 4 * (100 << 20) + 1000));
    assert!(said.fetch_ns > 0 && bench.desired.get(&node(3)).is_none_or(|d| d.shards.is_empty()));

    let said = replan(&mut bench, true);
    assert!(said.is_moved && said.reason.to_string().contains("% less time"), "{said:?}");
    assert_eq!((bench.placement(), bench.state()), (&before, Some(InstanceState::Ready)));
    let ahead = &bench.desired[&node(3)].shards;
    assert!(ahead.len() == 1 && ahead[0].is_ahead, "{ahead:?}");
    let view = bench.coordinator.instances().remove(0);
    assert!(matches!(view.moving, Some(Moving::Loading { .. })), "{:?}", view.moving);
    let again = replan(&mut bench, true);
    assert!(!again.is_moved && again.reason == ReplanReason::BeingMoved, "{again:?}");

    let mut loaded = fast(4.0);
    let desired = bench.desired[&node(3)].clone();
    loaded.desired = Some((desired.epoch, desired.revision));
    loaded.stages = desired.shards.iter().map(|s| stage_report(s, &StageStatus::Loaded)).collect();
    bench.report(3, loaded);
    assert_eq!(bench.placement().stages[0].leader().node, node(3));
}

/// The file is on a slow line, and the node behind it is four times as fast.
#[test]
fn who_waits_gets_what_is_there_soon_and_is_told_what_is_faster() {
    let mut bench = Bench::new(2);
    let with_line = |bench: &mut Bench, bytes_per_s| {
        let mut other = report(2, PLENTY);
        let device = &mut other.facts.devices[0];
        (device.read_bytes_per_s, device.flops_per_s) = (Some(4e10), Some(4e11));
        other.links = vec![line_from(node(1), bytes_per_s)];
        bench.report(2, other);
    };
    with_line(&mut bench, 1_000_000);
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 1 }, request: large() });
    let Some(ControlReply::Placed { reasons, .. }) = bench.replies.last() else {
        panic!("{:?}", bench.replies)
    };
    assert!(reasons[0].contains("fetches 400.0 MiB first, 420 s or more: `exo replan`"), "{reasons:?}");
    assert_eq!(bench.placement().stages[0].leader().node, node(1));
    let mut serves = report(1, PLENTY);
    let desired = &bench.desired[&node(1)];
    serves.desired = Some((desired.epoch, desired.revision));
    serves.stages = desired.shards.iter().map(|s| stage_report(s, &StageStatus::Serving)).collect();
    bench.report(1, serves);
    let advice = bench.coordinator.instances().remove(0).advice;
    assert!(advice.is_some_and(|advice| advice.to_string().contains("% less time")), "{advice:?}");
    assert!(replan(&mut bench, true).is_moved, "nobody waits for it");

    let mut bench = Bench::new(2);
    with_line(&mut bench, 1_000_000_000);
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 1 }, request: large() });
    assert_eq!(bench.placement().stages[0].leader().node, node(2), "half a second is no wait");
}

#[test]
fn a_small_gain_is_not_worth_a_move() {
    let mut bench = joined(1.05);
    let said = replan(&mut bench, true);
    assert!(!said.is_better() && !said.is_moved && said.then_ns < said.now_ns, "{said:?}");
    assert!(matches!(said.reason, ReplanReason::GainsLittle { percent: 0..10, percent_min: 10 }), "{said:?}");
    let mut alone = Bench::new(1);
    alone.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 1 }, request: large() });
    alone.all_report(&StageStatus::Serving);
    assert_eq!(replan(&mut alone, true).reason, ReplanReason::Same);
}

#[test]
fn what_has_no_room_beside_what_serves_is_kept_with_the_bytes() {
    // The second node is fast and small: it takes three layers, beside which the first must load its one
    // anew.
    let mut bench = joined(4.0);
    let need = 100 << 20;
    let mut small = fast(4.0);
    small.facts.devices[0].memory_free_bytes = 3 * need + (80 << 20);
    bench.report(3, small);
    let serves = bench.placement().stages[0].leader().node;
    let mut full = report(serves.0[0], 10 << 20);
    let desired = bench.desired[&serves].clone();
    full.desired = Some((desired.epoch, desired.revision));
    full.stages = desired.shards.iter().map(|s| stage_report(s, &StageStatus::Serving)).collect();
    bench.report(serves.0[0], full);
    let other = if serves == node(1) { 2 } else { 1 };
    bench.report(other, report(other, 0));
    let said = replan(&mut bench, true);
    assert!(
        !said.is_better() && matches!(said.reason, ReplanReason::NoRoom { device: Some(_), .. }),
        "{said:?}"
    );
}

#[test]
fn what_has_no_room_in_memory_that_it_shares_with_what_serves_is_kept() {
    let mut bench = joined(4.0);
    let serves = bench.placement().stages[0].leader().node;
    for (n, of) in [(serves.0[0], report(serves.0[0], PLENTY)), (3, fast(4.0))] {
        bench.report_shared(n, of, 200 << 20, &StageStatus::Serving);
    }
    let said = replan(&mut bench, true);
    assert!(!said.is_better() && !said.is_moved, "{said:?}");
    assert!(matches!(said.reason, ReplanReason::NoRoom { device: None, .. }), "{said:?}");
}

#[test]
fn a_move_ends_with_the_node_that_it_was_for() {
    let mut bench = joined(4.0);
    assert!(replan(&mut bench, true).is_moved);
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert_eq!(
        (bench.coordinator.instances().remove(0).moving, bench.state()),
        (None, Some(InstanceState::Ready))
    );
    let gone = CoordinatorInput::Replan {
        reply: ReplyTo { node: node(1), request: 8 },
        instance: exo_types::InstanceId(77),
        carry_out: true,
    };
    bench.feed(gone);
    assert!(matches!(bench.replies.last(), Some(ControlReply::Refused(_))));
}

#[test]
fn when_devices_change_a_better_plan_is_told_and_left_to_people() {
    let mut bench = joined(4.0);
    let advice = |bench: &Bench| bench.coordinator.instances().remove(0).advice;
    assert_eq!(advice(&bench), None, "not before it has settled");
    bench.advance(5);
    let told = advice(&bench);
    assert!(told.is_some_and(|advice| advice.link.is_none()), "{told:?}");
    assert!(bench.desired.get(&node(3)).is_none_or(|d| d.shards.is_empty()), "nothing moves");
    // It comes and goes: one look in a minute, and nothing old is told.
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert_eq!(advice(&bench), None);
    bench.advance(6);
    bench.plans_wait = true;
    bench.advance(30);
    assert!(bench.plans.is_empty(), "{:?}", bench.plans);
    bench.advance(30);
    assert_eq!(bench.plans.len(), 1);
    bench.answer();
    assert_eq!(advice(&bench), None, "nothing better is there");
}

/// Three equal nodes: the round trip between the first two is this, and 1 ms to the third. What each was told
/// to hold serves.
fn report_links(bench: &mut Bench, rtt_us: u32) {
    for n in 1..=3 {
        let mut report = report(n, PLENTY);
        let line = |peer: u8| LinkReport {
            rtt_us: if n.max(peer) < 3 { rtt_us } else { 1000 },
            ..line_from(node(peer), 100_000_000)
        };
        report.links = (1..=3).filter(|peer| *peer != n).map(line).collect();
        let desired = bench.desired.get(&node(n));
        report.desired = desired.map(|d| (d.epoch, d.revision));
        let shards = desired.iter().flat_map(|d| &d.shards);
        report.stages = shards.map(|s| stage_report(s, &StageStatus::Serving)).collect();
        bench.report(n, report);
    }
}

/// Two stages on the first two of them, and every look over that their links gave a reason for.
fn beside_each_other() -> Bench {
    let mut bench = Bench::new(3);
    report_links(&mut bench, 200);
    let objective = PlaceObjective::Spread { stages_min: 2 };
    let request = InstanceRequest { objective, ..large() };
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 1 }, request });
    seconds_at(&mut bench, 200, 200);
    assert_eq!((bench.state(), on(&bench)), (Some(InstanceState::Ready), vec![node(1), node(2)]));
    bench
}

fn seconds_at(bench: &mut Bench, seconds: u64, rtt_us: u32) {
    for _ in 0..seconds {
        bench.advance(1);
        report_links(bench, rtt_us);
    }
}

fn on(bench: &Bench) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = bench.placement().shards().map(|(_, shard)| shard.node).collect();
    nodes.sort();
    nodes
}

#[test]
fn when_a_link_becomes_slow_a_better_plan_is_told_with_both_numbers_and_left_to_people() {
    let mut bench = beside_each_other();
    let advice = |bench: &Bench| bench.coordinator.instances().remove(0).advice;
    seconds_at(&mut bench, 30, 400_000);
    assert_eq!(advice(&bench), None, "not before it has settled");
    seconds_at(&mut bench, 1, 400_000);
    let told = advice(&bench).unwrap().text(&|node| format!("n{}", node.0[0]));
    assert!(told.contains("% less time; it was looked at because the round trip between n1"), "{told}");
    assert!(told.contains("is 400 ms, and was 0.2 ms"), "{told}");
    assert_eq!(on(&bench), [node(1), node(2)], "nothing moves");
    // Whoever moves it then is not told to move back: it would gain too little.
    assert!(replan(&mut bench, true).is_moved);
    seconds_at(&mut bench, 100, 400_000);
    assert!(on(&bench).contains(&node(3)), "{:?}", on(&bench));
    seconds_at(&mut bench, 200, 200);
    assert_eq!(advice(&bench), None);
    let said = replan(&mut bench, true);
    assert!(!said.is_moved && said.then_ns < said.now_ns, "{said:?}");
}

#[test]
fn a_link_that_wobbles_moves_nothing_and_keeps_no_planner_busy() {
    let mut bench = beside_each_other();
    let before = bench.placement().clone();
    bench.plans_wait = true;
    for _ in 0..20 {
        seconds_at(&mut bench, 30, 400_000);
        seconds_at(&mut bench, 30, 200);
    }
    assert!(bench.plans.is_empty(), "no number stayed: {:?}", bench.plans.len());
    // Slow enough to be looked at each time: at most once a minute, and still nobody is moved.
    let mut looks = 0;
    for _ in 0..10 {
        for rtt_us in [400_000, 200] {
            seconds_at(&mut bench, 40, rtt_us);
            if !bench.plans.is_empty() {
                looks += 1;
                bench.answer();
            }
        }
    }
    assert!((10..=14).contains(&looks), "{looks} in 800 s");
    assert_eq!(bench.placement(), &before);
    assert!(bench.desired.get(&node(3)).is_none_or(|d| d.shards.is_empty()), "{:?}", bench.desired);
}

/// An instance that serves, and a look of the planner's that nobody asked for in flight.
fn reviewing() -> Bench {
    let mut bench = joined(4.0);
    bench.plans_wait = true;
    bench.advance(5);
    assert_eq!(bench.plans.len(), 1);
    bench
}

#[test]
fn a_look_that_nobody_asked_for_holds_up_no_plan_and_is_made_later() {
    let mut bench = reviewing();
    let (review, request) = bench.plans.remove(0);
    let other = InstanceRequest { model: ModelId([8; 32]), model_name: "other".into(), ..super::request() };
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(2), request: 9 }, request: other });
    assert_eq!(bench.plans.len(), 1, "at once: {:?}", bench.replies);
    bench.answer();
    assert!(matches!(bench.replies.last(), Some(ControlReply::Placed { .. })), "{:?}", bench.replies);
    // The answer that was not waited for says nothing any more.
    bench.feed(planned(review, &request));
    assert_eq!(bench.coordinator.instances().remove(0).advice, None);
    bench.advance(60);
    assert_eq!(bench.plans.len(), 1, "it is asked for again");
}

#[test]
fn who_asks_for_a_look_waits_behind_a_lost_stage_and_is_answered() {
    let mut bench = Bench::ready_and_tight(3, 3);
    bench.plans_wait = true;
    let instance = bench.placement().instance;
    let reply = ReplyTo { node: node(2), request: 7 };
    bench.feed(CoordinatorInput::Replan { reply, instance, carry_out: false });
    let (review, request) = bench.plans.remove(0);
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert_eq!(bench.plans.len(), 1, "the stage's plan is being made");
    bench.feed(planned(review, &request));
    assert!(!bench.answered.contains(&7), "{:?}", bench.replies);
    let lost = bench.placement().id;
    while bench.placement().id == lost {
        assert!(!bench.answered.contains(&7), "{:?}", bench.replies);
        bench.answer();
    }
    bench.answer();
    assert!(bench.answered.contains(&7), "{:?}", bench.replies);
}
