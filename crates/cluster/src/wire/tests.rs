use exo_types::{
    Attempt, DType, DeviceId, Exclusion, FailureKind, LayerRange, PacketCounts, PageKey, Pin, PinLayers,
    Principal, PromptReport, SampledToken, StepFrame, StepSequence, Term, TokenScore, TypeBytes, WeightTypes,
    WireDType,
};
use proptest::prelude::*;

use super::*;
use crate::testing::{
    MODEL, PLENTY, node, placement, placement_id, report, request, result, seq, spec, submission, token,
};
use crate::{
    Advice, Event, Gain, GainOf, InstanceRequest, InstanceState, InstanceView, LinkChange, LinkQuantity,
    LoadFailure, LoadFault, Moving, PlaceObjective, RemoveReason, ReplaceReason, StageLoss, StageStatus,
    StageView, Unplaced, WaitReason,
};

fn step(tokens: usize) -> StepMessage {
    let (sequence, principal) = (seq(1), Principal::LOCAL);
    let part = StepSequence {
        sequence,
        principal,
        start: 0,
        tokens: vec![3; tokens],
        sample: true,
        drafts: 0,
        truncate_to: None,
    };
    let frame =
        StepFrame { placement: placement_id(1, 1), term: Term::FIRST, step: 1, sequences: vec![part] };
    let commands = vec![
        StageCommand::Keep { sequence, pages: vec![(0, PageKey(3))] },
        StageCommand::Close(sequence),
        StageCommand::Forget(vec![PageKey(2)]),
        StageCommand::Open { spec: spec(1, node(9), 4), attempt: Attempt(2), cached: vec![PageKey(3)] },
    ];
    let rows = (0..tokens * 8).map(|b| b as u8).collect();
    StepMessage {
        stage: 1,
        commands,
        frame,
        failures: vec![],
        pages: vec![],
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
        rows_dtype: WireDType::F32,
        rows,
    }
}

fn view() -> InstanceView {
    let stage = StageView { status: StageStatus::Serving, memory_bytes: 5 };
    let (placement, stages) = (placement(1, 1, &[1, 2]), vec![stage; 2]);
    InstanceView {
        model_name: "m".into(),
        placement,
        state: InstanceState::Ready,
        stages,
        moving: None,
        advice: None,
    }
}

fn failed_load(detail: &str) -> StageStatus {
    let why = LoadFailure::Fault { kind: LoadFault::Device, detail: detail.to_owned() };
    StageStatus::Failed { why, failed_loads: 1 }
}

/// One with reasons of all kinds.
fn waiting(loads: &str, plans: &str) -> InstanceView {
    let gain = Gain { percent: 12, of: GainOf::Streams };
    let what = LinkQuantity::RoundTripUs;
    let link = Some(LinkChange { at: node(1), peer: node(2), what, before: Some(7), now: 300 });
    let status = failed_load(loads);
    let loss = StageLoss::NoProgress { seconds: 120, status };
    let lost = ReplaceReason::Stage { stage: 1, node: node(2), loss };
    let reason = WaitReason { lost, why: Unplaced::NoPlan(plans.into()) };
    InstanceView {
        state: InstanceState::Waiting { reason },
        moving: Some(Moving::Loading { reason: ReplaceReason::Better(gain), done_bytes: 1, total_bytes: 2 }),
        advice: Some(Advice { gain, link }),
        ..view()
    }
}

fn desired() -> DesiredState {
    let (placement, model_name) = (placement(1, 1, &[1, 2]), "m".to_owned());
    let shard = DesiredShard {
        placement,
        stage: 1,
        rank: 0,
        model_name,
        holders: vec![node(1)],
        memory_bytes: 7,
        is_ahead: false,
    };
    DesiredState { epoch: epoch(), revision: 3, shards: vec![shard] }
}

fn epoch() -> exo_types::Epoch {
    exo_types::Epoch { counter: 2, key: node(1) }
}

/// The same of what a plan is made with.
fn planner_inputs() -> PlannerInputs {
    let facts = report(1, PLENTY).facts.devices[0].clone();
    let excluded = Some(DeviceExclusion::Unsupported("r".into()));
    let device =
        PlannerDevice { node: node(1), node_name: "n1".into(), facts, thermal_percent: 70, excluded };
    let unloadable = Unloadable {
        instance: exo_types::InstanceId(3),
        model_name: "m".into(),
        shards: vec![(node(1), DeviceId::cpu())],
        idle_s: Some(4),
        room: vec![FreeMemory { free_bytes: PLENTY, shared_free_bytes: None }],
    };
    PlannerInputs {
        devices: vec![device],
        apart: vec![(node(1), node(2))],
        parts: vec![(node(2), 5)],
        unloadable: vec![unloadable],
    }
}

