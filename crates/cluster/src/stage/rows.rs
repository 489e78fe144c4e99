//! Hidden rows that a stage sent on, kept by page: when the stage behind it is lost, the next one on its
//! place computes from them, and nobody in front computes again.
//!
//! Rows grow with their sequence until its page is kept under a name; from then on they live as long as the
//! page. They take a bounded number of bytes. Where there is no room the rows of the sequence that was opened
//! longest ago go first, and of a sequence the last: rows are of no use without those in front of them. Rows
//! that are promised to a stage stay until it has its page.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use exo_types::{PageKey, SequenceId};

/// Which rows go first: those of the sequence opened first, of these the last page.
type Age = (u64, Reverse<u32>, PageKey);

/// Rows of one stage.
#[derive(Clone, Debug)]
pub(super) struct KeptRows {
    max_bytes: u64,
    row_bytes: usize,
    page_tokens: u32,
    /// Of all that is here.
    bytes: u64,
    growing: BTreeMap<SequenceId, GrowingRows>,
    pages: BTreeMap<PageKey, PageRows>,
    by_age: BTreeSet<Age>,
    promised: BTreeSet<PageKey>,
    /// Sequences opened so far.
    opened: u64,
}

/// Rows of an open sequence whose pages have no names yet.
#[derive(Clone, Debug)]
struct GrowingRows {
    /// Which of all sequences it was.
    opened: u64,
    by_page: BTreeMap<u32, Vec<u8>>,
    /// There was no room for it.
    is_cut: bool,
}

#[derive(Clone, Debug)]
struct PageRows {
    age: Age,
    rows: Vec<u8>,
}

impl KeptRows {
    /// No rows yet, of so many bytes each, in pages of so many.
    pub(super) fn new(row_bytes: usize, page_tokens: u32) -> Self {
        Self {
            max_bytes: 0,
            row_bytes,
            page_tokens,
            bytes: 0,
            growing: BTreeMap::new(),
            pages: BTreeMap::new(),
            by_age: BTreeSet::new(),
            promised: BTreeSet::new(),
            opened: 0,
        }
    }

    /// They may take so many bytes from now on.
    pub(super) fn set_max(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
        while self.bytes > self.max_bytes && self.drop_oldest(u64::MAX) {}
    }

    /// Of a page, full or not.
    fn page_bytes(&self) -> u64 {
        self.row_bytes as u64 * u64::from(self.page_tokens)
    }

