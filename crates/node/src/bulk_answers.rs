//! Answers to what members ask over a bulk channel: from the store, the log and the machine, or passed on
//! to the loop.

use std::sync::Arc;
use std::time::Duration;

use exo_accelerators::chain;
use exo_machine::{Answer, Question};
use exo_store::{ChunkError, ChunkRef, StoreError};
use exo_transport::Channel;
use exo_types::ModelId;

use crate::bulk::{
    ASK_LIMITS, Ask, BURST_FRAME_BYTES, BURST_FRAMES, COMING_MAX, DIGEST_CHUNKS_MAX, KIND_BYTES,
    KIND_REFUSED, LIMITS,
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

/// Answers one member's questions until it hangs up.
pub async fn serve(
    channel: Channel,
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
        let Ok(ask) = postcard::from_bytes::<Ask>(&frame.payload) else {
            tracing::warn!(%peer, "a question that is none; hanging up");
            return;
        };
        if matches!(ask, Ask::Burst) {
            let frame = vec![0; BURST_FRAME_BYTES];
            for _ in 0..BURST_FRAMES {
                if let Err(error) = writer.send(KIND_BYTES, &[&frame]).await {
                    return tracing::trace!(%peer, %error, "a burst was not taken");
                }
            }
            continue;
        }
        if let Ask::RetryDevice(device) = ask {
            // Waits while the loop is behind.
            let is_told = events.control(Event::Device(DeviceEvent::Retry(device))).await.is_ok();
            if !is_told || writer.send(KIND_BYTES, &[]).await.is_err() {
                return tracing::trace!(%peer, is_told, "an answer about a device was not taken");
            }
            continue;
        }
        let answer = match ask {
            Ask::Details(model) => library.tell_of(model).await.map_err(Refusal::from).and_then(json),
            Ask::Checks => doctor.look().await.map_err(Refusal::from).and_then(json),
            ask => {
                let (library, log) = (library.clone(), log.clone());
                let looked_up = tokio::task::spawn_blocking(move || look_up(&library, &log, &ask));
                looked_up.await.unwrap_or(Err(Refusal::Internal))
            }
        };
        let sent = match answer {
            Ok(bytes) => writer.send(KIND_BYTES, &[&bytes]).await,
            Err(refusal) => {
                if let Refusal::Chunk(ChunkError::Damaged { model, chunk }) = refusal {
                    repair_soon(library.clone(), events.clone(), model, chunk);
                }
                writer.send(KIND_REFUSED, &[refusal.to_string().as_bytes()]).await
            }
        };
        if let Err(error) = sent {
            return tracing::trace!(%peer, %error, "an answer was not taken");
        }
    }
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
            Ok(postcard::to_allocvec(&(held, coming))?)
        }
        Ask::Digest { model, first, count, state } => {
            let partial = store.partial(*model)?.ok_or(Refusal::NotHeld)?;
            if *count > DIGEST_CHUNKS_MAX {
                return Err(Refusal::TooManyChunks { count: *count, max: DIGEST_CHUNKS_MAX });
            }
            Ok(postcard::to_allocvec(&partial.digest(*first, *count, *state)?)?)
        }
        Ask::CopyOf(sha256) => Ok(postcard::to_allocvec(&file_copies::find(store, sha256)?)?),
        Ask::Relay { model, chunk } => match store.read_chunk(*model, *chunk) {
            Ok(bytes) => Ok(bytes),
            Err(_) => {
                let manifest = store.manifest(*model)?;
                Ok(library.hub().relay(&manifest, *chunk)?)
            }
        },
    }
}
