//! Model files, log lines and checks between members: the questions, and asking them. `bulk_answers` answers.
//!
//! One channel, one asker; answers come in the order of the questions, so a few questions may be on the way.

mod givers;
mod progress;
mod refused_chunks;
mod shared_chunks;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_accelerators::chain;
use exo_api::{CheckView, NodeView};
use exo_hub::{ChunkBits, PartialState};
use exo_machine::Holder;
use exo_store::{ChunkRef, Digested, HeldMap, Manifest, PartialModel, Sha256State};
use exo_transport::{DialError, Endpoint, FrameError, FrameLimits, FrameReader, FrameWriter};
use exo_types::{DeviceId, ModelId, NodeId, Transport};
use serde::{Deserialize, Serialize};

pub(crate) use self::givers::Givers;
pub(crate) use self::progress::{FetchProgress, ProgressSender, progress_channel};
pub(crate) use self::refused_chunks::RefusedChunks;
pub(crate) use self::shared_chunks::{ChunkShare, SharedChunks};
use crate::details::SharedDetails;
use crate::{dialling, member_checks};

/// Of all lines of an answer to another node.
pub const LOG_ANSWER_BYTES_MAX: usize = 4 << 20;
/// Questions on the way at once: hides the round trip without holding much.
const IN_FLIGHT_MAX: usize = 8;
/// For a holder to answer at one of its addresses.
const DIAL_MAX: Duration = Duration::from_secs(5);
/// For one answer: a chunk over a very slow link, or a manifest that is hashed first.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What a channel is for that carries questions for chunks of model files.
pub const PURPOSE_BULK: u8 = 3;
/// An answer: a manifest, and whatever is shorter ([`Fetcher::answer`]).
pub(crate) const LIMITS: FrameLimits = FrameLimits { payload_bytes_max: 64 << 20 };
/// A question: some words.
pub(crate) const ASK_LIMITS: FrameLimits = FrameLimits { payload_bytes_max: 16 << 10 };

pub(crate) const KIND_ASK: u8 = 1;
pub(crate) const KIND_BYTES: u8 = 2;
pub(crate) const KIND_REFUSED: u8 = 3;

/// What one node asks another, in the encoding of the bulk channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogAsk {
    pub level: Option<u8>,
    pub target: Option<String>,
    pub request: Option<String>,
    pub after: u64,
    pub limit: u32,
}

/// A question.
#[derive(Serialize, Deserialize)]
pub(crate) enum Ask {
    Manifest(ModelId),
    Chunk {
        model: ModelId,
        chunk: ChunkRef,
    },
    /// Bytes that mean nothing, to measure the path.
    Burst,
    /// Its last log lines.
    Logs(LogAsk),
    /// Which chunks it has of a model of a hub, which it is fetching, and which it wants: [`PeerChunks`].
    Held(ModelId),
    /// A chunk of a model of a hub that the holder fetches for this, if it has not got it.
    Relay {
        model: ModelId,
        chunk: ChunkRef,
    },
    /// The SHA-256 of a file, gone on with over chunks that it has: [`Digested`].
    Digest {
        model: ModelId,
        first: ChunkRef,
        count: u32,
        state: Sha256State,
    },
    /// A person wants a device in quarantine tried again.
    RetryDevice(DeviceId),
    /// What lists show of a model that it has: [`SharedDetails`].
    Details(ModelId),
    /// To look over its machine: checks, as JSON.
    Checks,
    /// Which of its models has the file with this SHA-256: [`FileCopy`], if any.
    CopyOf([u8; 32]),
    /// How far it is with fetching the file with this SHA-256 whole: bits of the chunks that it has, and of
    /// those on their way to it from the hub, if it fetches it ([`PartialState`]).
    PartialFile {
        sha256: [u8; 32],
        size: u64,
    },
    /// A block of such a file.
    PartialBlock {
        sha256: [u8; 32],
        block: u32,
    },
}

