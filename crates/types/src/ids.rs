//! Identifiers. Each is a newtype, prints short for people (`{}`) and whole for machines (`to_full`).

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE32_NOPAD, HEXLOWER};
use serde::{Deserialize, Serialize};

/// A text that is not the identifier it was offered as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}")]
pub struct ParseIdError {
    /// What was expected, for example "node id".
    pub what: &'static str,
    /// The text that was given, cut to 80 characters.
    pub text: String,
}

fn parse_error(what: &'static str, text: &str) -> ParseIdError {
    ParseIdError { what, text: text.chars().take(80).collect() }
}

/// A node: its Ed25519 public key. Whoever proves the key is the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub [u8; 32]);

impl NodeId {
    /// The key in lower-case base32 (52 characters).
    pub fn to_full(self) -> String {
        BASE32_NOPAD.encode(&self.0).to_lowercase()
    }

    /// The first 16 characters of [`NodeId::to_full`]: the mDNS instance name.
    pub fn to_instance_name(self) -> String {
        self.to_full()[..16].to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_full()[..8])
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let bytes = BASE32_NOPAD.decode(text.to_uppercase().as_bytes()).ok();
        bytes
            .and_then(|b| <[u8; 32]>::try_from(b).ok())
            .map(Self)
            .ok_or_else(|| parse_error("node id (52 base32 characters)", text))
    }
}

/// A model: the root hash of its manifest. Never a path or a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModelId(pub [u8; 32]);

impl ModelId {
    /// The hash in lower-case hexadecimal (64 characters).
    pub fn to_full(self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_full()[..12])
    }
}

impl fmt::Debug for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelId({self})")
    }
}

impl FromStr for ModelId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let bytes = HEXLOWER.decode(text.to_lowercase().as_bytes()).ok();
        bytes
            .and_then(|b| <[u8; 32]>::try_from(b).ok())
            .map(Self)
            .ok_or_else(|| parse_error("model id (64 hexadecimal characters)", text))
    }
}

/// A placed model. Assigned by the coordinator; unique within a cluster's history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{:x}", self.0)
    }
}

impl FromStr for InstanceId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        text.strip_prefix('i')
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .map(Self)
            .ok_or_else(|| parse_error("instance id (like i1a)", text))
    }
}

/// One API request, drawn at random by the node that took it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One sequence of tokens of a request: `index` counts the choices (`n`) of that request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SequenceId {
    /// The request it answers.
    pub request: RequestId,
    /// Which of the request's choices, from 0.
    pub index: u16,
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}.{}", (self.request.0 >> 96) as u32, self.index)
    }
}

/// On whose behalf work is done: a hash of the API key or of the local user, and outside of the node that
/// took the request also of that node ([`Principal::at`]). Never the key itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Principal(pub [u8; 16]);

impl Principal {
    /// The user of the local, unauthenticated API.
    pub const LOCAL: Self = Self(*b"local-api-user\0\0");

    /// For people of its node: "local", or the beginning of the hash that is meant.
    pub fn label(self) -> String {
        match self {
            Self::LOCAL => "local".to_owned(),
            Self(id) => crate::hex(&id[..4]),
        }
    }

    /// The same user as one of this node, which is how the cluster knows it: two nodes' local users are two
    /// principals, and neither is served what was cached for the other.
    pub fn at(self, node: NodeId) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("exo principal: who, on which node");
        hasher.update(&self.0).update(&node.0);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(bytes)
    }
}

/// The time in which one coordinator leads. Compared as the pair (counter, key): equal counters still order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Epoch {
    /// Grows by at least one at each election.
    pub counter: u64,
    /// The coordinator of this epoch.
    pub key: NodeId,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.counter, self.key)
    }
}

/// One placement of an instance. No two coordinators give out the same: the epoch is that of the coordinator
/// that decided it, and the number grows within the epoch. Two ids are equal, or one of them is refused by
/// name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PlacementId {
    /// Of the coordinator that decided it.
    pub epoch: Epoch,
    /// Grows within the epoch.
    pub number: u32,
}

impl fmt::Display for PlacementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}/{}", self.number, self.epoch)
    }
}

/// A run of a placement's pipeline, between two losses of what was on its way. Counted from [`Term::FIRST`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Term(pub u32);

impl Term {
    /// The first of a placement.
    pub const FIRST: Self = Self(1);

    /// The one after it; `None` where the numbers end.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Which submission of a sequence, as its driver counts them from [`Attempt::FIRST`]. What is sent again
/// unchanged is the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Attempt(pub u16);

impl Attempt {
    /// The first of a sequence.
    pub const FIRST: Self = Self(1);

    /// The one after it; `None` where the numbers end.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_a_round_trip_through_text() {
        let node = NodeId([7; 32]);
        assert_eq!(node.to_full().parse::<NodeId>(), Ok(node));
        let model = ModelId([9; 32]);
        assert_eq!(model.to_full().parse::<ModelId>(), Ok(model));
        assert_eq!(InstanceId(26).to_string().parse::<InstanceId>(), Ok(InstanceId(26)));
        assert!("i".parse::<InstanceId>().is_err());
        assert!("xyz".parse::<NodeId>().is_err());
    }

    #[test]
    fn a_placement_prints_its_number_and_its_epoch() {
        let epoch = Epoch { counter: 12, key: NodeId([1; 32]) };
        assert_eq!(PlacementId { epoch, number: 3 }.to_string(), "p3/12@aeaqcaib");
    }

    #[test]
    fn placements_order_by_epoch_before_number() {
        let of = |counter, number| PlacementId { epoch: Epoch { counter, key: NodeId([0; 32]) }, number };
        assert!(of(1, 9) < of(2, 1) && of(2, 1) < of(2, 2));
        assert_eq!((Term::FIRST.next(), Term(u32::MAX).next()), (Some(Term(2)), None));
        assert_eq!((Attempt::FIRST.next(), Attempt(u16::MAX).next()), (Some(Attempt(2)), None));
    }

    #[test]
    fn epochs_order_by_counter_before_key() {
        let low = Epoch { counter: 1, key: NodeId([255; 32]) };
        let high = Epoch { counter: 2, key: NodeId([0; 32]) };
        assert!(low < high);
    }
}
