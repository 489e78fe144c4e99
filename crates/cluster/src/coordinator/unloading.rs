//! Models that requests loaded are unloaded again: for what is placed next, those first that were not used
//! for longest; and when none has used them for long.
//!
//! A model that a person placed stays until a person unloads it, and one with requests is left alone. What is
//! unloaded and what is placed instead are one write to the log.

use std::time::Duration;

use exo_planner::Plan;
use exo_types::{InstanceId, Time};

use super::dry_run::in_the_way;
use super::{Coordinator, CoordinatorOutput};
use crate::driver::PAUSE_MAX;
use crate::wire::Unloadable;
use crate::{Event, InstanceState, RemoveReason, StateInstance};

/// An instance that had no request for so long makes room. Its scheduler's node reports each second.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(3);

impl Coordinator {
    /// Notes whether an instance has requests, or is about to have those that it is loaded for.
    pub(super) fn note_use(&mut self, now: Time, instance: InstanceId) {
        let Some(entry) = self.state.instances().get(&instance) else { return };
        let stages = entry.placement.shards().flat_map(|(position, shard)| {
            let stages = self.reports.get(&shard.node).map_or(&[][..], |report| &report.stages);
            stages.iter().filter(move |stage| stage.serves == Some(position))
        });
        let (mut has_requests, mut busy_us) = (false, 0u64);
        for stage in stages {
            has_requests |= stage.sequences > 0;
            busy_us = busy_us.saturating_add(stage.busy_us);
        }
        let Some(watch) = self.leading.as_mut().and_then(|l| l.watches.get_mut(&instance)) else { return };
        let is_coming =
            matches!(watch.state, InstanceState::Placing | InstanceState::Loading | InstanceState::Wiring);
        // A request may begin and end between two reports.
        let has_computed = std::mem::replace(&mut watch.busy_us, busy_us) < busy_us;
        if is_coming || has_requests || has_computed {
            watch.used_at = now;
        }
    }

    /// What a plan that does not fit may count as free next.
    pub(super) fn next_to_unload(&self, now: Time, unloaded: &[InstanceId]) -> Option<InstanceId> {
        let mut all = self.unloadable(now).into_iter().map(|unloadable| unloadable.instance);
        all.find(|instance| !unloaded.contains(instance))
    }

    /// What requests loaded: first what makes room now, then what will when it is idle, so that who asked
    /// learns whether waiting would help; of each those first that were not used for longest.
    pub(super) fn unloadable(&self, now: Time) -> Vec<Unloadable> {
        let Some(leading) = &self.leading else { return Vec::new() };
        let loaded = leading.planned.instances().iter().filter(|(_, entry)| entry.request.is_on_demand);
        let mut ids: Vec<InstanceId> = loaded.map(|(id, _)| *id).collect();
        let used_at = |id: InstanceId| leading.watches.get(&id).map(|watch| watch.used_at);
        ids.sort_by_key(|id| (!self.is_idle(now, *id), used_at(*id), *id));
        self.as_unloadable(now, &ids)
    }

    /// These, as far as they are still placed. What a person has asked for meanwhile counts as in use.
    fn as_unloadable(&self, now: Time, instances: &[InstanceId]) -> Vec<Unloadable> {
        let Some(leading) = &self.leading else { return Vec::new() };
        let of = |&instance: &InstanceId| {
            let StateInstance { request, placement, .. } = leading.planned.instances().get(&instance)?;
            let idle = leading.watches.get(&instance).map(|watch| now.since(watch.used_at).as_secs());
            Some(Unloadable {
                instance,
                model_name: request.model_name.clone(),
                shards: placement.shards().map(|(_, shard)| (shard.node, shard.device.clone())).collect(),
                idle_s: idle.filter(|_| request.is_on_demand && self.is_idle(now, instance)),
                room: Vec::new(),
            })
        };
        instances.iter().filter_map(of).collect()
    }

    fn is_idle(&self, now: Time, instance: InstanceId) -> bool {
        self.is_unused_for(now, instance, IDLE_AFTER)
    }

    /// Whether it had no request for so long. Answers that a lost stage has stand still have as long as they
    /// may, or the next model would end them.
    fn is_unused_for(&self, now: Time, instance: InstanceId, time: Duration) -> bool {
        let watch = self.leading.as_ref().and_then(|leading| leading.watches.get(&instance));
        watch.is_some_and(|watch| {
            let time = if watch.has_paused { time.max(PAUSE_MAX) } else { time };
            watch.moving.is_none() && now.since(watch.used_at) >= time
        })
    }

    /// Unloads what requests loaded and none has used for as long as is set. The next request has it placed
    /// again.
    pub(super) fn unload_idle(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        let (Some(leading), Some(after)) = (&self.leading, self.unload_idle_after) else { return };
        // What was refused by the log a moment ago waits, as any decision does.
        let is_due = |id: InstanceId| leading.watches.get(&id).is_some_and(|watch| now >= watch.decide_at);
        let loaded = leading.planned.instances().iter().filter(|(_, entry)| entry.request.is_on_demand);
        let idle = loaded.map(|(id, _)| *id).filter(|id| is_due(*id) && self.is_unused_for(now, *id, after));
        let idle: Vec<InstanceId> = idle.collect();
        for instance in idle {
            let reason = RemoveReason::Unused { seconds: after.as_secs() };
            tracing::info!(target: "events::instance", %instance, %reason, "unloaded");
            self.give_up(now, instance, reason, out);
        }
    }

    /// Unloads those of the instances that hold memory where the plan needs it: the events, and what to say
    /// of them. An error names those of them that are in use.
    pub(super) fn make_room(
        &self,
        now: Time,
        unloaded: &[InstanceId],
        plan: &Plan,
        model_name: &str,
    ) -> Result<(Vec<Event>, Vec<String>), Vec<String>> {
        let idle = in_the_way(self.as_unloadable(now, unloaded), plan, &self.devices(now, None, &[]))?;
        let reason = RemoveReason::MakesRoom { model_name: model_name.to_owned() };
        let remove = |unloadable: &Unloadable| Event::InstanceRemoved {
            instance: unloadable.instance,
            reason: reason.clone(),
        };
        Ok((idle.iter().map(remove).collect(), idle.iter().map(Unloadable::text).collect()))
    }
}
