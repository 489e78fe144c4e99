//! What an engine refuses, by type, and that it goes on as if nothing had been asked.

use std::time::Duration;

use crate::common::{self, assert_same_bits, device, frame, id, options, part, solo, spec, split};
use exo_backend::{CancelToken, Device, RunError};
use exo_engine::{
    Engine, EngineOptions, LoadError, Sampled, SequenceError, StepError, StepInput, StepOutput,
};
use exo_golden::Fixture;
use exo_types::{KvDType, LayerRange, Principal, SamplingParams, Shard, StepSequence};

fn fixture() -> Fixture {
    Fixture::load("llama-bf16-tied")
}

/// Steps `parts` and gives the error they must cause.
fn refusal(engine: &mut common::Pipeline, parts: Vec<StepSequence>) -> StepError {
    engine.runs(parts).expect_err("the step must be refused")
}

#[test]
fn every_bad_step_has_its_error_and_changes_nothing() {
    let fixture = fixture();
    let prompt = &fixture.prompt;
    let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(prompt, 64);
    let mut engine = solo(&fixture.gguf(), options(), 1);
    engine.open(&spec(1, prompt, SamplingParams::greedy()));
    let mut got = engine.logits(vec![part(1, 0, &prompt[..10], false)]).unwrap();
    let before = engine.stages[0].report();

    let sequence = id(1);
    let foreign = StepSequence { principal: Principal([9; 16]), ..part(1, 10, &[5], false) };
    let truncate = |to| StepSequence { truncate_to: Some(to), ..part(1, 11, &[5], false) };
    let drafts = |drafts, sample| StepSequence { drafts, ..part(1, 10, &[5, 5], sample) };
    let vocab = fixture.vocab as u32;
    let cases = [
        (vec![], StepError::Empty { sequence: None }),
        (
            vec![part(1, 10, &[5], false), part(2, 0, &[], false)],
            StepError::UnknownSequence { sequence: id(2) },
        ),
        (vec![part(1, 11, &[5], false)], StepError::PositionGap { sequence, expected: 10, got: 11 }),
        (vec![part(1, 9, &[5], false)], StepError::PositionGap { sequence, expected: 10, got: 9 }),
        (vec![truncate(11)], StepError::TruncateBeyondEnd { sequence, has: 10, to: 11 }),
        (vec![truncate(3)], StepError::PositionGap { sequence, expected: 3, got: 11 }),
        (vec![foreign], StepError::PrincipalMismatch { sequence }),
        (vec![part(1, 10, &[vocab], false)], StepError::TokenOutOfRange { token: vocab, vocab }),
        (vec![part(1, 10, &[5; 65], false)], StepError::TooManyTokens { tokens: 65, max: 64 }),
        (vec![part(1, 10, &[5], false), part(1, 11, &[5], false)], StepError::DuplicateSequence { sequence }),
        (
            vec![part(1, 10, &[5; 20], true)],
            StepError::HistoryIncomplete { sequence, known: prompt.len(), position: 30 },
        ),
        (vec![drafts(1, false)], StepError::Drafts { sequence, drafts: 1, tokens: 2, sample: false }),
        (vec![drafts(2, true)], StepError::Drafts { sequence, drafts: 2, tokens: 2, sample: true }),
    ];
    for (parts, error) in cases {
        assert_eq!(refusal(&mut engine, parts), error);
        assert_eq!(engine.stages[0].report(), before);
    }
    got.extend(engine.logits(vec![part(1, 10, &prompt[10..], false)]).unwrap());
    assert_same_bits(&got, &want, "after every refusal");
}

#[test]
fn a_sequence_may_fill_its_context_and_not_pass_it() {
    let fixture = fixture();
    let cache_tokens = Some(24);
    let options = EngineOptions { context_tokens: 20, page_tokens: 8, slots: 4, cache_tokens, ..options() };
    let mut engine = solo(&fixture.gguf(), options, 1);
    engine.open(&spec(1, &fixture.prompt[..20], SamplingParams::greedy()));
    engine.step(vec![part(1, 0, &fixture.prompt[..19], false)]).unwrap();
    let error = refusal(&mut engine, vec![part(1, 19, &[5, 5], false)]);
    assert_eq!(error, StepError::ContextExceeded { sequence: id(1), tokens: 21, context_tokens: 20 });
    assert_eq!(engine.step(vec![part(1, 19, &fixture.prompt[19..20], true)]).unwrap().len(), 1);
    assert_eq!(engine.stages[0].report().pages_free, 0);
    assert_eq!(engine.stages[0].report().pages_total, 3);
}

