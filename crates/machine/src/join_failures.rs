//! Why a join came to nothing.

#![allow(missing_docs)] // the messages say what the fields are

use std::net::SocketAddr;

use exo_trust::{EntryDecodeError, InsertError};
use exo_types::NodeId;

use crate::join_messages::JoinRefusal;

/// Different reasons that are told.
const REASONS_MAX: usize = 8;

/// Why a node that was asked did not let this one in, or why this one did not go there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotLetIn {
    #[error("{}", refusal.sentence(*asker))]
    Refused { refusal: JoinRefusal, asker: NodeId },
    /// It answered `Later`.
    #[error("it did not have the time")]
    Later,
    /// It did not answer, or the exchange broke off: the words of the transport, by which nothing is decided.
    #[error("{0}")]
    Broken(String),
    #[error("the exchange brought no answer in its time")]
    NoAnswer,
    #[error("it lets nobody in itself; a node of its cluster at {address} does (`--peer`)")]
    Elsewhere { address: SocketAddr },
    #[error("it let this node in, but its log of trust did not come")]
    NoLog,
    #[error("it sent no log of trust")]
    EmptyLog,
    #[error("its log of trust could not be written to this node's disk")]
    LogNotWritten,
    #[error("its log of trust does not begin with its founding")]
    LogBegins,
    #[error("its log of trust does not name this node as a member")]
    LogWithoutMe,
    /// An entry of it is none.
    #[error(transparent)]
    Entry(#[from] EntryDecodeError),
    /// An entry of it does not follow the others.
    #[error(transparent)]
    Insert(#[from] InsertError),
    /// A request has come to this node meanwhile.
    #[error("this node answers a request now, and asks again after it")]
    Busy,
    #[error("this node is in use by now and stays where it is")]
    InUse,
}

/// Why a join that a person asked for came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinFailure {
    #[error("this node is joining already")]
    IsJoining,
    #[error("this node was removed from its cluster; `exo stop` and `exo leave` make it a new one first")]
    WasRemoved,
    #[error(
        "this node is a member of a cluster of {members} ({reached} there); `exo stop` and `exo leave` make \
         it a new one first"
    )]
    IsMember { members: usize, reached: usize },
    #[error("requests run on this node, and joining would end them; try again when they are done")]
    IsBusy,
    #[error("no exo node answered at {0}")]
    Silence(SocketAddr),
    #[error("no other node is seen nearby; name the one that gave the code out with --peer ID@HOST:PORT")]
    NobodyNear,
    /// What those said who were asked: of several nodes nearby one has given the code out, and its word must
    /// not get lost. Who said it, by name, and the same reason once.
    #[error("{}", all_of(.0))]
    NotLetIn(Vec<(Vec<String>, NotLetIn)>),
}

fn all_of(said: &[(Vec<String>, NotLetIn)]) -> String {
    if let [(names, reason)] = said {
        return format!("{}: {reason}", names.join(", "));
    }
    let nodes: usize = said.iter().map(|(names, _)| names.len()).sum();
    let texts: Vec<String> = said
        .iter()
        .take(REASONS_MAX)
        .map(|(names, reason)| format!("{}: {reason}", names.join(", ")))
        .collect();
    format!("none of {nodes} nodes lets this one in; {}", texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_says_no_to_a_code_is_named_and_so_is_where_there_is_a_new_one() {
        let asker = NodeId([1; 32]);
        let no = |refusal| NotLetIn::Refused { refusal, asker };
        let said =
            |names: &[&str], reason| (names.iter().map(ToString::to_string).collect::<Vec<_>>(), reason);
        let all = JoinFailure::NotLetIn(vec![said(&["desk", "attic"], no(JoinRefusal::NotInvited))]);
        let text = all.to_string();
        assert!(text.starts_with("desk, attic: it has no invitation open"), "{text}");
        assert!(text.contains("`exo invite` on an admin of its cluster"), "{text}");
        let wrong = no(JoinRefusal::WrongCode { tries: 3 });
        let two = vec![said(&["desk"], wrong), said(&["attic"], no(JoinRefusal::NotInvited))];
        let text = JoinFailure::NotLetIn(two).to_string();
        assert!(text.starts_with("none of 2 nodes lets this one in; desk: the code is wrong"), "{text}");
        assert!(text.contains("; attic: it has no invitation"), "{text}");
    }
}
