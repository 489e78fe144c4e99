mod attempts;
mod chunks;
mod kept_pages;
mod rebuild;
mod speculation;
mod terms;
mod turns;

use exo_types::{Attempt, FailureKind, Pooling, Principal, PromptQuery, Time};

use super::*;
use crate::testing::{node, placement, placement_id, result, seq, serving, submission};
use crate::wire::{
    AloneTimes, ComputeFault, EndReason, Missing, MissingPart, PhaseTimes, PipelineBreak, SequenceTimes,
    StepFailure, StepMessage, Submission, TokenResult, TokensMessage,
};

/// A scheduler over the nodes `on`, each stage with `pages` pages of 4 tokens.
fn scheduler(on: &[u8], pages: u32) -> Scheduler {
    let config = SchedulerConfig { chunk_tokens_max: 8, queue_len_max: 3, ..SchedulerConfig::default() };
    serving(config, placement(1, 1, on), pages, 4)
}

fn submit(s: &mut Scheduler, n: u128, prompt: u32, max_tokens: u32) -> Vec<SchedulerOutput> {
    submit_as(s, n, prompt, max_tokens, Principal::LOCAL)
}

fn submit_as(
    s: &mut Scheduler,
    n: u128,
    prompt: u32,
    max_tokens: u32,
    who: Principal,
) -> Vec<SchedulerOutput> {
    let mut submission = submission(n, prompt, max_tokens);
    submission.spec.principal = who;
    s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission })
}

/// Submits another attempt of a sequence.
fn submit_again(s: &mut Scheduler, n: u128, attempt: u16) -> Vec<SchedulerOutput> {
    let submission = Submission { attempt: Attempt(attempt), ..submission(n, 4, 4) };
    s.handle(s.now, SchedulerInput::Submit { from: node(9), submission })
}

/// Submits a sequence with this prompt.
fn submit_text(s: &mut Scheduler, n: u128, text: &[u32], max_tokens: u32, who: Principal) -> Vec<String> {
    let mut submission = submission(n, text.len() as u32, max_tokens);
    (submission.spec.history, submission.spec.principal) = (text.to_vec(), who);
    show(&s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission }))
}

fn cancel(s: &mut Scheduler, n: u128) -> Vec<String> {
    show(&s.handle(Time::ZERO, cancelled(seq(n))))
}

/// The driver gives up its first submission.
fn cancelled(sequence: SequenceId) -> SchedulerInput {
    let (from, placement, attempt) = (node(9), placement_id(1, 1), Attempt::FIRST);
    SchedulerInput::Cancel { from, placement, sequence, attempt }
}

fn tokens(s: &mut Scheduler, step: u64, results: Vec<TokenResult>) -> Vec<SchedulerOutput> {
    let back = back(s, step, results);
    s.tokens(Time::ZERO, sender(s), &back)
}

/// The node of the last stage, which sends what comes back.
fn sender(s: &Scheduler) -> NodeId {
    s.placement.stages.last().unwrap().leader().node
}

/// What comes back of a step of the running term.
fn back(s: &Scheduler, step: u64, results: Vec<TokenResult>) -> TokensMessage {
    crate::testing::tokens(s.placement.id, s.term(), step, results)
}

/// Outputs as one line each; a step as `step N: open S, close S | S@start+count[*]` (`*` samples).
fn show(out: &[SchedulerOutput]) -> Vec<String> {
    let line = |o: &SchedulerOutput| match o {
        SchedulerOutput::Send { message, .. } => show_message(message),
        SchedulerOutput::Serving => "serving".to_owned(),
        SchedulerOutput::Step(step) => show_step(step),
        SchedulerOutput::InstanceFailed { kind, .. } => format!("instance failed {kind:?}"),
        SchedulerOutput::Draft { spec, count } => format!("{} asks for {count}", spec.sequence),
        SchedulerOutput::DraftOver(sequence) => format!("{sequence} asks no more"),
    };
    out.iter().map(line).collect()
}

