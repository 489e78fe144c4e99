//! The first file system of a Linux kernel: a cpio archive in the `newc` format.

use std::path::Path;

use anyhow::Context;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive that grows entry by entry.
#[derive(Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    /// An empty folder.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// An executable file.
    pub fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    /// Writes the archive, uncompressed: the emulated processor would unpack it.
    pub fn write(mut self, to: &Path) -> anyhow::Result<()> {
        self.entry("TRAILER!!!", 0, &[]);
        std::fs::write(to, self.bytes).with_context(|| format!("cannot write {}", to.display()))
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let name_len = path.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), device of a node (2), length of the name,
        // checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
