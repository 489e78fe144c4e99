//! Step 0: each term begins with a step without sequences, which goes the way of all steps.
//!
//! Each stage adds its pages, the last one returns them. So a scheduler that has opened knows that every
//! stage is there, that every link is open in the direction in which steps and tokens take it, and how large
//! the caches are. Of a later term it brings the names of pages that outlive the term before, and each stage
//! strikes out those that it does not have.

use std::time::Duration;

use bytes::Bytes;
use exo_types::{FailureKind, NodeId, PageKey, StepFrame, Term, Time, WireDType};

use super::pages::Pages;
use super::{Scheduler, SchedulerOutput};
use crate::failures::{CacheMismatch, Missing, MissingPart, PipelineFailure, TermEnd};
use crate::wire::{StagePages, StageSet, StepMessage, TokensMessage};

/// After a stage said that it is not there, or a link is not open.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// Without any answer: longer than a step waits for a link and then for its stage.
const UNANSWERED_MAX: Duration = Duration::from_secs(5);
/// Then the instance is placed anew: since then no stage was being loaded, which the coordinator watches, so
/// only links can be missing.
pub(crate) const OPENING_MAX: Duration = Duration::from_secs(30);
/// So much sooner where a link is missing that was open in an earlier term: whoever lost it has waited for it
/// already, and others may have all that they need of each other.
pub(crate) const LINK_MISSING_MAX: Duration = Duration::from_secs(1);

/// How far step 0 is.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    since: Time,
    again_at: Time,
    /// What the last answer said.
    missing: Option<Missing>,
    /// Since when the answers name a link, and when one did last.
    link_missing: Option<(Time, Time)>,
    /// Pages of the term before, to be kept by all stages.
    pub(super) kept: Vec<PageKey>,
    /// Stages that were found without these.
    pub(super) rebuilds: Option<StageSet>,
}

impl Opening {
    pub(super) fn new(now: Time) -> Self {
        let (missing, link_missing, kept, rebuilds) = (None, None, Vec::new(), None);
        Self { since: now, again_at: now, missing, link_missing, kept, rebuilds }
    }

    /// The same, with step 0 to be sent now. It was back: no link is missing.
    pub(super) fn at_once(self, now: Time) -> Self {
        Self { again_at: now, missing: None, link_missing: None, ..self }
    }

    /// The same, with these pages in step 0.
    pub(super) fn naming(self, kept: Vec<PageKey>) -> Self {
        Self { kept, ..self }
    }

    /// Step 0 may be lost: it is sent again soon.
    pub(super) fn repeat(&mut self, now: Time) {
        self.again_at = self.again_at.min(now + AGAIN_AFTER);
    }

    /// A stage said what is not there.
    fn misses(&mut self, now: Time, missing: Missing) {
        if missing.is_loading() {
            self.since = now;
        }
        let is_link = matches!(missing.what, MissingPart::Link { .. });
        self.link_missing = is_link.then(|| (self.link_missing.map_or(now, |(since, _)| since), now));
        self.missing = Some(missing);
    }

    /// How long nobody answered as it should, once that is too long.
    fn in_vain(&self, now: Time, term: Term) -> Option<Duration> {
        let waited = now.since(self.since);
        // Said twice, so that a step 0 which is on its way over a link that is back has its time.
        let is_lasting = |(since, last): (Time, Time)| last.since(since) > LINK_MISSING_MAX;
        let is_torn = term > Term::FIRST && self.link_missing.is_some_and(is_lasting);
        (is_torn || waited > OPENING_MAX).then_some(waited)
    }

    /// What the last answer said is not there.
    pub(super) fn missing(&self) -> Option<&Missing> {
        self.missing.as_ref()
    }
}

impl Scheduler {
    /// Sends step 0 when it is time to, or gives up.
    pub(super) fn open(&mut self, now: Time, out: &mut Vec<SchedulerOutput>) {
        let (placement, term) = self.pipeline();
        let Some(opening) = &mut self.opening else { return };
        if let Some(waited) = opening.in_vain(now, term) {
            let (seconds, missing) = (waited.as_secs(), opening.missing.clone());
            let why = PipelineFailure::NotOpened { seconds, missing };
            return self.fail_instance(FailureKind::StageLost, None, why, out);
        }
        if now < opening.again_at {
            return;
        }
        opening.again_at = now + UNANSWERED_MAX;
        out.push(SchedulerOutput::Step(StepMessage {
            stage: 0,
            commands: Vec::new(),
            frame: StepFrame { placement, term, step: 0, sequences: Vec::new() },
            failures: Vec::new(),
            pages: Vec::new(),
            kept: opening.kept.clone(),
            rebuilds: opening.rebuilds,
            computed_us: Vec::new(),
            rows_dtype: WireDType::F32,
            rows: Bytes::new(),
        }));
    }

