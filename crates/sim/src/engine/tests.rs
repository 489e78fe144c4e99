//! Pipelines of engines against the model alone.

use exo_types::{Attempt, Epoch, LayerRange, NodeId, PlacementId, RequestId, StepFrame, Term};

use super::*;
use crate::model::{HashModel, Question, solo};

const LAYERS: u32 = 4;

/// A step of some pipeline.
fn frame(sequences: Vec<StepSequence>) -> StepFrame {
    let epoch = Epoch { counter: 1, key: NodeId([1; 32]) };
    StepFrame { placement: PlacementId { epoch, number: 1 }, term: Term::FIRST, step: 0, sequences }
}

fn spec(history: Vec<u32>, seed: u64) -> SequenceSpec {
    SequenceSpec {
        sequence: SequenceId { request: RequestId(u128::from(seed) + 1), index: 0 },
        principal: Principal::LOCAL,
        driver: NodeId([1; 32]),
        sampling: crate::model::sampling(seed),
        prompt_tokens: history.len() as u32,
        history,
        query: exo_types::PromptQuery::Nothing,
    }
}

fn part(spec: &SequenceSpec, start: u32, tokens: &[u32], drafts: u32) -> StepSequence {
    StepSequence {
        sequence: spec.sequence,
        principal: spec.principal,
        start,
        tokens: tokens.to_vec(),
        sample: true,
        drafts,
        truncate_to: Some(start),
    }
}

/// Engines with these last layers, as a pipeline.
struct Pipeline(Vec<Engine>);

impl Pipeline {
    fn new(ends: &[u32]) -> Self {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let shard = |(start, &end)| Shard::pipeline(LayerRange::new(start, end), LAYERS);
        Self(starts.zip(ends).map(shard).map(|shard| Engine::new(shard, 32)).collect())
    }

    fn step(
        &mut self,
        commands: Vec<StageCommand>,
        parts: Vec<StepSequence>,
    ) -> Result<Vec<TokenResult>, Misuse> {
        let frame = self::frame(parts);
        let mut rows = Default::default();
        for engine in &mut self.0 {
            let job =
                StepJob { commands: commands.clone(), frame: frame.clone(), rows: std::mem::take(&mut rows) };
            match engine.run(&HashModel, &job, None)? {
                ComputeResult::Rows(more) => rows = more,
                ComputeResult::Tokens(tokens) => return Ok(tokens),
                failed @ (ComputeResult::Failed { .. } | ComputeResult::Partial { .. }) => {
                    panic!("{failed:?}")
                }
            }
        }
        panic!("the last engine gives tokens");
    }

    fn answer(&mut self, spec: &SequenceSpec, tokens: u32) -> Vec<u32> {
        let open = StageCommand::Open { spec: spec.clone(), attempt: Attempt::FIRST, cached: Vec::new() };
        let first = part(spec, 0, &spec.history, 0);
        let mut answer = vec![self.step(vec![open], vec![first]).unwrap()[0].tokens[0].token];
        while (answer.len() as u32) < tokens && answer.last() != Some(&crate::model::STOP_TOKEN) {
            let last = *answer.last().unwrap();
            let start = spec.history.len() as u32 + answer.len() as u32 - 1;
            answer
                .push(self.step(Vec::new(), vec![part(spec, start, &[last], 0)]).unwrap()[0].tokens[0].token);
        }
        answer
    }
}

fn alone(spec: &SequenceSpec, max_tokens: u32) -> Vec<u32> {
    let question =
        Question { prompt: &spec.history, sampling: &spec.sampling, max_tokens, context_tokens: 128 };
    solo(&HashModel, LAYERS, &question)
}

#[test]
fn a_pipeline_gives_the_text_of_the_model_alone() {
    for (seed, ends) in [(1, &[4][..]), (2, &[1, 4]), (3, &[2, 3, 4]), (4, &[1, 2, 3, 4])] {
        let spec = spec((0..20).collect(), seed);
        assert_eq!(Pipeline::new(ends).answer(&spec, 30), alone(&spec, 30), "{ends:?}");
    }
}

#[test]
fn a_missing_or_double_layer_shows_in_the_text() {
    let spec = spec((0..20).collect(), 1);
    let right = alone(&spec, 30);
    let mut missing = Pipeline::new(&[2, 4]);
    missing.0[1].shard.layers.start = 3;
    let mut double = Pipeline::new(&[2, 4]);
    double.0[1].shard.layers.start = 1;
    for mut wrong in [missing, double] {
        assert_ne!(wrong.answer(&spec, 30), right);
    }
}

#[test]
fn right_drafts_are_taken_and_wrong_ones_end_the_answer() {
    let spec = spec((0..20).collect(), 9);
    let right = alone(&spec, 4);
    let open =
        || vec![StageCommand::Open { spec: spec.clone(), attempt: Attempt::FIRST, cached: Vec::new() }];
    let tokens = |drafts: &[u32]| {
        let all: Vec<u32> = spec.history.iter().chain(drafts).copied().collect();
        let parts = vec![part(&spec, 0, &all, drafts.len() as u32)];
        let results = Pipeline::new(&[2, 4]).step(open(), parts).unwrap();
        results[0].tokens.iter().map(|t| t.token).collect::<Vec<_>>()
    };
    assert_eq!(tokens(&right[..3]), right);
    assert_eq!(tokens(&[right[0], right[1] + 1]), right[..2]);
}