/// Of what a member is asked for chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskedOf {
    /// Of a model that it has.
    Model(ModelId),
    /// Of a model of a hub that it is to fetch them from.
    Relayed(ModelId),
    /// Of the file with this SHA-256 that it is fetching whole: its blocks, which are as long as the chunks.
    PartialFile([u8; 32]),
}

impl AskedOf {
    fn ask(self, chunk: ChunkRef) -> Ask {
        match self {
            Self::Model(model) => Ask::Chunk { model, chunk },
            Self::Relayed(model) => Ask::Relay { model, chunk },
            Self::PartialFile(sha256) => Ask::PartialBlock { sha256, block: chunk.index },
        }
    }
}

/// Where a member has a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileCopy {
    pub model: ModelId,
    pub file: u32,
}

/// Chunks that one answer goes over: 64 MiB of the usual size, a moment.
pub const DIGEST_CHUNKS_MAX: u32 = 64;

/// What any answer may have: a refusal, what lists show of a model, and all that is a few numbers.
const SMALL_ANSWER_BYTES_MAX: u32 = 64 << 10;
/// What an answer says of a machine.
const CHECKS_BYTES_MAX: u64 = 256 << 10;

/// Chunks that a member may say to be fetching: of each fetch a batch, and far more batches than there are
/// devices.
pub(crate) const COMING_MAX: usize = 4096;
/// Runs of chunks that a member may say to want: layers stand in few pieces of their files.
pub(crate) const WANTED_RUNS_MAX: usize = 1024;

/// Chunks of a file that stand behind each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkRun {
    /// The first one.
    pub first: ChunkRef,
    /// How many.
    pub count: u32,
}

impl ChunkRun {
    /// Whether the chunk is one of them.
    pub fn has(&self, chunk: ChunkRef) -> bool {
        let behind = chunk.index.checked_sub(self.first.index).filter(|_| chunk.file == self.first.file);
        behind.is_some_and(|behind| behind < self.count)
    }
}

/// What a member has of a model of a hub.
pub struct PeerChunks {
    /// On its disk.
    pub held: HeldMap,
    /// On their way to it from the hub.
    pub coming: BTreeSet<ChunkRef>,
    /// What its fetches under way are for, held or not, where it asks the hub itself.
    pub wanted: Vec<ChunkRun>,
}

/// A burst: so many frames, the first of which only open the path.
pub(crate) const BURST_FRAMES: usize = 16;
const BURST_OPENING: usize = 4;
/// Bytes of each.
pub(crate) const BURST_FRAME_BYTES: usize = 64 << 10;
/// A slow path is measured by what has come of a burst after this long.
const BURST_MAX: Duration = Duration::from_secs(10);

/// A transfer did not work with this holder; another may do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    #[error("cannot reach {holder}")]
    Dial { holder: NodeId, source: Box<DialError> },
    #[error("the transfer from {holder} broke off: {reason}")]
    Broken { holder: NodeId, reason: String },
    /// The holder does not have it (any more).
    #[error("{holder} refused: {reason}")]
    Refused { holder: NodeId, reason: String },
    #[error("{holder} sent something else than asked for: {reason}")]
    Wrong { holder: NodeId, reason: String },
    #[error("{holder} refused {count} chunks or sent them wrong, the last because of: {reason}")]
    TooManyRefused { holder: NodeId, count: usize, reason: String },
    #[error("cannot store what was fetched: {reason}")]
    Disk { reason: String },
}

/// A member did not answer a question.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error("it is not there")]
    Gone,
    #[error("its id is invalid")]
    NoId,
    #[error("it did not answer within {seconds} s")]
    Late { seconds: u64 },
    #[error(transparent)]
    Fetch(Box<FetchError>),
    #[error("its answer cannot be decoded")]
    Unreadable(#[from] postcard::Error),
    #[error("it sent {lines} lines of its log")]
    TooManyLines { lines: usize },
}

