//! Steps as the engine's thread takes and answers them, on the processor and on a card if there is one.

mod faulty;

use std::collections::VecDeque;

use exo_cluster::wire::{DataMessage, StepMessage};
use exo_cluster::{StageInput, StageMachine, StageOutput};
use exo_constraint::{Body, Layout, Schema, Strictness, Thought};
use exo_types::{
    Attempt, DeviceId, InstanceId, KvDType, LayerRange, ModelId, NodeId, Placement, Principal, PromptQuery,
    RequestId, SamplingParams, SequenceSpec, Stage, Term, Time, WireDType,
};

use serde_json::json;

use self::faulty::Faulty;
use super::*;

#[test]
fn large_weights_in_small_pages_are_warned_of() {
    let held = |copied_mib: u64, huge_mib: Option<u64>| Residence {
        copied_bytes: copied_mib << 20,
        huge_page_bytes: huge_mib.map(|mib| mib << 20),
        ..Residence::default()
    };
    assert!(is_in_small_pages(&held(1000, Some(899))) && is_in_small_pages(&held(64, Some(0))));
    assert!(!is_in_small_pages(&held(1000, Some(900))));
    assert!(!is_in_small_pages(&held(63, Some(0))), "a small model is fast anyway");
    assert!(!is_in_small_pages(&held(1000, None)), "the system does not tell");
}

#[test]
fn rows_survive_the_wire_bit_for_bit() {
    let rows = [0.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, 1.0 / 3.0];
    let back = floats(&bytes(&rows));
    assert!(rows.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
}

/// The processor, and a card if there is one.
fn devices() -> Vec<Arc<dyn Device>> {
    let processor = exo_backend_cpu::CpuDevice::open(Default::default()).unwrap();
    let cards = exo_backend_wgpu::list(exo_backend_wgpu::Api::Vulkan).unwrap();
    let limit = Some(256 << 20);
    let options = exo_backend_wgpu::WgpuOptions { memory_limit_bytes: limit, ..Default::default() };
    let open = |card| {
        let id = exo_types::DeviceId("test".to_owned());
        exo_backend_wgpu::WgpuDevice::open(card, id, &options).unwrap() as Arc<dyn Device>
    };
    [processor as Arc<dyn Device>].into_iter().chain(cards.iter().map(open)).collect()
}

const CONTEXT_TOKENS: u32 = 128;

/// The demo model on `device`, as the only stage.
fn request(device: Arc<dyn Device>) -> LoadRequest {
    let model = exo_formats::open_gguf_bytes("demo", crate::DEMO_MODEL.to_vec()).unwrap();
    let shard = Shard::whole(model.config.layers);
    let options = EngineOptions::new(CONTEXT_TOKENS, 2);
    LoadRequest { engine: EngineId(1), device, model: Arc::new(model), shard, options, step_max: STEP_MAX }
}

/// Steps that lie in the inbox together, and what is told of each.
fn told(device: Arc<dyn Device>, jobs: Vec<StepJob>) -> Vec<(u64, ComputeResult)> {
    told_by(request(device), jobs)
}

fn told_by(request: LoadRequest, jobs: Vec<StepJob>) -> Vec<(u64, ComputeResult)> {
    let (inbox, waiting) = channel();
    jobs.into_iter().for_each(|job| inbox.send(Order::Compute(job)).unwrap());
    drop(inbox);
    let (tell, events) = channel();
    let tell: Events = Arc::new(move |event| drop(tell.send(event)));
    run(request, &waiting, &CancelToken::default(), &tell);
    drop(tell);
    let computed = |event| match event {
        EngineEvent::Computed { step, result, .. } => Some((step, result)),
        EngineEvent::LoadFailed { detail, .. } => panic!("{detail}"),
        _ => None,
    };
    events.into_iter().filter_map(computed).collect()
}

fn sequence(n: u128) -> SequenceId {
    SequenceId { request: RequestId(n), index: 0 }
}

fn open(n: u128) -> StageCommand {
    let spec = SequenceSpec {
        sequence: sequence(n),
        principal: Principal::LOCAL,
        driver: NodeId([9; 32]),
        sampling: SamplingParams::greedy(),
        history: (0..30).collect(),
        prompt_tokens: 30,
        query: PromptQuery::Nothing,
    };
    StageCommand::Open { spec, attempt: Attempt::FIRST, cached: Vec::new() }
}

/// `tokens` of sequence `n`, from as many on.
fn part(n: u128, tokens: std::ops::Range<u32>, sample: bool) -> StepSequence {
    let (start, tokens, principal) = (tokens.start, tokens.collect(), Principal::LOCAL);
    StepSequence { sequence: sequence(n), principal, start, tokens, sample, drafts: 0, truncate_to: None }
}

fn frame(step: u64, sequences: Vec<StepSequence>) -> StepFrame {
    StepFrame::unplaced(step, sequences)
}

/// A step of the only sequence; `tokens` from `start` on.
fn job(step: u64, start: u32, tokens: std::ops::Range<u32>, sample: bool) -> StepJob {
    let part = StepSequence { start, ..part(1, tokens, sample) };
    let commands = Vec::from_iter((step == 1).then(|| open(1)));
    StepJob { commands, frame: frame(step, vec![part]), rows: Bytes::new() }
}

#[test]
fn chunks_are_told_in_order_and_change_no_token() {
    let mut answers = Vec::new();
    for device in devices() {
        let chunks = vec![job(1, 0, 0..10, false), job(2, 10, 10..20, false), job(3, 20, 20..30, true)];
        let in_chunks = told(device.clone(), chunks);
        let steps: Vec<u64> = in_chunks.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [1, 2, 3]);
        let nothing = ComputeResult::Tokens(Vec::new());
        assert_eq!((&in_chunks[0].1, &in_chunks[1].1), (&nothing, &nothing));
        let whole = told(device, vec![job(1, 0, 0..30, true)]);
        assert_eq!(in_chunks[2].1, whole[0].1);
        answers.extend([whole[0].1.clone(), in_chunks[2].1.clone()]);
    }
    assert!(matches!(&answers[0], ComputeResult::Tokens(t) if t.len() == 1), "{answers:?}");
}