fn show_message(message: &DataMessage) -> String {
    match message {
        DataMessage::Accepted { sequence, queue_ahead, .. } => {
            format!("accepted {} behind {queue_ahead}", sequence.request.0)
        }
        DataMessage::Started { sequence, cached_tokens: 0, .. } => {
            format!("started {}", sequence.request.0)
        }
        DataMessage::Started { sequence, cached_tokens, .. } => {
            format!("started {} behind {cached_tokens}", sequence.request.0)
        }
        DataMessage::Rejected { sequence, why, .. } => {
            format!("rejected {} {:?}", sequence.request.0, why.kind())
        }
        DataMessage::SequenceEnded { sequence, reason, generated, .. } => {
            format!("ended {} {reason:?} after {generated}", sequence.request.0)
        }
        DataMessage::SequenceFailed { sequence, kind, .. } => {
            format!("failed {} {kind:?}", sequence.request.0)
        }
        other => panic!("{other:?}"),
    }
}

fn show_step(step: &StepMessage) -> String {
    let command = |c: &StageCommand| match c {
        StageCommand::Open { spec, cached, .. } if cached.is_empty() => {
            format!("open {}", spec.sequence.request.0)
        }
        StageCommand::Open { spec, cached, .. } => {
            format!("open {} behind {}", spec.sequence.request.0, cached.len())
        }
        StageCommand::Keep { sequence, pages } => format!("keep {} {}", sequence.request.0, pages.len()),
        StageCommand::Forget(pages) => format!("forget {}", pages.len()),
        StageCommand::Close(sequence) => format!("close {}", sequence.request.0),
    };
    let part = |s: &exo_types::StepSequence| {
        let star = if s.sample { "*" } else { "" };
        format!("{}@{}+{}{star}", s.sequence.request.0, s.start, s.tokens.len())
    };
    let commands: Vec<String> = step.commands.iter().map(command).collect();
    let parts: Vec<String> = step.frame.sequences.iter().map(part).collect();
    format!("step {}: {} | {}", step.frame.step, commands.join(", "), parts.join(" "))
}

#[test]
fn one_sequence_has_one_decode_in_flight_and_ends_at_its_stop_token() {
    let mut s = scheduler(&[1, 2], 16);
    let out = submit(&mut s, 1, 3, 10);
    assert_eq!(show(&out), ["accepted 1 behind 0", "started 1", "step 1: open 1 | 1@0+3*"]);
    assert_eq!(show(&tokens(&mut s, 1, vec![result(1, 3, 7)])), ["step 2:  | 1@3+1*"]);
    let out = tokens(&mut s, 2, vec![result(1, 4, 99)]);
    assert_eq!(show(&out), ["ended 1 StopToken after 2", "step 3: keep 1 1, close 1 | "]);
    assert_eq!(show(&tokens(&mut s, 3, vec![])), Vec::<String>::new());
    assert_eq!(s.pages.claimed(), 0);
}

#[test]
fn ignoring_the_stop_token_leaves_the_token_limit() {
    let mut s = scheduler(&[1], 16);
    let mut submission = submission(1, 3, 2);
    submission.ignore_eos = true;
    s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    assert_eq!(show(&tokens(&mut s, 1, vec![result(1, 3, 99)])), ["step 2:  | 1@3+1*"]);
    let out = tokens(&mut s, 2, vec![result(1, 4, 99)]);
    assert_eq!(show(&out)[0], "ended 1 MaxTokens after 2");
}

#[test]
fn a_full_context_ends_the_sequence_at_its_last_position() {
    let mut s = scheduler(&[1], 16);
    submit(&mut s, 1, 62, 1000); // chunks of 8: steps 1 to 8
    let mut last = Vec::new();
    for step in 1..=7 {
        last = tokens(&mut s, step, vec![]);
    }
    assert_eq!(show(&last), ["step 8: keep 1 2 | 1@56+6*"]);
    assert_eq!(show(&tokens(&mut s, 8, vec![result(1, 62, 5)])), ["step 9: keep 1 1 | 1@62+1*"]);
    let out = tokens(&mut s, 9, vec![result(1, 63, 5)]);
    assert_eq!(show(&out)[0], "ended 1 ContextFull after 2");
}

#[test]
fn chunks_of_one_prompt_follow_each_other_without_waiting() {
    let mut s = scheduler(&[1, 2, 3], 16);
    let out = submit(&mut s, 1, 30, 4);
    assert_eq!(
        show(&out)[2..],
        ["step 1: open 1 | 1@0+8", "step 2:  | 1@8+8", "step 3:  | 1@16+8"],
        "three stages, three micro-batches"
    );
}