impl From<FetchError> for MemberError {
    fn from(error: FetchError) -> Self {
        Self::Fetch(Box::new(error))
    }
}

impl FetchError {
    /// Notes that another source is asked now. Who sends something else than asked for has a damaged disk, or
    /// lies.
    pub fn report(&self) {
        match self {
            Self::Wrong { holder, reason } => {
                tracing::warn!(target: "events::model", peer = %holder, reason, "sent something else than asked for");
            }
            Self::TooManyRefused { holder, count, reason } => {
                tracing::warn!(target: "events::model", peer = %holder, count, reason, "did not give several chunks that it has: it is asked for no more of them now");
            }
            error => tracing::debug!(error = chain(error), "a member gives no chunks"),
        }
    }
}

/// Hears why a holder does not give a chunk; an error ends the fetch from it.
pub type NoteRefused<'a> = &'a mut (dyn FnMut(ChunkRef, FetchError) -> Result<(), FetchError> + Send);

/// What came for a chunk that was asked for, or why the holder refuses it.
type ChunkAnswer = Result<bytes::Bytes, FetchError>;

/// Chunks that are asked of one holder, a few ahead of the one that comes next.
struct AskedChunks<'a> {
    of: AskedOf,
    manifest: &'a Manifest,
    share: &'a ChunkShare<'a>,
    under_way: VecDeque<ChunkRef>,
    /// From then on the path is measured: before the first the holder may have looked for the file.
    first_came: Option<Instant>,
}

impl<'a> AskedChunks<'a> {
    fn new(of: AskedOf, manifest: &'a Manifest, share: &'a ChunkShare<'a>) -> Self {
        Self { of, manifest, share, under_way: VecDeque::new(), first_came: None }
    }
}

/// A connection to one holder.
pub struct Fetcher {
    holder: NodeId,
    writer: FrameWriter,
    reader: FrameReader,
    /// Of chunks behind the first of the last call of [`Fetcher::chunks`], and how long they took.
    received_bytes: u64,
    received_in: Duration,
}

impl Fetcher {
    /// Bytes of chunks behind the first that were asked for last, and how long they took, the disks at both
    /// ends included.
    pub fn received(&self) -> (u64, Duration) {
        (self.received_bytes, self.received_in)
    }

    /// Dials the holder at the address that answers first: TCP first, it is the faster path for bulk.
    pub async fn dial(
        endpoint: &Endpoint,
        holder: NodeId,
        addresses: &[SocketAddr],
    ) -> Result<Self, FetchError> {
        let over = |via| addresses.iter().map(move |address| (via, *address));
        let ways: Vec<_> = [Transport::Tcp, Transport::Quic].into_iter().flat_map(over).collect();
        let dialled = dialling::dial(endpoint, holder, &ways, PURPOSE_BULK, DIAL_MAX).await;
        let channel = dialled.unwrap_or(Err(DialError::NotMember { peer: holder }));
        let channel = channel.map_err(|source| FetchError::Dial { holder, source: Box::new(source) })?;
        let (writer, reader) = channel.split(LIMITS);
        let (received_bytes, received_in) = (0, Duration::ZERO);
        Ok(Self { holder, writer, reader, received_bytes, received_in })
    }

    /// Dials a member as the cluster's view has it; an error says why it is not reached.
    pub async fn dial_member(endpoint: &Endpoint, node: &NodeView) -> Result<Self, MemberError> {
        let Holder { node, addresses } = holder_of(node)?;
        Ok(Self::dial(endpoint, node, &addresses).await?)
    }

    /// The manifest of a model, checked against its id.
    pub async fn manifest(&mut self, model: ModelId) -> Result<Manifest, FetchError> {
        let bytes = self.asked(&Ask::Manifest(model), LIMITS.payload_bytes_max.into()).await?;
        let manifest = Manifest::from_bytes(&bytes).map_err(|e| self.wrong(e))?;
        match manifest.root() {
            root if root == model => Ok(manifest),
            other => Err(self.wrong(format!("a manifest of {other} instead of {model}"))),
        }
    }

