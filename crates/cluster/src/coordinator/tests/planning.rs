//! Plans that take their time: who waits, what is asked again, and what is given up.

use std::fmt::Debug;
use std::sync::Mutex;

use exo_planner::Objective;
use exo_types::{DType, ModelId, TypeBytes, WeightTypes};
use tracing::field::{Field, Visit};

use super::*;

/// Asks for model `n`, under the number `n`.
fn ask(bench: &mut Bench, n: u8) {
    let reply = ReplyTo { node: node(2), request: n.into() };
    let request = InstanceRequest { model: ModelId([n; 32]), model_name: format!("m{n}"), ..request() };
    bench.feed(CoordinatorInput::Place { reply, request });
}

/// Plans wait, and one for model 1 is in flight.
fn planning(members: u8) -> Bench {
    let mut bench = Bench::new(members);
    bench.plans_wait = true;
    ask(&mut bench, 1);
    assert_eq!(bench.plans.len(), 1);
    bench
}

/// An instance of three stages has lost one, and the plan for that is in flight.
fn replacing() -> Bench {
    let mut bench = Bench::ready_and_tight(3, 3);
    bench.plans_wait = true;
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert_eq!(bench.plans.len(), 1);
    bench
}

fn is_degraded(bench: &Bench) -> bool {
    matches!(bench.state(), Some(InstanceState::Degraded { .. }))
}

/// The node goes, or comes back with a report.
fn flip(bench: &mut Bench, n: u8, up: bool) {
    if up {
        bench.feed(CoordinatorInput::NodeUp(node(n)));
        bench.report(n, report(n, PLENTY));
    } else {
        bench.feed(CoordinatorInput::NodeLost(node(n)));
    }
}

#[test]
fn nothing_waits_for_a_plan_but_who_asked() {
    let mut bench = planning(2);
    let (reply, instance) = (ReplyTo { node: node(1), request: 50 }, InstanceId(9));
    bench.feed(CoordinatorInput::Remove { reply, instance, reason: RemoveReason::Asked { by: reply.node } });
    assert_eq!(bench.answered, [50]);
    bench.answer();
    assert_eq!(bench.answered, [50, 1]);
    assert!(matches!(bench.replies[1], ControlReply::Placed { .. }), "{:?}", bench.replies);
}

#[test]
fn who_asks_for_a_model_that_is_being_planned_waits_for_the_same_plan() {
    let mut bench = planning(2);
    ask(&mut bench, 2);
    for n in [1, 2, 1] {
        ask(&mut bench, n);
    }
    assert!(bench.answered.is_empty());
    bench.answer();
    assert_eq!(bench.answered, [1, 1, 1]);
    bench.answer();
    assert_eq!((&bench.answered[..], bench.log.len()), (&[1, 1, 1, 2, 2][..], 2));
    let instances = bench.replies.iter().map(|reply| match reply {
        ControlReply::Placed { view, reasons, .. } if reasons.len() == 3 => view.placement.instance,
        other => panic!("{other:?}"),
    });
    let instances: Vec<_> = instances.collect();
    assert_eq!(instances[..3], [instances[0]; 3]);
    assert_ne!(instances[0], instances[3]);
}

#[test]
fn one_plan_is_in_flight_and_the_others_follow_in_order() {
    let mut bench = planning(2);
    (2..=4).for_each(|n| ask(&mut bench, n));
    for n in 1..=4 {
        let [(_, request)] = &bench.plans[..] else { panic!("{:?}", bench.plans) };
        assert_eq!(request.model, ModelId([n; 32]));
        bench.answer();
    }
    assert_eq!((&bench.answered[..], bench.plans.len()), (&[1, 2, 3, 4][..], 0));
}

