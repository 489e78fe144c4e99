//! The clusters that this node left. It joins what it finds while it is new; where a person took it out it
//! goes back only by a person's word, which is a code.

use std::collections::{BTreeMap, BTreeSet};

use exo_trust::EntryId;
use exo_types::NodeId;

use super::{Context, Joining, JoiningOutput, notice};
use crate::{LeftCluster, Notice};

/// Members of all of them, with those that showed only when they were asked.
const KEYS_MAX: usize = 2048;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Left {
    clusters: BTreeSet<EntryId>,
    /// Where each key belongs, as far as this node knows.
    members: BTreeMap<NodeId, EntryId>,
    /// Of which a person was told in this run.
    told: BTreeSet<EntryId>,
}

impl Left {
    pub(super) fn new(clusters: Vec<LeftCluster>) -> Self {
        let mut left = Self::default();
        for LeftCluster { cluster, members } in clusters {
            left.clusters.insert(cluster);
            members.into_iter().for_each(|node| left.note(node, cluster));
        }
        left
    }

    /// The one that a node belongs to.
    pub(super) fn of(&self, node: NodeId) -> Option<EntryId> {
        self.members.get(&node).copied()
    }

    pub(super) fn has(&self, cluster: EntryId) -> bool {
        self.clusters.contains(&cluster)
    }

    /// A node has shown that it belongs to one of them.
    pub(super) fn note(&mut self, node: NodeId, cluster: EntryId) {
        if self.members.len() < KEYS_MAX {
            self.members.insert(node, cluster);
        }
    }

    /// A person has brought this node back.
    fn lift(&mut self, cluster: EntryId) {
        self.clusters.remove(&cluster);
        self.members.retain(|_, left| *left != cluster);
    }
}

impl Joining {
    /// This node lives in this cluster now.
    pub(super) fn came_back(&mut self, cluster: EntryId) {
        self.left.lift(cluster);
    }

    /// Whether the cluster that lets this node in is one that it left, and no person has given it a code from
    /// there.
    pub(super) fn stays_out_of(&self, by: NodeId, cluster: EntryId) -> bool {
        self.left.has(cluster) && !self.is_asked_with_code(by)
    }

    /// Another has shown that it belongs to a cluster that this node left.
    pub(super) fn stay_away(&mut self, node: NodeId, cluster: EntryId, out: &mut Vec<JoiningOutput>) {
        self.left.note(node, cluster);
        let name = self.strangers.get(&node).map(|stranger| stranger.name.clone());
        self.tell_left(cluster, name.unwrap_or_else(|| node.to_string()), out);
    }

    /// Says once of each that is seen, and that this node would join had it not left it.
    pub(super) fn tell_of_left(&mut self, ctx: &Context<'_>, out: &mut Vec<JoiningOutput>) {
        if self.left.clusters.len() == self.left.told.len() || !ctx.is_alone() || self.by_code.is_some() {
            return;
        }
        let is_fresh = ctx.is_fresh();
        let would = self.strangers.iter().filter(|(_, s)| s.is_named || (is_fresh && !s.is_fresh));
        let seen = would.filter_map(|(node, s)| Some((self.left.of(*node)?, s.name.clone())));
        for (cluster, name) in seen.collect::<Vec<_>>() {
            self.tell_left(cluster, name, out);
        }
    }

    fn tell_left(&mut self, cluster: EntryId, by: String, out: &mut Vec<JoiningOutput>) {
        if self.left.told.insert(cluster) {
            notice(out, Notice::StaysAway { by });
        }
    }
}