    /// Which chunks the holder has of a model of a hub, which it is fetching, and which it wants.
    pub async fn held(&mut self, manifest: &Manifest) -> Result<PeerChunks, FetchError> {
        let model = manifest.root();
        // Numbers of chunks take 2 to 10 bytes, and are 8 in memory; a run has one more. A longer list is
        // refused before it is one.
        let lists_bytes_max = 10 * COMING_MAX as u64 + 15 * WANTED_RUNS_MAX as u64;
        let bytes_max = HeldMap::encoded_len(manifest) + lists_bytes_max + 30;
        let bytes = self.asked(&Ask::Held(model), bytes_max).await?;
        let wrong = || self.wrong("no list of chunks");
        if bytes.len() as u64 > bytes_max {
            let len = bytes.len();
            return Err(self.wrong(format!("a list of chunks of {len} bytes, at most {bytes_max} are taken")));
        }
        let (held, coming, wanted): (Vec<u8>, Vec<ChunkRef>, Vec<ChunkRun>) =
            postcard::from_bytes(&bytes).map_err(|_| wrong())?;
        // Short numbers make long lists of few bytes, and each chunk is looked for in all runs.
        if coming.len() > COMING_MAX || wanted.len() > WANTED_RUNS_MAX {
            let (coming, wanted) = (coming.len(), wanted.len());
            return Err(self.wrong(format!("lists of {coming} chunks and of {wanted} runs of chunks")));
        }
        let held = HeldMap::decode(&held, model, manifest).ok_or_else(wrong)?;
        Ok(PeerChunks { held, coming: coming.into_iter().collect(), wanted })
    }

    /// Has the holder go on with the SHA-256 of a file.
    pub async fn digest(
        &mut self,
        model: ModelId,
        first: ChunkRef,
        count: u32,
        state: Sha256State,
    ) -> Result<Digested, FetchError> {
        let bytes = self.asked(&Ask::Digest { model, first, count, state }, 0).await?;
        postcard::from_bytes(&bytes).map_err(|_| self.wrong("no state of a digest"))
    }

    /// Fetches its share of some chunks into `partial`; `progress` is told of each. Every chunk is verified
    /// against the manifest before it is written, as far as that knows it. `refused` hears of each that the
    /// holder refuses or sends wrong, and says whether the others are to come.
    pub async fn chunks(
        &mut self,
        partial: &Arc<PartialModel>,
        share: &ChunkShare<'_>,
        of: AskedOf,
        refused: NoteRefused<'_>,
        progress: &ProgressSender,
    ) -> Result<(), FetchError> {
        (self.received_bytes, self.received_in) = (0, Duration::ZERO);
        let manifest: &Manifest = partial.manifest();
        let mut asked = AskedChunks::new(of, manifest, share);
        while let Some((chunk, answer)) = self.next_chunk(&mut asked).await? {
            let kept = match answer {
                Ok(bytes) => keep(self.holder, partial.clone(), chunk, bytes, progress.clone()).await,
                Err(error) => Err(error),
            };
            share.answered(Instant::now(), chunk, kept.is_ok());
            if let Err(error) = kept {
                refused(chunk, error)?;
            }
        }
        Ok(())
    }

