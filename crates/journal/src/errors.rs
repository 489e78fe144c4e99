//! What can go wrong, one enum per operation.

#![allow(missing_docs)] // the messages say what the fields are

use std::io;
use std::path::PathBuf;

use exo_types::LogHead;
use redb::{CommitError, DatabaseError, SetDurabilityError, StorageError, TableError, TransactionError};

/// The disk did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageFailure {
    #[error("the disk is full")]
    DiskFull,
    #[error("no permission to write there")]
    NotPermitted,
    #[error("the disk is read-only")]
    ReadOnly,
    #[error("the file is damaged: {0}")]
    Corrupted(String),
    /// An earlier write failed and the file is in an unknown state until it is opened again.
    #[error("an earlier write failed; open the journal again")]
    EarlierFailure,
    /// Anything else the system said.
    #[error(transparent)]
    Io(io::Error),
}

impl JournalError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "data_folder_in_use",
            Self::Format { .. } => "journal_format",
            Self::Storage { failure: StorageFailure::DiskFull, .. } => "disk_full",
            Self::Storage { failure: StorageFailure::ReadOnly, .. } => "read_only",
            _ => "journal_unusable",
        }
    }
}

/// A journal could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("another exo uses this data folder ({path} is locked)")]
    InUse { path: PathBuf },
    /// Not a journal, or damaged. Never deleted: it may be all that is left of the cluster's history.
    #[error("{path} is not a journal, or is damaged: {why}; move it away to start with an empty one")]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path} has journal format {found}, this exo reads {oldest} to {known}: start the exo that wrote it, or move the file away \
         and let the node join its cluster again"
    )]
    Format { path: PathBuf, found: u32, oldest: u32, known: u32 },
    #[error("{path} was altered")]
    Altered {
        path: PathBuf,
        #[source]
        broken: ChainBroken,
    },
    #[error("cannot open the journal {path}")]
    Storage {
        path: PathBuf,
        #[source]
        failure: StorageFailure,
    },
}

/// A batch was not written; nothing of it is in the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    #[error("an entry of {bytes} bytes, the journal takes {max_bytes}")]
    EntryTooLarge { bytes: usize, max_bytes: usize },
    #[error("a batch of {bytes} bytes, the journal takes {max_bytes} at once")]
    BatchTooLarge { bytes: usize, max_bytes: usize },
    #[error("cannot write to the journal")]
    Storage(#[source] StorageFailure),
}

/// A snapshot was not written; the log is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    #[error("a snapshot at {upto} does not belong to this log, which ends at {head}")]
    NotInLog { upto: LogHead, head: LogHead },
    #[error("a state of {bytes} bytes, the journal takes {max_bytes}")]
    StateTooLarge { bytes: usize, max_bytes: usize },
    #[error("the entries after the snapshot were not taken")]
    Tail(#[source] AppendError),
    #[error("cannot write the snapshot")]
    Storage(#[source] StorageFailure),
}

/// The chain does not hold: from entry `seq` on the log is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the chain breaks at entry {seq}: {why}")]
pub struct ChainBroken {
    pub seq: u64,
    pub why: String,
}

impl From<io::Error> for StorageFailure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::PermissionDenied => Self::NotPermitted,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            _ => Self::Io(error),
        }
    }
}

impl From<redb::Error> for StorageFailure {
    fn from(error: redb::Error) -> Self {
        use redb::Error as E;
        match error {
            E::Io(error) => error.into(),
            E::PreviousIo => Self::EarlierFailure,
            E::Corrupted(why) => Self::Corrupted(why),
            // Our tables have one name and one type each: anything else is not our file.
            E::TableTypeMismatch { .. }
            | E::TableIsMultimap(_)
            | E::TableIsNotMultimap(_)
            | E::TypeDefinitionChanged { .. }
            | E::TableDoesNotExist(_)
            | E::TableExists(_)
            | E::TableAlreadyOpen(..) => Self::Corrupted(error.to_string()),
            other => Self::Io(io::Error::other(other.to_string())),
        }
    }
}

macro_rules! from_redb {
    ($($error:ty),*) => {$(
        impl From<$error> for StorageFailure {
            fn from(error: $error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}

from_redb!(StorageError, TransactionError, TableError, CommitError, SetDurabilityError);

impl JournalError {
    /// Whether the file is not what was written, so that the same file will never be opened.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Altered { .. } => true,
            Self::Storage { failure, .. } => matches!(failure, StorageFailure::Corrupted(_)),
            Self::InUse { .. } | Self::Format { .. } => false,
        }
    }

    pub(crate) fn storage(path: &std::path::Path, failure: impl Into<StorageFailure>) -> Self {
        let path = path.to_owned();
        match failure.into() {
            StorageFailure::Corrupted(why) => Self::Damaged { path, why },
            failure => Self::Storage { path, failure },
        }
    }

    pub(crate) fn database(path: &std::path::Path, error: DatabaseError) -> Self {
        let path_buf = path.to_owned();
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse { path: path_buf },
            // "Invalid data" is what redb says of a file that was never its own.
            DatabaseError::Storage(StorageError::Io(e))
                if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Self::Damaged { path: path_buf, why: e.to_string() }
            }
            DatabaseError::Storage(e) => Self::storage(path, e),
            other => Self::Damaged { path: path_buf, why: other.to_string() },
        }
    }
}
