//! Who talks with whom: a placement uses no pair of members that cannot reach each other.

use std::collections::BTreeSet;
use std::time::Duration;

use exo_types::{NodeId, Stage, Time};

use super::Coordinator;

/// The data links of a member are given this long after its first report: a placement that needs one of them
/// waits for it.
const LINKS_OPEN_WITHIN: Duration = Duration::from_secs(10);

/// The pairs of members whose data link is not open, by what either says.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// The lower id first.
    apart: BTreeSet<(NodeId, NodeId)>,
}

impl Reach {
    /// From the pairs.
    pub(super) fn of(apart: &[(NodeId, NodeId)]) -> Self {
        Self { apart: apart.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect() }
    }

    /// Whether steps and tokens get from one to the other.
    pub(super) fn talk(&self, a: NodeId, b: NodeId) -> bool {
        a == b || !self.apart.contains(&(a.min(b), a.max(b)))
    }

    /// The first two that a pipeline needs beside each other and that cannot talk.
    pub(super) fn torn(&self, stages: &[Stage]) -> Option<(NodeId, NodeId)> {
        let nodes: Vec<NodeId> = stages.iter().map(|stage| stage.leader().node).collect();
        let round = nodes.iter().zip(nodes.iter().cycle().skip(1));
        round.map(|(a, b)| (*a, *b)).find(|(a, b)| !self.talk(*a, *b))
    }

    /// Whether every stage reaches the next, and the last the first.
    pub(super) fn joins(&self, stages: &[Stage]) -> bool {
        self.torn(stages).is_none()
    }

    /// The pairs.
    pub(super) fn apart(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.apart.iter().copied()
    }
}

impl Coordinator {
    /// What the members reported. Of two that are alive it is enough that one misses the other.
    pub(super) fn reach(&self) -> Reach {
        let apart = self
            .reports
            .iter()
            .flat_map(|(&from, report)| report.unreached.iter().map(move |&to| (from.min(to), from.max(to))));
        Reach { apart: apart.collect() }
    }

    /// Until when the data link between these two may be one that is only about to open: members that have
    /// just met open their links in the first moments.
    pub(super) fn may_open_until(&self, a: NodeId, b: NodeId) -> Option<Time> {
        let last = self.heard_at.get(&a)?.max(self.heard_at.get(&b)?);
        Some(*last + LINKS_OPEN_WITHIN)
    }
}
