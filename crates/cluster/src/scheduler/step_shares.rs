//! Whose decodes and prompts come first in a step.
//!
//! A token comes back when its whole step does, so each row of another principal delays it. How many slots a
//! principal has, [`super::preemption`] decides; how many of them are in one step, this module: where rows
//! are expensive, who runs more than others sits out of some steps. Of prompts, principals take turns chunk
//! by chunk.

use std::collections::BTreeMap;

use exo_types::{Principal, SequenceId};

use super::Scheduler;
use super::sequence::Running;

impl Scheduler {
    /// The decodes of the next step. They are spread over as many micro-batches as there are stages, so that
    /// no stage idles while another computes. First come as many of each principal as the one that runs least
    /// has in a step, of the principals the longest waiting first; then the others, the longest waiting
    /// first.
    pub(super) fn decodes_of_step(&self) -> Vec<SequenceId> {
        let stages = self.placement.stages.len().max(1);
        // How many each principal has, and when it last had a part in a step.
        let mut counts: BTreeMap<Principal, (usize, u64)> = BTreeMap::new();
        for running in self.running.values().filter(|r| r.is_decoding()) {
            let (count, last) = counts.entry(running.principal).or_default();
            (*count, *last) = (*count + 1, running.part_last.max(*last));
        }
        let least = counts.values().map(|(count, _)| *count).min().unwrap_or(0);
        let all = counts.values().map(|(count, _)| *count).sum::<usize>().div_ceil(stages);
        let equal = (least * counts.len()).div_ceil(stages);
        let rows = all.min(self.row_cost.rows_beside(equal));

        let ready = self.running.iter().filter(|(_, r)| r.is_ready_to_decode());
        let mut ready: Vec<(u64, SequenceId, Principal)> =
            ready.map(|(&id, r)| (r.part_last, id, r.principal)).collect();
        ready.sort_unstable();
        let (share, mut taken) = (least.div_ceil(stages), BTreeMap::<Principal, usize>::new());
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for (_, id, principal) in ready {
            let (_, last) = counts.get(&principal).copied().unwrap_or_default();
            let taken = taken.entry(principal).or_default();
            *taken += 1;
            if *taken <= share { first.push((last, id)) } else { others.push(id) }
        }
        // Over several stages a step may have less room than that. Stable: of one principal as before.
        first.sort_by_key(|(last, _)| *last);
        first.into_iter().map(|(_, id)| id).chain(others).take(rows).collect()
    }

    /// Prompts, those first whose principal has waited longest for a chunk; of one principal in the order of
    /// admission. Who is new waits from now on: however many come, one after the other, each of those that
    /// wait has its turn.
    pub(super) fn prompts_in_order(&mut self) -> Vec<SequenceId> {
        let (running, now) = (&self.running, self.steps);
        self.prompt_turns.retain(|principal, _| running.values().any(|r| r.principal == *principal));
        let prompts = running.iter().filter(|(_, r)| !r.is_decoding());
        let turn = |(&id, r): (&SequenceId, &Running)| {
            (*self.prompt_turns.entry(r.principal).or_insert(now), r.ticket, id)
        };
        let mut prompts: Vec<(u64, u64, SequenceId)> = prompts.map(turn).collect();
        prompts.sort_unstable();
        prompts.into_iter().map(|(_, _, id)| id).collect()
    }
}
