//! Answers to what members ask over a bulk channel: from the store, the log and the machine, or passed on
//! to the loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_accelerators::chain;
use exo_hub::BlockError;
use exo_machine::{Answer, Question};
use exo_store::{ChunkError, ChunkRef, StoreError};
use exo_transport::{Channel, SendError};
use exo_types::{ModelId, NodeId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bulk::{
    ASK_LIMITS, Ask, BURST_FRAME_BYTES, BURST_FRAMES, COMING_MAX, DIGEST_CHUNKS_MAX, KIND_ASK, KIND_BYTES,
    KIND_REFUSED, LIMITS, LOG_ANSWER_BYTES_MAX, WANTED_RUNS_MAX,
};
use crate::doctor::{Doctor, DoctorError};
use crate::events::{DeviceEvent, Event, EventSender};
use crate::file_copies;
use crate::hub_bytes::HubBytesError;
use crate::library::Library;
use crate::library_error::LibraryError;
use crate::log_capture::LogCapture;
use crate::questions::{ANSWER_MAX, ask_node};

/// An asker that says nothing for this long is hung up on.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Bytes of answers that are being prepared or sent, of all members and of one: a member may ask over many
/// channels, and take its answers as slowly as it likes.
const ANSWERS_BYTES_MAX: usize = 512 << 20;
const ANSWERS_OF_ONE_BYTES_MAX: usize = ANSWERS_BYTES_MAX / 4;
/// For room among them. The member waits for 30 s in all, of which a chunk from the hub may take 25.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(4);
/// For a member to take an answer, however it does: it gives one up sooner, and room waits for no other.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);
/// Of a refusal; it may have the reasons of others in it.
const REFUSAL_CHARS_MAX: usize = 4000;
/// What an answer counts at least.
const SMALL_ANSWER_BYTES: usize = 1 << 20;

/// Room for answers to one member, within that of the node.
#[derive(Clone)]
pub struct AnswerRoom {
    node: Arc<Semaphore>,
    member: Arc<Semaphore>,
}

impl AnswerRoom {
    /// The room of a node.
    pub fn of_node() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(ANSWERS_BYTES_MAX))
    }

    /// The room of one of its members.
    pub fn of_member(node: Arc<Semaphore>) -> Self {
        Self { node, member: Arc::new(Semaphore::new(ANSWERS_OF_ONE_BYTES_MAX)) }
    }

    /// Takes room for an answer, and waits for it a while.
    async fn take(&self, bytes: usize) -> Result<[OwnedSemaphorePermit; 2], Refusal> {
        let bytes = bytes.clamp(1, ANSWERS_OF_ONE_BYTES_MAX);
        // It is far below four gigabytes.
        let permits = bytes as u32;
        let taken = async {
            let of_member = self.member.clone().acquire_many_owned(permits).await.ok()?;
            Some([of_member, self.node.clone().acquire_many_owned(permits).await.ok()?])
        };
        let taken = tokio::time::timeout(ROOM_WAIT_MAX, taken).await.ok().flatten();
        taken.ok_or(Refusal::NoRoom { bytes })
    }
}

