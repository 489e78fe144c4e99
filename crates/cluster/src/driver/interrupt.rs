//! Interruptions: what ends a submission and not the request. The next submission goes on where the tokens
//! end.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_types::{FailureKind, InstanceId, Placement, PlacementId, Time};

use super::{Driver, DriverOutput, InterruptCause, RunState, SUBMIT_AGAIN_AFTER, SubmittedRun};
use crate::instances::{InstanceState, InstanceView};
use crate::names::by_id;
use crate::reasons::{RemoveReason, ReplaceReason, WaitReason};
use crate::wire::EndReason;

/// Failures of one kind without a token between them, after which the request fails with them: the same
/// sequence fails the same way. Lost stages do not count: each is replaced, or the pause has its bound.
pub(crate) const SETBACKS_MAX: u32 = 3;

/// An answer whose instance is not among the instances any more ends after this long: it was unloaded, or a
/// half of the cluster that did not know of it leads now.
pub(crate) const GONE_MAX: Duration = Duration::from_secs(10);

/// What stands between the last token and the next.
#[derive(Clone, Debug)]
pub(super) struct Interruption {
    /// The first since the last token.
    pub(super) since: Time,
    /// The last.
    pub(super) cause: InterruptCause,
    /// Where it was submitted.
    placement: PlacementId,
    instance: InstanceId,
    /// Since when there is no instance of its model.
    gone_since: Option<Time>,
    /// In this placement; silences in all of them.
    setbacks: BTreeMap<FailureKind, u32>,
}

/// Why a submission ends.
#[derive(Debug)]
pub(super) enum LostRun {
    /// Its instance was unloaded or given up: somebody decided that there is no answer.
    GivenUp(RemoveReason),
    /// It goes on in another placement.
    Elsewhere(InterruptCause),
}

impl Driver {
    /// The submission is over, the request is not. One that nobody has answered yet just comes again.
    pub(super) fn interrupt(
        &mut self,
        now: Time,
        kind: FailureKind,
        cause: InterruptCause,
        out: &mut Vec<DriverOutput>,
    ) {
        let Some(SubmittedRun { state, placement, running_since, .. }) = self.run.take() else { return };
        if state == RunState::Submitted && self.interruption.is_none() {
            self.submit_at = now + SUBMIT_AGAIN_AFTER;
            return;
        }
        if let Some(reason) = self.end_reached(&placement) {
            return self.end(reason, out);
        }
        tracing::debug!(sequence = %self.sequence(), ?kind, %cause, tokens = self.generated(), "an answer is interrupted");
        if let Some(since) = self.awaited_since.take() {
            self.paused += running_since.unwrap_or(now).since(since);
        }
        let (id, instance) = (placement.id, placement.instance);
        let gone_since = self.candidates.is_empty().then_some(now);
        let interruption = self.interruption.get_or_insert_with(|| Interruption {
            since: now,
            cause: cause.clone(),
            placement: id,
            instance,
            gone_since,
            setbacks: BTreeMap::new(),
        });
        // Time in which it was computed is no pause: that has a bound of its own.
        let computed = running_since.map_or(Duration::ZERO, |since| now.since(since.max(interruption.since)));
        interruption.since = interruption.since + computed;
        if interruption.placement != id {
            // Silence says nothing of who is silent: it counts wherever the answer goes.
            interruption.setbacks.retain(|kind, _| *kind == FailureKind::Deadline);
        }
        (interruption.cause, interruption.placement, interruption.instance) = (cause, id, instance);
        let setbacks = interruption.setbacks.entry(kind).or_insert(0);
        *setbacks += 1;
        let is_final = kind == FailureKind::Constraint; // whoever computes it
        if is_final || (*setbacks >= SETBACKS_MAX && kind != FailureKind::StageLost) {
            let message = match is_final {
                true => interruption.cause.to_string(),
                false => format!("{SETBACKS_MAX} attempts in a row failed: {}", interruption.cause),
            };
            return self.fail(kind, message, out);
        }
        self.submit_at = now;
    }

    /// The answer may be whole although its scheduler did not live to say so.
    pub(super) fn end_reached(&self, placement: &Placement) -> Option<EndReason> {
        let start = &self.start;
        let last = start.spec.history.last().filter(|_| self.generated() > 0)?;
        if !start.ignore_eos && start.stop_tokens.contains(last) {
            return Some(EndReason::StopToken);
        }
        if self.tokens_left() == 0 {
            return Some(EndReason::MaxTokens);
        }
        let is_full = start.spec.history.len() >= placement.context_tokens as usize;
        is_full.then_some(EndReason::ContextFull)
    }

    /// Whether a scheduler took the sequence, here or where it was begun.
    pub(super) fn was_accepted(&self) -> bool {
        self.interruption.is_some() || self.generated() > 0
    }

