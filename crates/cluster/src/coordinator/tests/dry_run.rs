//! Who plans without placing is told what placing would do.

use exo_types::{DiskRoom, ModelId};

use super::*;
use crate::wire::{DeviceReport, PlannerInputs};
use crate::{DryRunError, dry_run};

fn place(bench: &mut Bench, request: InstanceRequest) {
    let reply = ReplyTo { node: node(1), request: 7 };
    bench.feed(CoordinatorInput::Place { reply, request });
}

/// Nodes report what they were told to load, each with room for so many models in all.
fn reports(bench: &mut Bench, rooms: &[u64], sequences: u32, apart: &[(u8, u8)]) {
    for (n, room) in (1..).zip(rooms) {
        let desired = bench.desired.get(&node(n)).cloned();
        let shards = desired.iter().flat_map(|d| &d.shards);
        let mut stages: Vec<_> = shards.map(|shard| stage_report(shard, &StageStatus::Serving)).collect();
        stages.iter_mut().for_each(|stage| stage.sequences = sequences);
        let held: u64 = stages.iter().map(|stage| stage.held_bytes).sum();
        let all = room * (MODEL_BYTES + MODEL_BYTES / 2);
        let mut report = report(n, all.saturating_sub(held));
        let device = &mut report.facts.devices[0];
        device.memory_total_bytes = all;
        // As processors of Linux machines are: alone in a memory of their own.
        let free_bytes = device.memory_free_bytes;
        device.memory_domain = Some(exo_types::MemoryDomain { id: n.into(), free_bytes });
        report.desired = desired.map(|d| (d.epoch, d.revision));
        report.stages = stages;
        report.unreached = apart.iter().filter(|(a, _)| *a == n).map(|(_, b)| node(*b)).collect();
        bench.report(n, report);
    }
}

/// What a member that only plans is told.
fn inputs(bench: &mut Bench, request: &InstanceRequest) -> PlannerInputs {
    let reply = ReplyTo { node: node(2), request: 9 };
    let ask = CoordinatorInput::PlannerInputs { reply, model: request.model, replaced: None };
    let out = bench.coordinator.handle(bench.now, ask);
    let found = out.into_iter().find_map(|output| match output {
        CoordinatorOutput::Reply { reply: ControlReply::PlannerInputs(inputs), .. } => Some(*inputs),
        _ => None,
    });
    found.expect("it leads")
}

/// What a member that only plans finds where node `n` says whether it is throttled: parts of the two nodes'
/// speed, the reasons, and the node that is chosen.
fn plans_beside_heat(bench: &mut Bench, n: u8, throttled: bool) -> ([u32; 2], [String; 2], NodeId) {
    let mut hot = report(n, PLENTY);
    hot.devices = vec![DeviceReport {
        device: DeviceId::cpu(),
        state: exo_types::DeviceState::Usable,
        reason: String::new(),
        driver: None,
        monitor: exo_types::Monitor { throttled: Some(throttled), ..Default::default() },
    }];
    bench.report(n, hot);
    let request = InstanceRequest { holders: vec![node(1), node(2)], ..request() };
    let inputs = inputs(bench, &request);
    let asked = inputs.request(&request, Vec::new(), Vec::new());
    let percent = [0, 1].map(|at: usize| asked.devices[at].thermal_percent);
    let plan = dry_run(&inputs, asked, &|| false).expect("it fits").plan;
    let reasons = [0, 1].map(|at: usize| plan.reasons[at].text.clone());
    (percent, reasons, plan.stages[0].leader().node)
}

