//! Why a join exchange, or the proof of a code in it, failed.

use std::net::SocketAddr;

use exo_machine::joining::JoinRefusal;
use exo_transport::{DialError, JoinError};
use exo_types::NodeId;

/// Why a join exchange gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Channel(#[from] JoinError),
    #[error("{}", exo_accelerators::chain(.0))]
    Dial(#[from] DialError),
    #[error(transparent)]
    Random(#[from] NoRandom),
    #[error("a message of kind {got} where {wanted} is next")]
    Kind { got: u8, wanted: u8 },
    #[error("{what} cannot be read ({source}): install the same version of exo on both")]
    Unreadable { what: &'static str, source: postcard::Error },
    #[error("a message of the proof has {bytes} bytes, {max} at most")]
    TooLong { bytes: usize, max: usize },
    #[error("a message of the proof is not a point of its group")]
    NoPoint,
    #[error("a question to become a member without words")]
    NoWords,
    #[error("another number than it had committed to")]
    OtherNumber,
    #[error("it has drawn another number than before; the next question begins anew")]
    NewNumber,
    #[error(
        "it has no invitation open, or not any more; `exo invite` on an admin of its cluster gives a new code"
    )]
    NotInvited,
    #[error("its invitation was used up meanwhile; `exo invite` on an admin of its cluster gives a new code")]
    UsedUp,
    #[error("the code is wrong, or another machine sits in between; after {tries} wrong ones a code is void")]
    WrongCode { tries: u32 },
    #[error("no address on a network that both are on")]
    NoAddress,
    #[error("{0} answers there instead")]
    AnotherNode(NodeId),
    #[error("no answer from {address} within {seconds} s")]
    Late { address: SocketAddr, seconds: u64 },
    #[error("it proved its key nowhere within {seconds} s")]
    NotProven { seconds: u64 },
    #[error("this node gave no answer within {seconds} s")]
    NoAnswer { seconds: u64 },
    #[error("this node ends")]
    Ending,
}

impl ExchangeError {
    /// What the one hears who did not prove a code.
    pub(crate) fn refusal(&self) -> JoinRefusal {
        match self {
            Self::NotInvited => JoinRefusal::NotInvited,
            Self::UsedUp => JoinRefusal::UsedUp,
            Self::WrongCode { tries } => JoinRefusal::WrongCode { tries: *tries },
            // Of this node, which has said why in its log.
            Self::Random(_) | Self::NoAnswer { .. } | Self::Ending => JoinRefusal::NotRecorded,
            _ => JoinRefusal::NoProof,
        }
    }
}

/// Why there is no code to give out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoCode {
    #[error(transparent)]
    Random(#[from] NoRandom),
    #[error("{max} tokens are open already; they end when this node does, or with their time")]
    TooManyTokens { max: usize },
}

/// What was typed is neither code nor token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a code has {digits} digits, such as 123-456-789; a token is what `exo invite --uses N` shows")]
pub struct NotACode {
    pub(crate) digits: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers: {0}")]
pub(crate) struct NoRandom(#[from] pub(crate) getrandom::Error);

/// A message of an exchange, or which of them was none.
pub(crate) fn read<T: for<'a> serde::Deserialize<'a>>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, ExchangeError> {
    postcard::from_bytes(bytes).map_err(|source| ExchangeError::Unreadable { what, source })
}
