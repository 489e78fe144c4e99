//! A copy that holds only some chunks: sparse files, and a map of what they hold.
//!
//! A chunk counts as held *on disk* only after its bytes were synchronised, so after a crash or a power cut
//! the map never promises what is not there; at most the last few chunks are fetched again.
//!
//! What each chunk was when it came is known, by the manifest or by a record beside the map. What the disk
//! makes of one later is noticed when it is read, and then the chunk is held no more.

mod damage;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use exo_formats::{FileRange, Model};
use exo_types::ModelId;
use serde::{Deserialize, Serialize};

use crate::chunk::touched;
use crate::disk::{create_folder, deleted, failed, read_bounded};
use crate::held::HeldMap;
use crate::manifest::{FileEntry, ModelKind};
use crate::recorded::{self, RecordedHashes};
use crate::{ChunkError, ChunkRef, Manifest, Sha256State, StoreError};

/// Chunks written between two synchronisations: what a crash may cost.
const UNSYNCED_MAX: usize = 16;
const FILES: &str = "files";
const HELD: &str = "held";
/// What chunks were when they came, where the manifest does not say.
const HASHES: &str = "hashes";
/// Whether the whole, with what other nodes have of it, was what its hub promised.
const CHECKED: &str = "checked";
/// There from the first chunk of a shard's fetch until all of the shard is here. A copy without it, for
/// example of an earlier version of exo, counts as finished: nobody knows that it is not.
const FETCHING: &str = "fetching";
const MATCHES: &[u8] = b"matches\n";
const DIFFERS: &[u8] = b"differs\n";

/// Sparse files and a map of the chunks they hold. Shared by everyone who fetches or serves the model.
#[derive(Debug)]
pub struct PartialModel {
    id: ModelId,
    manifest: Arc<Manifest>,
    /// Holds the folder of files and the map.
    folder: PathBuf,
    path: PathBuf,
    state: Mutex<State>,
    /// One at a time synchronises, and nobody else waits for the disk meanwhile.
    flushing: Mutex<()>,
    /// Whether the folder was deleted. Another copy may be made at the same place, so whoever still has this
    /// one must not touch its files any more: who reads or writes one holds this meanwhile.
    is_removed: RwLock<bool>,
}

#[derive(Debug)]
struct State {
    held: HeldMap,
    /// Held in memory, not yet promised on disk.
    unsynced: Vec<ChunkRef>,
    /// What the last check found.
    checked: Option<bool>,
    /// Chunks without a hash that came since this was opened.
    unseen: u64,
    recorded: RecordedHashes,
    /// Chunks that came or were compared since this was opened.
    verified: HeldMap,
    /// When each file was last written, as far as [`State::verified`] is about it.
    modified: Vec<Option<SystemTime>>,
}

/// What comes of digesting some chunks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Digested {
    /// There are more behind them.
    Going(Sha256State),
    /// They were the last: the SHA-256 of the file.
    Done([u8; 32]),
}

impl PartialModel {
    /// The copy in `folder`: what is there already, or an empty one of the right lengths.
    pub(crate) fn open(folder: &Path, id: ModelId, manifest: Arc<Manifest>) -> Result<Self, StoreError> {
        let files = folder.join(FILES);
        create_folder(&files)?;
        let stored = read_bounded(&folder.join(HELD), HeldMap::encoded_len(&manifest))?;
        let mut held = stored.and_then(|bytes| HeldMap::decode(&bytes, id, &manifest));
        for (index, file) in manifest.files.iter().enumerate() {
            let was_there = create_sparse(&files.join(&file.name), file.size)?;
            if !was_there && let Some(held) = &mut held {
                held.forget_file(index as u32, &manifest); // somebody deleted the file: its chunks are gone
            }
        }
        let held = held.unwrap_or_else(|| HeldMap::empty(&manifest));
        let path = match manifest.kind {
            ModelKind::Gguf => files.join(&manifest.files[0].name), // a checked manifest has at least one
            ModelKind::HuggingFace => files,
        };
        let checked = match read_bounded(&folder.join(CHECKED), 64)?.as_deref() {
            Some(MATCHES) => Some(true),
            Some(DIFFERS) => Some(false),
            _ => None,
        };
        let state = Mutex::new(State {
            held,
            unsynced: Vec::new(),
            checked,
            unseen: 0,
            recorded: RecordedHashes::open(folder.join(HASHES), &manifest),
            verified: HeldMap::empty(&manifest),
            modified: vec![None; manifest.files.len()],
        });
        let (flushing, is_removed) = (Mutex::default(), RwLock::default());
        Ok(Self { id, manifest, folder: folder.to_owned(), path, state, flushing, is_removed })
    }

