//! A cluster that this node left, as its disk remembers it.

use exo_trust::{EntryId, View};
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

/// A cluster that this node left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftCluster {
    /// The id of its founding entry.
    pub cluster: EntryId,
    /// Who was in it: they are not asked.
    pub members: Vec<NodeId>,
}

impl LeftCluster {
    /// The cluster whose log of trust says this; `None` if there was no one in it but this node.
    pub fn new(cluster: EntryId, view: &View) -> Option<Self> {
        let is_shared = view.members().len() > 1 || !view.removed().is_empty();
        is_shared.then(|| Self { cluster, members: view.members().keys().copied().collect() })
    }
}
