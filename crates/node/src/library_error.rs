//! Why a model could not be opened, fetched, added or checked.

use std::path::PathBuf;

use exo_accelerators::chain;
use exo_api::AdminError;
use exo_store::{ChunkError, NoRoom, StoreError};
use exo_tokenizer::TokenizerError;
use exo_types::{ModelId, shell_word};

use crate::bulk::FetchError;

/// What the library could not do with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// What a member sent could not be kept.
    #[error(transparent)]
    Kept(Box<FetchError>),
    #[error("{error} ({})", error.hint())]
    NoRoom { error: NoRoom },
    #[error("{id} is not whole here")]
    NotWhole { id: ModelId },
    #[error(
        "no member that is reachable has {model}: start exo again on a machine that has it, or `exo models add` its \
         file here"
    )]
    NoHolder { model: String },
    /// The user's file is another one than was added.
    #[error(
        "{} has changed since it was added: `exo models add {}` again",
        path.display(),
        shell_word(&path.to_string_lossy())
    )]
    Changed { path: PathBuf },
    /// Each source has its reason.
    #[error("{model} could not be fetched: {reasons}")]
    NotFetched { model: String, reasons: String },
    /// What a disk made of it is not used.
    #[error("{bytes} bytes of {model} on this disk are damaged and could not be fetched again: {reasons}")]
    Damaged { model: String, bytes: u64, reasons: String },
    #[error(
        "a check found that what is here of model {id} is not what its hub promised: `exo models remove` it on every \
         machine that has of it, and fetch it again"
    )]
    Differs { id: ModelId },
    #[error("it is not from a hub: there is nothing to compare it with")]
    NotOfHub,
    #[error("where it is from named no digest of it: there is nothing to compare it with")]
    NoDigests,
    /// What lies on this disk could not be read to compare it.
    #[error(transparent)]
    Compared(#[from] exo_hub::HubError),
    #[error("a member gave a state of another part of the file")]
    OtherState,
    #[error("the model that this updates is not here any more, or another commit has taken its place")]
    Superseded,
    #[error("{0} is not the id of a model")]
    NoId(String),
    /// It was fetched, and exo cannot use it.
    #[error("{}; what was fetched is at {path}, and `exo prune` deletes it after an hour", chain(.error))]
    Unusable { error: Box<LibraryError>, path: String },
    #[error("a task of this node broke off")]
    BrokenOff(#[from] tokio::task::JoinError),
}

impl From<LibraryError> for AdminError {
    fn from(error: LibraryError) -> Self {
        match error {
            LibraryError::Differs { .. } | LibraryError::Changed { .. } => {
                Self::Conflict { message: chain(&error) }
            }
            LibraryError::Store(StoreError::DiskFull { .. }) => Self::Disk { message: chain(&error) },
            error => Self::Failed { message: chain(&error) },
        }
    }
}
