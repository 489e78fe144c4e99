//! Why the members of the cluster were not changed.

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
    /// The door of this node is never open.
    #[error(
        "this node runs with `--trust closed`, or with a token to join: its door is never open; give out a code with `exo invite`"
    )]
    Closed,
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
