//! The door that a person opens for a while at one admin's node: strangers nearby that ask there are let in
//! as if that person had said so of each. It is in memory only, so neither a restart nor a clock opens it
//! again, and no other node knows of it.

use std::time::Duration;

use exo_trust::ON_SIGHT_MAX;
use exo_types::Time;

use crate::Now;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// Until when, and what clocks show then.
    until: Option<(Time, u64)>,
    /// How many it lets in still.
    places: usize,
}

impl Opened {
    /// Opens it, or opens it anew, for so long and for as many nodes as the first window lets in.
    pub(super) fn open(&mut self, now: Now, lasting: Duration) {
        let until_unix_s = now.unix_s.saturating_add(lasting.as_secs());
        (self.until, self.places) = (Some((now.time + lasting, until_unix_s)), ON_SIGHT_MAX);
    }

    /// Shuts it. Whether it was open.
    pub(super) fn shut(&mut self) -> bool {
        self.until.take().is_some()
    }

    /// Whether it is open: neither the time that the node runs nor the clock on the wall has ended that. A
    /// machine that slept, and wakes on another network, has no open door.
    pub(super) fn is_open(&self, now: Now) -> bool {
        self.until.is_some_and(|(until, until_unix_s)| now.time < until && now.unix_s < until_unix_s)
    }

    /// Whether it lets anybody else in.
    pub(super) fn has_places(&self, now: Now) -> bool {
        self.is_open(now) && self.places > 0
    }

    /// Until when it does, in seconds since 1970.
    pub(super) fn until_unix_s(&self, now: Now) -> Option<u64> {
        self.until.filter(|_| self.has_places(now)).map(|(_, until_unix_s)| until_unix_s)
    }

    /// One more is being let in. Whether it was the last.
    pub(super) fn take_place(&mut self) -> bool {
        let was_last = self.places == 1;
        self.places = self.places.saturating_sub(1);
        was_last
    }

    /// Shuts it when its time is over. Whether that is news.
    pub(super) fn expire(&mut self, now: Now) -> bool {
        !self.is_open(now) && self.shut()
    }

    /// When its time is over.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.until.map(|(until, _)| until)
    }
}
