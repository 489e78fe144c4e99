//! Hidden rows that a stage sent on, kept by page: when the stage behind it is lost, the next one on its
//! place computes from them, and nobody in front computes again.
//!
//! Rows grow with their sequence until its page is kept under a name; from then on they live as long as the
//! page. They take a bounded number of bytes. Where there is no room the pages go first that no open sequence
//! has, the oldest ones. Then the open sequence that has most gives up its last rows, as long as it has more
//! than the one that needs the room: so each has an equal share if it needs it, however long another is and
//! whichever came first. Rows are of no use without those in front of them: the last of a sequence go first,
//! and one that had to give up rows keeps no further ones. Rows that are promised to a stage stay until it
//! has their page.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use exo_types::{PageKey, SequenceId};

/// Which rows go first of those that no open sequence has: those of the sequence opened first, of these the
/// last page.
type Age = (u64, Reverse<u32>, PageKey);

/// Rows of one stage.
#[derive(Clone, Debug)]
pub(super) struct KeptRows {
    max_bytes: u64,
    row_bytes: usize,
    page_tokens: u32,
    /// Of all that is here.
    bytes: u64,
    open: BTreeMap<SequenceId, OpenRows>,
    pages: BTreeMap<PageKey, PageRows>,
    /// Pages that no open sequence has.
    unused: BTreeSet<Age>,
    promised: BTreeSet<PageKey>,
    /// Sequences opened so far.
    opened: u64,
}

/// Rows of an open sequence.
#[derive(Clone, Debug)]
struct OpenRows {
    /// Which of all sequences it was.
    opened: u64,
    /// The kept pages that it was opened with, from its beginning on.
    begun: Vec<PageKey>,
    /// Pages with names whose rows count as its own, by their place in it.
    kept: BTreeSet<(u32, PageKey)>,
    /// Pages that have no names yet.
    growing: BTreeMap<u32, Vec<u8>>,
    /// There was no room for more.
    is_cut: bool,
}

impl OpenRows {
    fn pages(&self) -> usize {
        self.kept.len() + self.growing.len()
    }
}

#[derive(Clone, Debug)]
struct PageRows {
    owner: Owner,
    /// Which page of its sequences it is.
    index: u32,
    rows: Vec<u8>,
}

/// Whose page it is. One that several open sequences have counts for one of them.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Open(SequenceId),
    /// The last one that had it is closed; which of all sequences that was.
    Closed(u64),
}

impl KeptRows {
    /// No rows yet, of so many bytes each, in pages of so many.
    pub(super) fn new(row_bytes: usize, page_tokens: u32) -> Self {
        Self {
            max_bytes: 0,
            row_bytes,
            page_tokens,
            bytes: 0,
            open: BTreeMap::new(),
            pages: BTreeMap::new(),
            unused: BTreeSet::new(),
            promised: BTreeSet::new(),
            opened: 0,
        }
    }

    /// They may take so many bytes from now on.
    pub(super) fn set_max(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
        while self.bytes > self.max_bytes && self.make_room(0) {}
    }

    /// Of a page, full or not.
    fn page_bytes(&self) -> u64 {
        self.row_bytes as u64 * u64::from(self.page_tokens)
    }