#[test]
fn a_stage_takes_the_input_it_is_made_for() {
    let fixture = fixture();
    let mut stages = split(&fixture.gguf(), &[2], options(), 1);
    stages.open(&spec(1, &[], SamplingParams::greedy()));
    let frame = frame(vec![part(1, 0, &[5, 6], false)]);
    let (cancel, day) = (CancelToken::default(), Duration::from_secs(86400));
    let hidden = stages.stages[0].config().hidden as usize;
    let rows = vec![0.1; 2 * hidden];
    let error = stages.stages[0].step(&frame, StepInput::Hidden(&rows), &cancel, day);
    assert_eq!(error, Err(StepError::WrongInput { expected: "token ids" }));
    assert_eq!(stages.stages[0].step_logits(&frame, StepInput::Tokens, &cancel, day), Err(StepError::NoHead));
    let last = &mut stages.stages[1];
    let error = last.step(&frame, StepInput::Tokens, &cancel, day);
    assert_eq!(error, Err(StepError::WrongInput { expected: "hidden rows" }));
    let error = last.step(&frame, StepInput::Hidden(&rows[1..]), &cancel, day);
    let (got, expected) = (rows.len() - 1, rows.len());
    assert_eq!(error, Err(StepError::HiddenLength { got, expected, tokens: 2, hidden }));
    assert_eq!(
        last.step(&frame, StepInput::Hidden(&rows), &cancel, day),
        Ok(StepOutput::Sampled(Sampled::default()))
    );
}

#[test]
fn a_cancelled_or_late_step_leaves_positions_and_pages_as_they_were() {
    let fixture = fixture();
    let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&fixture.prompt, 64);
    let mut engine = solo(&fixture.gguf(), options(), 1);
    engine.open(&spec(1, &fixture.prompt, SamplingParams::greedy()));
    let before = engine.stages[0].report();
    let frame = frame(vec![part(1, 0, &fixture.prompt, true)]);
    let cancelled = CancelToken::default();
    cancelled.cancel();
    let stage = &mut engine.stages[0];
    let error = stage.step(&frame, StepInput::Tokens, &cancelled, Duration::from_secs(60));
    assert_eq!(error, Err(StepError::Run(RunError::Cancelled { layer: 0 })));
    assert_eq!(stage.report(), before);
    let error = stage.step(&frame, StepInput::Tokens, &CancelToken::default(), Duration::ZERO);
    assert_eq!(error, Err(StepError::Run(RunError::Deadline { waited_ms: 0 })));
    assert_eq!(stage.report(), before);
    let got = engine.logits(vec![part(1, 0, &fixture.prompt, false)]).unwrap();
    assert_same_bits(&got, &want, "after a cancelled step");
}

#[test]
fn what_is_no_number_is_an_error_of_its_sequence_and_passes() {
    let fixture = fixture();
    let mut stages = split(&fixture.gguf(), &[1], options(), 1);
    let last = &mut stages.stages[1];
    last.open(spec(1, &[5], SamplingParams::greedy())).unwrap();
    let again = StepSequence { truncate_to: Some(0), ..part(1, 0, &[5], true) };
    let (frame, hidden) = (frame(vec![again]), last.config().hidden as usize);
    let mut step = |value| {
        let rows = vec![value; hidden];
        last.step(&frame, StepInput::Hidden(&rows), &CancelToken::default(), Duration::from_secs(60))
    };
    let failed = step(f32::NAN).unwrap();
    assert!(matches!(failed, StepOutput::Sampled(s) if s.runs.is_empty() && s.failed[0].0 == id(1)));
    let passed = step(0.5).unwrap();
    assert!(matches!(passed, StepOutput::Sampled(s) if s.runs.len() == 1 && s.failed.is_empty()));
}

