//! What is wrong with an entry, or with one that is to be made.

#![allow(missing_docs)] // the messages say what the fields are

use std::fmt;

use exo_types::NodeId;

use crate::EntryId;

/// Something that cannot be done to the members of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActError {
    /// Whoever signs has no right to.
    NotAnAdmin { author: NodeId },
    /// Removal is for ever.
    Removed { node: NodeId },
    /// Only members become admins, and only admins are dismissed.
    Not { node: NodeId, what: &'static str },
    /// It is what it is to become.
    Already { node: NodeId, what: &'static str },
    /// A cluster keeps an admin, as long as one admin decides alone.
    LastAdmin { node: NodeId },
    /// A cluster has one beginning.
    Founded,
    /// No more fit.
    TooMany { what: &'static str, max: usize },
}

impl ActError {
    /// The node that it is about.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::NotAnAdmin { author: node }
            | Self::Removed { node }
            | Self::Not { node, .. }
            | Self::Already { node, .. }
            | Self::LastAdmin { node } => Some(*node),
            Self::Founded | Self::TooMany { .. } => None,
        }
    }

    /// The sentence, with what the node that it is about is called.
    pub fn sentence(&self, called: impl fmt::Display) -> String {
        match self {
            Self::NotAnAdmin { .. } => format!("{called} is not an admin of this cluster"),
            Self::Removed { .. } => format!("{called} was removed from this cluster, for ever"),
            Self::Not { what, .. } => format!("{called} is not {what}"),
            Self::Already { what, .. } => format!("{called} is {what} already"),
            Self::LastAdmin { .. } => {
                format!("{called} is the only admin: appoint another first with `exo admin add`")
            }
            Self::Founded => "the cluster is founded already".to_owned(),
            Self::TooMany { what, max } => format!("a cluster has at most {max} {what}"),
        }
    }
}

impl fmt::Display for ActError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.node().map_or_else(String::new, |node| node.to_string());
        f.write_str(&self.sentence(id))
    }
}

/// An entry that this log does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// It follows an entry that is not here: ask for that one first.
    #[error("entry {id} follows {missing}, which is not here")]
    Gap { id: EntryId, missing: EntryId },
    #[error("entry {id} belongs to another cluster")]
    OtherCluster { id: EntryId },
    #[error("entry {id} follows an entry and one before it")]
    NotLast { id: EntryId },
    #[error("entry {id} does not carry a signature of {author}")]
    BadSignature { id: EntryId, author: NodeId },
    /// What it says was not possible when it was said.
    #[error("entry {id} cannot be: {source}")]
    Act { id: EntryId, source: ActError },
    #[error("the log of trust has {max} entries, and takes no more")]
    Full { max: usize },
    /// Somebody who is no admin any more signed more than anybody does by mistake.
    #[error("entry {id} is of {author}, who is no admin any more, and {max} of that author are here already")]
    Late { id: EntryId, author: NodeId, max: usize },
    #[error("entry {id} founds no cluster")]
    NoFounding { id: EntryId },
}