    /// Bytes they take, and at most.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes, self.max_bytes)
    }

    /// A sequence is opened with these kept pages: their rows are as young as its own.
    pub(super) fn open(&mut self, sequence: SequenceId, cached: &[PageKey]) {
        self.opened += 1;
        for (index, key) in (0..).zip(cached) {
            if let Some(page) = self.pages.get_mut(key) {
                self.by_age.remove(&page.age);
                page.age = (self.opened, Reverse(index), *key);
                self.by_age.insert(page.age);
            }
        }
        let growing = GrowingRows { opened: self.opened, by_page: BTreeMap::new(), is_cut: false };
        self.growing.insert(sequence, growing);
    }

    /// Rows of a sequence are sent on, from position `start` on. What it had from there on is void.
    pub(super) fn note(&mut self, sequence: SequenceId, start: u32, rows: &[u8]) {
        let (page_tokens, row_bytes, page_bytes) = (self.page_tokens, self.row_bytes, self.page_bytes());
        let Some(growing) = self.growing.get_mut(&sequence).filter(|growing| !growing.is_cut) else { return };
        if self.max_bytes == 0 || page_tokens == 0 || row_bytes == 0 {
            return;
        }
        let void = growing.by_page.split_off(&(start / page_tokens + 1));
        self.bytes -= void.len() as u64 * page_bytes;
        for (position, row) in (start..).zip(rows.chunks_exact(row_bytes)) {
            let (index, at) = (position / page_tokens, (position % page_tokens) as usize * row_bytes);
            let page = match growing.by_page.entry(index) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) if at == 0 => {
                    self.bytes += page_bytes;
                    place.insert(Vec::with_capacity(page_bytes as usize))
                }
                // A page whose first positions came from elsewhere has no rows for them.
                Entry::Vacant(_) => continue,
            };
            page.truncate(at);
            if page.len() == at {
                page.extend_from_slice(row);
            }
        }
        let opened = growing.opened;
        while self.bytes > self.max_bytes {
            if !self.drop_oldest(opened) {
                self.cut(sequence);
                return;
            }
        }
    }

    /// The page is kept under this name from now on.
    pub(super) fn keep(&mut self, sequence: SequenceId, index: u32, key: PageKey) {
        let Some(growing) = self.growing.get_mut(&sequence) else { return };
        let opened = growing.opened;
        let Some(rows) = growing.by_page.remove(&index) else { return };
        if (rows.len() as u64) < self.page_bytes() {
            self.bytes -= self.page_bytes();
            return;
        }
        let age = (opened, Reverse(index), key);
        self.by_age.insert(age);
        self.pages.insert(key, PageRows { age, rows });
    }

    /// The sequence is closed.
    pub(super) fn close(&mut self, sequence: SequenceId) {
        let pages = self.growing.remove(&sequence).map_or(0, |closed| closed.by_page.len());
        self.bytes -= pages as u64 * self.page_bytes();
    }

    /// The page is kept no longer.
    pub(super) fn forget(&mut self, key: PageKey) {
        self.promised.remove(&key);
        if let Some(page) = self.pages.remove(&key) {
            self.by_age.remove(&page.age);
            self.bytes -= self.page_bytes();
        }
    }

    /// All sequences are closed, and no other pages kept than these. Nothing is promised any more.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&PageKey) -> bool) {
        let growing: Vec<SequenceId> = self.growing.keys().copied().collect();
        growing.into_iter().for_each(|sequence| self.close(sequence));
        let gone: Vec<PageKey> = self.pages.keys().filter(|key| !is_kept(key)).copied().collect();
        gone.into_iter().for_each(|key| self.forget(key));
        self.promised.clear();
    }

    /// The rows of a kept page, if they are here.
    pub(super) fn of(&self, key: PageKey) -> Option<&[u8]> {
        self.pages.get(&key).map(|page| page.rows.as_slice())
    }

    /// The stage behind this one lacks these pages: their rows stay.
    pub(super) fn promise(&mut self, keys: &[PageKey]) {
        self.promised.extend(keys);
    }

    /// It has one of them.
    pub(super) fn delivered(&mut self, key: PageKey) {
        self.promised.remove(&key);
    }

    /// Drops the rows of a page that go first, unless they are of a sequence that was opened with, or behind,
    /// the one that needs the room.
    fn drop_oldest(&mut self, opened: u64) -> bool {
        let is_free = |age: &&Age| !self.promised.contains(&age.2);
        let Some(&(of, _, key)) = self.by_age.iter().find(is_free) else { return false };
        if of >= opened {
            return false;
        }
        tracing::trace!(%key, bytes = self.bytes, max_bytes = self.max_bytes, "rows of a kept page make room");
        self.forget(key);
        true
    }

    /// There is no room for more rows of this sequence.
    fn cut(&mut self, sequence: SequenceId) {
        let Some(growing) = self.growing.get_mut(&sequence) else { return };
        growing.is_cut = true;
        let pages = std::mem::take(&mut growing.by_page).len();
        self.bytes -= pages as u64 * self.page_bytes();
        tracing::trace!(%sequence, bytes = self.bytes, max_bytes = self.max_bytes, "no room to keep rows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seq;

    /// Rows of one byte, in pages of two.
    fn rows(max_bytes: u64) -> KeptRows {
        let mut rows = KeptRows::new(1, 2);
        rows.set_max(max_bytes);
        rows
    }

    #[test]
    fn rows_live_as_long_as_their_page() {
        let mut rows = rows(100);
        rows.open(seq(1), &[]);
        rows.note(seq(1), 0, &[1, 2, 3]);
        rows.note(seq(1), 3, &[4, 5]);
        rows.keep(seq(1), 0, PageKey(7));
        rows.keep(seq(1), 1, PageKey(8));
        rows.close(seq(1));
        assert_eq!((rows.of(PageKey(7)), rows.of(PageKey(8))), (Some(&[1, 2][..]), Some(&[3, 4][..])));
        assert_eq!(rows.bytes(), (4, 100));
        rows.forget(PageKey(7));
        rows.open(seq(2), &[PageKey(8)]);
        rows.note(seq(2), 2, &[9]);
        rows.retain(|key| *key == PageKey(8));
        assert_eq!((rows.of(PageKey(7)), rows.bytes()), (None, (2, 100)));
    }

    #[test]
    fn what_is_computed_again_takes_the_place_of_what_was_there() {
        let mut rows = rows(100);
        rows.open(seq(1), &[]);
        rows.note(seq(1), 0, &[1, 2, 3, 4, 5, 6, 7]);
        rows.note(seq(1), 3, &[40]);
        assert_eq!(rows.bytes().0, 4);
        rows.keep(seq(1), 1, PageKey(8));
        rows.keep(seq(1), 2, PageKey(9));
        assert_eq!((rows.of(PageKey(8)), rows.of(PageKey(9))), (Some(&[3, 40][..]), None));
    }

    #[test]
    fn a_page_whose_beginning_came_from_elsewhere_has_no_rows() {
        let mut rows = rows(100);
        rows.open(seq(1), &[PageKey(7)]);
        rows.note(seq(1), 3, &[4, 5]);
        rows.keep(seq(1), 1, PageKey(8));
        rows.keep(seq(1), 2, PageKey(9));
        assert_eq!((rows.of(PageKey(8)), rows.of(PageKey(9))), (None, None));
        rows.close(seq(1));
        assert_eq!(rows.bytes().0, 0);
    }

    #[test]
    fn the_oldest_sequence_makes_room_from_its_end_and_what_is_promised_stays() {
        let mut rows = rows(6);
        for n in 1..=2 {
            rows.open(seq(n), &[]);
            rows.note(seq(n), 0, &[0; 4]);
            for index in 0..2 {
                rows.keep(seq(n), index, PageKey(10 * n as u64 + u64::from(index)));
            }
            rows.close(seq(n));
        }
        let kept = |rows: &KeptRows| -> Vec<u64> { rows.pages.keys().map(|key| key.0).collect() };
        assert_eq!((kept(&rows), rows.bytes().0), (vec![10, 20, 21], 6));
        rows.promise(&[PageKey(10)]);
        rows.open(seq(3), &[]);
        rows.note(seq(3), 0, &[0; 4]);
        assert_eq!((kept(&rows), rows.bytes().0), (vec![10], 6));
        rows.note(seq(3), 4, &[0]);
        assert_eq!((kept(&rows), rows.bytes().0), (vec![10], 2), "a sequence that is too long keeps nothing");
        rows.delivered(PageKey(10));
        rows.open(seq(4), &[]);
        rows.note(seq(4), 0, &[0; 6]);
        assert_eq!((kept(&rows), rows.bytes().0), (vec![], 6));
    }
}
