//! Why the store refused. One enum per thing that was attempted.

use std::io;
use std::path::PathBuf;

use exo_formats::OpenError;
use exo_types::{ModelId, ParseIdError};

use crate::{ChunkRef, RecordProblem};

/// Why an operation on the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No space left.
    #[error("the disk is full: {bytes} bytes for {} do not fit", path.display())]
    DiskFull {
        /// The file that was written.
        path: PathBuf,
        /// How many bytes were to be written.
        bytes: u64,
    },
    /// The system denied access.
    #[error("no permission to {attempt} {}", path.display())]
    Permission {
        /// What was attempted, for example "write".
        attempt: &'static str,
        /// On which file or folder.
        path: PathBuf,
    },
    /// Another failure of the file system.
    #[error("cannot {attempt} {} ({bytes} bytes)", path.display())]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// How many bytes were involved.
        bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The store does not know this model.
    #[error("no model {id} here")]
    UnknownModel {
        /// Which one.
        id: ModelId,
    },
    /// The model's file vanished or changed.
    #[error("model {id} cannot be used; add it again")]
    Unusable {
        /// Which one.
        id: ModelId,
        /// What became of it.
        #[source]
        problem: RecordProblem,
    },
    /// The file is not a model we can open.
    #[error("not a usable model")]
    Open(#[source] OpenError),
    /// A manifest cannot be.
    #[error("the manifest cannot be used")]
    Manifest(#[source] ManifestError),
    /// Its partial copy was deleted, or is being deleted.
    #[error("what was fetched of model {id} is being deleted, or was meanwhile; ask for it again")]
    Removed {
        /// Which one.
        id: ModelId,
    },
    /// The header of a partial copy has not arrived yet.
    #[error("{missing} chunks of the header of model {id} are not here yet")]
    HeadMissing {
        /// Which model.
        id: ModelId,
        /// How many chunks must come first.
        missing: usize,
    },
    /// The file changed while it was hashed.
    #[error("{} changed while it was read", path.display())]
    ChangedMeanwhile {
        /// The file.
        path: PathBuf,
    },
    /// A path or name the registry cannot hold.
    #[error("`{name}` cannot be the name of a model file: {reason}")]
    Name {
        /// The name, cut short.
        name: String,
        /// Why not.
        reason: &'static str,
    },
}

/// A manifest that cannot be, usually from a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Longer than any real one.
    #[error("it has {found_bytes} bytes, at most {max_bytes} are accepted")]
    TooLong {
        /// Its length.
        found_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// Not the encoding.
    #[error("its bytes do not decode: {reason}")]
    Decode {
        /// The decoder's words.
        reason: String,
    },
    /// Written by a version we do not know.
    #[error("it has version {found}, this program knows {known}")]
    Version {
        /// Its version.
        found: u16,
        /// Version of this program.
        known: u16,
    },
    /// A field outside of what makes sense.
    #[error("{field} is {found}, expected {expected}")]
    Field {
        /// Which field of which file.
        field: String,
        /// Its value, cut short.
        found: String,
        /// What it may be.
        expected: String,
    },
}

/// Why a chunk was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The manifest has no such chunk.
    #[error("model {model} has no {chunk}")]
    OutOfRange {
        /// The model.
        model: ModelId,
        /// The chunk asked for.
        chunk: ChunkRef,
    },
    /// Its bytes are not on this disk.
    #[error("{chunk} of model {model} is not held here")]
    NotHeld {
        /// The model.
        model: ModelId,
        /// The chunk asked for.
        chunk: ChunkRef,
    },
    /// A check found that what is here is not what the hub promised.
    #[error("what is here of model {model} is not what its hub promised")]
    Differs {
        /// The model.
        model: ModelId,
    },
    /// What is on this disk is not what came. It is held no more, and is to be fetched again.
    #[error("{chunk} of model {model} is damaged on this disk")]
    Damaged {
        /// The model.
        model: ModelId,
        /// The chunk.
        chunk: ChunkRef,
    },
    /// Too many or too few bytes.
    #[error("{chunk} of model {model} came with {found_bytes} bytes, it has {expected_bytes}")]
    Length {
        /// The model.
        model: ModelId,
        /// The chunk.
        chunk: ChunkRef,
        /// By the manifest.
        expected_bytes: u64,
        /// As it came.
        found_bytes: u64,
    },
    /// The bytes are not those of the manifest. Nothing was written.
    #[error("{chunk} of model {model} does not match its hash")]
    Mismatch {
        /// The model.
        model: ModelId,
        /// The chunk.
        chunk: ChunkRef,
    },
    /// The disk or the registry failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why no model, or not one model, answers to a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// Nothing answers to it.
    #[error("no model `{text}` is known here; there are: {known}")]
    Nothing {
        /// What was asked for, cut short.
        text: String,
        /// Names of the models there are.
        known: String,
    },
    /// Several answer to it.
    #[error("`{text}` may be any of {}", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        text: String,
        /// `name (id)` of each.
        candidates: Vec<String>,
    },
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
    RegistryRebuilt {
        /// Where the unreadable file went.
        moved_to: PathBuf,
        /// Fetched models found on disk.
        recovered: usize,
    },
    /// The list of models is of another version of exo, or has entries that this one cannot read.
    #[error(
        "the list of models has format {version} and is kept as {}; {kept} models are taken over{}",
        moved_to.display(), left_out_text(left_out)
    )]
    RegistryOfOtherVersion {
        /// The format it says it has.
        version: u64,
        /// Where the file went.
        moved_to: PathBuf,
        /// Models in the list now.
        kept: usize,
        /// Models that could not be read, and why; their files stay.
        left_out: Vec<String>,
    },
    /// A fetched model's folder is damaged and was left alone.
    #[error("{} is not a readable partial copy: {reason}", path.display())]
    DamagedCopy {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn left_out_text(left_out: &[String]) -> String {
    match left_out {
        [] => String::new(),
        models => format!(", add these again: {}", models.join(", ")),
    }
}
