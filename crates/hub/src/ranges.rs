//! Fetching ranges of one file: what is asked, which answers are taken, and what a failure means for that
//! range alone.

use std::io::Read;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exo_stdx::Mutex;
use ureq::http::Uri;

use crate::answers::{self, header};
use crate::body::{Pace, SLOW_BYTES_PER_S};
use crate::chunk_map::BlockHasher;
use crate::chunk_queue::ChunkQueue;
use crate::client::{Failure, HubResponse};
use crate::fetch_plan::PlannedFile;
use crate::problems::RangeProblem;
use crate::{Cancel, Client, HubError, address, client, identity, retry};

/// Answers that cannot be right, before the file is given up: a mirror may be half way through a change.
const WRONG_MAX: u32 = 3;
/// An attempt that brings less of a chunk, and less than a third of what it lacks, is as good as one that
/// brings nothing: a host that sends a byte and falls silent would be asked for ever.
const PROGRESS_BYTES_MIN: u64 = 1 << 10;
/// A range with so small a part of the rate of the chunk before it is asked for again: on one connection of
/// many the line may be bad. Each time the part becomes a quarter: the whole line may be slow now.
const SLOW_PART: u64 = 32;
/// What is hashed and written at once: it is still in the processor's own memory then.
const PIECE_BYTES: usize = 256 << 10;

/// Takes a chunk that came: its index, where it starts, its bytes.
pub type StoreChunk<'a> = dyn Fn(u32, u64, &[u8]) -> Result<(), HubError> + Sync + 'a;

/// Where chunks go.
pub(crate) enum ChunkStore<'a> {
    /// To who takes each when it is whole.
    Whole(&'a StoreChunk<'a>),
    /// To a file, as they come.
    Pieces(&'a dyn StorePieces),
}

/// Takes the bytes of chunks before they are whole. What was written of one that never is counts for nothing.
pub(crate) trait StorePieces: Sync {
    /// Bytes, and where they are in the file.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), HubError>;

    /// A chunk is whole: its index, where it starts, and the hashes of its blocks.
    fn finish(&self, index: u32, start: u64, blocks: &[[u8; 32]]) -> Result<(), HubError>;
}

/// What fetchers of one file share.
pub(crate) struct Fetch<'a> {
    pub(crate) client: &'a Client,
    pub(crate) file: &'a PlannedFile,
    pub(crate) repo: &'a str,
    pub(crate) commit: Option<&'a str>,
    pub(crate) store: ChunkStore<'a>,
    pub(crate) work: &'a ChunkQueue,
    pub(crate) limit: &'a Limit,
    pub(crate) cancel: &'a Cancel,
    pub(crate) etag: Mutex<Option<String>>,
    pub(crate) wrong: AtomicU32,
    /// Bytes a second of the last chunk, not a small one, that came in one piece; 0 before.
    pub(crate) chunk_rate: AtomicU64,
    /// Attempts that bring nothing, in a row.
    pub(crate) tries_max: u32,
    /// The longest wait that the hub may ask for, in all.
    pub(crate) wait_max: Duration,
}

/// Why a range did not come.
enum RangeError {
    /// Asked for again after a moment.
    Passing(ureq::Error),
    /// The same, and the host has said why.
    Unavailable(Box<HubResponse>),
    /// The signed address is no good any more.
    Expired(Box<HubResponse>),
    /// The hub asks everybody to wait.
    Limited(Box<HubResponse>),
    /// An answer to another question.
    Wrong(RangeProblem, Box<Uri>),
    Final(HubError),
}

impl From<HubError> for RangeError {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// Attempts in a row that brought nothing: that failed, and that the hub answered with a wish to wait, which
/// is no failure.
#[derive(Default)]
struct Tries {
    failed: u32,
    limited: u32,
}

/// What has come of a chunk. Its memory is used for the next one again, without being cleared.
#[derive(Default)]
struct PartialChunk {
    /// Which one it is.
    index: Option<u32>,
    memory: Vec<u8>,
    /// Bytes that came.
    len: usize,
    /// Of those, what was passed on and is not in memory any more.
    stored: usize,
    /// How often it was asked for again because it was slower than others.
    slow_count: u32,
    blocks: BlockHasher,
}

impl PartialChunk {
    /// What came and was not passed on.
    fn bytes(&self) -> &[u8] {
        &self.memory[..self.len - self.stored]
    }

    fn clear(&mut self) {
        (self.index, self.len, self.stored, self.slow_count) = (None, 0, 0, 0);
        self.blocks.clear();
    }

    /// What came of another chunk is of no use for this one.
    fn begin(&mut self, index: u32) {
        if self.index != Some(index) {
            self.clear();
            self.index = Some(index);
        }
    }

