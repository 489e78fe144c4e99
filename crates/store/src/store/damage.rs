//! A whole copy that exo fetched from a hub and that a disk has damaged since.

use std::fs::{self, OpenOptions};
use std::io;

use exo_types::ModelId;

use super::Store;
use crate::disk::{Fingerprint, failed};
use crate::local::{read_local, usable_local};
use crate::registry::{Local, LocalFile};
use crate::{ChunkError, ChunkRef, StoreError};

impl Store {
    /// The chunks of such a copy that are not what they were when it came; reads all of it. None of a file of
    /// the user's own, or of one that somebody has changed: what size or time tell of is no damage.
    pub fn damaged_chunks(&self, id: ModelId) -> Result<Vec<ChunkRef>, StoreError> {
        let Some(local) = self.copy_of_hub(id)? else { return Ok(Vec::new()) };
        let manifest = self.manifest(id)?;
        let mut damaged = Vec::new();
        for (file, at) in (0..).zip(&local.files) {
            for index in 0..manifest.chunk_count(file) {
                let chunk = ChunkRef { file, index };
                let known = manifest.chunk_len(chunk).zip(manifest.chunk_hash(chunk));
                let Some((len, hash)) = known else { continue };
                let bytes = read_local(at, id, manifest.chunk_start(chunk), len)?;
                if blake3::hash(&bytes) != *hash {
                    damaged.push(chunk);
                }
            }
        }
        Ok(damaged)
    }

    /// Writes a chunk of such a copy anew, if these are its bytes.
    pub fn repair_chunk(&self, id: ModelId, chunk: ChunkRef, bytes: &[u8]) -> Result<(), ChunkError> {
        let local = self.copy_of_hub(id)?.ok_or(ChunkError::NotHeld { model: id, chunk })?;
        let manifest = self.manifest(id)?;
        let place = manifest.chunk_len(chunk).zip(local.files.get(chunk.file as usize));
        let (len, file) = place.ok_or(ChunkError::OutOfRange { model: id, chunk })?;
        if manifest.chunk_hash(chunk).is_none_or(|hash| blake3::hash(bytes) != *hash) {
            return Err(ChunkError::Mismatch { model: id, chunk });
        }
        let written = write_anew(file, manifest.chunk_start(chunk), bytes);
        Ok(written.map_err(|e| failed("write", &file.path, len, e))?)
    }

    fn copy_of_hub(&self, id: ModelId) -> Result<Option<Local>, StoreError> {
        let entry = self.entry(id)?;
        let usable = usable_local(&entry).and_then(Result::ok);
        Ok(usable.filter(|local| self.is_of_hub(local)).cloned())
    }
}

/// Only into the very file that was hashed, asked of the opened one, and through no link. It is then what was
/// hashed, so it keeps the time of that.
fn write_anew(file: &LocalFile, start: u64, bytes: &[u8]) -> io::Result<()> {
    let is_link = fs::symlink_metadata(&file.path)?.is_symlink();
    let opened = OpenOptions::new().write(true).open(&file.path)?;
    let metadata = opened.metadata()?;
    if is_link || Fingerprint::of(&metadata) != file.fingerprint {
        return Err(io::Error::other("it is not the file that was hashed"));
    }
    let modified = metadata.modified()?;
    exo_stdx::write_all_at(&opened, bytes, start)?;
    opened.set_modified(modified)?;
    opened.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use exo_types::DType;

    use super::*;
    use crate::common;

    /// Changes a byte as a disk does: neither size nor time say so.
    fn damage(file: &Path, at: usize) {
        let modified = fs::metadata(file).unwrap().modified().unwrap();
        let mut bytes = fs::read(file).unwrap();
        bytes[at] ^= 1;
        fs::write(file, bytes).unwrap();
        File::options().append(true).open(file).unwrap().set_modified(modified).unwrap();
    }

    #[test]
    fn a_damaged_chunk_of_a_copy_of_a_hub_is_found_and_written_anew_and_a_file_of_the_users_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let of_hub = data.join("hub/org/repo/commit/Q8_0");
        fs::create_dir_all(&of_hub).unwrap();
        let (fetched, own) = (of_hub.join("m.gguf"), folder.path().join("own.gguf"));
        let bytes = common::sample(DType::F32, true, |_| {});
        let other = common::sample(DType::F16, true, |_| {});
        fs::write(&fetched, &bytes).unwrap();
        fs::write(&own, &other).unwrap();
        let (store, _) = Store::open(&data).unwrap();
        let id = store.add_path(&fetched, &mut |_, _| {}).unwrap().id;
        let own_id = store.add_path(&own, &mut |_, _| {}).unwrap().id;
        assert_eq!(store.damaged_chunks(id).unwrap(), []);

        damage(&fetched, 7);
        damage(&own, 7);
        let first = ChunkRef { file: 0, index: 0 };
        assert_eq!(store.damaged_chunks(id).unwrap(), [first]);
        assert_eq!(store.damaged_chunks(own_id).unwrap(), []);
        let of_chunk = |bytes: &[u8], id| {
            let len = store.manifest(id).unwrap().chunk_len(first).unwrap();
            bytes[..len as usize].to_vec()
        };
        let refused = store.repair_chunk(id, first, &of_chunk(&other, own_id));
        assert!(matches!(refused, Err(ChunkError::Mismatch { .. })), "{refused:?}");
        let refused = store.repair_chunk(own_id, first, &of_chunk(&other, own_id));
        assert!(matches!(refused, Err(ChunkError::NotHeld { .. })), "{refused:?}");

        store.repair_chunk(id, first, &of_chunk(&bytes, id)).unwrap();
        assert_eq!(fs::read(&fetched).unwrap(), bytes);
        assert!(store.record(id).unwrap().problem.is_none(), "it counts as what it was");
    }

    /// A file of five bytes, and what was noted of it.
    fn noted(path: &Path) -> LocalFile {
        fs::write(path, "right").unwrap();
        let fingerprint = Fingerprint::of(&fs::metadata(path).unwrap());
        LocalFile { path: path.to_owned(), fingerprint }
    }

    #[test]
    fn a_file_that_is_another_by_now_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let file = noted(&path);
        write_anew(&file, 0, b"wr").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"wrght");
        fs::write(&path, "another").unwrap();
        write_anew(&file, 0, b"wr").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"another");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_a_link_names_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("own.gguf"), folder.path().join("m.gguf"));
        let LocalFile { fingerprint, .. } = noted(&path);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_anew(&LocalFile { path: link, fingerprint }, 0, b"wr").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"right");
    }
}
