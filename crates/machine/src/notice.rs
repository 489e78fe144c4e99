//! What happens around a node, for the person who watches it.

use std::fmt;

/// One thing worth a line on the terminal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// This node joined another's cluster.
    Joined {
        /// Who let it in.
        by: String,
        /// The four words both sides show.
        words: String,
    },
    /// This node let another in.
    Admitted {
        /// Its name.
        name: String,
        /// The four words both sides show.
        words: String,
    },
    /// A stranger asks and the window is shut.
    Asks {
        /// Its name. Not to be trusted.
        name: String,
        /// The four words both sides show.
        words: String,
    },
    /// Another cluster's door is shut to this node.
    Refused {
        /// Whose.
        by: String,
        /// Why.
        reason: String,
    },
    /// A member is there.
    Up {
        /// Its name.
        name: String,
    },
    /// A member is gone.
    Lost {
        /// Its name.
        name: String,
        /// How that was noticed.
        reason: String,
    },
    /// Who leads changed.
    Coordinator {
        /// Its name.
        name: String,
    },
    /// A graphics card was plugged in or went away.
    Card(String),
    /// Something is worse than it could be.
    Warning(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { by, words } => {
                write!(f, "joined the cluster of {by} · check words: {words} · undo with `exo remove` there")
            }
            Self::Admitted { name, words } => {
                write!(f, "{name} joined · check words: {words} · undo with `exo remove {name}`")
            }
            Self::Asks { name, words } => {
                write!(f, "{name} asks to join · check words: {words} · `exo admit {name}` lets it in")
            }
            Self::Refused { by, reason } => write!(f, "{by} does not let this node in: {reason}"),
            Self::Up { name } => write!(f, "{name} is here"),
            Self::Lost { name, reason } => write!(f, "{name} is gone: {reason}"),
            Self::Coordinator { name } => write!(f, "{name} coordinates the cluster"),
            Self::Card(text) => f.write_str(text),
            Self::Warning(text) => write!(f, "warning: {text}"),
        }
    }
}
