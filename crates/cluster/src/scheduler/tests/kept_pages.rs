//! Pages that are kept of earlier prompts and shared.

use super::*;

const TEXT: [u32; 11] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const WE: Principal = Principal::LOCAL;

/// A scheduler that has run sequence 1 over `TEXT` to its end, two tokens of answer, on two stages: all is
/// idle.
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
    assert_eq!((s.load_report().pages_cached, s.pages.claimed()), (3, 0));
    s
}

#[test]
fn a_prompt_begins_behind_what_is_kept_of_an_earlier_one() {
    let mut s = after_one(16);
    // The answer is kept too: a chat's next turn repeats it.
    let next = [&TEXT[..], &[7, 7, 3]].concat();
    let out = submit_text(&mut s, 2, &next, 4, WE);
    assert_eq!(out[1..], ["started 2 behind 12", "step 5: open 2 behind 3 | 2@12+2*"]);
    assert_eq!((s.load_report().prompt_tokens, s.load_report().cached_tokens), (25, 12));
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
    assert_eq!((s.load_report().pages_used, s.load_report().pages_cached), (4, 0));
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
    assert_eq!((s.load_report().pages_cached, s.pages.claimed()), (0, 0));
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
