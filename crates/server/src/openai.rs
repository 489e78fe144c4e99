//! `/v1/*` as OpenAI has it: chat completions and completions.

pub mod embeddings;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use exo_api::openai::{ChatRequest, CompletionRequest};
use exo_types::{Principal, RequestId};

use crate::app::App;
use crate::chat::{ChatChunks, ChatWhole};
use crate::completion::{CompletionChunks, CompletionWhole};
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::generate::{IncomingRequest, head, read, stream, whole};
use crate::resumed::Resumed;
use crate::ticket::recorded;

/// `POST /v1/chat/completions`
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let chat = ChatRequest::parse(body)?;
        Ok((recorded(chat.common.streams(), text), chat))
    };
    let IncomingRequest { body: (record, chat), context, origin, lease: _lease } =
        read(&app, id, principal, request, take).await?;
    let (streams, include_usage) = (chat.common.streams(), chat.common.includes_usage());
    let request = chat.into_generate(context)?;
    let (head, logprobs) = (head(&request, origin.created), request.sampling.logprobs.is_some());
    let ticket = origin.ticket(&app, Resumed::Chat, &request, record)?;
    if streams && !ticket.is_whole {
        stream(&app, Dialect::Chat, request, ChatChunks::new(head, logprobs, include_usage), ticket).await
    } else {
        whole(&app, Dialect::Chat, request, ChatWhole::new(head, logprobs), ticket).await
    }
}

/// `POST /v1/completions`
pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let completion = CompletionRequest::parse(body)?;
        Ok((recorded(completion.common.streams(), text), completion))
    };
    let IncomingRequest { body: (record, completion), context, origin, lease: _lease } =
        read(&app, id, principal, request, take).await?;
    let (streams, include_usage) = (completion.common.streams(), completion.common.includes_usage());
    let request = completion.into_generate(context)?;
    let (head, logprobs) = (head(&request, origin.created), request.sampling.logprobs.is_some());
    let ticket = origin.ticket(&app, Resumed::Completion, &request, record)?;
    if streams && !ticket.is_whole {
        let chunks = CompletionChunks::new(head, logprobs, include_usage);
        stream(&app, Dialect::Completion, request, chunks, ticket).await
    } else {
        whole(&app, Dialect::Completion, request, CompletionWhole::new(head, logprobs), ticket).await
    }
}

/// Paths that clients build behind a base URL.
const PATHS: [&str; 9] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/models",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
    "/api/tags",
];

/// The path that has this one's end, where the base URL has too much or too little in front of it.
fn meant_by(path: &str) -> Option<&'static str> {
    let path = path.trim_end_matches('/');
    PATHS.into_iter().find(|known| path.ends_with(known) || (path.len() > 1 && known.ends_with(path)))
}

/// What has no route.
pub fn not_found(request: &Request) -> ApiError {
    let path = request.uri().path();
    let meant = meant_by(path).map(|meant| {
        format!("; did you mean {meant}? The base URL ends in /v1 for OpenAI's clients, and has no path for Anthropic's and Ollama's")
    });
    let what = format!("there is no {} {path:.200}{}", request.method(), meant.unwrap_or_default());
    ApiError::invalid(StatusCode::NOT_FOUND, "no_such_route", what)
}

/// What has a route, but not for this method.
pub async fn method_not_allowed(request: Request) -> ApiError {
    let path = request.uri().path();
    // OpenAI's, and between the routes of one response.
    let instead = match path {
        "/v1/responses/input_tokens" => {
            "; there is `POST /tokenize`, and `usage` of an answer counts its input"
        }
        "/v1/responses/compact" => {
            "; with `truncation: \"auto\"` the oldest turns are left out where a context is full"
        }
        _ => "",
    };
    let what = format!("{path:.200} does not take {}{instead}", request.method());
    ApiError::invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what)
}
