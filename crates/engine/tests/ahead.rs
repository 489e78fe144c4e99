//! Chunks of a prompt in flight: they are with the device before the one in front is waited for, and the text is the same.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use std::sync::Arc;

use crate::common::{DEADLINE, Pipeline, cards, device, frame, id, on, options, part, spec};
use exo_backend::{CancelToken, Device};
use exo_engine::{Ahead, EngineOptions, StepError};
use exo_golden::Fixture;
use exo_types::{Principal, SamplingParams, SequenceSpec, StepSequence};

/// Tokens of a chunk.
const CHUNK: usize = 5;
const COUNT: usize = 12;

fn devices(test: &str) -> Vec<Arc<dyn Device>> {
    let cards = cards(test).into_iter().map(|card| card as Arc<dyn Device>);
    [device(2) as Arc<dyn Device>].into_iter().chain(cards).collect()
}

fn hand_over(engine: &mut Pipeline, part: StepSequence) -> Result<Ahead, StepError> {
    engine.stages[0].hand_over(&frame(vec![part]), &CancelToken::default())
}

fn finish(engine: &mut Pipeline, ahead: Ahead) {
    engine.stages[0].finish(ahead, DEADLINE).unwrap();
}

/// The answer behind a prompt of which all but the last token is in the cache.
fn answer(engine: &mut Pipeline, n: u16, prompt: &[u32]) -> Vec<u32> {
    let (mut at, mut next, mut answer) = (prompt.len() - 1, prompt[prompt.len() - 1], Vec::new());
    while answer.len() < COUNT {
        next = engine.step(vec![part(n, at, &[next], true)]).unwrap()[0].1.token;
        answer.push(next);
        at += 1;
    }
    answer
}

/// Hands over all but the last token, chunk by chunk, with one more on its way than is finished.
fn read_ahead(engine: &mut Pipeline, n: u16, prompt: &[u32]) {
    let mut before = None;
    for (i, tokens) in prompt[..prompt.len() - 1].chunks(CHUNK).enumerate() {
        let next = hand_over(engine, part(n, i * CHUNK, tokens, false)).unwrap();
        if let Some(before) = before.replace(next) {
            finish(engine, before);
        }
    }
    finish(engine, before.unwrap());
}

#[test]
fn two_chunks_are_handed_over_before_the_first_is_waited_for() {
    let fixture = Fixture::load("llama-q4_0");
    for card in cards("two_chunks_are_handed_over_before_the_first_is_waited_for") {
        let mut engine = on(card.clone(), &fixture, options());
        engine.open(&spec(1, &fixture.prompt, SamplingParams::greedy()));
        let before = card.work();
        let first = hand_over(&mut engine, part(1, 0, &fixture.prompt[..4], false)).unwrap();
        let second = hand_over(&mut engine, part(1, 4, &fixture.prompt[4..8], false)).unwrap();
        let both = card.work();
        assert_eq!(both.submissions - before.submissions, 2, "the driver has both");
        assert_eq!(engine.stages[0].positions(id(1)), Some(8));
        finish(&mut engine, first);
        finish(&mut engine, second);
        assert_eq!(card.work().submissions, both.submissions, "finishing hands nothing over");
    }
}

#[test]
fn the_text_is_that_of_one_step_after_the_other() {
    for fixture in ["llama-bf16-tied", "qwen3-q8_0"].map(Fixture::load) {
        let prompt = &fixture.prompt;
        for device in devices("the_text_is_that_of_one_step_after_the_other") {
            let mut engine = on(device, &fixture, options());
            let want = engine.generate(prompt, CHUNK, COUNT, SamplingParams::greedy());
            engine.open(&spec(1, prompt, SamplingParams::greedy()));
            read_ahead(&mut engine, 1, prompt);
            assert_eq!(answer(&mut engine, 1, prompt), want, "{}", fixture.name);
        }
    }
}

/// What is cancelled takes nothing with it that was on its way before.
#[test]
fn a_cancelled_chunk_leaves_the_one_in_flight() {
    let fixture = Fixture::load("qwen3-q8_0");
    let prompt = &fixture.prompt;
    for device in devices("a_cancelled_chunk_leaves_the_one_in_flight") {
        let mut engine = on(device, &fixture, options());
        let want = engine.generate(prompt, CHUNK, COUNT, SamplingParams::greedy());
        engine.open(&spec(1, prompt, SamplingParams::greedy()));
        let first = hand_over(&mut engine, part(1, 0, &prompt[..CHUNK], false)).unwrap();
        let cancel = CancelToken::default();
        cancel.cancel();
        let next = frame(vec![part(1, CHUNK, &prompt[CHUNK..prompt.len() - 1], false)]);
        let error = engine.stages[0].hand_over(&next, &cancel).unwrap_err();
        assert!(error.to_string().contains("did not finish"), "{error}");
        finish(&mut engine, first);
        assert_eq!(engine.stages[0].positions(id(1)), Some(CHUNK as u32));
        let again = engine.stages[0].hand_over(&next, &CancelToken::default()).unwrap();
        finish(&mut engine, again);
        assert_eq!(answer(&mut engine, 1, prompt), want);
    }
}

/// Pages that are given back under a chunk in flight go to somebody else at once, who is not disturbed.
#[test]
fn pages_of_a_closed_sequence_may_be_used_while_its_chunk_is_in_flight() {
    let fixture = Fixture::load("llama-q4_0");
    let prompt = &fixture.prompt;
    for device in devices("pages_of_a_closed_sequence_may_be_used_while_its_chunk_is_in_flight") {
        // Pages for one sequence: the second gets those of the first, cleared, as it is somebody else's.
        let small = EngineOptions { context_tokens: 64, cache_tokens: Some(64), ..options() };
        let mut engine = on(device, &fixture, small);
        let want = engine.generate(prompt, CHUNK, COUNT, SamplingParams::greedy());
        let other = Principal([7; 16]);
        let foreign: Vec<u32> = (0..64).map(|i| (i * 13 + 5) % 64).collect();
        engine.open(&SequenceSpec { principal: other, ..spec(2, &foreign, SamplingParams::greedy()) });
        let whole = StepSequence { principal: other, ..part(2, 0, &foreign, false) };
        let ahead = hand_over(&mut engine, whole).unwrap();
        engine.close(id(2));
        engine.open(&spec(1, prompt, SamplingParams::greedy()));
        let first = hand_over(&mut engine, part(1, 0, &prompt[..prompt.len() - 1], false)).unwrap();
        finish(&mut engine, ahead);
        finish(&mut engine, first);
        assert_eq!(answer(&mut engine, 1, prompt), want);
    }
}
