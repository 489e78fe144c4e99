//! `/v1/*` as OpenAI has it: chat completions and completions.

pub mod embeddings;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use exo_api::endpoints::ENDPOINTS;
use exo_api::openai::{ChatRequest, CompletionRequest};

use crate::app::App;
use crate::chat::{ChatChunks, ChatWhole};
use crate::completion::{CompletionChunks, CompletionWhole};
use crate::dialect::Dialect;
use crate::errors::ApiError;
use crate::generate::{IncomingRequest, PostedRequest, head, read, stream, whole};
use crate::resumed::Resumed;
use crate::ticket::recorded;

/// `POST /v1/chat/completions`
pub async fn chat(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let chat = ChatRequest::parse(body)?;
        Ok((recorded(chat.common.streams(), text), chat))
    };
    let IncomingRequest { body: (record, chat), context, origin, lease: _lease } =
        read(&app, posted, take).await?;
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
pub async fn completion(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let completion = CompletionRequest::parse(body)?;
        Ok((recorded(completion.common.streams(), text), completion))
    };
    let IncomingRequest { body: (record, completion), context, origin, lease: _lease } =
        read(&app, posted, take).await?;
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

/// So many bytes of a path say which one was begun: `/v1/cha`.
const BEGUN_BYTES_MIN: usize = 7;

/// What a path was probably to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meant {
    /// This path: it has a slash too many, capitals, or lacks its end.
    Path(&'static str),
    /// The path that has this one's end: the base URL has too much or too little in front of it.
    BaseUrl(&'static str),
}

fn meant_by(path: &str) -> Option<Meant> {
    let path = path.trim_end_matches('/').to_ascii_lowercase();
    let is_end = |known: &&str| path.ends_with(known) || (path.len() > 1 && known.ends_with(&path));
    let is_begun = |known: &&str| path.len() >= BEGUN_BYTES_MIN && known.starts_with(&path);
    let written = ENDPOINTS.iter().map(|endpoint| endpoint.path).find(|known| *known == path);
    let written = written.map(Meant::Path);
    let of_base = || PATHS.into_iter().find(is_end).map(Meant::BaseUrl);
    let begun = || PATHS.into_iter().find(is_begun).map(Meant::Path);
    written.or_else(of_base).or_else(begun)
}

/// What has no route.
pub fn not_found(request: &Request) -> ApiError {
    let path = request.uri().path();
    let meant = match meant_by(path) {
        None => String::new(),
        Some(Meant::Path(meant)) => format!("; did you mean {meant}?"),
        Some(Meant::BaseUrl(meant)) => format!(
            "; did you mean {meant}? The base URL ends in /v1 for OpenAI's clients, and has no path for Anthropic's and Ollama's"
        ),
    };
    let what = format!("there is no {} {path:.200}{meant}", request.method());
    ApiError::invalid(StatusCode::NOT_FOUND, "no_such_route", what)
}

/// What has a route, but not for this method.
pub async fn method_not_allowed(request: Request) -> ApiError {
    let path = request.uri().path();
    // OpenAI's, and between the routes of one response.
    let instead = match path == "/v1/responses/compact" {
        true => "; with `truncation: \"auto\"` the oldest turns are left out where a context is full",
        false => "",
    };
    let what = format!("{path:.200} does not take {}{instead}", request.method());
    ApiError::invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_was_to_be_is_said_and_of_what_could_be_anything_nothing() {
        for (path, meant) in [
            ("/v1/chat/completions/", Meant::Path("/v1/chat/completions")),
            ("/v1/Chat/Completions", Meant::Path("/v1/chat/completions")),
            ("/v1/chat/completion", Meant::Path("/v1/chat/completions")),
            ("/v1/chat", Meant::Path("/v1/chat/completions")),
            ("/v1/messages/count_tokens//", Meant::Path("/v1/messages/count_tokens")),
            ("/tokenize/", Meant::Path("/tokenize")),
            ("/v1/models/", Meant::Path("/v1/models")),
            ("/chat/completions", Meant::BaseUrl("/v1/chat/completions")),
            ("/v1/v1/completions/", Meant::BaseUrl("/v1/completions")),
            ("//v1/models", Meant::BaseUrl("/v1/models")),
        ] {
            assert_eq!(meant_by(path), Some(meant), "{path}");
        }
        for path in ["/", "//", "/v1", "/v1/", "/v1/m", "/v1/nothing", "/exo/v1", "/exo/v1/clusters"] {
            assert_eq!(meant_by(path), None, "{path}");
        }
    }
}
