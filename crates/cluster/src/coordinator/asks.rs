//! What members ask for.

use exo_types::{InstanceId, Time};

use super::log::DurableReply;
use super::planning::PlanAsk;
use super::{Coordinator, CoordinatorOutput, Leading, ReplyTo, not_coordinator};
use crate::wire::{Check, ControlRefusal, ControlReply, clip};
use crate::{Event, InstanceRequest, RemoveReason};

/// Appends that may wait for the journal; who asks for more is refused.
const APPENDS_MAX: usize = 256;
/// Questions of one member that wait for a plan or for the log.
const ASKED_MAX: usize = 64;

impl Coordinator {
    /// A model that is not placed is planned first.
    pub(super) fn place(
        &mut self,
        now: Time,
        reply: ReplyTo,
        request: InstanceRequest,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if self.leading.is_none() {
            return out.push(not_coordinator(reply));
        }
        if let Err(error) = request.check() {
            return out.push(refused(reply, ControlRefusal::Invalid, &error.to_string()));
        }
        let asked = self.leading.iter().flat_map(Leading::asked).filter(|to| to.node == reply.node).count();
        if asked >= ASKED_MAX {
            let message =
                format!("{asked} questions of this node are waiting for an answer; ask again later");
            return out.push(refused(reply, ControlRefusal::Busy, &message));
        }
        if self.placed_already(reply, &request, out) {
            return;
        }
        let Some(leading) = &mut self.leading else { return };
        match leading.plans.join(&request, reply) {
            Some(Ok(())) => return,
            Some(Err(why)) => {
                let message = format!("{why}, and its plan is being made; ask again when it is placed");
                return out.push(refused(reply, ControlRefusal::Invalid, &message));
            }
            None => {}
        }
        if let Err(queued) = leading.plans.push(PlanAsk::placement(now, request, reply)) {
            let message = format!("{queued} plans are waiting for another; ask again later");
            out.push(refused(reply, ControlRefusal::Busy, &message));
        }
    }

    /// One instance per model: who asks again gets the one there is, once it is durable.
    fn placed_already(
        &mut self,
        reply: ReplyTo,
        request: &InstanceRequest,
        out: &mut Vec<CoordinatorOutput>,
    ) -> bool {
        let Some(leading) = &mut self.leading else { return false };
        let mut all = leading.planned.instances().iter();
        let Some((&instance, entry)) = all.find(|(_, i)| i.request.model == request.model) else {
            return false;
        };
        if let Some(why) = request.refuses(&entry.request) {
            let message = format!("{why}; ask for it to be replaced (`exo place --replace`), or unload it");
            out.push(refused(reply, ControlRefusal::Invalid, &message));
            return true;
        }
        // What a person asks for stays until a person unloads it.
        if entry.request.is_on_demand && !request.is_on_demand {
            let answer = DurableReply::Placed { instance, reasons: Vec::new() };
            self.ask(vec![(reply, answer)], vec![Event::InstanceKept { instance }], out);
            return true;
        }
        let placing = leading.appends.values_mut().find(|pending| {
            let places = |e: &Event| matches!(e, Event::InstancePlaced { placement, .. } if placement.instance == instance);
            pending.events.iter().any(places)
        });
        if let Some(pending) = placing {
            pending.replies.push((reply, DurableReply::Placed { instance, reasons: Vec::new() }));
        } else if let Some(view) = self.view(instance) {
            let reply_now = ControlReply::Placed { view, reasons: Vec::new(), holders: 1 };
            out.push(CoordinatorOutput::Reply { to: reply, reply: reply_now });
        }
        true
    }

    pub(super) fn remove(
        &mut self,
        reply: ReplyTo,
        instance: InstanceId,
        reason: RemoveReason,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let event = Event::InstanceRemoved { instance, reason };
        self.ask(vec![(reply, DurableReply::Done)], vec![event], out);
    }

    /// Appends what was asked for, or says to everyone who waits for it why not.
    pub(super) fn ask(
        &mut self,
        replies: Vec<(ReplyTo, DurableReply)>,
        events: Vec<Event>,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let waiting: Vec<ReplyTo> = replies.iter().map(|(to, _)| *to).collect();
        let mut refuse = |refusal, message: &str| {
            out.extend(waiting.iter().map(|&to| refused(to, refusal, message)));
        };
        let Some(leading) = &mut self.leading else {
            return out.extend(waiting.into_iter().map(not_coordinator));
        };
        if leading.appends.len() >= APPENDS_MAX {
            let message = format!("{APPENDS_MAX} changes are waiting for the log");
            return refuse(ControlRefusal::LogFailed, &message);
        }
        if let Err(error) = events.iter().try_for_each(Check::check) {
            return refuse(ControlRefusal::Invalid, &error.to_string());
        }
        if let Err(error) = leading.append(events, replies, out) {
            let refusal = match error {
                crate::ApplyError::UnknownInstance { .. } => ControlRefusal::Unknown,
                _ => ControlRefusal::Invalid,
            };
            out.extend(waiting.into_iter().map(|to| refused(to, refusal, &error.to_string())));
        }
    }
}

pub(super) fn refused(to: ReplyTo, refusal: ControlRefusal, message: &str) -> CoordinatorOutput {
    CoordinatorOutput::Reply { to, reply: ControlReply::Refused { refusal, message: clip(message) } }
}
