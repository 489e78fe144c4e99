use std::time::Duration;

use exo_types::{Attempt, FailureKind, Pooling, Principal, PromptQuery, Time};

use super::*;
use crate::testing::{node, placement, placement_id, result, seq, serving, submission};
use crate::wire::{
    EndReason, PhaseTimes, SequenceTimes, StepFailure, StepMessage, Submission, TokenResult, TokensMessage,
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
    let from = s.placement.stages.last().unwrap().leader().node;
    let (placement, term, failures) = (s.placement.id, s.term(), Vec::new());
    let tokens = TokensMessage {
        placement,
        term,
        step,
        results,
        failures,
        pages: vec![],
        kept: vec![],
        computed_us: vec![],
    };
    s.tokens(Time::ZERO, from, &tokens)
}

/// Outputs as one line each; a step as `step N: open S, close S | S@start+count[*]` (`*` samples).
fn show(out: &[SchedulerOutput]) -> Vec<String> {
    let line = |o: &SchedulerOutput| match o {
        SchedulerOutput::Accepted { sequence, queue_ahead, .. } => {
            format!("accepted {} behind {queue_ahead}", sequence.request.0)
        }
        SchedulerOutput::Started { sequence, cached_tokens: 0, .. } => {
            format!("started {}", sequence.request.0)
        }
        SchedulerOutput::Started { sequence, cached_tokens, .. } => {
            format!("started {} behind {cached_tokens}", sequence.request.0)
        }
        SchedulerOutput::Rejected { sequence, kind, .. } => {
            format!("rejected {} {kind:?}", sequence.request.0)
        }
        SchedulerOutput::Serving => "serving".to_owned(),
        SchedulerOutput::Step(step) => show_step(step),
        SchedulerOutput::Ended { sequence, reason, generated, .. } => {
            format!("ended {} {reason:?} after {generated}", sequence.request.0)
        }
        SchedulerOutput::Failed { sequence, kind, .. } => format!("failed {} {kind:?}", sequence.request.0),
        SchedulerOutput::InstanceFailed { kind, .. } => format!("instance failed {kind:?}"),
        SchedulerOutput::Draft { spec, count } => format!("{} asks for {count}", spec.sequence),
        SchedulerOutput::DraftOver(sequence) => format!("{sequence} asks no more"),
    };
    out.iter().map(line).collect()
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
        StageCommand::Truncate { sequence, .. } => format!("truncate {}", sequence.request.0),
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
    assert_eq!(s.stats().pages_claimed, 0);
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
fn principals_take_turns() {
    let mut s = scheduler(&[1], 4); // one sequence at a time
    let (a, b) = (Principal([1; 16]), Principal([2; 16]));
    submit_as(&mut s, 1, 4, 12, a);
    for (n, who) in [(2, a), (3, a), (4, b)] {
        submit_as(&mut s, n, 4, 12, who);
    }
    let mut order = Vec::new();
    for n in [1, 2, 4] {
        let cancel = cancelled(seq(n));
        let out = show(&s.handle(Time::ZERO, cancel));
        order.extend(out.into_iter().filter(|l| l.starts_with("started")));
    }
    assert_eq!(order, ["started 2", "started 4", "started 3"]);
}

#[test]
fn who_fills_the_queue_takes_nobody_elses_share_of_it() {
    let mut s = scheduler(&[1], 4);
    for n in 1..=4 {
        submit(&mut s, n, 4, 12);
    }
    assert_eq!(show(&submit(&mut s, 5, 4, 12)), ["rejected 5 QueueFull"]);
    let [second, third, fourth] = [2, 3, 4].map(|n| Principal([n; 16]));
    assert_eq!(
        show(&submit_as(&mut s, 6, 4, 12, second)),
        ["accepted 6 behind 3"],
        "one of three seats is its share"
    );
    assert_eq!(show(&submit_as(&mut s, 7, 4, 12, second)), ["rejected 7 QueueFull"]);
    assert_eq!(show(&submit_as(&mut s, 8, 4, 12, third)), ["accepted 8 behind 4"]);
    assert_eq!(
        show(&submit_as(&mut s, 9, 4, 12, fourth)),
        ["rejected 9 QueueFull"],
        "less than a seat for each"
    );
    let ended = show(&s.handle(Time::ZERO, cancelled(seq(1))));
    assert!(ended.contains(&"started 2".to_owned()), "{ended:?}");
    let ended = show(&s.handle(Time::ZERO, cancelled(seq(2))));
    assert!(
        ended.contains(&"started 6".to_owned()),
        "its turn comes before the next of the first: {ended:?}"
    );
}

/// Reports a token of each part of the step that was sent last; who started and ended then.
fn go_on(s: &mut Scheduler) -> Vec<String> {
    let flight = s.in_flight.front().unwrap();
    let step = flight.step;
    let result = |part: &exo_types::StepSequence| TokenResult {
        sequence: part.sequence,
        ..result(part.sequence.request.0, part.end(), 7)
    };
    let results = flight.sampled.iter().map(|(_, part)| result(part)).collect();
    let out = show(&tokens(s, step, results));
    out.into_iter().filter(|line| !line.starts_with("step")).collect()
}

#[test]
fn who_has_all_slots_makes_way_for_who_has_none() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    let [a, b, c] = [1, 2, 3].map(|n| Principal([n; 16]));
    for n in 1..=6 {
        submit_as(&mut s, n, 4, 12, a);
    }
    assert_eq!(go_on(&mut s), Vec::<String>::new());
    assert_eq!(s.running.keys().map(|id| id.request.0).collect::<Vec<_>>(), [1, 2, 3, 4]);

    // All are in a step: it starts when that comes back.
    assert_eq!(show(&submit_as(&mut s, 7, 4, 12, b)), ["accepted 7 behind 2"]);
    assert_eq!(go_on(&mut s), ["started 7"]);
    assert_eq!(show(&submit_as(&mut s, 8, 4, 12, b)), ["accepted 8 behind 3"]);
    assert_eq!(go_on(&mut s), ["started 8"], "two and two");
    submit_as(&mut s, 9, 4, 12, b);
    assert_eq!(go_on(&mut s), Vec::<String>::new(), "more than half is nobody's share");
    submit_as(&mut s, 10, 4, 12, c);
    assert_eq!(go_on(&mut s), ["started 10"]);
    assert_eq!(s.running.len(), 4);

    // What made way goes on before what of its principal had not begun, and has its tokens in all.
    let mut said = Vec::new();
    while !s.running.is_empty() {
        assert!(said.len() < 100, "{said:?}");
        said.extend(go_on(&mut s));
    }
    let position = |line: &str| said.iter().position(|said| said.starts_with(line)).unwrap_or(said.len());
    assert!(position("started 4") < position("started 5"), "{said:?}");
    for n in 1..=10 {
        assert!(said.contains(&format!("ended {n} MaxTokens after 12")), "{n}: {said:?}");
    }
    assert_eq!((s.stats().pages_claimed, s.stats().queued), (0, 0));
}

