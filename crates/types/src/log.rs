//! The end of an event log, and the hash that ties every entry to all before it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The end of a log: how many entries, and the chain hash after them. Equal heads mean equal logs.
///
/// `hash(n) = BLAKE3(hash(n - 1) || n - 1 || payload)`, with the key derived for this one use. Whoever has a
/// head and the entries behind it knows the next head, without the file the log is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogHead {
    /// Number of entries, so also the index of the next one.
    pub index: u64,
    /// Chain hash after them; zeros for none.
    pub hash: [u8; 32],
}

impl LogHead {
    /// The head of an empty log.
    pub const EMPTY: Self = Self { index: 0, hash: [0; 32] };

    /// The head after one more entry.
    pub fn then(self, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("exo journal entry v1");
        hasher.update(&self.hash).update(&self.index.to_le_bytes()).update(payload);
        Self { index: self.index + 1, hash: *hasher.finalize().as_bytes() }
    }

    /// The head after these entries.
    pub fn then_all(self, payloads: &[Vec<u8>]) -> Self {
        payloads.iter().fold(self, |head, payload| head.then(payload))
    }
}

impl fmt::Display for LogHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#", self.index)?;
        self.hash[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LogHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogHead({self})")
    }
}

/// The chain hashes of the ends that a log had before some end of it, the latest last. Entries that a
/// snapshot replaced are gone; by these, the log is recognised all the same as one that goes on where a
/// shorter one ends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ancestors(Vec<[u8; 32]>);

impl Ancestors {
    /// How many are kept: 32 KiB. A log of placements grows by one entry for each decision.
    pub const MAX: usize = 1024;

    /// The last [`Ancestors::MAX`] of these.
    pub fn new(hashes: Vec<[u8; 32]>) -> Self {
        let mut ancestors = Self(hashes);
        ancestors.forget_oldest();
        ancestors
    }

    /// The log has gone on from this end.
    pub fn push(&mut self, end: LogHead) {
        self.0.push(end.hash);
        self.forget_oldest();
    }

    /// The hashes, the latest last.
    pub fn hashes(&self) -> &[[u8; 32]] {
        &self.0
    }

    /// Whether the log that ends at `head`, of which these are the ancestors, had its end at `earlier`
    /// before. Every log began as the empty one.
    pub fn contains(&self, head: LogHead, earlier: LogHead) -> bool {
        let Some(back) = head.index.checked_sub(earlier.index).filter(|back| *back > 0) else { return false };
        let at = usize::try_from(back).ok().and_then(|back| self.0.len().checked_sub(back));
        earlier == LogHead::EMPTY || at.and_then(|at| self.0.get(at)) == Some(&earlier.hash)
    }

    fn forget_oldest(&mut self) {
        self.0.drain(..self.0.len().saturating_sub(Self::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_knows_the_ends_that_it_had_and_the_empty_one() {
        let (mut ancestors, mut head, mut all) = (Ancestors::default(), LogHead::EMPTY, Vec::new());
        for number in 0..Ancestors::MAX as u64 + 3 {
            ancestors.push(head);
            all.push(head);
            head = head.then(&number.to_le_bytes());
        }
        assert_eq!(ancestors.hashes().len(), Ancestors::MAX);
        let known: Vec<bool> = all.iter().map(|end| ancestors.contains(head, *end)).collect();
        let count = |is_known: bool| known.iter().filter(|known| **known == is_known).count();
        assert_eq!((known[0], count(false), known[3]), (true, 2, true), "the empty one, and the last ones");
        let other = LogHead { index: head.index - 1, hash: [7; 32] };
        let longer = head.then(b"more");
        assert!(![other, head, longer].iter().any(|end| ancestors.contains(head, *end)));
        assert_eq!(Ancestors::new(ancestors.hashes().to_vec()), ancestors);
    }

    /// Journals on disk and members of other builds carry these hashes: the formula may not change.
    #[test]
    fn the_chain_is_that_of_the_first_build() {
        let head = LogHead::EMPTY.then_all(&[b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(head.to_string(), "2#4bf702af");
    }

    #[test]
    fn order_number_and_boundaries_of_entries_all_count() {
        let head = |entries: &[&str]| {
            LogHead::EMPTY
                .then_all(&entries.iter().map(|entry| entry.as_bytes().to_vec()).collect::<Vec<_>>())
        };
        let base = head(&["one", "two"]);
        for other in
            [head(&["two", "one"]), head(&["onet", "wo"]), head(&["onetwo"]), head(&["one", "two", ""])]
        {
            assert_ne!(base.hash, other.hash);
        }
        assert_eq!(base, head(&["one"]).then(b"two"));
    }
}