/// A report with something in each of its lists.
fn full_report() -> NodeReport {
    let desired = &desired().shards[0];
    let mut full = report(1, PLENTY);
    full.models = vec![HeldModel {
        model: MODEL,
        name: "m".into(),
        bytes: 9,
        held_bytes: 9,
        complete: true,
        is_of_hub: false,
        expected_bytes: 0,
        may_go: false,
    }];
    full.stages = vec![StageReport {
        engine: crate::EngineId(1),
        serves: Some(desired.position()),
        spec: desired.spec(),
        status: StageStatus::Serving,
        held_bytes: 1,
        weight_bytes: 1,
        unpacked_bytes: 0,
        rows_bytes: 0,
        rows_bytes_max: 0,
        busy_us: 1,
        sequences: 1,
        sources: vec![crate::wire::FetchSource { member: Some(node(2)), bytes: 9, bytes_per_s: 3 }],
    }];
    full.links = vec![LinkReport {
        peer: node(2),
        rtt_us: 1,
        rtt_count: 1,
        rtt_age_ms: 1,
        jitter_us: 1,
        inbound: None,
        traffic: Some(Traffic { packets: Some(PacketCounts { sent: 2, lost: 1 }), ..Traffic::default() }),
        is_wireless: Some(true),
    }];
    full.unreached = vec![node(3)];
    full.instance_failures =
        vec![InstanceFailure { placement: placement_id(1, 1), stage: None, why: not_opened("r") }];
    full.reached = vec![(node(2), "127.0.0.1:7".parse().unwrap())];
    full.devices = vec![DeviceReport {
        device: DeviceId::cpu(),
        state: exo_types::DeviceState::Usable,
        reason: String::new(),
        driver: Some("d".to_owned()),
        monitor: Default::default(),
    }];
    full.card_events =
        vec![CardEvent { at_unix_s: 1, change: CardChange::Appeared, is_own: true, card: "t".into() }];
    let histogram = Histogram { counts: vec![1], sum_us: 1 };
    full.measured.requests =
        vec![ModelTotals { ended: vec![(1, 2, 3)], queue: histogram, ..Default::default() }];
    full
}

fn copies() -> Vec<ControlMessage> {
    let (request, proof) = (exo_types::RequestId(1), [7; 32]);
    let backup = Backup { model: MODEL, record: vec![1], choices: vec![vec![token(7)], vec![]] };
    let tokens = vec![token(7)];
    vec![
        ControlMessage::Backup(BackupMessage::Begin { request, proof, backup }),
        ControlMessage::Backup(BackupMessage::Tokens { request, index: 0, position: 1, tokens }),
    ]
}

fn data_messages() -> Vec<DataMessage> {
    let (placement, term, sequence, attempt) = (placement_id(1, 1), Term(2), seq(1), Attempt(3));
    vec![
        DataMessage::Submit(submission(1, 4, 9)),
        DataMessage::Step(step(2)),
        DataMessage::Tokens(TokensMessage {
            placement,
            term,
            step: 1,
            results: vec![result(1, 4, 7)],
            failures: vec![],
            pages: vec![],
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
        }),
        sequence_failed(PipelineFailure::Steps {
            count: 3,
            why: ComputeFault::NotFinite { row: 2, hidden: 64 },
        }),
        sequence_failed(not_opened("why")),
        sequence_failed(PipelineFailure::NoToken {
            terms: 3,
            seconds: 30,
            last: TermEnd::Stage { stage: 1, why: PipelineBreak::Order { got: 7, expected: 2 } },
        }),
        DataMessage::NotWired {
            placement,
            term,
            stage: 1,
            step: 0,
            missing: Missing {
                stage: 1,
                what: MissingPart::NotReady { node: node(3), status: failed_load("why") },
                waited_ms: 2000,
            },
        },
        DataMessage::Undelivered {
            placement,
            term,
            step: 1,
            sequences: vec![(sequence, attempt)],
            missing: Missing { stage: 1, what: MissingPart::Link { to: node(3) }, waited_ms: 2000 },
        },
        DataMessage::PipelineBroken {
            placement,
            term,
            stage: 1,
            kind: FailureKind::Protocol,
            why: PipelineBreak::Page { step: 3, fault: PageFault::ForgetsUnkept, key: PageKey(7) },
        },
        rejected(64, 7),
        DataMessage::SequenceEnded {
            placement,
            term,
            sequence,
            attempt,
            reason: EndReason::StopToken,
            generated: 3,
            times: SequenceTimes {
                prompt: PhaseTimes { stages_us: vec![300, 200], between_us: 50 },
                answer: PhaseTimes::default(),
            },
        },
    ]
}

