//! Which files a model's folder may consist of: those that are in it, and blobs of the Hugging Face cache
//! that it is part of.
//!
//! A folder from elsewhere may hold links. One that leads out of it would put a file of the user's into a
//! manifest, and so on the disks of other nodes. Links are followed to their end, through other links and
//! linked folders, and the end decides. Who can write to the folder *while* it is opened can still change a
//! link between the look and the reading; that, and hard links, which are files like any other, are not seen
//! here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::OpenError;

/// `models--owner--name/snapshots/revision` is a folder of links to `models--owner--name/blobs`.
const REPOSITORY: &str = "models--";
const SNAPSHOTS: &str = "snapshots";
const BLOBS: &str = "blobs";

/// A folder whose files are asked for by name.
pub(super) struct Contained<'a> {
    folder: &'a Path,
    /// Without links.
    root: PathBuf,
    blobs: Option<PathBuf>,
}

impl<'a> Contained<'a> {
    /// The folder may itself be reached by links.
    pub(super) fn new(folder: &'a Path) -> Result<Self, OpenError> {
        let root = fs::canonicalize(folder);
        let root =
            root.map_err(|source| OpenError::Io { attempt: "find", path: folder.to_owned(), source })?;
        let blobs = blobs_of(&root);
        Ok(Self { folder, root, blobs })
    }

    /// The path of a file in the folder. A file that is not there is for the reader to miss; a link out of it
    /// is refused.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf, OpenError> {
        let path = self.folder.join(name);
        let target = match fs::canonicalize(&path) {
            Ok(target) => target,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(source) => return Err(OpenError::Io { attempt: "find", path, source }),
        };
        let is_inside = target.starts_with(&self.root)
            || self.blobs.as_ref().is_some_and(|blobs| target.parent() == Some(blobs));
        if is_inside { Ok(path) } else { Err(OpenError::LinkOut { link: path, target }) }
    }
}

/// Where the blobs of a snapshot are, if that is a real folder.
fn blobs_of(root: &Path) -> Option<PathBuf> {
    let snapshots =
        root.ancestors().skip(1).find(|folder| folder.file_name().is_some_and(|n| n == SNAPSHOTS))?;
    let repository = snapshots.parent()?;
    let name = repository.file_name()?.to_str()?;
    let blobs = repository.join(BLOBS);
    // A linked `blobs` leads wherever whoever made the folder likes.
    let is_real = fs::canonicalize(&blobs).is_ok_and(|real| real == blobs);
    (name.starts_with(REPOSITORY) && is_real).then_some(blobs)
}