#[test]
fn a_command_that_is_refused_keeps_no_other_from_being_carried_out() {
    let device = devices().remove(0);
    let StageCommand::Open { mut spec, attempt, cached } = open(2) else { unreachable!("it opens") };
    spec.history[29] = u32::MAX;
    let first = StepJob {
        commands: vec![StageCommand::Open { spec, attempt, cached }, open(1)],
        ..job(2, 0, 0..10, false)
    };
    // What the scheduler closes was never opened here.
    let second = StepJob { commands: vec![StageCommand::Close(sequence(2))], ..job(3, 0, 0..30, true) };
    let told_of = told(device.clone(), vec![first, second]);
    let [(2, refused), (3, answer)] = &told_of[..] else { panic!("{told_of:?}") };
    let is_refused = matches!(refused, ComputeResult::Failed { kind: FailureKind::Device, message } if message.contains("4294967295"));
    assert!(is_refused, "{refused:?}");
    assert_eq!(*answer, told(device, vec![job(1, 0, 0..30, true)])[0].1);
}

#[test]
fn logits_that_are_no_numbers_are_told_as_what_the_device_gave() {
    for device in devices() {
        let whole = request(device);
        let (layers, hidden) = (whole.model.config.layers, whole.model.config.hidden as usize);
        let shard = Shard::pipeline(LayerRange::new(layers - 1, layers), layers);
        let rows = bytes(&vec![f32::NAN; 10 * hidden]).into();
        let step = StepJob { rows, ..job(1, 0, 0..10, true) };
        let told = told_by(LoadRequest { shard, ..whole }, vec![step]);
        let [(1, ComputeResult::Partial { results, failed })] = &told[..] else { panic!("{told:?}") };
        assert!(results.is_empty(), "{results:?}");
        let [FailedSequence { kind: FailureKind::Device, is_not_finite: true, .. }] = &failed[..] else {
            panic!("{failed:?}")
        };
    }
}