    /// Reads on: of a chunk of `len` bytes, to `memory_len` bytes in memory at most; how many came.
    fn read(&mut self, body: &mut impl Read, len: usize, memory_len: usize) -> std::io::Result<usize> {
        let memory_len = memory_len.min(len - self.stored);
        if self.memory.len() < memory_len {
            self.memory.resize(memory_len, 0);
        }
        let at = self.len - self.stored;
        let end = memory_len.min(at + PIECE_BYTES);
        let came = body.read(&mut self.memory[at..end])?;
        self.len += came;
        Ok(came)
    }

    /// Passes on what is in memory.
    fn store(&mut self, start: u64, pieces: &dyn StorePieces) -> Result<(), HubError> {
        let bytes = &self.memory[..self.len - self.stored];
        pieces.write(start + self.stored as u64, bytes)?;
        self.blocks.update(bytes);
        self.stored = self.len;
        Ok(())
    }
}

impl Fetch<'_> {
    /// One fetcher: claims chunks and brings them until there are none, or somebody ends the work.
    pub(crate) fn run(&self, fetcher: usize) {
        let (mut partial, mut tries) = (PartialChunk::default(), Tries::default());
        // Until everything was read: the reader may find that a chunk of an earlier attempt has to come
        // again.
        while !self.work.is_over() {
            if self.work.claim(fetcher).is_none() {
                if self.work.claimed(fetcher).is_none() {
                    partial.clear(); // another one may have the chunk now
                    self.work.clear_in_flight(fetcher);
                }
                self.work.wait(Duration::from_millis(50));
                continue;
            }
            let before = (partial.index, partial.len);
            let result = self.fetch_claim(fetcher, &mut partial, &mut tries);
            if self.has_come_nearer(&partial, before) {
                // What came of the chunk stays, and the next request begins behind it.
                tries = Tries::default();
            }
            let Err(trouble) = result else { continue };
            if let Err(error) = self.overcome(fetcher, trouble, &mut tries) {
                // While members still give, the failure is reported only when they have ended.
                tracing::debug!(%error, file = %self.file.name, "the hub gives nothing more of a file");
                self.work.fail(error);
            }
        }
        self.work.release(fetcher);
    }

    /// Whether enough of a chunk has come since it was so much of that one.
    fn has_come_nearer(&self, partial: &PartialChunk, before: (Option<u32>, usize)) -> bool {
        let Some(index) = partial.index else { return false };
        let came = partial.len.saturating_sub(if before.0 == Some(index) { before.1 } else { 0 });
        let (start, end) = self.work.range(index);
        let left = (end - start).saturating_sub(partial.len as u64);
        came as u64 >= (left / 2).clamp(1, PROGRESS_BYTES_MIN)
    }

    /// Waits as the failure asks; an error if it is for good.
    fn overcome(&self, fetcher: usize, trouble: RangeError, tries: &mut Tries) -> Result<(), HubError> {
        let attempt = self.attempt();
        match trouble {
            RangeError::Limited(_) => tries.limited += 1,
            _ => tries.failed += 1,
        }
        let failed = tries.failed;
        match trouble {
            RangeError::Final(error) => return Err(error),
            RangeError::Passing(error) if failed >= self.tries_max || !retry::is_passing(&error) => {
                return Err(client::unreachable(&self.file.uri, &attempt, failed, error));
            }
            RangeError::Unavailable(answer) if failed >= self.tries_max => {
                return Err(self.client.refusal(*answer, &attempt, self.hub_repo()));
            }
            RangeError::Passing(error) => self.forget_after_tries(failed, &error),
            RangeError::Unavailable(answer) => {
                self.forget_after_tries(failed, &ureq::Error::StatusCode(answer.status));
            }
            RangeError::Expired(answer) => {
                self.forget_location();
                if failed >= retry::TRIES_MAX {
                    return Err(self.client.refusal(*answer, &attempt, self.hub_repo()));
                }
                if failed == 1 {
                    return Ok(());
                }
            }
            RangeError::Limited(answer) => {
                let wait =
                    retry::asked_wait(answer.status, &answer.headers, tries.limited).unwrap_or_default();
                if answer.status != 429 {
                    self.forget_location(); // another host may have more to spare
                }
                let in_all = self.work.hold_off(wait);
                client::check_wait(&answer.uri, in_all, self.wait_max)?;
                self.cancel.note_asked_wait(wait);
                return Ok(());
            }
            RangeError::Wrong(problem, uri) => {
                self.forget_location();
                if self.wrong.fetch_add(1, Ordering::Relaxed) + 1 >= WRONG_MAX {
                    let (host, problem) = (address::host(&uri), problem.to_string());
                    return Err(HubError::Answer { host, attempt, problem });
                }
            }
        }
        self.work.wait_to_ask(fetcher);
        if self.cancel.wait(retry::backoff(failed - 1)) { Err(HubError::Cancelled) } else { Ok(()) }
    }

