//! A member whose disk does not answer keeps its stages and gets no more until it writes again.

use super::*;

/// What a node reports that does what it was told, with a disk that answers or does not.
fn tell(bench: &mut Bench, whom: NodeId, is_disk_hung: bool) {
    let mut report = report(whom.0[0], bench.free);
    if let Some(desired) = bench.desired.get(&whom) {
        report.desired = Some((desired.epoch, desired.revision));
        report.stages = desired.shards.iter().map(|s| stage_report(s, &StageStatus::Serving)).collect();
    }
    report.is_disk_hung = is_disk_hung;
    bench.report(whom.0[0], report);
}

fn nodes(bench: &Bench) -> Vec<NodeId> {
    bench.placement().stages.iter().map(|stage| stage.leader().node).collect()
}

#[test]
fn nothing_is_placed_on_a_member_whose_disk_does_not_answer_and_the_plan_says_why() {
    for is_hung in [true, false] {
        let mut bench = Bench::new(2);
        tell(&mut bench, node(2), is_hung);
        bench.place(1);
        let Some(ControlReply::Placed { reasons, .. }) = bench.replies.pop() else {
            panic!("{:?}", bench.replies)
        };
        let says = reasons.iter().any(|reason| reason.contains("the disk of its node does not answer"));
        assert_eq!(says, is_hung, "{reasons:?}");
        assert!(!is_hung || nodes(&bench) == [node(1)], "{:?}", nodes(&bench));
    }
}

#[test]
fn a_member_whose_disk_does_not_answer_keeps_what_it_has_and_gets_no_more() {
    let mut bench = Bench::ready(3, 3);
    let before = bench.placement().clone();
    let whom = before.stages[1].leader().node;
    tell(&mut bench, whom, true);
    bench.advance(1);
    assert_eq!((bench.placement(), bench.state()), (&before, Some(InstanceState::Ready)), "it serves on");
    let other = nodes(&bench).into_iter().find(|other| ![whom, node(1)].contains(other)).unwrap();
    bench.feed(CoordinatorInput::NodeLost(other));
    assert!(!nodes(&bench).contains(&other), "{:?}", nodes(&bench));
    assert_eq!(nodes(&bench).iter().filter(|node| **node == whom).count(), 1, "no more than it has");
}

/// An instance that waits, as it has lost its node and the disk of the only other one does not answer.
fn waiting() -> (Bench, NodeId) {
    let mut bench = Bench::new(3);
    // The coordinator has no room of its own.
    bench.report(1, report(1, 0));
    bench.place(1);
    bench.all_report(&StageStatus::Serving);
    bench.report(1, report(1, 0));
    assert_eq!(bench.state(), Some(InstanceState::Ready));
    let whom = nodes(&bench)[0];
    let other = if whom == node(2) { node(3) } else { node(2) };
    tell(&mut bench, other, true);
    bench.feed(CoordinatorInput::NodeLost(whom));
    assert!(matches!(bench.state(), Some(InstanceState::Waiting { .. })), "{:?}", bench.state());
    (bench, other)
}

#[test]
fn what_waits_for_a_disk_is_placed_as_soon_as_that_answers() {
    let (mut bench, other) = waiting();
    tell(&mut bench, other, false);
    assert_eq!(nodes(&bench), [other], "{:?}", bench.state());
}

#[test]
fn a_disk_that_wavers_has_what_waits_look_once_in_ten_seconds() {
    let (mut bench, other) = waiting();
    let free = std::mem::replace(&mut bench.free, 0);
    tell(&mut bench, other, false);
    tell(&mut bench, other, true);
    // There is room by now; who looks finds it.
    bench.free = free;
    tell(&mut bench, other, false);
    assert!(matches!(bench.state(), Some(InstanceState::Waiting { .. })), "{:?}", bench.state());
}
