mod dry_run;
mod hung_disk;
mod links;
mod moving;
mod pins;
mod planning;
mod repair;
mod replan;
mod unloading;

use std::sync::Arc;

use exo_planner::PlanRequest;
use exo_types::{DeviceId, ModelId, PlacementId, SupportClass};

use super::*;
use crate::testing::{PLENTY, node, report, request};
use crate::wire::{
    Bandwidth, Busyness, ComputeFault, ControlReply, DesiredState, HeldModel, InstanceFailure, InvalidAsk,
    LinkReport, LogFailure, PipelineFailure, StageReport, Undecided,
};
use crate::{
    Event, InstanceState, LoadFailure, LoadFault, PlaceObjective, RemoveReason, ReplaceReason, StageLoss,
    StageStatus,
};

/// Beside a stage that is there: less than the workspace of another one.
const TIGHT: u64 = 30 << 20;

const MODEL_BYTES: u64 = 400 << 20;

/// Model `n`, of which a node with room for one holds one.
fn model(n: u8, is_on_demand: bool) -> InstanceRequest {
    let mut request = request();
    for layer in &mut request.shape.layers {
        (layer.weight_bytes, layer.packed_bytes) = (MODEL_BYTES / 4, MODEL_BYTES / 4);
    }
    InstanceRequest { model: ModelId([n; 32]), model_name: format!("m{n}"), is_on_demand, ..request }
}

fn step_failed(words: &str) -> PipelineFailure {
    PipelineFailure::Step(ComputeFault::Engine(words.to_owned()))
}

fn failed_load(kind: LoadFault, detail: &str, failed_loads: u32) -> StageStatus {
    StageStatus::Failed { why: LoadFailure::Fault { kind, detail: detail.into() }, failed_loads }
}

fn epoch(counter: u64) -> Epoch {
    Epoch { counter, key: node(1) }
}

/// Placement `number` of the first epoch.
fn placed(number: u32) -> PlacementId {
    PlacementId { epoch: epoch(1), number }
}

/// A near node, from which so many bytes come in a second.
fn line_from(peer: NodeId, bytes_per_s: u64) -> LinkReport {
    let inbound = Some(Bandwidth { bytes_per_s, count: 1, age_s: 0 });
    LinkReport {
        peer,
        rtt_us: 200,
        rtt_count: 9,
        rtt_age_ms: 0,
        jitter_us: 0,
        inbound,
        traffic: None,
        is_wireless: None,
    }
}

/// Members 1 to `last`.
fn members(last: u8) -> CoordinatorInput {
    CoordinatorInput::Members((1..=last).map(|n| (node(n), format!("n{n}"))).collect())
}

/// A coordinator that leads over `members` nodes, with a journal and a planner that answer at once, and what
/// it last told whom.
struct Bench {
    coordinator: Coordinator,
    now: Time,
    log: Vec<Event>,
    desired: BTreeMap<NodeId, DesiredState>,
    replies: Vec<ControlReply>,
    /// To which numbers the replies went.
    answered: Vec<u64>,
    states: Vec<InstanceState>,
    /// Whether plans wait for [`Bench::answer`].
    plans_wait: bool,
    /// What each node reports as free, beside what it holds.
    free: u64,
    /// Plans that wait.
    plans: Vec<(PlanId, Arc<PlanRequest>)>,
}

impl Bench {
    fn new(count: u8) -> Self {
        let coordinator = Coordinator::new(node(1), None, State::default());
        let (log, desired, replies, states) = (vec![], BTreeMap::new(), vec![], vec![]);
        let (now, answered, plans) = (Time::ZERO, vec![], vec![]);
        let (plans_wait, free) = (false, PLENTY);
        let mut bench =
            Self { coordinator, now, log, desired, replies, answered, states, plans_wait, free, plans };
        bench.feed(members(count));
        bench.feed(CoordinatorInput::Lead { epoch: epoch(1) });
        for n in 1..=count {
            bench.feed(CoordinatorInput::NodeUp(node(n)));
            bench.report(n, report(n, PLENTY));
        }
        bench
    }