/// Answers one member's questions until it hangs up.
pub async fn serve(
    channel: Channel,
    room: AnswerRoom,
    library: Arc<Library>,
    log: LogCapture,
    doctor: Doctor,
    events: EventSender,
) {
    let peer = channel.peer;
    let (mut writer, mut reader) = channel.split(LIMITS);
    reader.set_limits(ASK_LIMITS);
    loop {
        let frame = match reader.next(Some(IDLE_MAX)).await {
            Ok(frame) => frame,
            Err(error) => return tracing::trace!(%peer, %error, "no further question"),
        };
        let ask = postcard::from_bytes::<Ask>(&frame.payload).ok().filter(|_| frame.kind == KIND_ASK);
        let Some(ask) = ask else {
            tracing::warn!(%peer, kind = frame.kind, "a question that is none; hanging up");
            return;
        };
        if matches!(ask, Ask::Burst) {
            let frame = vec![0; BURST_FRAME_BYTES];
            let burst = async {
                for _ in 0..BURST_FRAMES {
                    writer.send(KIND_BYTES, &[&frame]).await?;
                }
                Ok::<(), SendError>(())
            };
            if !is_taken(peer, TAKEN_WITHIN, burst).await {
                return;
            }
            continue;
        }
        if let Ask::RetryDevice(device) = ask {
            // Waits while the loop is behind.
            if events.control(Event::Device(DeviceEvent::Retry(device))).await.is_err() {
                return tracing::trace!(%peer, "the node ends");
            }
            if !is_taken(peer, TAKEN_WITHIN, writer.send(KIND_BYTES, &[])).await {
                return;
            }
            continue;
        }
        let mut taken = None;
        let answer = match ask {
            Ask::Details(model) => library.tell_of(model).await.map_err(Refusal::from).and_then(json),
            Ask::Checks => doctor.look().await.map_err(Refusal::from).and_then(json),
            ask => looked_up(ask, &room, library.clone(), log.clone(), &mut taken).await,
        };
        if let Err(Refusal::Chunk(ChunkError::Damaged { model, chunk })) = answer {
            repair_soon(library.clone(), events.clone(), model, chunk);
        }
        let (kind, bytes) = match answer {
            Ok(bytes) => (KIND_BYTES, bytes),
            Err(refusal) => {
                (KIND_REFUSED, refusal.to_string().chars().take(REFUSAL_CHARS_MAX).collect::<String>().into())
            }
        };
        let has_taken = is_taken(peer, TAKEN_WITHIN, writer.send(kind, &[&bytes])).await;
        drop(taken);
        if !has_taken {
            return;
        }
    }
}

/// Whether a member takes what is sent, in this time.
async fn is_taken(
    peer: NodeId,
    within: Duration,
    sending: impl Future<Output = Result<(), SendError>>,
) -> bool {
    match tokio::time::timeout(within, sending).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => tracing::trace!(%peer, %error, "an answer was not taken"),
        Err(_) => {
            let within_s = within.as_secs();
            tracing::debug!(%peer, within_s, "an answer was not taken in its time");
        }
    }
    false
}

/// Looks an answer up once there is room for it, which it has for as long as `taken` is there.
async fn looked_up(
    ask: Ask,
    room: &AnswerRoom,
    library: Arc<Library>,
    log: LogCapture,
    taken: &mut Option<[OwnedSemaphorePermit; 2]>,
) -> Result<Vec<u8>, Refusal> {
    let of = library.clone();
    let measured = tokio::task::spawn_blocking(move || (bytes_about(&of, &ask), ask));
    let Ok((bytes, ask)) = measured.await else { return Err(Refusal::Internal) };
    *taken = Some(room.take(bytes).await?);
    let looked_up = tokio::task::spawn_blocking(move || look_up(&library, &log, &ask));
    looked_up.await.unwrap_or(Err(Refusal::Internal))
}

/// How long an answer will be, about. What is not there is refused with a few words.
fn bytes_about(library: &Library, ask: &Ask) -> usize {
    let manifest = |model| library.store().manifest(model).ok();
    let bytes = match ask {
        Ask::Chunk { model, chunk } | Ask::Relay { model, chunk } => {
            manifest(*model).and_then(|manifest| manifest.chunk_len(*chunk)).unwrap_or(0)
        }
        Ask::Manifest(model) | Ask::Held(model) => manifest(*model).map_or(0, |manifest| {
            let of_file = |file: &exo_store::FileEntry| 256 + 32 * file.chunks.len() + 16 * file.shared.len();
            manifest.files.iter().map(of_file).sum::<usize>() as u64
        }),
        Ask::Logs(_) => LOG_ANSWER_BYTES_MAX as u64,
        _ => 0,
    };
    usize::try_from(bytes).unwrap_or(usize::MAX).max(SMALL_ANSWER_BYTES)
}