    /// The model.
    pub fn id(&self) -> ModelId {
        self.id
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The file or folder that `exo_formats::open` takes once nothing of the head is missing.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Chunks that must come before the model opens.
    pub fn missing_head(&self) -> Vec<ChunkRef> {
        let state = self.state();
        self.head().into_iter().filter(|chunk| !state.held.has(*chunk)).collect()
    }

    fn head(&self) -> BTreeSet<ChunkRef> {
        let ranges = self.manifest.files.iter().enumerate().flat_map(|(index, file)| {
            let head = FileRange { file: index, start: 0, end: file.head_bytes };
            let shared = file.shared.iter().map(move |(start, end)| FileRange {
                file: index,
                start: *start,
                end: *end,
            });
            std::iter::once(head).chain(shared)
        });
        self.touched_by(&ranges.collect::<Vec<_>>())
    }

    /// Chunks that `ranges` touch and that are not held, ascending.
    pub fn missing(&self, ranges: &[FileRange]) -> Vec<ChunkRef> {
        let wanted = self.touched_by(ranges);
        let state = self.state();
        wanted.into_iter().filter(|chunk| !state.held.has(*chunk)).collect()
    }

    /// Bytes of these chunks.
    pub fn bytes_of<'a>(&self, chunks: impl IntoIterator<Item = &'a ChunkRef>) -> u64 {
        chunks.into_iter().filter_map(|chunk| self.manifest.chunk_len(*chunk)).sum()
    }

    /// Bytes of the chunks that `ranges` touch, held or not.
    pub fn bytes_touched_by(&self, ranges: &[FileRange]) -> u64 {
        self.bytes_of(&self.touched_by(ranges))
    }

    fn touched_by(&self, ranges: &[FileRange]) -> BTreeSet<ChunkRef> {
        let mut wanted = BTreeSet::new();
        for range in ranges {
            let Some(file) = self.manifest.files.get(range.file) else { continue };
            let indices = touched(range.start, range.end.min(file.size), self.manifest.chunk_bytes);
            wanted.extend(indices.map(|index| ChunkRef { file: range.file as u32, index }));
        }
        wanted
    }

    /// Whether the chunk is held.
    pub fn has_chunk(&self, chunk: ChunkRef) -> bool {
        self.state().held.has(chunk)
    }

    /// Verifies the bytes, as far as their hash is known, and writes them. Writing a chunk that is held does
    /// nothing.
    pub fn write_chunk(&self, chunk: ChunkRef, bytes: &[u8]) -> Result<(), ChunkError> {
        self.write_new_chunk(chunk, bytes).map(drop)
    }

    /// The same; whether the chunk was not held. Of several that write it at once it is new for one.
    pub fn write_new_chunk(&self, chunk: ChunkRef, bytes: &[u8]) -> Result<bool, ChunkError> {
        let model = self.id;
        let len = self.manifest.chunk_len(chunk).ok_or(ChunkError::OutOfRange { model, chunk })?;
        let found_bytes = bytes.len() as u64;
        if found_bytes != len {
            return Err(ChunkError::Length { model, chunk, expected_bytes: len, found_bytes });
        }
        let (hash, known) = (*blake3::hash(bytes).as_bytes(), self.manifest.chunk_hash(chunk));
        if known.is_some_and(|known| hash != *known) {
            return Err(ChunkError::Mismatch { model, chunk });
        }
        let there = self.stay()?;
        if self.has_chunk(chunk) {
            return Ok(false);
        }
        if known.is_none() {
            self.forget_check()?;
        }
        let path = self.file_path(chunk.file);
        let file = OpenOptions::new().write(true).open(&path);
        let written = file.and_then(|file| {
            exo_stdx::write_all_at(&file, bytes, self.manifest.chunk_start(chunk))?;
            Ok(file.metadata().and_then(|about| about.modified()).ok())
        });
        let modified = written.map_err(|e| failed("write", &path, found_bytes, e))?;
        let (is_new, is_due) = {
            let mut state = self.state();
            let is_new = state.held.add(chunk, len);
            if is_new {
                state.unsynced.push(chunk);
                if known.is_none() {
                    state.recorded.note(chunk, hash);
                }
                state.verified.add(chunk, len);
            }
            state.modified[chunk.file as usize] = modified;
            (is_new, state.unsynced.len() >= UNSYNCED_MAX || self.is_complete_in(&state))
        };
        drop(there); // `flush` waits for its turn, which a removal may have
        if is_due {
            self.flush()?;
        }
        Ok(is_new)
    }