#[test]
fn the_end_tells_where_the_time_of_prompt_and_answer_went() {
    let mut s = serving(SchedulerConfig::default(), placement(1, 1, &[1, 2]), 64, 4);
    submit(&mut s, 1, 4, 2);
    let from = node(2);
    let mut back = |ms: u64, computed_us: Vec<u32>, position: u32| {
        let (placement, term, step) = (s.placement.id, s.term(), s.in_flight.front().unwrap().step);
        let (results, failures, pages, kept) = (vec![result(1, position, 7)], vec![], vec![], vec![]);
        let tokens = TokensMessage { placement, term, step, results, failures, pages, kept, computed_us };
        s.tokens(Time::from_millis(ms), from, &tokens)
    };
    back(100, vec![30_000, 50_000], 4);
    // One that says more of itself than the step took gets what there was, and further ones are of no stage.
    let out = back(110, vec![4000, 900_000, 1], 5);
    let times = out.iter().find_map(|out| match out {
        SchedulerOutput::Ended { times, .. } => Some(times.clone()),
        _ => None,
    });
    let expected = SequenceTimes {
        prompt: PhaseTimes { stages_us: vec![30_000, 50_000], between_us: 20_000 },
        answer: PhaseTimes { stages_us: vec![4000, 6000], between_us: 0 },
    };
    assert_eq!(times, Some(expected), "{:?}", show(&out));
}

#[test]
fn a_free_slot_is_for_who_runs_least_and_so_nobody_is_paused_again_and_again() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(config, placement, 4096, 4);
    let [long, short] = [1, 2].map(|n| Principal([n; 16]));
    for n in 1..=4 {
        submit_as(&mut s, n, 4, 200, long);
    }
    for n in 11..=13 {
        submit_as(&mut s, n, 4, 2, short);
    }
    let mut said = Vec::new();
    for n in 14..60 {
        submit_as(&mut s, n, 4, 2, short);
        said.extend(go_on(&mut s));
    }
    let is_paused = |line: &&String| line.starts_with("started 3 ") || line.starts_with("started 4 ");
    assert_eq!(said.iter().filter(is_paused).count(), 0, "two and two from the first to the last: {said:?}");
    let run = s.running.keys().filter(|sequence| sequence.request.0 <= 4);
    assert_eq!(run.count(), 2, "{said:?}");
    assert!(said.iter().filter(|line| line.starts_with("ended")).count() > 20, "{said:?}");
}

#[test]
fn of_principals_that_run_as_much_the_turn_decides_however_many_choices_a_request_has() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut placement = placement(1, 1, &[1]);
    placement.slots = 3;
    let mut s = serving(config, placement, 64, 4);
    for index in 0..6 {
        let mut submission = submission(1, 4, 12);
        submission.spec.sequence.index = index;
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    }
    go_on(&mut s);
    let other = Principal([2; 16]);
    submit_as(&mut s, 11, 4, 12, other);
    submit_as(&mut s, 12, 4, 12, other);
    assert_eq!(go_on(&mut s), ["started 11"]);
    let out = show(&s.handle(Time::ZERO, cancelled(seq(1))));
    let started: Vec<_> = out.iter().filter(|line| line.starts_with("started")).collect();
    assert_eq!(started, ["started 1 behind 4"], "the other has had its turn, and each runs one: {out:?}");
}

/// One request with many choices beside another of the same principal.
#[test]
fn choices_that_have_all_slots_make_way_for_another_request() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    for index in 0..6 {
        let mut submission = submission(1, 4, 12);
        submission.spec.sequence.index = index;
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    }
    go_on(&mut s);
    submit(&mut s, 2, 4, 12);
    assert_eq!(go_on(&mut s), ["started 2"]);
    submit(&mut s, 3, 4, 12);
    assert_eq!(go_on(&mut s), ["started 3"], "two choices and two others");
    submit(&mut s, 4, 4, 12);
    assert_eq!(go_on(&mut s), ["started 4"]);
    submit(&mut s, 5, 4, 12);
    assert_eq!(go_on(&mut s), Vec::<String>::new(), "one of each");
    // It is cancelled while it waits: its driver hears of the tokens it has.
    let paused = s.queue.paused().next().unwrap().spec.sequence;
    let ended = s.handle(Time::ZERO, cancelled(paused));
    let SchedulerOutput::Ended { generated, .. } = &ended[0] else { panic!("{ended:?}") };
    assert!(*generated > 0);
}