#[test]
fn the_seventeenth_ask_that_would_have_to_wait_is_refused_with_the_number() {
    let mut bench = planning(2);
    (2..=17).for_each(|n| ask(&mut bench, n));
    assert!(bench.replies.is_empty(), "one in flight, sixteen wait");
    ask(&mut bench, 18);
    let (refusal, message) = refusal(&bench);
    assert!(matches!(refusal, ControlRefusal::Busy(Busyness::Plans(16))), "{message}");
    ask(&mut bench, 17);
    assert_eq!(bench.replies.len(), 1, "who joins needs no room");
    bench.answer();
    ask(&mut bench, 18);
    assert_eq!(bench.answered, [18, 1], "an answer makes room");
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_missing_bytes() {
    let mut bench = Bench::new(1);
    bench.report(1, report(1, 1000));
    bench.place(1);
    let (refusal, message) = refusal(&bench);
    assert!(matches!(refusal, ControlRefusal::DoesNotFit(_)) && message.contains("are missing"), "{message}");
}

/// A report of a device that has no kernels for the weights of [`typed`].
fn without_kernels(n: u8) -> NodeReport {
    let mut report = report(n, PLENTY);
    report.facts.devices[0].unsupported_types = vec![DType::Q2_K];
    report
}

/// The model, all of a type that not every device runs.
fn typed() -> InstanceRequest {
    let of = |bytes| TypeBytes(vec![(DType::Q2_K, bytes)]);
    let shape = request().shape;
    let layers = shape.layers.iter().map(|layer| of(layer.weight_bytes)).collect();
    let types = WeightTypes { layers, head: of(shape.head_bytes) };
    InstanceRequest { weight_types: Some(Box::new(types)), ..request() }
}

#[test]
fn a_model_that_no_device_supports_is_refused_and_nothing_is_loaded() {
    let mut bench = Bench::new(2);
    (1..=2).for_each(|n| bench.report(n, without_kernels(n)));
    let reply = ReplyTo { node: node(1), request: 1 };
    bench.feed(CoordinatorInput::Place { reply, request: typed() });
    let (refusal, message) = refusal(&bench);
    assert!(matches!(refusal, ControlRefusal::Invalid(InvalidAsk::NoPlan(_))), "{refusal:?}");
    assert!(message.contains("no device can run the types of weights that the model has"), "{message}");
    assert!(message.contains("n1 cpu: it cannot run Q2_K weights, which layers 0 to 3"), "{message}");
    assert!(bench.log.is_empty(), "no shard was ever wanted: {:?}", bench.log);
    // One that runs them is enough, and the other is left out.
    bench.report(2, report(2, PLENTY));
    bench.feed(CoordinatorInput::Place { reply, request: typed() });
    assert!(bench.placement().shards().all(|(_, shard)| shard.node == node(2)), "{:?}", bench.placement());
}

#[test]
fn a_lost_stage_goes_to_no_device_without_kernels_for_it() {
    let mut bench = Bench::new(3);
    let reply = ReplyTo { node: node(1), request: 1 };
    let objective = PlaceObjective::Spread { stages_min: 2 };
    bench.report(3, without_kernels(3));
    bench.feed(CoordinatorInput::Place { reply, request: InstanceRequest { objective, ..typed() } });
    bench.all_report(&StageStatus::Loaded);
    bench.report(3, without_kernels(3));
    bench.feed(CoordinatorInput::NodeLost(node(2)));
    assert_eq!(bench.placement().id.number, 2);
    assert!(bench.placement().shards().all(|(_, shard)| shard.node == node(1)), "{:?}", bench.placement());
}

#[test]
fn an_answer_of_an_epoch_that_is_over_is_dropped() {
    let mut bench = planning(2);
    let (old, request) = bench.plans.pop().unwrap();
    bench.feed(CoordinatorInput::Follow);
    bench.feed(planned(old, &request));
    bench.feed(CoordinatorInput::Lead { epoch: epoch(2) });
    (1..=2).for_each(|n| bench.report(n, report(n, PLENTY)));
    ask(&mut bench, 1);
    let [(new, _)] = bench.plans[..] else { panic!("{:?}", bench.plans) };
    assert_eq!((old.number, new.number, old.epoch < new.epoch), (1, 1, true));
    bench.feed(planned(old, &request));
    assert!(bench.log.is_empty() && bench.plans.len() == 1);
    bench.answer();
    assert_eq!(bench.log.len(), 1);
}

#[test]
fn when_the_lead_ends_everyone_who_waits_for_a_plan_is_told_and_nothing_is_left() {
    let mut bench = planning(2);
    (2..=3).for_each(|n| ask(&mut bench, n));
    bench.plans.clear();
    bench.feed(CoordinatorInput::Follow);
    assert_eq!(bench.answered, [1, 2, 3]);
    let elsewhere = |r: &ControlReply| matches!(r, ControlReply::Refused(ControlRefusal::NotCoordinator(_)));
    assert!(bench.replies.iter().all(elsewhere), "{:?}", bench.replies);
    bench.feed(CoordinatorInput::Lead { epoch: epoch(2) });
    bench.advance(31);
    assert_eq!((bench.plans.len(), bench.replies.len()), (0, 3));
}

#[test]
fn a_plan_for_devices_that_have_changed_is_asked_for_again() {
    let mut bench = planning(3);
    flip(&mut bench, 3, false);
    bench.answer();
    assert!(bench.log.is_empty(), "made with a node that is gone");
    assert_eq!(bench.plans[0].1.devices.len(), 2);
    let mut gave_up = report(2, PLENTY);
    gave_up.facts.devices[0].support = SupportClass::Unsupported;
    bench.report(2, gave_up);
    bench.answer();
    assert!(bench.log.is_empty(), "made with a device that its node has given up");
    assert!(bench.plans[0].1.devices[1].excluded.is_some());
    bench.answer();
    assert_eq!(bench.answered, [1]);
}

#[test]
fn a_plan_beside_placements_that_have_changed_is_asked_for_again() {
    let mut bench = Bench::ready(2, 1);
    bench.plans_wait = true;
    ask(&mut bench, 2);
    let (instance, reply) = (bench.placement().instance, ReplyTo { node: node(1), request: 60 });
    bench.feed(CoordinatorInput::Remove { reply, instance, reason: RemoveReason::Asked { by: reply.node } });
    bench.answer();
    assert_eq!(bench.log.len(), 2, "made beside what is not there any more");
    bench.answer();
    assert!(matches!(bench.log[2], Event::InstancePlaced { .. }), "{:?}", bench.log);
}

#[test]
fn free_memory_that_moves_with_each_report_is_no_change_while_the_plan_fits() {
    let mut bench = planning(2);
    (1..=2).for_each(|n| bench.report(n, report(n, PLENTY / 2)));
    bench.answer();
    assert_eq!(bench.answered, [1]);
    ask(&mut bench, 2);
    (1..=2).for_each(|n| bench.report(n, report(n, 1000)));
    bench.answer();
    assert_eq!((&bench.answered[..], bench.plans.len()), (&[1][..], 1), "asked again");
    bench.answer();
    assert!(matches!(refusal(&bench).0, ControlRefusal::DoesNotFit(_)));
}

#[test]
fn the_third_answer_is_taken_if_it_fits_whatever_has_changed() {
    let mut bench = planning(3);
    for up in [false, true, false] {
        assert!(bench.answered.is_empty());
        flip(&mut bench, 3, up);
        bench.answer();
    }
    assert_eq!((&bench.answered[..], bench.plans.len()), (&[1][..], 0));
    assert!(matches!(bench.replies[0], ControlReply::Placed { .. }), "{:?}", bench.replies);
}

#[test]
fn the_third_answer_is_refused_if_it_does_not_fit() {
    let mut bench = planning(3);
    for up in [false, true] {
        flip(&mut bench, 3, up);
        bench.answer();
    }
    bench.report(1, report(1, 1000));
    bench.answer();
    let (refusal, message) = refusal(&bench);
    let ControlRefusal::NoPlan { why: Undecided::Changed { times: 3, .. }, .. } = refusal else {
        panic!("{refusal:?}")
    };
    assert_eq!((bench.plans.len(), bench.log.len()), (0, 0));
    assert!(message.contains("changed 3 times") && message.contains("1000 B free"), "{message}");
}

#[test]
fn an_ask_without_a_plan_for_30_seconds_is_refused_and_the_next_is_planned() {
    let mut bench = planning(2);
    bench.advance(10);
    ask(&mut bench, 2);
    bench.advance(19);
    assert!(bench.replies.is_empty());
    let (late, request) = bench.plans.pop().unwrap();
    bench.advance(1);
    let (refusal, message) = refusal(&bench);
    let why = Undecided::Late { seconds: 30 };
    assert_eq!(*refusal, ControlRefusal::NoPlan { model_name: Some("m1".into()), why }, "{message}");
    bench.feed(planned(late, &request));
    assert!(bench.log.is_empty(), "too late");
    bench.answer();
    assert_eq!(bench.answered, [1, 2]);
}

#[test]
fn an_instance_is_degraded_while_its_replacement_is_planned_and_nothing_else_is_decided_of_it() {
    let mut bench = replacing();
    assert!(is_degraded(&bench));
    flip(&mut bench, 3, true);
    let mut troubled = report(1, PLENTY);
    troubled.instance_failures =
        vec![InstanceFailure { placement: placed(1), stage: None, why: step_failed("stuck") }];
    bench.report(1, troubled);
    bench.all_report(&StageStatus::Serving);
    bench.advance(1);
    assert!(is_degraded(&bench));
    assert_eq!((bench.plans.len(), bench.log.len()), (1, 1));
}

#[test]
fn a_replacement_that_cannot_have_as_many_stages_is_planned_with_as_many_as_can_be() {
    let mut bench = replacing();
    assert_eq!(bench.plans[0].1.objective, Objective::Spread { stages_min: 3 });
    bench.answer();
    assert_eq!(bench.plans[0].1.objective, Objective::Spread { stages_min: 2 });
    assert!(is_degraded(&bench));
    // While it is planned a node comes: three are possible again.
    flip(&mut bench, 3, true);
    bench.answer();
    assert_eq!(bench.plans[0].1.objective, Objective::Spread { stages_min: 3 });
    bench.answer();
    assert_eq!((bench.placement().id.number, bench.placement().stages.len()), (2, 3));
}

#[test]
fn a_replacement_without_an_answer_is_tried_again_later_and_costs_no_attempt() {
    let mut bench = replacing();
    for _ in 0..4 {
        bench.plans.clear();
        bench.advance(30);
        assert!(is_degraded(&bench) && bench.plans.is_empty());
        bench.advance(4);
        assert!(bench.plans.is_empty());
        bench.advance(1);
        assert_eq!(bench.plans.len(), 1);
    }
    bench.answer();
    bench.answer();
    assert_eq!((bench.placement().id.number, bench.log.len()), (2, 2));
}

#[test]
fn a_replacement_that_the_log_did_not_take_is_planned_again() {
    let mut bench = replacing();
    bench.answer();
    let (plan, request) = bench.plans.pop().unwrap();
    let out = bench.coordinator.handle(bench.now, planned(plan, &request));
    let [CoordinatorOutput::Append { append, .. }] = out[..] else { panic!("{out:?}") };
    bench.feed(CoordinatorInput::AppendFailed { append, reason: "disk full".into() });
    assert!(is_degraded(&bench) && bench.plans.is_empty());
    bench.all_report(&StageStatus::Serving);
    bench.advance(1);
    assert!(is_degraded(&bench) && bench.plans.len() == 1, "its pipeline has ended");
}

#[test]
fn an_instance_that_is_removed_while_its_replacement_is_planned_leaves_nothing() {
    let mut bench = replacing();
    ask(&mut bench, 2);
    let (late, request) = bench.plans.pop().unwrap();
    let (instance, reply) = (bench.placement().instance, ReplyTo { node: node(1), request: 60 });
    bench.feed(CoordinatorInput::Remove { reply, instance, reason: RemoveReason::Asked { by: reply.node } });
    assert_eq!(bench.plans[0].1.model, ModelId([2; 32]), "the next one does not wait for it");
    bench.feed(planned(late, &request));
    assert!(matches!(bench.log.last(), Some(Event::InstanceRemoved { .. })), "{:?}", bench.log);
    bench.answer();
    bench.advance(60);
    assert_eq!((bench.plans.len(), bench.coordinator.instances().len()), (0, 1));
}

#[test]
fn replacements_that_find_no_room_in_the_queue_are_planned_when_there_is_some() {
    let mut bench = Bench::ready_and_tight(3, 3);
    bench.plans_wait = true;
    (21..=37).for_each(|n| ask(&mut bench, n));
    bench.feed(CoordinatorInput::NodeLost(node(3)));
    assert!(is_degraded(&bench) && bench.log.len() == 1);
    let mut planned = 0;
    while !bench.plans.is_empty() {
        planned += 1;
        assert!(planned < 40);
        bench.now = bench.now + std::time::Duration::from_millis(100);
        bench.answer();
    }
    let replaced = bench.log.iter().filter(|event| matches!(event, Event::InstanceReplaced { .. })).count();
    assert_eq!(
        (replaced, bench.placement().id),
        (1, placed(2)),
        "behind the 17 that came before and do not fit"
    );
    assert_eq!(bench.answered[1..], (21..=37).collect::<Vec<u64>>());
}

#[test]
fn answers_that_are_dropped_and_asks_that_are_refused_leave_a_trace_with_both_numbers() {
    let events = Events::default();
    let seen = events.0.clone();
    tracing::subscriber::with_default(events, || {
        let mut bench = planning(3);
        let (old, request) = bench.plans[0].clone();
        flip(&mut bench, 3, false);
        bench.answer();
        bench.feed(planned(old, &request));
        (2..=18).for_each(|n| ask(&mut bench, n));
        bench.advance(31);
        bench.feed(CoordinatorInput::Lead { epoch: epoch(2) });
        bench.feed(planned(old, &request));
    });
    let seen = seen.lock().unwrap();
    let has = |words: &[&str]| {
        let found = seen.iter().any(|event| words.iter().all(|word| event.contains(word)));
        assert!(found, "{words:?} in {seen:#?}");
    };
    has(&["outdated=1 ", "max=3 ", "devices_then=3 ", "devices_now=2 "]);
    has(&["plan=1 ", "in_flight=2 "]);
    has(&["queued=16 ", "max=16 "]);
    has(&["waited_ms=31000 ", "max_ms=30000 "]);
    has(&[&format!("epoch={} ", epoch(1)), &format!("epoch_now={} ", epoch(2))]);
}

#[test]
fn writes_for_who_leads_no_more_and_entries_for_who_leads_leave_a_trace() {
    let events = Events::default();
    let seen = events.0.clone();
    tracing::subscriber::with_default(events, || {
        let mut bench = Bench::new(1);
        bench.feed(CoordinatorInput::Replicated(vec![Event::Opened]));
        bench.feed(CoordinatorInput::Restored(Box::default()));
        bench.feed(CoordinatorInput::Follow);
        bench.feed(CoordinatorInput::Appended(AppendId(7)));
        bench.feed(CoordinatorInput::AppendFailed { append: AppendId(8), reason: "full".to_owned() });
    });
    let seen = seen.lock().unwrap().join("\n");
    for words in ["events=1 ", "the state of another's log", "append=7 ", "append=8 "] {
        assert!(seen.contains(words), "{words} in {seen}");
    }
}

/// Keeps trace events as text.
#[derive(Default)]
struct Events(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::TRACE
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

#[test]
fn a_member_that_asks_without_end_is_told_to_come_back() {
    let mut bench = planning(2);
    (1..64).for_each(|_| ask(&mut bench, 1));
    assert!(bench.replies.is_empty(), "{:?}", bench.replies);
    ask(&mut bench, 1);
    let (kind, message) = refusal(&bench);
    assert_eq!(*kind, ControlRefusal::Busy(Busyness::Questions(64)), "{message}");
    // Another one is heard all the same.
    let reply = ReplyTo { node: node(1), request: 5 };
    let same = InstanceRequest { model: ModelId([1; 32]), model_name: "m1".into(), ..request() };
    bench.feed(CoordinatorInput::Place { reply, request: same });
    bench.answer();
    assert_eq!(bench.replies.len(), 66);
}

/// Two members that have just met and miss a data link, and a placement that needs it.
fn waiting_for_a_link() -> Bench {
    let mut bench = Bench::new(2);
    bench.report(1, NodeReport { unreached: vec![node(2)], ..report(1, PLENTY) });
    bench.place(2);
    assert!(bench.answered.is_empty() && bench.log.is_empty(), "{:?}", bench.replies);
    bench
}

#[test]
fn a_placement_waits_for_the_link_of_members_that_have_just_met() {
    let mut bench = waiting_for_a_link();
    bench.advance(1);
    // Who asks for the same meanwhile waits with the first.
    let (reply, objective) =
        (ReplyTo { node: node(2), request: 2 }, PlaceObjective::Spread { stages_min: 2 });
    bench.feed(CoordinatorInput::Place { reply, request: InstanceRequest { objective, ..request() } });
    assert!(bench.answered.is_empty());
    bench.report(1, report(1, PLENTY));
    assert_eq!((&bench.answered[..], bench.log.len()), (&[1, 2][..], 1));
    assert!(matches!(bench.replies[0], ControlReply::Placed { .. }), "{:?}", bench.replies);
}

#[test]
fn a_link_that_does_not_open_in_time_refuses_the_placement_and_later_ones_at_once() {
    let mut bench = waiting_for_a_link();
    bench.advance(9);
    assert!(bench.answered.is_empty());
    bench.advance(1);
    for asks in 1..=2 {
        assert_eq!(bench.answered.len(), asks, "{:?}", bench.replies);
        let (refusal, message) = refusal(&bench);
        let apart = matches!(refusal, ControlRefusal::NoPlan { why: Undecided::Apart { .. }, .. });
        assert!(apart && message.contains("no data link is open"), "{message}");
        bench.place(2);
    }
}

#[test]
fn a_placement_waits_for_no_link_to_a_member_that_is_lost_and_nobody_waits_beyond_the_lead() {
    let mut bench = waiting_for_a_link();
    bench.feed(CoordinatorInput::NodeLost(node(2)));
    assert!(bench.answered == [1] && matches!(refusal(&bench).0, ControlRefusal::Invalid(_)));
    let mut bench = waiting_for_a_link();
    bench.feed(CoordinatorInput::Follow);
    assert!(bench.answered == [1] && matches!(refusal(&bench).0, ControlRefusal::NotCoordinator(_)));
}
