//! One file to disk: fetchers, a reader that checks in file order, and a controller that adapts how many
//! fetch.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use exo_stdx::Mutex;
use exo_types::hex;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::chunk_map::{
    BLOCK_BYTES, CHUNK_BYTES, ChunkMap, block_hashes, chunk_count, chunk_hash, chunk_range,
};
use crate::chunk_queue::ChunkQueue;
use crate::disk::{beside, create_folder};
use crate::fetch_plan::{PlannedFile, RepoCommit};
use crate::file_hashes::FileHashes;
use crate::nearby::{GivenRange, Nearby, WantedFile};
use crate::partial_files::{BlockHashes, FilePlace, OfferedFile, PartialFile};
use crate::ranges::{ChunkStore, Fetch, Limit, StorePieces};
use crate::{Cancel, Client, HubError, address, retry};

/// How many ranges a file starts with.
pub(crate) const RANGES_START: usize = 4;
/// The longest wait that the hub may ask for where members give most of a range: it is left to the ranges
/// then, and the members go on giving.
const HOLES_WAIT_MAX: Duration = Duration::from_secs(2);
const REPORT: Duration = Duration::from_millis(200);
/// Between two looks at how it goes.
const STEP: Duration = Duration::from_millis(20);
/// How long a number of ranges is measured.
const MEASURE: Duration = Duration::from_secs(1);
/// After growing did not help.
const SETTLE: Duration = Duration::from_secs(15);
/// Growing by one must bring so much.
const GAIN: f64 = 1.05;

/// How far a file is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileProgress {
    /// Verified and on disk.
    pub(crate) done_bytes: u64,
    /// What came beside that. It becomes less where a chunk begins again.
    pub(crate) coming_bytes: u64,
    /// Under way.
    pub(crate) ranges: usize,
}

impl FileProgress {
    fn whole(size: u64) -> Self {
        Self { done_bytes: size, coming_bytes: 0, ranges: 0 }
    }

    fn of(work: &ChunkQueue, ranges: usize) -> Self {
        Self { done_bytes: work.held_bytes(), coming_bytes: work.coming_bytes(), ranges }
    }
}

/// One file that is to come to disk.
pub(crate) struct FileDownload<'a> {
    pub(crate) client: &'a Client,
    /// Who is asked before the hub.
    pub(crate) nearby: &'a dyn Nearby,
    pub(crate) repo: &'a str,
    pub(crate) commit: Option<&'a str>,
    pub(crate) file: &'a PlannedFile,
    /// Where it will be.
    pub(crate) path: PathBuf,
    pub(crate) ranges_max: usize,
    pub(crate) limit: &'a Limit,
    pub(crate) cancel: &'a Cancel,
}

/// Where a file is while it is not whole.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    beside(path, "part")
}

fn map_path(path: &Path) -> PathBuf {
    beside(path, "part.map")
}

/// What makes a partial file this one.
fn identity(file: &PlannedFile, repo: &str, commit: Option<&str>) -> String {
    format!("{repo}@{}:{}:{}", commit.unwrap_or("-"), file.name, file.sha256.as_deref().unwrap_or("-"))
}

/// Bytes of a file that are on disk and verified, whole or partial.
pub(crate) fn held_bytes(file: &PlannedFile, repo: &str, commit: Option<&str>, path: &Path) -> u64 {
    if fs::metadata(path).is_ok_and(|m| m.len() == file.size) {
        return file.size;
    }
    let bytes = exo_stdx::read_bounded(&map_path(path), 64 << 20).ok().flatten();
    let held = bytes.and_then(|b| crate::chunk_map::parse(&b, &identity(file, repo, commit), file.size));
    let is_there = fs::metadata(part_path(path)).is_ok_and(|m| m.len() == file.size);
    let chunks = held.filter(|_| is_there).map(|h| h.chunks).unwrap_or_default();
    chunks.keys().map(|index| chunk_range(*index, file.size)).map(|(start, end)| end - start).sum()
}

/// What the file takes on the disk already, verified or not: chunks that were broken off are written again in
/// their place.
pub(crate) fn disk_bytes(file: &PlannedFile, path: &Path) -> u64 {
    let part = fs::metadata(part_path(path)).map_or(0, |about| exo_stdx::disk_bytes(&about));
    part.min(file.size)
}