    fn report(&mut self, n: u8, report: NodeReport) {
        self.feed(CoordinatorInput::Report { from: node(n), report: Box::new(report) });
    }

    fn feed(&mut self, input: CoordinatorInput) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.coordinator.handle(self.now, input) {
                match output {
                    CoordinatorOutput::Append { append, events } => {
                        self.log.extend(events);
                        inputs.push(CoordinatorInput::Appended(append));
                    }
                    CoordinatorOutput::SendDesired { to, desired } => drop(self.desired.insert(to, desired)),
                    CoordinatorOutput::Reply { to, reply } => {
                        self.answered.push(to.request);
                        self.replies.push(reply);
                    }
                    CoordinatorOutput::Plan { plan, request } if self.plans_wait => {
                        self.plans.push((plan, request));
                    }
                    CoordinatorOutput::Plan { plan, request } => inputs.push(planned(plan, &request)),
                    CoordinatorOutput::InstanceChanged(view) => self.states.push(view.state),
                    CoordinatorOutput::Instances { .. } => {}
                }
            }
        }
    }

    /// Answers the only plan that waits.
    fn answer(&mut self) {
        let [(plan, request)] = &self.plans[..] else { panic!("{:?}", self.plans) };
        let input = planned(*plan, request);
        self.plans.clear();
        self.feed(input);
    }

    fn place(&mut self, stages_min: u32) {
        let reply = ReplyTo { node: node(1), request: 1 };
        let objective = PlaceObjective::Spread { stages_min };
        self.feed(CoordinatorInput::Place { reply, request: InstanceRequest { objective, ..request() } });
    }

    /// Every worker reports its desired shards with this status.
    fn all_report(&mut self, status: &StageStatus) {
        for (to, desired) in self.desired.clone() {
            let mut report = report(to.0[0], self.free);
            report.desired = Some((desired.epoch, desired.revision));
            report.stages = desired.shards.iter().map(|s| stage_report(s, status)).collect();
            self.report(to.0[0], report);
        }
    }

    /// What the node was told to hold is in its report, and of a memory that all such nodes share so much is
    /// free.
    fn report_shared(&mut self, n: u8, report: NodeReport, free_bytes: u64, status: &StageStatus) {
        let mut report = report;
        report.facts.devices[0].memory_domain = Some(exo_types::MemoryDomain { id: 5, free_bytes });
        let desired = self.desired.get(&node(n));
        report.desired = desired.map(|d| (d.epoch, d.revision));
        let shards = desired.iter().flat_map(|d| &d.shards);
        report.stages = shards.map(|shard| stage_report(shard, status)).collect();
        self.report(n, report);
    }

    fn ready(members: u8, stages_min: u32) -> Self {
        let mut bench = Self::new(members);
        bench.place(stages_min);
        bench.all_report(&StageStatus::Serving);
        assert_eq!(bench.state(), Some(InstanceState::Ready));
        bench
    }

    /// The same, on nodes with room for a stage each, and for no second one.
    fn ready_and_tight(members: u8, stages_min: u32) -> Self {
        let mut bench = Self::ready(members, stages_min);
        bench.free = TIGHT;
        bench.all_report(&StageStatus::Serving);
        bench
    }

    fn state(&self) -> Option<InstanceState> {
        self.coordinator.instances().first().map(|v| v.state.clone())
    }

    fn placement(&self) -> &exo_types::Placement {
        &self.coordinator.state().instances().values().next().unwrap().placement
    }

    fn advance(&mut self, seconds: u64) {
        self.now = self.now + std::time::Duration::from_secs(seconds);
        self.feed(CoordinatorInput::Tick);
    }
}

