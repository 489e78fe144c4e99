//! Whether a file is what its program says of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::CachedModel;
use crate::disk::Fingerprint;

const READ_BYTES: usize = 1 << 20;

/// Why another program's model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Several models have the name.
    #[error("`{name}` may be any of {}; give one of their names, or its path", names.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Those there are.
        names: Vec<String>,
    },
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Not the bytes that its program names.
    #[error(
        "{} has SHA-256 {found}, and {cache} knows it as {expected}: it is damaged, or another program wrote to it; let {cache} fetch it again",
        path.display()
    )]
    Digest {
        /// The file.
        path: PathBuf,
        /// Whose.
        cache: &'static str,
        /// By its program.
        expected: String,
        /// As it is.
        found: String,
    },
    /// Somebody writes to it.
    #[error("{} changed while it was read: wait until its program has finished with it", path.display())]
    Changing {
        /// The file.
        path: PathBuf,
    },
}

impl CachedModel {
    /// Reads the file and compares it with its digest; without one there is nothing to do. `progress` is told the bytes done.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), CacheError> {
        let Some(expected) = &self.sha256 else { return Ok(()) };
        let failed = |source| CacheError::Io { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(failed)?;
        let before = Fingerprint::of(&file.metadata().map_err(failed)?);
        let (mut digest, mut buffer, mut done) = (Sha256::new(), vec![0; READ_BYTES], 0);
        loop {
            let read = file.read(&mut buffer).map_err(failed)?;
            if read == 0 {
                break;
            }
            digest.update(&buffer[..read]);
            done += read as u64;
            progress(done);
            if done > before.size {
                return Err(CacheError::Changing { path: self.path.clone() });
            }
        }
        if Fingerprint::of(&file.metadata().map_err(failed)?) != before {
            return Err(CacheError::Changing { path: self.path.clone() });
        }
        let found: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
        match found.eq_ignore_ascii_case(expected) {
            true => Ok(()),
            false => {
                let (path, expected) = (self.path.clone(), expected.clone());
                Err(CacheError::Digest { path, cache: self.cache, expected, found })
            }
        }
    }
}
