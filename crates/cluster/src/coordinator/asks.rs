//! What members ask for.

use exo_types::{InstanceId, Time};

use super::log::DurableReply;
use super::planning::{PlanAsk, Purpose};
use super::{Coordinator, CoordinatorOutput, Leading, ReplyTo, not_coordinator};
use crate::wire::{
    Busyness, Check, ControlRefusal, ControlReply, InvalidAsk, LogFailure, RequestDifference, UnknownTarget,
};
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
            let what = InvalidAsk::OutOfBounds(error.to_string());
            return out.push(refused(reply, ControlRefusal::Invalid(what)));
        }
        let asked = self.leading.iter().flat_map(Leading::asked).filter(|to| to.node == reply.node).count();
        if asked >= ASKED_MAX {
            let busy = ControlRefusal::Busy(Busyness::Questions(asked as u32));
            return out.push(refused(reply, busy));
        }
        if self.placed_already(reply, &request, out) {
            return;
        }
        let Some(leading) = &mut self.leading else { return };
        match leading.plans.join(&request, reply) {
            Some(Ok(())) => return,
            Some(Err(differs)) => {
                return out.push(placed_otherwise(reply, request.model_name, differs, true));
            }
            None => {}
        }
        let purpose = Purpose::Placement { request: Box::new(request), replies: vec![reply] };
        if let Err(queued) = leading.plans.push(PlanAsk::new(now, purpose)) {
            out.push(refused(reply, ControlRefusal::Busy(Busyness::Plans(queued as u32))));
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
        if let Some(differs) = request.differs_from(&entry.request) {
            out.push(placed_otherwise(reply, request.model_name.clone(), differs, false));
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
        let mut refuse = |refusal: ControlRefusal| {
            out.extend(waiting.iter().map(|&to| refused(to, refusal.clone())));
        };
        let Some(leading) = &mut self.leading else {
            return out.extend(waiting.into_iter().map(not_coordinator));
        };
        if leading.appends.len() >= APPENDS_MAX {
            let full = LogFailure::Full { changes: APPENDS_MAX as u32 };
            return refuse(ControlRefusal::LogFailed(full));
        }
        if let Err(error) = events.iter().try_for_each(Check::check) {
            return refuse(ControlRefusal::Invalid(InvalidAsk::OutOfBounds(error.to_string())));
        }
        if let Err(error) = leading.append(events, replies, out) {
            let refusal = match error {
                crate::ApplyError::UnknownInstance { instance } => {
                    ControlRefusal::Unknown(UnknownTarget::Instance(instance))
                }
                error => ControlRefusal::Invalid(InvalidAsk::OutOfBounds(error.to_string())),
            };
            out.extend(waiting.into_iter().map(|to| refused(to, refusal.clone())));
        }
    }
}

pub(super) fn refused(to: ReplyTo, refusal: ControlRefusal) -> CoordinatorOutput {
    CoordinatorOutput::Reply { to, reply: ControlReply::Refused(refusal) }
}

fn placed_otherwise(
    to: ReplyTo,
    model_name: String,
    differs: RequestDifference,
    is_planned: bool,
) -> CoordinatorOutput {
    let what = InvalidAsk::PlacedOtherwise { model_name, differs, is_planned };
    refused(to, ControlRefusal::Invalid(what))
}
