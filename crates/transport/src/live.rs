//! Every connection that is open, by peer, so that a removal is effective at once, and what was lost on the
//! way to each.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exo_types::NodeId;

/// Breaks one connection. Called outside every lock; may be called after the connection is gone.
type Kill = Box<dyn Fn() + Send + Sync>;

/// How many packets one connection has lost so far.
type Lost = Box<dyn Fn() -> u64 + Send + Sync>;

/// Peers whose lost packets are remembered behind their last connection.
const PEERS_MAX: usize = 1024;

#[derive(Default)]
struct Entries {
    next_id: u64,
    by_id: HashMap<u64, Entry>,
    /// Of connections that are gone: what counts up never goes back.
    lost_before: BTreeMap<NodeId, u64>,
}

struct Entry {
    peer: NodeId,
    kill: Kill,
    /// Nothing where the transport does not tell.
    lost: Option<Lost>,
}

impl Entries {
    /// Keeps what a connection that is gone had lost.
    fn count_lost(&mut self, entry: &Entry) {
        let Some(lost) = &entry.lost else { return };
        if self.lost_before.len() >= PEERS_MAX && !self.lost_before.contains_key(&entry.peer) {
            self.lost_before.pop_first();
        }
        *self.lost_before.entry(entry.peer).or_default() += lost();
    }
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
        lost: Option<Lost>,
    ) -> Registration {
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id += 1;
        entries.by_id.insert(id, Entry { peer, kill: Box::new(kill), lost });
        Registration { live: self.clone(), id }
    }

    /// Packets to each peer that were lost on the way, where its connections tell.
    pub(crate) fn lost_packets(&self) -> BTreeMap<NodeId, u64> {
        let entries = self.lock();
        let mut all = entries.lost_before.clone();
        for entry in entries.by_id.values() {
            if let Some(lost) = &entry.lost {
                *all.entry(entry.peer).or_default() += lost();
            }
        }
        all
    }

    /// Breaks every connection whose peer is `doomed`.
    pub(crate) fn kill(&self, doomed: impl Fn(NodeId) -> bool) {
        let mut entries = self.lock();
        let killed: Vec<_> = entries.by_id.extract_if(|_, entry| doomed(entry.peer)).collect();
        killed.iter().for_each(|(_, entry)| entries.count_lost(entry));
        drop(entries);
        for (_, Entry { peer, kill, .. }) in killed {
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
        let mut entries = self.live.lock();
        let gone = entries.by_id.remove(&self.id);
        gone.iter().for_each(|entry| entries.count_lost(entry));
        drop(entries);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn lost_packets_of_a_peer_count_up_over_all_of_its_connections() {
        let (live, [one, two]) = (Arc::new(Live::default()), [1, 2].map(|n| NodeId([n; 32])));
        let counter = Arc::new(AtomicU64::new(5));
        let lost = |counter: &Arc<AtomicU64>| -> Option<Lost> {
            let counter = counter.clone();
            Some(Box::new(move || counter.load(Ordering::Relaxed)))
        };
        let first = live.register(one, || {}, lost(&counter));
        let _silent = live.register(two, || {}, None);
        assert_eq!(live.lost_packets(), BTreeMap::from([(one, 5)]), "who does not tell has no number");
        counter.store(7, Ordering::Relaxed);
        drop(first);
        let second = live.register(one, || {}, lost(&Arc::new(AtomicU64::new(3))));
        assert_eq!(live.lost_packets()[&one], 10);
        live.kill(|peer| peer == one);
        drop(second);
        assert_eq!(live.lost_packets()[&one], 10);
    }
}