/// Truncating and feeding other tokens gives what a fresh sequence gives; replaying gives the same sampled
/// tokens.
#[test]
fn truncation_forgets_exactly_what_follows() {
    let fixture = fixture();
    let prompt = &fixture.prompt;
    let mut engine = solo(&fixture.gguf(), options(), 1);
    let other: Vec<u32> = prompt[..9].iter().copied().chain([7, 8, 9, 10, 11]).collect();
    let want = engine.logits_in_chunks(&other, 64);
    engine.open(&spec(1, prompt, SamplingParams::greedy()));
    engine.step(vec![part(1, 0, prompt, false)]).unwrap();
    let back = StepSequence { truncate_to: Some(9), ..part(1, 9, &other[9..], false) };
    let got = engine.logits(vec![back]).unwrap();
    assert_same_bits(&got, &want[9 * fixture.vocab..], "after truncation");
    assert_eq!(engine.stages[0].positions(id(1)), Some(14));

    engine.stages[0].truncate(id(1), 0).unwrap();
    assert_eq!(engine.stages[0].report().pages_free, engine.stages[0].report().pages_total);
    for _ in 0..2 {
        let replay = StepSequence { truncate_to: Some(0), ..part(1, 0, prompt, true) };
        assert_eq!(engine.step(vec![replay]).unwrap()[0].1.token, fixture.greedy[0]);
    }
    let error = engine.stages[0].truncate(id(1), 25);
    assert_eq!(error, Err(SequenceError::TruncateBeyondEnd { sequence: id(1), has: 24, to: 25 }));
}

/// A replay from an earlier position forgets what was sampled after it: penalties must not see the future.
#[test]
fn a_replayed_position_is_sampled_with_the_penalties_of_that_position() {
    let fixture = fixture();
    let sampling =
        SamplingParams { presence_penalty: 2.0, frequency_penalty: 2.0, ..SamplingParams::greedy() };
    let mut engine = solo(&fixture.gguf(), options(), 1);
    let text = engine.generate(&fixture.prompt, 64, 20, sampling.clone());
    engine.open(&spec(1, &fixture.prompt, sampling));
    let n = fixture.prompt.len();
    let mut token = engine.step(vec![part(1, 0, &fixture.prompt, true)]).unwrap()[0].1.token;
    for (i, want) in text[1..].iter().enumerate() {
        let first = engine.step(vec![part(1, n + i, &[token], true)]).unwrap()[0].1.token;
        let again = StepSequence { truncate_to: Some((n + i) as u32), ..part(1, n + i, &[token], true) };
        let second = engine.step(vec![again]).unwrap()[0].1.token;
        assert_eq!([first, second], [*want; 2], "token {}", i + 1);
        token = second;
    }
}

#[test]
fn sequences_are_bounded_and_checked_when_opened() {
    let fixture = fixture();
    let mut engine = solo(&fixture.gguf(), options(), 1);
    let stage = &mut engine.stages[0];
    let greedy = SamplingParams::greedy;
    let vocab = fixture.vocab as u32;
    stage.open(spec(1, &[], greedy())).unwrap();
    assert_eq!(stage.open(spec(1, &[], greedy())), Err(SequenceError::AlreadyOpen { sequence: id(1) }));
    let error = stage.open(spec(2, &[vocab], greedy()));
    assert_eq!(error, Err(SequenceError::TokenOutOfRange { token: vocab, vocab }));
    let error = stage.open(spec(2, &[1; 129], greedy()));
    assert_eq!(error, Err(SequenceError::HistoryTooLong { tokens: 129, context_tokens: 128 }));
    let bad = SamplingParams { temperature: f32::NAN, ..greedy() };
    assert!(matches!(stage.open(spec(2, &[], bad)), Err(SequenceError::Sampling(_))));
    (2..=4).for_each(|n| stage.open(spec(n, &[], greedy())).unwrap());
    assert_eq!(stage.open(spec(5, &[], greedy())), Err(SequenceError::NoSlot { slots: 4 }));
    stage.close(id(3)).unwrap();
    assert_eq!(stage.close(id(3)), Err(SequenceError::Unknown { sequence: id(3) }));
    stage.open(spec(5, &[], greedy())).unwrap();
}

