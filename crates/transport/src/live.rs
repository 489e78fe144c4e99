//! Every connection that is open, by peer, so that a removal is effective at once, and the packets that were
//! sent to each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use exo_stdx::Mutex;
use exo_types::{NodeId, PacketCounts};

/// Breaks one connection. Called outside every lock; may be called after the connection is gone.
type Kill = Box<dyn Fn() + Send + Sync>;

/// How many packets one connection has sent and lost so far.
type Packets = Box<dyn Fn() -> PacketCounts + Send + Sync>;

/// Peers whose packets are remembered behind their last connection.
const PEERS_MAX: usize = 1024;

#[derive(Default)]
struct Entries {
    next_id: u64,
    by_id: HashMap<u64, Entry>,
    /// Of connections that are gone: what counts up never goes back.
    counted_before: BTreeMap<NodeId, PacketCounts>,
}

struct Entry {
    peer: NodeId,
    kill: Kill,
    /// Nothing where the transport does not tell.
    packets: Option<Packets>,
}

impl Entries {
    /// Keeps what a connection that is gone has counted.
    fn keep_counts(&mut self, entry: &Entry) {
        let Some(packets) = &entry.packets else { return };
        if self.counted_before.len() >= PEERS_MAX && !self.counted_before.contains_key(&entry.peer) {
            self.counted_before.pop_first();
        }
        *self.counted_before.entry(entry.peer).or_default() += packets();
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
        packets: Option<Packets>,
    ) -> Registration {
        let mut entries = self.0.lock();
        let id = entries.next_id;
        entries.next_id += 1;
        entries.by_id.insert(id, Entry { peer, kill: Box::new(kill), packets });
        Registration { live: self.clone(), id }
    }

    /// Packets sent to each peer, and those lost on the way, where its connections tell.
    pub(crate) fn packets(&self) -> BTreeMap<NodeId, PacketCounts> {
        let entries = self.0.lock();
        let mut all = entries.counted_before.clone();
        for entry in entries.by_id.values() {
            if let Some(packets) = &entry.packets {
                *all.entry(entry.peer).or_default() += packets();
            }
        }
        all
    }

    /// Breaks every connection whose peer is `doomed`.
    pub(crate) fn kill(&self, doomed: impl Fn(NodeId) -> bool) {
        let mut entries = self.0.lock();
        let killed: Vec<_> = entries.by_id.extract_if(|_, entry| doomed(entry.peer)).collect();
        killed.iter().for_each(|(_, entry)| entries.keep_counts(entry));
        drop(entries);
        for (_, Entry { peer, kill, .. }) in killed {
            tracing::debug!(%peer, "connection closed by this node");
            kill();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut entries = self.live.0.lock();
        let gone = entries.by_id.remove(&self.id);
        gone.iter().for_each(|entry| entries.keep_counts(entry));
        drop(entries);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn packets_to_a_peer_count_up_over_all_of_its_connections() {
        let (live, [one, two]) = (Arc::new(Live::default()), [1, 2].map(|n| NodeId([n; 32])));
        let counter = Arc::new(AtomicU64::new(5));
        let packets = |counter: &Arc<AtomicU64>| -> Option<Packets> {
            let counter = counter.clone();
            Some(Box::new(move || PacketCounts { sent: 100, lost: counter.load(Ordering::Relaxed) }))
        };
        let first = live.register(one, || {}, packets(&counter));
        let _silent = live.register(two, || {}, None);
        let counted = BTreeMap::from([(one, PacketCounts { sent: 100, lost: 5 })]);
        assert_eq!(live.packets(), counted, "who does not tell has no number");
        counter.store(7, Ordering::Relaxed);
        drop(first);
        let second = live.register(one, || {}, packets(&Arc::new(AtomicU64::new(3))));
        assert_eq!(live.packets()[&one], PacketCounts { sent: 200, lost: 10 });
        live.kill(|peer| peer == one);
        drop(second);
        assert_eq!(live.packets()[&one], PacketCounts { sent: 200, lost: 10 });
    }
}
