//! Every connection that is open, by peer, so that a removal is effective at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exo_types::NodeId;

/// Breaks one connection. Called outside every lock; may be called after the connection is gone.
type Kill = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Entries {
    next_id: u64,
    by_id: HashMap<u64, (NodeId, Kill)>,
}

/// The open connections of one endpoint.
#[derive(Default)]
pub(crate) struct Live(Mutex<Entries>);

/// An entry in [`Live`]; dropped with the connection.
pub(crate) struct Registration {
    live: Arc<Live>,
    id: u64,
}

impl Live {
    pub(crate) fn register(
        self: &Arc<Self>,
        peer: NodeId,
        kill: impl Fn() + Send + Sync + 'static,
    ) -> Registration {
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id += 1;
        entries.by_id.insert(id, (peer, Box::new(kill)));
        Registration { live: self.clone(), id }
    }

    /// Breaks every connection whose peer is `doomed`.
    pub(crate) fn kill(&self, doomed: impl Fn(NodeId) -> bool) {
        let killed: Vec<_> = self.lock().by_id.extract_if(|_, (peer, _)| doomed(*peer)).collect();
        for (_, (peer, kill)) in killed {
            tracing::debug!(%peer, "connection closed by this node");
            kill();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let gone = self.live.lock().by_id.remove(&self.id);
        drop(gone);
    }
}
