//! Answers that keep to a constraint: the same tokens with and without drafts, whoever finds the greatest
//! logit, and logits are read back only where the greatest may not come.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use std::sync::Arc;

use crate::common::{self, DEADLINE, Pipeline, cards, device, id, on, part, spec};
use exo_backend::{CancelToken, Device};
use exo_engine::{Engine, StepInput, StepOutput};
use exo_golden::Fixture;
use exo_sampler::{ConstraintError, SampleError, TokenConstraint};
use exo_types::{Constraint, SamplingParams, StepSequence};

const COUNT: usize = 24;

/// Tokens by turns below and from a bound on, that the grammar names.
#[derive(Debug)]
struct ByTurns {
    bound: u32,
    seen: u32,
    mask: [u32; 4],
}

impl ByTurns {
    fn takes(&self, token: u32) -> bool {
        (token < self.bound) == self.seen.is_multiple_of(2) && token < 64
    }
}

impl TokenConstraint for ByTurns {
    fn allows(&mut self, token: u32) -> Result<bool, ConstraintError> {
        Ok(self.takes(token))
    }

    fn mask(&mut self) -> Result<&[u32], ConstraintError> {
        let mut mask = [0; 4];
        (0..128).filter(|t| self.takes(*t)).for_each(|t| mask[t as usize / 32] |= 1 << (t % 32));
        self.mask = mask;
        Ok(&self.mask)
    }

    fn accept(&mut self, _: u32) {
        self.seen += 1;
    }

    fn end_token(&self) -> u32 {
        0
    }
}

fn constrained(sampling: SamplingParams) -> SamplingParams {
    let constraint = Constraint { grammar: "32".to_owned(), engine: String::new(), vocabulary: [0; 32] };
    SamplingParams { constraint: Some(Arc::new(constraint)), ..sampling }
}

fn follows(mut pipeline: Pipeline) -> Pipeline {
    pipeline.stages[0].follow_grammars(Arc::new(|constraint: &Constraint| {
        let bound = constraint.grammar.parse().map_err(|_| "no number".to_owned())?;
        Ok(Box::new(ByTurns { bound, seen: 0, mask: [0; 4] }) as Box<dyn TokenConstraint>)
    }));
    pipeline
}

fn on_each(test: &str, fixture: &Fixture, check: impl Fn(Pipeline)) {
    check(follows(on(device(2), fixture, common::options())));
    for card in cards(test) {
        check(follows(on(card as Arc<dyn Device>, fixture, common::options())));
    }
}

#[test]
fn every_token_may_come_and_logits_are_read_only_where_the_greatest_may_not() {
    let fixture = Fixture::load("qwen3-q8_0");
    let all = [
        SamplingParams::greedy(),
        SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() },
        SamplingParams { temperature: 1.3, seed: 3, ..SamplingParams::greedy() },
    ];
    on_each("every_token_may_come", &fixture, |mut engine| {
        let [plain, watched, warm] =
            all.clone().map(|sampling| engine.generate(&fixture.prompt, 64, COUNT, constrained(sampling)));
        assert_eq!(plain, watched, "the greatest that may come, from the device or from the logits");
        for answer in [&plain, &warm] {
            let by_turns = answer.iter().enumerate().all(|(i, t)| (*t < 32) == (i % 2 == 0));
            assert!(by_turns && answer.iter().all(|t| *t < 64), "{answer:?}");
        }
        // A row is read back where its greatest logit is no token that may come: counted by asking each row
        // for it.
        let before = engine.stages[0].logit_rows_read();
        engine.generate(&fixture.prompt, 64, COUNT, constrained(SamplingParams::greedy()));
        let read = engine.stages[0].logit_rows_read() - before;
        let text = [&fixture.prompt, plain.as_slice()].concat();
        let logits = engine.logits_in_chunks(&text, 16);
        let vocab = logits.len() / text.len();
        let greatest =
            |row: &[f32]| (0..vocab).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        let rows = logits.chunks_exact(vocab).skip(fixture.prompt.len() - 1).zip(&plain);
        let refused = rows.filter(|(row, taken)| greatest(row) != **taken).count() as u64;
        assert_eq!(read, refused, "of {COUNT} rows");
        assert!(refused > 0 && refused < COUNT as u64, "{refused} of {COUNT}: the test tests nothing");
    });
}

#[test]
fn drafts_and_replays_change_no_token() {
    let fixture = Fixture::load("qwen3-q8_0");
    let warm = SamplingParams { temperature: 0.8, seed: 9, ..SamplingParams::greedy() };
    on_each("drafts_and_replays_change_no_token", &fixture, |mut engine| {
        for sampling in [SamplingParams::greedy(), warm.clone()].map(constrained) {
            let prompt = &fixture.prompt;
            let want = engine.generate(prompt, 64, COUNT, sampling.clone());
            engine.open(&spec(1, prompt, sampling.clone()));
            // Five right drafts, then one that the constraint would take and the model does not.
            let wrong = (want[5] + 2) % 32 + want[5] / 32 * 32;
            let tokens = [prompt, &want[..5], &[wrong]].concat();
            let step = StepSequence { drafts: 6, ..part(1, 0, &tokens, true) };
            let got: Vec<u32> = engine.runs(vec![step]).unwrap()[0].1.iter().map(|t| t.token).collect();
            assert_eq!(got, want[..6]);
            engine.close(id(1));
            // Another engine is given what there is of the answer, and goes on.
            let known = [prompt.as_slice(), &want[..9]].concat();
            let mut again = spec(2, &known, sampling.clone());
            again.prompt_tokens = prompt.len() as u32;
            engine.open(&again);
            let next = engine.step(vec![part(2, 0, &known, true)]).unwrap();
            assert_eq!(next[0].1.token, want[9]);
            // And is set back to an earlier one.
            let back = StepSequence {
                truncate_to: Some(prompt.len() as u32 + 3),
                ..part(2, prompt.len() + 3, &want[3..4], true)
            };
            assert_eq!(engine.step(vec![back]).unwrap()[0].1.token, want[4]);
            engine.close(id(2));
        }
    });
}

#[test]
fn an_engine_that_follows_no_grammar_gives_its_sequence_no_token_and_others_theirs() {
    let fixture = Fixture::load("qwen3-f16");
    let mut engine = on(device(1), &fixture, common::options()).stages.remove(0);
    let (prompt, greedy) = (&fixture.prompt, SamplingParams::greedy());
    let draw = |engine: &mut Engine, parts: Vec<StepSequence>| {
        let out = engine.step(&common::frame(parts), StepInput::Tokens, &CancelToken::default(), DEADLINE);
        let StepOutput::Sampled(sampled) = out.unwrap() else { panic!("the only stage samples") };
        sampled
    };
    engine.open(spec(1, prompt, constrained(greedy.clone()))).unwrap();
    engine.open(spec(2, prompt, greedy.clone())).unwrap();
    let sampled = draw(&mut engine, vec![part(1, 0, prompt, true), part(2, 0, prompt, true)]);
    let why = "this engine was given no way to follow a grammar".to_owned();
    assert_eq!(sampled.failed, [(id(1), SampleError::Constraint { reason: why })]);
    engine.open(spec(3, prompt, greedy)).unwrap();
    let alone = draw(&mut engine, vec![part(3, 0, prompt, true)]);
    assert_eq!(sampled.runs[0].1, alone.runs[0].1);
    assert_eq!((sampled.runs.len(), sampled.runs[0].0), (1, id(2)));
}
