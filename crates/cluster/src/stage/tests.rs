use bytes::Bytes;
use exo_types::{SequenceSpec, StepSequence, WireDType};

use super::*;
use crate::testing::{node, placement, placement_id, result, seq, spec};
use crate::wire::{ComputeFault, Missing, MissingPart, TokenResult};

/// Stage `index` over the nodes 1, 2, 3, through which step 0 has gone.
fn stage(index: usize) -> StageMachine {
    wired(fresh(index))
}

/// The same before step 0; hidden rows of 2 floats, a vocabulary of 100.
fn fresh(index: usize) -> StageMachine {
    StageMachine::new(
        placement(1, 1, &[1, 2, 3]),
        index,
        StageGeometry { hidden: 2, vocab: 100, pages: 9, page_tokens: 2 },
    )
}

/// Lets step 0 go through it.
fn wired(mut s: StageMachine) -> StageMachine {
    let index = s.index;
    feed(&mut s, step_0(index));
    let last = s.is_last();
    done(&mut s, 0, if last { ComputeResult::Tokens(vec![]) } else { ComputeResult::Rows(Bytes::new()) });
    s
}

/// Step 0 as it comes to stage `index`: with the pages of those in front.
fn step_0(index: usize) -> StepMessage {
    let pages = vec![StagePages { pages: 5, page_tokens: 2 }; index];
    StepMessage { pages, ..step(index, 0, vec![], vec![]) }
}

fn part(n: u128, start: u32, tokens: &[u32]) -> StepSequence {
    let (sequence, principal) = (seq(n), Principal::LOCAL);
    let (tokens, sample, drafts, truncate_to) = (tokens.to_vec(), true, 0, None);
    StepSequence { sequence, principal, start, tokens, sample, drafts, truncate_to }
}

/// A step whose rows count up (to what is still a number), as many as its tokens need behind the first stage.
fn step(index: usize, step: u64, commands: Vec<StageCommand>, sequences: Vec<StepSequence>) -> StepMessage {
    let frame = StepFrame { placement: placement_id(1, 1), term: Term::FIRST, step, sequences };
    let bytes = if index == 0 { 0 } else { frame.token_count() * 8 };
    let rows = (0..bytes).map(|b| (b % 64) as u8).collect();
    StepMessage {
        stage: index as u32,
        commands,
        frame,
        failures: vec![],
        pages: vec![],
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
        rows_dtype: WireDType::F32,
        rows,
    }
}

fn open(n: u128) -> StageCommand {
    open_cached(n, &[])
}

fn open_cached(n: u128, cached: &[u64]) -> StageCommand {
    let cached = cached.iter().map(|&key| PageKey(key)).collect();
    StageCommand::Open { spec: spec(n, node(9), 4), attempt: Attempt::FIRST, cached }
}

/// Opens a sequence of this history behind kept pages.
fn open_behind(n: u128, history: &[u32], cached: &[u64]) -> StageCommand {
    let spec = SequenceSpec { history: history.to_vec(), ..spec(n, node(9), 4) };
    let cached = cached.iter().map(|&key| PageKey(key)).collect();
    StageCommand::Open { spec, attempt: Attempt::FIRST, cached }
}

fn keep(n: u128, pages: &[(u32, u64)]) -> StageCommand {
    let pages = pages.iter().map(|&(index, key)| (index, PageKey(key))).collect();
    StageCommand::Keep { sequence: seq(n), pages }
}

fn feed(s: &mut StageMachine, message: StepMessage) -> Vec<StageOutput> {
    let from = s.upstream();
    s.handle(Time::ZERO, StageInput::Step { from, message })
}

fn done(s: &mut StageMachine, step: u64, result: ComputeResult) -> Vec<StageOutput> {
    s.handle(Time::ZERO, StageInput::ComputeDone { term: s.term(), step, result })
}

#[test]
fn each_stage_adds_how_long_it_computed_a_step_and_waiting_counts_for_none() {
    let mut s = stage(1);
    let part_of = |start: u32, n: u64| match n {
        1 => step(1, 1, vec![open(1)], vec![part(1, start, &[3])]),
        _ => step(1, n, vec![], vec![part(1, start, &[3])]),
    };
    let at = |s: &mut StageMachine, ms: u64, input: StageInput| s.handle(Time::from_millis(ms), input);
    let given = |s: &mut StageMachine, ms: u64, n: u64| {
        let message = StepMessage { computed_us: vec![7000], ..part_of(n as u32 - 1, n) };
        at(s, ms, StageInput::Step { from: node(1), message })
    };
    let rows = || ComputeResult::Rows(Bytes::from(vec![0; 8]));
    let told = |out: Vec<StageOutput>| {
        let step = out.into_iter().find_map(|out| match out {
            StageOutput::Send { message: DataMessage::Step(step), .. } => Some(step),
            _ => None,
        });
        step.unwrap().computed_us
    };
    given(&mut s, 10, 1);
    // The second comes while the first is on the engine, and waits 20 ms for it.
    given(&mut s, 20, 2);
    let term = s.term();
    let first = at(&mut s, 40, StageInput::ComputeDone { term, step: 1, result: rows() });
    assert_eq!(told(first), [7000, 30_000]);
    let second = at(&mut s, 45, StageInput::ComputeDone { term, step: 2, result: rows() });
    assert_eq!(told(second), [7000, 5000]);
    // A stage in front that tells of none, or of too many, shifts nobody else's.
    let message = StepMessage { computed_us: vec![1, 2, 3], ..part_of(2, 3) };
    at(&mut s, 50, StageInput::Step { from: node(1), message });
    let third = at(&mut s, 51, StageInput::ComputeDone { term, step: 3, result: rows() });
    assert_eq!(told(third), [1, 1000]);
}

/// Outputs as one line each.
fn show(out: &[StageOutput]) -> Vec<String> {
    let ids = |frame: &StepFrame| -> String {
        frame.sequences.iter().map(|s| format!(" {}@{}", s.sequence.request.0, s.start)).collect()
    };
    let line = |o: &StageOutput| match o {
        StageOutput::Compute { frame, rows, .. } => {
            format!("compute {}:{} rows {}", frame.step, ids(frame), rows.len())
        }
        StageOutput::Rewire { term, .. } => format!("rewire for term {term}"),
        StageOutput::NotFinite { request, .. } => format!("no number for {}", request.0),
        StageOutput::Send { to, message } => match message {
            DataMessage::Step(s) => format!(
                "step {} to {}:{} rows {} failures {}",
                s.frame.step,
                to.0[0],
                ids(&s.frame),
                s.rows.len(),
                s.failures.len()
            ),
            DataMessage::Tokens(t) => {
                let (results, failures) = (t.results.len(), t.failures.len());
                format!("tokens {} to {}: {results} failures {failures}", t.step, to.0[0])
            }
            DataMessage::StepFailed(f) => format!("failed {} to {}: {:?}", f.step, to.0[0], f.kind),
            DataMessage::PipelineBroken { stage, why, .. } => {
                format!("broken to {}: stage {stage}: {why}", to.0[0])
            }
            DataMessage::NotWired { step, missing, .. } => {
                format!("not wired for {step} to {}: {missing}", to.0[0])
            }
            DataMessage::Undelivered { step, sequences, .. } => {
                format!("tokens {step} of {} not delivered, to {}", sequences.len(), to.0[0])
            }
            other => format!("unexpected {other:?}"),
        },
    };
    out.iter().map(line).collect()
}

