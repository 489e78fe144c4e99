//! Answers to what members ask over a bulk channel: from the store and the log, or passed on to the loop.

use std::sync::Arc;
use std::time::Duration;

use exo_accelerators::chain;
use exo_transport::Channel;

use crate::bulk::{
    ASK_LIMITS, Ask, BURST_FRAME_BYTES, BURST_FRAMES, COMING_MAX, DIGEST_CHUNKS_MAX, KIND_BYTES,
    KIND_REFUSED, LIMITS,
};
use crate::events::{DeviceEvent, Event, EventSender};
use crate::library::Library;
use crate::log_capture::LogCapture;

/// An asker that says nothing for this long is hung up on.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Answers one member's questions until it hangs up.
pub async fn serve(channel: Channel, library: Arc<Library>, log: LogCapture, events: EventSender) {
    let peer = channel.peer;
    let (mut writer, mut reader) = channel.split(LIMITS);
    reader.set_limits(ASK_LIMITS);
    while let Ok(frame) = reader.next(Some(IDLE_MAX)).await {
        let Ok(ask) = postcard::from_bytes::<Ask>(&frame.payload) else {
            tracing::warn!(%peer, "a question that is none; hanging up");
            return;
        };
        if matches!(ask, Ask::Burst) {
            let frame = vec![0; BURST_FRAME_BYTES];
            for _ in 0..BURST_FRAMES {
                if writer.send(KIND_BYTES, &[&frame]).await.is_err() {
                    return;
                }
            }
            continue;
        }
        if let Ask::RetryDevice(device) = ask {
            // Waits while the loop is behind.
            let is_told = events.control(Event::Device(DeviceEvent::Retry(device))).await.is_ok();
            if !is_told || writer.send(KIND_BYTES, &[]).await.is_err() {
                return;
            }
            continue;
        }
        if let Ask::Details(model) = ask {
            let told = library.tell_of(model).await.map_err(|error| chain(&error));
            let told = told.and_then(|told| serde_json::to_vec(&told).map_err(|error| error.to_string()));
            let sent = match told {
                Ok(bytes) => writer.send(KIND_BYTES, &[&bytes]).await,
                Err(reason) => writer.send(KIND_REFUSED, &[reason.as_bytes()]).await,
            };
            if sent.is_err() {
                return;
            }
            continue;
        }
        let (library, log) = (library.clone(), log.clone());
        let answer = tokio::task::spawn_blocking(move || look_up(&library, &log, &ask)).await;
        let sent = match answer {
            Ok(Ok(bytes)) => writer.send(KIND_BYTES, &[&bytes]).await,
            Ok(Err(reason)) => writer.send(KIND_REFUSED, &[reason.as_bytes()]).await,
            Err(_) => writer.send(KIND_REFUSED, &[b"internal error"]).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

fn look_up(library: &Library, log: &LogCapture, ask: &Ask) -> Result<Vec<u8>, String> {
    let store = library.store();
    match ask {
        Ask::Manifest(model) => match store.manifest(*model) {
            Ok(manifest) => Ok(manifest.to_bytes()),
            Err(e) => Err(e.to_string()),
        },
        Ask::Burst | Ask::RetryDevice(_) | Ask::Details(_) => Ok(Vec::new()),
        Ask::Logs(ask) => postcard::to_allocvec(&log.answer(ask)).map_err(|e| e.to_string()),
        Ask::Chunk { model, chunk } => store.read_chunk(*model, *chunk).map_err(|e| e.to_string()),
        Ask::Held(model) => {
            let held = store.held(*model).map_err(|e| e.to_string())?;
            let mut coming = library.hub().coming(*model);
            coming.truncate(COMING_MAX);
            postcard::to_allocvec(&(held, coming)).map_err(|e| e.to_string())
        }
        Ask::Digest { model, first, count, state } => {
            let partial = store.partial(*model).map_err(|e| e.to_string())?.ok_or("not held")?;
            if *count > DIGEST_CHUNKS_MAX {
                return Err(format!("{count} chunks at once, at most {DIGEST_CHUNKS_MAX}"));
            }
            let digested = partial.digest(*first, *count, *state).map_err(|e| e.to_string())?;
            postcard::to_allocvec(&digested).map_err(|e| e.to_string())
        }
        Ask::Relay { model, chunk } => match store.read_chunk(*model, *chunk) {
            Ok(bytes) => Ok(bytes),
            Err(_) => {
                let manifest = store.manifest(*model).map_err(|e| e.to_string())?;
                library.hub().relay(&manifest, *chunk).map_err(|e| chain(&e))
            }
        },
    }
}
