//! One file to disk: fetchers, a reader that checks in file order, and a controller that adapts how many
//! fetch.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::chunk_map::{CHUNK_BYTES, ChunkMap, chunk_count, chunk_range};
use crate::chunk_queue::ChunkQueue;
use crate::disk::{beside, create_folder};
use crate::fetch_plan::PlannedFile;
use crate::ranges::{Fetch, Limit};
use crate::{Cancel, Client, HubError, address, retry};

/// How many ranges a file starts with.
pub(crate) const RANGES_START: usize = 4;
const REPORT: Duration = Duration::from_millis(200);
/// How long a number of ranges is measured.
const MEASURE: Duration = Duration::from_secs(1);
/// After growing did not help.
const SETTLE: Duration = Duration::from_secs(15);
/// Growing by one must bring so much.
const GAIN: f64 = 1.05;

/// One file that is to come to disk.
pub(crate) struct FileDownload<'a> {
    pub(crate) client: &'a Client,
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
    let bytes = crate::disk::read_bounded(&map_path(path), 64 << 20).ok().flatten();
    let held = bytes.and_then(|b| crate::chunk_map::parse(&b, &identity(file, repo, commit), file.size));
    let is_there = fs::metadata(part_path(path)).is_ok_and(|m| m.len() == file.size);
    let chunks = held.filter(|_| is_there).map(|h| h.chunks).unwrap_or_default();
    chunks.keys().map(|index| chunk_range(*index, file.size)).map(|(start, end)| end - start).sum()
}

/// Brings the file, from where an earlier attempt ended. `report` hears the verified bytes on disk and the
/// ranges under way.
pub(crate) fn download(job: &FileDownload<'_>, report: &mut dyn FnMut(u64, usize)) -> Result<(), HubError> {
    if fs::metadata(&job.path).is_ok_and(|m| m.len() == job.file.size) {
        report(job.file.size, 0);
        return Ok(());
    }
    if let Some(folder) = job.path.parent() {
        create_folder(folder)?;
    }
    let part = part_path(&job.path);
    let is_there = fs::metadata(&part).is_ok_and(|m| m.len() == job.file.size);
    if !is_there {
        // A map without its file promises nothing.
        let _ = fs::remove_file(map_path(&job.path));
    }
    let out = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&part);
    let out =
        out.and_then(|f| f.set_len(job.file.size).map(|()| f)).map_err(HubError::disk("write", &part))?;
    let (map, held) =
        ChunkMap::open(&map_path(&job.path), &identity(job.file, job.repo, job.commit), job.file.size)?;
    let digest = transfer(job, &out, map, &held.chunks, report)?;
    finish(job, &out, &part, &digest)?;
    report(job.file.size, 0);
    Ok(())
}

/// Runs all threads until every chunk is here and read; the SHA-256 of it all.
fn transfer(
    job: &FileDownload<'_>,
    out: &File,
    map: ChunkMap,
    held: &BTreeMap<u32, [u8; 32]>,
    report: &mut dyn FnMut(u64, usize),
) -> Result<Digests, HubError> {
    let fetchers_max = job.ranges_max.clamp(1, 8).min(chunk_count(job.file.size).max(1) as usize);
    let map = Mutex::new(map);
    let work = ChunkQueue::new(job.file.size, CHUNK_BYTES, held.keys().copied(), fetchers_max);
    work.set_fetchers(RANGES_START);
    // First the bytes, then the promise, which has their hash: of what a power cut leaves, only what checks
    // counts.
    let store = |index: u32, start: u64, bytes: &[u8]| {
        exo_stdx::write_all_at(out, bytes, start).map_err(HubError::disk("write", &job.path))?;
        let hash = blake3::hash(bytes);
        map.lock().unwrap_or_else(PoisonError::into_inner).add(index, hash.as_bytes())
    };
    let fetch = Fetch {
        client: job.client,
        file: job.file,
        repo: job.repo,
        commit: job.commit,
        store: &store,
        work: &work,
        limit: job.limit,
        cancel: job.cancel,
        etag: Mutex::default(),
        wrong: AtomicU32::new(0),
        tries_max: retry::TRIES_MAX,
        wait_max: retry::RETRY_AFTER_MAX,
    };
    std::thread::scope(|scope| {
        for fetcher in 0..fetchers_max {
            let fetch = &fetch;
            scope.spawn(move || fetch.run(fetcher));
        }
        scope.spawn(|| sync(job, out, &map, &work));
        let reader = scope.spawn(|| read_in_order(job, out, &map, &work, held));
        control(&work, job.cancel, &|| reader.is_finished(), report);
        let digest = reader.join();
        work.end(None);
        match (work.take_failure(), digest) {
            (Some(failure), _) => Err(failure),
            (None, Ok(Ok(Some(digest)))) => Ok(digest),
            (None, Ok(Err(error))) => Err(error),
            (None, Ok(Ok(None)) | Err(_)) => Err(HubError::Cancelled),
        }
    })
}

