//! Trouble that blames no stage, again and again on the same devices: one stage goes elsewhere, to see
//! whether that helps.

use std::time::Duration;

use exo_types::{InstanceId, Stage, Time};

use super::Coordinator;
use super::repair::RepairScope;
use super::survey::{AVOID_FAILED, Avoided};
use crate::{ReplaceReason, StageLoss};

/// So often within [`WITHIN`] the same devices may be tried again.
pub(crate) const TROUBLES_MAX: u32 = 3;
/// Trouble is counted for so long.
pub(crate) const WITHIN: Duration = Duration::from_secs(600);

/// When the stages of an instance had trouble that blamed none of them.
#[derive(Clone, Debug, Default)]
pub(super) struct UnattributedFailures {
    stages: Vec<Stage>,
    at: Vec<Time>,
}

impl UnattributedFailures {
    /// Notes one more. Whether these stages have had enough.
    fn note(&mut self, now: Time, stages: &[Stage]) -> bool {
        if self.stages != stages {
            (self.stages, self.at) = (stages.to_vec(), Vec::new());
        }
        self.at.retain(|at| now.since(*at) <= WITHIN);
        self.at.push(now);
        let is_enough = self.at.len() >= TROUBLES_MAX as usize;
        if is_enough {
            self.at.clear();
        }
        is_enough
    }
}

impl Coordinator {
    /// Notes trouble of an instance that blames no stage. Gives the stage that is to go elsewhere: the last
    /// that can, once the same devices have had enough of it.
    pub(super) fn unblamed(&mut self, now: Time, instance: InstanceId) -> Option<u32> {
        let stages = self.state.instances().get(&instance)?.placement.stages.clone();
        let watch = self.leading.as_mut()?.watches.get_mut(&instance)?;
        if !watch.unblamed.note(now, &stages) {
            return None;
        }
        (0..stages.len())
            .rev()
            .find(|index| self.goes_elsewhere(now, instance, &stages, *index))
            .map(|index| index as u32)
    }

    /// Whether another device takes the layers of a stage while its own is avoided.
    fn goes_elsewhere(&mut self, now: Time, instance: InstanceId, stages: &[Stage], index: usize) -> bool {
        let shard = stages[index].leader();
        let device = (instance, shard.node, shard.device.clone());
        let Some(leading) = &mut self.leading else { return false };
        // As if it were lost.
        let (stage, node, loss) = (index as u32, shard.node, StageLoss::NodeGone);
        let avoided = Avoided::new(now + AVOID_FAILED, ReplaceReason::Stage { stage, node, loss });
        let before = leading.avoided.insert(device.clone(), avoided);
        let found = self.repaired(now, instance, RepairScope::Loss);
        if let Some(leading) = &mut self.leading {
            match before {
                Some(before) => drop(leading.avoided.insert(device, before)),
                None => drop(leading.avoided.remove(&device)),
            }
        }
        found.is_some_and(|(found, _)| found != stages)
    }
}