#[test]
fn a_middle_stage_computes_and_passes_on() {
    let mut s = stage(1);
    let out = feed(&mut s, step(1, 1, vec![open(1)], vec![part(1, 0, &[4, 5])]));
    assert_eq!(show(&out), ["compute 1: 1@0 rows 16"]);
    let out = done(&mut s, 1, ComputeResult::Rows(vec![0; 16].into()));
    assert_eq!(show(&out), ["step 1 to 3: 1@0 rows 16 failures 0"]);
}

#[test]
fn the_last_stage_tells_the_scheduler_and_each_driver_its_own() {
    let mut s = stage(2);
    let mut other = spec(2, node(8), 4);
    other.driver = node(8);
    let commands = vec![open(1), StageCommand::Open { spec: other, attempt: Attempt(3), cached: vec![] }];
    feed(&mut s, step(2, 1, commands, vec![part(1, 0, &[4]), part(2, 0, &[5])]));
    let out = done(&mut s, 1, ComputeResult::Tokens(vec![result(1, 1, 7), result(2, 1, 8)]));
    let expected =
        ["tokens 1 to 1: 2 failures 0", "tokens 1 to 8: 1 failures 0", "tokens 1 to 9: 1 failures 0"];
    assert_eq!(show(&out), expected);
    let StageOutput::Send { message: DataMessage::Tokens(all), .. } = &out[0] else { panic!("{out:?}") };
    let attempts: Vec<_> = all.results.iter().map(|r| r.attempt).collect();
    assert_eq!(attempts, [Attempt(1), Attempt(3)], "the stage knows of which submission");
}

#[test]
fn a_sequence_that_cannot_go_on_is_lost_alone_and_its_driver_hears_why() {
    let mut s = stage(2);
    let other =
        |n, by| StageCommand::Open { spec: spec(n, node(by), 4), attempt: Attempt(2), cached: vec![] };
    let parts = [1, 2, 3].map(|n| part(n, 0, &[4])).to_vec();
    feed(&mut s, step(2, 1, vec![open(1), other(2, 8), other(3, 7)], parts));
    let failed = |n, message: &str| {
        let (sequence, kind, message) = (seq(n), FailureKind::Constraint, message.to_owned());
        FailedSequence { sequence, kind, message, is_not_finite: false }
    };
    let failed = vec![failed(2, "no such token"), failed(3, "no grammar")];
    let out = done(&mut s, 1, ComputeResult::Partial { results: vec![result(1, 1, 7)], failed });
    let expected = [
        "failed 1 to 7: Constraint",
        "failed 1 to 8: Constraint",
        "tokens 1 to 1: 1 failures 1",
        "tokens 1 to 9: 1 failures 0",
    ];
    assert_eq!(show(&out), expected);
    let StageOutput::Send { message: DataMessage::StepFailed(own), .. } = &out[1] else { panic!("{out:?}") };
    assert_eq!(own.why, ComputeFault::Engine("no such token".to_owned()));
    assert_eq!(own.sequences, [(seq(2), Attempt(2))]);
    let StageOutput::Send { message: DataMessage::Tokens(all), .. } = &out[2] else { panic!("{out:?}") };
    assert_eq!(all.failures[0].sequences, [(seq(2), Attempt(2)), (seq(3), Attempt(2))]);
    assert_eq!(all.failures[0].why, ComputeFault::Several, "what one is told is not the others'");
    // It is left out until it is closed.
    let parts = [1, 2, 3].map(|n| part(n, 1, &[4])).to_vec();
    assert_eq!(show(&feed(&mut s, step(2, 2, vec![], parts))), ["compute 2: 1@1 rows 8"]);
}

#[test]
fn failures_of_other_sequences_than_those_of_the_step_are_a_failed_step() {
    let mut s = stage(2);
    feed(&mut s, step(2, 1, vec![open(1)], vec![part(1, 0, &[4])]));
    let (sequence, kind, message) = (seq(2), FailureKind::Constraint, "no grammar".to_owned());
    let failed = vec![FailedSequence { sequence, kind, message, is_not_finite: true }];
    let out = done(&mut s, 1, ComputeResult::Partial { results: vec![result(1, 1, 7)], failed });
    assert_eq!(show(&out), ["failed 1 to 9: Device", "tokens 1 to 1: 0 failures 1"]);
}

#[test]
fn tokens_go_once_to_the_scheduler_and_again_only_to_drivers_on_third_nodes() {
    const B: u128 = 64;
    // Every other driver is on the scheduler's node, the others are on two nodes more.
    let driver = |n: u128| if n.is_multiple_of(2) { 1 } else { 8 + (n % 4) as u8 / 2 };
    let placement = Placement { slots: 64, ..placement(1, 1, &[1, 2, 3]) };
    let mut s = StageMachine::new(placement, 2, fresh(2).geometry);
    s = wired(s);
    let commands = (0..B).map(|n| StageCommand::Open {
        spec: spec(n, node(driver(n)), 4),
        attempt: Attempt::FIRST,
        cached: vec![],
    });
    feed(&mut s, step(2, 1, commands.collect(), (0..B).map(|n| part(n, 0, &[4])).collect()));
    let results = (0..B).map(|n| TokenResult { forced: vec![8, 9], ..result(n, 1, 7) }).collect();
    let out = done(&mut s, 1, ComputeResult::Tokens(results));
    let mut sent = BTreeMap::new();
    for output in &out {
        let StageOutput::Send { to, message: DataMessage::Tokens(tokens) } = output else {
            panic!("{output:?}")
        };
        let before = sent.insert(to.0[0], tokens.results.len());
        assert_eq!(before, None, "one message to each node");
        let is_own = |r: &TokenResult| *to == node(1) || *to == node(driver(r.sequence.request.0));
        assert!(tokens.results.iter().all(is_own), "{tokens:?}");
        let is_told = |r: &TokenResult| r.forced.is_empty() == (*to != node(1));
        assert!(tokens.results.iter().all(is_told), "forced tokens are for the scheduler: {tokens:?}");
    }
    assert_eq!(sent, BTreeMap::from([(1, 64), (8, 16), (9, 16)]), "96 results for 64 tokens");
}