    /// Step 0 is back.
    pub(super) fn opened(&mut self, now: Time, tokens: &TokensMessage, out: &mut Vec<SchedulerOutput>) {
        if tokens.step != 0 {
            return tracing::trace!(got = tokens.step, expected = 0, "tokens before step 0 came back");
        }
        let all = pages_of_all(&tokens.pages, self.placement.stages.len());
        match all.and_then(|pages| unchanged(self.cache, pages)) {
            Ok(cache) => {
                let is_other = self.cache.replace(cache).is_none() && !self.pages.are_of(cache);
                if is_other {
                    self.pages = Pages::new(cache.pages, cache.page_tokens);
                }
                let names_other = is_other && self.opening.as_ref().is_some_and(|o| !o.kept.is_empty());
                #[cfg(feature = "planted")]
                if self.has_bug(super::planted::SchedulerBug::BelievesAllNamed) {
                    self.opening = None;
                    return out.push(SchedulerOutput::Serving);
                }
                if (!self.agrees(tokens) || names_other) && self.agree_in_next_term(now) {
                    return;
                }
                if self.rebuilds.is_some() {
                    self.note_lacking();
                }
                self.opening = None;
                self.completed_at = now;
                out.push(SchedulerOutput::Serving);
            }
            Err(why) => self.fail_instance(FailureKind::Protocol, None, PipelineFailure::Caches(why), out),
        }
    }

    /// Whether all stages keep what step 0 named, but for those that it said have none of it. What they offer
    /// instead is named by the next one.
    fn agrees(&mut self, tokens: &TokensMessage) -> bool {
        #[cfg(feature = "planted")]
        let is_unasked = self.has_bug(super::planted::SchedulerBug::AdoptsUnasked);
        let term = self.terms.current;
        let Some(opening) = &mut self.opening else { return false };
        let (said, found) = (opening.rebuilds, tokens.rebuilds);
        let is_part = found.is_none_or(|stages| stages.is_part_of(self.placement.stages.len()));
        // In the first term a stage names what it keeps where the scheduler names nothing.
        let is_offer = term == Term::FIRST && opening.kept.is_empty() && found.is_some();
        if is_offer && is_part {
            self.pages.adopt(&tokens.kept);
        }
        #[cfg(feature = "planted")]
        if is_offer && is_unasked {
            return true;
        }
        // A stage that lacks all goes on lacking it: that they become more comes to an end.
        let is_still_so = |said: StageSet| found.is_some_and(|found| found.includes(said));
        let is_sound = is_part && said.is_none_or(is_still_so);
        let kept = if is_sound { tokens.kept.as_slice() } else { &[] };
        let is_same = self.pages.retain(kept);
        let rebuilds = found.filter(|_| self.pages.cached() > 0);
        (opening.rebuilds, self.rebuilds) = (rebuilds, rebuilds);
        is_same && said == rebuilds && !is_offer
    }

    /// Some stages have none of what the others keep.
    fn note_lacking(&mut self) {
        let (placement, term) = self.pipeline();
        tracing::debug!(%placement, %term, pages = self.pages.cached(), stages = ?self.rebuilds, "stages rebuild pages that others keep");
        #[cfg(feature = "planted")]
        if self.has_bug(super::planted::SchedulerBug::BelievesRebuilt) {
            return;
        }
        self.pages.lack_all();
    }

    /// A step met a stage or a link that is not there. Only step 0 is sent again: behind it sequences are
    /// open, and what one stage computed and another did not ends the term.
    pub(super) fn not_wired(
        &mut self,
        now: Time,
        (from, step): (NodeId, u64),
        missing: Missing,
        out: &mut Vec<SchedulerOutput>,
    ) {
        match &mut self.opening {
            Some(opening) if step == 0 => {
                opening.repeat(now);
                opening.misses(now, missing);
            }
            None if step > 0 => {
                self.end_term(now, TermEnd::NotThrough { step, missing: missing.clone() }, out);
                if let Some(opening) = &mut self.opening {
                    opening.misses(now, missing);
                }
            }
            Some(_) | None => {
                tracing::trace!(%from, got = step, last = self.step_last, "a stage was not there for a step that is over");
            }
        }
    }
}

/// The cache of the whole pipeline: the stage with the fewest pages decides.
fn pages_of_all(stages: &[StagePages], expected: usize) -> Result<StagePages, CacheMismatch> {
    let got = stages.len();
    let Some(first) = stages.first().filter(|_| got == expected) else {
        return Err(CacheMismatch::Stages { got: got as u32, expected: expected as u32 });
    };
    let first_page_tokens = first.page_tokens;
    if let Some(stage) = stages.iter().position(|s| s.page_tokens != first_page_tokens) {
        let page_tokens = stages[stage].page_tokens;
        return Err(CacheMismatch::Differ { stage: stage as u32, page_tokens, first_page_tokens });
    }
    let pages = stages.iter().map(|s| s.pages).min().unwrap_or(0);
    Ok(StagePages { pages, page_tokens: first_page_tokens })
}