/// Brings the file, from where an earlier attempt ended; the hashes of its blocks, unless it was here.
pub(crate) fn download(
    job: &FileDownload<'_>,
    report: &mut dyn FnMut(FileProgress),
) -> Result<Option<FileHashes>, HubError> {
    if fs::metadata(&job.path).is_ok_and(|m| m.len() == job.file.size) {
        report(FileProgress::whole(job.file.size));
        return Ok(None);
    }
    if let Some(folder) = job.path.parent() {
        create_folder(folder)?;
    }
    let mut nearby = Some(job.nearby);
    loop {
        let (part, held) = PartFile::open(job)?;
        let Transferred { digests, given_bytes, offered } = part.transfer(&held, nearby, report)?;
        match (part.finish(&digests), nearby.take()) {
            // What an earlier attempt left may be of members as well.
            (Err(error @ HubError::Digest { .. }), Some(nearby)) if given_bytes > 0 || !held.is_empty() => {
                let (file, givers) = (&job.file.name, nearby.givers());
                tracing::warn!(%error, file, givers, "what came from members, or before, was not what the hub promised: all of it is fetched again from the hub");
                if given_bytes > 0 {
                    nearby.distrust_givers();
                }
            }
            (finished, _) => {
                let hashes = finished?;
                if let Some(offered) = offered {
                    offered.keep(&job.path);
                }
                report(FileProgress::whole(job.file.size));
                return Ok(Some(hashes));
            }
        }
    }
}

/// A file that is not whole, with the map of what it has.
struct PartFile<'a> {
    job: &'a FileDownload<'a>,
    path: PathBuf,
    out: File,
    /// The system lets one at a time write to a file, and others wait for that with a processor each.
    writing: Mutex<()>,
    map: Mutex<ChunkMap>,
    /// BLAKE3 of each block that came or was read.
    blocks: BlockHashes,
}

/// A file that is here, all of it.
struct Transferred<'a> {
    digests: Digests,
    /// How much of it somebody near gave.
    given_bytes: u64,
    /// It is given to others meanwhile.
    offered: Option<OfferedFile<'a>>,
}

impl<'a> PartFile<'a> {
    /// As an earlier attempt left it, with the chunks that its map promises; or empty.
    fn open(job: &'a FileDownload<'a>) -> Result<(Self, BTreeMap<u32, [u8; 32]>), HubError> {
        let path = part_path(&job.path);
        if fs::metadata(&path).map_or(true, |m| m.len() != job.file.size) {
            // A map without its file promises nothing.
            let _ = fs::remove_file(map_path(&job.path));
        }
        let out = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let out = out.and_then(|f| f.set_len(job.file.size).map(|()| f));
        let out = out.map_err(HubError::disk("write", &path))?;
        let identity = identity(job.file, job.repo, job.commit);
        let (map, held) = ChunkMap::open(&map_path(&job.path), &identity, job.file.size)?;
        let blocks = vec![[0; 32]; job.file.size.div_ceil(BLOCK_BYTES as u64) as usize];
        let (writing, map, blocks) = (Mutex::default(), Mutex::new(map), Arc::new(Mutex::new(blocks)));
        Ok((Self { job, path, out, writing, map, blocks }, held.chunks))
    }

    /// Keeps a chunk that came; what the map has of it.
    fn store(&self, index: u32, start: u64, bytes: &[u8]) -> Result<[u8; 32], HubError> {
        self.write(start, bytes)?;
        self.promise(index, start, &block_hashes(bytes))
    }

    /// Notes that a chunk was written. First the bytes, then the promise, which has their hash: of what a
    /// power cut leaves, only what checks counts.
    fn promise(&self, index: u32, start: u64, blocks: &[[u8; 32]]) -> Result<[u8; 32], HubError> {
        let hash = chunk_hash(blocks);
        self.map.lock().add(index, &hash)?;
        self.note_blocks(start, blocks);
        Ok(hash)
    }

    fn note_blocks(&self, start: u64, hashes: &[[u8; 32]]) {
        let first = (start / BLOCK_BYTES as u64) as usize;
        self.blocks.lock()[first..first + hashes.len()].copy_from_slice(hashes);
    }

