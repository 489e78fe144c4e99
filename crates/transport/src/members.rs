//! The keys that may connect, shared by everyone who asks and changed by whoever folds the cluster's events.

use std::collections::HashSet;
use std::sync::Arc;

use exo_types::NodeId;
use tokio::sync::watch;

/// The current members. A clone is the same set: a change is seen by the next handshake, and an [`Endpoint`]
/// closes the live connections of whoever left.
///
/// [`Endpoint`]: crate::Endpoint
#[derive(Clone, Debug, Default)]
pub struct MemberSet(Arc<watch::Sender<HashSet<NodeId>>>);

impl MemberSet {
    /// A set of these members.
    pub fn new(members: impl IntoIterator<Item = NodeId>) -> Self {
        Self(Arc::new(watch::Sender::new(members.into_iter().collect())))
    }

    /// Whether `node` may connect now.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.borrow().contains(&node)
    }

    /// Admits `node`.
    pub fn insert(&self, node: NodeId) {
        self.0.send_if_modified(|set| set.insert(node));
    }

    /// Shuts `node` out, at once.
    pub fn remove(&self, node: NodeId) {
        self.0.send_if_modified(|set| set.remove(&node));
    }

    /// Makes the set exactly this.
    pub fn replace(&self, members: impl IntoIterator<Item = NodeId>) {
        let members = members.into_iter().collect();
        self.0.send_if_modified(|set| {
            let changed = *set != members;
            *set = members;
            changed
        });
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether no one may connect.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn watch(&self) -> watch::Receiver<HashSet<NodeId>> {
        self.0.subscribe()
    }
}
