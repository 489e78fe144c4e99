//! Whether a file is what its program says of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::CachedModel;
use crate::disk::Fingerprint;

const READ_BYTES: usize = 1 << 20;

/// Why another program's model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CacheError {
    #[error("`{name}` may be any of {}; give one of their names, or its path", names.join(", "))]
    Ambiguous { name: String, names: Vec<String> },
    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    #[error(
        "{} has SHA-256 {found}, and {cache} knows it as {expected}: it is damaged, or another program wrote to it; let {cache} fetch it again",
        path.display()
    )]
    Digest { path: PathBuf, cache: &'static str, expected: String, found: String },
    #[error("{} changed while it was read: wait until its program has finished with it", path.display())]
    Changing { path: PathBuf },
}

impl CachedModel {
    /// Reads its files and compares them with their digests; without any there is nothing to do. `progress`
    /// is told the bytes done.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), CacheError> {
        let mut done = 0;
        let first = self.sha256.iter().map(|expected| (&self.path, expected));
        let more = self.more.iter().map(|(path, expected)| (path, expected));
        for (path, expected) in first.chain(more) {
            done = self.verify_file(path, expected, done, progress)?;
        }
        Ok(())
    }

    /// Bytes done with this file.
    fn verify_file(
        &self,
        path: &Path,
        expected: &str,
        before: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, CacheError> {
        let failed = |source| CacheError::Io { path: path.to_owned(), source };
        let changing = || CacheError::Changing { path: path.to_owned() };
        let mut file = File::open(path).map_err(failed)?;
        let fingerprint = Fingerprint::of(&file.metadata().map_err(failed)?);
        let (mut digest, mut buffer, mut done) = (Sha256::new(), vec![0; READ_BYTES], 0);
        loop {
            let read = file.read(&mut buffer).map_err(failed)?;
            if read == 0 {
                break;
            }
            digest.update(&buffer[..read]);
            done += read as u64;
            progress(before + done);
            if done > fingerprint.size {
                return Err(changing());
            }
        }
        if Fingerprint::of(&file.metadata().map_err(failed)?) != fingerprint {
            return Err(changing());
        }
        let found = exo_types::hex(&digest.finalize());
        match found.eq_ignore_ascii_case(expected) {
            true => Ok(before + done),
            false => {
                let (path, expected) = (path.to_owned(), expected.to_owned());
                Err(CacheError::Digest { path, cache: self.cache, expected, found })
            }
        }
    }
}
