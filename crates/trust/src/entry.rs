//! One entry: what an admin says, what it follows, and the signature.

use std::fmt;

use data_encoding::HEXLOWER;
use exo_identity::{SIGNATURE_BYTES, verify_signature};
use exo_types::NodeId;
use serde::{Deserialize, Serialize};

/// Entries that one entry may follow: as many sides of a split are put together at once.
pub(crate) const AFTER_MAX: usize = 8;
/// Longest name of a member or a cluster, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Longest reason, in characters.
const REASON_CHARS_MAX: usize = 200;
/// Longest encoded entry: the longest text in four bytes a character, eight hashes, and what is small.
const ENCODED_BYTES_MAX: usize = 1536;
/// First bytes of what is signed, so that no other signed message can be read as an entry.
const DOMAIN: &[u8] = b"exo trust entry v1\0";

/// The hash of what an entry says. A cluster is the id of its founding entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryId(pub [u8; 32]);

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0[..4]))
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryId({self})")
    }
}

/// Bytes that are no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an entry of a log of trust ({len_bytes} bytes): {why}")]
#[allow(missing_docs)] // the messages say what the fields are
pub struct EntryDecodeError {
    pub len_bytes: usize,
    pub why: &'static str,
}

/// What an entry changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Act {
    /// The cluster begins, with its author as the only member. The first entry, and only that.
    Found {
        name: String,
        /// What the founder is called.
        founder: String,
        /// Drawn at random: the founder may found another cluster in the same second.
        nonce: [u8; 16],
    },
    /// A node becomes a member, and lends its devices.
    Admit { node: NodeId, name: String },
    /// A member may sign entries from now on.
    Appoint {
        node: NodeId,
        /// What it is called, should its admission turn out to be void.
        name: String,
    },
    /// A member may sign entries no more.
    Dismiss { node: NodeId },
    /// A node is a member no more, and never again.
    Remove { node: NodeId, reason: String },
    /// Until when strangers nearby join on sight, in seconds since 1970; 0 shuts the window for good.
    Window { until_unix_s: u64 },
}

impl Act {
    /// Whose right to sign this takes away, if it had one.
    pub(crate) fn disarms(&self) -> Option<NodeId> {
        match self {
            Self::Dismiss { node } | Self::Remove { node, .. } => Some(*node),
            Self::Found { .. } | Self::Admit { .. } | Self::Appoint { .. } | Self::Window { .. } => None,
        }
    }

    /// Whether names and reasons are as an honest node makes them.
    fn is_clean(&self) -> bool {
        let name = |text: &str| exo_types::clean_name(text, NAME_CHARS_MAX) == text;
        match self {
            Self::Found { name: cluster, founder, .. } => name(cluster) && name(founder),
            Self::Admit { name: text, .. } | Self::Appoint { name: text, .. } => name(text),
            Self::Remove { reason, .. } => clean_reason(reason) == *reason,
            Self::Dismiss { .. } | Self::Window { .. } => true,
        }
    }

    fn cleaned(self) -> Self {
        let clean = |text: String| exo_types::clean_name(&text, NAME_CHARS_MAX);
        match self {
            Self::Found { name, founder, nonce } => {
                Self::Found { name: clean(name), founder: clean(founder), nonce }
            }
            Self::Admit { node, name } => Self::Admit { node, name: clean(name) },
            Self::Appoint { node, name } => Self::Appoint { node, name: clean(name) },
            Self::Remove { node, reason } => Self::Remove { node, reason: clean_reason(&reason) },
            act @ (Self::Dismiss { .. } | Self::Window { .. }) => act,
        }
    }
}

fn clean_reason(reason: &str) -> String {
    exo_types::clean_name(reason, REASON_CHARS_MAX)
}

/// What an admin signs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// The founding entry of its cluster; none in that entry itself.
    pub cluster: Option<EntryId>,
    /// The entries it follows, in order of their ids: all that the author knew and that no other entry
    /// followed yet.
    pub after: Vec<EntryId>,
    /// Who signs.
    pub author: NodeId,
    /// When, in seconds since 1970, by the author's clock. For people: nothing is decided by it.
    pub at_unix_s: u64,
    /// What it changes.
    pub act: Act,
}

impl Statement {
    /// What founds a cluster. Names are cut and cleaned rather than refused: they come from host names.
    pub fn founding(author: NodeId, at_unix_s: u64, name: String, founder: String, nonce: [u8; 16]) -> Self {
        let act = Act::Found { name, founder, nonce };
        Self::new(None, Vec::new(), author, at_unix_s, act)
    }

    pub(crate) fn new(
        cluster: Option<EntryId>,
        after: Vec<EntryId>,
        author: NodeId,
        at_unix_s: u64,
        act: Act,
    ) -> Self {
        Self { cluster, after, author, at_unix_s, act: act.cleaned() }
    }

    /// The bytes that the author's key signs.
    pub fn to_sign(&self) -> Vec<u8> {
        [DOMAIN, &self.encode()].concat()
    }

    /// The entry, once its author has signed [`Statement::to_sign`]. Checks nothing;
    /// [`crate::TrustLog::insert`] does.
    pub fn signed(self, signature: [u8; SIGNATURE_BYTES]) -> Entry {
        let id = EntryId(blake3::hash(&self.to_sign()).into());
        Entry { id, statement: self, signature }
    }

    fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain fields in memory always serialise")
    }
}

/// A statement with its signature. Its id is the hash of the statement alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    id: EntryId,
    statement: Statement,
    signature: [u8; SIGNATURE_BYTES],
}

impl Entry {
    /// Its id.
    pub fn id(&self) -> EntryId {
        self.id
    }

    /// What it says.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// Whether its author signed it.
    pub(crate) fn is_signed(&self) -> bool {
        verify_signature(self.statement.author, &self.statement.to_sign(), &self.signature)
    }

    /// The entry as bytes: its statement in postcard, then the signature.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.statement.encode();
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// Reads [`Entry::encode`]'s bytes. Checks form only.
    pub fn decode(bytes: &[u8]) -> Result<Self, EntryDecodeError> {
        let error = |why| EntryDecodeError { len_bytes: bytes.len(), why };
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(error("longer than any entry"));
        }
        let (fields, signature) =
            bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or_else(|| error("shorter than a signature"))?;
        let statement: Statement =
            postcard::from_bytes(fields).map_err(|_| error("its fields do not decode"))?;
        if !statement.act.is_clean() {
            return Err(error("a name or reason in it is too long or has control characters"));
        }
        let is_founding = matches!(statement.act, Act::Found { .. });
        if statement.cluster.is_none() != is_founding || statement.after.is_empty() != is_founding {
            return Err(error("it founds a cluster and follows an entry, or neither"));
        }
        if statement.after.len() > AFTER_MAX || !statement.after.is_sorted_by(|a, b| a < b) {
            return Err(error("the entries it follows are too many, or not in order"));
        }
        // One entry, one encoding: what is signed is rebuilt from the fields.
        if statement.encode() != fields {
            return Err(error("its encoding is not canonical"));
        }
        Ok(statement.signed(*signature))
    }
}