/// Why the last question was refused, and as shown.
fn refusal(bench: &Bench) -> (&ControlRefusal, String) {
    let Some(ControlReply::Refused(refusal)) = bench.replies.last() else { panic!("{:?}", bench.replies) };
    (refusal, refusal.text(&|node| format!("n{} ({node})", node.0[0])))
}

/// Why the last replacement was made, as shown.
fn replaced_for(bench: &Bench) -> String {
    let Some(Event::InstanceReplaced { reason, .. }) = bench.log.last() else { panic!("{:?}", bench.log) };
    reason.to_string()
}

/// What a planner answers.
fn planned(plan: PlanId, request: &PlanRequest) -> CoordinatorInput {
    CoordinatorInput::Planned { plan, result: exo_planner::plan(request) }
}

use crate::InstanceRequest;

fn stage_report(shard: &crate::wire::DesiredShard, status: &StageStatus) -> StageReport {
    StageReport {
        engine: crate::EngineId(1),
        serves: Some(shard.position()),
        spec: shard.spec(),
        status: status.clone(),
        held_bytes: shard.memory_bytes,
        weight_bytes: 0,
        unpacked_bytes: 0,
        rows_bytes: 0,
        rows_bytes_max: 0,
        busy_us: 0,
        sequences: 0,
        sources: Vec::new(),
    }
}

#[test]
fn a_placed_model_is_loaded_by_its_workers_and_becomes_ready() {
    let mut bench = Bench::new(3);
    bench.place(3);
    let Some(ControlReply::Placed { view, reasons, .. }) = bench.replies.pop() else {
        panic!("{:?}", bench.replies)
    };
    assert_eq!((view.placement.stages.len(), view.placement.id), (3, placed(1)));
    assert_eq!(reasons.len(), 4, "how good it is, and one reason per device: {reasons:?}");
    assert_eq!(bench.state(), Some(InstanceState::Placing));
    assert!(bench.desired.values().all(|d| d.shards.len() == 1), "{:?}", bench.desired);
    bench.all_report(&StageStatus::Loading { done_bytes: 1, total_bytes: 2 });
    assert_eq!(bench.state(), Some(InstanceState::Loading));
    bench.all_report(&StageStatus::Loaded);
    assert_eq!(bench.state(), Some(InstanceState::Wiring), "no step has come back");
    bench.all_report(&StageStatus::Serving);
    let expected =
        [InstanceState::Placing, InstanceState::Loading, InstanceState::Wiring, InstanceState::Ready];
    assert_eq!(bench.states, expected);
}

#[test]
fn a_first_stage_that_is_not_loaded_any_more_is_placed_anew() {
    let mut bench = Bench::ready(2, 2);
    bench.all_report(&StageStatus::Waiting);
    let reason = replaced_for(&bench);
    assert!(
        reason.contains("stage 0") && reason.contains("is no longer ready: it waits for memory"),
        "{reason}"
    );
}

#[test]
fn nothing_is_told_before_the_log_has_it() {
    let mut bench = Bench::new(1);
    let reply = ReplyTo { node: node(1), request: 1 };
    let out = bench.coordinator.handle(Time::ZERO, CoordinatorInput::Place { reply, request: request() });
    let [CoordinatorOutput::Plan { plan, request }] = &out[..] else { panic!("{out:?}") };
    let out = bench.coordinator.handle(Time::ZERO, planned(*plan, request));
    assert!(matches!(out[..], [CoordinatorOutput::Append { .. }]), "{out:?}");
    let failed = CoordinatorInput::AppendFailed { append: AppendId(1), reason: "disk full".into() };
    bench.feed(failed);
    let full = LogFailure::Write("disk full".into());
    assert_eq!(bench.replies.pop(), Some(ControlReply::Refused(ControlRefusal::LogFailed(full))));
    assert!(bench.coordinator.state().instances().is_empty());
    bench.place(1);
    assert!(
        matches!(bench.replies[..], [ControlReply::Placed { .. }]),
        "the next attempt is free to succeed"
    );
}