    /// Bytes they take, and at most.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes, self.max_bytes)
    }

    /// A sequence is opened with these kept pages: their rows count as its own, but for those of another open
    /// one.
    pub(super) fn open(&mut self, sequence: SequenceId, cached: &[PageKey]) {
        self.opened += 1;
        let mut kept = BTreeSet::new();
        for (index, key) in (0..).zip(cached) {
            if let Some(page) = self.pages.get_mut(key)
                && let Owner::Closed(opened) = page.owner
            {
                self.unused.remove(&(opened, Reverse(page.index), *key));
                (page.owner, page.index) = (Owner::Open(sequence), index);
                kept.insert((index, *key));
            }
        }
        let (begun, growing) = (cached.to_vec(), BTreeMap::new());
        let rows = OpenRows { opened: self.opened, begun, kept, growing, is_cut: false };
        self.open.insert(sequence, rows);
    }

    /// Rows of a sequence are sent on, from position `start` on. What it had from there on is void.
    pub(super) fn note(&mut self, sequence: SequenceId, start: u32, rows: &[u8]) {
        let (page_tokens, row_bytes, page_bytes) = (self.page_tokens, self.row_bytes, self.page_bytes());
        let Some(open) = self.open.get_mut(&sequence).filter(|open| !open.is_cut) else { return };
        if self.max_bytes == 0 || page_tokens == 0 || row_bytes == 0 {
            return;
        }
        let void = open.growing.split_off(&(start / page_tokens + 1));
        self.bytes -= void.len() as u64 * page_bytes;
        for (position, row) in (start..).zip(rows.chunks_exact(row_bytes)) {
            let (index, at) = (position / page_tokens, (position % page_tokens) as usize * row_bytes);
            let page = match open.growing.entry(index) {
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
        while self.bytes > self.max_bytes {
            let own = self.open.get(&sequence).map_or(0, OpenRows::pages);
            if !self.make_room(own) {
                return self.cut(sequence);
            }
        }
    }

    /// The page is kept under this name from now on.
    pub(super) fn keep(&mut self, sequence: SequenceId, index: u32, key: PageKey) {
        let page_bytes = self.page_bytes();
        let Some(open) = self.open.get_mut(&sequence) else { return };
        let Some(rows) = open.growing.remove(&index) else { return };
        if (rows.len() as u64) < page_bytes {
            self.bytes -= page_bytes;
            return;
        }
        open.kept.insert((index, key));
        self.pages.insert(key, PageRows { owner: Owner::Open(sequence), index, rows });
    }

    /// The sequence is closed. What another one has of its pages counts for that one.
    pub(super) fn close(&mut self, sequence: SequenceId) {
        let Some(closed) = self.open.remove(&sequence) else { return };
        self.bytes -= closed.growing.len() as u64 * self.page_bytes();
        for (index, key) in closed.kept {
            let mut others = self.open.iter_mut();
            let owner = match others.find(|(_, open)| open.begun.get(index as usize) == Some(&key)) {
                Some((other, open)) => {
                    open.kept.insert((index, key));
                    Owner::Open(*other)
                }
                None => {
                    self.unused.insert((closed.opened, Reverse(index), key));
                    Owner::Closed(closed.opened)
                }
            };
            if let Some(page) = self.pages.get_mut(&key) {
                page.owner = owner;
            }
        }
    }

    /// The page is kept no longer.
    pub(super) fn forget(&mut self, key: PageKey) {
        self.promised.remove(&key);
        let Some(PageRows { owner, index, .. }) = self.pages.remove(&key) else { return };
        match owner {
            Owner::Open(sequence) => {
                if let Some(open) = self.open.get_mut(&sequence) {
                    open.kept.remove(&(index, key));
                }
            }
            Owner::Closed(opened) => {
                self.unused.remove(&(opened, Reverse(index), key));
            }
        }
        self.bytes -= self.page_bytes();
    }

    /// All sequences are closed, and no other pages kept than these. Nothing is promised any more.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&PageKey) -> bool) {
        let open: Vec<SequenceId> = self.open.keys().copied().collect();
        open.into_iter().for_each(|sequence| self.close(sequence));
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

    /// Drops rows that go first. An open sequence gives some up if it has more pages than so many.
    fn make_room(&mut self, pages: usize) -> bool {
        let is_free = |key: &PageKey| !self.promised.contains(key);
        if let Some(&(_, _, key)) = self.unused.iter().find(|age| is_free(&age.2)) {
            self.drop_page(key);
            return true;
        }
        let last_free = |open: &OpenRows| open.kept.iter().rev().map(|(_, key)| *key).find(is_free);
        let others = self.open.iter().filter(|(_, open)| open.pages() > pages);
        let with_free = others.filter_map(|(sequence, open)| {
            let last = last_free(open);
            (last.is_some() || !open.growing.is_empty()).then_some((*sequence, open, last))
        });
        let most = with_free.max_by_key(|(_, open, _)| (open.pages(), Reverse(open.opened)));
        let Some((sequence, has_growing, last)) =
            most.map(|(sequence, open, last)| (sequence, !open.growing.is_empty(), last))
        else {
            return false;
        };
        // Its growing rows are behind all that have names.
        self.cut(sequence);
        if let Some(key) = last.filter(|_| !has_growing) {
            self.drop_page(key);
        }
        true
    }

    fn drop_page(&mut self, key: PageKey) {
        tracing::trace!(%key, bytes = self.bytes, max_bytes = self.max_bytes, "rows of a kept page make room");
        self.forget(key);
    }

    /// There is no room for more rows of this sequence.
    fn cut(&mut self, sequence: SequenceId) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        open.is_cut = true;
        let pages = std::mem::take(&mut open.growing).len();
        self.bytes -= pages as u64 * self.page_bytes();
        tracing::trace!(%sequence, bytes = self.bytes, max_bytes = self.max_bytes, "no room to keep more rows");
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

    /// Computes pages of a sequence, one after the other, and keeps them as `10 * n`, `10 * n + 1` and so on.
    fn grow(rows: &mut KeptRows, n: u8, pages: std::ops::Range<u32>) {
        for index in pages {
            rows.note(seq(u128::from(n)), 2 * index, &[n; 2]);
            rows.keep(seq(u128::from(n)), index, PageKey(10 * u64::from(n) + u64::from(index)));
            assert!(rows.bytes().0 <= rows.bytes().1, "{:?}", rows.bytes());
        }
    }

    fn kept(rows: &KeptRows) -> Vec<u64> {
        rows.pages.keys().map(|key| key.0).collect()
    }

    #[test]
    fn a_long_sequence_has_all_room_until_others_come_and_then_no_more_than_they_whoever_came_first() {
        let mut rows = rows(12);
        rows.open(seq(1), &[]);
        grow(&mut rows, 1, 0..9);
        assert_eq!(kept(&rows), [10, 11, 12, 13, 14, 15], "of one that is too long the beginning");
        rows.open(seq(2), &[]);
        grow(&mut rows, 2, 0..9);
        assert_eq!(kept(&rows), [10, 11, 12, 20, 21, 22]);
        rows.open(seq(3), &[]);
        grow(&mut rows, 3, 0..9);
        assert_eq!(kept(&rows), [10, 11, 20, 21, 30, 31]);
        grow(&mut rows, 1, 9..11);
        assert_eq!(kept(&rows), [10, 11, 20, 21, 30, 31], "behind a gap rows are of no use");
        rows.close(seq(2));
        rows.open(seq(4), &[]);
        grow(&mut rows, 4, 0..4);
        assert_eq!(kept(&rows), [10, 11, 30, 31, 40, 41], "what is closed goes first");
        rows.set_max(6);
        assert_eq!(
            (kept(&rows), rows.bytes()),
            (vec![10, 30, 40], (6, 6)),
            "who has less room shares it, too"
        );
    }

    #[test]
    fn rows_that_get_no_name_leave_room_for_others() {
        let mut rows = rows(8);
        rows.open(seq(1), &[]);
        rows.note(seq(1), 0, &[1; 8]);
        rows.open(seq(2), &[]);
        grow(&mut rows, 2, 0..2);
        assert_eq!((kept(&rows), rows.bytes().0), (vec![20, 21], 4));
        rows.note(seq(1), 3, &[1]);
        rows.keep(seq(1), 1, PageKey(11));
        assert_eq!(rows.of(PageKey(11)), None, "what was cut and is computed again has no rows");
    }

    #[test]
    fn a_page_of_several_sequences_stays_while_one_of_them_is_open() {
        let mut rows = rows(6);
        rows.open(seq(1), &[]);
        grow(&mut rows, 1, 0..2);
        rows.open(seq(2), &[PageKey(10)]);
        grow(&mut rows, 2, 1..2);
        rows.close(seq(1));
        rows.open(seq(3), &[]);
        grow(&mut rows, 3, 0..1);
        assert_eq!(kept(&rows), [10, 21, 30], "what only the closed one had goes first");
        rows.retain(|key| *key == PageKey(10));
        assert_eq!((kept(&rows), rows.bytes().0), (vec![10], 2));
    }
}