fn not_opened(words: &str) -> PipelineFailure {
    let missing = Missing {
        stage: 1,
        what: MissingPart::Engine(ComputeFault::Engine(words.to_owned())),
        waited_ms: 2000,
    };
    PipelineFailure::NotOpened { seconds: 30, missing: Some(missing) }
}

fn sequence_failed(why: PipelineFailure) -> DataMessage {
    let (placement, term, sequence, attempt) = (placement_id(1, 1), Term(2), seq(1), Attempt(3));
    DataMessage::SequenceFailed { placement, term, sequence, attempt, kind: FailureKind::Device, why }
}

fn rejected(waiting: u32, retry_after_s: u32) -> DataMessage {
    let (placement, sequence, attempt) = (placement_id(1, 1), seq(1), Attempt::FIRST);
    let (instance, busy) = (exo_types::InstanceId(1), Busy { waiting, retry_after_s });
    let why = Rejection::QueueFull { instance, busy };
    DataMessage::Rejected { placement, sequence, attempt, why }
}

#[test]
fn a_pipeline_breaks_for_reasons_of_its_own() {
    let broken = |kind| DataMessage::PipelineBroken {
        placement: placement_id(1, 1),
        term: Term::FIRST,
        stage: 0,
        kind,
        why: PipelineBreak::LaterTerm { own: Term(2) },
    };
    assert!(broken(FailureKind::StageLost).check().is_ok() && broken(FailureKind::Protocol).check().is_ok());
    // Final for every answer that runs.
    assert!(broken(FailureKind::Constraint).check().is_err());
}

fn control_messages() -> Vec<ControlMessage> {
    vec![
        ControlMessage::Membership(vec![1, 2, 3]),
        ControlMessage::Desired(desired()),
        ControlMessage::Instances { epoch: epoch(), instances: vec![view()] },
        ControlMessage::Instances { epoch: epoch(), instances: vec![waiting("r", "p")] },
        ControlMessage::Request { request: 7, ask: ControlAsk::Place(request()) },
        ControlMessage::Request {
            request: 8,
            ask: ControlAsk::PlannerInputs { model: MODEL, replaced: Some(exo_types::InstanceId(3)) },
        },
        ControlMessage::Reply { request: 8, reply: ControlReply::PlannerInputs(Box::new(planner_inputs())) },
        ControlMessage::Reply {
            request: 7,
            reply: ControlReply::Placed { view: view(), reasons: vec!["r".into()], holders: 2 },
        },
        refused_plan("why", "m"),
        ControlMessage::Refused(Refusal::StaleRevision { got: 1, seen: 2 }),
        ControlMessage::Trust(vec![1]),
        ControlMessage::Report(Box::new(full_report())),
        ControlMessage::Log(LogMessage::Entries {
            epoch: epoch(),
            after_index: 0,
            after_hash: [0; 32],
            entries: vec![vec![1, 2], vec![]],
        }),
        ControlMessage::Log(tail_snapshot(3, 2)),
    ]
    .into_iter()
    .chain(copies())
    .collect()
}

fn refused_plan(explanation: &str, unloaded: &str) -> ControlMessage {
    let plan = NoPlan { explanation: explanation.into(), unloaded: vec![unloaded.into()] };
    let refusal = ControlRefusal::Invalid(InvalidAsk::NoPlan(plan));
    ControlMessage::Reply { request: 7, reply: ControlReply::Refused(refusal) }
}

fn tail_snapshot(index: u64, ancestors: usize) -> LogMessage {
    LogMessage::TailSnapshot { index, hash: [9; 32], ancestors: vec![[8; 32]; ancestors], state: vec![1] }
}