#[test]
fn a_device_that_has_been_throttled_for_half_a_minute_counts_less_in_plans_and_they_say_so() {
    let mut bench = Bench::new(2);
    let is_told = |reasons: [String; 2]| reasons.map(|text| text.contains("throttled: 70 % of its speed"));
    let (_, _, first) = plans_beside_heat(&mut bench, 1, false);
    // Of two alike it may be either.
    let chosen = first.0[0];
    let at = usize::from(chosen) - 1;
    bench.now = Time::from_millis(1_000);
    let (percent, reasons, _) = plans_beside_heat(&mut bench, chosen, true);
    assert_eq!((percent, is_told(reasons)), ([100, 100], [false, false]), "a moment");
    bench.now = Time::from_millis(31_000);
    let (percent, reasons, then) = plans_beside_heat(&mut bench, chosen, true);
    assert_eq!((percent[at], percent[1 - at]), (70, 100));
    assert!(is_told(reasons.clone())[at] && !is_told(reasons.clone())[1 - at], "{reasons:?}");
    assert_ne!(then, first, "the other one is faster now");
    bench.now = Time::from_millis(32_000);
    assert_eq!(plans_beside_heat(&mut bench, chosen, false).0[at], 70, "for a moment");
    bench.now = Time::from_millis(43_000);
    assert_eq!(plans_beside_heat(&mut bench, chosen, false).0, [100, 100], "it has cooled down");
}

/// What it finds: where the stages are, and what is unloaded; or why nothing.
fn plans(bench: &mut Bench, request: &InstanceRequest) -> Result<(Vec<NodeId>, Vec<String>), String> {
    let inputs = inputs(bench, request);
    let links = crate::link_facts(&bench.coordinator.reports, |_| true);
    let placed = |model| bench.coordinator.state.instances().values().any(|i| i.placement.model == model);
    let stays = |node| !bench.coordinator.state.drained().contains(&node);
    let disks = crate::disk_rooms(&bench.coordinator.reports, request.model, placed, stays);
    let planned = dry_run(&inputs, inputs.request(request, links, disks), &|| false);
    let planned = planned.map_err(|error: DryRunError| error.to_string())?;
    let nodes = planned.plan.stages.iter().map(|stage| stage.leader().node).collect();
    Ok((nodes, planned.unloads.into_iter().map(|(_, text)| text).collect()))
}

/// The plan is what placing does then, and placing says the same of it.
fn agree(bench: &mut Bench, request: InstanceRequest) -> Result<(Vec<NodeId>, Vec<String>), String> {
    let planned = plans(bench, &request);
    let model = request.model;
    place(bench, request);
    match (&planned, bench.replies.last()) {
        (Ok((nodes, unloads)), Some(ControlReply::Placed { view, reasons, .. })) => {
            assert_eq!(view.model(), model);
            let placed = view.placement.stages.iter().map(|stage| stage.leader().node);
            assert_eq!(*nodes, placed.collect::<Vec<_>>());
            let said: Vec<&String> =
                reasons.iter().filter(|r| r.contains("is unloaded to make room")).collect();
            assert_eq!(said, unloads.iter().collect::<Vec<_>>());
        }
        (Err(why), Some(ControlReply::Refused(_))) => {
            let (_, message) = refusal(bench);
            assert!(message.contains(why.as_str()), "{why} / {message}");
        }
        (planned, placed) => panic!("{planned:?} and {placed:?}"),
    }
    planned
}

#[test]
fn what_is_promised_to_a_model_that_is_loading_is_not_free_for_a_plan_either() {
    let mut bench = Bench::new(2);
    reports(&mut bench, &[1, 1], 0, &[]);
    place(&mut bench, model(1, false));
    // Nothing of it is loaded yet: both nodes report all of their memory as free.
    let taken = bench.placement().stages[0].leader().node;
    let (nodes, unloads) = agree(&mut bench, model(2, false)).expect("it fits on the other");
    assert!(nodes != [taken] && unloads.is_empty(), "{nodes:?}");
    let why = agree(&mut bench, model(3, false)).expect_err("both are promised");
    assert!(why.contains("missing") && !why.contains("unloading"), "{why}");
}

