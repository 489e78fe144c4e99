//! What a member keeps in memory of requests that another one drives, so that their answers outlive its node.

use exo_types::{ModelId, RequestId, SampledToken, list};
use serde::{Deserialize, Serialize};

use super::limits::{COPIED_TOKENS_MAX, SEQUENCES_MAX};

/// Between the node that drives a request, the one that keeps a copy of it, and one that is to go on with it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum BackupMessage {
    /// Driver's node to keeper: keep this from now on, in place of what was kept of it.
    Begin {
        request: RequestId,
        /// Hash of the secret that its client was given.
        proof: [u8; 32],
        backup: Backup,
    },
    /// Driver's node to keeper: what has come since, perhaps nothing.
    Tokens {
        request: RequestId,
        index: u16,
        /// Tokens of it before these.
        position: u32,
        /// In order.
        #[serde(deserialize_with = "list::<_, _, COPIED_TOKENS_MAX>")]
        tokens: Vec<SampledToken>,
    },
    /// Driver's node to keeper: it is over.
    End { request: RequestId },
    /// Driver's node to keeper: it could not go on with it; another one may.
    GiveUp { request: RequestId },
    /// Keeper to the driver's node: no copy is here.
    Dropped {
        request: RequestId,
        /// Whether it may be sent again.
        has_room: bool,
    },
    /// To every member: who keeps this request? Each answers with the same number.
    Claim {
        /// Chosen by the asker.
        claim: u64,
        request: RequestId,
        /// Shows this one member that the asker knows the hash of the secret.
        proof: [u8; 32],
    },
    /// The answer.
    Claimed { claim: u64, claimed: Claimed },
}

/// What a member knows of a claimed request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Claimed {
    /// Nothing, or the proof is wrong.
    Unknown,
    /// Its node lives and answers it.
    Running,
    /// Its node is lost; this is left of it.
    Kept {
        /// The copy.
        backup: Backup,
        /// Shows the asker that it is from who was to keep it.
        proof: [u8; 32],
    },
}

/// A request whose node may die.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Backup {
    /// The model that answers: its name may mean another one elsewhere.
    pub model: ModelId,
    /// The request as its client sent it, in an encoding of the server's.
    pub record: Vec<u8>,
    /// The tokens of each choice.
    #[serde(deserialize_with = "list::<_, _, SEQUENCES_MAX>")]
    pub choices: Vec<Vec<SampledToken>>,
}