#[test]
fn who_made_way_hears_that_the_pipeline_moves_and_who_runs_nothing_is_not_overtaken() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    // Sixteen pages: four sequences that may become as long as the context have them all.
    let mut s = serving(config, placement(1, 1, &[1]), 16, 4);
    let [a, b, c] = [1, 2, 3].map(|n| Principal([n; 16]));
    for n in 1..=4 {
        submit_as(&mut s, n, 4, 12, a);
    }
    go_on(&mut s);
    // The first needs more than one that makes way gives back, and who came later does not go first.
    submit_as(&mut s, 5, 4, 28, b);
    submit_as(&mut s, 6, 4, 12, c);
    assert_eq!(go_on(&mut s), Vec::<String>::new());
    s.handle(Time::ZERO, cancelled(seq(5)));
    assert_eq!(go_on(&mut s), ["started 6"]);
    let now = Time::ZERO + BEAT_EVERY;
    s.completed_at = now;
    assert_eq!(show(&s.handle(now, SchedulerInput::Tick)), ["started 6", "started 4"]);
}

#[test]
fn a_full_queue_rejects_and_a_repeated_submission_does_not_count() {
    let mut s = scheduler(&[1], 4);
    for n in 1..=4 {
        submit(&mut s, n, 4, 12);
    }
    let refused = submit(&mut s, 5, 4, 12);
    assert_eq!(show(&refused), ["rejected 5 QueueFull"]);
    let [SchedulerOutput::Rejected { busy: Some(busy), .. }] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!((busy.waiting, busy.retry_after_s), (3, 5), "no answer has ended yet");
    assert_eq!(show(&submit(&mut s, 4, 4, 12)), ["accepted 4 behind 2"]);
    assert_eq!(s.stats().queued, 3);
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
    assert_eq!(s.stats().running, 1);
    s.handle(Time::ZERO, SchedulerInput::LinkLost(node(9)));
    assert_eq!((s.stats().running, s.stats().pages_claimed), (0, 0));
}

#[test]
fn a_silent_pipeline_ends_its_term_after_the_step_deadline() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12); // 30 s, and 4 tokens more at 250 ms
    assert!(s.handle(Time::from_millis(31_000), SchedulerInput::Tick).is_empty());
    let out = show(&s.handle(Time::from_millis(31_001), SchedulerInput::Tick));
    assert_eq!(out[0], "failed 1 StageLost");
    assert_eq!((s.term(), s.is_serving()), (exo_types::Term(2), false));
    assert_eq!(s.config.step_deadline, Duration::from_secs(30));
}

#[test]
fn a_silent_pipeline_of_known_pace_ends_its_term_after_two_seconds() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12);
    // The prompt, and four decodes that took no time.
    (1..=5).for_each(|step| drop(tokens(&mut s, step, vec![result(1, 3 + step as u32, 60 + step as u32)])));
    assert!(s.handle(Time::from_millis(2000), SchedulerInput::Tick).is_empty());
    let out = s.handle(Time::from_millis(2001), SchedulerInput::Tick);
    let Some(SchedulerOutput::Failed { message, .. }) = out.first() else { panic!("{out:?}") };
    assert_eq!(message, "step 6 did not come back in 2.0 s");
    assert_eq!(s.term(), exo_types::Term(2));
}

#[test]
fn tokens_that_do_not_reach_their_driver_cost_their_sequence_only() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12);
    submit(&mut s, 2, 4, 12);
    let undelivered = |number, from| SchedulerInput::Undelivered {
        from: node(from),
        placement: placement_id(1, number),
        term: Term::FIRST,
        sequences: vec![(seq(1), Attempt::FIRST), (seq(2), Attempt(2))],
        message: "no link".to_owned(),
    };
    assert!(s.handle(Time::ZERO, undelivered(2, 2)).is_empty(), "of another placement");
    assert!(s.handle(Time::ZERO, undelivered(1, 7)).is_empty(), "not of a stage");
    let out = show(&s.handle(Time::ZERO, undelivered(1, 2)));
    assert_eq!(out, ["failed 1 StageLost"]);
    assert_eq!(s.stats().running, 1);
}

