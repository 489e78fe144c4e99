//! Telling workers what to hold and members how instances do: on change, and again until it is heard.

use std::collections::BTreeSet;
use std::time::Duration;

use exo_types::{ModelId, NodeId, Time};

use super::{Coordinator, CoordinatorOutput};
use crate::InstanceView;
use crate::wire::limits::INSTANCES_MAX;
use crate::wire::{DesiredShard, DesiredState};

/// What one worker was told.
#[derive(Clone, Debug)]
pub(super) struct SentState {
    desired: DesiredState,
    at: Time,
}

/// What all members were told.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    views: Vec<InstanceView>,
    at: Option<Time>,
    /// Instances whose removal is durable and that are to be told of once more.
    pub(super) removed: Vec<InstanceView>,
    /// A member came back and may have missed it.
    pub(super) outdated: bool,
}

/// A member whose report does not show the desired state is told again after this long.
const RESEND_AFTER: Duration = Duration::from_secs(2);
/// Loading progress is sent no more often than this.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Without any change, in case a message was lost.
const REPEAT_EVERY: Duration = Duration::from_secs(5);

impl Coordinator {
    pub(super) fn tell_workers(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        let members = self.members.keys().copied().filter(|n| self.alive.contains(n));
        let wanted: Vec<(NodeId, Vec<DesiredShard>)> = members.map(|n| (n, self.desired_of(n))).collect();
        let Some(leading) = &mut self.leading else { return };
        for (to, shards) in wanted {
            let told = leading.told.get_mut(&to).filter(|told| told.desired.shards == shards);
            let Some(told) = told else {
                leading.revision += 1;
                let desired = DesiredState { epoch: leading.epoch, revision: leading.revision, shards };
                leading.told.insert(to, SentState { desired: desired.clone(), at: now });
                out.push(CoordinatorOutput::SendDesired { to, desired });
                continue;
            };
            let seen = self.reports.get(&to).and_then(|r| r.desired);
            let heard = seen == Some((told.desired.epoch, told.desired.revision));
            if !heard && now.since(told.at) >= RESEND_AFTER {
                told.at = now;
                out.push(CoordinatorOutput::SendDesired { to, desired: told.desired.clone() });
            }
        }
    }

    /// The shards of durable placements on `node`.
    fn desired_of(&self, node: NodeId) -> Vec<DesiredShard> {
        let mut shards = Vec::new();
        for entry in self.state.instances().values() {
            let all = entry.placement.shards().zip(&entry.memory_bytes);
            let here = all.filter(|((_, shard), _)| shard.node == node);
            shards.extend(here.map(|((position, _), &memory_bytes)| DesiredShard {
                placement: entry.placement.clone(),
                stage: position.stage,
                rank: position.rank,
                model_name: entry.request.model_name.clone(),
                holders: self.holders(entry.request.model, &entry.request.holders),
                memory_bytes,
                is_ahead: false,
            }));
        }
        shards.extend(self.desired_ahead(node));
        shards
    }

    /// Members alive that are asked for the model: as reported, or as known when it was placed.
    pub(super) fn holders(&self, model: ModelId, known: &[NodeId]) -> Vec<NodeId> {
        let holds = |node: &NodeId| {
            let models = self.reports.get(node).map(|r| &r.models);
            models.is_some_and(|all| all.iter().any(|m| m.model == model && m.is_served()))
        };
        let holders: BTreeSet<NodeId> =
            self.alive.iter().copied().filter(|n| holds(n) || known.contains(n)).collect();
        holders.into_iter().collect()
    }

    pub(super) fn publish(&mut self, now: Time, out: &mut Vec<CoordinatorOutput>) {
        let mut views = self.instances();
        let Some(leading) = &mut self.leading else { return };
        let before = &mut leading.published;
        let room = INSTANCES_MAX.saturating_sub(views.len());
        views.extend(std::mem::take(&mut before.removed).into_iter().take(room));
        let age = before.at.map(|at| now.since(at));
        let turned = turned(&before.views, &views);
        let progressed = views != before.views && age.is_none_or(|age| age >= PROGRESS_EVERY);
        let repeat = before.outdated || age.is_none_or(|age| age >= REPEAT_EVERY);
        if turned.is_empty() && views.len() == before.views.len() && !progressed && !repeat {
            return;
        }
        for view in turned {
            out.push(CoordinatorOutput::InstanceChanged(Box::new(view.clone())));
        }
        *before = Published { views: views.clone(), at: Some(now), removed: Vec::new(), outdated: false };
        out.push(CoordinatorOutput::Instances { epoch: leading.epoch, instances: views });
    }
}

/// Instances that are new, placed anew, or in another state: worth a message at once.
fn turned<'a>(before: &[InstanceView], after: &'a [InstanceView]) -> Vec<&'a InstanceView> {
    let same =
        |new: &InstanceView, old: &InstanceView| old.placement == new.placement && old.state == new.state;
    after.iter().filter(|new| !before.iter().any(|old| same(new, old))).collect()
}