#[test]
fn a_grammar_that_cannot_be_followed_fails_its_sequence_and_no_other() {
    let device = devices().remove(0);
    let StageCommand::Open { mut spec, attempt, cached } = open(2) else { unreachable!("it opens") };
    // The model of these tests is in no file, so that its vocabulary cannot be read again.
    let constraint = exo_types::Constraint {
        grammar: "start: \"a\"".to_owned(),
        engine: String::new(),
        vocabulary: [0; 32],
    };
    spec.sampling.constraint = Some(Arc::new(constraint));
    let commands = vec![StageCommand::Open { spec, attempt, cached }, open(1)];
    let frame = frame(1, vec![part(2, 0..30, true), part(1, 0..30, true)]);
    let told_of = told(device.clone(), vec![StepJob { commands, frame, rows: Bytes::new() }]);
    let [(1, ComputeResult::Partial { results, failed })] = &told_of[..] else { panic!("{told_of:?}") };
    let [FailedSequence { sequence: of, kind: FailureKind::Device, message, is_not_finite: false }] =
        &failed[..]
    else {
        panic!("{failed:?}")
    };
    assert!(
        *of == sequence(2) && message.starts_with("the answer's grammar cannot be followed"),
        "{message}"
    );
    let alone = told(device, vec![job(1, 0, 0..30, true)]);
    assert_eq!(ComputeResult::Tokens(results.clone()), alone[0].1);
}

#[test]
fn a_result_names_the_tokens_that_its_grammar_forces() {
    let path =
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/exo-demo-Q8_0.gguf"));
    let mut model = exo_formats::open(path).unwrap();
    let tokenizer = exo_tokenizer::Tokenizer::from_source(&model.take_tokenizer()).unwrap();
    let ends = crate::grammar::end_ids(&model.config, &tokenizer);
    let schema = json!({
        "type": "object", "properties": {"customer_name": {"type": "string"}}, "required": ["customer_name"],
        "additionalProperties": false,
    });
    let body = Body::Json(Schema::read(&schema, Strictness::Whole).unwrap().value);
    let layout = Layout { thought: Thought::No, answer_open: Vec::new(), spelled: Vec::new(), body };
    let compiler = crate::grammar::compiler(&tokenizer, &ends).unwrap();
    let constraint = compiler.constrain(layout.grammar()).unwrap();
    let mut first = job(1, 0, 0..30, true);
    let [StageCommand::Open { spec, .. }] = &mut first.commands[..] else { panic!("{:?}", first.commands) };
    spec.sampling.constraint = Some(Arc::new(constraint));
    let model = Arc::new(exo_formats::open(path).unwrap());
    let told = told_by(LoadRequest { model, ..request(devices().remove(0)) }, vec![first]);
    let [(1, ComputeResult::Tokens(results))] = &told[..] else { panic!("{told:?}") };
    let begun = [&[results[0].tokens[0].token], &results[0].forced[..]].concat();
    let text = tokenizer.decode(&begun, false).unwrap();
    assert!(text.starts_with("{\"customer_name\":"), "{text:?}");
}

