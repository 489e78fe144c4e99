//! What the simulator's invariants look at. Nothing decides by it.

use exo_cluster::InstanceState;
use exo_types::{PlacementId, Term};

use crate::NodeMachine;

impl NodeMachine {
    /// The placements this node knows, and how each does.
    pub fn placements(&self) -> Vec<(PlacementId, InstanceState)> {
        let known = self.instances.iter();
        known.map(|view| (view.placement.id, view.state.clone())).collect()
    }

    /// The placements whose scheduler is here, and the term of each.
    pub fn scheduled(&self) -> Vec<(PlacementId, Term)> {
        self.schedulers.iter().map(|(placement, entry)| (*placement, entry.scheduler.term())).collect()
    }
}