fn failed(s: &mut Scheduler, step: u64, n: u128, kind: FailureKind) -> Vec<String> {
    let from = s.placement.stages.last().unwrap().leader().node;
    let (placement, term) = (s.placement.id, s.term());
    let (sequences, message) = (vec![(seq(n), Attempt::FIRST)], "broken".to_owned());
    let failure = StepFailure { placement, term, step, stage: 0, sequences, kind, message };
    let tokens = TokensMessage {
        placement,
        term,
        step,
        results: vec![],
        failures: vec![failure],
        pages: vec![],
        kept: vec![],
        computed_us: vec![],
    };
    show(&s.tokens(Time::ZERO, from, &tokens))
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

#[test]
fn a_step_that_comes_back_without_its_token_fails_the_sequence() {
    let mut s = scheduler(&[1], 64);
    submit(&mut s, 1, 4, 12);
    assert_eq!(show(&tokens(&mut s, 1, vec![result(1, 9, 7)]))[0], "failed 1 Protocol");
    assert_eq!(show(&tokens(&mut s, 1, vec![])), Vec::<String>::new(), "a repeated outcome is ignored");
}

#[test]
fn those_behind_long_prompts_hear_that_the_pipeline_moves() {
    let mut s = scheduler(&[1], 64);
    submit(&mut s, 1, 60, 4);
    submit(&mut s, 2, 2, 4);
    let tick = |s: &mut Scheduler, ms| show(&s.handle(Time::from_millis(ms), SchedulerInput::Tick));
    assert!(tick(&mut s, 6_000).is_empty(), "no step came back yet");
    s.completed_at = Time::from_millis(6_500);
    assert_eq!(tick(&mut s, 7_000), ["started 1", "started 2"]);
    assert!(tick(&mut s, 20_000).is_empty(), "nothing moved since");
}

/// Answers every step at the pace of a device: 40 ms a step and `prompt_us` a prompt token, until `until` tokens of
/// sequence 1 are there. Gives the longest time between two of its tokens after the first.
fn longest_gap(s: &mut Scheduler, mut out: Vec<SchedulerOutput>, prompt_us: u64, until: u32) -> Duration {
    let (mut steps, mut now, mut last, mut gap) = (VecDeque::new(), Time::ZERO, None, Duration::ZERO);
    loop {
        steps.extend(out.drain(..).filter_map(|o| match o {
            SchedulerOutput::Step(step) => Some(step),
            _ => None,
        }));
        let Some(step) = steps.pop_front() else { return gap };
        let prompt: u64 = step.frame.sequences.iter().map(|p| p.tokens.len() as u64).filter(|n| *n > 1).sum();
        now = now + Duration::from_micros(40_000 + prompt_us * prompt);
        let sampled = step.frame.sequences.iter().filter(|p| p.sample);
        let results: Vec<_> = sampled.map(|p| result(p.sequence.request.0, p.sample_position(), 7)).collect();
        if results.iter().any(|r| r.sequence == seq(1)) {
            gap = gap.max(last.map_or(Duration::ZERO, |last| now.since(last)));
            last = Some(now);
        }
        if s.running.get(&seq(1)).is_none_or(|r| r.generated >= until) {
            return gap;
        }
        let from = s.placement.stages.last().unwrap().leader().node;
        let (placement, term, failures) = (s.placement.id, s.term(), Vec::new());
        let tokens = TokensMessage {
            placement,
            term,
            step: step.frame.step,
            results,
            failures,
            pages: vec![],
            kept: vec![],
            computed_us: vec![],
        };
        out = s.tokens(now, from, &tokens);
    }
}

#[test]
fn a_long_prompt_does_not_hold_up_a_running_sequence() {
    for (on, prompt_us) in [(&[1][..], 100), (&[1], 2_500), (&[1], 12_000), (&[1, 2], 2_500)] {
        let mut placement = placement(1, 1, on);
        placement.context_tokens = 4096;
        let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
        let mut s = serving(config, placement, 1024, 32);
        let mut out = submit(&mut s, 1, 2, 400);
        out.extend(submit(&mut s, 2, 2000, 4));
        let gap = longest_gap(&mut s, out, prompt_us, 300);
        assert!(gap < Duration::from_millis(300), "{prompt_us} us a token on {on:?}: {gap:?}");
        assert!(!s.running.contains_key(&seq(2)), "and the prompt was read meanwhile");
    }
}

#[test]
fn alone_a_prompt_is_read_in_large_chunks() {
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(SchedulerConfig::default(), placement, 1024, 32);
    let out = submit(&mut s, 1, 3000, 4);
    assert_eq!(show(&out)[2], "step 1: open 1 | 1@0+128", "nothing is measured yet");
    s.completed_at = Time::ZERO;
    let from = node(1);
    let (id, term, results, failures) = (s.placement.id, s.term(), vec![], Vec::new());
    let tokens = TokensMessage {
        placement: id,
        term,
        step: 1,
        results,
        failures,
        pages: vec![],
        kept: vec![],
        computed_us: vec![],
    };
    let out = s.tokens(Time::from_millis(64), from, &tokens);
    let two = ["step 2: keep 1 4 | 1@128+512", "step 3:  | 1@640+512"];
    assert_eq!(show(&out), two, "0.5 ms a token: the largest chunk, and the next before it is done");
}

/// `step` took `ms` since the one before it; what goes out then.
fn back_after(s: &mut Scheduler, step: u64, ms: u64, results: Vec<TokenResult>) -> Vec<String> {
    let (from, now) = (node(1), s.completed_at + Duration::from_millis(ms));
    let (placement, term, failures) = (s.placement.id, s.term(), Vec::new());
    let tokens = TokensMessage {
        placement,
        term,
        step,
        results,
        failures,
        pages: vec![],
        kept: vec![],
        computed_us: vec![],
    };
    show(&s.tokens(now, from, &tokens))
}

#[test]
fn the_next_chunk_goes_ahead_until_somebody_waits_for_a_token() {
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(SchedulerConfig::default(), placement, 1024, 32);
    submit(&mut s, 1, 1300, 4);
    submit(&mut s, 2, 2000, 4);
    assert_eq!(back_after(&mut s, 1, 64, vec![]).len(), 2, "one more than there are stages");
    assert_eq!(back_after(&mut s, 2, 256, vec![]), ["step 4: keep 1 16, open 2 | 1@1152+148* 2@0+364"]);
    assert_eq!(back_after(&mut s, 3, 256, vec![]), Vec::<String>::new(), "step 4 gives a token");
    let first = back_after(&mut s, 4, 256, vec![result(1, 1300, 7)]);
    assert!(first.len() == 1 && first[0].contains("| 1@1300+") && first[0].contains(" 2@364+"), "{first:?}");
}

#[test]
fn what_fails_with_the_chunk_in_front_is_one_fault() {
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(SchedulerConfig::default(), placement, 1024, 32);
    submit(&mut s, 1, 3000, 4);
    assert_eq!(back_after(&mut s, 1, 64, vec![]).len(), 2);
    for step in [2, 3] {
        let (placement, term, message) = (s.placement.id, s.term(), String::new());
        let (sequences, kind) = (vec![(seq(1), Attempt::FIRST)], FailureKind::Device);
        let failures = vec![StepFailure { placement, term, step, stage: 0, sequences, kind, message }];
        let tokens = TokensMessage {
            placement,
            term,
            step,
            results: vec![],
            failures,
            pages: vec![],
            kept: vec![],
            computed_us: vec![],
        };
        let now = s.completed_at + Duration::from_millis(256);
        s.tokens(now, node(1), &tokens);
        assert_eq!(s.failures_in_row, 1);
    }
}

#[test]
fn nothing_is_left_of_a_sequence_that_is_cancelled_with_two_chunks_in_flight() {
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(SchedulerConfig::default(), placement, 1024, 32);
    submit(&mut s, 1, 3000, 4);
    assert_eq!(back_after(&mut s, 1, 64, vec![]).len(), 2);
    assert_eq!(cancel(&mut s, 1), ["ended 1 Cancelled after 0"]);
    assert_eq!((s.stats().steps_in_flight, s.stats().pages_claimed), (2, 0));
    // The same sequence again: of what is still on its way it keeps nothing.
    let submission = Submission { attempt: Attempt(2), ..submission(1, 3000, 4) };
    let again = s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    assert_eq!(show(&again), ["accepted 1 behind 0", "started 1 behind 128"]);
    let behind_the_first_chunk = ["step 4: close 1, open 1 behind 4 | 1@128+512"];
    assert_eq!(back_after(&mut s, 2, 256, vec![]), behind_the_first_chunk);
    assert_eq!(back_after(&mut s, 3, 256, vec![]), ["step 5:  | 1@640+512"]);
    assert_eq!(back_after(&mut s, 4, 256, vec![]), ["step 6: keep 1 16 | 1@1152+512"]);
}

#[test]
fn where_chunks_take_long_none_goes_ahead() {
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(SchedulerConfig::default(), placement, 1024, 32);
    submit(&mut s, 1, 3000, 4);
    // 1 ms a token: the largest chunk takes half a second.
    assert_eq!(back_after(&mut s, 1, 128, vec![]), ["step 2: keep 1 4 | 1@128+512"]);
}

const TEXT: [u32; 11] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const WE: Principal = Principal::LOCAL;

/// A scheduler that has run sequence 1 over `TEXT` to its end, two tokens of answer, on two stages: all is idle.
fn after_one(pages: u32) -> Scheduler {
    let mut s = scheduler(&[1, 2], pages);
    submit_text(&mut s, 1, &TEXT, 2, WE);
    tokens(&mut s, 1, vec![]);
    let out = tokens(&mut s, 2, vec![result(1, 11, 7)]);
    assert_eq!(show(&out), ["step 3: keep 1 2 | 1@11+1*"]);
    let out = tokens(&mut s, 3, vec![result(1, 12, 7)]);
    assert_eq!(
        show(&out),
        ["ended 1 MaxTokens after 2", "step 4: keep 1 1, close 1 | "],
        "eleven and a token"
    );
    tokens(&mut s, 4, vec![]);
    assert_eq!((s.stats().pages_cached, s.stats().pages_claimed), (3, 0));
    s
}

#[test]
fn a_prompt_begins_behind_what_is_kept_of_an_earlier_one() {
    let mut s = after_one(16);
    // The answer is kept too: a chat's next turn repeats it.
    let next = [&TEXT[..], &[7, 7, 3]].concat();
    let out = submit_text(&mut s, 2, &next, 4, WE);
    assert_eq!(out[1..], ["started 2 behind 12", "step 5: open 2 behind 3 | 2@12+2*"]);
    assert_eq!((s.stats().prompt_tokens, s.stats().cached_tokens), (25, 12));
}

#[test]
fn the_last_token_is_computed_even_if_its_page_is_kept() {
    let mut s = after_one(16);
    let out = submit_text(&mut s, 2, &[&TEXT[..], &[7]].concat(), 4, WE);
    assert_eq!(out[1..], ["started 2 behind 8", "step 5: open 2 behind 2 | 2@8+4*"]);
}

/// Submits a sequence that asks something of its prompt.
fn submit_query(s: &mut Scheduler, n: u128, text: &[u32], query: PromptQuery) -> Vec<String> {
    let mut submission = submission(n, text.len() as u32, 1);
    (submission.spec.history, submission.spec.query) = (text.to_vec(), query);
    show(&s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission }))
}

