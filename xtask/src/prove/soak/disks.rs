//! Small disks for the machines' folders, which can be filled up: file systems in memory.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use anyhow::{Context, bail};

use crate::signals;

/// More than a node keeps there beside models, and filled in no time.
const OPTIONS: &str = "size=64m,mode=700";
/// What takes the rest.
const FILL: &str = "fill";
static BLOCK: [u8; 64 << 10] = [0; 64 << 10];

/// What there is at present: mounts outlive the process that made them.
static MOUNTED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Mounted on a folder, gone with the value, or when a signal ends this process.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// On this folder; needs root.
    pub fn new(folder: &Path) -> anyhow::Result<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| signals::before_end(|| mounted().iter().for_each(|folder| unmount(folder))));
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", OPTIONS, "none"]).arg(folder);
        let output = mount.output().context("`mount` does not run")?;
        if !output.status.success() {
            bail!("`mount -t tmpfs`: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        mounted().push(folder.to_owned());
        Ok(Self(folder.to_owned()))
    }

    /// Leaves no byte free.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut file = File::create(self.0.join(FILL)).context("cannot fill a disk")?;
        loop {
            match file.write(&BLOCK) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("cannot fill a disk"),
            }
        }
    }

    /// Frees what [`SmallDisk::fill`] took.
    pub fn free(&self) -> anyhow::Result<()> {
        std::fs::remove_file(self.0.join(FILL)).context("cannot free a disk")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0);
        mounted().retain(|folder| *folder != self.0);
    }
}

/// Also where a process has files open in it: they go with that.
fn unmount(folder: &Path) {
    let _ = Command::new("umount").arg("-l").arg(folder).output();
}

fn mounted() -> MutexGuard<'static, Vec<PathBuf>> {
    MOUNTED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_is_full_until_it_is_freed_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("disk");
        let disk = match SmallDisk::new(&at) {
            Ok(disk) => disk,
            Err(why) => return eprintln!("skipped: {why:#}"),
        };
        disk.fill().unwrap();
        let full = std::fs::write(at.join("more"), "more").unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        disk.free().unwrap();
        std::fs::write(at.join("more"), "more").unwrap();
        drop(disk);
        assert!(!at.join("more").exists() && mounted().is_empty());
    }
}
