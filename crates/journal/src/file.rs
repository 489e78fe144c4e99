//! The file under the journal: made whole or not at all, opened by one process, damage reported.

use std::cell::Cell;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

use redb::{Builder, Database, DatabaseError};

use crate::errors::JournalError;

/// The journal is small and mostly written; the default of 1 GiB is for databases.
const CACHE_BYTES: usize = 4 << 20;

/// Opens the file. The flag says whether the last user left it without closing.
pub(crate) fn open(path: &Path) -> Result<(Database, bool), JournalError> {
    let repaired = Rc::new(Cell::new(false));
    let seen = repaired.clone();
    let mut builder = builder();
    builder.set_repair_callback(move |_| seen.set(true));
    // A damaged file may trip an assertion inside redb: that, too, is a damaged file and not a crash. Its
    // checksums are compared now, because what is damaged below the log's table would trip one later, in a
    // write.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut db = builder.open(path)?;
        let sound = db.check_integrity()?;
        Ok((db, sound))
    }));
    match opened {
        Ok(Ok((db, sound))) => Ok((db, repaired.get() || !sound)),
        Ok(Err(error)) => Err(JournalError::database(path, error)),
        Err(_) => Err(damaged(path, "its structure contradicts itself")),
    }
}

/// Makes the file under another name, with `fill`, and gives it its name when it is whole: a crash on the way
/// leaves no half-made journal. Does nothing if the file is there.
pub(crate) fn create_if_absent(
    path: &Path,
    fill: impl FnOnce(&Database) -> Result<(), JournalError>,
) -> Result<(), JournalError> {
    let io_error = |e: io::Error| JournalError::storage(path, e);
    if fs::exists(path).map_err(io_error)? {
        return Ok(());
    }
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let outcome = (|| {
        let _ = fs::remove_file(&draft); // left by a crash of a process with our number
        let db = builder().create(&draft).map_err(|e: DatabaseError| JournalError::database(path, e))?;
        exo_stdx::restrict_to_owner(&draft).map_err(io_error)?;
        fill(&db)?;
        drop(db);
        publish(&draft, path).map_err(io_error)
    })();
    let _ = fs::remove_file(&draft);
    outcome
}

/// What a panic of redb while reading means: catch it where a damaged file can cause one.
pub(crate) fn damaged(path: &Path, why: &str) -> JournalError {
    JournalError::Damaged { path: path.to_owned(), why: why.to_owned() }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Of two processes that race, one wins and both open its file.
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    match exo_stdx::publish(draft, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
