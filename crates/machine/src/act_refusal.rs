//! Why the members of the cluster were not changed.

use std::time::Duration;

use exo_api::AdminError;
use exo_cluster::bounds::time;
use exo_trust::{ActError, InsertError};

/// Why an act was not done, to be displayed to the person who asked for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ActRefusal {
    #[error("{max} changes of the members wait already; try again")]
    TooMany { max: usize },
    #[error("this node is not an admin of its cluster{}", who_is(there, gone))]
    NotAnAdmin { there: Vec<String>, gone: Vec<String> },
    /// The exchange of the stranger that was to be let in is over.
    #[error("nobody waits for this admission any more")]
    NotAwaited,
    /// The stranger that was to be let in.
    #[error("a person has refused that node meanwhile")]
    Refused,
    /// The stranger came in on sight.
    #[error("the join window has shut; ask again")]
    WindowShut,
    /// What is signed now would be of the cluster that this node leaves.
    #[error("this node is moving to another cluster")]
    Moving,
    /// The log of trust has no place for it.
    #[error("{}", error.sentence(called))]
    Impossible { error: ActError, called: String },
    /// What was signed does not follow what is there by now.
    #[error(transparent)]
    NotInserted(#[from] InsertError),
    #[error("the log of trust cannot be written: {reason}")]
    NotWritten { reason: String },
    /// What came before it is not on disk yet.
    #[error(
        "it was not signed within {}, because this node's disk has not taken what was signed before: nothing was changed; see `exo status`",
        time(*within)
    )]
    NotSigned { within: Duration },
    /// Nobody knows whether a restart would find it.
    #[error(
        "it is signed, and for {} this node's disk has not said that it has it: it is written again until it is there, and nobody is \
         told of it before; see `exo status` before you ask for it again",
        time(*within)
    )]
    NotSure { within: Duration },
    /// The door of this node is never open.
    #[error(
        "this node runs with `--trust closed`, or with a token to join: its door is never open; give out a code with `exo invite`"
    )]
    Closed,
}

impl From<ActRefusal> for AdminError {
    fn from(refusal: ActRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            ActRefusal::NotSigned { .. } | ActRefusal::NotSure { .. } => Self::Late { message },
            ActRefusal::NotWritten { .. } => Self::Disk { message },
            _ => Self::Conflict { message },
        }
    }
}

fn who_is(there: &[String], gone: &[String]) -> String {
    match there.is_empty() {
        false => format!("; ask on one that is: {}", there.join(" or ")),
        true => format!(
            ", and none is there: start {} again; if all admins are lost for good, `exo leave` on each machine lets them form anew",
            gone.join(" or ")
        ),
    }
}