#[test]
fn an_error_of_a_chunk_is_told_of_that_chunk() {
    for device in devices() {
        // The second leaves a hole; the third goes on where the first ended.
        let chunks = vec![job(1, 0, 0..10, false), job(2, 11, 11..20, false), job(3, 10, 10..30, true)];
        let told = told(device, chunks);
        let [(1, first), (2, second), (3, third)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(first, &ComputeResult::Tokens(Vec::new()));
        let is_its_own = matches!(second, ComputeResult::Failed { kind: FailureKind::Protocol, message }
            if message.contains("continues at position 10"));
        assert!(is_its_own, "{second:?}");
        assert!(matches!(third, ComputeResult::Tokens(tokens) if tokens.len() == 1), "{third:?}");
    }
}

#[test]
fn a_chunk_that_fails_takes_what_builds_on_it_and_the_next_step_goes_on() {
    for inner in devices() {
        let chunks = vec![
            job(1, 0, 0..10, false),
            job(2, 10, 10..20, false),
            job(3, 20, 20..30, false),
            job(4, 10, 10..30, true),
        ];
        let healthy = told(inner.clone(), vec![job(1, 0, 0..30, true)]);
        let told = told(Arc::new(Faulty::new(inner, 1)), chunks);
        let [(1, first), (2, second), (3, third), (4, fourth)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(first, &ComputeResult::Tokens(Vec::new()));
        let is_of_kernel = matches!(second, ComputeResult::Failed { kind: FailureKind::Device, message }
            if message.ends_with("Attention: page is 9, it must be below 4"));
        assert!(is_of_kernel, "{second:?}");
        let is_behind = matches!(third, ComputeResult::Failed { kind: FailureKind::Protocol, message }
            if message.contains("continues at position 10"));
        assert!(is_behind, "{third:?}");
        assert_eq!(fourth, &healthy[0].1, "from where the first ended");
    }
}

/// A step for the only stage.
fn message(frame: StepFrame, commands: Vec<StageCommand>) -> StepMessage {
    StepMessage {
        stage: 0,
        commands,
        frame,
        failures: vec![],
        pages: vec![],
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
        rows_dtype: WireDType::F32,
        rows: Bytes::new(),
    }
}

/// What a stage on `device` sends, given steps one after the other: a line for each message.
fn sent(device: Arc<dyn Device>, steps: Vec<(Vec<StageCommand>, Vec<StepSequence>)>) -> Vec<String> {
    let (request, me) = (request(device), NodeId([1; 32]));
    let stage = Stage::solo(me, DeviceId::cpu(), request.shard);
    let placement = Placement {
        id: frame(0, Vec::new()).placement,
        instance: InstanceId(1),
        model: ModelId([0; 32]),
        stages: vec![stage],
        context_tokens: CONTEXT_TOKENS,
        slots: 2,
        cache_tokens: 2 * CONTEXT_TOKENS,
        kv: KvDType::default(),
    };
    let (tell, events) = channel();
    let host = ThreadHost::start(request, Arc::new(move |event| drop(tell.send(event))));
    let (mut machine, mut inputs) = (None, Vec::new());
    let (mut lines, mut open_steps) = (Vec::new(), steps.len());
    // Step 0 opens the pipeline.
    for (step, (commands, sequences)) in (0..).zip(std::iter::once((vec![], vec![])).chain(steps)) {
        let message = message(frame(step, sequences), commands);
        inputs.push(StageInput::Step { from: me, message });
    }
    let mut later = VecDeque::from(inputs.split_off(1));
    while open_steps > 0 {
        match events.recv_timeout(STEP_MAX).unwrap() {
            EngineEvent::Ready { loaded, .. } => {
                machine = Some(StageMachine::new(placement.clone(), 0, loaded.geometry));
            }
            EngineEvent::Computed { step, result, .. } => {
                inputs.push(StageInput::ComputeDone { term: Term::FIRST, step, result });
            }
            EngineEvent::Progress { .. } | EngineEvent::Unpacked { .. } => {}
            other => panic!("{other:?}"),
        }
        let Some(machine) = &mut machine else { continue };
        let batch = std::mem::take(&mut inputs);
        let mut outputs: Vec<_> = batch.into_iter().flat_map(|i| machine.handle(Time::ZERO, i)).collect();
        let is_open = |o: &StageOutput| matches!(o, StageOutput::Send { message: DataMessage::Tokens(told), .. } if told.step == 0);
        // As from a scheduler: each comes when the one before is back.
        let is_back = |o: &StageOutput| matches!(o, StageOutput::Send { to, message: DataMessage::Tokens(_) } if *to == me);
        if outputs.iter().any(is_back)
            && let Some(next) = later.pop_front()
        {
            outputs.extend(machine.handle(Time::ZERO, next));
        }
        outputs.retain(|o| !is_open(o));
        for output in outputs {
            match output {
                StageOutput::Compute { commands, frame, rows } => {
                    host.order(Order::Compute(StepJob { commands, frame, rows }));
                }
                StageOutput::Send { to, message: DataMessage::Tokens(told) } if to == me => {
                    open_steps -= 1;
                    let failed: Vec<_> = told.failures.iter().flat_map(|f| &f.sequences).collect();
                    lines.push(format!("step {}: lost {failed:?}, {:?}", told.step, told.results));
                }
                StageOutput::Send { message: DataMessage::StepFailed(told), .. } => {
                    lines.push(format!("told of {:?}: {}", told.sequences, told.why));
                }
                StageOutput::Send { .. } | StageOutput::Rewire { .. } | StageOutput::NotFinite { .. } => {}
            }
        }
    }
    lines
}

#[test]
fn a_sequence_beside_a_lost_one_goes_on_as_if_it_had_been_alone() {
    for inner in devices() {
        let steps = |with_first: bool| {
            let of_first = |tokens| with_first.then(|| part(1, tokens, false));
            let second = |tokens, sample| Some(part(2, tokens, sample));
            let parts = |parts: [Option<StepSequence>; 2]| parts.into_iter().flatten().collect();
            vec![
                (vec![open(1), open(2)], parts([of_first(0..10), None])),
                (vec![], parts([of_first(10..20), second(0..12, false)])),
                (vec![], parts([None, second(12..30, true)])),
            ]
        };
        let lost = sent(Arc::new(Faulty::new(inner.clone(), 0)), steps(true));
        let alone = sent(inner, steps(false));
        let [told, first, second, third] = &lost[..] else { panic!("{lost:?}") };
        let named = [(sequence(1), Attempt::FIRST)];
        let of_first = format!("lost {named:?}");
        let is_of_kernel = told.ends_with("Attention: page is 9, it must be below 4");
        assert!(is_of_kernel && told.starts_with(&format!("told of {named:?}: ")), "{told}");
        assert!(first.contains(&of_first) && second.contains("lost []"), "{lost:?}");
        assert!(third.contains("lost []") && third.contains("token"), "{third}");
        assert_eq!(third, &alone[2]);
    }
}

#[test]
fn a_thread_that_waits_for_work_ends_when_it_is_stopped() {
    let (tell, events) = channel();
    let device = devices().remove(0);
    let mut host = ThreadHost::start(request(device), Arc::new(move |event| drop(tell.send(event))));
    let next = || events.recv_timeout(Duration::from_secs(10)).unwrap();
    while !matches!(next(), EngineEvent::Ready { .. }) {}
    // Nothing tells that it waits: by then it does.
    while events.recv_timeout(Duration::from_millis(50)).is_ok() {}
    host.stop();
    let told = next();
    assert!(matches!(told, EngineEvent::Unloaded { engine: EngineId(1) }), "{told:?}");
}

fn rewire(keep: &[u64]) -> Order {
    Order::Rewire { keep: keep.iter().map(|&key| exo_types::PageKey(key)).collect() }
}

/// What is told until `count` steps are computed and as many rewirings are done as there are orders for; the
/// rest is lost.
fn answers(orders: Vec<Order>, device: Arc<dyn Device>) -> Vec<String> {
    let (tell, events) = channel();
    let host = ThreadHost::start(request(device), Arc::new(move |event| drop(tell.send(event))));
    let count = orders.len();
    for order in orders {
        host.order(order);
    }
    let line = |event| match event {
        EngineEvent::Computed { step, result: ComputeResult::Tokens(results), .. } => {
            let tokens: Vec<u32> = results.iter().flat_map(|r| &r.tokens).map(|t| t.token).collect();
            Some(format!("step {step}: {tokens:?}"))
        }
        EngineEvent::Computed { step, result, .. } => Some(format!("step {step}: {result:?}")),
        EngineEvent::Rewired { engine } => Some(format!("{engine:?} is rewired")),
        EngineEvent::LoadFailed { detail, .. } => panic!("{detail}"),
        _ => None,
    };
    let next = || events.recv_timeout(STEP_MAX).unwrap();
    std::iter::from_fn(|| Some(next())).filter_map(line).take(count).collect()
}

#[test]
fn a_rewired_engine_answers_as_a_new_one_and_reads_no_weight_again() {
    for inner in devices() {
        // A prompt in two chunks, of which the second samples; its first page is kept.
        let keep = StageCommand::Keep { sequence: sequence(1), pages: vec![(0, exo_types::PageKey(7))] };
        let of_one_placement = || {
            let mut last = job(3, 30, 30..31, true);
            last.commands.push(keep.clone());
            vec![job(1, 0, 0..10, false), job(2, 10, 10..30, true), last].into_iter().map(Order::Compute)
        };
        let counted = Arc::new(Faulty::new(inner, i32::MAX));
        let once = answers(of_one_placement().collect(), counted.clone());
        let read_once = counted.weights_read_bytes();
        assert!(read_once > 1 << 20, "{read_once} bytes of weights");
        // The same ids, steps and names of pages again and again, as a placement after the other brings them.
        let orders = of_one_placement().chain([rewire(&[])]).chain(of_one_placement()).chain([rewire(&[])]);
        let told = answers(orders.chain(of_one_placement()).collect(), counted.clone());
        assert_eq!(counted.weights_read_bytes(), 2 * read_once, "one load each");
        let rewired = ["EngineId(1) is rewired".to_owned()];
        let expected = [&once[..], &rewired, &once, &rewired, &once].concat();
        assert_eq!(told, expected);
        assert!(once[1].contains('[') && once[2] != once[1], "{once:?}");
    }
}

#[test]
fn a_page_that_outlives_a_rewiring_is_begun_with() {
    for device in devices() {
        // A page holds 32 tokens.
        let begin = |pages: &[u64]| {
            let StageCommand::Open { mut spec, attempt, .. } = open(1) else { unreachable!("it opens") };
            spec.history = (0..40).collect();
            let cached: Vec<_> = pages.iter().map(|&key| exo_types::PageKey(key)).collect();
            let parts = vec![part(1, 32 * pages.len() as u32..40, true)];
            let commands = vec![StageCommand::Open { spec, attempt, cached }];
            Order::Compute(StepJob { commands, frame: frame(1, parts), rows: Bytes::new() })
        };
        let mut keep = job(2, 40, 40..41, true);
        keep.commands =
            vec![StageCommand::Keep { sequence: sequence(1), pages: vec![(0, exo_types::PageKey(7))] }];
        let orders =
            vec![begin(&[]), Order::Compute(keep), rewire(&[7]), begin(&[7]), rewire(&[]), begin(&[7])];
        let told = answers(orders, device);
        let [first, second, _, third, _, fourth] = &told[..] else { panic!("{told:?}") };
        assert!(first == third && first != second && !first.contains("Failed"), "{told:?}");
        assert!(fourth.contains("Failed"), "it was forgotten: {told:?}");
    }
}

#[test]
fn a_chunk_in_flight_is_told_before_the_engine_is_rewired() {
    for device in devices() {
        let told = answers(vec![Order::Compute(job(1, 0, 0..10, false)), rewire(&[])], device);
        assert_eq!(told, ["step 1: []", "EngineId(1) is rewired"]);
    }
}