#[test]
fn asking_again_for_a_placed_model_answers_with_the_instance_there_is() {
    let mut bench = Bench::ready(2, 2);
    bench.place(1);
    let [ControlReply::Placed { view: a, .. }, ControlReply::Placed { view: b, .. }] = &bench.replies[..]
    else {
        panic!("{:?}", bench.replies)
    };
    assert_eq!((a.placement.instance, bench.log.len()), (b.placement.instance, 1));
}

#[test]
fn a_pipeline_between_two_terms_is_wired_again_and_not_placed_anew() {
    let mut bench = Bench::ready(2, 2);
    bench.advance(600);
    bench.all_report(&StageStatus::Loaded); // a link ended: the scheduler sends step 0 of the next term
    assert_eq!(bench.state(), Some(InstanceState::Wiring));
    bench.advance(60);
    assert_eq!((bench.state(), bench.placement().id), (Some(InstanceState::Wiring), placed(1)));
    bench.all_report(&StageStatus::Serving);
    assert_eq!((bench.state(), bench.placement().id), (Some(InstanceState::Ready), placed(1)));
    bench.all_report(&StageStatus::Loaded);
    bench.advance(121);
    let reason = replaced_for(&bench);
    assert!(reason.contains("made no progress for 120 s"), "{reason}");
}

#[test]
fn a_device_that_its_node_gives_up_loses_its_stage_even_before_it_was_ready() {
    let mut bench = Bench::new(2);
    bench.place(2);
    assert_eq!(bench.placement().stages.len(), 2);
    let mut gave_up = report(2, PLENTY);
    gave_up.facts.devices[0].support = SupportClass::Unsupported;
    gave_up.facts.devices[0].support_reason = "it was lost four times".into();
    bench.report(2, gave_up);
    assert_eq!(bench.placement().id.number, 2);
    assert!(bench.placement().shards().all(|(_, s)| s.node == node(1)));
    let reason = replaced_for(&bench);
    assert!(reason.contains("it was lost four times"), "{reason}");
}

#[test]
fn a_worker_that_did_not_hear_is_told_again() {
    let mut bench = Bench::new(2);
    bench.place(2);
    let told = bench.desired.clone();
    bench.desired.clear();
    bench.advance(1);
    assert!(bench.desired.is_empty());
    bench.advance(1);
    assert_eq!(bench.desired, told);
    bench.all_report(&StageStatus::Waiting);
    bench.desired.clear();
    bench.advance(3);
    assert!(bench.desired.is_empty(), "heard");
}

#[test]
fn a_new_coordinator_waits_for_its_members_before_it_calls_them_lost() {
    let old = Bench::ready(3, 3);
    let state = old.coordinator.state().clone();
    let mut bench = Bench::new(1);
    bench.coordinator = Coordinator::new(node(2), None, state);
    bench.feed(members(3));
    bench.feed(CoordinatorInput::NodeUp(node(2)));
    bench.feed(CoordinatorInput::Lead { epoch: Epoch { counter: 2, key: node(2) } });
    bench.feed(CoordinatorInput::NodeUp(node(3)));
    bench.desired = old.desired;
    bench.desired.retain(|n, _| *n != node(1));
    bench.all_report(&StageStatus::Serving);
    bench.advance(4);
    assert_eq!(bench.placement().id.number, 1, "node 1 has not shown up yet");
    bench.advance(1);
    let epoch = Epoch { counter: 2, key: node(2) };
    assert_eq!(bench.placement().id, PlacementId { epoch, number: 1 });
    assert!(bench.placement().stage_of(node(1)).is_none());
}

#[test]
fn a_removed_member_loses_its_stages() {
    let mut bench = Bench::ready(3, 3);
    bench.feed(members(2));
    assert!(bench.placement().stage_of(node(3)).is_none());
}