#[test]
fn a_shard_that_cannot_be_a_stage_is_refused() {
    let fixture = fixture();
    let model = exo_formats::open(&fixture.gguf()).unwrap();
    let whole = Shard::whole(4);
    let load = |shard, options| Engine::load(device(1), &model, shard, options, &mut |_| {}).map(|_| ());
    for shard in [
        Shard { layers: LayerRange::new(2, 2), embedding: false, head: false },
        Shard { layers: LayerRange { start: 3, end: 1 }, ..whole },
        Shard::pipeline(LayerRange::new(3, 5), 5),
        Shard { head: false, ..whole },
        Shard { embedding: false, ..whole },
    ] {
        assert!(matches!(load(shard, options()), Err(LoadError::Shard { .. })), "{shard}");
    }
    for options in [
        EngineOptions { context_tokens: 257, ..options() },
        EngineOptions { context_tokens: 0, ..options() },
        EngineOptions { page_tokens: 0, ..options() },
        EngineOptions { slots: 0, ..options() },
        EngineOptions { chunk_tokens_max: 0, ..options() },
        EngineOptions { cache_tokens: Some(127), ..options() }, // seven pages of 16, a context takes eight
    ] {
        assert!(matches!(load(whole, options), Err(LoadError::Option { .. })), "{options:?}");
    }
}

#[test]
fn a_device_without_room_says_so_and_gets_everything_back() {
    let fixture = fixture();
    let model = exo_formats::open(&fixture.gguf()).unwrap();
    let small = exo_backend_cpu::CpuOptions { memory_limit_bytes: Some(100_000), ..Default::default() };
    let device = exo_backend_cpu::CpuDevice::open(small).unwrap();
    let error = Engine::load(device.clone(), &model, Shard::whole(4), options(), &mut |_| {});
    assert!(matches!(error, Err(LoadError::Alloc(_) | LoadError::Weight(_))), "{error:?}");
    assert_eq!((device.memory().allocated_bytes, device.memory().live_allocations), (0, 0));
}

#[test]
fn a_tied_table_is_held_once_and_a_stage_holds_only_its_own_tensors() {
    let fixture = fixture();
    let model = exo_formats::open(&fixture.gguf()).unwrap();
    let shape = model.shape();
    // As they are stored: the few rows of these matrices would be filled up to groups of sixteen.
    let as_stored = exo_backend_cpu::CpuOptions { threads: Some(1), mmap: true, ..Default::default() };
    let device = exo_backend_cpu::CpuDevice::open(as_stored).unwrap();
    let held = |shard| {
        let engine = Engine::load(device.clone(), &model, shard, options(), &mut |_| {}).unwrap();
        engine.report().weight_bytes
    };
    // Vectors may be widened and frequencies come on top; a second table would be 10 kB.
    let slack = 4096;
    assert!(held(Shard::whole(4)) <= shape.weight_bytes() + slack);
    for layers in [LayerRange::new(0, 1), LayerRange::new(1, 2), LayerRange::new(2, 4)] {
        let shard = &Shard::pipeline(layers, 4);
        assert!(held(*shard) <= shape.shard_weight_bytes(shard) + slack, "{shard}");
    }
}

#[test]
fn a_processor_holds_what_plans_count_with() {
    for fixture in common::one_of_each() {
        let model = exo_formats::open(&fixture.gguf()).unwrap();
        let shape = model.shape_packed(KvDType::F16, &exo_backend_cpu::weight_bytes);
        let count = shape.layer_count();
        for shard in [Shard::whole(count), Shard::pipeline(LayerRange::new(0, 1), count)] {
            let engine = Engine::load(device(1), &model, shard, options(), &mut |_| {}).unwrap();
            // Every shard has the frequencies of positions, in one row: those of the file and these in f32.
            let frequencies = u64::from(model.config.head_dim / 2) * (4 + 4);
            let planned = shape.shard_packed_bytes(&shard) + frequencies;
            assert_eq!(engine.report().weight_bytes, planned, "{} {shard}", fixture.name);
        }
    }
}

#[test]
fn progress_ends_at_all_bytes_and_dropping_an_engine_frees_them() {
    let fixture = fixture();
    let model = exo_formats::open(&fixture.folder()).unwrap();
    let (device, mut seen) = (device(1), Vec::new());
    let engine =
        Engine::load(device.clone(), &model, Shard::whole(4), options(), &mut |p| seen.push(p)).unwrap();
    assert_eq!(seen[0].bytes_done, 0);
    assert!(seen.windows(2).all(|w| w[0].bytes_done < w[1].bytes_done));
    assert!(seen.iter().all(|p| p.bytes_total == model.shape().weight_bytes()));
    assert_eq!(seen.last().map(|p| p.bytes_done), Some(model.shape().weight_bytes()));
    assert!(device.memory().live_allocations > 0);
    drop(engine);
    assert_eq!((device.memory().allocated_bytes, device.memory().live_allocations), (0, 0));
}