    /// The bytes of a chunk that is held. One that is not what it was when it came is held no more.
    pub fn read_chunk(&self, chunk: ChunkRef) -> Result<Vec<u8>, ChunkError> {
        let model = self.id;
        let len = self.manifest.chunk_len(chunk).ok_or(ChunkError::OutOfRange { model, chunk })?;
        let there = self.stay()?;
        let known = {
            let state = self.state();
            if !state.held.has(chunk) {
                return Err(ChunkError::NotHeld { model, chunk });
            }
            self.manifest.chunk_hash(chunk).or_else(|| state.recorded.get(chunk)).copied()
        };
        let path = self.file_path(chunk.file);
        let mut bytes = vec![0; len as usize];
        let file = File::open(&path);
        let read = file
            .and_then(|file| exo_stdx::read_exact_at(&file, &mut bytes, self.manifest.chunk_start(chunk)));
        read.map_err(|e| failed("read", &path, len, e))?;
        drop(there); // `lose` waits for its turn, which a removal may have
        match known {
            Some(known) if blake3::hash(&bytes) != known => {
                self.lose(chunk, len);
                Err(ChunkError::Damaged { model, chunk })
            }
            Some(_) => {
                self.state().verified.add(chunk, len);
                Ok(bytes)
            }
            None => Ok(bytes),
        }
    }

    /// Which chunks are held, for [`HeldMap::decode`] elsewhere.
    pub fn held(&self) -> Vec<u8> {
        self.state().held.encode(self.id)
    }

    /// Goes on with the SHA-256 of a file from `state`, over `count` chunks that are held.
    pub fn digest(
        &self,
        first: ChunkRef,
        count: u32,
        mut state: Sha256State,
    ) -> Result<Digested, ChunkError> {
        let (model, all) = (self.id, self.manifest.chunk_count(first.file));
        let end = first.index.saturating_add(count);
        let start = u64::from(first.index) * u64::from(self.manifest.chunk_bytes);
        if count == 0 || end > all || state.bytes() != start {
            return Err(ChunkError::OutOfRange { model, chunk: first });
        }
        for index in first.index..end {
            let bytes = self.read_chunk(ChunkRef { file: first.file, index })?;
            if index + 1 == all {
                return Ok(Digested::Done(state.finish(&bytes)));
            }
            state.update(&bytes);
        }
        Ok(Digested::Going(state))
    }

    /// What the last check of the whole found, if nothing has come since that it did not see.
    pub fn checked(&self) -> Option<bool> {
        self.state().checked
    }

    /// Keeps what a check of the whole found that began when [`PartialModel::unseen`] was so much: chunks
    /// that came since make it void.
    pub fn note_check(&self, matches: bool, unseen: u64) -> Result<(), StoreError> {
        let _there = self.stay()?;
        let mut state = self.state();
        if state.unseen != unseen {
            return Ok(());
        }
        let text = if matches { MATCHES } else { DIFFERS };
        crate::disk::write_atomic(&self.folder.join(CHECKED), text)?;
        state.checked = Some(matches);
        Ok(())
    }

    /// Chunks that came with no more than their giver's word, since this was opened.
    pub fn unseen(&self) -> u64 {
        self.state().unseen
    }

    /// A chunk comes that the last check did not see.
    fn forget_check(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        state.unseen += 1;
        if state.checked.is_none() {
            return Ok(());
        }
        let path = self.folder.join(CHECKED);
        fs::remove_file(&path).map_err(|e| failed("delete", &path, 0, e))?;
        state.checked = None;
        Ok(())
    }