#[test]
fn running_sequences_decode_before_a_new_prompt_is_read() {
    let mut s = scheduler(&[1], 16);
    submit(&mut s, 1, 2, 10);
    submit(&mut s, 2, 12, 10);
    let out = tokens(&mut s, 1, vec![result(1, 2, 7)]);
    assert_eq!(show(&out), ["step 2: open 2 | 1@2+1* 2@0+8"]);
    let out = tokens(&mut s, 2, vec![result(1, 3, 7)]);
    assert_eq!(show(&out), ["step 3: keep 2 2 | 1@3+1* 2@8+4*"]);
}

#[test]
fn decodes_are_spread_over_the_stages() {
    let mut s = scheduler(&[1, 2], 64);
    for n in 1..=4 {
        submit(&mut s, n, 2, 10);
    }
    // Step 1 read prompt 1, step 2 prompts 2 (submitted while 1 was in flight); 3 and 4 wait for a place.
    let out = tokens(&mut s, 1, vec![result(1, 2, 7)]);
    assert_eq!(show(&out), ["step 3: open 3, open 4 | 1@2+1* 3@0+2* 4@0+2*"]);
    let out = tokens(&mut s, 2, vec![result(2, 2, 7)]);
    assert_eq!(show(&out), ["step 4:  | 2@2+1*"]);
    let out = tokens(&mut s, 3, vec![result(1, 3, 7), result(3, 2, 7), result(4, 2, 7)]);
    assert_eq!(show(&out), ["step 5:  | 1@3+1* 3@2+1*"], "two of four: the rest fills the other stage");
}

#[test]
fn admission_waits_for_pages_of_the_longest_a_sequence_can_become() {
    let mut s = scheduler(&[1, 2], 5); // 20 tokens
    assert_eq!(show(&submit(&mut s, 1, 4, 8))[1], "started 1", "3 pages");
    assert_eq!(show(&submit(&mut s, 2, 4, 8)), ["accepted 2 behind 0"], "3 more do not fit");
    assert_eq!(show(&submit(&mut s, 3, 4, 30)), ["rejected 3 OutOfMemory"], "would never fit");
    let cancel = cancelled(seq(1));
    let out = s.handle(Time::ZERO, cancel);
    let expected = ["ended 1 Cancelled after 0", "started 2", "step 2: close 1, open 2 | 2@0+4*"];
    assert_eq!(show(&out), expected, "the slot is free at once");
    assert_eq!(
        show(&tokens(&mut s, 1, vec![result(1, 4, 7)])),
        Vec::<String>::new(),
        "a late token is nobody's"
    );
}

#[test]
fn a_full_queue_rejects_and_a_repeated_submission_does_not_count() {
    let mut s = scheduler(&[1], 4);
    for n in 1..=4 {
        submit(&mut s, n, 4, 12);
    }
    let refused = submit(&mut s, 5, 4, 12);
    assert_eq!(show(&refused), ["rejected 5 QueueFull"]);
    let [SchedulerOutput::Send { message: DataMessage::Rejected { why, .. }, .. }] = &refused[..] else {
        panic!("{refused:?}")
    };
    let busy = why.busy().unwrap();
    assert_eq!((busy.waiting, busy.retry_after_s), (3, 5), "no answer has ended yet");
    assert_eq!(show(&submit(&mut s, 4, 4, 12)), ["accepted 4 behind 2"]);
    assert_eq!(s.load_report().waiting, 3);
}

#[test]
fn nonsense_is_rejected_with_a_reason() {
    let mut s = scheduler(&[1], 16);
    assert_eq!(show(&submit(&mut s, 1, 64, 1)), ["rejected 1 Protocol"], "no room for an answer");
    let mut old = submission(2, 4, 4);
    old.placement = placement_id(1, 7);
    let out = s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission: old });
    assert_eq!(show(&out), ["rejected 2 InstanceGone"]);
    let stolen = submission(3, 4, 4);
    let out = s.handle(Time::ZERO, SchedulerInput::Submit { from: node(8), submission: stolen });
    assert_eq!(show(&out), ["rejected 3 Protocol"], "submitted in another node's name");
}