#[test]
fn what_is_asked_of_all_rows_is_computed_from_the_first_and_waits_for_nobody() {
    let mut s = after_one(16);
    let out = submit_query(&mut s, 2, &TEXT, PromptQuery::Scores);
    assert_eq!(out[1..], ["started 2", "step 5: open 2 | 2@0+8", "step 6:  | 2@8+3*"]);
    // The last row is the same behind kept pages.
    let mut s = after_one(16);
    let out = submit_query(&mut s, 2, &TEXT, PromptQuery::Embedding(Pooling::Last));
    assert_eq!(out[1..], ["started 2 behind 8", "step 5: open 2 behind 2 | 2@8+3*"]);
    // Once something was generated the report is there, and a replay is like any other.
    let mut s = after_one(16);
    let mut submission = submission(2, 10, 1);
    (submission.spec.history, submission.spec.query) = (TEXT.to_vec(), PromptQuery::Scores);
    let out = show(&s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission }));
    assert_eq!(out[1..], ["started 2 behind 8", "step 5: open 2 behind 2 | 2@8+3*"]);
}

#[test]
fn one_step_brings_back_no_more_reports_than_its_message_holds() {
    let config = SchedulerConfig { queue_len_max: 80, ..SchedulerConfig::default() };
    let placement = Placement { slots: 80, ..placement(1, 1, &[1]) };
    let count = |query: PromptQuery, of: u128| {
        let mut s = serving(config, placement.clone(), 400, 4);
        let mut parts = Vec::new();
        for n in 1..=of {
            let out = submit_query(&mut s, n, &[n as u32 % 50], query);
            parts.extend(
                out.iter().filter(|line| line.starts_with("step")).map(|line| line.matches('@').count()),
            );
        }
        // The first took a step of its own; when it is back all others are there.
        let out = show(&tokens(&mut s, 1, vec![result(1, 1, 99)]));
        parts
            .extend(out.iter().filter(|line| line.starts_with("step")).map(|line| line.matches('@').count()));
        parts[..2].to_vec()
    };
    assert_eq!(count(PromptQuery::Scores, 10), [1, 4]);
    assert_eq!(count(PromptQuery::Embedding(Pooling::Mean), 10), [1, 9]);
}