#[test]
fn kept_pages_continue_the_text_and_another_page_does_not() {
    let first = spec((0..33).collect(), 1);
    let keys: Vec<(u32, PageKey)> = vec![(0, PageKey(7)), (1, PageKey(8))];
    let mut pipeline = Pipeline::new(&[2, 4]);
    pipeline.answer(&first, 2);
    pipeline.step(vec![StageCommand::Keep { sequence: first.sequence, pages: keys }], Vec::new()).unwrap();
    let again = spec((0..33).chain([5]).collect(), 3);
    let mut with = |cached: Vec<PageKey>| {
        let start = cached.len() as u32 * PAGE_TOKENS;
        let open = StageCommand::Open { spec: again.clone(), attempt: Attempt::FIRST, cached };
        let rest = part(&again, start, &again.history[start as usize..], 0);
        let tokens = pipeline.step(vec![open], vec![rest]).unwrap()[0].tokens.clone();
        pipeline.step(vec![StageCommand::Close(again.sequence)], Vec::new()).unwrap();
        tokens[0].token
    };
    let right = alone(&again, 1)[0];
    assert_eq!(with(vec![PageKey(7), PageKey(8)]), right);
    assert_eq!(with(vec![PageKey(7)]), right);
    assert_ne!(with(vec![PageKey(8)]), right);
}

#[test]
fn a_position_twice_a_gap_and_rows_that_do_not_fit_are_misuse() {
    let spec = spec((0..20).collect(), 1);
    let misuse = |start: u32, truncate_to: Option<u32>| {
        let mut pipeline = Pipeline::new(&[4]);
        pipeline.answer(&spec, 1);
        let again = StepSequence { truncate_to, ..part(&spec, start, &[1], 0) };
        pipeline.step(Vec::new(), vec![again]).is_err()
    };
    assert!(misuse(19, None), "computed twice");
    assert!(misuse(21, None), "a gap");
    assert!(!misuse(19, Some(19)), "truncated before");
    let mut last = Pipeline::new(&[2, 4]).0.remove(1);
    let frame = self::frame(vec![part(&spec, 0, &[1], 0)]);
    let open = StageCommand::Open { spec, attempt: Attempt::FIRST, cached: Vec::new() };
    assert!(
        last.run(&HashModel, &StepJob { commands: vec![open], frame, rows: vec![0; 16].into() }, None)
            .is_err()
    );
}

#[test]
fn a_failed_step_leaves_the_sequence_where_it_was() {
    let spec = spec((0..20).collect(), 1);
    let mut engine = Engine::new(Shard::whole(LAYERS), 32);
    let job = |commands, parts| StepJob { commands, frame: frame(parts), rows: Default::default() };
    let open = vec![StageCommand::Open { spec: spec.clone(), attempt: Attempt::FIRST, cached: Vec::new() }];
    let chunk = StepSequence { sample: false, ..part(&spec, 0, &spec.history[..10], 0) };
    let rest = StepSequence { truncate_to: None, ..part(&spec, 10, &spec.history[10..], 0) };
    let failed =
        engine.run(&HashModel, &job(open, vec![chunk]), Some(StepFault::Fails(FailureKind::Device))).unwrap();
    assert!(matches!(failed, ComputeResult::Failed { kind: FailureKind::Device, .. }));
    let behind = engine.run(&HashModel, &job(Vec::new(), vec![rest]), None).unwrap();
    assert!(matches!(behind, ComputeResult::Failed { kind: FailureKind::Protocol, .. }));
    assert_eq!(engine.open[&spec.sequence].len, 0);
}

#[test]
fn rows_of_no_numbers_are_kept_until_they_are_cut_off() {
    let spec = spec((0..20).collect(), 1);
    let (mut well, mut ill) = (Pipeline::new(&[2, 4]).0.remove(0), Pipeline::new(&[2, 4]).0.remove(0));
    let open = StageCommand::Open { spec: spec.clone(), attempt: Attempt::FIRST, cached: Vec::new() };
    let rows = |engine: &mut Engine, commands, part, fault| {
        let job = StepJob { commands, frame: frame(vec![part]), rows: Default::default() };
        match engine.run(&HashModel, &job, fault).unwrap() {
            ComputeResult::Rows(rows) => rows,
            other => panic!("{other:?}"),
        }
    };
    let prompt = || part(&spec, 0, &spec.history, 0);
    let right = rows(&mut well, vec![open.clone()], prompt(), None);
    let none = rows(&mut ill, vec![open], prompt(), Some(StepFault::NoNumbers));
    assert!(none.as_chunks::<4>().0.iter().all(|bytes| f32::from_le_bytes(*bytes).is_nan()));
    let next = |engine: &mut Engine| rows(engine, Vec::new(), part(&spec, 20, &[5], 0), None);
    assert_ne!(next(&mut well), next(&mut ill), "it goes on from what it kept");
    assert_eq!(rows(&mut ill, Vec::new(), prompt(), None), right, "from the beginning");
}