    /// Notes that a fetch has begun to store, or that all it was for is here. What is noted only decides what
    /// may be pruned: a disk that does not take it stops nothing.
    pub fn note_finished(&self, is_finished: bool) {
        let Ok(_there) = self.stay() else { return };
        let path = self.folder.join(FETCHING);
        let noted = match is_finished {
            true if !path.exists() => Ok(()),
            // After a power cut too, or what is finished could be pruned.
            true => deleted(fs::remove_file(&path)).and_then(|()| exo_stdx::sync_folder_of(&path)),
            false => fs::write(&path, b""),
        };
        if let Err(error) = noted {
            tracing::warn!(model = %self.id, %error, is_finished, "how far a fetch is was not noted for `exo prune`");
        }
    }

    /// Whether there is more than the head, of a fetch that was not finished.
    pub fn is_unfinished(&self) -> bool {
        let head_bytes = self.bytes_of(&self.head()).saturating_add(u64::from(self.manifest.chunk_bytes));
        let is_whole = self.held_bytes() == self.manifest.total_bytes();
        // Chunks that a full disk did not let last are not held, and take their room.
        !is_whole && has_begun(&self.folder) && disk_bytes(&self.folder) > head_bytes
    }

    /// Whether there is more than the head, and not of a fetch that was never finished. What else is fetched
    /// into it, finished or not, must not make it something to prune.
    pub fn has_finished(&self) -> bool {
        !has_begun(&self.folder) && self.held_bytes() > self.bytes_of(&self.head())
    }

    /// Bytes of the chunks held.
    pub fn held_bytes(&self) -> u64 {
        self.state().held.bytes()
    }

    /// Makes what was written durable. Also happens every few chunks and on drop.
    pub fn flush(&self) -> Result<(), StoreError> {
        let _turn = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.stay()?); // a removal takes the turn first: this remains so
        let unsynced = std::mem::take(&mut self.state().unsynced);
        if unsynced.is_empty() {
            return Ok(());
        }
        // First the bytes and what they are, then the map that promises them. A disk may take seconds for
        // each: without the state's lock.
        let (path, records) = self.state().recorded.records(&unsynced);
        let synced = self.sync_files(&unsynced).and_then(|()| recorded::append(&path, &records));
        let synced = synced.and_then(|()| self.write_map());
        if synced.is_err() {
            // Some systems report a full disk only here. What is not safe is not held.
            let mut state = self.state();
            for chunk in unsynced {
                state.held.remove(chunk, self.manifest.chunk_len(chunk).unwrap_or(0));
            }
        }
        synced
    }

    /// Opens the model. Tensors whose chunks are missing read as zeros.
    pub fn open_model(&self) -> Result<Model, StoreError> {
        let missing = self.missing_head().len();
        if missing > 0 {
            return Err(StoreError::HeadMissing { id: self.id, missing });
        }
        let _there = self.stay()?;
        let mut model = exo_formats::open(&self.path).map_err(StoreError::Open)?;
        model.name.clone_from(&self.manifest.name);
        Ok(model)
    }

    /// Nothing of it is here any more, for whoever still has it: its folder is about to be deleted. Waits for
    /// those who read or write its files.
    pub(crate) fn note_removed(&self) {
        let _turn = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        *self.is_removed.write().unwrap_or_else(PoisonError::into_inner) = true;
        let mut state = self.state();
        state.held = HeldMap::empty(&self.manifest);
        state.verified = HeldMap::empty(&self.manifest);
        state.unsynced.clear();
        state.checked = None;
    }

    /// Its files are not deleted as long as this is held. Nobody takes it twice: a removal that waits in
    /// between would wait for ever.
    fn stay(&self) -> Result<RwLockReadGuard<'_, bool>, StoreError> {
        let is_removed = self.is_removed.read().unwrap_or_else(PoisonError::into_inner);
        if *is_removed { Err(StoreError::Removed { id: self.id }) } else { Ok(is_removed) }
    }

    /// Gives a file another name, for a copy that has the same.
    fn link(&self, file: u32, path: &Path) -> std::io::Result<()> {
        let _there = self.stay().map_err(std::io::Error::other)?;
        fs::hard_link(self.file_path(file), path)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_complete_in(&self, state: &State) -> bool {
        state.held.bytes() == self.manifest.total_bytes()
    }

    fn file_path(&self, file: u32) -> PathBuf {
        let name = self.manifest.files.get(file as usize).map(|f| f.name.as_str()).unwrap_or_default();
        self.folder.join(FILES).join(name)
    }

    fn sync_files(&self, chunks: &[ChunkRef]) -> Result<(), StoreError> {
        let files: BTreeSet<u32> = chunks.iter().map(|c| c.file).collect();
        for path in files.into_iter().map(|file| self.file_path(file)) {
            let synced = OpenOptions::new().write(true).open(&path).and_then(|file| file.sync_data());
            let bytes = chunks.len() as u64 * u64::from(self.manifest.chunk_bytes);
            synced.map_err(|e| failed("synchronise", &path, bytes, e))?;
        }
        Ok(())
    }

    fn recorded_hash(&self, chunk: ChunkRef) -> Option<[u8; 32]> {
        self.state().recorded.get(chunk).copied()
    }

    /// Those of `chunks` that are held in file `there` and last.
    fn lasting(&self, chunks: &[ChunkRef], there: u32) -> Vec<ChunkRef> {
        if let Err(error) = self.flush() {
            tracing::warn!(model = %self.id, %error, "the last chunks of a partial copy are not promised");
        }
        let state = self.state();
        let lasts = |chunk: &&ChunkRef| {
            let own = ChunkRef { file: there, ..**chunk };
            state.held.has(own) && !state.unsynced.contains(&own)
        };
        chunks.iter().filter(lasts).copied().collect()
    }

    /// What came while others were synchronised is not promised yet.
    fn write_map(&self) -> Result<(), StoreError> {
        let promised = {
            let state = self.state();
            let mut held = state.held.clone();
            for chunk in &state.unsynced {
                held.remove(*chunk, self.manifest.chunk_len(*chunk).unwrap_or(0));
            }
            held.encode(self.id)
        };
        crate::disk::write_atomic(&self.folder.join(HELD), &promised)
    }
}