    fn fetch_claim(
        &self,
        fetcher: usize,
        partial: &mut PartialChunk,
        tries: &mut Tries,
    ) -> Result<(), RangeError> {
        let Some((mut next, end)) = self.work.claimed(fetcher) else { return Ok(()) };
        partial.begin(next);
        if partial.len == 0 {
            self.work.clear_in_flight(fetcher);
        }
        let start = self.work.range(next).0 + partial.len as u64;
        let stop = self.work.range(end - 1).1;
        self.work.note_asked(fetcher);
        let answer = self.open(start, stop)?;
        let mut body = answer.body.into_reader();
        // Where another source was sooner, the claim begins behind what this answer goes on with.
        while self.work.claimed(fetcher).is_some_and(|(claimed, _)| claimed == next) {
            partial.begin(next);
            let (from, to) = self.work.range(next);
            let read = self.read_chunk(fetcher, &mut body, partial, (from, to));
            if self.work.is_here(next) {
                break;
            }
            if let ChunkStore::Pieces(pieces) = &self.store {
                partial.store(from, *pieces)?; // what came before a failure stays
            }
            read?;
            match &self.store {
                ChunkStore::Whole(store) => {
                    self.work.clear_in_flight(fetcher); // who takes it counts it
                    store(next, from, partial.bytes())?;
                }
                ChunkStore::Pieces(pieces) => pieces.finish(next, from, &partial.blocks.finish())?,
            }
            self.work.write(fetcher, next);
            partial.clear();
            next += 1;
            *tries = Tries::default();
            if !self.work.is_wanted(fetcher) {
                self.work.release(fetcher);
            }
        }
        self.work.clear_in_flight(fetcher);
        Ok(())
    }

