//! What happens around a node, for the person who watches it.

use std::fmt;

use exo_cluster::wire::CardEvent;
use exo_types::{NodeId, printable};

use crate::join_failures::NotLetIn;

/// Longest name on a line, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Longest reason on a line, in characters.
const REASON_CHARS_MAX: usize = 500;

/// One thing worth a line on the terminal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // a field without a comment is what its name says
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
        node: NodeId,
        name: String,
        /// The four words both sides show.
        words: String,
    },
    /// A stranger asks and the window is shut.
    Asks {
        node: NodeId,
        /// Its name. Not to be trusted.
        name: String,
        /// The four words both sides show.
        words: String,
    },
    /// More strangers ask than a person would read of: so many since the last such notice.
    ManyAsk { count: u32 },
    /// Another cluster's door is shut to this node.
    Refused {
        by: String,
        reason: NotLetIn,
        /// The four words both sides show; none where no one there sees the request.
        words: String,
    },
    /// A cluster that this node left is there, and is not joined for that.
    StaysAway { by: String },
    /// A member is there.
    Up { name: String },
    /// A member is gone.
    Lost { name: String, reason: String },
    /// Who leads changed.
    Coordinator { name: String },
    /// This node's cluster has put it out.
    Removed { by: String },
    /// An admin's key has signed twice where it would sign once.
    Forked {
        /// The beginning of the admin's id.
        node: String,
        name: String,
    },
    /// A graphics card was plugged in or went away.
    Card(CardEvent),
    /// A device of this node was lost and is there again.
    DeviceBack { device: String },
    /// Something is worse than it could be.
    Warning(String),
}

impl fmt::Display for Notice {
    /// One line. Names and reasons are other nodes' words, so commands name ids.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |text: &str| printable(text, NAME_CHARS_MAX);
        let reason = |text: &str| printable(text, REASON_CHARS_MAX);
        match self {
            Self::Joined { by, words } => {
                let by = name(by);
                write!(f, "joined the cluster of {by} · check words: {words} · undo with `exo remove` there")
            }
            Self::Admitted { node, name: called, words } => {
                let (called, id) = (name(called), node.to_instance_name());
                write!(f, "{called} joined · check words: {words} · undo with `exo remove {id}`")
            }
            Self::Asks { node, name: called, words } => {
                let (called, id) = (name(called), node.to_instance_name());
                write!(f, "{called} asks to join · check words: {words} · `exo admit {id}` lets it in")
            }
            Self::ManyAsk { count } => {
                write!(
                    f,
                    "{count} more nodes ask to join; somebody may be making keys · `exo status` shows the last"
                )
            }
            Self::Refused { by, reason: why, words } => {
                write!(f, "{} does not let this node in: {}", name(by), reason(&why.to_string()))?;
                match words.as_str() {
                    "" => Ok(()),
                    words => write!(f, " · check words: {words}"),
                }
            }
            Self::StaysAway { by } => write!(
                f,
                "this node left the cluster of {} and does not join it by itself; `exo invite` on an admin there, and `exo join` here with the code, bring it back",
                name(by)
            ),
            Self::Up { name: called } => write!(f, "{} is here", name(called)),
            Self::Lost { name: called, reason: why } => {
                write!(f, "{} is gone: {}", name(called), reason(why))
            }
            Self::Coordinator { name: called } => write!(f, "{} coordinates the cluster", name(called)),
            Self::Removed { by } => write!(
                f,
                "{} removed this node from its cluster, for good; its models stay. To begin anew, `exo stop` and `exo leave`",
                name(by)
            ),
            Self::Forked { node, name: called } => write!(
                f,
                "warning: the key of {} is in two places, or it lies: it signed two changes of the members apart from each other; \
                 if its data folder was copied, end one of the two, else `exo remove {node}`",
                name(called)
            ),
            Self::Card(event) => f.write_str(&reason(&event.to_string())),
            Self::DeviceBack { device } => {
                write!(f, "the device {} passed its check and is used again", name(device))
            }
            Self::Warning(text) => write!(f, "warning: {}", reason(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_words_stay_on_one_line_and_are_part_of_no_command() {
        let (node, name) = (NodeId([7; 32]), "x`; exo admit evil`\n\x1b[2J\u{202E}".repeat(300));
        let id = node.to_instance_name();
        for (notice, command) in [
            (
                Notice::Asks { node, name: name.clone(), words: String::new() },
                format!("`exo admit {id}` lets it in"),
            ),
            (
                Notice::Admitted { node, name: name.clone(), words: String::new() },
                format!("`exo remove {id}`"),
            ),
            (Notice::Joined { by: name.clone(), words: String::new() }, "`exo remove` there".to_owned()),
            (
                Notice::Refused {
                    by: name.clone(),
                    reason: NotLetIn::Broken(name.clone()),
                    words: String::new(),
                },
                "more characters]".to_owned(),
            ),
            (Notice::Lost { name: name.clone(), reason: name.clone() }, "more characters]".to_owned()),
            (Notice::StaysAway { by: name.clone() }, "with the code, bring it back".to_owned()),
            (Notice::Warning(name.clone()), "more characters]".to_owned()),
        ] {
            let line = notice.to_string();
            assert!(line.ends_with(&command), "{line}");
            assert!(
                !line.contains(|c: char| c.is_control() || c == '\u{202E}') && line.chars().count() < 800,
                "{line}"
            );
        }
    }
}