impl Drop for PartialModel {
    fn drop(&mut self) {
        match self.flush() {
            Ok(()) | Err(StoreError::Removed { .. }) => {}
            Err(error) => {
                tracing::warn!(model = %self.id, %error, "the last chunks of a partial copy will be fetched again");
            }
        }
    }
}

/// What the copy in `folder` takes of the disk.
pub(crate) fn disk_bytes(folder: &Path) -> u64 {
    files_of(folder).map(|about| exo_stdx::disk_bytes(&about)).sum()
}

/// What deleting the copy in `folder` frees: less what another commit has by another name.
pub(crate) fn bytes_to_free(folder: &Path) -> u64 {
    files_of(folder).filter(exo_stdx::is_only_name).map(|about| exo_stdx::disk_bytes(&about)).sum()
}

fn files_of(folder: &Path) -> impl Iterator<Item = fs::Metadata> {
    let files = fs::read_dir(folder.join(FILES)).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok())
}

/// Whether a fetch into the copy in `folder` has begun to store, and was not finished.
pub(crate) fn has_begun(folder: &Path) -> bool {
    folder.join(FETCHING).exists()
}

/// Deletes the copy in `folder`, first of all the map: it must not promise what is about to go. Last goes
/// what says that it is not finished: after an end in between it is pruned the next time.
pub(crate) fn delete(folder: &Path) -> std::io::Result<()> {
    if folder.exists() {
        // A full disk may not take it, and takes the rest.
        let _ = fs::write(folder.join(FETCHING), b"");
    }
    deleted(fs::remove_file(folder.join(HELD)))?;
    deleted(fs::remove_dir_all(folder.join(FILES)))?;
    deleted(fs::remove_dir_all(folder))
}

/// What is held of files that another copy has in part is copied up to so many bytes: the store waits
/// meanwhile.
const COPIED_MAX: u64 = 1 << 30;