#[test]
fn a_log_has_no_more_ends_than_entries_and_a_bounded_number_is_told() {
    let checked = |index, ancestors| {
        let message = ControlMessage::Log(tail_snapshot(index, ancestors));
        ControlMessage::decode(&message.encode()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(checked(5000, 1024), Ok(()));
    assert!(checked(5000, 1025).unwrap_err().contains("longer than allowed"));
    assert!(checked(3, 4).unwrap_err().contains("more ends than it has entries"));
    assert!(checked(u64::MAX, 1).unwrap_err().contains("2^48 entries"), "the next one is a number, too");
}

#[test]
fn messages_survive_a_round_trip_rows_included() {
    for message in data_messages() {
        assert_eq!(DataMessage::decode(&message.encode()), Ok(message));
    }
    for message in control_messages() {
        assert_eq!(ControlMessage::decode(&message.encode()), Ok(message));
    }
}

/// Why the bytes are refused.
fn refusal(bytes: &[u8]) -> String {
    DataMessage::decode(bytes).map_or_else(|e| e.to_string(), |m| panic!("accepted {m:?}"))
}

#[test]
fn malformed_bytes_are_refused_with_numbers() {
    let good = DataMessage::Submit(submission(1, 4, 9)).encode();
    assert_eq!(refusal(&[]), "the message is empty");
    let other = format!("the message has version 7, this node speaks {WIRE_VERSION}");
    assert_eq!(refusal(&[7, 0, 0]), other);
    assert_eq!(refusal(&[WIRE_VERSION, 0, 0]), "the header is announced with 4 bytes, 2 follow");
    assert_eq!(refusal(&[WIRE_VERSION, 9, 0, 0, 0, 7]), "the header is announced with 9 bytes, 1 follow");
    assert!(refusal(&[WIRE_VERSION, 255, 255, 255, 255]).contains("4294967295 bytes, at most"));
    assert!(refusal(&good[..good.len() - 1]).contains("announced"));
    let mut trailing = good;
    trailing.push(0);
    assert_eq!(refusal(&trailing), "1 bytes follow the end of the message", "only steps have rows");
}

/// Why an encodable but hostile message is refused.
fn bound(message: DataMessage) -> String {
    refusal(&message.encode())
}

#[test]
fn counts_beyond_their_bounds_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut StepMessage)| {
        let mut step = step(1);
        change(&mut step);
        bound(DataMessage::Step(step))
    };
    assert!(with(&|s| s.frame.sequences[0].tokens = vec![0; 9000]).contains("tokens of a step: 9000 given"));
    assert!(with(&|s| s.frame.sequences[0].tokens.clear()).contains("without tokens"));
    assert!(with(&|s| s.frame.sequences.push(s.frame.sequences[0].clone())).contains("twice"));
    assert!(with(&|s| s.frame.sequences[0].start = u32::MAX).contains("end position"));
    let drafts = |tokens, drafts, sample| {
        with(&|s| {
            let part = &mut s.frame.sequences[0];
            (part.tokens, part.drafts, part.sample) = (vec![3; tokens], drafts, sample);
        })
    };
    assert!(drafts(2, 2, true).contains("drafts only"));
    assert!(drafts(30, 17, true).contains("drafts of a sequence: 17 given, at most 16"));
    assert!(drafts(2, 1, false).contains("nothing is sampled"));
    let answer = |tokens: usize, drafts, position| {
        let mut result = result(1, position, 7);
        (result.tokens, result.drafts) = (vec![result.tokens[0].clone(); tokens], drafts);
        let (placement, term, step, failures) = (placement_id(1, 1), Term::FIRST, 1, vec![]);
        let results = vec![result];
        bound(DataMessage::Tokens(TokensMessage {
            placement,
            term,
            step,
            results,
            failures,
            pages: vec![],
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
        }))
    };
    assert!(answer(0, 0, 4).contains("no token"));
    assert!(answer(3, 1, 4).contains("tokens of a sampled sequence: 3 given, at most 2"));
    assert!(answer(17, 17, 4).contains("drafts of a sequence"));
    assert!(answer(18, 16, 4).contains("longer than allowed"));
    assert!(answer(2, 1, 1 << 20).contains("position of a token"));
    assert!(with(&|s| s.commands = vec![StageCommand::Close(seq(1)); 4000]).contains("longer than allowed"));
    assert!(bound(rejected(64, u32::MAX)).contains("seconds to come back in: 4294967295 given"));
    assert!(with(&|s| s.computed_us = vec![1; 4000]).contains("times of stages: 4000 given"));
    assert!(with(&|s| s.rebuilds = Some(StageSet::default())).contains("rebuilds pages of no stage"));
    let mut nan = submission(1, 4, 9);
    nan.spec.sampling.temperature = f32::NAN;
    assert!(bound(DataMessage::Submit(nan)).contains("out of its range"));
    let mut uncounted = submission(1, 4, 9);
    uncounted.attempt = Attempt(0);
    assert!(bound(DataMessage::Submit(uncounted)).contains("attempt 0"));
    assert!(with(&|s| s.frame.term = Term(0)).contains("term 0"));
    let mut none = submission(1, 4, 9);
    none.max_tokens = 0;
    assert!(bound(DataMessage::Submit(none)).contains("no token"));
}

