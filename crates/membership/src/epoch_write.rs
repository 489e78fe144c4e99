//! The next epoch on its way to the disk: what is to be done in an epoch waits here until the epoch is
//! durable.

use exo_types::{Epoch, NodeId};

/// The last epoch that was given to the disk, and whether a move waits for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EpochWrite {
    /// The last epoch given to the disk, or found there at the start. Within a cluster it only grows.
    last: Option<Epoch>,
    /// Whether the disk has not answered for it yet.
    in_flight: bool,
    /// Whether this node leads or follows it as soon as it is durable.
    awaited: bool,
    /// The highest counter this node has claimed in this run, in whichever cluster: so that an answer for a
    /// claim that was given up by joining another cluster never counts for a later claim.
    claimed: u64,
}

impl EpochWrite {
    /// The disk holds `epoch` and nothing is in flight.
    pub fn of(epoch: Option<Epoch>) -> Self {
        Self { last: epoch, ..Self::default() }
    }

    /// The epoch that a move waits for.
    pub fn awaited(&self) -> Option<Epoch> {
        self.last.filter(|_| self.awaited)
    }

    /// Whether the disk holds `epoch` and nothing later has been asked of it.
    pub fn is_done(&self, epoch: Epoch) -> bool {
        self.last == Some(epoch) && !self.in_flight
    }

    /// A claim needs a higher counter than this.
    pub fn counter_floor(&self) -> u64 {
        self.last.map_or(0, |e| e.counter).max(self.claimed)
    }

    /// A move waits for `epoch` from now on, in place of one that waited for a lower epoch. Says whether
    /// `epoch` must be written now, or names the last epoch if that is higher.
    pub fn begin(&mut self, epoch: Epoch, me: NodeId) -> Result<bool, Epoch> {
        if let Some(last) = self.last.filter(|last| *last > epoch) {
            return Err(last);
        }
        if epoch.key == me {
            self.claimed = self.claimed.max(epoch.counter);
        }
        self.awaited = true;
        let is_new = self.last.replace(epoch) != Some(epoch);
        self.in_flight |= is_new;
        Ok(is_new)
    }

    /// The disk answered for `epoch`: whether it was the last one asked for. The move, if one waited, is the
    /// caller's.
    pub fn finish(&mut self, epoch: Epoch) -> bool {
        let is_last = self.in_flight && self.last == Some(epoch);
        if is_last {
            (self.in_flight, self.awaited) = (false, false);
        }
        is_last
    }

    /// The disk refused `epoch`: it holds `durable`, and nothing waits any more.
    pub fn fail(&mut self, epoch: Epoch, durable: Option<Epoch>) {
        if self.in_flight && self.last == Some(epoch) {
            (self.last, self.in_flight, self.awaited) = (durable, false, false);
        }
    }

    /// No move waits any more; what is in flight is written all the same.
    pub fn abandon(&mut self) {
        self.awaited = false;
    }

    /// The epochs of a cluster that this node has given up mean nothing in the next.
    pub fn forget(&mut self) {
        *self = Self { claimed: self.claimed, ..Self::default() };
    }
}