/// Begins the copy in `folder`, which is not there yet, with what other commits have of files that are the
/// same by the hub's SHA-256. A file that is there whole gets a second name, since nobody writes to it any
/// more. Of others the chunks are copied: what one copy is given must not change what the other has checked.
pub(crate) fn take_unchanged(
    folder: &Path,
    id: ModelId,
    manifest: &Manifest,
    others: &[Arc<PartialModel>],
) -> Result<(), StoreError> {
    let same =
        |index: usize| others.iter().find_map(|other| Some((other, same_file(manifest, index, other)?)));
    let same: Vec<_> = (0..manifest.files.len()).filter_map(|index| Some((index, same(index)?))).collect();
    if same.is_empty() {
        return Ok(());
    }
    let files = folder.join(FILES);
    create_folder(&files)?;
    let (mut held, mut copied, mut records) = (HeldMap::empty(manifest), 0, Vec::new());
    for (index, (other, there)) in same {
        let (file, path) = (index as u32, files.join(&manifest.files[index].name));
        let all: Vec<_> = (0..manifest.chunk_count(file)).map(|index| ChunkRef { file, index }).collect();
        let lasting = other.lasting(&all, there);
        let taken = match lasting.len() == all.len() {
            true => other.link(there, &path).map(|()| lasting),
            false => copy_chunks(&path, manifest, &lasting, (other, there), &mut copied),
        };
        match taken {
            Ok(taken) => taken.into_iter().for_each(|chunk| {
                held.add(chunk, manifest.chunk_len(chunk).unwrap_or(0));
                let hash = other.recorded_hash(ChunkRef { file: there, ..chunk });
                hash.into_iter().for_each(|hash| records.extend(recorded::encode(chunk, &hash)));
            }),
            Err(error) => {
                tracing::warn!(model = %id, %error, "an unchanged file of another commit is of no use; it is fetched again");
            }
        }
    }
    tracing::info!(model = %id, bytes = held.bytes(), "another commit has the same bytes: they are not fetched again");
    recorded::append(&folder.join(HASHES), &records)?;
    crate::disk::write_atomic(&folder.join(HELD), &held.encode(id))
}

/// Copies chunks out of file `there` of another copy into a new file; which.
fn copy_chunks(
    path: &Path,
    manifest: &Manifest,
    chunks: &[ChunkRef],
    (other, there): (&PartialModel, u32),
    copied: &mut u64,
) -> std::io::Result<Vec<ChunkRef>> {
    let Some(first) = chunks.first() else { return Ok(Vec::new()) };
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.set_len(manifest.files[first.file as usize].size)?;
    let mut taken = Vec::new();
    for &chunk in chunks {
        let len = manifest.chunk_len(chunk).unwrap_or(0);
        if *copied + len > COPIED_MAX {
            break;
        }
        let bytes = match other.read_chunk(ChunkRef { file: there, ..chunk }) {
            Err(ChunkError::Damaged { .. }) => continue,
            read => read.map_err(std::io::Error::other)?,
        };
        exo_stdx::write_all_at(&file, &bytes, manifest.chunk_start(chunk))?;
        *copied += len;
        taken.push(chunk);
    }
    file.sync_all()?;
    Ok(taken)
}

/// Which file of another copy is this one of a manifest.
fn same_file(manifest: &Manifest, index: usize, other: &PartialModel) -> Option<u32> {
    let digest = |manifest: &Manifest, index: usize| manifest.hub.as_ref()?.files.get(index)?.sha256;
    let (file, sha256) = (manifest.files.get(index)?, digest(manifest, index)?);
    let is_same = |(there, entry): &(usize, &FileEntry)| {
        digest(&other.manifest, *there) == Some(sha256)
            && FileEntry { name: file.name.clone(), ..(*entry).clone() } == *file
    };
    let found = other.manifest.files.iter().enumerate().find(is_same)?;
    (other.manifest.chunk_bytes == manifest.chunk_bytes).then_some(found.0 as u32)
}

/// Makes the file if it is not there, with this length and no blocks. Returns whether it was there.
fn create_sparse(path: &Path, size: u64) -> Result<bool, StoreError> {
    if fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == size) {
        return Ok(true);
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    file.and_then(|file| file.set_len(size)).map_err(|e| failed("make", path, size, e))?;
    Ok(false)
}

#[cfg(test)]
mod tests;
