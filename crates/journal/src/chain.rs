//! The hash that ties every entry to all before it.

use std::fmt;

/// The end of a log: how many entries, and the chain hash after them. Equal heads mean equal logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head {
    /// Number of entries, so also the `seq` of the next one.
    pub seq: u64,
    /// Chain hash after them; zeros for none.
    pub hash: [u8; 32],
}

impl Head {
    /// The head of an empty log.
    pub const EMPTY: Self = Self { seq: 0, hash: [0; 32] };

    /// The head after one more entry.
    pub fn then(self, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("exo journal entry v1");
        hasher.update(&self.hash).update(&self.seq.to_le_bytes()).update(payload);
        Self { seq: self.seq + 1, hash: *hasher.finalize().as_bytes() }
    }

    pub(crate) fn encode(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..].copy_from_slice(&self.hash);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (seq, hash) = bytes.split_first_chunk()?;
        Some(Self { seq: u64::from_le_bytes(*seq), hash: hash.try_into().ok()? })
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#", self.seq)?;
        self.hash[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({self})")
    }
}
