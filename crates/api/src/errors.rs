//! Why an administrative call failed.

use exo_types::{size, size_up};

use crate::generate::known_hint;

/// Why an administrative call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Nothing of that name.
    #[error("no {what} `{name}`")]
    NotFound {
        /// What was looked for: `instance`, `member`, `model`, `join request`.
        what: &'static str,
        /// The name or id that was asked for.
        name: String,
    },
    /// No model of that name.
    #[error("no model `{model}` is known here{}", known_hint(model, .known))]
    ModelUnknown {
        /// What was asked for.
        model: String,
        /// Names there are, for the message; may be cut short.
        known: Vec<String>,
    },
    /// A parameter is wrong.
    #[error("{message}")]
    Invalid {
        /// The parameter's name in the API.
        param: String,
        /// What is wrong with the parameter, and what is allowed.
        message: String,
    },
    /// It goes against the present state: a member removing itself, a model in use.
    #[error("{message}")]
    Conflict {
        /// What stands in the way.
        message: String,
    },
    /// The cluster's memory is too small.
    #[error("`{model}` needs {}, {} are free: {detail}", size_up(*needed_bytes), size(*free_bytes))]
    DoesNotFit {
        /// Name of the model.
        model: String,
        /// Bytes needed in all.
        needed_bytes: u64,
        /// Bytes free in all.
        free_bytes: u64,
        /// On which device how many bytes are missing.
        detail: String,
    },
    /// Not now: no coordinator, shutting down.
    #[error("not available at the moment: {reason}")]
    Unavailable {
        /// Why it is not available.
        reason: String,
        /// Seconds after which to try again.
        retry_after_s: u32,
    },
    /// The node had no answer in time; what was asked may be done yet.
    #[error("{message}")]
    Late {
        /// For what and how long was waited, and what becomes of it.
        message: String,
    },
    /// The node's disk failed, or is full.
    #[error("{message}")]
    Disk {
        /// What was attempted on which file, and the system's answer.
        message: String,
    },
    /// It was tried and failed.
    #[error("{message}")]
    Failed {
        /// What happened, to be displayed.
        message: String,
    },
}

impl AdminError {
    /// A parameter, by its name in the API, is wrong.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::Invalid { param: param.to_owned(), message: message.into() }
    }
}
