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

#[cfg(test)]
mod tests {
    use super::*;

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
