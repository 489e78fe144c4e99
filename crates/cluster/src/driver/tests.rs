use exo_types::{InstanceId, ModelId, SequenceSpec};

use super::*;
use crate::testing::{MODEL, node, placement, placement_id, result, seq, spec};
use crate::wire::{Busy, ComputeFault, Rejection, SequenceTimes, StepFailure, TokenResult};
use crate::{
    InstanceState, RemoveReason, ReplaceReason, StageLoss, StageStatus, StageView, Unplaced, WaitReason,
};

fn driver() -> Driver {
    driver_with(DriverConfig::default(), spec(1, node(9), 4))
}

fn driver_with(config: DriverConfig, spec: SequenceSpec) -> Driver {
    let (model, max_tokens, stop_tokens, ignore_eos) = (MODEL, 10, vec![99], false);
    let start =
        DriverStart { model, spec, max_tokens, vocab: 1000, stop_tokens, ignore_eos, speculate: true };
    let mut driver = Driver::new(config, Time::ZERO, start);
    driver.handle(Time::ZERO, linked(&[1, 2, 3]));
    driver
}

/// One that its scheduler has accepted.
fn queued() -> Driver {
    let mut d = driver();
    feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    let (placement, term, sequence, attempt) = (placement_id(1, 1), Term::FIRST, seq(1), Attempt::FIRST);
    say(&mut d, 0, 1, DataMessage::Accepted { placement, term, sequence, attempt, queue_ahead: 3 });
    d
}

fn linked(to: &[u8]) -> DriverInput {
    DriverInput::Links(Arc::new(to.iter().map(|&n| node(n)).collect()))
}

fn view(number: u32, state: InstanceState) -> InstanceView {
    let stage = StageView { status: StageStatus::Unknown, memory_bytes: 0 };
    let (placement, stages) = (placement(1, number, &[1, 2]), vec![stage; 2]);
    InstanceView { model_name: "m".into(), placement, state, stages, moving: None, advice: None }
}

fn gone() -> ReplaceReason {
    ReplaceReason::Stage { stage: 1, node: node(2), loss: StageLoss::NodeGone }
}

fn waits() -> WaitReason {
    WaitReason { lost: gone(), why: Unplaced::NoPlan("no room".into()) }
}

fn feed(d: &mut Driver, ms: u64, input: DriverInput) -> Vec<String> {
    show(&d.handle(Time::from_millis(ms), input))
}

fn say(d: &mut Driver, ms: u64, from: u8, message: DataMessage) -> Vec<String> {
    feed(d, ms, DriverInput::Message { from: node(from), message })
}

fn show(out: &[DriverOutput]) -> Vec<String> {
    let line = |o: &DriverOutput| match o {
        DriverOutput::Send { to, message: DataMessage::Submit(s) } => {
            let (number, attempt) = (s.placement.number, s.attempt);
            format!("submit {attempt} to {} for p{number} with {}", to.0[0], s.spec.history.len())
        }
        DriverOutput::Send { to, .. } => format!("cancel at {}", to.0[0]),
        DriverOutput::Token { position, token } => format!("token {} at {position}", token.token),
        DriverOutput::Ended(reason) => format!("ended {reason:?}"),
        DriverOutput::Failed { kind, message } => format!("failed {kind:?}: {message}"),
    };
    out.iter().map(line).collect()
}

fn started() -> DataMessage {
    started_as(Attempt::FIRST)
}

fn started_as(attempt: Attempt) -> DataMessage {
    let (placement, term, sequence) = (placement_id(1, 1), Term::FIRST, seq(1));
    DataMessage::Started { placement, term, sequence, attempt, cached_tokens: 2 }
}

fn ended(reason: EndReason, generated: u32) -> DataMessage {
    let (placement, term, sequence, attempt) = (placement_id(1, 1), Term::FIRST, seq(1), Attempt::FIRST);
    DataMessage::SequenceEnded {
        placement,
        term,
        sequence,
        attempt,
        reason,
        generated,
        times: SequenceTimes::default(),
    }
}

/// A result of the step that is sampled next comes from a node.
fn token(d: &mut Driver, ms: u64, from: u8, result: TokenResult) -> Vec<String> {
    let (placement, term, step) = (placement_id(1, 1), Term::FIRST, 1);
    feed(d, ms, DriverInput::Tokens { from: node(from), placement, term, step, result })
}

/// A driver whose sequence runs on nodes 1 and 2 since 1 s.
fn running() -> Driver {
    running_from(driver())
}