#[test]
fn nothing_is_shared_between_principals() {
    let mut s = after_one(16);
    let out = submit_text(&mut s, 2, &TEXT, 4, Principal([3; 16]));
    assert_eq!(out[1..], ["started 2", "step 5: open 2 | 2@0+8", "step 6:  | 2@8+3*"]);
}

#[test]
fn what_fits_only_after_eviction_is_admitted_and_stages_forget_what_they_must() {
    let mut s = after_one(4); // 16 tokens
    let out = submit_text(&mut s, 2, &[40; 12], 4, WE);
    assert_eq!(out[1..], ["started 2", "step 5: forget 1, open 2 | 2@0+8", "step 6: forget 1 | 2@8+4*"]);
    let out = tokens(&mut s, 5, vec![]);
    assert!(out.is_empty(), "keeping alone is worth no step: {out:?}");
    let out = tokens(&mut s, 6, vec![result(2, 12, 7)]);
    assert_eq!(show(&out), ["step 7: keep 2 2, keep 2 1, forget 1 | 2@12+1*"]);
    assert_eq!((s.stats().pages_used, s.stats().pages_cached), (4, 0));
}

#[test]
fn equal_prompts_are_computed_once() {
    let mut s = scheduler(&[1], 64);
    submit_text(&mut s, 1, &TEXT, 4, WE);
    for n in 2..=3 {
        assert_eq!(submit_text(&mut s, n, &TEXT, 4, WE)[1], format!("started {n}"), "it has its slot");
    }
    assert_eq!(submit_text(&mut s, 4, &[&[1], &TEXT[..]].concat(), 4, WE)[1], "started 4");
    let out = show(&tokens(&mut s, 1, vec![]));
    assert_eq!(
        out,
        [
            "started 2 behind 8",
            "started 3 behind 8",
            "step 2: keep 1 2, open 2 behind 2, open 3 behind 2 | 1@8+3* 2@8+3* 3@8+2"
        ]
    );
    let out = show(&tokens(&mut s, 2, vec![result(1, 11, 7), result(2, 11, 7)]));
    assert_eq!(out, ["step 3: open 4 | 1@11+1* 2@11+1* 3@10+1* 4@0+7"]);
}

#[test]
fn who_waits_for_a_prompt_goes_on_when_it_is_given_up() {
    let mut s = scheduler(&[1, 2], 64);
    submit_text(&mut s, 1, &[4; 40], 4, WE);
    submit_text(&mut s, 2, &[4; 40], 4, WE);
    let out = tokens(&mut s, 1, vec![]);
    assert_eq!(show(&out), ["step 3: keep 1 2 | 1@16+8"], "2 waits");
    assert_eq!(cancel(&mut s, 1), ["ended 1 Cancelled after 0"]);
    let out = tokens(&mut s, 2, vec![]);
    assert_eq!(show(&out), ["started 2 behind 8", "step 4: close 1, open 2 behind 2 | 2@8+8"]);
}

#[test]
fn nothing_is_kept_of_a_step_that_failed() {
    let mut s = scheduler(&[1], 64);
    submit_text(&mut s, 1, &TEXT, 4, WE);
    assert_eq!(failed(&mut s, 1, 1, FailureKind::Device), ["failed 1 Device", "step 2: close 1 | "]);
    assert_eq!((s.stats().pages_cached, s.stats().pages_claimed), (0, 0));
}

#[test]
fn choices_of_one_request_take_turns_with_other_requests() {
    let config = SchedulerConfig { chunk_tokens_max: 8, queue_len_max: 9, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 4, 4);
    let mut request = |n: u128, index: u16| {
        let mut submission = submission(n, 4, 12);
        submission.spec.sequence.index = index;
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    };
    (0..4).for_each(|index| request(1, index));
    (2..4).for_each(|n| request(n, 0));
    let mut order = Vec::new();
    while let Some((&sequence, _)) = s.running.first_key_value() {
        order.push((sequence.request.0, sequence.index));
        s.handle(Time::ZERO, cancelled(sequence));
    }
    assert_eq!(order, [(1, 0), (1, 1), (2, 0), (3, 0), (1, 2), (1, 3)]);
}

fn submit_again(s: &mut Scheduler, n: u128, attempt: u16) -> Vec<SchedulerOutput> {
    let submission = Submission { attempt: Attempt(attempt), ..submission(n, 4, 4) };
    s.handle(s.now, SchedulerInput::Submit { from: node(9), submission })
}