    /// Tokens of the answer so far, over all submissions.
    pub(super) fn generated(&self) -> u32 {
        (self.start.spec.history.len() as u32).saturating_sub(self.start.spec.prompt_tokens)
    }

    /// Tokens that may still come.
    pub(super) fn tokens_left(&self) -> u32 {
        self.start.max_tokens.saturating_sub(self.generated())
    }

    /// Why the instance that it ran on is no more, if that was decided.
    pub(super) fn given_up(&self) -> Option<String> {
        let instance = self.interruption.as_ref()?.instance;
        let view = self.candidates.iter().find(|view| view.instance() == instance)?;
        match &view.state {
            InstanceState::Failed { reason } => Some(self.with_removal(reason)),
            _ => None,
        }
    }

    /// Why its instance is no more, behind what interrupted it.
    pub(super) fn with_removal(&self, reason: &RemoveReason) -> String {
        self.with_interruption(reason.text_behind(self.lost(), &by_id))
    }

    /// What it has lost already, where it was interrupted by that.
    pub(super) fn lost(&self) -> Option<&ReplaceReason> {
        self.interrupted_by()?.lost()
    }

    /// Notes whether there is an instance of the model.
    pub(super) fn note_gone(&mut self, now: Time) {
        let is_gone = self.candidates.is_empty();
        if let Some(interruption) = &mut self.interruption {
            interruption.gone_since = is_gone.then(|| interruption.gone_since.unwrap_or(now));
        }
    }

    /// A reason, behind that of the interruption.
    pub(super) fn with_interruption(&self, reason: String) -> String {
        match self.interrupted_by() {
            Some(first) => format!("{first}; then {reason}"),
            None => reason,
        }
    }

    /// When it ends unless it goes on before.
    pub(super) fn ends_at(&self, interruption: &Interruption) -> Time {
        let paused = match self.has_run {
            true => interruption.since + self.config.pause_max,
            false => self.loading_at + self.start_max(),
        };
        interruption.gone_since.map_or(paused, |since| paused.min(since + GONE_MAX))
    }

    /// How long it has stood still in all, at this moment.
    pub(super) fn paused_for(&self, now: Time) -> Duration {
        let interrupted = self.interruption.as_ref().map(|interruption| interruption.since);
        let Some(since) = interrupted.or(self.awaited_since) else { return self.paused };
        let until = self.run.as_ref().and_then(|run| run.running_since).unwrap_or(now);
        self.paused + until.since(since)
    }

    /// Its instance is gone for good.
    pub(super) fn gone_too_long(
        &self,
        now: Time,
        interruption: &Interruption,
    ) -> Option<(FailureKind, String)> {
        interruption.gone_since.filter(|since| now.since(*since) > GONE_MAX)?;
        let Interruption { instance, cause, .. } = interruption;
        Some((FailureKind::InstanceGone, format!("{cause}; instance {instance} is no more")))
    }

    /// What was lost, for how long, and what it waits for.
    pub(super) fn paused_too_long(
        &self,
        now: Time,
        interruption: &Interruption,
    ) -> Option<(FailureKind, String)> {
        let waited = now.since(interruption.since);
        (waited > self.config.pause_max).then(|| {
            let (seconds, tokens, standing) = (waited.as_secs(), self.generated(), self.standing());
            let cause = &interruption.cause;
            let message =
                format!("{cause}; the answer stood still for {seconds} s after {tokens} tokens: {standing}");
            (FailureKind::StageLost, message)
        })
    }
}

/// Why a placement serves no more, if the news say so. A new coordinator may not know yet how far stages are:
/// only "degraded", "waiting", "failed", another placement or absence count.
pub(super) fn lost_run(placement: &Placement, news: &[InstanceView]) -> Option<LostRun> {
    let instance = placement.instance;
    let Some(view) = news.iter().find(|v| v.instance() == instance) else {
        return Some(LostRun::Elsewhere(InterruptCause::Said(format!("instance {instance} was removed"))));
    };
    match &view.state {
        InstanceState::Failed { reason } => Some(LostRun::GivenUp(reason.clone())),
        InstanceState::Degraded { reason: lost }
        | InstanceState::Waiting { reason: WaitReason { lost, .. } } => {
            Some(LostRun::Elsewhere(InterruptCause::Lost(lost.clone())))
        }
        InstanceState::Placing | InstanceState::Loading | InstanceState::Wiring | InstanceState::Ready => {
            let is_another = view.placement.id != placement.id;
            let anew = || InterruptCause::Said(format!("instance {instance} was placed anew"));
            is_another.then(|| LostRun::Elsewhere(anew()))
        }
    }
}
