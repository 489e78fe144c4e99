//! A submission that comes again.

use super::*;
use crate::wire::Rejection;

/// The reason of the only output, a refusal.
fn refusal(out: &[SchedulerOutput]) -> &Rejection {
    match out {
        [SchedulerOutput::Send { message: DataMessage::Rejected { why, .. }, .. }] => why,
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
    assert_eq!(
        (s.load_report().steps, s.load_report().waiting, s.load_report().running),
        (3, 0, 0),
        "nothing began"
    );
    s.handle(Time::from_millis(120_000), SchedulerInput::Tick);
    assert_eq!(show(&submit_again(&mut s, 1, 1))[..2], ["accepted 1 behind 0", "started 1"], "forgotten");
}

#[test]
fn a_lower_attempt_is_refused_by_name() {
    let mut s = scheduler(&[1], 16);
    submit_again(&mut s, 1, 3);
    let out = submit_again(&mut s, 1, 2);
    let sequence = seq(1);
    let (got, known) = (Attempt(2), Attempt(3));
    assert_eq!(refusal(&out), &Rejection::Earlier { sequence, got, known });
    assert!(cancel(&mut s, 1).is_empty(), "the first submission is not the third");
    tokens(&mut s, 1, vec![TokenResult { attempt: Attempt(3), ..result(1, 4, 99) }]);
    assert_eq!(
        refusal(&submit_again(&mut s, 1, 2)).to_string(),
        format!("attempt 2 of sequence {sequence} was submitted after attempt 3"),
        "it has ended"
    );
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
    assert_eq!((s.load_report().waiting, s.running.keys().copied().collect::<Vec<_>>()), (0, vec![seq(1)]));
    assert_eq!(failed(&mut s, 1, 1, FailureKind::Device), ["step 2: close 1, open 1 | 1@0+4*"]);
    assert!(s.running.contains_key(&seq(1)));
}

/// All that waited and ran where it was lost, and the queue of the next placement is full of new ones.
#[test]
fn what_was_submitted_before_finds_a_seat_in_a_full_queue() {
    let mut s = scheduler(&[1], 4); // one sequence at a time
    for n in 1..=4 {
        submit(&mut s, n, 4, 12);
    }
    assert_eq!(show(&submit(&mut s, 5, 4, 12)), ["rejected 5 QueueFull"]);
    for n in 6..=20 {
        assert_eq!(show(&submit_again(&mut s, n, 2)), [format!("accepted {n} behind {}", n - 3)]);
    }
    assert_eq!(show(&submit(&mut s, 21, 4, 12)), ["rejected 21 QueueFull"]);
}

/// Grammars are by far the most of a short prompt, and any member may call what it sends a second attempt.
#[test]
fn what_waits_has_a_bound_in_bytes_with_its_grammars() {
    let constraint = exo_types::Constraint {
        grammar: "x".repeat(exo_types::GRAMMAR_BYTES_MAX),
        engine: String::new(),
        vocabulary: [0; 32],
    };
    let constraint = Some(std::sync::Arc::new(constraint));
    let accepted =
        |s: &mut Scheduler, attempt: Attempt, principal: Principal, numbers: std::ops::Range<u128>| {
            let fits = |n: &u128| {
                let mut submission = Submission { attempt, ..submission(*n, 4, 12) };
                submission.spec.principal = principal;
                submission.spec.sampling.constraint.clone_from(&constraint);
                let out = show(&s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission }));
                assert!(out[0].starts_with("accepted") || out[0].ends_with("QueueFull"), "{out:?}");
                out[0].starts_with("accepted")
            };
            numbers.take_while(fits).count()
        };
    let config = SchedulerConfig { queue_len_max: 1000, ..SchedulerConfig::default() };
    let mut s = serving(config, Placement { slots: 1, ..placement(1, 1, &[1]) }, 4, 8);
    submit(&mut s, 1, 4, 12); // it runs
    let [a, b] = [1, 2].map(|n| Principal([n; 16]));
    assert_eq!(accepted(&mut s, Attempt(2), a, 2..1000), 63, "64 MiB, the prompts of each included");
    assert_eq!(
        accepted(&mut s, Attempt(2), b, 3000..4000),
        31,
        "one member does not take it from all others"
    );
    assert_eq!(accepted(&mut s, Attempt::FIRST, a, 1000..2000), 127, "new ones have their own bound");
    assert_eq!(accepted(&mut s, Attempt::FIRST, b, 2000..3000), 63, "a half is the other's share");
}
