//! Seats for connections: a bounded number of them, of which those that have shown no key get a part.
//!
//! Who has a key cannot show it before it is connected, so a connection without one is never refused for
//! others like it: the oldest of them makes place. Who shows its key keeps its seat until it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The seats of one listener.
pub struct Seats {
    taken: Mutex<Taken>,
    seats_max: usize,
    keyless_max: usize,
}

#[derive(Default)]
struct Taken {
    /// By age, with what closes them.
    keyless: BTreeMap<u64, CancellationToken>,
    kept: BTreeSet<u64>,
    next: u64,
}

/// The seat of one connection. It is free again when this is dropped.
pub struct Seat {
    seats: Arc<Seats>,
    number: u64,
    /// Cancelled when another connection takes the seat.
    pub lost: CancellationToken,
}

impl Seats {
    /// So many, at most `keyless_max` of them for connections that have shown no key.
    pub fn new(seats_max: usize, keyless_max: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::default(), seats_max, keyless_max })
    }

    /// A seat that another connection cannot take, if there is a free one.
    pub fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.taken();
        if taken.count() >= self.seats_max {
            return None;
        }
        let number = taken.number();
        taken.kept.insert(number);
        Some(self.seat(number, CancellationToken::new()))
    }

    /// A seat for a connection that has shown no key yet. If there is no other, the oldest connection without
    /// a key loses its seat; `None` if there is none of those.
    pub fn take_keyless(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.taken();
        if taken.keyless.len() >= self.keyless_max || taken.count() >= self.seats_max {
            let (_, oldest) = taken.keyless.pop_first()?;
            oldest.cancel();
        }
        let (number, lost) = (taken.number(), CancellationToken::new());
        taken.keyless.insert(number, lost.clone());
        Some(self.seat(number, lost))
    }

    fn seat(self: &Arc<Self>, number: u64, lost: CancellationToken) -> Seat {
        Seat { seats: self.clone(), number, lost }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics between two changes that belong together.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn count(&self) -> usize {
        self.keyless.len() + self.kept.len()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Seat {
    /// The connection has shown a key: it keeps its seat.
    pub fn keep(&self) {
        let mut taken = self.seats.taken();
        if taken.keyless.remove(&self.number).is_some() {
            taken.kept.insert(self.number);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.keyless.remove(&self.number);
        taken.kept.remove(&self.number);
    }
}