/// The reason of the only output, a refusal.
fn refusal(out: &[SchedulerOutput]) -> &str {
    match out {
        [SchedulerOutput::Rejected { message, .. }] => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_equal_attempt_is_answered_again_with_what_was_said() {
    let mut s = scheduler(&[1], 4); // one sequence at a time
    submit(&mut s, 1, 4, 4);
    submit(&mut s, 2, 4, 12);
    assert_eq!(show(&submit_again(&mut s, 1, 1)), ["started 1"]);
    assert_eq!(show(&submit_again(&mut s, 2, 1)), ["accepted 2 behind 0"]);
    tokens(&mut s, 1, vec![result(1, 4, 99)]);
    tokens(&mut s, 2, vec![result(2, 4, 99)]);
    tokens(&mut s, 3, vec![]);
    s.handle(Time::from_millis(119_999), SchedulerInput::Tick);
    assert_eq!(show(&submit_again(&mut s, 1, 1)), ["ended 1 StopToken after 1"]);
    assert_eq!((s.stats().steps, s.stats().queued, s.stats().running), (3, 0, 0), "nothing began");
    s.handle(Time::from_millis(120_000), SchedulerInput::Tick);
    assert_eq!(show(&submit_again(&mut s, 1, 1))[..2], ["accepted 1 behind 0", "started 1"], "forgotten");
}

#[test]
fn a_lower_attempt_is_refused_by_name() {
    let mut s = scheduler(&[1], 16);
    submit_again(&mut s, 1, 3);
    let out = submit_again(&mut s, 1, 2);
    let sequence = seq(1);
    assert_eq!(refusal(&out), format!("attempt 2 of sequence {sequence} was submitted after attempt 3"));
    assert!(cancel(&mut s, 1).is_empty(), "the first submission is not the third");
    tokens(&mut s, 1, vec![TokenResult { attempt: Attempt(3), ..result(1, 4, 99) }]);
    assert!(refusal(&submit_again(&mut s, 1, 2)).contains("after attempt 3"), "it has ended");
}

#[test]
fn a_higher_attempt_takes_the_place_of_the_one_before_which_ends_in_silence() {
    let mut s = scheduler(&[1], 4); // one sequence at a time
    submit(&mut s, 1, 4, 4);
    submit(&mut s, 2, 4, 12);
    let out = show(&submit_again(&mut s, 1, 2));
    assert_eq!(out, ["accepted 1 behind 1", "started 2"]);
    let out = show(&submit_again(&mut s, 1, 3));
    assert_eq!(out, ["accepted 1 behind 0"], "queued once");
    // A failure that the first attempt left behind does not touch the third.
    cancel(&mut s, 2);
    assert_eq!((s.stats().queued, s.running.keys().copied().collect::<Vec<_>>()), (0, vec![seq(1)]));
    assert_eq!(failed(&mut s, 1, 1, FailureKind::Device), ["step 2: close 1, open 1 | 1@0+4*"]);
    assert!(s.running.contains_key(&seq(1)));
}

/// The link to a node ends at this time.
fn link_lost(s: &mut Scheduler, ms: u64, n: u8) -> Vec<String> {
    show(&s.handle(Time::from_millis(ms), SchedulerInput::LinkLost(node(n))))
}

/// Step 0 of the term is back at this time. Every stage keeps what it named.
fn wired(s: &mut Scheduler, ms: u64) -> Vec<String> {
    let kept = s.opening.as_ref().map(|opening| opening.kept.clone()).unwrap_or_default();
    wired_with(s, ms, kept)
}

/// The same, where all stages keep no more than these pages.
fn wired_with(s: &mut Scheduler, ms: u64, kept: Vec<exo_types::PageKey>) -> Vec<String> {
    let from = s.placement.stages.last().unwrap().leader().node;
    let pages = vec![crate::wire::StagePages { pages: 16, page_tokens: 4 }; s.placement.stages.len()];
    let (placement, term, results, failures) = (s.placement.id, s.term(), vec![], vec![]);
    let tokens =
        TokensMessage { placement, term, step: 0, results, failures, pages, kept, computed_us: vec![] };
    show(&s.tokens(Time::from_millis(ms), from, &tokens))
}

#[test]
fn a_link_that_ends_begins_the_next_term_in_place() {
    let mut s = scheduler(&[1, 2, 3], 16);
    submit(&mut s, 1, 4, 12);
    for n in 2..=5 {
        submit(&mut s, n, 4, 12); // four slots: the last one waits
    }
    assert!(link_lost(&mut s, 10, 7).is_empty(), "no link of the pipeline");
    let out = s.handle(Time::from_millis(10), SchedulerInput::LinkLost(node(3)));
    let terms: Vec<_> = out
        .iter()
        .filter_map(|o| match o {
            SchedulerOutput::Failed { term, kind: FailureKind::StageLost, .. } => Some((0, *term)),
            SchedulerOutput::Step(step) => Some((step.frame.step + 1, step.frame.term)),
            _ => None,
        })
        .collect();
    assert_eq!(terms, [(0, Term(1)), (0, Term(1)), (0, Term(1)), (0, Term(1)), (1, Term(2))]);
    assert!(!s.is_serving());
    assert_eq!(show(&submit(&mut s, 6, 4, 12)), ["accepted 6 behind 1"], "who comes meanwhile waits");
    let out = wired(&mut s, 20);
    assert_eq!(out[..3], ["serving", "started 5", "started 6"]);
    assert_eq!(out[3], "step 1: open 5, open 6 | 5@0+4* 6@0+4*", "the pipeline begins empty");
}

/// An answer of one token behind a prompt of nine is interrupted: two full pages of it are kept. Gives their names.
fn interrupted(s: &mut Scheduler) -> Vec<exo_types::PageKey> {
    submit(s, 1, 9, 12);
    tokens(s, 1, vec![]);
    tokens(s, 2, vec![result(1, 9, 7)]);
    assert_eq!(link_lost(s, 10, 2), ["failed 1 StageLost", "step 0:  | "]);
    s.opening.as_ref().map(|opening| opening.kept.clone()).unwrap_or_default()
}

/// It goes on where its tokens end.
fn resume(s: &mut Scheduler, attempt: u16, tokens: &[u32]) -> Vec<String> {
    let mut submission = Submission { attempt: Attempt(attempt), ..submission(1, 9, 12) };
    submission.spec.history.extend(tokens);
    show(&s.handle(s.now, SchedulerInput::Submit { from: node(9), submission }))
}

#[test]
fn an_interrupted_answer_goes_on_behind_the_pages_that_every_stage_keeps() {
    let mut s = scheduler(&[1, 2], 16);
    assert_eq!(interrupted(&mut s).len(), 2);
    assert_eq!(resume(&mut s, 2, &[7]), ["accepted 1 behind 0"]);
    let out = wired(&mut s, 20);
    assert_eq!(out, ["serving", "started 1 behind 8", "step 1: open 1 behind 2 | 1@8+2*"]);
    assert_eq!(s.term(), Term(2));
}

#[test]
fn pages_that_one_stage_lacks_are_forgotten_by_all_in_a_further_term() {
    let mut s = scheduler(&[1, 2], 16);
    let kept = interrupted(&mut s);
    resume(&mut s, 2, &[7]);
    let first = vec![kept[0]];
    assert_eq!(wired_with(&mut s, 20, first.clone()), ["step 0:  | "], "the stages do not keep the same");
    assert_eq!((s.term(), s.opening.as_ref().map(|opening| opening.kept.clone())), (Term(3), Some(first)));
    assert_eq!(wired(&mut s, 30), ["serving", "started 1 behind 4", "step 1: open 1 behind 1 | 1@4+6*"]);
    // What a stage names and the scheduler does not know counts for nothing.
    link_lost(&mut s, 40, 2);
    assert_eq!(wired_with(&mut s, 50, vec![kept[0], exo_types::PageKey(99)]), ["serving"]);
    assert_eq!(s.stats().pages_cached, 1);
}

#[test]
fn pages_beyond_what_the_driver_has_are_not_begun_with() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12);
    for (step, position) in (1..).zip(4..10) {
        tokens(&mut s, step, vec![result(1, position, 20 + position)]);
    }
    link_lost(&mut s, 10, 2);
    wired(&mut s, 20);
    assert_eq!(s.stats().pages_cached, 2, "its prompt and four tokens");
    let mut other = Submission { attempt: Attempt(2), ..submission(1, 4, 12) };
    other.spec.history.extend([24, 25, 8]);
    let out = show(&s.handle(s.now, SchedulerInput::Submit { from: node(9), submission: other }));
    assert_eq!(out[1..], ["started 1 behind 4", "step 1: open 1 behind 1 | 1@4+3*"]);
}

