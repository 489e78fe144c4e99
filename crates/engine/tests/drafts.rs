//! Drafts change how many tokens a step gives and nothing else: right ones, wrong ones, half right ones,
//! greedy and seeded, with penalties and log-probabilities, over stages and beside others.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use crate::common::{DEADLINE, Pipeline, frame, id, options, part, solo, spec, split};
use exo_backend::CancelToken;
use exo_engine::{EngineOptions, StepInput, StepOutput};
use exo_golden::Fixture;
use exo_sampler::SampleError;
use exo_types::{DRAFTS_MAX, SampledToken, SamplingParams, StepSequence};

const COUNT: usize = 48;

/// Every parameter that makes a token depend on those before it.
fn warm(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        seed,
        logprobs: Some(3),
        ..SamplingParams::greedy()
    }
}

/// The answer of `COUNT` tokens, one step each, with its log-probabilities.
fn plain(engine: &mut Pipeline, prompt: &[u32], sampling: &SamplingParams) -> Vec<SampledToken> {
    guessed(engine, prompt, sampling, |_| Vec::new()).0
}

/// The answer when `drafts` guesses what follows the answer so far; and the number of steps it took.
fn guessed(
    engine: &mut Pipeline,
    prompt: &[u32],
    sampling: &SamplingParams,
    drafts: impl Fn(&[SampledToken]) -> Vec<u32>,
) -> (Vec<SampledToken>, usize) {
    engine.open(&spec(1, prompt, sampling.clone()));
    let (mut answer, mut steps, mut cached) = (Vec::new(), 0, 0);
    while answer.len() < COUNT {
        let text: Vec<u32> =
            prompt.iter().copied().chain(answer.iter().map(|t: &SampledToken| t.token)).collect();
        let known = cached.min(text.len() - 1);
        let guess = drafts(&answer);
        let tokens = [&text[known..], &guess].concat();
        let truncate_to = (known < cached).then_some(known as u32);
        let part = StepSequence { drafts: guess.len() as u32, truncate_to, ..part(1, known, &tokens, true) };
        let runs = engine.runs(vec![part.clone()]).unwrap();
        assert_eq!(runs.len(), 1);
        assert!(part.is_answered_by(runs[0].1.iter().map(|t| t.token)), "{part:?} gave {runs:?}");
        cached = known + tokens.len();
        steps += 1;
        answer.extend(runs.into_iter().flat_map(|(_, tokens)| tokens));
    }
    engine.close(id(1));
    answer.truncate(COUNT);
    (answer, steps)
}

/// `count` tokens of the true answer after `so_far`, those whose place `wrong` names replaced.
fn true_drafts(
    want: &[SampledToken],
    so_far: usize,
    count: usize,
    wrong: impl Fn(usize) -> bool,
) -> Vec<u32> {
    let end = want.len().min(so_far + count);
    (so_far..end).map(|i| if wrong(i) { (want[i].token + 1) % 64 } else { want[i].token }).collect()
}

#[test]
fn the_answer_is_the_same_whatever_was_guessed() {
    for fixture in [Fixture::load("llama-bf16-tied"), Fixture::load("qwen3-q8_0")] {
        let prompt = &fixture.prompt;
        for sampling in [SamplingParams::greedy(), warm(3), warm(4)] {
            let want = plain(&mut solo(&fixture.gguf(), options(), 1), prompt, &sampling);
            for cuts in [&[][..], &[1][..]] {
                let mut engine = split(&fixture.gguf(), cuts, options(), 2);
                let right = |a: &[SampledToken]| true_drafts(&want, a.len(), 7, |_| false);
                let (got, steps) = guessed(&mut engine, prompt, &sampling, right);
                assert_eq!((&got, steps), (&want, COUNT / 8), "all right, {cuts:?}");
                let wrong = |a: &[SampledToken]| true_drafts(&want, a.len(), 7, |_| true);
                let (got, steps) = guessed(&mut engine, prompt, &sampling, wrong);
                assert_eq!((&got, steps), (&want, COUNT), "all wrong, {cuts:?}");
                let mixed = |a: &[SampledToken]| true_drafts(&want, a.len(), a.len() % 9, |i| i % 5 == 3);
                assert_eq!(guessed(&mut engine, prompt, &sampling, mixed).0, want, "some wrong, {cuts:?}");
            }
        }
    }
}