/// Synchronises what was written, again and again while fetchers go on, and counts it then.
fn sync(job: &FileDownload<'_>, out: &File, map: &Mutex<ChunkMap>, work: &ChunkQueue) {
    let failed = || HubError::disk("write", &job.path);
    while !work.is_over() {
        let written = work.unsynced();
        if written.is_empty() {
            continue;
        }
        let synced = out.sync_data().map_err(failed());
        let map = || map.lock().unwrap_or_else(PoisonError::into_inner).handle();
        match synced.and_then(|()| map()?.sync_data().map_err(failed())) {
            Ok(()) => work.hold(&written),
            // Some systems report a full disk only here.
            Err(error) => work.end(Some(error)),
        }
    }
}

/// Reports, adapts, and ends the work on a wish to end.
pub(crate) fn control(
    work: &ChunkQueue,
    cancel: &Cancel,
    is_read: &dyn Fn() -> bool,
    report: &mut dyn FnMut(u64, usize),
) {
    let mut adapt = Adapt::new(work);
    let mut reported = Instant::now();
    report(work.held_bytes(), work.fetchers());
    while !is_read() {
        if cancel.is_cancelled() {
            work.end(Some(HubError::Cancelled));
        }
        work.wait(Duration::from_millis(20));
        adapt.step(work);
        if reported.elapsed() >= REPORT {
            report(work.held_bytes(), work.fetchers());
            reported = Instant::now();
        }
    }
    report(work.held_bytes(), 0);
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
    fn new(work: &ChunkQueue) -> Self {
        let now = Instant::now();
        Self { since: now, bytes: work.received_bytes(), rate: 0.0, has_grown: false, settled_until: now }
    }

    fn step(&mut self, work: &ChunkQueue) {
        let elapsed = self.since.elapsed();
        if elapsed < MEASURE {
            return;
        }
        let bytes = work.received_bytes();
        let rate = (bytes - self.bytes) as f64 / elapsed.as_secs_f64();
        (self.since, self.bytes) = (Instant::now(), bytes);
        let fetchers = work.fetchers();
        if self.has_grown && rate < self.rate * GAIN {
            work.set_fetchers(fetchers - 1);
            self.has_grown = false;
            self.settled_until = Instant::now() + SETTLE;
        } else if Instant::now() >= self.settled_until {
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
        let hex = |digest: &[u8]| digest.iter().map(|b| format!("{b:02x}")).collect::<String>();
        Digests { sha256: hex(&self.sha256.finalize()), git_id: self.git.map(|git| hex(&git.finalize())) }
    }
}

/// Reads the file as it grows, in order: its digests, and whether chunks of an earlier attempt are still what
/// they were. `None` if the work ended before.
fn read_in_order(
    job: &FileDownload<'_>,
    out: &File,
    map: &Mutex<ChunkMap>,
    work: &ChunkQueue,
    held: &BTreeMap<u32, [u8; 32]>,
) -> Result<Option<Digests>, HubError> {
    let (mut digests, mut bytes) = (Summing::of(job.file), Vec::new());
    for index in 0..chunk_count(job.file.size) {
        let mut expected = held.get(&index);
        loop {
            if !work.wait_for(index) {
                return Ok(None);
            }
            let (start, end) = chunk_range(index, job.file.size);
            bytes.resize((end - start) as usize, 0);
            let read =
                exo_stdx::read_exact_at(out, &mut bytes, start).map_err(HubError::disk("read", &job.path));
            read.inspect_err(|_| work.end(None))?;
            match expected.take() {
                Some(expected) if blake3::hash(&bytes).as_bytes() != expected => {
                    tracing::warn!(file = %job.file.name, chunk = index, "a chunk on disk is not what it was; it is fetched again");
                    map.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .remove(index)
                        .inspect_err(|_| work.end(None))?;
                    work.lose(index);
                }
                _ => break,
            }
        }
        digests.update(&bytes);
    }
    Ok(Some(digests.done()))
}

/// Gives the file its name if it is the one that was promised; deletes it if it is not.
fn finish(job: &FileDownload<'_>, out: &File, part: &Path, found: &Digests) -> Result<(), HubError> {
    let of_git = found.git_id.as_ref().map(|git_id| ("git id", job.file.git_id.as_ref(), git_id));
    let digests = [Some(("SHA-256", job.file.sha256.as_ref(), &found.sha256)), of_git];
    let mut wrong =
        digests.into_iter().flatten().filter(|(_, expected, found)| expected.is_some_and(|e| e != *found));
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
        .and_then(|()| fs::rename(part, &job.path))
        .and_then(|()| exo_stdx::sync_folder_of(&job.path));
    named.map_err(HubError::disk("name", &job.path))?;
    let _ = fs::remove_file(map_path(&job.path));
    Ok(())
}