    /// The next of some chunks, unchecked, or why the holder refuses it. Asks for those behind it meanwhile,
    /// and at the end for what others bring too slowly. What others have brought meanwhile is left out.
    async fn next_chunk(
        &mut self,
        asked: &mut AskedChunks<'_>,
    ) -> Result<Option<(ChunkRef, ChunkAnswer)>, FetchError> {
        let (chunk, answer) = loop {
            while asked.under_way.len() < IN_FLIGHT_MAX {
                let Some(chunk) = asked.share.take_next(Instant::now()) else { break };
                self.ask_for(asked, chunk).await?;
            }
            if asked.under_way.is_empty() {
                let Some(chunk) = asked.share.next_overdue().await else { return Ok(None) };
                self.ask_for(asked, chunk).await?;
            }
            let Some(chunk) = asked.under_way.front().copied() else { return Ok(None) };
            let (holder, bytes_max) = (self.holder, asked.manifest.chunk_len(chunk).unwrap_or(0));
            let answer = tokio::select! {
                biased;
                answer = self.answer(bytes_max) => answer,
                gave_nothing = asked.share.relieved(&asked.under_way) => {
                    let reason = "it gave nothing while another has the same chunks".to_owned();
                    return if gave_nothing { Err(FetchError::Broken { holder, reason }) } else { Ok(None) };
                }
            };
            asked.under_way.pop_front();
            let is_over = matches!(&answer, Err(error) if !matches!(error, FetchError::Refused { .. }));
            if is_over || asked.share.owes(chunk) {
                break (chunk, answer);
            }
            asked.share.answered_late(Instant::now());
        };
        let bytes = match answer {
            Err(error @ FetchError::Refused { .. }) => return Ok(Some((chunk, Err(error)))),
            answer => answer?,
        };
        match asked.first_came {
            None => asked.first_came = Some(Instant::now()),
            Some(first) => {
                self.received_bytes = self.received_bytes.saturating_add(bytes.len() as u64);
                self.received_in = first.elapsed();
            }
        }
        Ok(Some((chunk, Ok(bytes))))
    }

    async fn ask_for(&mut self, asked: &mut AskedChunks<'_>, chunk: ChunkRef) -> Result<(), FetchError> {
        self.ask(&asked.of.ask(chunk)).await?;
        asked.under_way.push_back(chunk);
        Ok(())
    }

    /// Where the member has the file with this SHA-256, if it has.
    pub async fn copy_of(&mut self, sha256: [u8; 32]) -> Result<Option<FileCopy>, FetchError> {
        let bytes = self.asked(&Ask::CopyOf(sha256), 0).await?;
        postcard::from_bytes(&bytes).map_err(|_| self.wrong("no place of a file"))
    }

    /// How far the member is with fetching a file whole, if it fetches it.
    pub async fn partial_file(
        &mut self,
        sha256: [u8; 32],
        size: u64,
    ) -> Result<Option<PartialState>, FetchError> {
        let bytes_max = 2 * ChunkBits::encoded_len(size) + 24;
        let bytes = self.asked(&Ask::PartialFile { sha256, size }, bytes_max).await?;
        let wrong = || self.wrong("no state of a file");
        let state: Option<(Vec<u8>, Vec<u8>)> = postcard::from_bytes(&bytes).map_err(|_| wrong())?;
        let Some((held, coming)) = state else { return Ok(None) };
        let bits = |bytes| ChunkBits::from_bytes(bytes, size).ok_or_else(wrong);
        Ok(Some(PartialState { held: bits(held)?, coming: bits(coming)? }))
    }

    /// Gives its share of some chunks to `place`, each verified against the manifest as far as that knows it,
    /// until that takes no more. Those that the member refuses or sends wrong are noted in `refused`.
    pub async fn read<P: FnMut(ChunkRef, bytes::Bytes) -> bool>(
        &mut self,
        (of, manifest): (AskedOf, &Manifest),
        share: &ChunkShare<'_>,
        refused: &mut RefusedChunks,
        place: &mut P,
    ) -> Result<(), FetchError> {
        let mut asked = AskedChunks::new(of, manifest, share);
        while let Some((chunk, answer)) = self.next_chunk(&mut asked).await? {
            let checked = answer.and_then(|came| self.checked(manifest, chunk, came));
            let is_here = checked.is_ok();
            match checked {
                Ok(came) => {
                    if !place(chunk, came) {
                        return Ok(());
                    }
                }
                Err(error) => refused.note(Instant::now(), chunk, error)?,
            }
            share.answered(Instant::now(), chunk, is_here);
        }
        Ok(())
    }