fn running_from(mut d: Driver) -> Driver {
    feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    say(&mut d, 1000, 1, started());
    d
}

#[test]
fn a_request_is_submitted_once_the_model_is_ready_and_ends_with_its_last_token() {
    let mut d = driver();
    assert!(feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Loading)])).is_empty());
    let ready = DriverInput::Instances(vec![view(1, InstanceState::Ready)]);
    assert_eq!(feed(&mut d, 5, ready), ["submit 1 to 1 for p1 with 4"]);
    say(&mut d, 6, 1, started());
    assert_eq!(token(&mut d, 7, 2, result(1, 4, 7)), ["token 7 at 4"]);
    // The end overtakes the last token: they come from different nodes.
    assert!(say(&mut d, 8, 1, ended(EndReason::StopToken, 2)).is_empty());
    assert_eq!(token(&mut d, 9, 2, result(1, 5, 99)), ["token 99 at 5", "ended StopToken"]);
    assert_eq!((d.history().len(), d.cached_tokens()), (6, 2));
    assert!(feed(&mut d, 10, DriverInput::NodeLost(node(1))).is_empty(), "nothing after the end");
}

#[test]
fn weights_that_come_put_the_deadline_off_until_they_stand_still() {
    let mut d = driver();
    let loading = |done_bytes, hub_wait_s| {
        let mut view = view(1, InstanceState::Loading);
        view.stages[1].status = StageStatus::Fetching { done_bytes, total_bytes: 900, hub_wait_s };
        DriverInput::Instances(vec![view])
    };
    for (seconds, done_bytes, hub_wait_s) in
        [(0, 1, 0), (110, 2, 0), (220, 3, 0), (330, 3, 300), (440, 3, 190)]
    {
        assert!(feed(&mut d, seconds * 1000, loading(done_bytes, hub_wait_s)).is_empty());
        assert!(feed(&mut d, seconds * 1000 + 1, DriverInput::Tick).is_empty(), "{seconds}");
    }
    feed(&mut d, 500_000, loading(3, 0));
    assert!(feed(&mut d, 560_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d, 560_001, DriverInput::Tick);
    assert!(
        out.last().is_some_and(|l| l.contains("not started after 560 s: instance i1 is loading")),
        "{out:?}"
    );
}

/// A holder that gives no byte, links that no step gets through: what never served is placed again for as
/// long as anybody asks for it.
#[test]
fn placements_that_come_no_further_put_the_deadline_off_three_times_and_not_for_ever() {
    let mut d = driver();
    let loading = |number, done_bytes| {
        let mut view = view(number, InstanceState::Loading);
        view.stages[1].status = StageStatus::Loading { done_bytes, total_bytes: 900 };
        DriverInput::Instances(vec![view])
    };
    for number in 1..=4 {
        let ms = u64::from(number) * 100_000;
        assert!(feed(&mut d, ms, loading(number, 0)).is_empty());
        assert!(feed(&mut d, ms + 1000, loading(number, 500)).is_empty());
        assert!(feed(&mut d, ms + 1001, DriverInput::Tick).is_empty(), "placement {number}");
    }
    let mut further = d.clone();
    feed(&mut d, 500_000, loading(5, 0));
    feed(&mut d, 501_000, loading(5, 500));
    assert!(feed(&mut d, 521_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d, 521_001, DriverInput::Tick);
    let why = "not started after 521 s: instance i1 is loading";
    assert!(out.last().is_some_and(|line| line.contains(why)), "{out:?}");
    feed(&mut further, 500_000, loading(5, 501));
    assert!(feed(&mut further, 620_000, DriverInput::Tick).is_empty());
    assert!(!feed(&mut further, 620_001, DriverInput::Tick).is_empty(), "it stands still again");
}

#[test]
fn guesses_are_counted_once_by_whether_they_were_right() {
    let mut d = running();
    let guessed = |position, tokens: &[u32], drafts| {
        let tokens = tokens.iter().map(|&t| crate::testing::token(t)).collect();
        TokenResult { drafts, tokens, ..result(1, position, 0) }
    };
    for result in [guessed(4, &[7, 8, 9], 2), guessed(4, &[7, 8, 9], 2), guessed(7, &[5], 3)] {
        token(&mut d, 1000, 2, result);
    }
    assert_eq!(d.drafts(), DraftCounts { accepted: 2, rejected: 3 });
}

#[test]
fn repeated_tokens_are_ignored_and_a_gap_is_a_protocol_failure() {
    let mut d = running();
    token(&mut d, 1000, 2, result(1, 4, 7));
    assert!(token(&mut d, 1000, 2, result(1, 4, 7)).is_empty());
    let gap = |d: &mut Driver, attempt| {
        token(d, 1000, 2, TokenResult { attempt: Attempt(attempt), ..result(1, 6, 7) })
    };
    assert_eq!(gap(&mut d, 1), ["submit 2 to 1 for p1 with 5"]);
    assert_eq!(gap(&mut d, 2), ["submit 3 to 1 for p1 with 5"]);
    let out = gap(&mut d, 3);
    let expected = "failed Protocol: 3 attempts in a row failed: the token at 6 arrived, 5 was next";
    assert_eq!(out, [expected]);
}

#[test]
fn a_token_beyond_the_vocabulary_is_no_part_of_an_answer() {
    let mut d = running();
    assert_eq!(token(&mut d, 1000, 2, result(1, 4, 1000)), ["submit 2 to 1 for p1 with 4"]);
}

#[test]
fn tokens_of_anyone_but_the_last_stage_are_ignored() {
    let mut d = running();
    assert!(token(&mut d, 1000, 3, result(1, 4, 7)).is_empty());
    assert!(say(&mut d, 1000, 2, ended(EndReason::StopToken, 0)).is_empty(), "only the scheduler ends");
}

#[test]
fn a_lost_stage_interrupts_the_answer_and_it_goes_on_behind_its_last_token() {
    for lost in [
        DriverInput::NodeLost(node(2)),
        DriverInput::LinkLost(node(1)),
        DriverInput::Instances(vec![view(1, InstanceState::Degraded { reason: gone() })]),
        DriverInput::Instances(vec![view(1, InstanceState::Waiting { reason: waits() })]),
        DriverInput::Instances(vec![view(2, InstanceState::Loading)]),
        DriverInput::Instances(vec![]),
    ] {
        let mut d = running();
        token(&mut d, 1000, 2, result(1, 4, 7));
        assert_eq!(feed(&mut d, 1001, lost), ["cancel at 1"]);
        assert!(
            matches!(d.phase(), DriverPhase::Interrupted { since, .. } if since == Time::from_millis(1001))
        );
        let again = feed(&mut d, 3000, DriverInput::Instances(vec![view(2, InstanceState::Ready)]));
        assert_eq!(again, ["submit 2 to 1 for p2 with 5"]);
    }
    let settling = DriverInput::Instances(vec![view(1, InstanceState::Placing)]);
    assert!(feed(&mut running(), 1001, settling).is_empty(), "a new coordinator that knows nothing yet");
    let mut d = running();
    for input in [DriverInput::NodeLost(node(3)), DriverInput::LinkLost(node(3))] {
        assert!(feed(&mut d, 1001, input).is_empty());
    }
    assert_eq!(d.phase(), DriverPhase::Running(InstanceId(1)), "a stranger's loss is nothing");
}

#[test]
fn the_next_submission_asks_for_what_is_left_and_an_answer_that_was_whole_ends() {
    let interrupted = |tokens: &[u32]| {
        let mut d = running();
        for (position, token_id) in (4..).zip(tokens) {
            token(&mut d, 1000, 2, result(1, position, *token_id));
        }
        let out = feed(&mut d, 1001, DriverInput::NodeLost(node(2)));
        (d, out)
    };
    let (mut d, _) = interrupted(&[7, 8, 9]);
    let out = d.handle(Time::from_millis(1002), DriverInput::Instances(vec![view(2, InstanceState::Ready)]));
    let [DriverOutput::Send { message: DataMessage::Submit(submission), .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((submission.max_tokens, submission.spec.prompt_tokens), (7, 4));
    assert!(submission.is_resumed() && submission.spec.history[4..] == [7, 8, 9]);
    assert_eq!(interrupted(&[7, 99]).1, ["cancel at 1", "ended StopToken"]);
    assert_eq!(interrupted(&[7; 10]).1, ["cancel at 1", "ended MaxTokens"]);
}

#[test]
fn an_interrupted_answer_ends_with_what_was_lost_after_two_minutes() {
    let mut d = running();
    token(&mut d, 1000, 2, result(1, 4, 7));
    feed(&mut d, 2000, DriverInput::NodeLost(node(2)));
    feed(&mut d, 60_000, DriverInput::Instances(vec![view(2, InstanceState::Ready)]));
    // The next one is lost as well before it gave a token.
    feed(&mut d, 60_000, DriverInput::NodeLost(node(1)));
    feed(&mut d, 61_000, DriverInput::Instances(vec![view(3, InstanceState::Loading)]));
    assert!(feed(&mut d, 122_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d, 122_001, DriverInput::Tick);
    let [line] = &out[..] else { panic!("{out:?}") };
    assert!(line.starts_with("failed StageLost: stage 0 on node"), "{line}");
    assert!(line.contains("stood still for 120 s after 1 tokens: instance i1 is loading"), "{line}");
}

/// Deadlines of which all but that of a pause are over long before the pause is.
fn long_pause() -> DriverConfig {
    let [queue_deadline, overall_deadline, pause_max, idle_deadline] =
        [50, 100, 300, 1000].map(Duration::from_secs);
    DriverConfig { queue_deadline, overall_deadline, pause_max, idle_deadline }
}

#[test]
fn a_pause_lasts_as_long_as_is_set_and_no_other_deadline_cuts_or_counts_it() {
    let mut d = running_from(driver_with(long_pause(), spec(1, node(9), 4)));
    token(&mut d, 1000, 2, result(1, 4, 7));
    feed(&mut d, 2000, DriverInput::NodeLost(node(2)));
    feed(&mut d, 2000, DriverInput::Instances(vec![view(1, InstanceState::Loading)]));
    let (since, until) = (Time::from_millis(2000), Time::from_millis(302_000));
    assert_eq!(d.phase(), DriverPhase::Interrupted { since, until });
    assert!(feed(&mut d, 302_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d.clone(), 302_001, DriverInput::Tick);
    assert!(out.last().is_some_and(|line| line.contains("stood still for 300 s")), "{out:?}");
    // Another one goes on in the last moment, and has the rest of its time.
    let ready = DriverInput::Instances(vec![view(1, InstanceState::Ready)]);
    assert_eq!(feed(&mut d, 302_000, ready), ["submit 2 to 1 for p1 with 5"]);
    let next = TokenResult { attempt: Attempt(2), ..result(1, 5, 8) };
    assert_eq!(token(&mut d, 302_000, 2, next), ["token 8 at 5"]);
    assert!(feed(&mut d, 400_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d, 400_001, DriverInput::Tick);
    assert!(out.last().is_some_and(|line| line.contains("more than 100 s")), "{out:?}");
}

#[test]
fn an_answer_that_another_node_began_waits_as_long_as_a_pause() {
    let mut begun = spec(1, node(9), 4);
    begun.history.push(7);
    let mut d = driver_with(long_pause(), begun);
    assert!(feed(&mut d, 300_000, DriverInput::Tick).is_empty());
    assert!(!feed(&mut d, 300_001, DriverInput::Tick).is_empty(), "longer than a pause");
    let mut other = driver_with(long_pause(), spec(1, node(9), 4));
    assert!(!feed(&mut other, 50_001, DriverInput::Tick).is_empty(), "it never ran");
}

#[test]
fn an_interrupted_answer_whose_instance_is_no_more_ends_after_ten_seconds() {
    let mut d = running();
    assert_eq!(feed(&mut d, 1000, DriverInput::Instances(vec![])), ["cancel at 1"]);
    assert!(feed(&mut d, 11_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d, 11_001, DriverInput::Tick);
    assert_eq!(out, ["failed InstanceGone: instance i1 was removed; instance i1 is no more"]);
}

#[test]
fn time_in_which_it_is_computed_is_no_pause() {
    let mut d = running();
    token(&mut d, 1000, 2, result(1, 4, 7));
    feed(&mut d, 2000, DriverInput::NodeLost(node(2)));
    feed(&mut d, 2000, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    say(&mut d, 3000, 1, started_as(Attempt(2)));
    // A long history is computed again, and lost again on its way: 62 s, of which two stood still.
    feed(&mut d, 64_000, DriverInput::LinkLost(node(1)));
    assert!(feed(&mut d, 182_000, DriverInput::Instances(vec![view(1, InstanceState::Loading)])).is_empty());
    assert!(feed(&mut d, 183_000, DriverInput::Tick).is_empty());
    let out = feed(&mut d, 183_001, DriverInput::Tick);
    assert!(out.last().is_some_and(|line| line.contains("stood still for 120 s")), "{out:?}");
}

#[test]
fn a_failed_step_is_a_new_attempt_and_the_third_in_a_row_an_error() {
    let (placement, term, sequence) = (placement_id(1, 1), Term::FIRST, seq(1));
    let failed = |attempt| {
        let (step, stage, why) = (1, 1, ComputeFault::Engine("nan".to_owned()));
        let (sequences, kind) = (vec![(sequence, Attempt(attempt))], FailureKind::Device);
        DataMessage::StepFailed(StepFailure { placement, term, step, stage, sequences, kind, why })
    };
    let mut d = running();
    assert_eq!(say(&mut d, 1001, 2, failed(1)), ["submit 2 to 1 for p1 with 4"]);
    say(&mut d, 1002, 1, started_as(Attempt(2)));
    assert_eq!(say(&mut d, 1003, 2, failed(2)), ["submit 3 to 1 for p1 with 4"]);
    say(&mut d, 1004, 1, started_as(Attempt(3)));
    // A token between two failures: the device can do it.
    assert_eq!(
        token(&mut d, 1004, 2, TokenResult { attempt: Attempt(3), ..result(1, 4, 7) }),
        ["token 7 at 4"]
    );
    for attempt in 3..5 {
        let again = format!("submit {} to 1 for p1 with 5", attempt + 1);
        assert_eq!(say(&mut d, 1005, 2, failed(attempt)), [again]);
        say(&mut d, 1006, 1, started_as(Attempt(attempt + 1)));
    }
    assert_eq!(say(&mut d, 1007, 2, failed(5)), ["failed Device: 3 attempts in a row failed: nan"]);
}

#[test]
fn a_grammar_that_cannot_be_followed_is_an_error_at_once() {
    let (placement, term, step, stage) = (placement_id(1, 1), Term::FIRST, 1, 1);
    let (sequences, kind) = (vec![(seq(1), Attempt::FIRST)], FailureKind::Constraint);
    let why = ComputeFault::Engine("no grammar".to_owned());
    let failed = DataMessage::StepFailed(StepFailure { placement, term, step, stage, sequences, kind, why });
    assert_eq!(say(&mut running(), 1001, 2, failed), ["failed Constraint: no grammar"]);
}

#[test]
fn an_instance_that_was_given_up_ends_the_request_interrupted_or_not() {
    let given_up = || {
        DriverInput::Instances(vec![view(
            1,
            InstanceState::Failed { reason: RemoveReason::Asked { by: node(3) } },
        )])
    };
    let unloaded = format!("unloaded by node {}", node(3));
    assert_eq!(feed(&mut running(), 1001, given_up())[1], format!("failed InstanceGone: {unloaded}"));
    let mut d = running();
    feed(&mut d, 1001, DriverInput::LinkLost(node(1)));
    let out = feed(&mut d, 1002, given_up());
    let lost = format!("the data link to node {} ended", node(1));
    assert_eq!(out, [format!("failed InstanceGone: {lost}; then {unloaded}")]);
}

#[test]
fn what_was_lost_is_said_once_whoever_says_it_again() {
    let lost = gone().to_string();
    let (placement, term, sequence, attempt) = (placement_id(1, 1), Term::FIRST, seq(1), Attempt::FIRST);
    let (kind, why) = (FailureKind::StageLost, PipelineFailure::NodeGone { stage: 1, node: node(2) });
    let by_scheduler = DataMessage::SequenceFailed { placement, term, sequence, attempt, kind, why };
    let (waiting, removed) = (
        InstanceState::Waiting { reason: waits() },
        InstanceState::Failed { reason: RemoveReason::GivenUp(waits()) },
    );
    for first in [
        DriverInput::NodeLost(node(2)),
        DriverInput::Message { from: node(1), message: by_scheduler },
        DriverInput::Instances(vec![view(1, InstanceState::Degraded { reason: gone() })]),
        DriverInput::Instances(vec![view(1, waiting.clone())]),
    ] {
        let interrupted = || {
            let mut d = running();
            token(&mut d, 1000, 2, result(1, 4, 7));
            // A scheduler that fails one sequence is asked again at once: then it is lost as well.
            feed(&mut d, 1001, first.clone());
            feed(&mut d, 1002, DriverInput::NodeLost(node(2)));
            assert_eq!(d.lost(), Some(&gone()));
            d
        };
        let mut d = interrupted();
        feed(&mut d, 1003, DriverInput::Instances(vec![view(1, waiting.clone())]));
        let out = feed(&mut d, 200_000, DriverInput::Tick);
        let stood = "the answer stood still for 198 s after 1 tokens: instance i1 is waiting: no room";
        assert_eq!(out, [format!("failed StageLost: {lost}; {stood}")]);
        let out = feed(&mut interrupted(), 1003, DriverInput::Instances(vec![view(1, removed.clone())]));
        assert_eq!(out, [format!("failed InstanceGone: {lost}; then no room")]);
    }
}

fn rejected(number: u32, why: Rejection) -> DataMessage {
    let (placement, sequence, attempt) = (placement_id(1, number), seq(1), Attempt::FIRST);
    DataMessage::Rejected { placement, sequence, attempt, why }
}

fn not_here() -> Rejection {
    Rejection::NoScheduler { node: node(1), placement: placement_id(1, 1) }
}

fn queue_full() -> Rejection {
    Rejection::QueueFull { instance: InstanceId(1), busy: Busy { waiting: 64, retry_after_s: 7 } }
}

#[test]
fn a_scheduler_that_is_not_up_yet_is_asked_again() {
    let mut d = driver();
    feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    assert!(say(&mut d, 10, 1, rejected(1, not_here())).is_empty());
    assert!(feed(&mut d, 400, DriverInput::Tick).is_empty());
    assert_eq!(feed(&mut d, 510, DriverInput::Tick), ["submit 2 to 1 for p1 with 4"]);
    let again = feed(&mut d, 1010, DriverInput::Tick);
    assert_eq!(again, ["submit 2 to 1 for p1 with 4"], "no answer at all: the same one");
}

#[test]
fn a_late_refusal_of_an_older_or_another_submission_does_not_count() {
    let mut d = driver();
    feed(&mut d, 0, DriverInput::Instances(vec![view(2, InstanceState::Ready)]));
    say(&mut d, 10, 1, rejected(1, not_here()));
    assert_eq!(d.phase(), DriverPhase::Submitted(InstanceId(1)));
}

#[test]
fn an_unanswered_submission_moves_to_the_next_placement() {
    let mut d = driver();
    feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    assert_eq!(feed(&mut d, 1, DriverInput::NodeLost(node(2))), ["cancel at 1"]);
    assert_eq!(d.phase(), DriverPhase::WaitingForInstance, "nobody has heard of it");
    feed(&mut d, 2, DriverInput::Instances(vec![view(2, InstanceState::Ready)]));
    assert_eq!(feed(&mut d, 600, DriverInput::Tick), ["submit 2 to 1 for p2 with 4"]);
}

#[test]
fn a_final_refusal_reaches_the_client_with_its_kind() {
    let mut d = driver();
    feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    let out = say(&mut d, 1, 1, rejected(1, queue_full()));
    assert_eq!(out[1], "failed QueueFull: 64 sequences wait for instance i1, its queue holds no more");
    let refused = DriverInput::PlaceRefused { message: "5 bytes are missing".into() };
    assert_eq!(feed(&mut driver(), 1, refused), ["failed InstanceGone: 5 bytes are missing"]);
}

#[test]
fn every_state_has_its_deadline() {
    let check = |mut d: Driver, last_ms: u64, expected: &str| {
        let early = feed(&mut d, last_ms, DriverInput::Tick);
        assert!(!early.iter().any(|l| l.starts_with("failed")), "{early:?}");
        let out = feed(&mut d, last_ms + 1, DriverInput::Tick);
        assert!(
            out.last().is_some_and(|l| l.starts_with("failed Deadline") && l.contains(expected)),
            "{out:?}"
        );
    };
    check(driver(), 120_000, "not placed");
    assert_eq!(queued().phase(), DriverPhase::Queued(InstanceId(1)));
    check(queued(), 120_000, "queued at instance i1");
    check(running(), 1000 + 65_000 + 4 * 250, "no token for");
    // What was queued when it was lost has never run: it has no more time than one that was not lost.
    let mut lost = queued();
    assert_eq!(feed(&mut lost, 119_000, DriverInput::LinkLost(node(2))), ["cancel at 1"]);
    check(lost, 120_000, "ended; then not started after 120 s");
    let mut last = running();
    say(&mut last, 2000, 1, ended(EndReason::MaxTokens, 1));
    check(last, 12_000, "0 of 1 tokens arrived");
    let mut beaten = running();
    for ms in (1000..3_600_000).step_by(5000) {
        say(&mut beaten, ms, 1, started());
    }
    check(beaten, 3_600_000, "more than 3600 s");
}

/// A card that hangs in a step with another's long prompt may be noticed later than an answer beside it has
/// patience.
#[test]
fn silence_in_the_middle_of_an_answer_interrupts_it_and_the_third_time_ends_it() {
    let mut d = running();
    token(&mut d, 2000, 2, result(1, 4, 7));
    assert!(feed(&mut d, 67_000, DriverInput::Tick).is_empty());
    let again = |n| ["cancel at 1".to_owned(), format!("submit {n} to 1 for p1 with 5")];
    assert_eq!(feed(&mut d, 67_001, DriverInput::Tick), again(2));
    assert_eq!(d.interrupted_by(), Some(&InterruptCause::Said("no token for 65 s".to_owned())));
    // It is computed again, 250 ms for each token of its history longer, and so is the next.
    say(&mut d, 68_000, 1, started_as(Attempt(2)));
    assert!(feed(&mut d, 134_250, DriverInput::Tick).is_empty());
    assert_eq!(feed(&mut d, 134_251, DriverInput::Tick), again(3));
    let mut told = d.clone();
    say(&mut d, 135_000, 1, started_as(Attempt(3)));
    let out = feed(&mut d, 201_251, DriverInput::Tick);
    assert_eq!(out, ["cancel at 1", "failed Deadline: 3 attempts in a row failed: no token for 66 s"]);
    assert!(feed(&mut d, 201_252, DriverInput::Tick).is_empty());
    // A token ends the count.
    token(&mut told, 136_000, 2, TokenResult { attempt: Attempt(3), ..result(1, 5, 8) });
    let out = feed(&mut told, 201_001, DriverInput::Tick);
    assert_eq!(out, ["cancel at 1", "submit 4 to 1 for p1 with 6"]);
}

#[test]
fn what_was_accepted_once_asks_a_full_queue_again() {
    let mut d = queued();
    feed(&mut d, 1000, DriverInput::NodeLost(node(2)));
    let next = DriverInput::Instances(vec![view(2, InstanceState::Ready)]);
    assert_eq!(feed(&mut d, 2000, next), ["submit 2 to 1 for p2 with 4"]);
    let full = |attempt| {
        let (placement, sequence, why) = (placement_id(1, 2), seq(1), queue_full());
        DataMessage::Rejected { placement, sequence, attempt: Attempt(attempt), why }
    };
    for n in 2..10 {
        let ms = 2000 + 500 * u64::from(n - 2);
        assert!(say(&mut d, ms, 1, full(n)).is_empty());
        assert!(feed(&mut d, ms + 499, DriverInput::Tick).is_empty());
        let again = format!("submit {} to 1 for p2 with 4", n + 1);
        assert_eq!(feed(&mut d, ms + 500, DriverInput::Tick), [again]);
    }
    let out = feed(&mut d, 120_001, DriverInput::Tick);
    assert!(out.last().is_some_and(|line| line.starts_with("failed Deadline: stage 1 on node")), "{out:?}");
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let out = feed(&mut running(), 1001, DriverInput::Cancel);
    assert_eq!(out, ["cancel at 1", "ended Cancelled"]);
    assert_eq!(feed(&mut driver(), 0, DriverInput::Cancel), ["ended Cancelled"]);
}

#[test]
fn only_instances_of_the_model_count() {
    let mut other = view(1, InstanceState::Ready);
    other.placement.model = ModelId([8; 32]);
    assert!(feed(&mut driver(), 0, DriverInput::Instances(vec![other])).is_empty());
}

#[test]
fn nothing_is_submitted_before_the_links_to_first_and_last_stage_are_open() {
    let mut d = driver();
    feed(&mut d, 0, linked(&[1]));
    let ready = DriverInput::Instances(vec![view(1, InstanceState::Ready)]);
    assert!(feed(&mut d, 1, ready).is_empty());
    assert_eq!(d.phase(), DriverPhase::WaitingForLink(node(2)));
    assert!(feed(&mut d, 600, linked(&[2])).is_empty());
    assert_eq!(d.phase(), DriverPhase::WaitingForLink(node(1)));
    assert_eq!(feed(&mut d, 700, linked(&[1, 2])), ["submit 1 to 1 for p1 with 4"]);
}

#[test]
fn a_link_that_does_not_open_is_named_in_the_deadline_error() {
    let mut d = driver();
    feed(&mut d, 0, linked(&[1]));
    feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
    let out = feed(&mut d, 120_001, DriverInput::Tick);
    let expected = format!("not started after 120 s: the data link to node {} is not open", node(2));
    assert_eq!(out, [format!("failed Deadline: {expected}")]);
}

#[test]
fn of_two_instances_the_one_that_can_be_reached_is_taken() {
    let mut d = driver();
    feed(&mut d, 0, linked(&[1, 2]));
    let mut far = view(1, InstanceState::Ready);
    far.placement = placement(7, 1, &[1, 3]);
    let near = view(1, InstanceState::Ready);
    let out = feed(&mut d, 1, DriverInput::Instances(vec![far, near]));
    assert_eq!(out, ["submit 1 to 1 for p1 with 4"]);
    assert!(matches!(d.phase(), DriverPhase::Submitted(InstanceId(1))));
}

#[test]
fn stages_on_the_own_node_need_no_link() {
    let mut d = driver();
    feed(&mut d, 0, linked(&[]));
    let mut own = view(1, InstanceState::Ready);
    own.placement = placement(1, 1, &[9, 5, 9]);
    own.stages.push(own.stages[0].clone());
    assert_eq!(feed(&mut d, 1, DriverInput::Instances(vec![own])), ["submit 1 to 9 for p1 with 4"]);
}

#[test]
fn only_messages_of_the_last_submission_count() {
    let second = || {
        let mut d = driver();
        feed(&mut d, 0, DriverInput::Instances(vec![view(1, InstanceState::Ready)]));
        say(&mut d, 10, 1, rejected(1, not_here()));
        assert_eq!(feed(&mut d, 510, DriverInput::Tick), ["submit 2 to 1 for p1 with 4"]);
        d
    };
    let mut d = second();
    let (placement, term, sequence) = (placement_id(1, 1), Term::FIRST, seq(1));
    let failed = |attempt| {
        let (kind, why) = (FailureKind::Device, ComputeFault::Engine("nan".to_owned()));
        let (step, stage, sequences) = (1, 1, vec![(sequence, attempt)]);
        DataMessage::StepFailed(StepFailure { placement, term, step, stage, sequences, kind, why })
    };
    assert!(say(&mut d, 520, 1, started()).is_empty());
    assert_eq!(d.phase(), DriverPhase::Submitted(InstanceId(1)));
    assert!(token(&mut d, 520, 2, result(1, 4, 7)).is_empty());
    assert!(say(&mut d, 520, 1, ended(EndReason::StopToken, 0)).is_empty());
    assert!(say(&mut d, 520, 1, rejected(1, queue_full())).is_empty());
    assert!(say(&mut d, 520, 2, failed(Attempt(1))).is_empty());
    let own = TokenResult { attempt: Attempt(2), ..result(1, 4, 7) };
    assert_eq!(token(&mut d, 530, 2, own), ["token 7 at 4"]);
    assert_eq!(say(&mut d, 540, 2, failed(Attempt(2))), ["submit 3 to 1 for p1 with 5"]);
}

#[test]
fn what_is_said_in_a_term_that_is_over_does_not_count() {
    let mut d = running();
    let (placement, sequence, attempt) = (placement_id(1, 1), seq(1), Attempt::FIRST);
    let started = DataMessage::Started { placement, term: Term(3), sequence, attempt, cached_tokens: 0 };
    say(&mut d, 1000, 1, started);
    assert!(token(&mut d, 1000, 2, result(1, 4, 7)).is_empty(), "of term 1");
    assert!(say(&mut d, 1000, 1, ended(EndReason::StopToken, 0)).is_empty());
    let tokens =
        DriverInput::Tokens { from: node(2), placement, term: Term(3), step: 1, result: result(1, 4, 7) };
    assert_eq!(feed(&mut d, 1000, tokens), ["token 7 at 4"]);
}

/// The old scheduler says so before the news of the next placement come.
#[test]
fn a_submission_that_came_too_early_for_the_next_placement_goes_there_with_its_news() {
    let mut d = running();
    token(&mut d, 1100, 2, result(1, 4, 7));
    let (placement, term, sequence, attempt) = (placement_id(1, 1), Term::FIRST, seq(1), Attempt::FIRST);
    let (kind, why) = (FailureKind::InstanceGone, PipelineFailure::Stopped);
    let failed = DataMessage::SequenceFailed { placement, term, sequence, attempt, kind, why };
    assert_eq!(say(&mut d, 1200, 1, failed), ["submit 2 to 1 for p1 with 5"]);
    let (attempt, why) = (Attempt(2), Rejection::Placement { got: placement, serving: placement_id(1, 2) });
    let rejected = DataMessage::Rejected { placement, sequence, attempt, why };
    assert!(say(&mut d, 1201, 1, rejected).is_empty());
    let known = vec![view(1, InstanceState::Ready)];
    assert!(feed(&mut d, 1202, DriverInput::Instances(known)).is_empty(), "it would be refused again");
    let next = vec![view(2, InstanceState::Ready)];
    assert_eq!(feed(&mut d, 1203, DriverInput::Instances(next)), ["submit 3 to 1 for p2 with 5"]);
}