#[test]
fn weights_come_from_members_that_have_all_of_them_or_parts_of_a_model_of_a_hub() {
    // What the second node reports: all of it, a part of a model that somebody has, a part of one that a hub
    // has.
    for (complete, is_of_hub, is_asked) in [(true, false, true), (false, false, false), (false, true, true)] {
        let mut bench = Bench::new(3);
        let mut holder = report(2, PLENTY);
        let (name, bytes) = ("m".to_owned(), 5000);
        holder.models = vec![HeldModel {
            model: crate::testing::MODEL,
            name,
            bytes,
            held_bytes: bytes,
            complete,
            is_of_hub,
            expected_bytes: 0,
            may_go: false,
        }];
        bench.report(2, holder);
        bench.place(3);
        let holders = bench.desired[&node(3)].shards[0].holders.clone();
        // The first is known from when it was asked for.
        let expected = if is_asked { vec![node(1), node(2)] } else { vec![node(1)] };
        assert_eq!(holders, expected, "complete {complete}, of a hub {is_of_hub}");
    }
}

#[test]
fn who_does_not_lead_says_so() {
    let mut bench = Bench::new(2);
    bench.feed(CoordinatorInput::Follow);
    bench.place(1);
    let refusal = ControlRefusal::NotCoordinator(NotCoordinator::SteppedDown);
    assert_eq!(bench.replies.last(), Some(&ControlReply::Refused(refusal)));
    assert!(bench.log.is_empty());
}

#[test]
fn instance_ids_of_two_halves_with_the_same_counter_differ() {
    let mut a = Bench::new(2);
    let mut b = Bench::new(2);
    b.feed(CoordinatorInput::Follow);
    b.feed(CoordinatorInput::Lead { epoch: Epoch { counter: 1, key: node(2) } });
    (1..=2).for_each(|n| b.report(n, report(n, PLENTY)));
    a.place(1);
    b.place(1);
    assert_ne!(a.placement().instance, b.placement().instance);
    assert_ne!(a.placement().id, b.placement().id);
}

/// A cluster whose instance 1 has one stage of two shards, on nodes 1 and 2.
fn two_shards(status: &StageStatus) -> Bench {
    let mut placement = crate::testing::placement(1, 1, &[1]);
    let second = exo_types::PlacedShard { node: node(2), ..placement.stages[0].leader().clone() };
    placement.stages[0].shards.push(second);
    let mut state = State::default();
    let placed = Event::InstancePlaced { request: request(), placement, memory_bytes: vec![3000, 4000] };
    state.apply(&placed).unwrap();
    let mut bench = Bench::new(3);
    bench.coordinator = Coordinator::new(node(1), None, state);
    bench.feed(members(3));
    bench.desired.clear();
    bench.feed(CoordinatorInput::Lead { epoch: epoch(2) });
    (1..=3).for_each(|n| bench.feed(CoordinatorInput::NodeUp(node(n))));
    bench.all_report(status);
    bench
}

#[test]
fn every_shard_of_a_stage_is_wanted_counted_and_missed() {
    let ready = StageStatus::Serving;
    let mut bench = two_shards(&ready);
    let wanted =
        |n: u8| bench.desired[&node(n)].shards.iter().map(|s| (s.rank, s.memory_bytes)).collect::<Vec<_>>();
    assert_eq!([wanted(1), wanted(2), wanted(3)], [vec![(0, 3000)], vec![(1, 4000)], vec![]]);
    assert_eq!(bench.state(), Some(InstanceState::Ready));
    assert_eq!(bench.coordinator.instances()[0].stages[0].memory_bytes, 7000);

    let loading = two_shards(&StageStatus::Loading { done_bytes: 1, total_bytes: 9 });
    let mut half = loading;
    let mut report = report(1, PLENTY);
    report.stages = vec![stage_report(&half.desired[&node(1)].shards[0], &ready)];
    half.report(1, report);
    let view = &half.coordinator.instances()[0];
    assert_eq!(
        view.stages[0].status,
        StageStatus::Loading { done_bytes: 1, total_bytes: 9 },
        "the one behind counts"
    );
    assert_eq!(view.state, InstanceState::Loading);

    bench.feed(CoordinatorInput::NodeLost(node(2)));
    let Some(Event::InstanceReplaced { placement, reason, .. }) = bench.log.last() else {
        panic!("{:?}", bench.log)
    };
    let lost = ReplaceReason::Stage { stage: 0, node: node(2), loss: StageLoss::NodeGone };
    assert!(*reason == lost && placement.stage_of(node(2)).is_none(), "{reason}");
}

