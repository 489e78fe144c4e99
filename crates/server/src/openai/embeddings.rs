//! `/v1/embeddings`, and the same as Ollama has it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use exo_api::ollama::{OllamaEmbed, OllamaEmbedding, OllamaEmbeddings};
use exo_api::openai::{EmbeddingList, EmbeddingsRequest};
use exo_api::{EmbedRequest, Embeddings};
use exo_types::{Principal, RequestId};

use crate::app::App;
use crate::body::json;
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::generate::read;

/// `POST /v1/embeddings`
pub async fn openai(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = read(&app, id, principal, request, |body, _| Ok(EmbeddingsRequest::parse(body)?)).await?;
    let (model, encoding) = (asked.body.model.clone(), asked.body.encoding);
    let embeddings = embed(&app, Dialect::Embeddings, asked.body.into_embed(asked.context)).await?;
    Ok(json(&EmbeddingList::new(model, encoding, embeddings)))
}

/// `POST /api/embed`
pub async fn ollama(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = read(&app, id, principal, request, |body, _| Ok(OllamaEmbed::parse_embed(body)?)).await?;
    let (model, dialect) = (asked.body.model.clone(), Dialect::OllamaEmbed { asked_in: "input" });
    let embeddings = embed(&app, dialect, asked.body.into_embed(asked.context)).await?;
    Ok(json(&OllamaEmbeddings::new(model, embeddings)))
}

/// `POST /api/embeddings`
pub async fn ollama_older(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked =
        read(&app, id, principal, request, |body, _| Ok(OllamaEmbed::parse_embeddings(body)?)).await?;
    let dialect = Dialect::OllamaEmbed { asked_in: "prompt" };
    let embeddings = embed(&app, dialect, asked.body.into_embed(asked.context)).await?;
    Ok(json(&OllamaEmbedding::new(embeddings)))
}

/// The node's answer. Each wait in it is bounded by the node; a client that goes away, or whoever ends the
/// request, drops it, which cancels it.
async fn embed(app: &App, dialect: Dialect, request: EmbedRequest) -> Result<Embeddings, ApiError> {
    let mut tracked = app.requests.track_embedding(&request);
    let made = tokio::select! {
        biased;
        () = tracked.cancelled.cancelled() => Err(ApiError::cancelled()),
        () = app.closing.cancelled() => Err(ApiError::shutting_down(None)),
        made = app.facade.embed(request) => made.map_err(|error| ApiError::of(dialect, error)),
    };
    match &made {
        Ok(embeddings) => tracked.embedded(embeddings),
        Err(error) => tracked.failed(error),
    }
    made
}