    /// Makes what was stored last.
    fn synchronise(&self) -> Result<(), HubError> {
        let failed = || HubError::disk("write", &self.job.path);
        self.out.sync_data().map_err(failed())?;
        let map = self.map.lock().handle()?;
        map.sync_data().map_err(failed())
    }

    /// Takes what somebody near has of the missing chunks, again and again if they are to be asked so, until
    /// `stop`; how many bytes came.
    fn take_from(&self, nearby: &dyn Nearby, turn: NearbyTurn<'_>, stop: &Cancel) -> u64 {
        // Of a file that nothing says the digest of, members' bytes could be any.
        let Some(sha256) = self.job.file.digest() else { return 0 };
        let work = turn.0;
        let mut given = self.take_once(nearby, sha256, work, stop);
        work.pause_nearby();
        while nearby.asked_again_after().is_some_and(|time| work.is_missing_after(time)) {
            work.begin_nearby();
            given += self.take_once(nearby, sha256, work, stop);
            work.pause_nearby();
        }
        given
    }

    /// Takes what somebody near has of the chunks that are left to them now.
    fn take_once(&self, nearby: &dyn Nearby, sha256: [u8; 32], work: &ChunkQueue, stop: &Cancel) -> u64 {
        let size = self.job.file.size;
        let wanted: Vec<(u64, u64)> =
            work.left_to_nearby().into_iter().map(|index| chunk_range(index, size)).collect();
        if wanted.is_empty() {
            return 0;
        }
        let index_at = |start: u64| (start / CHUNK_BYTES) as u32;
        let leave = |(start, _): (u64, u64)| work.free(index_at(start));
        let (mut given, mut is_hub_away) = (0, false);
        let mut take = |given_range: GivenRange<'_>| {
            let ((start, end), holes) = (given_range.range, given_range.holes);
            if work.is_over() {
                return Err(HubError::Cancelled);
            }
            let index = index_at(start);
            if work.is_here(index) {
                return Ok(()); // the hub was sooner
            }
            // A hub that is away is not asked for each of them: it may take long to say so.
            let is_whole =
                holes.is_empty() || (!is_hub_away && self.fill_holes(holes, start, given_range.bytes)?);
            if !is_whole {
                is_hub_away = true;
                leave((start, end));
                return Ok(());
            }
            self.store(index, start, given_range.bytes)?;
            work.write_given(index);
            given += end - start;
            Ok(())
        };
        let file = WantedFile { sha256, size, ranges: &wanted };
        match nearby.give(&file, stop, &leave, &mut take) {
            Err(error) if !work.is_over() => work.end(Some(error)),
            Err(_) => {}
            Ok(()) => {
                nearby.awaited().into_iter().for_each(|(start, _)| work.leave_elsewhere(index_at(start)))
            }
        }
        given
    }

    /// Fetches from the hub what nobody near gave of a range that begins at `start`; whether all of it came.
    fn fill_holes(&self, holes: &[(u64, u64)], start: u64, bytes: &mut [u8]) -> Result<bool, HubError> {
        let job = self.job;
        let at = job.commit.map(|commit| RepoCommit { repo: job.repo, commit });
        for &(from, to) in holes {
            let hole = from.checked_sub(start).zip(to.checked_sub(start));
            let hole = hole.and_then(|(from, to)| bytes.get_mut(from as usize..to as usize));
            let Some(hole) = hole else { return Ok(false) };
            match job.client.part_soon(job.file, at, (from, to), job.cancel, HOLES_WAIT_MAX) {
                Ok(came) => hole.copy_from_slice(&came), // of exactly that length
                Err(HubError::Cancelled) => return Err(HubError::Cancelled),
                Err(error) => {
                    tracing::debug!(%error, file = %job.file.name, from, to, "what members lack of a range did not come alone");
                    return Ok(false);
                }
            }
            if job.limit.take(to - from, job.cancel) {
                return Err(HubError::Cancelled);
            }
        }
        Ok(true)
    }

    /// Gives what comes to others that fetch the same, if they are to have it.
    fn offer(&self, held: &BTreeMap<u32, [u8; 32]>, work: &Arc<ChunkQueue>) -> Option<OfferedFile<'a>> {
        let (files, sha256) = (self.job.nearby.partial_files()?, self.job.file.digest()?);
        Some(files.offer(PartialFile {
            sha256,
            size: self.job.file.size,
            work: work.clone(),
            found: held.clone(),
            blocks: self.blocks.clone(),
            place: Mutex::new(FilePlace::partial(&self.path)),
        }))
    }

    /// Runs all threads until every chunk is here and read.
    fn transfer(
        &self,
        held: &BTreeMap<u32, [u8; 32]>,
        nearby: Option<&dyn Nearby>,
        report: &mut dyn FnMut(FileProgress),
    ) -> Result<Transferred<'a>, HubError> {
        let job = self.job;
        let fetchers_max = job.ranges_max.clamp(1, 8).min(chunk_count(job.file.size).max(1) as usize);
        let work = ChunkQueue::new(job.file.size, CHUNK_BYTES, held.keys().copied(), fetchers_max);
        let work = Arc::new(work);
        work.set_fetchers(RANGES_START);
        // Before others are asked: of two that begin at once, the second one sees the first.
        let offered = self.offer(held, &work);
        let fetch = Fetch {
            client: job.client,
            file: job.file,
            repo: job.repo,
            commit: job.commit,
            store: ChunkStore::Pieces(self),
            work: &work,
            limit: job.limit,
            cancel: job.cancel,
            etag: Mutex::default(),
            wrong: AtomicU32::new(0),
            chunk_rate: AtomicU64::new(0),
            tries_max: retry::TRIES_MAX,
            wait_max: retry::RETRY_AFTER_MAX,
        };
        // Before any fetcher looks for something to do.
        let giving = nearby.map(|nearby| (nearby, NearbyTurn::begin(&work)));
        let stop = &Cancel::default();
        std::thread::scope(|scope| {
            let giving = giving.map(|(nearby, turn)| scope.spawn(move || self.take_from(nearby, turn, stop)));
            for fetcher in 0..fetchers_max {
                let fetch = &fetch;
                scope.spawn(move || fetch.run(fetcher));
            }
            scope.spawn(|| self.synchronise_written(&work));
            let reader = scope.spawn(|| {
                // Whatever ends the reading ends the rest.
                self.read_in_order(&work, held).inspect_err(|_| work.end(None))
            });
            control(&work, job.cancel, &|| reader.is_finished(), report);
            let digest = reader.join();
            work.end(None);
            stop.cancel(); // a member may be silent for long
            let given_bytes = giving.map_or(0, |giving| giving.join().unwrap_or(0));
            match (work.take_failure(), digest) {
                (Some(failure @ (HubError::Disk { .. } | HubError::Cancelled)), _) => Err(failure),
                // Where the hub failed, who is near may have brought all the same.
                (_, Ok(Ok(Some(digests)))) => Ok(Transferred { digests, given_bytes, offered }),
                (Some(failure), _) => Err(failure),
                (None, Ok(Err(error))) => Err(error),
                (None, Ok(Ok(None)) | Err(_)) => Err(HubError::Cancelled),
            }
        })
    }

    /// Synchronises what was written, again and again while fetchers go on, and counts it then.
    fn synchronise_written(&self, work: &ChunkQueue) {
        while !work.is_over() {
            let written = work.unsynced();
            if written.is_empty() {
                continue;
            }
            match self.synchronise() {
                Ok(()) => work.hold(&written),
                // Some systems report a full disk only here.
                Err(error) => work.end(Some(error)),
            }
        }
    }

    /// Reads the file as it grows, in order: its digests, and whether chunks of an earlier attempt are still
    /// what they were. `None` if the work ended before.
    fn read_in_order(
        &self,
        work: &ChunkQueue,
        held: &BTreeMap<u32, [u8; 32]>,
    ) -> Result<Option<Digests>, HubError> {
        let file = self.job.file;
        // A block at a time: what was just read is hashed from the processor's own memory.
        let (mut digests, mut block) = (Summing::of(file), vec![0; BLOCK_BYTES]);
        for index in 0..chunk_count(file.size) {
            let mut expected = held.get(&index);
            loop {
                if !work.wait_for(index) {
                    return Ok(None);
                }
                let (before, mut hashes) = (expected.map(|_| digests.clone()), Vec::new());
                let (start, end) = chunk_range(index, file.size);
                for at in (start..end).step_by(BLOCK_BYTES) {
                    let block = &mut block[..(end - at).min(BLOCK_BYTES as u64) as usize];
                    let read = exo_stdx::read_exact_at(&self.out, block, at);
                    read.map_err(HubError::disk("read", &self.job.path))?;
                    digests.update(block);
                    if before.is_some() {
                        hashes.push(*blake3::hash(block).as_bytes());
                    }
                }
                let (Some(expected), Some(before)) = (expected.take(), before) else { break };
                if chunk_hash(&hashes) == *expected {
                    self.note_blocks(start, &hashes);
                    break;
                }
                tracing::warn!(file = %file.name, chunk = index, "a chunk on disk is not what it was; it is fetched again");
                digests = before;
                self.map.lock().remove(index)?;
                work.lose(index);
            }
        }
        Ok(Some(digests.done()))
    }

    /// Gives the file its name if it is the one that was promised; deletes it if it is not.
    fn finish(self, found: &Digests) -> Result<FileHashes, HubError> {
        let Self { job, path: part, out, blocks, .. } = self;
        let of_git = found.git_id.as_ref().map(|git_id| ("git id", job.file.git_id.as_ref(), git_id));
        let digests = [Some(("SHA-256", job.file.sha256.as_ref(), &found.sha256)), of_git];
        let mut wrong = digests
            .into_iter()
            .flatten()
            .filter(|(_, expected, found)| expected.is_some_and(|e| e != *found));
        if let Some((kind, Some(expected), found)) = wrong.next() {
            let _ = fs::remove_file(map_path(&job.path));
            let _ = fs::remove_file(part);
            return Err(HubError::Digest {
                file: job.file.name.clone(),
                bytes: job.file.size,
                host: address::host(&job.file.uri),
                kind,
                expected: expected.clone(),
                found: found.clone(),
            });
        }
        let named = out
            .sync_all()
            .and_then(|()| fs::rename(&part, &job.path))
            .and_then(|()| exo_stdx::sync_folder_of(&job.path));
        named.map_err(HubError::disk("name", &job.path))?;
        let _ = fs::remove_file(map_path(&job.path));
        let blocks = blocks.lock().clone();
        FileHashes::of(&job.path, blocks).map_err(HubError::disk("read", &job.path))
    }
}

