//! What a step brings back from its device: tokens where a sequence takes the greatest logit, logits where
//! somebody looks at them, nothing of a prompt's chunk. And that the tokens are the same either way, to the
//! last tie.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use std::sync::Arc;

use crate::common::{self, DEADLINE, Pipeline, cards, device, frame, id, on, part, spec};
use exo_backend::{CancelToken, Device};
use exo_engine::{Engine, EngineOptions, StepInput, StepOutput};
use exo_golden::Fixture;
use exo_types::{LayerRange, SamplingParams, Shard, StepSequence};

/// The faults that kernels of one program may have reported: counted with the results.
const FAULT_BYTES: u64 = 16;

fn options() -> EngineOptions {
    EngineOptions { chunk_tokens_max: 128, ..common::options() }
}

/// Greedy, with somebody who looks at the logits.
fn watched() -> SamplingParams {
    SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() }
}

fn warm() -> SamplingParams {
    SamplingParams { temperature: 0.9, seed: 5, ..SamplingParams::greedy() }
}

#[test]
fn a_greedy_step_brings_back_a_token_and_no_logits() {
    let fixture = Fixture::load("qwen3-q8_0");
    for card in cards("a_greedy_step_brings_back_a_token_and_no_logits") {
        let mut engine = on(card.clone(), &fixture, options());
        let vocab_bytes = 4 * u64::from(engine.stages[0].config().vocab);
        let (layers, head) = (FAULT_BYTES, FAULT_BYTES);
        let all = [SamplingParams::greedy(), watched(), warm()];
        (1..).zip(all).for_each(|(n, sampling)| engine.open(&spec(n, &fixture.prompt, sampling)));
        let mut read_by = |parts: Vec<StepSequence>| {
            let before = card.work();
            engine.runs(parts).unwrap();
            let after = card.work();
            (after.read_bytes - before.read_bytes, after.submissions - before.submissions)
        };
        let prompt = &fixture.prompt;
        let chunk = |n| part(n, 0, &prompt[..6], false);
        assert_eq!(read_by(vec![chunk(1), chunk(2), chunk(3)]).0, layers, "a chunk of a prompt");
        let rest = |n| part(n, 6, &prompt[6..], true);
        assert_eq!(read_by(vec![rest(1)]), (layers + head + 4, 1), "a greedy sequence");
        assert_eq!(read_by(vec![rest(2)]).0, layers + head + vocab_bytes, "log-probabilities");
        assert_eq!(read_by(vec![rest(3)]).0, layers + head + vocab_bytes, "a draw");
        // Three rows of the greedy sequence, one of another that stands before it.
        let next = |n, tokens: &[u32], drafts| StepSequence { drafts, ..part(n, prompt.len(), tokens, true) };
        let mixed = vec![next(3, &[1], 0), next(1, &[1, 2, 3], 2)];
        assert_eq!(read_by(mixed).0, layers + head + 3 * 4 + vocab_bytes, "both in one step");
    }
}

/// Every way to be in a step: greedy or looked at, drafts or none, in both orders.
fn tokens_are_the_same(engine: &mut Pipeline, fixture: &Fixture) {
    let prompt = &fixture.prompt;
    let all = [SamplingParams::greedy(), watched(), warm()];
    let want: Vec<Vec<u32>> =
        all.iter().map(|sampling| engine.generate(prompt, 64, 24, sampling.clone())).collect();
    assert_eq!(want[0], want[1], "{}: the greatest, from the device and from its logits", fixture.name);
    // Sequence n does what `all[n % 3]` says; the first half of its drafts are right.
    for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1]] {
        (1..=3u16).for_each(|n| engine.open(&spec(n, prompt, all[usize::from(n) % 3].clone())));
        let step = |n: u16| {
            let want = &want[usize::from(n) % 3];
            let wrong = (want[4] + 1) % 64;
            let tokens = [prompt, &want[..4], &[wrong, wrong]].concat();
            StepSequence { drafts: 6, ..part(n, 0, &tokens, true) }
        };
        for (sequence, run) in engine.runs(order.map(step).to_vec()).unwrap() {
            let run: Vec<u32> = run.iter().map(|t| t.token).collect();
            assert_eq!(run, want[usize::from(sequence.index) % 3][..5], "{} {sequence}", fixture.name);
        }
        (1..=3).for_each(|n| engine.close(id(n)));
    }
}

#[test]
fn tokens_do_not_depend_on_who_finds_the_greatest() {
    for fixture in ["llama-bf16-tied", "qwen3-q8_0", "llama-q4_0"].map(Fixture::load) {
        tokens_are_the_same(&mut on(device(2), &fixture, options()), &fixture);
        for card in cards("tokens_do_not_depend_on_who_finds_the_greatest") {
            tokens_are_the_same(&mut on(card, &fixture, options()), &fixture);
        }
    }
}

/// Logits that are no numbers: the device says that there are some, the sampler which, whatever was asked
/// for.
#[test]
fn logits_that_are_not_finite_are_the_same_error_for_everybody() {
    let fixture = Fixture::load("qwen3-f16");
    let model = exo_formats::open(&fixture.gguf()).unwrap();
    let shard = Shard::pipeline(LayerRange::new(1, model.config.layers), model.config.layers);
    let mut devices: Vec<Arc<dyn Device>> = vec![device(1)];
    let cards = cards("logits_that_are_not_finite_are_the_same_error_for_everybody");
    devices.extend(cards.into_iter().map(|card| card as Arc<dyn Device>));
    for device in devices {
        let mut last = Engine::load(device, &model, shard, options(), &mut |_| {}).unwrap();
        let step = frame(vec![part(1, 0, &fixture.prompt, true)]);
        let hidden = vec![f32::NAN; fixture.prompt.len() * last.config().hidden as usize];
        let failures = [SamplingParams::greedy(), watched()].map(|sampling| {
            last.open(spec(1, &fixture.prompt, sampling)).unwrap();
            let done = last.step(&step, StepInput::Hidden(&hidden), &CancelToken::default(), DEADLINE);
            last.close(id(1)).unwrap();
            let StepOutput::Sampled(sampled) = done.unwrap() else { panic!("the last stage samples") };
            let [(sequence, error)] = &sampled.failed[..] else { panic!("{sampled:?}") };
            assert_eq!((*sequence, sampled.runs.len()), (id(1), 0));
            error.to_string()
        });
        assert_eq!(failures[0], failures[1]);
        assert!(failures[0].contains("NaN"), "{}", failures[0]);
        // The engine goes on.
        last.open(spec(1, &fixture.prompt, SamplingParams::greedy())).unwrap();
        let zeros = vec![0.5; hidden.len()];
        let done = last.step(&step, StepInput::Hidden(&zeros), &CancelToken::default(), DEADLINE).unwrap();
        assert!(matches!(done, StepOutput::Sampled(sampled) if sampled.runs.len() == 1));
    }
}