#[test]
fn what_is_of_another_term_is_ignored() {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 4, 12);
    link_lost(&mut s, 10, 2);
    wired(&mut s, 20);
    submit(&mut s, 2, 4, 12);
    let (from, placement) = (node(2), s.placement.id);
    for term in [Term(1), Term(3)] {
        let (results, failures, pages) = (vec![result(2, 4, 7)], vec![], vec![]);
        let tokens = TokensMessage {
            placement,
            term,
            step: 1,
            results,
            failures,
            pages,
            kept: vec![],
            computed_us: vec![],
        };
        assert!(s.tokens(Time::from_millis(30), from, &tokens).is_empty());
        let inputs = [
            SchedulerInput::NotWired { from, placement, term, step: 1, missing: String::new() },
            SchedulerInput::PipelineBroken {
                from,
                placement,
                term,
                kind: FailureKind::StageLost,
                message: String::new(),
            },
        ];
        for input in inputs {
            assert!(s.handle(Time::from_millis(30), input).is_empty());
        }
    }
    assert_eq!((s.term(), s.stats().running), (Term(2), 1));
}

#[test]
fn three_terms_without_a_token_within_half_a_minute_give_the_instance_up() {
    // The first term begins with the scheduler.
    let lose = |s: &mut Scheduler, ms| {
        let out = link_lost(s, ms, 2);
        wired(s, ms + 1);
        out.last().cloned().unwrap_or_default()
    };
    let mut s = scheduler(&[1, 2], 16);
    assert_eq!(lose(&mut s, 1000), "step 0:  | ");
    assert_eq!(lose(&mut s, 2000), "step 0:  | ");
    let out = s.handle(Time::from_millis(3000), SchedulerInput::LinkLost(node(2)));
    let [SchedulerOutput::InstanceFailed { message, .. }] = &out[..] else { panic!("{out:?}") };
    assert!(message.starts_with("no token came back in 3 terms within 30 s: the data link to"), "{message}");

    let mut s = scheduler(&[1, 2], 16);
    for ms in [1000, 2000, 31_500, 32_500] {
        assert_eq!(lose(&mut s, ms), "step 0:  | ", "{ms}");
    }
    let mut s = scheduler(&[1, 2], 16);
    (1..=2).for_each(|n| drop(lose(&mut s, n * 1000)));
    submit(&mut s, 1, 4, 12);
    tokens(&mut s, 1, vec![result(1, 4, 7)]);
    assert_eq!(lose(&mut s, 3000), "step 0:  | ", "a token came");
}

#[test]
fn a_broken_pipeline_ends_the_term_where_a_link_ended_and_else_the_placement() {
    let broken = |kind| {
        let mut s = scheduler(&[1, 2], 16);
        let (from, placement, term, message) = (node(2), s.placement.id, s.term(), "why".to_owned());
        let input = SchedulerInput::PipelineBroken { from, placement, term, kind, message };
        show(&s.handle(Time::ZERO, input))
    };
    assert_eq!(broken(FailureKind::StageLost), ["step 0:  | "]);
    assert_eq!(broken(FailureKind::Protocol), ["instance failed Protocol"]);
}

#[test]
fn an_end_is_told_again_with_its_reason() {
    let mut s = scheduler(&[1], 16);
    submit(&mut s, 1, 4, 12);
    cancel(&mut s, 1);
    let out = submit_again(&mut s, 1, 1);
    let [SchedulerOutput::Ended { reason, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(*reason, EndReason::Cancelled);
    submit(&mut s, 2, 4, 12);
    tokens(&mut s, 1, vec![result(1, 4, 7)]);
    failed(&mut s, 2, 2, FailureKind::OutOfMemory);
    assert_eq!(show(&submit_again(&mut s, 2, 1)), ["failed 2 OutOfMemory"]);
}
