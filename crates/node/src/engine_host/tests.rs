//! Steps as the engine's thread takes and answers them, on the processor and on a card if there is one.

mod faulty;

use std::collections::VecDeque;

use exo_cluster::wire::{DataMessage, StepMessage};
use exo_cluster::{StageInput, StageMachine, StageOutput};
use exo_types::{
    DeviceId, InstanceId, KvDType, ModelId, NodeId, Placement, Principal, RequestId, SamplingParams,
    SequenceSpec, Stage, Time, WireDType,
};

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
    let key = ShardKey { instance: InstanceId(1), generation: 1, stage: 0 };
    let shard = Shard::whole(model.config.layers);
    let options = EngineOptions::new(CONTEXT_TOKENS, 2);
    LoadRequest { key, device, model: Arc::new(model), shard, options, step_max: STEP_MAX }
}

/// Steps that lie in the inbox together, and what is told of each.
fn told(device: Arc<dyn Device>, jobs: Vec<Job>) -> Vec<(u64, ComputeResult)> {
    let (inbox, waiting) = channel();
    jobs.into_iter().for_each(|job| inbox.send(job).unwrap());
    drop(inbox);
    let (tell, events) = channel();
    let tell: Events = Arc::new(move |event| drop(tell.send(event)));
    run(request(device), &waiting, &CancelToken::default(), &tell);
    drop(tell);
    let computed = |event| match event {
        EngineEvent::Computed { step, result, .. } => Some((step, result)),
        EngineEvent::LoadFailed { reason, .. } => panic!("{reason}"),
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
    };
    StageCommand::Open { spec, cached: Vec::new() }
}

/// `tokens` of sequence `n`, from as many on.
fn part(n: u128, tokens: std::ops::Range<u32>, sample: bool) -> StepSequence {
    let (start, tokens, principal) = (tokens.start, tokens.collect(), Principal::LOCAL);
    StepSequence { sequence: sequence(n), principal, start, tokens, sample, drafts: 0, truncate_to: None }
}

fn frame(step: u64, sequences: Vec<StepSequence>) -> StepFrame {
    StepFrame { instance: InstanceId(1), generation: 1, step, sequences }
}

/// A step of the only sequence; `tokens` from `start` on.
fn job(step: u64, start: u32, tokens: std::ops::Range<u32>, sample: bool) -> Job {
    let part = StepSequence { start, ..part(1, tokens, sample) };
    let commands = Vec::from_iter((step == 1).then(|| open(1)));
    Job { commands, frame: frame(step, vec![part]), rows: Vec::new() }
}

#[test]
fn chunks_that_are_handed_over_ahead_are_told_in_order_and_change_no_token() {
    let mut answers = Vec::new();
    for device in devices() {
        let chunks = vec![job(1, 0, 0..10, false), job(2, 10, 10..20, false), job(3, 20, 20..30, true)];
        let ahead = told(device.clone(), chunks);
        let steps: Vec<u64> = ahead.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [1, 2, 3]);
        let nothing = ComputeResult::Tokens(Vec::new());
        assert_eq!((&ahead[0].1, &ahead[1].1), (&nothing, &nothing));
        let whole = told(device, vec![job(1, 0, 0..30, true)]);
        assert_eq!(ahead[2].1, whole[0].1);
        answers.extend([whole[0].1.clone(), ahead[2].1.clone()]);
    }
    assert!(matches!(&answers[0], ComputeResult::Tokens(t) if t.len() == 1), "{answers:?}");
}