impl StorePieces for PartFile<'_> {
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), HubError> {
        let _turn = self.writing.lock();
        exo_stdx::write_all_at(&self.out, bytes, at).map_err(HubError::disk("write", &self.job.path))
    }

    fn finish(&self, index: u32, start: u64, blocks: &[[u8; 32]]) -> Result<(), HubError> {
        self.promise(index, start, blocks).map(drop)
    }
}

/// As long as this is there, what is missing may be left to who is near.
struct NearbyTurn<'a>(&'a ChunkQueue);

impl<'a> NearbyTurn<'a> {
    fn begin(work: &'a ChunkQueue) -> Self {
        work.begin_nearby();
        Self(work)
    }
}

impl Drop for NearbyTurn<'_> {
    fn drop(&mut self) {
        self.0.end_nearby();
    }
}

/// Reports, adapts, and ends the work on a wish to end.
pub(crate) fn control(
    work: &ChunkQueue,
    cancel: &Cancel,
    is_read: &dyn Fn() -> bool,
    report: &mut dyn FnMut(FileProgress),
) {
    let mut adapt = Adapt::new(work, Instant::now());
    let mut reported = Instant::now();
    report(FileProgress::of(work, work.ranges()));
    while !is_read() {
        if cancel.is_cancelled() {
            work.end(Some(HubError::Cancelled));
        }
        match work.is_over() {
            true => std::thread::park_timeout(STEP), // what is here is still read
            false => work.wait(STEP),
        }
        adapt.step(work, Instant::now());
        if reported.elapsed() >= REPORT {
            report(FileProgress::of(work, work.ranges()));
            reported = Instant::now();
        }
    }
    report(FileProgress::of(work, 0));
}

