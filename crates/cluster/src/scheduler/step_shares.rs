//! Whose decodes and prompts come first in a step.
//!
//! A token comes back when its whole step does, so each row of another principal delays it. How many slots a
//! principal has, [`super::preemption`] decides; how many of them are in one step, this module: where rows
//! are expensive, who runs more than others sits out of some steps. Of prompts, principals take turns chunk
//! by chunk.

use std::collections::BTreeMap;

use exo_types::{Principal, SequenceId};

use super::Scheduler;

impl Scheduler {
    /// The decodes of the next step. They are spread over as many micro-batches as there are stages, so that
    /// no stage idles while another computes. First come as many of each principal as the one that runs least
    /// has in a step, then the others, and of both the longest waiting first.
    pub(super) fn decodes_of_step(&self) -> Vec<SequenceId> {
        let stages = self.placement.stages.len().max(1);
        let mut counts: BTreeMap<Principal, usize> = BTreeMap::new();
        for running in self.running.values().filter(|r| r.is_decoding()) {
            *counts.entry(running.principal).or_default() += 1;
        }
        let least = counts.values().copied().min().unwrap_or(0);
        let all = counts.values().sum::<usize>().div_ceil(stages);
        let equal = (least * counts.len()).div_ceil(stages);
        let rows = all.min(self.row_cost.rows_beside(equal));

        let ready = self.running.iter().filter(|(_, r)| r.is_ready_to_decode());
        let mut ready: Vec<(u64, SequenceId, Principal)> =
            ready.map(|(&id, r)| (r.part_last, id, r.principal)).collect();
        ready.sort_unstable();
        let (mut taken, share): (BTreeMap<Principal, usize>, usize) =
            (BTreeMap::new(), least.div_ceil(stages));
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for (_, id, principal) in ready {
            let taken = taken.entry(principal).or_default();
            *taken += 1;
            if *taken <= share { first.push(id) } else { others.push(id) }
        }
        first.extend(others);
        first.truncate(rows);
        first
    }

    /// Prompts, those first whose principal has waited longest for a chunk; of one principal in the order of
    /// admission.
    pub(super) fn prompts_in_order(&mut self) -> Vec<SequenceId> {
        let running = &self.running;
        self.prompts_taken.retain(|principal, _| running.values().any(|r| r.principal == *principal));
        let turn = |principal: &Principal| self.prompts_taken.get(principal).copied();
        let prompts = running.iter().filter(|(_, r)| !r.is_decoding());
        let mut prompts: Vec<(Option<u64>, u64, SequenceId)> =
            prompts.map(|(&id, r)| (turn(&r.principal), r.ticket, id)).collect();
        prompts.sort_unstable();
        prompts.into_iter().map(|(_, _, id)| id).collect()
    }
}