#[test]
fn an_error_of_a_chunk_in_flight_is_told_of_that_chunk() {
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
fn a_chunk_that_fails_in_flight_takes_what_builds_on_it_and_the_next_step_goes_on() {
    for inner in devices() {
        let chunks = vec![
            job(1, 0, 0..10, false),
            job(2, 10, 10..20, false),
            job(3, 20, 20..30, false),
            job(4, 10, 10..30, true),
        ];
        let healthy = told(inner.clone(), vec![job(1, 0, 0..30, true)]);
        let told = told(Arc::new(Faulty { inner, good: 1 }), chunks);
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

/// What a stage on `device` sends, given steps that arrive together: a line for each message.
fn sent(device: Arc<dyn Device>, steps: Vec<(Vec<StageCommand>, Vec<StepSequence>)>) -> Vec<String> {
    let (request, me) = (request(device), NodeId([1; 32]));
    let stage = Stage { node: me, device: DeviceId::cpu(), shard: request.shard };
    let placement = Placement {
        instance: InstanceId(1),
        generation: 1,
        model: ModelId([0; 32]),
        stages: vec![stage],
        context_tokens: CONTEXT_TOKENS,
        slots: 2,
        cache_tokens: 2 * CONTEXT_TOKENS,
        kv: KvDType::default(),
    };
    let (tell, events) = channel();
    let host = ThreadHost::start(request, Arc::new(move |event| drop(tell.send(event))));
    let mut machine = None;
    let (mut lines, mut open_steps) = (Vec::new(), steps.len());
    let steps = [(Vec::new(), Vec::new())].into_iter().chain(steps);
    let input = |(step, (commands, sequences))| {
        let frame = frame(step, sequences);
        let (failures, pages, rows_dtype, rows) = (Vec::new(), Vec::new(), WireDType::F32, Vec::new());
        let message = StepMessage { stage: 0, commands, frame, failures, pages, rows_dtype, rows };
        StageInput::Step { from: me, message }
    };
    let mut steps = (0..).zip(steps).map(input);
    let mut inputs: VecDeque<StageInput> = steps.next().into_iter().collect();
    while open_steps > 0 {
        match events.recv_timeout(STEP_MAX).unwrap() {
            EngineEvent::Ready { loaded, .. } => {
                machine = Some(StageMachine::new(placement.clone(), 0, loaded.geometry));
            }
            EngineEvent::Computed { step, result, .. } => {
                inputs.push_back(StageInput::ComputeDone { step, result });
            }
            EngineEvent::Progress { .. } | EngineEvent::Settling { .. } => {}
            other => panic!("{other:?}"),
        }
        let Some(machine) = &mut machine else { continue };
        while let Some(input) = inputs.pop_front() {
            for output in machine.handle(Time::ZERO, input) {
                match output {
                    StageOutput::Compute { commands, frame, rows } => {
                        host.compute(Job { commands, frame, rows });
                    }
                    StageOutput::Send { message: DataMessage::Tokens(told), .. } if told.step == 0 => {
                        inputs.extend(steps.by_ref());
                    }
                    StageOutput::Send { to, message: DataMessage::Tokens(told) } if to == me => {
                        open_steps -= 1;
                        let failed: Vec<_> = told.failures.iter().flat_map(|f| &f.sequences).collect();
                        lines.push(format!("step {}: lost {failed:?}, {:?}", told.step, told.results));
                    }
                    StageOutput::Send { message: DataMessage::StepFailed(told), .. } => {
                        lines.push(format!("told of {:?}: {}", told.sequences, told.message));
                    }
                    StageOutput::Send { .. } => {}
                }
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
        let lost = sent(Arc::new(Faulty { inner: inner.clone(), good: 0 }), steps(true));
        let alone = sent(inner, steps(false));
        let [told, first, second, third] = &lost[..] else { panic!("{lost:?}") };
        let (of_first, name) = (format!("lost {:?}", [&sequence(1)]), sequence(1));
        let is_of_kernel = told.ends_with("Attention: page is 9, it must be below 4");
        assert!(is_of_kernel && told.starts_with(&format!("told of {:?}: ", [name])), "{told}");
        assert!(first.contains(&of_first) && second.contains(&of_first), "{lost:?}");
        assert!(third.contains("lost []") && third.contains("token"), "{third}");
        assert_eq!(third, &alone[2]);
    }
}