#[test]
fn a_token_beyond_the_vocabulary_costs_its_own_sequence_and_no_other() {
    let config = SchedulerConfig { vocab: 50, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1, 2]), 16, 4);
    let text = submit_text(&mut s, 1, &[3, 50], 4, Principal::LOCAL);
    assert_eq!(text, ["rejected 1 Protocol"]);
    submit(&mut s, 2, 4, 4);
    submit(&mut s, 3, 4, 4);
    tokens(&mut s, 1, vec![result(2, 4, 7)]);
    tokens(&mut s, 2, vec![result(3, 4, 7)]);
    let out = show(&tokens(&mut s, 3, vec![result(2, 5, 50)]));
    assert_eq!(out[0], "failed 2 Protocol", "{out:?}");
    assert_eq!((s.load_report().running, s.is_serving()), (1, true));
}

#[test]
fn a_lost_stage_fails_every_sequence_at_once() {
    let mut s = scheduler(&[1, 2], 8);
    submit(&mut s, 1, 4, 12);
    submit(&mut s, 2, 4, 40);
    submit(&mut s, 3, 4, 12);
    let out = show(&s.handle(Time::ZERO, SchedulerInput::NodeLost(node(2))));
    assert_eq!(out.len(), 3, "{out:?}: 2 was rejected, 1 and 3 fail, the instance fails");
    assert_eq!(out[2], "instance failed StageLost");
    assert_eq!(show(&submit(&mut s, 4, 4, 4)), ["rejected 4 InstanceGone"]);
    assert!(s.handle(Time::ZERO, SchedulerInput::NodeLost(node(1))).is_empty(), "said once");
}

#[test]
fn a_lost_driver_frees_its_slots() {
    let mut s = scheduler(&[1], 16);
    submit(&mut s, 1, 4, 12);
    // The link to another run of it may be open by the time membership says that the last one is gone.
    s.handle(Time::ZERO, SchedulerInput::NodeLost(node(9)));
    assert_eq!(s.load_report().running, 1);
    s.handle(Time::ZERO, SchedulerInput::LinkLost(node(9)));
    assert_eq!((s.load_report().running, s.pages.claimed()), (0, 0));
}

#[test]
fn a_silent_pipeline_ends_its_term_after_the_step_deadline() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12); // 30 s, and 4 tokens more at 250 ms
    assert!(s.handle(Time::from_millis(31_000), SchedulerInput::Tick).is_empty());
    let out = show(&s.handle(Time::from_millis(31_001), SchedulerInput::Tick));
    assert_eq!(out[0], "failed 1 StageLost");
    assert_eq!((s.term(), s.is_serving()), (exo_types::Term(2), false));
}

#[test]
fn a_silent_pipeline_of_known_pace_ends_its_term_after_two_seconds() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12);
    // The prompt, and four decodes that took no time.
    (1..=5).for_each(|step| drop(tokens(&mut s, step, vec![result(1, 3 + step as u32, 60 + step as u32)])));
    assert!(s.handle(Time::from_millis(2000), SchedulerInput::Tick).is_empty());
    let out = s.handle(Time::from_millis(2001), SchedulerInput::Tick);
    let Some(SchedulerOutput::Send { message: DataMessage::SequenceFailed { why, .. }, .. }) = out.first()
    else {
        panic!("{out:?}")
    };
    assert_eq!(*why, PipelineFailure::Ended(TermEnd::Late { step: 6, waited_ms: 2001 }));
    assert_eq!(s.term(), exo_types::Term(2));
}

#[test]
fn tokens_that_do_not_reach_their_driver_cost_their_sequence_only() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12);
    submit(&mut s, 2, 4, 12);
    let undelivered = |number, from| SchedulerInput::Report {
        from: node(from),
        message: DataMessage::Undelivered {
            placement: placement_id(1, number),
            term: Term::FIRST,
            step: 1,
            sequences: vec![(seq(1), Attempt::FIRST), (seq(2), Attempt(2))],
            missing: Missing { stage: 1, what: MissingPart::Link { to: node(9) }, waited_ms: 2000 },
        },
    };
    assert!(s.handle(Time::ZERO, undelivered(2, 2)).is_empty(), "of another placement");
    assert!(s.handle(Time::ZERO, undelivered(1, 7)).is_empty(), "not of a stage");
    let out = show(&s.handle(Time::ZERO, undelivered(1, 2)));
    assert_eq!(out, ["failed 1 StageLost"]);
    assert_eq!(s.load_report().running, 1);
}

