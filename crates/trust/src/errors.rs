//! What is wrong with an entry, or with one that is to be made.

use std::fmt;

use exo_types::NodeId;

use crate::EntryId;

/// Something that cannot be done to the members of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActError {
    /// Whoever signs has no right to.
    NotAnAdmin {
        /// Who signs.
        author: NodeId,
    },
    /// Removal is for ever.
    Removed {
        /// Which node.
        node: NodeId,
    },
    /// Only members become admins, and only admins are dismissed.
    Not {
        /// Which node.
        node: NodeId,
        /// What it would have to be.
        what: &'static str,
    },
    /// It is what it is to become.
    Already {
        /// Which node.
        node: NodeId,
        /// What it is.
        what: &'static str,
    },
    /// A cluster keeps an admin, as long as one admin decides alone.
    LastAdmin {
        /// Which node.
        node: NodeId,
    },
    /// A cluster has one beginning.
    Founded,
    /// No more fit.
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
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
    Gap {
        /// Which entry.
        id: EntryId,
        /// What it follows.
        missing: EntryId,
    },
    /// It is about another cluster.
    #[error("entry {id} belongs to another cluster")]
    OtherCluster {
        /// Which entry.
        id: EntryId,
    },
    /// It names an entry and one before that.
    #[error("entry {id} follows an entry and one before it")]
    NotLast {
        /// Which entry.
        id: EntryId,
    },
    /// Its author did not sign it.
    #[error("entry {id} does not carry a signature of {author}")]
    BadSignature {
        /// Which entry.
        id: EntryId,
        /// Who is said to have signed.
        author: NodeId,
    },
    /// What it says was not possible when it was said.
    #[error("entry {id} cannot be: {source}")]
    Act {
        /// Which entry.
        id: EntryId,
        /// Why it does not fit.
        #[source]
        source: ActError,
    },
    /// The log is full.
    #[error("the log of trust has {max} entries, and takes no more")]
    Full {
        /// The bound.
        max: usize,
    },
    /// Somebody who is no admin any more signed more than anybody does by mistake.
    #[error("entry {id} is of {author}, who is no admin any more, and {max} of that author are here already")]
    Late {
        /// Which entry.
        id: EntryId,
        /// Who signed.
        author: NodeId,
        /// The bound.
        max: usize,
    },
    /// What should be the beginning is none.
    #[error("entry {id} founds no cluster")]
    NoFounding {
        /// Which entry.
        id: EntryId,
    },
}