    /// What came, if it is the chunk.
    fn checked(&self, manifest: &Manifest, chunk: ChunkRef, came: bytes::Bytes) -> ChunkAnswer {
        if manifest.chunk_len(chunk) != Some(came.len() as u64) {
            return Err(self.wrong(format!("{chunk} has {} bytes", came.len())));
        }
        if manifest.chunk_hash(chunk).is_some_and(|hash| blake3::hash(&came) != *hash) {
            return Err(self.wrong(format!("{chunk} has another hash")));
        }
        Ok(came)
    }

    /// Asks for a burst of 1 MiB, and measures all but its beginning: bytes, and how long they took.
    pub async fn burst(&mut self) -> Result<(u64, Duration), FetchError> {
        self.ask(&Ask::Burst).await?;
        let until = Instant::now() + BURST_MAX;
        for _ in 0..BURST_OPENING {
            self.answer(BURST_FRAME_BYTES as u64).await?;
        }
        let (begun, mut bytes, mut took) = (Instant::now(), 0u64, Duration::ZERO);
        for _ in BURST_OPENING..BURST_FRAMES {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(frame) = tokio::time::timeout(left, self.answer(BURST_FRAME_BYTES as u64)).await else {
                break;
            };
            bytes += frame?.len().min(BURST_FRAME_BYTES) as u64;
            took = begun.elapsed();
        }
        Ok((bytes, took))
    }

    /// The member's last log lines, encoded.
    pub async fn logs(&mut self, ask: LogAsk) -> Result<bytes::Bytes, FetchError> {
        // Numbers and times are beside the lines.
        self.asked(&Ask::Logs(ask), 2 * LOG_ANSWER_BYTES_MAX as u64).await
    }

    /// Has the member try a device again that is in quarantine; of another nothing comes.
    pub async fn retry_device(&mut self, device: DeviceId) -> Result<(), FetchError> {
        self.asked(&Ask::RetryDevice(device), 0).await.map(drop)
    }

    /// What lists show of a model that the member has.
    pub async fn details(&mut self, model: ModelId) -> Result<SharedDetails, FetchError> {
        let bytes = self.asked(&Ask::Details(model), 0).await?;
        SharedDetails::read(&bytes).map_err(|error| self.wrong(error))
    }

    /// What the member finds on its machine.
    pub async fn checks(&mut self) -> Result<Vec<CheckView>, FetchError> {
        let bytes = self.asked(&Ask::Checks, CHECKS_BYTES_MAX).await?;
        member_checks::read(&bytes).map_err(|error| self.wrong(error))
    }

    /// What came is not what was asked for.
    fn wrong(&self, reason: impl std::fmt::Display) -> FetchError {
        FetchError::Wrong { holder: self.holder, reason: reason.to_string() }
    }

    async fn asked(&mut self, ask: &Ask, bytes_max: u64) -> Result<bytes::Bytes, FetchError> {
        self.ask(ask).await?;
        self.answer(bytes_max).await
    }

    async fn ask(&mut self, ask: &Ask) -> Result<(), FetchError> {
        let bytes = postcard::to_allocvec(ask).unwrap_or_default();
        let sent = self.writer.send(KIND_ASK, &[&bytes]).await;
        sent.map_err(|e| FetchError::Broken { holder: self.holder, reason: e.to_string() })
    }

