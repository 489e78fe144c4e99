//! Slots for connections: a bounded number of them, of which those that have shown no key get a part.
//!
//! Who has a key cannot show it before it is connected, so a connection without one is never refused for
//! others like it: the oldest of them makes place. Who shows its key keeps its slot until it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use exo_stdx::Mutex;
use tokio_util::sync::CancellationToken;

/// The slots of one listener.
pub struct ConnectionSlots {
    taken: Mutex<TakenSlots>,
    slots_max: usize,
    keyless_max: usize,
}

#[derive(Default)]
struct TakenSlots {
    /// By age, with what closes them.
    keyless: BTreeMap<u64, CancellationToken>,
    kept: BTreeSet<u64>,
    next: u64,
}

/// The slot of one connection. It is free again when this is dropped.
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    /// Cancelled when another connection takes the slot.
    pub lost: CancellationToken,
}

impl ConnectionSlots {
    /// So many, at most `keyless_max` of them for connections that have shown no key.
    pub fn new(slots_max: usize, keyless_max: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::default(), slots_max, keyless_max })
    }

    /// A slot that another connection cannot take, if there is a free one.
    pub fn take(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut taken = self.taken.lock();
        if taken.count() >= self.slots_max {
            return None;
        }
        let number = taken.number();
        taken.kept.insert(number);
        Some(self.slot(number, CancellationToken::new()))
    }

    /// A slot for a connection that has shown no key yet. If there is no other, the oldest connection without
    /// a key loses its slot; `None` if there is none of those.
    pub fn take_keyless(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut taken = self.taken.lock();
        if taken.keyless.len() >= self.keyless_max || taken.count() >= self.slots_max {
            let (_, oldest) = taken.keyless.pop_first()?;
            oldest.cancel();
        }
        let (number, lost) = (taken.number(), CancellationToken::new());
        taken.keyless.insert(number, lost.clone());
        Some(self.slot(number, lost))
    }

    fn slot(self: &Arc<Self>, number: u64, lost: CancellationToken) -> ConnectionSlot {
        ConnectionSlot { slots: self.clone(), number, lost }
    }
}

impl TakenSlots {
    fn count(&self) -> usize {
        self.keyless.len() + self.kept.len()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl ConnectionSlot {
    /// The connection has shown a key: it keeps its slot.
    pub fn keep(&self) {
        let mut taken = self.slots.taken.lock();
        if taken.keyless.remove(&self.number).is_some() {
            taken.kept.insert(self.number);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        taken.keyless.remove(&self.number);
        taken.kept.remove(&self.number);
    }
}