#[test]
fn reports_on_prompts_have_a_bound_and_come_with_the_first_token() {
    let with = |report: PromptReport| SampledToken { prompt: Some(report.into()), ..token(7) };
    let message = |tokens: Vec<SampledToken>| {
        let drafts = tokens.len() as u32 - 1;
        DataMessage::Tokens(TokensMessage {
            placement: placement_id(1, 1),
            term: Term(2),
            step: 1,
            results: vec![TokenResult { tokens, drafts, ..result(1, 4, 7) }],
            failures: vec![],
            pages: vec![],
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
        })
    };
    let largest = message(vec![with(PromptReport::Embedding(vec![0.5; limits::EMBEDDING_MAX]))]);
    assert_eq!(DataMessage::decode(&largest.encode()).unwrap(), largest);
    let behind = message(vec![token(7), with(PromptReport::Embedding(vec![0.5]))]);
    assert!(bound(behind).contains("a report on a prompt comes behind the first token"));
    let long = message(vec![with(PromptReport::Embedding(vec![0.5; limits::EMBEDDING_MAX + 1]))]);
    assert!(bound(long).contains("elements of a vector"));
    let forced = TokenResult { forced: vec![7; 17], ..result(1, 4, 7) };
    let DataMessage::Tokens(tokens) = message(vec![token(7)]) else { panic!("it is tokens") };
    let forced = DataMessage::Tokens(TokensMessage { results: vec![forced], ..tokens });
    assert!(bound(forced).contains("forced tokens of a sequence: 17 given, at most 16"));
    let score = |top: usize| TokenScore { logprob: -1.0, top: vec![(1, -1.0); top] };
    let most = limits::SCORES_BYTES_MAX / limits::scores_bytes(1, 20);
    let scores =
        |count: usize, top: usize| message(vec![with(PromptReport::Scores(vec![score(top); count]))]);
    let full = scores(most, 20);
    assert!(full.encode().len() <= limits::SCORES_BYTES_MAX + 1000, "they are counted as what they take");
    assert_eq!(DataMessage::decode(&full.encode()).unwrap(), full);
    assert!(bound(scores(most + 1, 20)).contains("bytes of scores"));
    assert!(bound(scores(1, 21)).contains("longer than allowed"));
}

#[test]
fn placements_and_models_that_contradict_themselves_are_refused() {
    let refused =
        |message: ControlMessage| ControlMessage::decode(&message.encode()).unwrap_err().to_string();
    let mut outside = desired();
    outside.shards[0].stage = 2;
    assert!(refused(ControlMessage::Desired(outside)).contains("not in its placement"));
    let mut second = desired();
    second.shards[0].rank = 1;
    assert!(refused(ControlMessage::Desired(second)).contains("not in its placement"));
    let mut empty = desired();
    empty.shards[0].placement.stages[0].shards.clear();
    assert!(refused(ControlMessage::Desired(empty)).contains("gaps"));
    let mut crowded = desired();
    let shard = crowded.shards[0].placement.stages[0].shards[0].clone();
    crowded.shards[0].placement.stages[0].shards = vec![shard; 256];
    assert!(refused(ControlMessage::Desired(crowded)).contains("shards of a placement: 257 given"));
    let mut backwards = desired();
    backwards.shards[0].placement.stages[1].layers.end = 0;
    assert!(refused(ControlMessage::Desired(backwards)).contains("gaps"));
    let refused_inputs = |change: &dyn Fn(&mut PlannerInputs)| {
        let mut inputs = planner_inputs();
        change(&mut inputs);
        refused(ControlMessage::Reply { request: 1, reply: ControlReply::PlannerInputs(Box::new(inputs)) })
    };
    assert!(refused_inputs(&|inputs| drop(inputs.devices.pop())).contains("not that of every device"));
    assert!(refused_inputs(&|inputs| inputs.devices[0].facts.flops_per_s = Some(f64::NAN)).contains("10^18"));
    assert!(refused_inputs(&|inputs| inputs.devices[0].thermal_percent = 101).contains("from 1 to 100 %"));
    assert!(
        refused_inputs(&|inputs| inputs.unloadable[0].room[0].free_bytes = u64::MAX).contains("2^48 bytes")
    );
    let refused_report = |change: &dyn Fn(&mut NodeReport)| {
        let mut report = full_report();
        change(&mut report);
        refused(ControlMessage::Report(Box::new(report)))
    };
    assert!(refused_report(&|report| report.models[0].expected_bytes = 1).contains("than it has"));
    assert!(refused_report(&|report| report.models[0].expected_bytes = u64::MAX).contains("than it has"));
    let room = exo_types::DiskRoom::of((1 << 60) + 1);
    assert!(refused_report(&|report| report.disk_room = room).contains("more than 2^60 bytes"));
    let lacks = exo_types::DiskRoom { free_bytes: Some(i64::MIN), ..Default::default() };
    assert!(refused_report(&|report| report.disk_room = lacks).contains("more than 2^60 bytes"));
    let keeps = exo_types::DiskRoom { reserve_bytes: (1 << 60) + 1, ..Default::default() };
    assert!(refused_report(&|report| report.disk_room = keeps).contains("more than 2^60 bytes"));
    let lost = |sent, lost| {
        let recent = RecentPackets { counts: PacketCounts { sent, lost }, window_s: 1 };
        move |report: &mut NodeReport| {
            report.links[0].traffic = Some(Traffic { recent_packets: Some(recent), ..Traffic::default() });
        }
    };
    assert!(refused_report(&lost(1, 2)).contains("more packets are lost than were sent"));
    assert!(refused_report(&lost(0, 0)).contains("a part of no packets"));
    let mut huge = request();
    huge.shape.layers[0].weight_bytes = u64::MAX;
    let ask = ControlAsk::Place(huge);
    assert!(refused(ControlMessage::Request { request: 1, ask }).contains("larger than any layer"));
    let mut wide = request();
    (wide.context_tokens, wide.cache_tokens) = (1 << 20, (1 << 26) + 1);
    let ask = ControlAsk::Place(wide);
    assert!(refused(ControlMessage::Request { request: 1, ask }).contains("2^26"));
    let mut narrow = request();
    narrow.cache_tokens = narrow.context_tokens - 1;
    let ask = ControlAsk::Place(narrow);
    assert!(refused(ControlMessage::Request { request: 1, ask }).contains("does not hold one sequence"));
}