#[test]
fn a_plan_makes_room_as_a_placement_does_and_says_what_goes() {
    let mut bench = Bench::new(1);
    reports(&mut bench, &[1], 0, &[]);
    place(&mut bench, model(1, true));
    reports(&mut bench, &[1], 1, &[]);
    let in_use = agree(&mut bench, model(2, false));
    assert_eq!(in_use, Err("waiting for room: m1 is in use".to_owned()));
    reports(&mut bench, &[1], 0, &[]);
    bench.advance(10);
    // What would not fit with all of it is refused for the cluster as it is: 400 MiB are taken, whoever took
    // them.
    let mut large = model(3, false);
    large.shape.layers.iter_mut().for_each(|layer| layer.packed_bytes *= 8);
    let told = inputs(&mut bench, &large);
    let late = dry_run(&told, told.request(&large, Vec::new(), Vec::new()), &|| true).expect_err("too large");
    let late = late.to_string();
    assert!(late.contains("0 of 1 models") && late.contains("are missing"), "{late}");
    let why = agree(&mut bench, large).expect_err("too large");
    assert!(why.contains("unloading m1 would not be enough"), "{why}");
    let (_, unloads) = agree(&mut bench, model(2, false)).expect("m1 goes");
    assert!(unloads.len() == 1 && unloads[0].starts_with("m1 is unloaded to make room"), "{unloads:?}");
}

#[test]
fn no_plan_goes_over_members_that_do_not_talk() {
    let mut bench = Bench::new(3);
    // Each has room for more than a half, and the first two are cut off from each other.
    let halves = |change: fn(&mut InstanceRequest)| {
        let mut request = model(1, false);
        request.shape.layers.iter_mut().for_each(|layer| layer.packed_bytes = MODEL_BYTES / 2);
        request.shape.layers.iter_mut().for_each(|layer| layer.weight_bytes = MODEL_BYTES / 2);
        change(&mut request);
        request
    };
    reports(&mut bench, &[1, 1, 0], 0, &[(1, 2)]);
    bench.advance(10);
    let why = agree(&mut bench, halves(|_| ())).expect_err("only these two hold it");
    assert!(why.contains("no data link is open") && why.contains("n1"), "{why}");
    reports(&mut bench, &[1, 1, 1], 0, &[(1, 2)]);
    let (nodes, _) = agree(&mut bench, halves(|_| ())).expect("with the third");
    assert!(nodes.len() == 2 && nodes.contains(&node(3)), "{nodes:?}");
}