/// Finds the number of ranges beyond which another brings nothing.
struct Adapt {
    since: Instant,
    bytes: u64,
    rate: f64,
    has_grown: bool,
    settled_until: Instant,
}

impl Adapt {
    fn new(work: &ChunkQueue, now: Instant) -> Self {
        Self { since: now, bytes: work.received_bytes(), rate: 0.0, has_grown: false, settled_until: now }
    }

    fn step(&mut self, work: &ChunkQueue, now: Instant) {
        let elapsed = now.duration_since(self.since);
        if elapsed < MEASURE {
            return;
        }
        let bytes = work.received_bytes();
        if work.ranges() == 0 || work.is_to_wait(now) {
            // Nothing is asked for, and what was measured before says nothing of what comes then.
            (self.since, self.bytes, self.has_grown) = (now, bytes, false);
            return;
        }
        let rate = (bytes - self.bytes) as f64 / elapsed.as_secs_f64();
        (self.since, self.bytes) = (now, bytes);
        let fetchers = work.fetchers();
        if self.has_grown && rate < self.rate * GAIN {
            work.set_fetchers(fetchers - 1);
            self.has_grown = false;
            self.settled_until = now + SETTLE;
        } else if now >= self.settled_until {
            work.set_fetchers(fetchers + 1);
            self.has_grown = work.fetchers() > fetchers;
        }
        self.rate = rate;
    }
}