    /// Reads on until the chunk is whole, or here from elsewhere. What came before a failure stays in
    /// `partial`.
    fn read_chunk(
        &self,
        fetcher: usize,
        body: &mut impl Read,
        partial: &mut PartialChunk,
        (start, end): (u64, u64),
    ) -> Result<(), RangeError> {
        let len = (end - start) as usize;
        let broken = |text: String| {
            RangeError::Passing(ureq::Error::Io(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, text)))
        };
        let (begun, is_fresh) = (Instant::now(), partial.len == 0);
        let mut pace = Pace::begin(self.client.settings().stall);
        while partial.len < len {
            let memory_len = match &self.store {
                ChunkStore::Pieces(pieces) if partial.bytes().len() >= PIECE_BYTES => {
                    partial.store(start, *pieces)?;
                    PIECE_BYTES
                }
                ChunkStore::Pieces(_) => PIECE_BYTES,
                ChunkStore::Whole(_) => len,
            };
            let came = match partial.read(body, len, memory_len) {
                Ok(0) => {
                    let left = len - partial.len;
                    return Err(broken(format!("the answer ended {left} bytes before the chunk did")));
                }
                Ok(came) => came as u64,
                Err(error) => return Err(broken(error.to_string())),
            };
            self.work.receive(fetcher, came);
            if self.work.is_over() || self.limit.take(came, self.cancel) {
                return Err(HubError::Cancelled.into());
            }
            if partial.index.is_some_and(|index| self.work.is_here(index)) {
                return Ok(());
            }
            // Others may have come since this one began.
            let slow_part = self.chunk_rate.load(Ordering::Relaxed) / SLOW_PART;
            let slow_below = (slow_part >> (2 * partial.slow_count).min(63)).max(SLOW_BYTES_PER_S);
            if let Some(rate) = pace.slow_after(came, slow_below).filter(|_| !self.limit.is_set()) {
                partial.slow_count += 1;
                return Err(broken(format!("the answer came with {rate} bytes a second")));
            }
        }
        // What is smaller says how long an answer takes to begin.
        if is_fresh && len >= PIECE_BYTES {
            let rate = len as f64 / begun.elapsed().as_secs_f64();
            self.chunk_rate.store(rate as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Asks for the bytes from `start` to `stop`, and takes only an answer that is exactly those.
    fn open(&self, start: u64, stop: u64) -> Result<HubResponse, RangeError> {
        let located = self.client.located(&self.file.uri);
        let answer = self.client.get(&self.file.uri, located.as_ref(), Some((start, stop)), None).map_err(
            |failure| match failure {
                Failure::Connection(error) => RangeError::Passing(error),
                Failure::Final(error) => RangeError::Final(error),
            },
        )?;
        let is_elsewhere = address::origin(&answer.uri) != address::origin(&self.file.uri);
        if retry::asked_wait(answer.status, &answer.headers, 1).is_some() {
            return Err(RangeError::Limited(Box::new(answer)));
        }
        match answer.status {
            206 | 200 => {}
            401 if !is_elsewhere && self.client.answer_challenge(&answer, self.cancel)? => {
                return Err(RangeError::Expired(Box::new(answer)));
            }
            400 | 401 | 403 | 404 | 410 if is_elsewhere => return Err(RangeError::Expired(Box::new(answer))),
            408 | 500..600 => return Err(RangeError::Unavailable(Box::new(answer))),
            _ => {
                let refusal = self.client.refusal(answer, &self.attempt(), self.hub_repo());
                return Err(RangeError::Final(refusal));
            }
        }
        self.check(&answer, start, stop)
            .map_err(|problem| RangeError::Wrong(problem, Box::new(answer.uri.clone())))?;
        if is_elsewhere {
            self.client.keep_located(&self.file.uri, &answer.uri);
        }
        Ok(answer)
    }

    /// What is wrong with an answer to the question for these bytes of this file.
    fn check(&self, answer: &HubResponse, start: u64, stop: u64) -> Result<(), RangeProblem> {
        let (size, asked) = (self.file.size, stop - start);
        if answers::is_encoded(&answer.headers) {
            return Err(RangeProblem::Compressed);
        }
        match answer.status {
            206 => {
                let text = header(&answer.headers, "content-range").unwrap_or_default();
                let (from, to, whole) = answers::content_range(text)
                    .ok_or_else(|| RangeProblem::ContentRange(crate::errors::quoted(text)))?;
                if (from, to + 1, whole) != (start, stop, size) {
                    return Err(RangeProblem::OtherRange { start, stop, size, from, to: to + 1, whole });
                }
            }
            _ if asked == size => {}
            _ => return Err(RangeProblem::WholeFile { start, stop }),
        }
        if let Some(length) = header(&answer.headers, "content-length").and_then(|l| l.parse::<u64>().ok())
            && length != asked
        {
            return Err(RangeProblem::Length { length, asked });
        }
        self.check_identity(answer)
    }

    /// That it is the file of the plan, by what the hub and the host of the bytes say.
    fn check_identity(&self, answer: &HubResponse) -> Result<(), RangeProblem> {
        if let Some(problem) = identity::problem(answer, self.file, self.commit) {
            return Err(RangeProblem::OtherFile(problem));
        }
        let Some(found) = header(&answer.headers, "etag").map(answers::etag) else { return Ok(()) };
        let mut known = self.etag.lock();
        match known.as_deref() {
            Some(before) if before != found => {
                let [found, before] = [found, before].map(crate::errors::quoted);
                Err(RangeProblem::ETag { found, before })
            }
            Some(_) => Ok(()),
            None => {
                *known = Some(found.to_owned());
                Ok(())
            }
        }
    }

    fn forget_location(&self) {
        self.client.forget_located(&self.file.uri);
    }

    /// A signed address may lead to a machine that is gone: after two tries the hub is asked for another.
    fn forget_after_tries(&self, tries: u32, error: &ureq::Error) {
        tracing::debug!(%error, tries, file = %self.file.name, "a range is asked for again");
        if tries > 2 {
            self.forget_location();
        }
    }

    /// The repository whose page may have to be accepted.
    fn hub_repo(&self) -> Option<&str> {
        self.commit.map(|_| self.repo)
    }

    fn attempt(&self) -> String {
        format!("fetch {} of {}", self.file.name, self.repo)
    }
}

/// At most so many bytes a second, over all fetchers.
pub(crate) struct Limit {
    bytes_per_s: Option<u64>,
    /// Until when what was taken lasts.
    until: Mutex<Instant>,
}

impl Limit {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, until: Mutex::new(Instant::now()) }
    }

    fn is_set(&self) -> bool {
        self.bytes_per_s.is_some()
    }

    /// Waits until these bytes may be taken; whether somebody wished to end.
    pub(crate) fn take(&self, bytes: u64, cancel: &Cancel) -> bool {
        let Some(rate) = self.bytes_per_s else { return cancel.is_cancelled() };
        let wait = {
            let mut until = self.until.lock();
            let now = Instant::now();
            *until = (*until).max(now) + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *until - now
        };
        cancel.wait(wait)
    }
}