/// Fetches again what is damaged here of a model, from whoever has it.
fn repair_soon(library: Arc<Library>, events: EventSender, model: ModelId, lost: ChunkRef) {
    tokio::spawn(async move {
        let question = Question::Resolve { model: model.to_full() };
        let Ok(Answer::Resolved(Ok(resolved))) = ask_node(&events, question, ANSWER_MAX).await else {
            return;
        };
        if let Err(error) = library.repair(model, lost, &resolved.holders).await {
            tracing::warn!(%model, error = chain(&error), "what is damaged here stays so until the model is loaded");
        }
    });
}

/// Why a member is not given what it asks for, as it reads it: causes that only concern this disk are left
/// out.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error("not held")]
    NotHeld,
    #[error("{count} chunks at once, at most {max}")]
    TooManyChunks { count: u32, max: u32 },
    /// What a hub or its line says.
    #[error("{}", chain(.0))]
    Hub(#[from] HubBytesError),
    #[error("{}", chain(.0))]
    Library(#[from] LibraryError),
    #[error("the answer cannot be written: {0}")]
    Postcard(#[from] postcard::Error),
    #[error("the answer cannot be written: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    #[error(
        "there was no room for an answer of {bytes} bytes within {} s, as others are still being taken",
        ROOM_WAIT_MAX.as_secs()
    )]
    NoRoom { bytes: usize },
    #[error("internal error")]
    Internal,
}

fn json(told: impl serde::Serialize) -> Result<Vec<u8>, Refusal> {
    Ok(serde_json::to_vec(&told)?)
}

fn look_up(library: &Library, log: &LogCapture, ask: &Ask) -> Result<Vec<u8>, Refusal> {
    let store = library.store();
    match ask {
        Ask::Manifest(model) => Ok(store.manifest(*model)?.to_bytes()),
        Ask::Burst | Ask::RetryDevice(_) | Ask::Details(_) | Ask::Checks => Ok(Vec::new()),
        Ask::Logs(ask) => Ok(postcard::to_allocvec(&log.answer(ask))?),
        Ask::Chunk { model, chunk } => Ok(store.read_chunk(*model, *chunk)?),
        Ask::Held(model) => {
            let held = store.held(*model)?;
            let mut coming = library.hub().coming(*model);
            coming.truncate(COMING_MAX);
            let mut wanted = library.hub().wanted(*model, Instant::now());
            wanted.truncate(WANTED_RUNS_MAX);
            Ok(postcard::to_allocvec(&(held, coming, wanted))?)
        }
        Ask::Digest { model, first, count, state } => {
            let partial = store.partial(*model)?.ok_or(Refusal::NotHeld)?;
            if *count > DIGEST_CHUNKS_MAX {
                return Err(Refusal::TooManyChunks { count: *count, max: DIGEST_CHUNKS_MAX });
            }
            Ok(postcard::to_allocvec(&partial.digest(*first, *count, *state)?)?)
        }
        Ask::CopyOf(sha256) => Ok(postcard::to_allocvec(&file_copies::find(store, sha256)?)?),
        Ask::PartialFile { sha256, size } => {
            let state = library.partial_files().state(sha256, *size);
            let bits = state.map(|state| (state.held.into_bytes(), state.coming.into_bytes()));
            Ok(postcard::to_allocvec(&bits)?)
        }
        Ask::PartialBlock { sha256, block } => Ok(library.partial_files().block(sha256, *block)?),
        Ask::Relay { model, chunk } => match store.read_chunk(*model, *chunk) {
            Ok(bytes) => Ok(bytes),
            Err(_) => {
                let manifest = store.manifest(*model)?;
                Ok(library.hub().relay(&manifest, *chunk)?)
            }
        },
    }
}

#[cfg(test)]
mod tests;
