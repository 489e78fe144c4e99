//! What is lost of a placement, and where it goes: repaired, planned anew, waited for, given up.

use super::*;
use crate::coordinator::survey::AVOID_FAILED;

/// Stages as `node: layers`, in order.
fn layout(bench: &Bench) -> Vec<(u8, String)> {
    let stages = bench.placement().stages.iter();
    stages.map(|stage| (stage.leader().node.0[0], stage.layers.to_string())).collect()
}

fn reason(bench: &Bench) -> String {
    match bench.log.last() {
        Some(Event::InstanceReplaced { reason, .. }) => reason.to_string(),
        Some(Event::InstanceRemoved { reason, .. }) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

fn waits_for(bench: &Bench) -> String {
    match bench.state() {
        Some(InstanceState::Waiting { reason }) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_stage_becomes_a_further_one_on_a_survivor_and_nobody_else_moves() {
    let mut bench = Bench::ready(3, 3);
    let before = layout(&bench);
    let lost = bench.placement().stages[1].leader().node;
    let out = bench.coordinator.handle(bench.now, CoordinatorInput::NodeLost(lost));
    assert!(
        !out.iter().any(|o| matches!(o, CoordinatorOutput::Plan { .. })),
        "no plan is waited for: {out:?}"
    );
    bench.feed(CoordinatorInput::Appended(AppendId(2)));
    let after = layout(&bench);
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert!(after[1].1 == before[1].1 && after[1].0 != lost.0[0], "{after:?}");
    assert_eq!((bench.placement().id, bench.state()), (placed(2), Some(InstanceState::Placing)));
    let told = |n: &NodeId| bench.desired[n].shards.iter().map(|s| s.placement.id.number).collect::<Vec<_>>();
    assert!(bench.placement().shards().all(|(_, s)| told(&s.node).iter().all(|number| *number == 2)));
}

#[test]
fn a_lost_stage_goes_to_a_free_node_that_has_room() {
    let mut bench = Bench::ready(3, 2);
    let before = layout(&bench);
    let lost = bench.placement().stages[1].leader().node;
    bench.free = TIGHT;
    bench.all_report(&StageStatus::Serving);
    let free = (1..=3).find(|n| bench.placement().stage_of(node(*n)).is_none()).unwrap();
    bench.report(free, report(free, PLENTY));
    bench.feed(CoordinatorInput::NodeLost(lost));
    assert_eq!(layout(&bench), [before[0].clone(), (free, before[1].1.clone())]);
}

/// Answers stand still until its weights are there: the faster device is the worse one behind a slow line.
#[test]
fn a_lost_stage_goes_where_it_is_soon_there() {
    let placed_on = |bytes_per_s| {
        let mut bench = Bench::ready(4, 2);
        let (holder, lost) =
            (bench.placement().stages[0].leader().node, bench.placement().stages[1].leader().node);
        assert_eq!(holder, node(1), "it has the file");
        bench.free = TIGHT;
        bench.all_report(&StageStatus::Serving);
        let mut free = (1..=4).filter(|n| bench.placement().stage_of(node(*n)).is_none());
        let (fast, other) = (free.next().unwrap(), free.next().unwrap());
        let mut report_of_fast = report(fast, PLENTY);
        let device = &mut report_of_fast.facts.devices[0];
        (device.read_bytes_per_s, device.flops_per_s) = (Some(4e10), Some(4e11));
        report_of_fast.links = vec![line_from(holder, bytes_per_s)];
        bench.report(fast, report_of_fast);
        bench.report(other, report(other, PLENTY));
        bench.feed(CoordinatorInput::NodeLost(lost));
        (layout(&bench)[1].0, fast, other)
    };
    let (on, fast, _) = placed_on(1_000_000_000);
    assert_eq!(on, fast);
    let (on, _, other) = placed_on(1000);
    assert_eq!(on, other);
}

/// Who asked for two nodes gets two again, but for one that fetches its part at ten bytes a second.
#[test]
fn a_lost_stage_stays_with_the_holder_where_the_only_free_node_would_fetch_for_long() {
    let placed_on = |bytes_per_s| {
        let mut bench = Bench::ready(3, 2);
        let (holder, lost) =
            (bench.placement().stages[0].leader().node, bench.placement().stages[1].leader().node);
        let free = (1..=3).find(|n| bench.placement().stage_of(node(*n)).is_none()).unwrap();
        let mut report_of_free = report(free, PLENTY);
        report_of_free.links = vec![line_from(holder, bytes_per_s)];
        bench.report(free, report_of_free);
        bench.feed(CoordinatorInput::NodeLost(lost));
        (layout(&bench)[1].0, holder.0[0], free)
    };
    let (on, _, free) = placed_on(1_000_000_000);
    assert_eq!(on, free);
    let (on, holder, _) = placed_on(10);
    assert_eq!(on, holder);
}

/// Two nodes of one machine: of what is free there, each lost stage takes its own.
#[test]
fn lost_layers_fill_the_memory_that_survivors_share_once() {
    let mut bench = Bench::ready(4, 4);
    let needed =
        |bench: &Bench| bench.coordinator.state().instances().values().next().unwrap().memory_bytes.clone();
    let held = needed(&bench);
    let (stage, all) = (held[1], held[0] + held[3] + held[1] + held[1] / 2);
    let nodes: Vec<NodeId> = bench.placement().stages.iter().map(|stage| stage.leader().node).collect();
    for n in [nodes[0].0[0], nodes[3].0[0]] {
        bench.report_shared(n, report(n, PLENTY), stage + stage / 2, &StageStatus::Serving);
    }
    bench.feed(CoordinatorInput::NodeLost(nodes[1]));
    assert_eq!(bench.placement().id, placed(2), "{:?}", bench.state());
    let (once, survivors) = (layout(&bench), [nodes[0].0[0], nodes[3].0[0]]);
    assert!(survivors.contains(&once[1].0), "{once:?}");
    // A stage does not fit a second time; in larger stages, of less workspace, the model does.
    bench.feed(CoordinatorInput::NodeLost(nodes[2]));
    let sum: u64 = needed(&bench).iter().sum();
    assert!(bench.placement().id != placed(2) && sum <= all, "{sum} of {all}: {:?}", layout(&bench));
}

#[test]
fn lost_layers_that_no_device_holds_whole_are_cut() {
    let mut bench = Bench::ready(3, 1);
    let only = bench.placement().stages[0].leader().node.0[0];
    let whole = bench.coordinator.state().instances().values().next().unwrap().memory_bytes[0];
    let left: BTreeSet<u8> = (1..=3).filter(|n| *n != only).collect();
    left.iter().for_each(|n| bench.report(*n, report(*n, whole - 1)));
    let mut gave_up = report(only, PLENTY);
    gave_up.facts.devices[0].support = SupportClass::Unsupported;
    bench.report(only, gave_up);
    let nodes: BTreeSet<u8> = layout(&bench).iter().map(|(n, _)| *n).collect();
    assert_eq!(nodes, left, "{:?}", layout(&bench));
}

#[test]
fn where_no_further_stage_fits_the_rest_is_planned_anew() {
    let mut bench = Bench::ready_and_tight(3, 3);
    let lost = bench.placement().stages[2].leader().node;
    let out = bench.coordinator.handle(bench.now, CoordinatorInput::NodeLost(lost));
    let degraded = out.iter().any(|o| {
        matches!(o, CoordinatorOutput::InstanceChanged(v) if matches!(v.state, InstanceState::Degraded { .. }))
    });
    assert!(degraded, "{out:?}");
    // Three stages were asked for, two are possible.
    bench.plans_wait = true;
    let plan = out.iter().find_map(|o| match o {
        CoordinatorOutput::Plan { plan, request } => Some(planned(*plan, request)),
        _ => None,
    });
    bench.feed(plan.unwrap());
    bench.answer();
    assert_eq!((bench.placement().id, bench.placement().stages.len()), (placed(2), 2));
    assert!(bench.placement().stage_of(lost).is_none() && reason(&bench).contains("is lost"));
}

#[test]
fn an_instance_that_fits_nowhere_waits_and_goes_on_when_the_node_is_back() {
    let mut bench = Bench::ready(2, 2);
    let before = layout(&bench);
    bench.free = 0;
    bench.all_report(&StageStatus::Serving);
    let lost = bench.placement().stages[1].leader().node;
    let back = bench.desired[&lost].clone();
    bench.feed(CoordinatorInput::NodeLost(lost));
    let why = waits_for(&bench);
    assert!(why.contains("is lost") && why.contains("are missing"), "{why}");
    bench.advance(3600);
    assert_eq!((waits_for(&bench), bench.log.len()), (why, 1), "for as long as it takes");
    // It comes back with what it held.
    bench.feed(CoordinatorInput::NodeUp(lost));
    let mut returned = report(lost.0[0], 0);
    returned.stages = back.shards.iter().map(|s| stage_report(s, &StageStatus::Loaded)).collect();
    bench.report(lost.0[0], returned);
    assert_eq!((layout(&bench), bench.placement().id), (before, placed(2)));
}

#[test]
fn a_lost_node_does_not_get_its_stage_back_over_a_link_that_is_not_there() {
    let mut bench = Bench::ready(3, 3);
    let nodes: Vec<NodeId> = bench.placement().stages.iter().map(|s| s.leader().node).collect();
    // The first and the second do not talk any more.
    let mut cut_off = report(nodes[0].0[0], PLENTY);
    cut_off.unreached = vec![nodes[1]];
    cut_off.instance_failures =
        vec![InstanceFailure { placement: placed(1), stage: None, why: step_failed("no link") }];
    bench.report(nodes[0].0[0], cut_off);
    assert_eq!(bench.placement().id.number, 2);
    let round = layout(&bench);
    let apart = |a: u8, b: u8| {
        (node(a) == nodes[0] && node(b) == nodes[1]) || (node(b) == nodes[0] && node(a) == nodes[1])
    };
    let pairs = round.iter().zip(round.iter().cycle().skip(1));
    assert!(pairs.into_iter().all(|((a, _), (b, _))| !apart(*a, *b)), "{round:?}");
}

#[test]
fn a_model_that_fits_only_over_a_pair_that_does_not_talk_is_refused_with_their_names() {
    let mut bench = Bench::new(2);
    let mut cut_off = report(1, PLENTY);
    cut_off.unreached = vec![node(2)];
    bench.report(1, cut_off);
    bench.advance(10);
    bench.place(2);
    let (refusal, message) = refusal(&bench);
    let ControlRefusal::NoPlan { why: Undecided::Apart { a, b }, .. } = refusal else {
        panic!("{refusal:?}")
    };
    assert_eq!(BTreeSet::from([*a, *b]), BTreeSet::from([node(1), node(2)]));
    assert!(message.contains("no data link is open"), "{message}");
}

#[test]
fn a_fetch_that_goes_on_behind_what_it_had_and_one_that_the_hub_has_wait_are_not_given_up() {
    let mut bench = Bench::new(2);
    bench.place(2);
    let first = layout(&bench);
    let fetching =
        |done_bytes, hub_wait_s| StageStatus::Fetching { done_bytes, total_bytes: 900, hub_wait_s };
    bench.all_report(&fetching(500, 0));
    bench.all_report(&failed_load(LoadFault::Fetch, "the line broke", 0));
    bench.advance(100);
    bench.all_report(&fetching(501, 0));
    bench.advance(100);
    assert_eq!(layout(&bench), first, "what was there before counts");
    for _ in 0..6 {
        bench.all_report(&fetching(501, 300));
        bench.advance(100);
    }
    assert_eq!(layout(&bench), first, "the hub has them wait");
    bench.all_report(&fetching(501, 0));
    bench.advance(121);
    assert_ne!(layout(&bench), first);
}

#[test]
fn loading_without_progress_goes_elsewhere_and_is_given_up_where_there_is_nothing_else() {
    let mut bench = Bench::new(2);
    bench.place(2);
    bench.all_report(&StageStatus::Fetching { done_bytes: 5, total_bytes: 9, hub_wait_s: 0 });
    bench.advance(119);
    bench.all_report(&StageStatus::Fetching { done_bytes: 6, total_bytes: 9, hub_wait_s: 0 });
    bench.advance(120);
    assert_eq!(bench.state(), Some(InstanceState::Loading), "a byte is progress");
    bench.all_report(&failed_load(LoadFault::Fetch, "no holder", 2));
    let stuck = bench.placement().stages[0].leader().node;
    bench.advance(1);
    assert!(reason(&bench).contains("no progress for 120 s") && reason(&bench).contains("no holder"));
    assert!(bench.placement().stage_of(stuck).is_none(), "{:?}", layout(&bench));
    bench.all_report(&failed_load(LoadFault::Fetch, "no holder", 3));
    assert!(matches!(bench.log.last(), Some(Event::InstanceRemoved { .. })), "{:?}", bench.log.last());
}

#[test]
fn a_stage_that_a_device_refuses_three_times_goes_elsewhere_and_what_never_served_is_given_up() {
    let refused = |failed_loads| failed_load(LoadFault::Device, "the card is full", failed_loads);
    let mut bench = Bench::new(1);
    bench.place(1);
    for failed_loads in 1..=3 {
        bench.all_report(&StageStatus::Loading { done_bytes: u64::from(failed_loads), total_bytes: 9 });
        assert_eq!(bench.state(), Some(InstanceState::Loading));
        bench.all_report(&refused(failed_loads));
        bench.advance(1);
    }
    assert!(matches!(bench.log.last(), Some(Event::InstanceRemoved { .. })), "{:?}", bench.log);
    assert!(reason(&bench).contains("could not be loaded, 3 times: the card is full"), "{}", reason(&bench));
    assert!(matches!(bench.states.last(), Some(InstanceState::Failed { .. })), "{:?}", bench.states);

    let mut bench = Bench::new(2);
    bench.place(1);
    let first = bench.placement().stages[0].leader().node;
    bench.all_report(&refused(3));
    assert!(bench.placement().stage_of(first).is_none(), "{:?}", layout(&bench));
    assert!(reason(&bench).contains("3 times: the card is full"));
    // Who asks anew may have made room.
    let (reply, instance) = (ReplyTo { node: node(1), request: 8 }, bench.placement().instance);
    bench.feed(CoordinatorInput::Remove { reply, instance, reason: RemoveReason::Asked { by: reply.node } });
    bench.place(2);
    assert_eq!(bench.placement().stages.len(), 2);
}

#[test]
fn trouble_starts_a_new_placement_and_what_has_served_waits_after_the_third_in_a_row() {
    let mut bench = Bench::ready(2, 2);
    for number in 1..=4 {
        let first = bench.placement().stages[0].leader().node.0[0];
        let mut troubled = report(first, PLENTY);
        troubled.instance_failures =
            vec![InstanceFailure { placement: placed(number), stage: None, why: step_failed("stuck") }];
        bench.report(first, troubled.clone());
        if number < 4 {
            assert_eq!(bench.placement().id.number, number + 1);
            bench.report(first, troubled); // an old trouble does not touch the new placement
            assert_eq!(bench.placement().id.number, number + 1);
        }
    }
    let why = waits_for(&bench);
    assert!(why.contains("3 times") && why.contains("stuck"), "{why}");
    bench.advance(9);
    assert_eq!(bench.placement().id.number, 4);
    bench.advance(1);
    assert_eq!(bench.placement().id.number, 5, "and is tried again");

    let mut bench = Bench::ready(2, 2);
    bench.report(2, report(2, PLENTY)); // restarted: its stage is not there any more
    assert_eq!(bench.placement().id.number, 2);
}

/// The first stage's node reports trouble that blames no stage, and all stages serve again behind it.
fn has_trouble(bench: &mut Bench) {
    let (placement, first) = (bench.placement().id, bench.placement().stages[0].leader().node.0[0]);
    let mut troubled = report(first, PLENTY);
    troubled.instance_failures =
        vec![InstanceFailure { placement, stage: None, why: step_failed("no token came back") }];
    bench.report(first, troubled);
    assert_eq!(bench.placement().id.number, placement.number + 1);
    bench.all_report(&StageStatus::Serving);
}

#[test]
fn after_the_third_trouble_on_the_same_devices_that_blames_no_stage_one_goes_elsewhere() {
    let mut bench = Bench::ready(3, 2);
    let before = layout(&bench);
    for _ in 1..=2 {
        has_trouble(&mut bench);
        assert_eq!(layout(&bench), before);
    }
    has_trouble(&mut bench);
    let after = layout(&bench);
    assert!(after != before && after[0] == before[0], "{after:?}");
    assert_eq!(reason(&bench), "3 times on the same devices: no token came back");
    (0..2).for_each(|_| has_trouble(&mut bench));
    assert_eq!(layout(&bench), after, "the new devices have their own three");
}

#[test]
fn trouble_now_and_then_moves_nothing() {
    let mut bench = Bench::ready(3, 2);
    let before = layout(&bench);
    for _ in 0..4 {
        has_trouble(&mut bench);
        bench.advance(301);
        bench.all_report(&StageStatus::Serving);
    }
    assert_eq!(layout(&bench), before);
}

#[test]
fn a_stage_whose_steps_failed_goes_to_another_device_for_a_minute() {
    let mut bench = Bench::ready(2, 2);
    let failing = bench.placement().stages[1].leader().node;
    let first = bench.placement().stages[0].leader().node;
    let mut troubled = report(first.0[0], PLENTY);
    troubled.instance_failures =
        vec![InstanceFailure { placement: placed(1), stage: Some(1), why: step_failed("NaN") }];
    bench.report(first.0[0], troubled);
    assert!(bench.placement().stage_of(failing).is_none(), "{:?}", layout(&bench));
    assert!(reason(&bench).contains("NaN"));
}

#[test]
fn a_device_that_its_node_does_not_use_any_more_loses_its_stage() {
    let mut bench = Bench::new(2);
    bench.place(2);
    let mut elsewhere = report(2, PLENTY);
    elsewhere.facts.devices[0].id = DeviceId("cuda-0".to_owned());
    bench.report(2, elsewhere.clone());
    assert_eq!(bench.placement().id.number, 2);
    assert!(bench.placement().shards().all(|(_, s)| (s.node, &s.device) != (node(2), &DeviceId::cpu())));
    assert!(reason(&bench).contains("does not compute on cpu any more"));
    // A node that says nothing of its devices yet has not given any up.
    elsewhere.facts.devices.clear();
    bench.report(2, elsewhere);
    assert_eq!(bench.placement().id.number, 2);
}

#[test]
fn who_streams_from_what_a_person_unloads_hears_that_it_was_a_decision() {
    let mut bench = Bench::ready(2, 2);
    let (reply, instance) = (ReplyTo { node: node(1), request: 8 }, bench.placement().instance);
    let remove = || CoordinatorInput::Remove { reply, instance, reason: RemoveReason::Asked { by: node(2) } };
    let failed = |v: &crate::InstanceView| matches!(&v.state, InstanceState::Failed { reason: RemoveReason::Asked { by } } if *by == node(2));
    let is_told = |o: &CoordinatorOutput| matches!(o, CoordinatorOutput::Instances { instances, .. } if instances.iter().any(failed));
    let append = |out: &[CoordinatorOutput]| match out {
        [CoordinatorOutput::Append { append, .. }] => *append,
        other => panic!("nothing but the write: {other:?}"),
    };
    // Nobody hears of a removal that the log refuses.
    let refused = append(&bench.coordinator.handle(bench.now, remove()));
    let failed_write = CoordinatorInput::AppendFailed { append: refused, reason: "disk full".into() };
    let out = bench.coordinator.handle(bench.now, failed_write);
    assert!(!out.iter().any(is_told), "{out:?}");
    assert_eq!(bench.state(), Some(InstanceState::Ready));

    let taken = append(&bench.coordinator.handle(bench.now, remove()));
    let out = bench.coordinator.handle(bench.now, CoordinatorInput::Appended(taken));
    assert!(out.iter().any(is_told), "{out:?}");
    let out = bench.coordinator.handle(bench.now, CoordinatorInput::Tick);
    let is_over = |o: &CoordinatorOutput| matches!(o, CoordinatorOutput::Instances { instances, .. } if instances.is_empty());
    assert!(out.iter().any(is_over), "{out:?}");
}

/// A coordinator that takes over from node 1, which had the first of three stages, and has lost it.
fn successor() -> (Bench, Vec<(u8, String)>) {
    let old = Bench::ready(3, 3);
    let before = layout(&old);
    let mut bench = Bench::new(1);
    bench.coordinator = Coordinator::new(node(2), None, old.coordinator.state().clone());
    bench.desired = old.desired;
    bench.feed(members(3));
    bench.feed(CoordinatorInput::NodeUp(node(2)));
    bench.feed(CoordinatorInput::NodeUp(node(3)));
    bench.feed(CoordinatorInput::NodeLost(node(1)));
    bench.log.clear();
    (bench, before)
}

#[test]
fn a_new_coordinator_moves_no_stage_whose_node_has_not_reported_to_it_yet() {
    let (mut bench, before) = successor();
    bench.report(2, report(2, PLENTY));
    bench.feed(CoordinatorInput::Lead { epoch: Epoch { counter: 2, key: node(2) } });
    assert!(bench.log.is_empty(), "{:?}", bench.log);
    bench.report(3, report(3, PLENTY));
    assert_eq!(layout(&bench)[1..], before[1..], "those that stand");
    assert_ne!(layout(&bench)[0].0, 1);
}

#[test]
fn a_node_that_never_reports_holds_up_no_repair() {
    let (mut bench, _) = successor();
    bench.report(2, report(2, PLENTY));
    bench.feed(CoordinatorInput::Lead { epoch: Epoch { counter: 2, key: node(2) } });
    bench.advance(5);
    assert!(
        bench.placement().stages.iter().all(|stage| stage.leader().node == node(2)),
        "{:?}",
        layout(&bench)
    );
}

#[test]
fn what_fits_only_over_a_pair_that_does_not_talk_waits_and_is_not_planned_again_and_again() {
    let mut bench = Bench::ready(3, 3);
    // Room for two of the four layers on each, so that two nodes are needed.
    let whole: u64 = {
        let instance = bench.coordinator.state().instances().values().next().unwrap();
        instance.memory_bytes.iter().sum()
    };
    bench.free = 0;
    bench.all_report(&StageStatus::Serving);
    for n in [1, 2] {
        let mut apart = report(n, whole / 4);
        apart.unreached = vec![node(3 - n)];
        bench.report(n, apart);
    }
    bench.plans_wait = true;
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    let mut plans = 0;
    while !bench.plans.is_empty() {
        plans += 1;
        assert!(plans < 6, "asked again and again");
        bench.answer();
    }
    assert!(matches!(bench.state(), Some(InstanceState::Waiting { .. })), "{:?}", bench.state());
}

#[test]
fn the_only_device_is_used_again_although_it_failed() {
    let mut bench = Bench::ready(1, 1);
    let mut troubled = report(1, PLENTY);
    troubled.instance_failures =
        vec![InstanceFailure { placement: placed(1), stage: Some(0), why: step_failed("NaN") }];
    bench.report(1, troubled);
    assert!(waits_for(&bench).contains("NaN"));
    bench.advance(2);
    assert_eq!(bench.placement().id.number, 2, "there is no other");
}

#[test]
fn a_device_that_failed_stages_of_two_instances_is_avoided_by_both() {
    let mut bench = Bench::ready(2, 1);
    let (now, device) = (bench.now, DeviceId::cpu());
    for instance in [InstanceId(1), InstanceId(2)] {
        let reason = ReplaceReason::Failed { times: 1, why: step_failed("its kernel") };
        bench.coordinator.avoid_device(now, instance, node(1), device.clone(), reason, AVOID_FAILED);
    }
    let avoided = |instance, now| bench.coordinator.avoided(now, InstanceId(instance), node(1), &device);
    for instance in [1, 2] {
        assert!(avoided(instance, now).is_some_and(|why| why.contains("its kernel")), "instance {instance}");
        assert_eq!(avoided(instance, now + AVOID_FAILED), None);
    }
    assert_eq!(avoided(3, now), None, "others may well compute there");
}