/// A node full but for `free_bytes` whose two stages of an instance hold what they need, one of them for the
/// placement before.
#[test]
fn memory_of_the_same_content_is_counted_once_whichever_placement_it_was_loaded_for() {
    let mut bench = Bench::new(1);
    bench.place(1);
    let desired = bench.desired[&node(1)].clone();
    let needed = desired.shards[0].memory_bytes;
    let ready = StageStatus::Serving;
    // Another model of the same size fits into the rest, exactly.
    let fits_beside = |bench: &mut Bench, stages: Vec<StageReport>, free_bytes: u64| {
        let mut full = report(1, free_bytes);
        full.stages = stages;
        bench.report(1, full);
        let reply = ReplyTo { node: node(1), request: 9 };
        let other = InstanceRequest { model: exo_types::ModelId([8; 32]), ..request() };
        let out = bench.coordinator.handle(bench.now, CoordinatorInput::Place { reply, request: other });
        let [CoordinatorOutput::Plan { plan, request }] = &out[..] else { panic!("{out:?}") };
        // Not durable: what is planned for it is forgotten again.
        let out = bench.coordinator.handle(bench.now, planned(*plan, request));
        let append = out.iter().find_map(|o| match o {
            CoordinatorOutput::Append { append, .. } => Some(*append),
            _ => None,
        });
        if let Some(append) = append {
            let failed = CoordinatorInput::AppendFailed { append, reason: "only asked".into() };
            bench.coordinator.handle(bench.now, failed);
        }
        append.is_some()
    };
    let own = stage_report(&desired.shards[0], &ready);
    let earlier = StageReport { serves: None, ..own.clone() };
    assert!(fits_beside(&mut bench, vec![own.clone()], needed));
    assert!(!fits_beside(&mut bench, vec![own.clone()], needed - 1), "what is held is not free");
    assert!(fits_beside(&mut bench, vec![earlier.clone()], needed), "its worker takes it over");
    assert!(!fits_beside(&mut bench, vec![earlier.clone()], needed - 1));
    assert!(fits_beside(&mut bench, vec![own.clone(), earlier.clone()], 0), "the second leaves");
    let mut another = earlier;
    another.spec.layers.end -= 1;
    assert!(
        fits_beside(&mut bench, vec![another.clone()], needed),
        "it leaves, and what is wanted needs its bytes"
    );
    assert!(!fits_beside(&mut bench, vec![another], needed - 1));
    assert!(!fits_beside(&mut bench, vec![], 2 * needed - 1), "nothing is loaded yet");
    assert!(fits_beside(&mut bench, vec![], 2 * needed));
}

#[test]
fn who_leads_an_epoch_again_goes_on_with_its_numbers() {
    let mut bench = Bench::ready(2, 2);
    let revision = bench.desired[&node(1)].revision;
    // Its move to another cluster failed, and its log is another one.
    bench.feed(CoordinatorInput::Follow);
    bench.feed(CoordinatorInput::Restored(Box::default()));
    bench.feed(CoordinatorInput::Lead { epoch: epoch(1) });
    for n in 1..=2 {
        bench.report(n, report(n, PLENTY));
    }
    bench.place(2);
    assert_eq!(bench.placement().id, placed(2));
    assert!(bench.desired[&node(1)].revision > revision, "{:?}", bench.desired);
}