fn failed(s: &mut Scheduler, step: u64, n: u128, kind: FailureKind) -> Vec<String> {
    failed_as(s, step, n, Attempt::FIRST, kind)
}

fn failed_as(s: &mut Scheduler, step: u64, n: u128, attempt: Attempt, kind: FailureKind) -> Vec<String> {
    let (placement, term) = (s.placement.id, s.term());
    let (sequences, why) = (vec![(seq(n), attempt)], ComputeFault::Engine("broken".to_owned()));
    let failure = StepFailure { placement, term, step, stage: 0, sequences, kind, why };
    let tokens = TokensMessage { failures: vec![failure], ..back(s, step, vec![]) };
    show(&s.tokens(Time::ZERO, sender(s), &tokens))
}

#[test]
fn a_failed_step_costs_its_sequences_and_three_in_a_row_cost_the_instance() {
    let mut s = scheduler(&[1], 64);
    for n in 1..=3 {
        submit(&mut s, n, 8, 12); // a whole chunk: one sequence per step
    }
    assert_eq!(failed(&mut s, 1, 1, FailureKind::Device)[0], "failed 1 Device");
    assert_eq!(failed(&mut s, 2, 2, FailureKind::Device)[0], "failed 2 Device");
    let last = failed(&mut s, 3, 3, FailureKind::Device);
    assert_eq!(last, ["failed 3 Device", "instance failed Device"]);
}

/// A stage tells the driver and the scheduler at once, and what the driver says then may come first.
#[test]
fn a_failure_counts_although_its_driver_has_submitted_again() {
    let mut s = scheduler(&[1], 64);
    submit(&mut s, 1, 4, 12);
    for step in 1..=2 {
        submit_again(&mut s, 1, step + 1);
        let out = failed_as(&mut s, step.into(), 1, Attempt(step), FailureKind::Device);
        assert_eq!(out.len(), 1, "only the next step: {out:?}");
    }
    submit_again(&mut s, 1, 4);
    let last = failed_as(&mut s, 3, 1, Attempt(3), FailureKind::Device);
    assert_eq!(last, ["failed 1 Device", "instance failed Device"]);
}

/// A stage leaves what it has lost out of the steps behind: they come back with nothing and say nothing.
#[test]
fn chunks_behind_a_failure_neither_count_as_one_nor_as_a_success() {
    let mut s = scheduler(&[1, 2], 64);
    for n in 1..=3 {
        submit(&mut s, n, 20, 12);
        let first = s.in_flight.iter().find(|flight| !flight.chunks.is_empty()).unwrap().step;
        assert!(s.in_flight.iter().any(|flight| flight.step > first), "another chunk is on its way");
        let last = failed(&mut s, first, n, FailureKind::Device);
        assert_eq!(last[0], format!("failed {n} Device"));
        assert_eq!(last.contains(&"instance failed Device".to_owned()), n == 3, "{last:?}");
        while let Some(behind) = s.in_flight.front().map(|flight| flight.step) {
            tokens(&mut s, behind, vec![]);
        }
    }
}

#[test]
fn what_a_grammar_does_to_one_says_nothing_of_the_device() {
    let mut s = scheduler(&[1], 64);
    for n in 1..=4 {
        submit(&mut s, n, 8, 12);
    }
    for (step, n) in (1..=4).zip(1..) {
        let out = failed(&mut s, step, n, FailureKind::Constraint);
        assert_eq!(out[0], format!("failed {n} Constraint"));
        assert!(!out.contains(&"instance failed Constraint".to_owned()), "{out:?}");
    }
}

#[test]
fn a_step_that_comes_back_without_its_token_fails_the_sequence() {
    let mut s = scheduler(&[1], 64);
    submit(&mut s, 1, 4, 12);
    assert_eq!(show(&tokens(&mut s, 1, vec![result(1, 9, 7)]))[0], "failed 1 Protocol");
    assert_eq!(show(&tokens(&mut s, 1, vec![])), Vec::<String>::new(), "a repeated outcome is ignored");
}
