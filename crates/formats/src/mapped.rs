//! Files mapped into memory, and the guard that keeps a shrinking file from killing the process.
//!
//! A mapped file may be truncated by anybody while we read it; the kernel then answers a read with SIGBUS,
//! whose default is death. A process-wide handler, installed with the first mapping, looks the faulting
//! address up in a fixed table of *our* mappings, puts zero pages in place of the rest of that mapping, marks
//! it lost and lets the read go on. [`ByteSource::check`] then reports the loss, and whoever computed with
//! those bytes discards the result. A fault outside of our mappings goes to the handler that was there
//! before.
//!
//! This file and its guard are the only ones of this crate with unsafe code. Where there is no SIGBUS
//! (Windows) the system itself refuses to truncate a mapped file, and the guard is empty.

#![allow(unsafe_code)]

#[cfg(not(unix))]
mod plain;
#[cfg(all(test, unix))]
mod tests;
#[cfg(unix)]
mod unix;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use exo_types::{ByteSource, SourceLost};
use memmap2::Mmap;
#[cfg(not(unix))]
use plain as guard;
#[cfg(unix)]
use unix as guard;

/// A whole file mapped into memory, read-only. Its bytes never fault; see [`ByteSource::check`].
#[derive(Debug)]
pub struct MappedFile {
    // Declared before `map`, so that it is dropped first: the table must never name unmapped memory.
    guard: guard::Registration,
    map: Mmap,
    file: File,
    name: String,
}

impl MappedFile {
    /// Maps the file as long as it is now.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: `Mmap::map` asks that the file is not changed or truncated while it is mapped. Nobody can
        // promise that for a file on disk, so we rely on two facts instead: truncation is turned into zero
        // pages by the guard registered below, before anyone sees the bytes; and every byte pattern is valid
        // for the plain `u8` that we read, and whoever parses re-checks bounds on each read, so a change
        // gives wrong numbers at worst, never an out-of-bounds access.
        let map = unsafe { Mmap::map(&file)? };
        let guard = guard::Registration::new(map.as_ptr() as usize, map.len())?;
        Ok(Self { guard, map, file, name: path.display().to_string() })
    }
}

impl ByteSource for MappedFile {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn check(&self) -> Result<(), SourceLost> {
        // The length too: bytes between the new end and the end of its page read as zeros without any fault.
        let is_long_enough = self.file.metadata().is_ok_and(|m| m.len() >= self.map.len() as u64);
        if self.guard.is_lost() || !is_long_enough {
            return Err(SourceLost { name: self.name.clone() });
        }
        Ok(())
    }

    fn is_warm(&self, range: Range<usize>) -> bool {
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?} is beyond {}", self.name);
        guard::is_warm(self.map.as_ptr() as usize, range)
    }

    fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?} is beyond {}", self.name);
        guard::release(self.map.as_ptr() as usize, self.map.len(), range);
    }
}
