//! `/v1/embeddings`, and the same as Ollama has it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use exo_api::ollama::{OllamaEmbed, OllamaEmbedding, OllamaEmbeddings};
use exo_api::openai::{EmbeddingList, EmbeddingsRequest, Encoding};
use exo_api::{EmbedRequest, Embeddings, GenerateError, SignOfLife};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::App;
use crate::backlog::Collected;
use crate::body::json;
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::generate::{PostedRequest, read};
use crate::source::STILL_MIN;

/// How many bytes are held for vectors of so many bytes until their answer is written.
type HeldBytes = fn(usize) -> usize;

/// `POST /v1/embeddings`
pub async fn openai(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let asked = read(&app, posted, |body, _| Ok(EmbeddingsRequest::parse(body)?)).await?;
    let (model, encoding) = (asked.body.model.clone(), asked.body.encoding);
    let held: HeldBytes = match encoding {
        Encoding::Float => held_as_numbers,
        Encoding::Base64 => held_as_base64,
    };
    let request = asked.body.into_embed(asked.context);
    let (embeddings, _room) = embed(&app, Dialect::Embeddings, request, held).await?;
    Ok(json(&EmbeddingList::new(model, encoding, embeddings)))
}

/// `POST /api/embed`
pub async fn ollama(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let asked = read(&app, posted, |body, _| Ok(OllamaEmbed::parse_embed(body)?)).await?;
    let (model, dialect) = (asked.body.model.clone(), Dialect::OllamaEmbed { asked_in: "input" });
    let request = asked.body.into_embed(asked.context);
    let (embeddings, _room) = embed(&app, dialect, request, held_as_numbers).await?;
    Ok(json(&OllamaEmbeddings::new(model, embeddings)))
}

/// `POST /api/embeddings`
pub async fn ollama_older(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let asked = read(&app, posted, |body, _| Ok(OllamaEmbed::parse_embeddings(body)?)).await?;
    let dialect = Dialect::OllamaEmbed { asked_in: "prompt" };
    let request = asked.body.into_embed(asked.context);
    let (embeddings, _room) = embed(&app, dialect, request, held_as_numbers).await?;
    Ok(json(&OllamaEmbedding::new(embeddings)))
}

/// The node's answer with the room that it takes, or an error when there is none or the node falls silent. A
/// client that goes away, or whoever ends the request, drops it, which cancels it.
async fn embed(
    app: &App,
    dialect: Dialect,
    request: EmbedRequest,
    held: HeldBytes,
) -> Result<(Embeddings, Collected), ApiError> {
    let mut tracked = app.requests.track_embedding(&request);
    let (heard, silence_max) = (Arc::new(watch::Sender::new(0)), app.options.silence_max);
    let signs = heard.subscribe();
    let sign: SignOfLife = {
        let heard = heard.clone();
        Box::new(move |bytes| heard.send_modify(|made| *made = bytes))
    };
    let mut room = Collected::new(&app.room);
    let made = tokio::select! {
        biased;
        () = tracked.cancelled.cancelled() => Err(ApiError::cancelled()),
        () = app.closing.cancelled() => Err(ApiError::shutting_down(None)),
        made = app.facade.embed(request, sign) => made.map_err(|error| ApiError::of(dialect, error)),
        refusal = watch_over(signs, silence_max, &mut room, held) => {
            Err(refusal.unwrap_or_else(|| ApiError::of(dialect, silent(silence_max))))
        }
    };
    let elements = |made: &Embeddings| made.vectors.iter().map(Vec::len).sum::<usize>();
    let made = made.and_then(|made| {
        room.add_up_to(held(elements(&made) * size_of::<f32>()))?;
        Ok(made)
    });
    match &made {
        Ok(embeddings) => tracked.embedded(embeddings),
        Err(error) => tracked.failed(error),
    }
    Ok((made?, room))
}

/// Takes room for vectors as they are made. Ends with a refusal when there is none, and without one when no
/// sign of life came for so long. What is later than that by much was not silence: the process slept, or was
/// stopped, and heard nobody meanwhile.
async fn watch_over(
    mut signs: watch::Receiver<usize>,
    silence_max: Duration,
    room: &mut Collected,
    held: HeldBytes,
) -> Option<ApiError> {
    loop {
        let due = Instant::now() + silence_max;
        let is_heard = tokio::time::timeout_at(due, signs.changed()).await.is_ok();
        if !is_heard && due.elapsed() < STILL_MIN {
            return None;
        }
        let made = *signs.borrow();
        if let Err(refusal) = room.add_up_to(held(made)) {
            return Some(refusal);
        }
    }
}

/// The vectors, and in the answer each number of four bytes as a text of about twelve.
fn held_as_numbers(vectors_bytes: usize) -> usize {
    vectors_bytes.saturating_mul(4)
}

/// Vectors in base64, a third larger, which they are turned into one by one, and the same again in the
/// answer.
fn held_as_base64(vectors_bytes: usize) -> usize {
    vectors_bytes.saturating_mul(8) / 3
}

fn silent(silence_max: Duration) -> GenerateError {
    let waited_ms = u64::try_from(silence_max.as_millis()).unwrap_or(u64::MAX);
    let reason = "the node gave no sign that it is at work on the vectors; ask again, and see `exo status`";
    GenerateError::Deadline { waited_ms, reason: reason.to_owned() }
}