/// Files are in git itself up to this size; a hub keeps larger ones elsewhere, by SHA-256.
const GIT_BYTES_MAX: u64 = 10 << 20;

/// What a file's bytes are, as a hub can promise it.
struct Digests {
    sha256: String,
    /// Where the hub has no SHA-256, as of small files: what git calls such a file.
    git_id: Option<String>,
}

/// Makes [`Digests`] in one reading.
#[derive(Clone)]
struct Summing {
    sha256: Sha256,
    git: Option<Sha1>,
}

impl Summing {
    fn of(file: &PlannedFile) -> Self {
        // Of a larger file that a mirror has no digest of, git's id is that of a pointer.
        let is_gits = file.sha256.is_none() && file.git_id.is_some() && file.size <= GIT_BYTES_MAX;
        let git = is_gits.then(|| Sha1::new_with_prefix(format!("blob {}\0", file.size)));
        Self { sha256: Sha256::new(), git }
    }

    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.git.iter_mut().for_each(|git| git.update(bytes));
    }

    fn done(self) -> Digests {
        Digests { sha256: hex(&self.sha256.finalize()), git_id: self.git.map(|git| hex(&git.finalize())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many ranges there are after each second of a line that gives so much to so many.
    fn ranges_over(seconds: u64, bytes_per_s: impl Fn(usize) -> u64) -> Vec<usize> {
        let work = ChunkQueue::new(CHUNK_BYTES * 64, CHUNK_BYTES, std::iter::empty(), 8);
        work.set_fetchers(RANGES_START);
        let start = Instant::now();
        let mut adapt = Adapt::new(&work, start);
        let after = |second| {
            work.receive(0, bytes_per_s(work.fetchers()));
            adapt.step(&work, start + Duration::from_secs(second));
            work.fetchers()
        };
        (1..=seconds).map(after).collect()
    }

    #[test]
    fn ranges_become_more_as_long_as_one_more_brings_something() {
        assert_eq!(
            ranges_over(7, |ranges| 1000 * ranges as u64),
            [5, 6, 7, 8, 8, 8, 8],
            "each has its own pace"
        );
    }

    #[test]
    fn while_the_hub_asks_to_wait_no_range_is_added_to_the_half_that_is_left() {
        let work = ChunkQueue::new(CHUNK_BYTES * 64, CHUNK_BYTES, std::iter::empty(), 8);
        work.set_fetchers(RANGES_START);
        let start = Instant::now();
        let mut adapt = Adapt::new(&work, start);
        work.hold_off(Duration::from_secs(60));
        let after = |second| {
            adapt.step(&work, start + Duration::from_secs(second));
            work.fetchers()
        };
        let ranges: Vec<usize> = [1, 2, 10, 59, 62].map(after).into();
        assert_eq!(ranges, [2, 2, 2, 2, 3]);
    }

    #[test]
    fn a_range_that_brings_nothing_goes_again_and_is_tried_once_more_after_a_while() {
        let mut expected = vec![5, 6, 7];
        expected.extend([6; 15]);
        expected.extend([7, 6, 6]);
        assert_eq!(
            ranges_over(21, |ranges| 1000 * ranges.min(6) as u64),
            expected,
            "the line has room for six"
        );
        let expected = [[5].as_slice(), &[4; 15], &[5, 4]].concat();
        assert_eq!(
            ranges_over(18, |ranges| 9000 - 1000 * ranges as u64),
            expected,
            "each is in the others' way"
        );
    }
}