#[test]
fn words_of_others_in_reasons_have_a_bound_on_the_wire_and_in_the_log() {
    let told = |view: InstanceView| {
        let message = ControlMessage::Instances { epoch: epoch(), instances: vec![view] };
        ControlMessage::decode(&message.encode()).map(|_| ()).map_err(|error| error.to_string())
    };
    let (most, long) = ("x".repeat(limits::TEXT_BYTES_MAX), "x".repeat(limits::TEXT_BYTES_MAX + 1));
    assert_eq!(told(waiting(&most, &most)), Ok(()));
    for view in [waiting(&long, "p"), waiting("r", &long)] {
        assert_eq!(told(view), Err("bytes of a reason: 4097 given, at most 4096 allowed".to_owned()));
    }
    let refused = |message: ControlMessage| ControlMessage::decode(&message.encode()).map(|_| ());
    assert_eq!(refused(refused_plan(&most, &most)), Ok(()));
    assert!(refused(refused_plan(&long, "m")).unwrap_err().to_string().contains("4097 given"));
    assert!(refused(refused_plan("why", &long)).unwrap_err().to_string().contains("4097 given"));
    let InstanceState::Waiting { reason } = waiting("r", &long).state else { panic!("it waits") };
    let lost = reason.lost.clone();
    let (placement, memory_bytes) = (placement(1, 1, &[1, 2]), vec![1; 2]);
    let replaced = |reason| Event::InstanceReplaced {
        placement: placement.clone(),
        memory_bytes: memory_bytes.clone(),
        reason,
    };
    assert_eq!(Event::decode(&replaced(lost.clone()).encode()), Ok(replaced(lost)));
    let failed = |words: &str| {
        let why = ComputeFault::Engine(words.to_owned());
        let in_row = PipelineFailure::Steps { count: 3, why: why.clone() };
        [PipelineFailure::Step(why), in_row, not_opened(words)]
    };
    let decoded = |why: PipelineFailure| {
        let event = replaced(ReplaceReason::Failed { times: 1, why });
        Event::decode(&event.encode()).map(|_| ()).map_err(|error| error.to_string())
    };
    for (fits, is_long) in failed(&most).into_iter().zip(failed(&long)) {
        assert_eq!(decoded(fits), Ok(()));
        assert!(decoded(is_long).unwrap_err().contains("4097 given"));
    }
    let instance = exo_types::InstanceId(1);
    let removed = Event::InstanceRemoved { instance, reason: RemoveReason::GivenUp(reason) };
    assert!(Event::decode(&removed.encode()).unwrap_err().to_string().contains("4097 given"));
}

