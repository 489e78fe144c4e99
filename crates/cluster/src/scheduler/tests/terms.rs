//! Terms of a pipeline: links and stages that are lost, and what is kept over it.

use super::*;

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
    let pages = vec![crate::wire::StagePages { pages: 16, page_tokens: 4 }; s.placement.stages.len()];
    let tokens = TokensMessage { pages, kept, ..back(s, 0, vec![]) };
    show(&s.tokens(Time::from_millis(ms), sender(s), &tokens))
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
            SchedulerOutput::Send {
                message: DataMessage::SequenceFailed { term, kind: FailureKind::StageLost, .. },
                ..
            } => Some((0, *term)),
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

/// An answer of one token behind a prompt of nine is interrupted: two full pages of it are kept. Gives their
/// names.
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
    assert_eq!(s.load_report().pages_cached, 1);
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
    assert_eq!(s.load_report().pages_cached, 2, "its prompt and four tokens");
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
        let tokens = TokensMessage { term, ..back(&s, 1, vec![result(2, 4, 7)]) };
        assert!(s.tokens(Time::from_millis(30), from, &tokens).is_empty());
        let messages = [
            DataMessage::NotWired {
                placement,
                term,
                stage: 1,
                step: 1,
                missing: Missing { stage: 1, what: MissingPart::Unheard { node: from }, waited_ms: 0 },
            },
            DataMessage::PipelineBroken {
                placement,
                term,
                stage: 1,
                kind: FailureKind::StageLost,
                why: PipelineBreak::LaterTerm { own: term },
            },
        ];
        for message in messages {
            let report = SchedulerInput::Report { from, message };
            assert!(s.handle(Time::from_millis(30), report).is_empty());
        }
    }
    assert_eq!((s.term(), s.load_report().running), (Term(2), 1));
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
    let [SchedulerOutput::InstanceFailed { why, .. }] = &out[..] else { panic!("{out:?}") };
    let last = TermEnd::Link { peer: node(2), step: 0 };
    assert_eq!(*why, PipelineFailure::NoToken { terms: 3, seconds: 30, last });

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
        let (from, placement, term, why) =
            (node(2), s.placement.id, s.term(), PipelineBreak::Order { got: 7, expected: 2 });
        let message = DataMessage::PipelineBroken { placement, term, stage: 1, kind, why };
        show(&s.handle(Time::ZERO, SchedulerInput::Report { from, message }))
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
    let [SchedulerOutput::Send { message: DataMessage::SequenceEnded { reason, .. }, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(*reason, EndReason::Cancelled);
    submit(&mut s, 2, 4, 12);
    tokens(&mut s, 1, vec![result(1, 4, 7)]);
    failed(&mut s, 2, 2, FailureKind::OutOfMemory);
    assert_eq!(show(&submit_again(&mut s, 2, 1)), ["failed 2 OutOfMemory"]);
}
