//! What members ask for.

use exo_types::{InstanceId, NodeId, Time};

use super::log::Answer;
use super::{Coordinator, CoordinatorOutput, ReplyTo, clip, not_coordinator};
use crate::wire::{Check, ControlRefusal, ControlReply};
use crate::{Event, InstanceRequest, Member};

/// Appends that may wait for the journal; who asks for more is refused.
const APPENDS_MAX: usize = 256;

impl Coordinator {
    pub(super) fn place(
        &mut self,
        now: Time,
        reply: ReplyTo,
        request: InstanceRequest,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        if self.reign.is_none() {
            return out.push(not_coordinator(reply));
        }
        if let Err(error) = request.check() {
            return out.push(refused(reply, ControlRefusal::Invalid, &error.to_string()));
        }
        if self.placed_already(reply, &request, out) {
            return;
        }
        let planned = match self.plan_new(now, &request) {
            Ok(planned) => planned,
            Err(error) => return out.push(refused(reply, ControlRefusal::DoesNotFit, &error.to_string())),
        };
        let (placement, memory_bytes, reasons) = planned;
        let instance = placement.instance;
        let event = Event::InstancePlaced { request, placement, memory_bytes };
        self.ask(reply, event, Answer::Placed { instance, reasons }, out);
    }

    /// One instance per model: who asks again gets the one there is, once it is durable.
    fn placed_already(
        &mut self,
        reply: ReplyTo,
        request: &InstanceRequest,
        out: &mut Vec<CoordinatorOutput>,
    ) -> bool {
        let Some(reign) = &mut self.reign else { return false };
        let mut all = reign.planned.instances().iter();
        let Some((&instance, _)) = all.find(|(_, i)| i.request.model == request.model) else { return false };
        let placing = reign.appends.values_mut().find(|pending| {
            let places = |e: &Event| matches!(e, Event::InstancePlaced { placement, .. } if placement.instance == instance);
            pending.events.iter().any(places)
        });
        if let Some(pending) = placing {
            pending.replies.push((reply, Answer::Placed { instance, reasons: Vec::new() }));
        } else if let Some(view) = self.view(instance) {
            let reply_now = ControlReply::Placed { view, reasons: Vec::new() };
            out.push(CoordinatorOutput::Reply { to: reply, reply: reply_now });
        }
        true
    }

    pub(super) fn remove(
        &mut self,
        reply: ReplyTo,
        instance: InstanceId,
        reason: String,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        let event = Event::InstanceRemoved { instance, reason: clip(&reason) };
        self.ask(reply, event, Answer::Done, out);
    }

    pub(super) fn admit(&mut self, reply: ReplyTo, member: Member, out: &mut Vec<CoordinatorOutput>) {
        self.ask(reply, Event::MemberAdmitted(member), Answer::Done, out);
    }

    /// The survey moves its stages elsewhere, because a stage on no member is gone.
    pub(super) fn remove_member(
        &mut self,
        reply: ReplyTo,
        node: NodeId,
        reason: String,
        out: &mut Vec<CoordinatorOutput>,
    ) {
        self.ask(reply, Event::MemberRemoved { node, reason: clip(&reason) }, Answer::Done, out);
    }

    /// Facts that no other ask covers; instances are only ever changed through their own.
    pub(super) fn record(&mut self, reply: ReplyTo, event: Event, out: &mut Vec<CoordinatorOutput>) {
        match event {
            Event::ClusterCreated { .. } | Event::JoinWindow { .. } | Event::AdminAppointed { .. } => {
                self.ask(reply, event, Answer::Done, out);
            }
            Event::MemberAdmitted(_)
            | Event::MemberRemoved { .. }
            | Event::InstancePlaced { .. }
            | Event::InstanceReplaced { .. }
            | Event::InstanceRemoved { .. } => {
                out.push(refused(
                    reply,
                    ControlRefusal::Invalid,
                    "members and instances have asks of their own",
                ));
            }
        }
    }

    fn ask(&mut self, reply: ReplyTo, event: Event, answer: Answer, out: &mut Vec<CoordinatorOutput>) {
        let Some(reign) = &mut self.reign else { return out.push(not_coordinator(reply)) };
        if reign.appends.len() >= APPENDS_MAX {
            let message = format!("{APPENDS_MAX} changes are waiting for the log");
            return out.push(refused(reply, ControlRefusal::LogFailed, &message));
        }
        if let Err(error) = event.check() {
            return out.push(refused(reply, ControlRefusal::Invalid, &error.to_string()));
        }
        if let Err(error) = reign.append(event, Some((reply, answer)), out) {
            let refusal = match error {
                crate::ApplyError::UnknownInstance { .. } | crate::ApplyError::UnknownMember { .. } => {
                    ControlRefusal::Unknown
                }
                _ => ControlRefusal::Invalid,
            };
            out.push(refused(reply, refusal, &error.to_string()));
        }
    }
}

fn refused(to: ReplyTo, refusal: ControlRefusal, message: &str) -> CoordinatorOutput {
    CoordinatorOutput::Reply { to, reply: ControlReply::Refused { refusal, message: clip(message) } }
}