/// The caches are those of the term before: what waits was counted by them.
fn unchanged(before: Option<StagePages>, now: StagePages) -> Result<StagePages, CacheMismatch> {
    let StagePages { pages: got, page_tokens } = now;
    match before.filter(|before| *before != now) {
        Some(StagePages { pages: before, page_tokens: page_tokens_before }) => {
            Err(CacheMismatch::Changed { got, page_tokens, before, page_tokens_before })
        }
        None => Ok(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StageStatus;
    use crate::failures::ComputeFault;
    use crate::scheduler::{SchedulerConfig, SchedulerInput};
    use crate::testing::{node, placement, submission};
    use crate::wire::DataMessage;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// A scheduler over nodes 1 and 2 that has sent step 0.
    fn opening() -> Scheduler {
        let mut s = Scheduler::new(SchedulerConfig::default(), at(0), placement(1, 1, &[1, 2]));
        assert_eq!(step_0(&s.handle(at(0), SchedulerInput::Tick)), 1);
        s
    }

    /// How often step 0 is in there.
    fn step_0(out: &[SchedulerOutput]) -> usize {
        let is_step_0 = |o: &&SchedulerOutput| matches!(o, SchedulerOutput::Step(m) if m.frame.step == 0);
        out.iter().filter(is_step_0).count()
    }

    fn back(s: &mut Scheduler, ms: u64, pages: &[(u32, u32)]) -> Vec<SchedulerOutput> {
        let pages = pages.iter().map(|&(pages, page_tokens)| StagePages { pages, page_tokens }).collect();
        let (results, failures) = (vec![], vec![]);
        let (placement, term, step) = (s.placement.id, s.term(), 0);
        let tokens = TokensMessage {
            placement,
            term,
            step,
            results,
            failures,
            pages,
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
        };
        s.tokens(at(ms), node(2), &tokens)
    }

    fn not_wired(s: &mut Scheduler, ms: u64, step: u64) -> Vec<SchedulerOutput> {
        told(s, ms, step, false)
    }

    fn told(s: &mut Scheduler, ms: u64, step: u64, is_loading: bool) -> Vec<SchedulerOutput> {
        let (from, placement, term) = (node(2), s.placement.id, s.term());
        let what = match is_loading {
            true => MissingPart::NotReady {
                node: from,
                status: StageStatus::Loading { done_bytes: 1, total_bytes: 2 },
            },
            false => MissingPart::Engine(ComputeFault::Several),
        };
        let missing = Missing { stage: 1, what, waited_ms: 0 };
        let message = DataMessage::NotWired { placement, term, stage: 1, step, missing };
        s.handle(at(ms), SchedulerInput::Report { from, message })
    }

    fn submit(s: &mut Scheduler) -> Vec<SchedulerOutput> {
        s.handle(at(9), SchedulerInput::Submit { from: node(9), submission: submission(1, 3, 4) })
    }

    /// What [`told`] says last is in the way after half a minute.
    fn not_opened() -> PipelineFailure {
        let missing = Missing { stage: 1, what: MissingPart::Engine(ComputeFault::Several), waited_ms: 0 };
        PipelineFailure::NotOpened { seconds: 30, missing: Some(missing) }
    }

    fn failure(out: &[SchedulerOutput]) -> &PipelineFailure {
        match out {
            [SchedulerOutput::InstanceFailed { why, .. }] => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_scheduler_serves_once_step_0_is_back_with_the_pages_of_the_smallest_stage() {
        let mut s = opening();
        assert!(
            !s.is_serving()
                && matches!(
                    submit(&mut s)[..],
                    [SchedulerOutput::Send { message: DataMessage::Rejected { .. }, .. }]
                )
        );
        assert_eq!(back(&mut s, 5, &[(9, 16), (7, 16)]), [SchedulerOutput::Serving]);
        assert!(s.is_serving());
        assert_eq!(s.load_report().pages, 7);
        let out = submit(&mut s);
        assert!(matches!(&out[2], SchedulerOutput::Step(m) if m.frame.step == 1), "{out:?}");
        assert!(back(&mut s, 6, &[(9, 16), (7, 16)]).is_empty(), "a repetition opens nothing");
    }

    #[test]
    fn step_0_is_repeated_a_quarter_of_a_second_after_a_stage_was_not_there() {
        let mut s = opening();
        assert_eq!(step_0(&not_wired(&mut s, 1000, 0)), 0);
        assert_eq!(step_0(&s.handle(at(1249), SchedulerInput::Tick)), 0);
        assert_eq!(step_0(&s.handle(at(1250), SchedulerInput::Tick)), 1);
    }

    #[test]
    fn step_0_without_any_answer_is_repeated_and_given_up_with_what_is_missing() {
        let mut s = opening();
        assert_eq!(step_0(&s.handle(at(4999), SchedulerInput::Tick)), 0);
        assert_eq!(step_0(&s.handle(at(5000), SchedulerInput::Tick)), 1);
        not_wired(&mut s, 29_000, 0);
        s.handle(at(29_900), SchedulerInput::LinkLost(node(2)));
        let out = s.handle(at(30_001), SchedulerInput::Tick);
        assert_eq!(failure(&out), &not_opened());
    }

    #[test]
    fn a_stage_that_is_being_loaded_is_waited_for_as_long_as_its_coordinator_does() {
        let mut s = opening();
        for seconds in [20, 40, 60, 80] {
            let out = told(&mut s, 1000 * seconds, 0, true);
            assert!(!out.iter().any(|o| matches!(o, SchedulerOutput::InstanceFailed { .. })), "{seconds} s");
        }
        told(&mut s, 109_000, 0, false);
        let out = s.handle(at(110_001), SchedulerInput::Tick);
        assert_eq!(failure(&out), &not_opened(), "since it is loaded");
    }

    fn link_missing(s: &mut Scheduler, ms: u64, step: u64) -> Vec<SchedulerOutput> {
        let (from, placement, term) = (node(2), s.placement.id, s.term());
        let missing = Missing { stage: 1, what: MissingPart::Link { to: node(1) }, waited_ms: 2000 };
        let message = DataMessage::NotWired { placement, term, stage: 1, step, missing };
        s.handle(at(ms), SchedulerInput::Report { from, message })
    }

    fn is_given_up(out: &[SchedulerOutput]) -> bool {
        out.iter().any(|o| matches!(o, SchedulerOutput::InstanceFailed { .. }))
    }

    #[test]
    fn a_link_that_was_open_and_stays_away_is_not_waited_for_as_one_that_never_was() {
        let mut s = opening();
        for ms in [1000, 3250, 5500] {
            assert!(!is_given_up(&link_missing(&mut s, ms, 0)), "in the first term it may only just open");
        }
        back(&mut s, 6000, &[(9, 16), (7, 16)]);
        s.handle(at(8_000), SchedulerInput::LinkLost(node(2)));
        assert!(!is_given_up(&link_missing(&mut s, 10_000, 0)));
        assert!(!is_given_up(&s.handle(at(12_000), SchedulerInput::Tick)), "its repetition is on its way");
        let said = link_missing(&mut s, 12_250, 0);
        let out = if said.is_empty() { s.handle(at(12_251), SchedulerInput::Tick) } else { said };
        let missing = Missing { stage: 1, what: MissingPart::Link { to: node(1) }, waited_ms: 2000 };
        assert_eq!(failure(&out), &PipelineFailure::NotOpened { seconds: 4, missing: Some(missing) });
    }

    #[test]
    fn a_link_that_comes_back_in_time_leaves_the_stages_where_they_are() {
        let mut s = opening();
        back(&mut s, 5, &[(9, 16), (7, 16)]);
        link_missing(&mut s, 10_000, 4);
        assert_eq!(back(&mut s, 10_900, &[(9, 16), (7, 16)]), [SchedulerOutput::Serving]);
        assert!(!is_given_up(&s.handle(at(14_000), SchedulerInput::Tick)) && s.is_serving());
    }

    #[test]
    fn a_later_step_that_meets_no_stage_ends_the_term() {
        let mut s = opening();
        back(&mut s, 5, &[(9, 16), (7, 16)]);
        assert!(not_wired(&mut s, 6, 0).is_empty(), "step 0 is over");
        assert_eq!(step_0(&not_wired(&mut s, 7, 4)), 1, "of the next term");
        assert_eq!(s.term(), exo_types::Term(2));
    }

    #[test]
    fn a_link_that_ends_while_step_0_is_out_has_it_sent_again() {
        let mut s = opening();
        s.handle(at(1000), SchedulerInput::LinkLost(node(2)));
        assert_eq!(step_0(&s.handle(at(1250), SchedulerInput::Tick)), 1);
        assert_eq!(s.term(), exo_types::Term::FIRST);
    }

    #[test]
    fn stages_of_different_page_sizes_are_no_pipeline() {
        let mut s = opening();
        let out = back(&mut s, 5, &[(9, 32), (9, 16)]);
        let differ = CacheMismatch::Differ { stage: 1, page_tokens: 16, first_page_tokens: 32 };
        assert_eq!(failure(&out), &PipelineFailure::Caches(differ));
        let mut s = opening();
        let out = back(&mut s, 5, &[(9, 32)]);
        let stages = CacheMismatch::Stages { got: 1, expected: 2 };
        assert_eq!(failure(&out), &PipelineFailure::Caches(stages));
    }
}
