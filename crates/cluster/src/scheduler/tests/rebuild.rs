//! What stages kept in the placement before, and what one that was loaded anew lacks of it.

use exo_types::PageKey;

use super::*;
use crate::wire::{StagePages, StageSet};

/// An answer of one token behind a prompt of nine runs on nodes 1 and 2, and node 2 is lost. The scheduler of
/// the next placement, on nodes 1 and 3, has sent step 0.
fn next_placement() -> Scheduler {
    next_placement_on(&[1, 3])
}

/// The same, with the next placement on these nodes.
fn next_placement_on(nodes: &[u8]) -> Scheduler {
    let mut s = scheduler(&[1, 2], 16);
    submit(&mut s, 1, 9, 12);
    tokens(&mut s, 1, vec![]);
    tokens(&mut s, 2, vec![result(1, 9, 7)]);
    let out = show(&s.handle(Time::ZERO, SchedulerInput::NodeLost(node(2))));
    assert_eq!(out, ["failed 1 StageLost", "instance failed StageLost"]);
    let (config, left) = (s.config, s.into_left().unwrap());
    let mut s = Scheduler::new(config, Time::ZERO, placement(1, 2, nodes)).inheriting(left);
    assert_eq!(show(&s.handle(Time::ZERO, SchedulerInput::Tick)), ["step 0:  | "]);
    s
}

/// Step 0 is back: all it names is kept, but not by these stages.
fn back_without(s: &mut Scheduler, rebuilds: Option<StageSet>) -> Vec<String> {
    let kept = named(s);
    back_with(s, kept, rebuilds)
}

/// What step 0 names.
fn named(s: &Scheduler) -> Vec<PageKey> {
    s.opening.as_ref().map(|opening| opening.kept.clone()).unwrap_or_default()
}

/// Step 0 is back: these pages are kept, but not by these stages.
fn back_with(s: &mut Scheduler, kept: Vec<PageKey>, rebuilds: Option<StageSet>) -> Vec<String> {
    let pages = vec![StagePages { pages: 16, page_tokens: 4 }; s.placement.stages.len()];
    let tokens = TokensMessage { pages, kept, rebuilds, ..back(s, 0, vec![]) };
    show(&s.tokens(Time::ZERO, sender(s), &tokens))
}

/// The answer goes on in the next placement.
fn resume(s: &mut Scheduler) -> Vec<SchedulerOutput> {
    let placement = placement_id(1, 2);
    let mut submission = Submission { placement, attempt: Attempt(2), ..submission(1, 9, 12) };
    submission.spec.history.push(7);
    s.handle(s.now, SchedulerInput::Submit { from: node(9), submission })
}

/// Which stages compute each step.
fn rebuilding(out: &[SchedulerOutput]) -> Vec<Option<StageSet>> {
    let steps = out.iter().filter_map(|o| match o {
        SchedulerOutput::Step(step) => Some(step.rebuilds),
        _ => None,
    });
    steps.collect()
}

fn last() -> Option<StageSet> {
    Some(StageSet::of([1]))
}

#[test]
fn a_stage_that_was_loaded_anew_alone_computes_what_the_others_kept() {
    let mut s = next_placement();
    assert_eq!(back_without(&mut s, last()), ["step 0:  | "], "those in front are told who needs their rows");
    assert_eq!(back_without(&mut s, last()), ["serving"]);
    let out = resume(&mut s);
    let expected =
        ["accepted 1 behind 0", "started 1 behind 8", "step 1: open 1 behind 2 | 1@0+8", "step 2:  | 1@8+2*"];
    assert_eq!((show(&out), rebuilding(&out)), (expected.map(str::to_owned).to_vec(), vec![last(), None]));
    assert!(tokens(&mut s, 1, vec![]).is_empty());
    assert!(s.completed_prompt, "the step behind it comes back when it lets it");
    let out = tokens(&mut s, 2, vec![result(1, 10, 40)]);
    assert_eq!(show(&out), ["step 3: keep 1 2 | 1@10+1*"]);
    assert_eq!(rebuilding(&out), [None]);
}

#[test]
fn without_a_stage_that_lacks_them_pages_of_the_placement_before_are_begun_with() {
    let mut s = next_placement();
    assert_eq!(back_without(&mut s, None), ["serving"]);
    let out = show(&resume(&mut s));
    assert_eq!(out[1..], ["started 1 behind 8", "step 1: open 1 behind 2 | 1@8+2*"]);
}