#[test]
fn a_part_that_a_member_has_is_not_fetched_again() {
    let mut bench = Bench::new(2);
    let mut partial = report(2, PLENTY);
    let (name, bytes) = ("m".to_owned(), 5000);
    partial.models = vec![HeldModel {
        model: crate::testing::MODEL,
        name,
        bytes,
        held_bytes: 1234,
        complete: false,
        is_of_hub: false,
        expected_bytes: 0,
        may_go: false,
    }];
    bench.report(2, partial);
    let reply = ReplyTo { node: node(1), request: 9 };
    let ask = CoordinatorInput::PlannerInputs { reply, model: crate::testing::MODEL, replaced: None };
    let out = bench.coordinator.handle(bench.now, ask);
    let [CoordinatorOutput::Reply { reply: ControlReply::PlannerInputs(inputs), .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(inputs.parts, [(node(2), 1234)]);
    assert_eq!(inputs.request(&request(), Vec::new(), Vec::new()).parts, [(node(2), 1234)]);
}

/// Two nodes on one machine: what is placed on one is not free on the other, though neither holds anything
/// yet.
#[test]
fn what_is_promised_of_shared_memory_is_promised_for_all_that_share_it() {
    let mut bench = Bench::new(2);
    let all = 2 * (MODEL_BYTES + MODEL_BYTES / 2);
    let shared = |n: u8, free_bytes: u64| {
        let mut report = report(n, all);
        report.facts.devices[0].memory_domain = Some(exo_types::MemoryDomain { id: 5, free_bytes });
        report
    };
    bench.report(1, shared(1, all));
    // The most that one of them says counts: none makes the other's memory look taken.
    bench.report(2, shared(2, 0));
    place(&mut bench, model(1, false));
    place(&mut bench, model(2, false));
    let placed = bench.coordinator.state().instances().len();
    assert_eq!(placed, 2, "{:?}", bench.replies);
    let why = agree(&mut bench, model(3, false)).expect_err("there is room for two");
    assert!(why.contains("missing"), "{why}");
}

/// What is being loaded is not free although the system says so.
#[test]
fn shared_memory_that_weights_are_being_loaded_to_is_not_free() {
    let mut bench = Bench::new(2);
    let all = 2 * (MODEL_BYTES + MODEL_BYTES / 2);
    let loading = |bench: &mut Bench, done_bytes: u64| {
        let status = StageStatus::Loading { done_bytes, total_bytes: MODEL_BYTES };
        (1..=2).for_each(|n| bench.report_shared(n, report(n, all), all - done_bytes, &status));
    };
    loading(&mut bench, 0);
    place(&mut bench, model(1, false));
    let shared_free = |bench: &Bench| {
        let domains = bench.coordinator.devices(bench.now, None, &[]);
        domains.iter().map(|d| d.device.memory_domain.unwrap().free_bytes).collect::<Vec<_>>()
    };
    let promised = shared_free(&bench);
    assert!(promised[0] < all - MODEL_BYTES, "{promised:?}");
    for done_bytes in [0, 100 << 20, MODEL_BYTES] {
        loading(&mut bench, done_bytes);
        assert_eq!(shared_free(&bench), promised, "{done_bytes}");
    }
}

#[test]
fn a_node_that_may_not_fetch_the_file_is_no_place_for_it() {
    let mut bench = Bench::new(3);
    let report_disk = |bench: &mut Bench, n: u8, room: DiskRoom, models: Vec<HeldModel>| {
        let mut report = report(n, PLENTY);
        (report.disk_room, report.models) = (room, models);
        bench.report(n, report);
    };
    let held = |n: u8, may_go: bool| HeldModel {
        model: ModelId([n; 32]),
        name: format!("m{n}"),
        bytes: MODEL_BYTES,
        held_bytes: MODEL_BYTES,
        complete: true,
        is_of_hub: false,
        expected_bytes: 0,
        may_go,
    };
    let part = HeldModel { held_bytes: 0, complete: false, ..held(1, false) };
    let quota = DiskRoom { within_quota_bytes: Some(10 << 20), ..DiskRoom::of(1 << 50) };
    let mut wanted = model(1, false);
    wanted.holders = vec![node(1)];
    // The file is on the first node, which is drained, and the third may take nothing.
    for (n, request) in [(1, 3), (3, 4)] {
        bench.feed(CoordinatorInput::Drain {
            reply: ReplyTo { node: node(1), request },
            node: node(n),
            drain: crate::wire::Drain::Lasting,
        });
    }
    report_disk(&mut bench, 1, DiskRoom::default(), vec![held(1, false), held(2, false)]);
    report_disk(&mut bench, 3, DiskRoom::default(), vec![]);
    let refused = |bench: &mut Bench, models: Vec<HeldModel>| {
        report_disk(bench, 2, quota, models);
        let why = agree(bench, wanted.clone()).expect_err("no disk");
        assert!(why.contains("excluded: `disk_quota_mib` of n2 leaves room for 10.0 MiB"), "{why}");
        assert!(why.contains("more room for models on n2: raise `disk_quota_mib` there"), "{why}");
    };
    refused(&mut bench, vec![]);
    // What is on a node that is about to leave is no second copy of what would go.
    refused(&mut bench, vec![held(2, true)]);
    bench.feed(CoordinatorInput::Drain {
        reply: ReplyTo { node: node(1), request: 5 },
        node: node(3),
        drain: crate::wire::Drain::Over,
    });
    // Nor does go what is kept.
    let mut excluded = report(3, 0);
    excluded.models = vec![held(2, false)];
    bench.report(3, excluded);
    refused(&mut bench, vec![held(2, false)]);
    report_disk(&mut bench, 2, quota, vec![held(2, true)]);
    assert_eq!(agree(&mut bench, wanted.clone()).expect("there is room").0, [node(2)]);
    // What a fetch of this very model has taken room for is there for it.
    let disks = |expected_bytes: u64| {
        let mut report = report(2, PLENTY);
        (report.disk_room, report.models) = (quota, vec![HeldModel { expected_bytes, ..part.clone() }]);
        crate::disk_rooms(&[(node(2), report)].into(), part.model, |_| false, |_| true)
    };
    assert_eq!(disks(5)[0].1.bytes(), Some((10 << 20) + 5));
}