    /// The next answer. One that is longer than `bytes_max`, and than a refusal may be, is refused by its
    /// head, before any of it is in memory; nothing more comes then.
    async fn answer(&mut self, bytes_max: u64) -> Result<bytes::Bytes, FetchError> {
        let holder = self.holder;
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let payload_bytes_max = bytes_max.clamp(SMALL_ANSWER_BYTES_MAX, LIMITS.payload_bytes_max);
        self.reader.set_limits(FrameLimits { payload_bytes_max });
        let frame = self.reader.next(Some(ANSWER_MAX)).await.map_err(|error| {
            let reason = error.to_string();
            match error {
                FrameError::TooLarge { .. } => self.wrong(reason),
                _ => FetchError::Broken { holder, reason },
            }
        })?;
        match frame.kind {
            KIND_BYTES => Ok(frame.payload),
            KIND_REFUSED => {
                let reason = String::from_utf8_lossy(&frame.payload).chars().take(400).collect();
                Err(FetchError::Refused { holder, reason })
            }
            kind => Err(self.wrong(format!("a frame of kind {kind}"))),
        }
    }
}

/// Where a member is reached, as the cluster's view has it.
pub(crate) fn holder_of(node: &NodeView) -> Result<Holder, MemberError> {
    if node.status.is_gone() {
        return Err(MemberError::Gone);
    }
    let addresses = node.addresses.iter().filter_map(|address| address.parse().ok()).collect();
    let node: NodeId = node.id.parse().map_err(|_| MemberError::NoId)?;
    Ok(Holder { node, addresses })
}