#[test]
fn stages_that_are_no_neighbours_rebuild_in_the_same_steps_also_those_that_are_found_later() {
    let mut s = next_placement_on(&[1, 3, 4, 5]);
    let apart = Some(StageSet::of([1, 3]));
    assert_eq!(back_without(&mut s, last()), ["step 0:  | "]);
    assert_eq!(back_without(&mut s, apart), ["step 0:  | "], "those in front hear of it");
    assert_eq!((named(&s).len(), back_without(&mut s, apart)), (2, vec!["serving".to_owned()]));
    assert_eq!(rebuilding(&resume(&mut s)).first(), Some(&apart));
}

#[test]
fn of_stages_that_all_lack_them_or_change_their_mind_nothing_is_believed() {
    let all = Some(StageSet::of([0, 1]));
    let mut s = next_placement();
    assert_eq!(back_without(&mut s, all), ["step 0:  | "]);
    assert_eq!((back_without(&mut s, None), s.load_report().pages_cached), (vec!["serving".to_owned()], 0));
    let mut s = next_placement();
    back_without(&mut s, last());
    assert_eq!(back_without(&mut s, first()), ["step 0:  | "]);
    assert_eq!(back_without(&mut s, None), ["serving"]);
    let out = show(&resume(&mut s));
    assert_eq!(out[1..], ["started 1", "step 1: open 1 | 1@0+8", "step 2:  | 1@8+2*"]);
}

fn first() -> Option<StageSet> {
    Some(StageSet::of([0]))
}

/// A scheduler whose node had not the first stage before: node 3 has node 1's place. It has sent step 0,
/// which names nothing. With the names that the one before gave.
fn on_another_node() -> (Scheduler, Vec<PageKey>) {
    let before = next_placement();
    let mut s = Scheduler::new(before.config, Time::ZERO, placement(1, 2, &[3, 2]));
    assert_eq!(show(&s.handle(Time::ZERO, SchedulerInput::Tick)), ["step 0:  | "]);
    assert!(named(&s).is_empty());
    (s, named(&before))
}

#[test]
fn what_stages_offer_is_adopted_and_the_first_stage_alone_computes_it_again() {
    let (mut s, names) = on_another_node();
    assert_eq!(back_with(&mut s, names.clone(), first()), ["step 0:  | "], "which names what they keep");
    assert_eq!((named(&s).len(), s.term()), (names.len(), Term(2)));
    assert!(names.iter().all(|name| named(&s).contains(name)));
    assert_eq!(back_without(&mut s, first()), ["serving"]);
    let mut other = s.clone();
    let out = resume(&mut s);
    let expected =
        ["accepted 1 behind 0", "started 1 behind 8", "step 1: open 1 behind 2 | 1@0+8", "step 2:  | 1@8+2*"];
    assert_eq!((show(&out), rebuilding(&out)), (expected.map(str::to_owned).to_vec(), vec![first(), None]));
    let opened = out.iter().find_map(|o| match o {
        SchedulerOutput::Step(step) => step.commands.first(),
        _ => None,
    });
    let Some(StageCommand::Open { cached, .. }) = opened else { panic!("{opened:?}") };
    assert!(cached.iter().all(|name| names.contains(name)), "under the names of the scheduler before");
    let submission = Submission { placement: placement_id(1, 2), ..submission(2, 9, 12) };
    let out = other.handle(other.now, SchedulerInput::Submit { from: node(9), submission });
    assert_eq!(show(&out)[1..], ["started 2", "step 1: open 2 | 2@0+8", "step 2:  | 2@8+1*"], "another text");
}

#[test]
fn an_offer_is_asked_about_adopted_as_far_as_there_are_pages_and_never_believed_later() {
    let (mut s, _) = on_another_node();
    assert_eq!(back_with(&mut s, (0..20).map(PageKey).collect(), first()), ["step 0:  | "]);
    assert_eq!(named(&s).len(), 16);
    let (mut s, names) = on_another_node();
    assert_eq!(back_with(&mut s, vec![], first()), ["step 0:  | "], "some keep what others lack");
    assert_eq!((named(&s), s.term()), (vec![], Term(2)));
    assert_eq!(back_with(&mut s, names, first()), ["serving"]);
    assert_eq!(s.load_report().pages_cached, 0);
}
