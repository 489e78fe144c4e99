//! Steps as the engine's thread takes and answers them, on the processor and on a card if there is one.

use exo_types::{InstanceId, NodeId, Principal, RequestId, SamplingParams, SequenceSpec};

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

/// Steps that lie in the inbox together, and what is told of each.
fn told(device: Arc<dyn Device>, jobs: Vec<Job>) -> Vec<(u64, ComputeResult)> {
    let model = exo_formats::open_gguf_bytes("demo", crate::DEMO_MODEL.to_vec()).unwrap();
    let key = ShardKey { instance: InstanceId(1), generation: 1, stage: 0 };
    let shard = Shard::whole(model.config.layers);
    let options = EngineOptions::new(128, 2);
    let request = LoadRequest { key, device, model: Arc::new(model), shard, options, step_max: STEP_MAX };
    let (inbox, waiting) = channel();
    jobs.into_iter().for_each(|job| inbox.send(job).unwrap());
    drop(inbox);
    let (tell, events) = channel();
    let tell: Events = Arc::new(move |event| drop(tell.send(event)));
    run(request, &waiting, &CancelToken::default(), &tell);
    drop(tell);
    let computed = |event| match event {
        EngineEvent::Computed { step, result, .. } => Some((step, result)),
        EngineEvent::LoadFailed { reason, .. } => panic!("{reason}"),
        _ => None,
    };
    events.into_iter().filter_map(computed).collect()
}

/// A step of the only sequence; `tokens` from `start` on.
fn job(step: u64, start: u32, tokens: std::ops::Range<u32>, sample: bool) -> Job {
    let sequence = SequenceId { request: RequestId(1), index: 0 };
    let principal = Principal::LOCAL;
    let spec = SequenceSpec {
        sequence,
        principal,
        driver: NodeId([0; 32]),
        sampling: SamplingParams::greedy(),
        history: (0..30).collect(),
        prompt_tokens: 30,
    };
    let open = StageCommand::Open { spec, cached: Vec::new() };
    let tokens = tokens.collect();
    let part = StepSequence { sequence, principal, start, tokens, sample, drafts: 0, truncate_to: None };
    let frame = StepFrame { instance: InstanceId(1), generation: 1, step, sequences: vec![part] };
    Job { commands: Vec::from_iter((step == 1).then_some(open)), frame, rows: Vec::new() }
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
