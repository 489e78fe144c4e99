//! `/v1/embeddings`, and the same as Ollama has it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use exo_api::ollama::{OllamaEmbed, OllamaEmbedding, OllamaEmbeddings};
use exo_api::openai::{EmbeddingList, EmbeddingsRequest};
use exo_api::{EmbedRequest, Embeddings, GenerateError, SignOfLife};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::App;
use crate::body::json;
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::generate::{PostedRequest, read};
use crate::source::STILL_MIN;

/// `POST /v1/embeddings`
pub async fn openai(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let asked = read(&app, posted, |body, _| Ok(EmbeddingsRequest::parse(body)?)).await?;
    let (model, encoding) = (asked.body.model.clone(), asked.body.encoding);
    let embeddings = embed(&app, Dialect::Embeddings, asked.body.into_embed(asked.context)).await?;
    Ok(json(&EmbeddingList::new(model, encoding, embeddings)))
}

/// `POST /api/embed`
pub async fn ollama(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let asked = read(&app, posted, |body, _| Ok(OllamaEmbed::parse_embed(body)?)).await?;
    let (model, dialect) = (asked.body.model.clone(), Dialect::OllamaEmbed { asked_in: "input" });
    let embeddings = embed(&app, dialect, asked.body.into_embed(asked.context)).await?;
    Ok(json(&OllamaEmbeddings::new(model, embeddings)))
}

/// `POST /api/embeddings`
pub async fn ollama_older(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let asked = read(&app, posted, |body, _| Ok(OllamaEmbed::parse_embeddings(body)?)).await?;
    let dialect = Dialect::OllamaEmbed { asked_in: "prompt" };
    let embeddings = embed(&app, dialect, asked.body.into_embed(asked.context)).await?;
    Ok(json(&OllamaEmbedding::new(embeddings)))
}

/// The node's answer, or an error when it falls silent. A client that goes away, or whoever ends the
/// request, drops it, which cancels it.
async fn embed(app: &App, dialect: Dialect, request: EmbedRequest) -> Result<Embeddings, ApiError> {
    let mut tracked = app.requests.track_embedding(&request);
    let (heard, silence_max) = (Arc::new(watch::Sender::new(())), app.options.silence_max);
    let signs = heard.subscribe();
    let sign: SignOfLife = {
        let heard = heard.clone();
        Box::new(move || heard.send_replace(()))
    };
    let made = tokio::select! {
        biased;
        () = tracked.cancelled.cancelled() => Err(ApiError::cancelled()),
        () = app.closing.cancelled() => Err(ApiError::shutting_down(None)),
        made = app.facade.embed(request, sign) => made.map_err(|error| ApiError::of(dialect, error)),
        () = silence(signs, silence_max) => Err(ApiError::of(dialect, silent(silence_max))),
    };
    match &made {
        Ok(embeddings) => tracked.embedded(embeddings),
        Err(error) => tracked.failed(error),
    }
    made
}

/// Ends when no sign of life came for so long. What is later than that by much was not silence: the process
/// slept, or was stopped, and heard nobody meanwhile.
async fn silence(mut signs: watch::Receiver<()>, silence_max: Duration) {
    loop {
        let due = Instant::now() + silence_max;
        let is_heard = tokio::time::timeout_at(due, signs.changed()).await.is_ok();
        if !is_heard && due.elapsed() < STILL_MIN {
            return;
        }
    }
}

fn silent(silence_max: Duration) -> GenerateError {
    let waited_ms = u64::try_from(silence_max.as_millis()).unwrap_or(u64::MAX);
    let reason = "the node gave no sign that it is at work on the vectors; ask again, and see `exo status`";
    GenerateError::Deadline { waited_ms, reason: reason.to_owned() }
}
