//! Why the store refused. One enum per thing that was attempted.

#![allow(missing_docs)] // the messages say what the fields are

use std::io;
use std::path::PathBuf;

use exo_formats::OpenError;
use exo_types::{ModelId, ParseIdError};

use crate::{ChunkRef, RecordProblem};

/// Why an operation on the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("the disk is full: {bytes} bytes for {} do not fit", path.display())]
    DiskFull { path: PathBuf, bytes: u64 },
    #[error("no permission to {attempt} {}", path.display())]
    Permission { attempt: &'static str, path: PathBuf },
    #[error("cannot {attempt} {}: its disk is read-only", path.display())]
    ReadOnly { attempt: &'static str, path: PathBuf },
    #[error("cannot {attempt} {} ({bytes} bytes)", path.display())]
    Io { attempt: &'static str, path: PathBuf, bytes: u64, source: io::Error },
    #[error("no model {id} here")]
    UnknownModel { id: ModelId },
    #[error("model {id} cannot be used; add it again")]
    Unusable {
        id: ModelId,
        /// What became of it.
        #[source]
        problem: RecordProblem,
    },
    #[error("not a usable model")]
    Open(#[source] OpenError),
    #[error("the manifest cannot be used")]
    Manifest(#[source] ManifestError),
    #[error("what was fetched of model {id} is being deleted, or was meanwhile; ask for it again")]
    Removed { id: ModelId },
    #[error("{missing} chunks of the header of model {id} are not here yet")]
    HeadMissing { id: ModelId, missing: usize },
    #[error("{} changed while it was read", path.display())]
    ChangedMeanwhile { path: PathBuf },
    #[error("`{name}` cannot be the name of a model file: {reason}")]
    Name { name: String, reason: &'static str },
}

/// A manifest that cannot be, usually from a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    #[error("it has {found_bytes} bytes, at most {max_bytes} are accepted")]
    TooLong { found_bytes: usize, max_bytes: usize },
    #[error("its bytes do not decode: {reason}")]
    Decode { reason: String },
    #[error("it has version {found}, this program knows {known}")]
    Version { found: u16, known: u16 },
    #[error("{field} is {found}, expected {expected}")]
    Field { field: String, found: String, expected: String },
}

/// Why a chunk was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    #[error("model {model} has no {chunk}")]
    OutOfRange { model: ModelId, chunk: ChunkRef },
    #[error("{chunk} of model {model} is not held here")]
    NotHeld { model: ModelId, chunk: ChunkRef },
    #[error("what is here of model {model} is not what its hub promised")]
    Differs { model: ModelId },
    /// What is on this disk is not what came. It is held no more, and is to be fetched again.
    #[error("{chunk} of model {model} is damaged on this disk")]
    Damaged { model: ModelId, chunk: ChunkRef },
    #[error("{chunk} of model {model} came with {found_bytes} bytes, it has {expected_bytes}")]
    Length { model: ModelId, chunk: ChunkRef, expected_bytes: u64, found_bytes: u64 },
    /// The bytes are not those of the manifest. Nothing was written.
    #[error("{chunk} of model {model} does not match its hash")]
    Mismatch { model: ModelId, chunk: ChunkRef },
    /// The disk or the registry failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why no model, or not one model, answers to a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    #[error("no model `{text}` is known here; there are: {known}")]
    Nothing { text: String, known: String },
    #[error("`{text}` may be any of {}", candidates.join(", "))]
    Ambiguous { text: String, candidates: Vec<String> },
    /// A malformed id.
    #[error(transparent)]
    Id(#[from] ParseIdError),
    /// The registry could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Something worth telling the user that stopped nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreWarning {
    /// The list of models was unreadable. Fetched models were found again on disk; local ones must be added
    /// again.
    #[error(
        "the list of models was unreadable and is kept as {}; {recovered} fetched models were found again, \
         your own files must be added again",
        moved_to.display()
    )]
    RegistryRebuilt { moved_to: PathBuf, recovered: usize },
    /// The list of models is of another version of exo, or has entries that this one cannot read.
    #[error(
        "the list of models has format {version} and is kept as {}; {kept} models are taken over{}",
        moved_to.display(), left_out_text(left_out)
    )]
    RegistryOfOtherVersion { version: u64, moved_to: PathBuf, kept: usize, left_out: Vec<String> },
    /// A fetched model's folder is damaged and was left alone.
    #[error("{} is not a readable partial copy: {reason}", path.display())]
    DamagedCopy { path: PathBuf, reason: String },
}

fn left_out_text(left_out: &[String]) -> String {
    match left_out {
        [] => String::new(),
        models => format!(", add these again: {}", models.join(", ")),
    }
}