#[test]
fn steps_wait_their_turn_and_repeated_ones_are_ignored() {
    let mut s = stage(0);
    feed(&mut s, step(0, 1, vec![open(1)], vec![part(1, 0, &[4])]));
    assert!(feed(&mut s, step(0, 2, vec![], vec![part(1, 1, &[4])])).is_empty(), "one at a time");
    assert!(feed(&mut s, step(0, 1, vec![open(1)], vec![part(1, 0, &[4])])).is_empty(), "sent again");
    let out = done(&mut s, 1, ComputeResult::Rows(vec![0; 8].into()));
    assert_eq!(show(&out), ["step 1 to 2: 1@0 rows 8 failures 0", "compute 2: 1@1 rows 0"]);
}

#[test]
fn rows_with_an_element_that_is_no_number_are_a_failure_of_this_stages_device() {
    for (bad, value) in [(true, f32::NAN), (true, f32::INFINITY), (true, f32::NEG_INFINITY), (false, 1e8)] {
        let mut s = stage(1);
        feed(&mut s, step(1, 1, vec![open(1)], vec![part(1, 0, &[4, 5])]));
        let rows: Vec<u8> = [1.0, 2.0, value, -3.0].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        let out = show(&done(&mut s, 1, ComputeResult::Rows(rows.into())));
        match bad {
            true => {
                let expected = ["no number for 1", "failed 1 to 9: Device", "step 1 to 3: rows 0 failures 1"];
                assert_eq!(out, expected, "{value}");
            }
            false => assert_eq!(out, ["step 1 to 3: 1@0 rows 16 failures 0"], "{value}"),
        }
    }
}

#[test]
fn logits_that_are_no_numbers_are_a_failure_of_this_stages_device_and_a_grammar_is_none() {
    for is_not_finite in [true, false] {
        let mut s = stage(2);
        let parts = vec![part(1, 0, &[4]), part(2, 0, &[4])];
        feed(&mut s, step(2, 1, vec![open(1), open(2)], parts));
        let (sequence, kind, message) = (seq(2), FailureKind::Device, "no number".to_owned());
        let failed = vec![FailedSequence { sequence, kind, message, is_not_finite }];
        let out = done(&mut s, 1, ComputeResult::Partial { results: vec![result(1, 1, 7)], failed });
        let says = show(&out).contains(&"no number for 2".to_owned());
        assert_eq!(says, is_not_finite, "{out:?}");
    }
}

/// Step 1 for the second stage, of the first tokens of two sequences; an element of the second row is this.
fn two_with(value: f32) -> StepMessage {
    let rows = [1.0, 2.0, 3.0, value].iter().flat_map(|x: &f32| x.to_le_bytes()).collect::<Vec<u8>>();
    let step = step(1, 1, vec![open(1), open(2)], vec![part(1, 0, &[4]), part(2, 0, &[5])]);
    StepMessage { rows: rows.into(), ..step }
}

#[test]
fn what_is_finite_and_too_great_fails_the_step_and_does_not_count_against_the_device() {
    let mut s = stage(1);
    feed(&mut s, step(1, 1, vec![open(1)], vec![part(1, 0, &[4])]));
    let rows: Vec<u8> = [1.0, 3e38].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    let out = done(&mut s, 1, ComputeResult::Rows(rows.into()));
    assert_eq!(show(&out), ["failed 1 to 9: Device", "step 1 to 3: rows 0 failures 1"]);
}