/// Writes a chunk, and tells of it, also where nobody waits for that any more.
async fn keep(
    holder: NodeId,
    partial: Arc<PartialModel>,
    chunk: ChunkRef,
    bytes: bytes::Bytes,
    progress: ProgressSender,
) -> Result<(), FetchError> {
    let write = move || progress.write(&partial, chunk, &bytes, Some(holder));
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error @ exo_store::ChunkError::Store(_))) => Err(FetchError::Disk { reason: chain(&error) }),
        Ok(Err(error)) => Err(FetchError::Wrong { holder, reason: error.to_string() }),
        Err(error) => Err(FetchError::Disk { reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{FakeMember, all_chunks, chunks, demo_and_copy};
    use super::*;

    /// Chunks of the demo model from a member that refuses some and sends others wrong: what came of asking
    /// for all, what is here then, and what the member did not give.
    async fn fetched(
        is_refused: fn(u32) -> bool,
        is_wrong: fn(u32) -> bool,
    ) -> (Result<(), FetchError>, Vec<u32>, RefusedChunks) {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let member = FakeMember::start(move |ask| {
            let Ask::Chunk { model, chunk } = ask else { return (KIND_REFUSED, b"no chunk".to_vec()) };
            let mut bytes = from.read_chunk(model, chunk).unwrap();
            if is_wrong(chunk.index) {
                bytes[0] ^= 1;
            }
            if is_refused(chunk.index) { (KIND_REFUSED, b"damaged".to_vec()) } else { (KIND_BYTES, bytes) }
        });
        let (fetched, refused) = asked_for(&partial, &all_chunks(&partial), member.await).await;
        (fetched, partial.held_chunks().iter().map(|chunk| chunk.index).collect(), refused)
    }

    /// Asks the member for these chunks: what came of that, and which it did not give.
    async fn asked_for(
        partial: &Arc<PartialModel>,
        wanted: &[ChunkRef],
        member: FakeMember,
    ) -> (Result<(), FetchError>, RefusedChunks) {
        let (mut refused, mut fetcher) = (RefusedChunks::default(), member.dialled().await);
        let (all, of) = (SharedChunks::new(wanted), AskedOf::Model(partial.id()));
        let note = &mut |chunk, error| refused.note(Instant::now(), chunk, error);
        let (progress, _told) = progress_channel(partial, Vec::new());
        let fetched = fetcher.chunks(partial, &all.whole(), of, note, &progress).await;
        (fetched, refused)
    }

    #[tokio::test]
    async fn of_a_member_that_does_not_give_two_chunks_all_others_come() {
        let (fetched, held, refused) = fetched(|index| index == 10, |index| index == 20).await;
        fetched.unwrap();
        let expected: Vec<u32> = (0..82).filter(|index| ![10, 20].contains(index)).collect();
        assert_eq!(held, expected);
        let not_given = (0..82).filter(|index| refused.has(ChunkRef { file: 0, index: *index }));
        assert_eq!(not_given.collect::<Vec<u32>>(), [10, 20]);
    }

    #[tokio::test]
    async fn a_member_that_does_not_give_many_chunks_is_given_up() {
        let (fetched, held, _) = fetched(|index| index % 4 == 0, |_| false).await;
        assert!(matches!(fetched, Err(FetchError::TooManyRefused { count: 9, .. })), "{fetched:?}");
        // The ninth is number 32.
        assert_eq!(held.len(), 24, "{held:?}");
    }

    #[tokio::test]
    async fn more_runs_of_chunks_than_a_member_may_want_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (_, partial) = demo_and_copy(folder.path());
        let run = ChunkRun { first: ChunkRef { file: 0, index: 0 }, count: 1 };
        for (runs, is_taken) in [(WANTED_RUNS_MAX, true), (WANTED_RUNS_MAX + 1, false)] {
            let lists = (partial.held(), Vec::<ChunkRef>::new(), vec![run; runs]);
            let answer = postcard::to_allocvec(&lists).unwrap();
            let member = FakeMember::start(move |_| (KIND_BYTES, answer.clone())).await;
            let told = member.dialled().await.held(partial.manifest()).await;
            assert_eq!(told.is_ok(), is_taken, "{runs}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_longer_than_what_was_asked_for_is_refused_by_its_head() {
        let folder = tempfile::tempdir().unwrap();
        let (_, partial) = demo_and_copy(folder.path());
        let (model, state) = (partial.id(), Sha256State::default());
        let longest = 2 * LOG_ANSWER_BYTES_MAX + 1;
        let member = FakeMember::start(move |_| (KIND_BYTES, vec![0; longest])).await;
        let first = ChunkRef { file: 0, index: 0 };
        let logs = LogAsk { level: None, target: None, request: None, after: 0, limit: 1 };
        // Each over a channel of its own: none goes on.
        let errors = [
            member.dialled().await.held(partial.manifest()).await.err(),
            member.dialled().await.digest(model, first, 1, state).await.err(),
            member.dialled().await.copy_of([7; 32]).await.err(),
            member.dialled().await.partial_file([7; 32], 1).await.err(),
            member.dialled().await.burst().await.err(),
            member.dialled().await.logs(logs).await.err(),
            member.dialled().await.retry_device(DeviceId::cpu()).await.err(),
            member.dialled().await.details(model).await.err(),
            member.dialled().await.checks().await.err(),
            {
                let mut fetcher = member.dialled().await;
                let (all, of) = (SharedChunks::new(&[first]), AskedOf::Model(model));
                let note = &mut |_: ChunkRef, error: FetchError| -> Result<(), FetchError> { Err(error) };
                let (progress, _told) = progress_channel(&partial, Vec::new());
                fetcher.chunks(&partial, &all.whole(), of, note, &progress).await.err()
            },
        ];
        for (number, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("question {number} took {longest} bytes"));
            let is_refused = matches!(&error, FetchError::Wrong { reason, .. } if reason.contains("takes"));
            assert!(is_refused, "question {number}: {error}");
        }
        assert_eq!(partial.held_bytes(), 0);
    }

    #[tokio::test]
    async fn of_answers_in_another_order_than_that_of_the_questions_nothing_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let member = FakeMember::start(move |ask| {
            let Ask::Chunk { model, chunk } = ask else { return (KIND_REFUSED, b"no chunk".to_vec()) };
            let other = ChunkRef { file: 0, index: chunk.index ^ 1 };
            (KIND_BYTES, from.read_chunk(model, other).unwrap())
        });
        let (fetched, _) = asked_for(&partial, &chunks(0..20), member.await).await;
        assert!(matches!(fetched, Err(FetchError::TooManyRefused { .. })), "{fetched:?}");
        assert_eq!(partial.held_bytes(), 0);
    }
}
