//! `/v1/*`: models, chat completions and completions.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use exo_api::openai::{ChatRequest, CompletionRequest, ModelList, ModelObject, RequestContext};
use exo_api::{GenerateError, GenerateEvent, GenerateRequest, ModelView};
use exo_types::{Principal, RequestId};
use tokio::time::Instant;

use crate::app::App;
use crate::body::{json, read_json};
use crate::chat::{ChatChunks, ChatWhole};
use crate::completion::{CompletionChunks, CompletionWhole};
use crate::encode::{Chunks, Head, Whole};
use crate::errors::ApiError;
use crate::source::{Heard, Source};
use crate::sse;

/// `GET /v1/models`
pub async fn models(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    Ok(json(&ModelList::new(&app.admin(app.facade.models()).await?)))
}

/// `GET /v1/models/{model}`
pub async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let models: Vec<ModelView> = app.admin(app.facade.models()).await?;
    match models.iter().find(|m| m.name == name || m.id == name) {
        Some(model) => Ok(json(&ModelObject::from(model))),
        None => {
            let known = models.into_iter().map(|m| m.name).collect();
            Err(GenerateError::ModelUnknown { model: name, known }.into())
        }
    }
}

/// `POST /v1/chat/completions`
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let context = context(&app, id, principal)?;
    // Until the prompt is one of tokens: whole answers, and streams until their headers.
    let (chat, _lease) = read_json(&parts.headers, body, &app, |body| Ok(ChatRequest::parse(body)?)).await?;
    let (streams, include_usage) = (chat.common.streams(), chat.common.includes_usage());
    let request = chat.into_generate(context)?;
    let (head, logprobs) = (head(&request), request.sampling.logprobs.is_some());
    if streams {
        stream(&app, request, ChatChunks::new(head, logprobs, include_usage)).await
    } else {
        whole(&app, request, ChatWhole::new(head, logprobs)).await
    }
}

/// `POST /v1/completions`
pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let context = context(&app, id, principal)?;
    let (completion, _lease) =
        read_json(&parts.headers, body, &app, |body| Ok(CompletionRequest::parse(body)?)).await?;
    let (streams, include_usage) = (completion.common.streams(), completion.common.includes_usage());
    let request = completion.into_generate(context)?;
    let (head, logprobs) = (head(&request), request.sampling.logprobs.is_some());
    let answer = if streams {
        stream(&app, request, CompletionChunks::new(head, logprobs, include_usage)).await
    } else {
        whole(&app, request, CompletionWhole::new(head, logprobs)).await
    };
    // The node does not know on which endpoint the prompt came.
    answer.map_err(|e| match e.code {
        "context_length_exceeded" => ApiError { param: Some("prompt".to_owned()), ..e },
        _ => e,
    })
}

fn context(app: &App, request: RequestId, principal: Principal) -> Result<RequestContext, ApiError> {
    let seed = getrandom::u64().map_err(|e| ApiError::internal(format!("no randomness for a seed: {e}")))?;
    Ok(RequestContext { request, principal, seed, queue_wait_max: app.options.queue_wait_max })
}

fn head(request: &GenerateRequest) -> Head {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Head {
        request: request.request.to_string(),
        created: now.as_secs(),
        model: request.model.clone(),
        choices: request.choices,
    }
}

async fn stream(app: &App, request: GenerateRequest, chunks: impl Chunks) -> Result<Response, ApiError> {
    let mut source = Source::new(app.facade.clone(), request, app.options.silence_max);
    let first = sse::open(&mut source, app.options.stream_headers_after).await?;
    Ok(sse::respond(app, source, first, chunks))
}

async fn whole(app: &App, request: GenerateRequest, mut whole: impl Whole) -> Result<Response, ApiError> {
    let mut source = Source::new(app.facade.clone(), request, app.options.silence_max);
    loop {
        match source.next(Instant::now() + app.options.silence_max).await {
            Heard::Event(GenerateEvent::Done(summary)) => {
                let answer = whole.finish(&summary);
                return answer
                    .map(|a| json(&a))
                    .ok_or_else(|| ApiError::internal("the answer is done, but not all of its choices are"));
            }
            Heard::Event(event) => whole.push(event),
            Heard::Failed(error) => return Err(error.into()),
            Heard::Quiet => {}
        }
    }
}

/// What has no route.
pub async fn not_found(request: Request) -> ApiError {
    let what = format!("there is no {} {:.200}", request.method(), request.uri().path());
    ApiError::invalid(StatusCode::NOT_FOUND, "no_such_route", what)
}

/// What has a route, but not for this method.
pub async fn method_not_allowed(request: Request) -> ApiError {
    let what = format!("{:.200} does not take {}", request.uri().path(), request.method());
    ApiError::invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what)
}
