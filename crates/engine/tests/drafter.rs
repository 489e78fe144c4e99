//! The small model that guesses: what it says is what the large one would say if it were that model, whatever
//! it has read before, and beside others.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use crate::common::{DEADLINE, device, id, options, part, solo, spec};
use exo_backend::{CancelToken, KvDType};
use exo_engine::{DraftLimits, DraftRequest, Drafter};
use exo_golden::Fixture;
use exo_types::{SamplingParams, SequenceSpec};

const SLOTS: u32 = 2;

fn drafter(fixture: &str) -> Drafter {
    let model = exo_formats::open(&Fixture::load(fixture).gguf()).unwrap();
    Drafter::load(device(1), &model, 64, SLOTS, KvDType::F32).unwrap()
}

fn request(n: u16, text: &[u32], sampling: &SamplingParams, count: u32) -> DraftRequest {
    let prompt_tokens = PROMPT.len() as u32;
    DraftRequest { spec: SequenceSpec { prompt_tokens, ..spec(n, text, sampling.clone()) }, count }
}

/// Guesses of sequences that it holds.
fn propose(drafter: &mut Drafter, requests: Vec<DraftRequest>) -> Vec<Vec<u32>> {
    try_propose(drafter, requests).into_iter().map(Option::unwrap).collect()
}

fn try_propose(drafter: &mut Drafter, requests: Vec<DraftRequest>) -> Vec<Option<Vec<u32>>> {
    let cancel = CancelToken::default();
    drafter.propose(requests, DraftLimits { cancel: &cancel, deadline: DEADLINE }).unwrap()
}

const PROMPT: [u32; 6] = [3, 1, 4, 1, 5, 9];

/// Drawn, with everything that makes a token depend on those before it.
fn warm() -> SamplingParams {
    SamplingParams {
        temperature: 0.9,
        repetition_penalty: 1.2,
        frequency_penalty: 0.2,
        seed: 7,
        ..SamplingParams::greedy()
    }
}

/// What the model of the fixture answers by itself.
fn answer(fixture: &str, sampling: &SamplingParams, count: usize) -> Vec<u32> {
    let mut engine = solo(&Fixture::load(fixture).gguf(), options(), 1);
    engine.open(&spec(1, &PROMPT, sampling.clone()));
    let (mut text, mut read) = (PROMPT.to_vec(), 0);
    while text.len() < PROMPT.len() + count {
        let (_, token) = engine.step(vec![part(1, read, &text[read..], true)]).unwrap().remove(0);
        read = text.len();
        text.push(token.token);
    }
    text.split_off(PROMPT.len())
}

#[test]
fn its_guesses_are_its_own_answer_however_much_of_them_was_right() {
    for sampling in [SamplingParams::greedy(), warm()] {
        let want = answer("qwen3-f16", &sampling, 40);
        let mut drafter = drafter("qwen3-f16");
        let mut text = PROMPT.to_vec();
        // Guesses taken of each round: none, some, all of them and one token more.
        for (taken, count) in [(1, 4), (3, 4), (5, 4), (5, 4), (1, 1), (2, 1), (1, 0), (4, 8), (9, 8)] {
            let guesses = propose(&mut drafter, vec![request(1, &text, &sampling, count)]).remove(0);
            let from = text.len() - PROMPT.len();
            assert_eq!(guesses, want[from..from + count as usize], "after {from} tokens");
            text.extend(&want[from..from + taken]);
        }
    }
}

#[test]
fn a_guess_that_was_wrong_is_forgotten() {
    let sampling = SamplingParams::greedy();
    let (mut drafter, mut fresh) = (drafter("qwen3-f16"), drafter("qwen3-f16"));
    propose(&mut drafter, vec![request(1, &PROMPT, &sampling, 6)]);
    // The large model says something else, and an earlier text comes back altered as well.
    for text in [[&PROMPT[..], &[20, 21]].concat(), [&PROMPT[..3], &[30, 31, 32]].concat()] {
        let again = propose(&mut drafter, vec![request(1, &text, &sampling, 6)]);
        let new = propose(&mut fresh, vec![request(2, &text, &sampling, 6)]);
        fresh.forget(id(2));
        assert_eq!(again, new, "{text:?}");
    }
}

#[test]
fn sequences_are_guessed_at_together_as_alone() {
    let sampling = warm();
    let other = [&PROMPT[..], &[11, 12, 13]].concat();
    let alone = |text: &[u32], count| {
        propose(&mut drafter("qwen3-f16"), vec![request(1, text, &sampling, count)]).remove(0)
    };
    let mut both = drafter("qwen3-f16");
    let requests = vec![request(1, &PROMPT, &sampling, 3), request(2, &other, &sampling, 5)];
    assert_eq!(propose(&mut both, requests), [alone(&PROMPT, 3), alone(&other, 5)]);
}

#[test]
fn what_it_cannot_hold_is_refused_and_harms_nobody() {
    let sampling = SamplingParams::greedy();
    let mut drafter = drafter("qwen3-f16");
    let long = vec![5; 65];
    let full = vec![5; 63];
    let requests = vec![
        request(1, &PROMPT, &sampling, 3),
        request(2, &long, &sampling, 3),
        request(3, &[1, u32::MAX], &sampling, 3),
        request(4, &full, &sampling, 3),
        request(5, &PROMPT, &sampling, 3),
    ];
    let guesses = try_propose(&mut drafter, requests);
    let lens: Vec<Option<usize>> = guesses.iter().map(|g| g.as_ref().map(Vec::len)).collect();
    assert_eq!(
        lens,
        [Some(3), None, None, Some(1), Some(0)],
        "too long, no such token, one token of room, no third slot"
    );
    drafter.forget(id(4));
    let more =
        propose(&mut drafter, vec![request(5, &PROMPT, &sampling, 3), request(1, &PROMPT, &sampling, 3)]);
    assert_eq!(more[0], more[1], "a slot that was freed serves another");
    assert_eq!(drafter.report().sequences, 2);
}