#[test]
fn a_report_names_each_device_and_each_path_once() {
    let refused = |change: &dyn Fn(&mut NodeReport)| {
        let mut report = full_report();
        change(&mut report);
        let message = ControlMessage::Report(Box::new(report));
        ControlMessage::decode(&message.encode()).map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(&|report| report.links.push(report.links[0].clone())).contains("told of twice"));
    assert!(refused(&|report| report.devices.push(report.devices[0].clone())).contains("told twice"));
    let two_of_an_id = |report: &mut NodeReport| {
        let other = exo_types::DeviceFacts { name: "another".into(), ..report.facts.devices[0].clone() };
        report.facts.devices.push(other);
    };
    assert!(refused(&two_of_an_id).contains("two devices of one id"));
}

#[test]
fn the_name_of_a_driver_has_a_bound() {
    let told = |bytes: usize| {
        let mut full = full_report();
        full.devices[0].driver = Some("x".repeat(bytes));
        let message = ControlMessage::Report(Box::new(full));
        ControlMessage::decode(&message.encode()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(told(limits::TEXT_BYTES_MAX), Ok(()));
    let refused = "bytes of a driver: 4097 given, at most 4096 allowed".to_owned();
    assert_eq!(told(limits::TEXT_BYTES_MAX + 1), Err(refused));
}

#[test]
fn bytes_by_type_that_are_not_those_of_the_model_are_refused() {
    let of = |change: &dyn Fn(&mut WeightTypes)| {
        let mut request = request();
        let typed = |bytes| TypeBytes(vec![(DType::Q4_K, bytes)]);
        let layers = request.shape.layers.iter().map(|layer| typed(layer.weight_bytes)).collect();
        let mut types = WeightTypes { layers, head: typed(request.shape.head_bytes) };
        change(&mut types);
        request.weight_types = Some(Box::new(types));
        let message = ControlMessage::Request { request: 1, ask: ControlAsk::Place(request) };
        ControlMessage::decode(&message.encode()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(of(&|_| ()), Ok(()));
    let refused = |change: &dyn Fn(&mut WeightTypes)| of(change).unwrap_err();
    assert!(refused(&|types| types.layers[0].0[0].1 += 1).contains("not those of the model"));
    assert!(
        refused(&|types| types.layers[0].0.push((DType::F32, u64::MAX))).contains("not those of the model")
    );
    assert!(refused(&|types| drop(types.layers.pop())).contains("not those of the model"));
    assert!(refused(&|types| types.head.0.clear()).contains("not those of the model"));
    assert!(refused(&|types| types.head.0.push((DType::Q4_K, 0))).contains("a type of weights twice"));
    assert!(refused(&|types| types.head.0 = vec![(DType::Q4_K, 0); 15]).contains("longer than allowed"));
}

#[test]
fn wishes_that_no_placement_can_have_are_refused_before_anybody_plans_with_them() {
    let refused = |change: &dyn Fn(&mut InstanceRequest)| {
        let mut request = request();
        change(&mut request);
        let message = ControlMessage::Request { request: 1, ask: ControlAsk::Place(request) };
        ControlMessage::decode(&message.encode()).map(|_| ()).unwrap_err().to_string()
    };
    let pin = |layers| Pin { node: node(1), device: DeviceId::cpu(), layers };
    let (backwards, far) = (LayerRange { start: 3, end: 2 }, LayerRange { start: 0, end: u32::MAX });
    for layers in
        [PinLayers::Count(0), PinLayers::Count(u32::MAX), PinLayers::Range(backwards), PinLayers::Range(far)]
    {
        assert!(refused(&|r| r.pins = vec![pin(layers)]).contains("names no layers"), "{layers:?}");
    }
    assert!(refused(&|r| r.pins = vec![pin(PinLayers::Any); 65]).contains("longer than allowed"));
    let excluded = Exclusion { node: node(1), device: Some(DeviceId("x".repeat(300))) };
    assert!(refused(&|r| r.excluded = vec![excluded.clone()]).contains("bytes of a device's name"));
    assert!(refused(&|r| r.excluded = vec![excluded.clone(); 65]).contains("longer than allowed"));
    let throughput = |streams| PlaceObjective::Throughput { streams };
    assert!(refused(&|r| r.objective = throughput(0)).contains("0 streams"));
    assert!(refused(&|r| r.objective = throughput(u32::MAX)).contains("streams asked for"));
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut versioned = vec![WIRE_VERSION];
        versioned.extend(&bytes);
        let _ = ControlMessage::decode(&versioned);
        let _ = DataMessage::decode(&versioned);
        let mut framed = vec![WIRE_VERSION];
        framed.extend((bytes.len() as u32).to_le_bytes());
        framed.extend(&bytes);
        let _ = DataMessage::decode(&framed);
    }

    /// Flipping any byte of a real message gives an error or another message that is within its bounds and
    /// encodes again.
    #[test]
    fn no_flipped_byte_makes_decoding_panic(
        which in 0..data_messages().len() + control_messages().len(),
        at in any::<prop::sample::Index>(),
        value: u8,
    ) {
        let (data, control) = (data_messages(), control_messages());
        if let Some(message) = data.get(which) {
            let mut bytes = message.encode();
            let index = at.index(bytes.len());
            bytes[index] = value;
            if let Ok(other) = DataMessage::decode(&bytes) {
                prop_assert!(DataMessage::decode(&other.encode()).is_ok());
            }
        } else {
            let mut bytes = control[which - data.len()].encode();
            let index = at.index(bytes.len());
            bytes[index] = value;
            if let Ok(other) = ControlMessage::decode(&bytes) {
                prop_assert!(ControlMessage::decode(&other.encode()).is_ok());
            }
        }
    }
}

#[test]
fn step_0_carries_pages_and_nothing_else_and_no_other_step_does() {
    let pages = |pages, page_tokens| StagePages { pages, page_tokens };
    let with = |number: u64, change: &dyn Fn(&mut StepMessage)| {
        let mut step = step(1);
        step.frame.step = number;
        (step.commands, step.rows, step.frame.sequences) = (vec![], Default::default(), vec![]);
        change(&mut step);
        DataMessage::Step(step)
    };
    let good = with(0, &|s| s.pages = vec![pages(4, 16)]);
    assert_eq!(DataMessage::decode(&good.encode()), Ok(good));
    assert!(bound(with(0, &|s| s.rows = vec![0; 4].into())).contains("step 0 carries something"));
    assert!(bound(with(0, &|s| s.commands = vec![StageCommand::Close(seq(1))])).contains("step 0 carries"));
    assert!(bound(with(0, &|s| s.pages = vec![pages(4, 0)])).contains("pages without tokens"));
    assert!(bound(with(0, &|s| s.pages = vec![pages(4, 16); 300])).contains("longer than allowed"));
    assert!(bound(with(1, &|s| s.pages = vec![pages(4, 16)])).contains("a step other than 0"));
    let tokens = |step, results| {
        let (placement, term, failures) = (placement_id(1, 1), Term::FIRST, vec![]);
        let pages = vec![pages(4, 16)];
        DataMessage::Tokens(TokensMessage {
            placement,
            term,
            step,
            results,
            failures,
            pages,
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
        })
    };
    assert!(bound(tokens(0, vec![result(1, 4, 7)])).contains("came back with tokens"));
    assert!(bound(tokens(1, vec![])).contains("a step other than 0"));
}

/// The most memory that this process has had.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().trim_end_matches(" kB");
    Some(kilobytes.parse::<usize>().ok()? << 10)
}

/// Behind every byte of every message it says that two million elements follow, and sends these.
#[test]
fn no_list_fills_the_memory_before_its_bound_is_looked_at() {
    const SENT: usize = 2 << 20;
    let two_million = [0x80, 0x80, 0x80, 0x01];
    let spoilt = |good: &[u8], at: usize, filler: u8| {
        let mut bytes = good[..at].to_vec();
        bytes.extend(two_million);
        bytes.resize(at + SENT, filler);
        bytes
    };
    let Some(before) = peak_bytes() else {
        eprintln!("skipped: this system does not tell how much memory a process had at most");
        return;
    };
    let (mut worst, mut worst_case) = (before, String::new());
    let mut decoded = |case: &dyn Fn() -> String| {
        let peak = peak_bytes().unwrap_or(0);
        if peak > worst {
            (worst, worst_case) = (peak, case());
        }
    };
    for (index, message) in control_messages().iter().enumerate() {
        let good = message.encode();
        for (at, filler) in (1..good.len()).flat_map(|at| [0, 1, 2, 4].map(|filler| (at, filler))) {
            let _ = ControlMessage::decode(&spoilt(&good, at, filler));
            decoded(&|| format!("control message {index}, byte {at}, {filler}"));
        }
    }
    for (index, message) in data_messages().iter().enumerate() {
        let good = message.encode();
        for (at, filler) in (5..good.len()).flat_map(|at| [0, 1, 2, 4].map(|filler| (at, filler))) {
            let mut bytes = spoilt(&good, at, filler);
            let header = (bytes.len() - 5) as u32;
            bytes[1..5].copy_from_slice(&header.to_le_bytes());
            let _ = DataMessage::decode(&bytes);
            decoded(&|| format!("data message {index}, byte {at}, {filler}"));
        }
    }
    let grown = worst - before;
    assert!(grown < 32 * SENT, "{grown} bytes of memory for {SENT} bytes sent: {worst_case}");
}