/// As many drafts as there may be, of more sequences than fit one pass over the head.
#[test]
fn sequences_guess_side_by_side() {
    let fixture = Fixture::load("qwen3-f16");
    let options = EngineOptions { chunk_tokens_max: 128, ..options() };
    let mut engine = solo(&fixture.gguf(), options, 1);
    let prompt = |n: usize| &fixture.prompt[..6 + 2 * n];
    let want: Vec<_> = (1..=3).map(|n| plain(&mut engine, prompt(n), &warm(n as u64))).collect();
    (1..=3).for_each(|n| engine.open(&spec(n as u16, prompt(n), warm(n as u64))));
    let wrong_at = [4, 0, 16];
    let step = |n: usize| {
        let drafts = true_drafts(&want[n - 1], 0, DRAFTS_MAX as usize, |i| i == wrong_at[n - 1]);
        let tokens = [prompt(n), &drafts].concat();
        StepSequence { drafts: DRAFTS_MAX, ..part(n as u16, 0, &tokens, true) }
    };
    let runs = engine.runs((1..=3).map(step).collect()).unwrap();
    for (n, (sequence, run)) in (1..=3).zip(runs) {
        assert_eq!(sequence, id(n as u16), "runs come in the frame's order");
        assert_eq!(run, want[n - 1][..=wrong_at[n - 1]], "sequence {n}");
    }
}

/// A run that fails in its middle changes nothing of the run beside it, nor of what the same step gives
/// afterwards.
#[test]
fn a_failed_run_fails_alone_and_can_be_done_again() {
    let fixture = Fixture::load("llama-bf16-tied");
    let prompt = &fixture.prompt;
    let mut pipeline = split(&fixture.gguf(), &[1], options(), 1);
    let want: Vec<_> = (1..=2).map(|n| plain(&mut pipeline, prompt, &warm(n))).collect();
    (1..=2).for_each(|n| pipeline.open(&spec(n, prompt, warm(u64::from(n)))));
    let step = |n: u16| {
        let drafts = true_drafts(&want[usize::from(n) - 1], 0, 3, |_| false);
        let tokens = [prompt, drafts.as_slice()].concat();
        StepSequence { drafts: 3, truncate_to: Some(0), ..part(n, 0, &tokens, true) }
    };
    let frame = frame(vec![step(1), step(2)]);
    let [first, last] = &mut pipeline.stages[..] else { panic!("two stages") };
    let cancel = CancelToken::default();
    let StepOutput::Hidden(rows) = first.step(&frame, StepInput::Tokens, &cancel, DEADLINE).unwrap() else {
        panic!("the first stage gives rows")
    };
    // The row of the second sequence's last draft but one.
    let (mut broken, hidden) = (rows.clone(), last.config().hidden as usize);
    let at = rows.len() - 2 * hidden;
    broken[at..at + hidden].fill(f32::NAN);
    let mut step = |rows: &[f32]| match last.step(&frame, StepInput::Hidden(rows), &cancel, DEADLINE).unwrap()
    {
        StepOutput::Sampled(sampled) => sampled,
        StepOutput::Hidden(_) => panic!("the last stage samples"),
    };
    let failed = step(&broken);
    assert!(matches!(failed.failed[..], [(sequence, SampleError::NotFinite { .. })] if sequence == id(2)));
    assert_eq!((failed.runs.len(), &failed.runs[0].1[..]), (1, &want[0][..4]));
    let runs = step(&rows).all().unwrap();
    assert_eq!(runs.len(), 2);
    for (run, want) in runs.iter().zip(&want) {
        assert_eq!(run.1, want[..4]);
    }
}
