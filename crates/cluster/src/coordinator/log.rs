//! The handshake with the journal: decide on the planned state, act on the durable one.

use exo_types::{PlacementId, Time};

use super::asks::refused;
use super::replan::Due;
use super::{AppendId, Coordinator, CoordinatorOutput, Leading, ReplyTo, Watch};
use crate::wire::{ControlRefusal, ControlReply, LogFailure, UnknownTarget, clip};
use crate::{ApplyError, Event, InstanceState, State};

/// Events on their way to the journal, and who waits for them.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) events: Vec<Event>,
    pub(super) replies: Vec<(ReplyTo, DurableReply)>,
}

/// What is answered once the events are durable.
#[derive(Clone, Debug)]
pub(super) enum DurableReply {
    Done,
    /// The view is taken when the answer is sent.
    Placed {
        instance: exo_types::InstanceId,
        reasons: Vec<String>,
    },
}

impl Leading {
    /// Everyone who waits for a plan or for the log.
    pub(super) fn asked(&self) -> impl Iterator<Item = &ReplyTo> {
        let appends = self.appends.values().flat_map(|pending| pending.replies.iter().map(|(to, _)| to));
        appends.chain(self.plans.replies())
    }

    /// The next placement's own name. A number that comes to nothing is left out.
    pub(super) fn next_placement(&mut self) -> PlacementId {
        self.placement_last += 1;
        PlacementId { epoch: self.epoch, number: self.placement_last }
    }

    /// Decides `events`, all or none: they are planned from now on, durable when the journal says so.
    pub(super) fn append(
        &mut self,
        events: Vec<Event>,
        replies: Vec<(ReplyTo, DurableReply)>,
        out: &mut Vec<CoordinatorOutput>,
    ) -> Result<(), ApplyError> {
        let mut planned = self.planned.clone();
        events.iter().try_for_each(|event| planned.apply(event))?;
        self.planned = planned;
        self.append_last = AppendId(self.append_last.0 + 1);
        let append = self.append_last;
        out.push(CoordinatorOutput::Append { append, events: events.clone() });
        self.appends.insert(append, Pending { events, replies });
        Ok(())
    }
}

impl Coordinator {
    pub(super) fn appended(&mut self, now: Time, append: AppendId, out: &mut Vec<CoordinatorOutput>) {
        let Some(leading) = &mut self.leading else {
            return tracing::trace!(append = append.0, "a write for a coordinator that leads no more");
        };
        // The journal writes in order: an answer for a later append is also one for the earlier.
        let later = leading.appends.split_off(&AppendId(append.0 + 1));
        let durable = std::mem::replace(&mut leading.appends, later);
        for pending in durable.into_values() {
            for event in &pending.events {
                self.remember_removed(event);
                apply_durable(&mut self.state, event);
            }
            self.watch_changes(now, &pending.events);
            for (to, answer) in pending.replies {
                let reply = self.answer(answer);
                out.push(CoordinatorOutput::Reply { to, reply });
            }
        }
    }

    /// Who streams from it hears that this was a decision, not a loss.
    fn remember_removed(&mut self, event: &Event) {
        let Event::InstanceRemoved { instance, reason } = event else { return };
        let view = self.view(*instance);
        if let Some((leading, mut view)) = self.leading.as_mut().zip(view) {
            view.state = InstanceState::Failed { reason: reason.clone() };
            leading.published.removed.push(view);
        }
    }

    /// Nothing from here on was written: what was planned is forgotten, who asked is told.
    pub(super) fn append_failed(
        &mut self,
        now: Time,
        append: AppendId,
        reason: &str,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let Some(leading) = &mut self.leading else {
            return tracing::trace!(
                append = append.0,
                reason,
                "a failed write for a coordinator that leads no more"
            );
        };
        let failed = leading.appends.split_off(&append);
        leading.planned = self.state.clone();
        for pending in leading.appends.values() {
            pending.events.iter().for_each(|event| apply_durable(&mut leading.planned, event));
        }
        for (to, _) in failed.into_values().flat_map(|pending| pending.replies) {
            out.push(refused(to, ControlRefusal::LogFailed(LogFailure::Write(clip(reason)))));
        }
        // What the coordinator decides by itself is decided again, not before a moment has passed.
        let later = now + std::time::Duration::from_secs(1);
        leading.watches.values_mut().for_each(|watch| watch.decide_at = later);
        leading.forget_at = later;
    }

    pub(super) fn replicated(&mut self, events: &[Event]) {
        match &self.leading {
            None => events.iter().for_each(|event| apply_durable(&mut self.state, event)),
            Some(leading) => {
                let (epoch, events) = (leading.epoch, events.len());
                tracing::trace!(%epoch, events, "entries of another's log for who leads");
            }
        }
    }

    pub(super) fn restored(&mut self, state: State) {
        match &self.leading {
            None => self.state = state,
            Some(leading) => {
                tracing::trace!(epoch = %leading.epoch, "the state of another's log for who leads");
            }
        }
    }

    /// New and newly placed instances are watched from now, removed ones no more.
    fn watch_changes(&mut self, now: Time, events: &[Event]) {
        let Some(leading) = &mut self.leading else { return };
        for event in events {
            match event {
                Event::InstancePlaced { placement, .. } | Event::InstanceReplaced { placement, .. } => {
                    let Some(entry) = self.state.instances().get(&placement.instance) else { continue };
                    let before = leading.watches.get(&placement.instance);
                    let (replacements, has_served) =
                        before.map_or((0, false), |w| (w.replacements, w.has_served));
                    let unblamed = before.map(|w| w.unblamed.clone()).unwrap_or_default();
                    let mut watch = Watch::new(now, entry, has_served, replacements);
                    watch.unblamed = unblamed;
                    watch.review.due = Some(Due::Placed);
                    leading.watches.insert(placement.instance, watch);
                }
                Event::InstanceRemoved { instance, .. } => drop(leading.watches.remove(instance)),
                Event::Opened | Event::NodeDrained { .. } | Event::InstanceKept { .. } => {}
            }
        }
    }

    fn answer(&self, answer: DurableReply) -> ControlReply {
        match answer {
            DurableReply::Done => ControlReply::Done { holders: 1 },
            DurableReply::Placed { instance, reasons } => match self.view(instance) {
                Some(view) => ControlReply::Placed { view, reasons, holders: 1 },
                None => ControlReply::Refused(ControlRefusal::Unknown(UnknownTarget::Removed(instance))),
            },
        }
    }
}

/// Durable events were checked before they were written; one that does not apply is said aloud and left out,
/// the same way on every node.
fn apply_durable(state: &mut State, event: &Event) {
    if let Err(error) = state.apply(event) {
        tracing::error!(%error, ?event, "an event of the log does not apply");
    }
}
