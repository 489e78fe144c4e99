//! Pins and exclusions hold whenever an instance is placed again.

use exo_types::{Exclusion, LayerRange, Pin, PinLayers};

use super::*;

fn pin(n: u8, layers: PinLayers) -> Pin {
    Pin { node: node(n), device: DeviceId::cpu(), layers }
}

/// What `change` makes of the usual request is placed, and serves.
fn ready_with(members: u8, change: impl FnOnce(&mut InstanceRequest)) -> Bench {
    let mut bench = Bench::new(members);
    ask(&mut bench, change);
    bench.all_report(&StageStatus::Serving);
    assert_eq!(bench.state(), Some(InstanceState::Ready), "{:?}", bench.replies);
    bench
}

fn ask(bench: &mut Bench, change: impl FnOnce(&mut InstanceRequest)) {
    let mut request = request();
    change(&mut request);
    bench.feed(CoordinatorInput::Place { reply: ReplyTo { node: node(1), request: 1 }, request });
}

fn held(bench: &Bench, n: u8) -> u32 {
    let stages = bench.placement().stages.iter().filter(|stage| stage.leader().node == node(n));
    stages.map(|stage| stage.layers.len()).sum()
}

#[test]
fn a_pin_and_an_exclusion_hold_when_a_stage_is_lost() {
    let excluded = Exclusion { node: node(4), device: None };
    let mut bench = ready_with(4, |r| {
        r.objective = PlaceObjective::Spread { stages_min: 3 };
        (r.pins, r.excluded) = (vec![pin(2, PinLayers::Count(1))], vec![excluded]);
    });
    assert_eq!((held(&bench, 2), held(&bench, 4)), (1, 0));
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert_eq!((held(&bench, 1), held(&bench, 2), held(&bench, 4)), (3, 1, 0), "not more, not there");
}

#[test]
fn a_pin_ends_with_the_membership_of_its_node() {
    let mut bench = ready_with(3, |r| r.pins = vec![pin(3, PinLayers::Range(LayerRange::new(0, 2)))]);
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert!(matches!(bench.state(), Some(InstanceState::Waiting { .. })), "{:?}", bench.state());
    bench.feed(members(2));
    bench.advance(6);
    assert_eq!((held(&bench, 1) + held(&bench, 2), held(&bench, 3)), (4, 0), "{:?}", bench.placement());
}

#[test]
fn an_instance_waits_for_its_pinned_device_and_says_so() {
    let mut bench = ready_with(3, |r| r.pins = vec![pin(2, PinLayers::Range(LayerRange::new(0, 2)))]);
    bench.feed(CoordinatorInput::NodeLost(node(2)));
    let Some(InstanceState::Waiting { reason }) = bench.state() else { panic!("{:?}", bench.state()) };
    let reason = reason.to_string();
    assert!(reason.contains("the pin of") && reason.contains("anew without the pin"), "{reason}");
    bench.feed(CoordinatorInput::NodeUp(node(2)));
    bench.report(2, report(2, PLENTY));
    assert_eq!(held(&bench, 2), 2, "{:?}", bench.placement());
}

#[test]
fn wishes_that_no_plan_meets_are_refused_with_their_reason() {
    let mut bench = Bench::new(2);
    ask(&mut bench, |r| r.pins = vec![pin(1, PinLayers::Count(3)), pin(2, PinLayers::Count(2))]);
    assert!(
        refusal(&bench).1.contains("the pins ask for 5 layers, the model has 4"),
        "{:?}",
        refusal(&bench)
    );
    ask(&mut bench, |r| r.excluded = [1, 2].map(|n| Exclusion { node: node(n), device: None }).to_vec());
    assert!(refusal(&bench).1.contains("no device can be used"), "{:?}", refusal(&bench));
    bench.report(2, report(2, TIGHT));
    ask(&mut bench, |r| r.pins = vec![pin(2, PinLayers::Count(4))]);
    assert!(refusal(&bench).1.contains("layers at most: pin fewer"), "{:?}", refusal(&bench));
    assert!(bench.log.is_empty());
}

#[test]
fn who_asks_with_other_wishes_is_not_answered_with_what_there_is() {
    let mut bench = ready_with(2, |r| r.pins = vec![pin(2, PinLayers::Any)]);
    ask(&mut bench, |_| {});
    assert!(matches!(bench.replies.last(), Some(ControlReply::Placed { .. })), "a request takes any");
    ask(&mut bench, |r| r.pins = vec![pin(1, PinLayers::Any)]);
    assert!(refusal(&bench).1.contains("with other pins"), "{:?}", refusal(&bench));
    ask(&mut bench, |r| r.objective = PlaceObjective::Throughput { streams: 4 });
    assert!(refusal(&bench).1.contains("another objective"), "{:?}", refusal(&bench));
    let mut bench = Bench::new(2);
    bench.plans_wait = true;
    ask(&mut bench, |_| {});
    ask(&mut bench, |r| r.pins = vec![pin(1, PinLayers::Any)]);
    assert!(refusal(&bench).1.contains("its plan is being made"), "{:?}", refusal(&bench));
}