#[test]
fn what_is_no_number_names_the_sequence_of_its_row_and_the_same_prompt_by_the_same_hash() {
    let named = |history: &[u32]| {
        let mut s = stage(1);
        let own = SequenceSpec { history: history.to_vec(), prompt_tokens: 2, ..spec(2, node(9), 4) };
        let open_own = StageCommand::Open { spec: own, attempt: Attempt::FIRST, cached: vec![] };
        let parts = vec![part(1, 0, &[4, 5]), part(2, 0, &[6])];
        feed(&mut s, step(1, 1, vec![open(1), open_own], parts));
        let rows: Vec<u8> =
            [0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        match &done(&mut s, 1, ComputeResult::Rows(rows.into()))[0] {
            StageOutput::NotFinite { request, prompt } => (request.0, *prompt),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(named(&[6, 7]).0, 2);
    assert_eq!(named(&[6, 7]), named(&[6, 7, 8]), "what was generated is no part of the prompt");
    assert_ne!(named(&[6, 7]), named(&[6, 8]));
}

#[test]
fn rows_that_come_with_what_is_no_number_blame_who_sent_them_and_are_not_computed() {
    // The last is finite: computing with it gives what is not.
    for value in [f32::INFINITY, -1.1e8, 3e38] {
        let mut s = stage(1);
        let out = feed(&mut s, two_with(value));
        assert_eq!(show(&out), ["failed 1 to 9: Device", "compute 1: rows 0"], "{value}");
    }
    assert_eq!(show(&feed(&mut stage(1), two_with(-1e8))), ["compute 1: 1@0 2@0 rows 16"]);
    let mut s = stage(1);
    let out = feed(&mut s, two_with(f32::NAN));
    assert_eq!(show(&out), ["failed 1 to 9: Device", "compute 1: rows 0"]);
    let StageOutput::Send { message: DataMessage::StepFailed(told), .. } = &out[0] else { panic!("{out:?}") };
    assert_eq!((told.stage, told.sequences.len()), (0, 2));
    assert_eq!(told.why, ComputeFault::SentNotFinite { stage: 0, row: 1 });
    // Its own device has done nothing.
    let out = done(&mut s, 1, ComputeResult::Rows(Bytes::new()));
    assert_eq!(show(&out), ["step 1 to 3: rows 0 failures 1"]);
    // They are left out until they are closed.
    let next = step(1, 2, vec![], vec![part(1, 1, &[4])]);
    assert_eq!(show(&feed(&mut s, next)), ["compute 2: rows 0"]);
}

#[test]
fn a_failed_step_goes_on_empty_and_its_sequences_are_left_out_until_closed() {
    let mut s = stage(1);
    feed(&mut s, step(1, 1, vec![open(1), open(2)], vec![part(1, 0, &[4])]));
    let (kind, message) = (FailureKind::OutOfMemory, "full".to_owned());
    let out = done(&mut s, 1, ComputeResult::Failed { kind, message });
    assert_eq!(show(&out), ["failed 1 to 9: OutOfMemory", "step 1 to 3: rows 0 failures 1"]);

    // The next chunk of 1 was on its way already: its row is dropped, that of 2 stays.
    let out = feed(&mut s, step(1, 2, vec![], vec![part(1, 1, &[4]), part(2, 0, &[5])]));
    let StageOutput::Compute { rows, .. } = &out[0] else { panic!("{out:?}") };
    assert_eq!(
        (show(&out)[0].as_str(), &rows[..]),
        ("compute 2: 2@0 rows 8", &[8, 9, 10, 11, 12, 13, 14, 15][..])
    );
    done(&mut s, 2, ComputeResult::Rows(vec![0; 8].into()));
    feed(&mut s, step(1, 3, vec![StageCommand::Close(seq(1))], vec![]));
    assert_eq!(s.sequences_open(), 1);
}

#[test]
fn an_engine_that_answers_something_else_fails_the_step() {
    for (wrong, what) in [(result(1, 5, 7), "a position"), (result(1, 1, 100), "beyond the vocabulary")] {
        let mut s = stage(2);
        feed(&mut s, step(2, 1, vec![open(1)], vec![part(1, 0, &[4])]));
        let out = done(&mut s, 1, ComputeResult::Tokens(vec![wrong]));
        assert_eq!(show(&out), ["failed 1 to 9: Device", "tokens 1 to 1: 0 failures 1"], "{what}");
    }
}

#[test]
fn a_step_of_another_placement_leaves_nothing_behind() {
    let mut s = stage(1);
    let mut old = step(1, 1, vec![], vec![]);
    old.frame.placement = placement_id(1, 3);
    assert!(feed(&mut s, old).is_empty());
    assert!(
        s.handle(Time::ZERO, StageInput::Step { from: node(7), message: step(1, 1, vec![], vec![]) })
            .is_empty()
    );
}

/// What a first step breaks the pipeline with.
fn broken(index: usize, message: StepMessage) -> String {
    let mut s = stage(index);
    let out = show(&feed(&mut s, message));
    assert!(feed(&mut s, step(index, 1, vec![], vec![])).is_empty(), "a broken stage is silent");
    out.join("; ")
}

#[test]
fn a_step_that_does_not_fit_breaks_the_pipeline_with_numbers() {
    let check = |index, message, expected: &str| {
        let got = broken(index, message);
        assert!(got.starts_with("broken to 1") && got.contains(expected), "{got}");
    };
    check(1, step(1, 2, vec![], vec![]), "step 2 arrived, 1 was next");
    check(1, step(1, 1, vec![], vec![part(1, 0, &[1])]), "computes unopened");
    check(1, step(1, 1, vec![open(1), open(1)], vec![]), "opens again");
    check(1, step(1, 1, vec![open(1), open(2), open(3), open(4), open(5)], vec![]), "no slot");
    check(1, step(1, 1, vec![StageCommand::Close(seq(1))], vec![]), "closes unknown");
    check(1, step(1, 1, vec![open(1)], vec![part(1, 3, &[1])]), "at 3..4, this stage holds 0");
    check(1, step(1, 1, vec![open(1)], vec![part(1, 0, &[1; 65])]), "at 0..65");
    check(0, step(0, 1, vec![open(1)], vec![part(1, 0, &[100])]), "token 100, the vocabulary has 100");
    let mut short = step(1, 1, vec![open(1)], vec![part(1, 0, &[1])]);
    short.rows.truncate(short.rows.len() - 1);
    check(1, short, "carries 7 bytes of rows, 8 belong");
    let mut foreign = part(1, 0, &[1]);
    foreign.principal = Principal([3; 16]);
    check(1, step(1, 1, vec![open(1)], vec![foreign]), "wrong principal");
}

#[test]
fn a_sequence_may_begin_with_pages_kept_of_another() {
    let mut s = stage(0);
    feed(&mut s, step(0, 1, vec![open(1)], vec![part(1, 0, &[1, 2, 3])]));
    done(&mut s, 1, ComputeResult::Rows(vec![0; 24].into()));
    let commands = vec![keep(1, &[(0, 7)]), StageCommand::Close(seq(1)), open_behind(2, &[1, 2, 3], &[7])];
    let out = feed(&mut s, step(0, 2, commands, vec![part(2, 2, &[3])]));
    assert_eq!((show(&out)[0].as_str(), s.pages_kept()), ("compute 2: 2@2 rows 0", 1));
    done(&mut s, 2, ComputeResult::Rows(vec![0; 8].into()));
    feed(&mut s, step(0, 3, vec![StageCommand::Forget(vec![PageKey(7)])], vec![]));
    assert_eq!(s.pages_kept(), 0);
}

#[test]
fn pages_that_cannot_be_kept_or_shared_break_the_pipeline_by_name() {
    // Three positions are computed: one full page of two tokens.
    let check = |commands: Vec<StageCommand>, expected: &str| {
        let mut s = stage(0);
        feed(&mut s, step(0, 1, vec![open(1)], vec![part(1, 0, &[1, 2, 3])]));
        done(&mut s, 1, ComputeResult::Rows(vec![0; 24].into()));
        let got = show(&feed(&mut s, step(0, 2, commands, vec![]))).join("; ");
        assert!(got.starts_with("broken to 1") && got.contains(expected), "{got}");
    };
    check(vec![keep(1, &[(1, 7)])], "step 2 keeps an unfinished page as page 7");
    check(vec![keep(2, &[(0, 7)])], "keeps pages of unopened");
    check(vec![keep(1, &[(0, 7), (0, 7)])], "keeps another page as page 7");
    let same: Vec<(u32, u64)> = (7..17).map(|key| (0, key)).collect();
    check(vec![keep(1, &same)], "keeps more pages than there are, the last as page 16");
    check(vec![open_cached(2, &[7])], "opens a sequence with unkept page 7");
    check(vec![StageCommand::Forget(vec![PageKey(7)])], "forgets unkept page 7");
    let mut foreign = spec(2, node(9), 4);
    (foreign.principal, foreign.history) = (Principal([3; 16]), vec![1, 2, 3]);
    let open = StageCommand::Open { spec: foreign, attempt: Attempt::FIRST, cached: vec![PageKey(7)] };
    check(vec![keep(1, &[(0, 7)]), open], "opens a sequence of other content with page 7");
    let other = open_behind(2, &[1, 3, 3], &[7]);
    check(vec![keep(1, &[(0, 7)]), other], "opens a sequence of other content with page 7");
    let many = [(0, 7), (0, 8), (0, 9)];
    check(vec![keep(1, &many), open_cached(2, &[7, 8, 9])], "begins behind the history");
}

#[test]
fn a_truncated_sequence_goes_on_from_where_it_was_cut() {
    let mut s = stage(0);
    feed(&mut s, step(0, 1, vec![open(1)], vec![part(1, 0, &[1, 2, 3])]));
    done(&mut s, 1, ComputeResult::Rows(vec![0; 24].into()));
    let mut again = part(1, 1, &[9]);
    again.truncate_to = Some(1);
    assert_eq!(show(&feed(&mut s, step(0, 2, vec![], vec![again]))), ["compute 2: 1@1 rows 0"]);
}

#[test]
fn more_steps_than_the_pipeline_has_in_flight_break_it() {
    let mut s = stage(0);
    feed(&mut s, step(0, 1, vec![open(1)], vec![part(1, 0, &[1])]));
    let out: Vec<String> = (2..=5).flat_map(|n| show(&feed(&mut s, step(0, n, vec![], vec![])))).collect();
    assert!(out.len() == 1 && out[0].contains("4 steps are waiting"), "{out:?}");
}

/// The pages in what a stage sends, as (pages, tokens of a page).
fn pages(out: &[StageOutput]) -> Vec<(u32, u32)> {
    let pages = match out {
        [StageOutput::Send { message: DataMessage::Step(m), .. }] => &m.pages,
        [StageOutput::Send { message: DataMessage::Tokens(m), .. }] => &m.pages,
        other => panic!("{other:?}"),
    };
    pages.iter().map(|p| (p.pages, p.page_tokens)).collect()
}

#[test]
fn step_0_takes_the_way_of_all_steps_and_collects_the_pages() {
    let mut s = fresh(1);
    assert_eq!(show(&feed(&mut s, step_0(1))), ["compute 0: rows 0"]);
    let out = done(&mut s, 0, ComputeResult::Rows(Bytes::new()));
    assert_eq!(
        (show(&out), pages(&out)),
        (vec!["step 0 to 3: rows 0 failures 0".into()], vec![(5, 2), (9, 2)])
    );
    let mut s = fresh(2);
    feed(&mut s, step_0(2));
    let out = done(&mut s, 0, ComputeResult::Tokens(vec![]));
    let expected = (vec!["tokens 0 to 1: 0 failures 0".into()], vec![(5, 2), (5, 2), (9, 2)]);
    assert_eq!((show(&out), pages(&out)), expected);
    let out = feed(&mut s, step(2, 1, vec![open(1)], vec![part(1, 0, &[4])]));
    assert_eq!(show(&out), ["compute 1: 1@0 rows 8"]);
}

#[test]
fn step_0_may_come_again_until_step_1_has_come() {
    let mut s = stage(1);
    assert_eq!(show(&feed(&mut s, step_0(1))), ["compute 0: rows 0"]);
    assert!(feed(&mut s, step_0(1)).is_empty(), "it waits");
    assert!(feed(&mut s, step_0(1)).is_empty(), "one waits already");
    assert_eq!(done(&mut s, 0, ComputeResult::Rows(Bytes::new())).len(), 2, "sent on, and the next computed");
    done(&mut s, 0, ComputeResult::Rows(Bytes::new()));
    feed(&mut s, step(1, 1, vec![open(1)], vec![part(1, 0, &[4])]));
    let out = feed(&mut s, step_0(1));
    assert_eq!(show(&out), ["broken to 1: stage 1: step 0 arrived, 2 was next"], "of another scheduler");
    assert_eq!(
        show(&feed(&mut s, step_0(1))),
        show(&out),
        "said again: the first time it may have been lost"
    );
    let from_another = StageInput::Step { from: node(7), message: step_0(1) };
    assert!(s.handle(Time::ZERO, from_another).is_empty());
}

#[test]
fn a_step_before_step_0_and_step_0_past_too_few_stages_end_the_placement() {
    let mut s = fresh(1);
    let out = feed(&mut s, step(1, 7, vec![], vec![]));
    assert_eq!(show(&out), ["broken to 1: stage 1: step 7 arrived, 0 was next"]);
    let mut s = fresh(1);
    let out = feed(&mut s, step_0(2).clone()); // names stage 2
    assert!(out.is_empty());
    let out = feed(&mut s, StepMessage { stage: 1, ..step_0(2) });
    assert_eq!(show(&out), ["broken to 1: stage 1: step 0 comes with the pages of 2 stages, 1 are in front"]);
}

#[test]
fn an_engine_that_fails_step_0_does_not_let_it_past() {
    let mut s = fresh(1);
    feed(&mut s, step_0(1));
    let failed = ComputeResult::Failed { kind: FailureKind::Device, message: "no device".into() };
    assert_eq!(show(&done(&mut s, 0, failed)), ["not wired for 0 to 1: stage 1: no device"]);
}

#[test]
fn a_step_that_found_no_link_is_reported_against_its_direction() {
    let mut s = stage(1);
    let kind = |stage, number| {
        let (placement, term) = (placement_id(1, number), Term::FIRST);
        MessageKind::Step { placement, term, stage, step: 4 }
    };
    let undeliverable = |to: u8, kind| {
        let (to, waited_ms) = (node(to), 2050);
        StageInput::Undeliverable(Undeliverable { to, kind, waited_ms })
    };
    let out = s.handle(Time::ZERO, undeliverable(3, kind(2, 1)));
    let why = format!("stage 1: the data link to node {} was not open for 2050 ms", node(3));
    assert_eq!(show(&out), [format!("not wired for 4 to 1: {why}")]);
    assert!(s.handle(Time::ZERO, undeliverable(3, kind(1, 1))).is_empty(), "another stage's");
    assert!(s.handle(Time::ZERO, undeliverable(3, kind(2, 9))).is_empty(), "another placement's");
    // Tokens: of the link to the scheduler, or to one driver.
    let mut s = stage(2);
    let tokens = || {
        let (placement, term) = (placement_id(1, 1), Term::FIRST);
        MessageKind::Tokens { placement, term, step: 4, sequences: vec![(seq(1), Attempt::FIRST)] }
    };
    let out = s.handle(Time::ZERO, undeliverable(1, tokens()));
    assert!(show(&out)[0].starts_with("not wired for 4 to 2: stage 2: the data link"), "{out:?}");
    let out = s.handle(Time::ZERO, undeliverable(9, tokens()));
    assert_eq!(show(&out), ["tokens 4 of 1 not delivered, to 2"]);
}

#[test]
fn reports_go_from_stage_to_stage_up_to_the_scheduler() {
    let report = |from: u8| {
        let (placement, term, stage, step) = (placement_id(1, 1), Term::FIRST, 3, 0);
        let missing = Missing { stage, what: MissingPart::Engine(ComputeFault::Several), waited_ms: 0 };
        let message = DataMessage::NotWired { placement, term, stage, step, missing };
        StageInput::Report { from: node(from), message }
    };
    let geometry = StageGeometry { hidden: 2, vocab: 100, pages: 9, page_tokens: 2 };
    // Node 2 has two stages: the way up from either leads to node 1.
    for index in [1, 2] {
        let mut s = StageMachine::new(placement(1, 1, &[1, 2, 2, 4]), index, geometry);
        let told = format!("not wired for 0 to 1: stage 3: {}", ComputeFault::Several);
        assert_eq!(show(&s.handle(Time::ZERO, report(4))), [told]);
        assert!(s.handle(Time::ZERO, report(2)).is_empty(), "of this node itself: it would go in a circle");
        assert!(s.handle(Time::ZERO, report(7)).is_empty(), "of a node without a stage");
    }
}

#[test]
fn a_link_that_ends_behind_a_step_ends_the_term() {
    let lost = |s: &mut StageMachine, n: u8| show(&s.handle(Time::ZERO, StageInput::LinkLost(node(n))));
    // Of the last stage: steps come from node 2, tokens go to node 1.
    for (index, used, unused) in [(0, 2, 3), (1, 1, 9), (1, 3, 9), (2, 2, 9), (2, 1, 9)] {
        let mut s = stage(index);
        assert!(lost(&mut s, used).is_empty(), "step 0 comes again");
        feed(&mut s, step(index, 1, vec![open(1)], vec![part(1, 0, &[4])]));
        assert!(lost(&mut s, unused).is_empty());
        let out = lost(&mut s, used);
        assert!(out[0].contains("ended behind step 1"), "{index}: {out:?}");
    }
}

/// The same step in another term.
fn in_term(term: u32, mut message: StepMessage) -> StepMessage {
    message.frame.term = Term(term);
    message
}

/// Stage 1 in the middle of term 1: sequence 1 is open, a page is kept, step 2 is on the engine and step 3
/// waits.
fn busy() -> StageMachine {
    let mut s = stage(1);
    feed(&mut s, step(1, 1, vec![open(1)], vec![part(1, 0, &[4, 5])]));
    done(&mut s, 1, ComputeResult::Rows(vec![0; 16].into()));
    feed(&mut s, step(1, 2, vec![keep(1, &[(0, 7)])], vec![part(1, 2, &[4])]));
    feed(&mut s, step(1, 3, vec![], vec![part(1, 3, &[4])]));
    assert_eq!((s.sequences_open(), s.pages_kept()), (1, 1));
    s
}

#[test]
fn step_0_of_a_higher_term_empties_the_stage_and_waits_for_its_engine() {
    let mut s = busy();
    assert_eq!(show(&feed(&mut s, in_term(3, step_0(1)))), ["rewire for term 3"]);
    assert_eq!((s.term(), s.sequences_open(), s.pages_kept()), (Term(3), 0, 0));
    let late =
        StageInput::ComputeDone { term: Term(1), step: 2, result: ComputeResult::Rows(vec![0; 8].into()) };
    assert!(s.handle(Time::ZERO, late).is_empty(), "of a step of term 1");
    assert!(feed(&mut s, in_term(3, step_0(1))).is_empty(), "one waits already");
    assert!(s.handle(Time::ZERO, StageInput::Rewired { term: Term(2) }).is_empty(), "not for this term");
    let out = s.handle(Time::ZERO, StageInput::Rewired { term: Term(3) });
    assert_eq!(show(&out), ["compute 0: rows 0"]);
    assert_eq!(show(&done(&mut s, 0, ComputeResult::Rows(Bytes::new()))), ["step 0 to 3: rows 0 failures 0"]);
    let first = in_term(3, step(1, 1, vec![open(1)], vec![part(1, 0, &[4])]));
    assert_eq!(show(&feed(&mut s, first)), ["compute 1: 1@0 rows 8"], "it counts from the beginning");
}

#[test]
fn pages_that_step_0_names_outlive_the_term_and_go_on_with_it() {
    let mut s = busy();
    let keys = |keys: &[u64]| -> Vec<PageKey> { keys.iter().map(|&key| PageKey(key)).collect() };
    let first = StepMessage { kept: keys(&[6, 7]), ..step_0(1) };
    let out = feed(&mut s, in_term(2, first));
    assert_eq!(out, [StageOutput::Rewire { term: Term(2), keep: keys(&[7]) }], "6 is not kept here");
    s.handle(Time::ZERO, StageInput::Rewired { term: Term(2) });
    let out = done(&mut s, 0, ComputeResult::Rows(Bytes::new()));
    let [StageOutput::Send { message: DataMessage::Step(on), .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(on.kept, keys(&[7]));
    let behind = in_term(2, step(1, 1, vec![open_behind(1, &[4, 5, 4], &[7])], vec![part(1, 2, &[4])]));
    assert_eq!(show(&feed(&mut s, behind)), ["compute 1: 1@2 rows 8"], "a page holds two tokens");
    let out = feed(&mut s, in_term(3, step_0(1)));
    assert_eq!(out, [StageOutput::Rewire { term: Term(3), keep: vec![] }], "what is not named is forgotten");
}

#[test]
fn of_a_term_that_broke_by_itself_nothing_is_kept() {
    let mut s = busy();
    feed(&mut s, step(1, 9, vec![], vec![])); // out of order
    let out = feed(&mut s, in_term(2, StepMessage { kept: vec![PageKey(7)], ..step_0(1) }));
    assert_eq!(out, [StageOutput::Rewire { term: Term(2), keep: vec![] }]);
}

/// It has not said more than step 0 in this term, so its numbers tell nothing: what it does not name does.
#[test]
fn a_scheduler_that_was_started_anew_and_knows_nothing_of_kept_pages_begins_the_next_term() {
    let mut s = busy();
    let named = || StepMessage { kept: vec![PageKey(7)], ..step_0(1) };
    feed(&mut s, in_term(2, named()));
    s.handle(Time::ZERO, StageInput::Rewired { term: Term(2) });
    let again = show(&feed(&mut s, in_term(2, named())));
    assert!(!again.iter().any(|line| line.starts_with("broken")), "its own says it again: {again:?}");
    let out = show(&feed(&mut s, in_term(2, step_0(1))));
    assert!(out[0].starts_with("broken to 1"), "{out:?}");
    let out = feed(&mut s, in_term(3, step_0(1)));
    assert_eq!(out, [StageOutput::Rewire { term: Term(3), keep: vec![] }]);
}

#[test]
fn a_step_of_a_lower_term_is_ignored() {
    let mut s = busy();
    feed(&mut s, in_term(2, step_0(1)));
    s.handle(Time::ZERO, StageInput::Rewired { term: Term(2) });
    assert!(feed(&mut s, step(1, 4, vec![], vec![])).is_empty());
    let report = DataMessage::NotWired {
        placement: placement_id(1, 1),
        term: Term(1),
        stage: 2,
        step: 4,
        missing: Missing { stage: 2, what: MissingPart::Engine(ComputeFault::Several), waited_ms: 0 },
    };
    let out = s.handle(Time::ZERO, StageInput::Report { from: node(3), message: report });
    assert!(out.is_empty(), "nor is what a later stage says of it passed on");
}

#[test]
fn any_other_step_of_a_higher_term_is_answered_not_wired() {
    let mut s = busy();
    let out = feed(&mut s, in_term(2, step(1, 4, vec![], vec![])));
    let why = "stage 1: it is in term 1, and has not seen step 0 of term 2";
    assert_eq!(show(&out), [format!("not wired for 4 to 1: {why}")]);
    let StageOutput::Send { message: DataMessage::NotWired { term, .. }, .. } = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!((*term, s.term(), s.sequences_open()), (Term(2), Term(1), 1));
}

#[test]
fn a_scheduler_that_was_started_anew_hears_that_its_term_is_over() {
    let told = |out: &[StageOutput]| match out {
        [StageOutput::Send { message: DataMessage::PipelineBroken { term, kind, .. }, .. }] => (*term, *kind),
        other => panic!("{other:?}"),
    };
    let lost = FailureKind::StageLost;
    assert_eq!(told(&feed(&mut busy(), step_0(1))), (Term(1), lost), "behind step 1");
    let mut broken = busy();
    broken.handle(Time::ZERO, StageInput::LinkLost(node(1)));
    assert_eq!(told(&feed(&mut broken, step_0(1))), (Term(1), lost), "broken");
    let mut ahead = busy();
    feed(&mut ahead, in_term(3, step_0(1)));
    assert_eq!(told(&feed(&mut ahead, in_term(2, step_0(1)))), (Term(2), lost), "in a later term");
    ahead.handle(Time::ZERO, StageInput::Rewired { term: Term(3) });
    feed(&mut ahead, in_term(3, step(1, 7, vec![], vec![]))); // no step follows step 0 so
    assert_eq!(told(&feed(&mut ahead, in_term(1, step_0(1)))), (Term(1), lost), "broken in a later term");
    assert_eq!(ahead.term(), Term(3));
}

#[test]
fn a_broken_stage_is_whole_again_in_the_next_term() {
    let mut s = busy();
    s.handle(Time::ZERO, StageInput::LinkLost(node(3)));
    assert!(feed(&mut s, step(1, 4, vec![], vec![])).is_empty(), "broken");
    assert_eq!(show(&feed(&mut s, in_term(2, step_0(1)))), ["rewire for term 2"]);
    let out = s.handle(Time::ZERO, StageInput::Rewired { term: Term(2) });
    assert_eq!(show(&out), ["compute 0: rows 0"]);
}

/// While one step computes: a later one that has more rows than its tokens need must not wait in memory.
#[test]
fn rows_of_another_length_than_that_of_their_tokens_do_not_wait_for_their_turn() {
    let mut s = stage(1);
    feed(&mut s, step(1, 1, vec![open(1)], vec![part(1, 0, &[1])]));
    let long = StepMessage { rows: vec![0; 1 << 10].into(), ..step(1, 2, vec![], vec![part(1, 1, &[2])]) };
    let out = feed(&mut s, long);
    let why = out.iter().find_map(|out| match out {
        StageOutput::Send { message: DataMessage::PipelineBroken { why, .. }, .. } => Some(why),
        _ => None,
    });
    let expected = PipelineBreak::Rows { step: 2, got_bytes: 1 << 10, expected_bytes: 8 };
    assert_eq!(why, Some(&expected), "{out:?}");
    assert!(s.waiting.is_empty());
}

/// Of the next placement of the same instance.
fn in_next(mut message: StepMessage) -> StepMessage {
    message.frame.placement = placement_id(1, 2);
    message
}

/// Positions 0 and 1 of sequence 1, which begins with page 7, are computed by stage 1 alone.
fn rebuilding(index: usize, rows: &[u8]) -> StepMessage {
    let part = StepSequence { sample: false, ..part(1, 0, &[1, 2]) };
    let step = step(index, 1, vec![open_behind(1, &[1, 2, 3], &[7])], vec![part]);
    in_next(StepMessage { rebuilds: Some(middle()), rows: rows.to_vec().into(), ..step })
}

fn middle() -> StageSet {
    StageSet::of([1])
}

/// Lets step 0 of a term go through it; gives what it sends on.
fn first_step(s: &mut StageMachine, message: StepMessage) -> StepMessage {
    feed(s, message);
    s.handle(Time::ZERO, StageInput::Rewired { term: s.term() });
    let mut out = done(s, 0, ComputeResult::Rows(Bytes::new()));
    match out.pop() {
        Some(StageOutput::Send { message: DataMessage::Step(on), .. }) => on,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_stage_in_front_of_one_that_was_loaded_anew_computes_nothing_and_sends_the_rows_it_kept() {
    let mut before = stage(0);
    before.set_rows_max(1 << 20);
    feed(&mut before, step(0, 1, vec![open(1)], vec![part(1, 0, &[1, 2, 3])]));
    let sent: Vec<u8> = (1..=24).collect();
    done(&mut before, 1, ComputeResult::Rows(sent.clone().into()));
    feed(&mut before, step(0, 2, vec![keep(1, &[(0, 7)])], vec![part(1, 3, &[4])]));
    let geometry = before.geometry;
    let mut s = StageMachine::new(placement(1, 2, &[1, 2, 3]), 0, geometry).inheriting(before.into_left());
    let named = || StepMessage { kept: vec![PageKey(7), PageKey(8)], ..in_next(step_0(0)) };
    let on = first_step(&mut s, named());
    assert_eq!((on.kept, on.rebuilds), (vec![PageKey(7)], None));
    let on = first_step(&mut s, in_term(2, StepMessage { rebuilds: Some(middle()), ..named() }));
    assert_eq!((on.kept, on.rebuilds), (vec![PageKey(7)], Some(middle())));
    assert_eq!(show(&feed(&mut s, in_term(2, rebuilding(0, &[])))), ["compute 1: rows 0"]);
    let out = done(&mut s, 1, ComputeResult::Rows(Bytes::new()));
    assert_eq!(show(&out), ["step 1 to 2: 1@0 rows 16 failures 0"]);
    let [StageOutput::Send { message: DataMessage::Step(on), .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(on.rows, sent[..16]);
    let again = in_term(2, in_next(step(0, 2, vec![keep(1, &[(0, 7)])], vec![part(1, 2, &[3])])));
    assert_eq!(show(&feed(&mut s, again)), ["compute 2: 1@2 rows 0"], "it has the page, and goes on behind");
}

#[test]
fn a_stage_that_was_loaded_anew_says_so_and_computes_what_it_lacks() {
    let geometry = fresh(1).geometry;
    let mut s = StageMachine::new(placement(1, 2, &[1, 2, 3]), 1, geometry);
    let on = first_step(&mut s, StepMessage { kept: vec![PageKey(7)], ..in_next(step_0(1)) });
    assert_eq!((on.kept, on.rebuilds), (vec![PageKey(7)], Some(middle())));
    let out = feed(&mut s, rebuilding(1, &[0; 16]));
    assert_eq!(show(&out), ["compute 1: 1@0 rows 16"]);
    let [StageOutput::Compute { commands, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(*commands, [open_behind(1, &[1, 2, 3], &[])], "its engine has no such page");
    let out = done(&mut s, 1, ComputeResult::Rows(vec![0; 16].into()));
    assert_eq!(show(&out), ["step 1 to 3: 1@0 rows 0 failures 0"], "nobody behind computes");
    feed(&mut s, in_next(step(1, 2, vec![keep(1, &[(0, 7)])], vec![part(1, 2, &[3])])));
    assert_eq!(s.pages_kept(), 1);
}

#[test]
fn stages_that_lack_pages_need_not_be_neighbours() {
    let geometry = fresh(2).geometry;
    let lacks_besides = |stages: &[usize]| {
        let mut s = StageMachine::new(placement(1, 2, &[1, 2, 3, 4]), 2, geometry);
        let (kept, rebuilds) = (vec![PageKey(7)], Some(StageSet::of(stages.iter().copied())));
        let on = first_step(&mut s, StepMessage { kept, rebuilds, ..in_next(step_0(2)) });
        (on.kept.len(), on.rebuilds)
    };
    let all = |stages: [usize; 2]| (1, Some(StageSet::of(stages)));
    assert_eq!(lacks_besides(&[1]), all([1, 2]));
    assert_eq!(lacks_besides(&[1, 2]), all([1, 2]), "said by the scheduler");
    assert_eq!(lacks_besides(&[0]), all([0, 2]), "stage 1 has them");
}

/// Stage 1 lacks these pages, computes the first of them, and the term ends.
fn interrupted_behind_one(lacked: &[u64]) -> (StageMachine, StepMessage) {
    let kept: Vec<PageKey> = lacked.iter().copied().map(PageKey).collect();
    let mut s = StageMachine::new(placement(1, 2, &[1, 2, 3]), 1, fresh(1).geometry);
    let named = StepMessage { kept, ..in_next(step_0(1)) };
    first_step(&mut s, named.clone());
    feed(&mut s, rebuilding(1, &[0; 16]));
    done(&mut s, 1, ComputeResult::Rows(vec![0; 16].into()));
    feed(&mut s, in_next(step(1, 2, vec![keep(1, &[(0, 7)])], vec![part(1, 2, &[3])])));
    assert_eq!(s.pages_kept(), 1);
    (s, in_term(2, named))
}

#[test]
fn a_stage_that_is_interrupted_at_the_beginning_of_what_it_lacks_begins_again() {
    let (mut s, named) = interrupted_behind_one(&[7, 8, 9]);
    assert!(s.clone().into_left().keys().is_empty(), "nor does it leave anything to the next placement");
    let on = first_step(&mut s, named);
    assert_eq!((on.kept.len(), on.rebuilds, s.pages_kept()), (3, Some(middle()), 0));
    let (mut s, named) = interrupted_behind_one(&[7, 8]);
    assert_eq!(s.clone().into_left().keys(), [PageKey(7)]);
    let on = first_step(&mut s, named);
    assert_eq!((on.kept, on.rebuilds, s.pages_kept()), (vec![PageKey(7)], None, 1), "half of it is done");
}

#[test]
fn a_stage_names_what_it_keeps_to_a_scheduler_that_names_nothing_in_the_first_term() {
    let geometry = fresh(1).geometry;
    let next = || StageMachine::new(placement(1, 2, &[4, 2, 3]), 1, geometry).inheriting(busy().into_left());
    let (nothing, names) = (|| in_next(step_0(1)), vec![PageKey(7)]);
    let in_front = Some(StageSet::of([0]));
    let mut s = next();
    assert_eq!(feed(&mut s, nothing()), [StageOutput::Rewire { term: Term(1), keep: names.clone() }]);
    for _ in 0..2 {
        let on = first_step(&mut s, nothing());
        assert_eq!((on.kept, on.rebuilds), (names.clone(), in_front), "each time it comes");
    }
    let named = StepMessage { kept: names.clone(), rebuilds: in_front, ..nothing() };
    let on = first_step(&mut s, in_term(2, named));
    assert_eq!((on.kept, on.rebuilds, s.pages_kept()), (names.clone(), in_front, 1));
    let mut s = next();
    first_step(&mut s, StepMessage { kept: names, ..nothing() });
    let out = show(&feed(&mut s, nothing()));
    assert!(out[0].starts_with("broken to 4"), "what another scheduler named is not offered: {out:?}");
    let on = first_step(&mut next(), in_term(2, nothing()));
    assert_eq!((on.kept, on.rebuilds), (vec![], None), "nor anything in a later term");
}

/// Two contents may have the same name where a scheduler knows pages by nothing else.
#[test]
fn a_page_of_other_content_ends_the_term_and_nothing_is_kept_of_it() {
    let mut s = busy();
    s.handle(Time::ZERO, StageInput::LinkLost(node(1)));
    first_step(&mut s, in_term(2, StepMessage { kept: vec![PageKey(7)], ..step_0(1) }));
    let other = open_behind(1, &[4, 6, 4], &[7]);
    let out = feed(&mut s, in_term(2, step(1, 1, vec![other], vec![part(1, 2, &[4])])));
    let [StageOutput::Send { message: DataMessage::PipelineBroken { kind, .. }, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((*kind, s.pages_kept()), (FailureKind::StageLost, 0));
}

#[test]
fn the_first_element_that_no_stage_may_send_on_is_found_wherever_it_is() {
    let found = |rows: &[f32]| {
        let bytes: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        super::finish::no_value(&bytes)
    };
    for len in [1, 255, 256, 257, 700] {
        let good = vec![-1e8; len];
        assert_eq!(found(&good), None);
        for at in (0..len).step_by(17).chain([len - 1]) {
            let mut rows = good.clone();
            rows[len - 1] = f32::INFINITY;
            rows[at] = f32::NAN;
            assert_eq!(found(&rows), Some(at), "of {len}");
        }
    }
    assert_eq!(found(&[]), None);
}
