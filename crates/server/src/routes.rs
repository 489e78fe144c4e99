//! The routes, and what every request passes on its way to them.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use exo_api::HealthStatus;
use exo_types::RequestId;
use futures_util::FutureExt;

use crate::app::App;
use crate::backlog::{OneCopy, hold_whole};
use crate::body::json;
use crate::connection_slots::ConnectionSlot;
use crate::errors::ApiError;
use crate::guard::Peer;
use crate::{
    admin, dashboard, dialect, entry, messages, metrics, models, ollama, openai, origins, responses, resume,
    tokens,
};

/// What `/openapi.json` answers anybody with: made once, as whoever asks has shown no key.
static DESCRIPTION: LazyLock<Bytes> = LazyLock::new(|| exo_api::openapi::to_json().into());

/// All routes. A test compares them with [`exo_api::endpoints::ENDPOINTS`].
pub fn router(app: Arc<App>) -> Router {
    let open = Router::new()
        .route("/", get(dashboard::page))
        .route("/landing.css", get(dashboard::landing_style))
        .route("/health", get(health))
        .route("/openapi.json", get(description));
    // Model names may hold slashes, as on the hub.
    let v1 = Router::new()
        .route("/v1/models", get(models::models))
        .route("/v1/models/{*model}", get(models::model))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count_input))
        .route("/v1/responses/{response}", get(resume::response).delete(responses::delete))
        .route("/v1/requests/{request}", get(resume::resume).delete(resume::stop))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/completions", post(openai::completion))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/version", get(ollama::version))
        .route("/api/show", post(ollama::show))
        .route("/api/pull", post(ollama::pull))
        .route("/v1/embeddings", post(openai::embeddings::openai))
        .route("/api/embed", post(openai::embeddings::ollama))
        .route("/api/embeddings", post(openai::embeddings::ollama_older))
        .route("/api/create", any(ollama::refused))
        .route("/api/copy", any(ollama::refused))
        .route("/api/push", any(ollama::refused))
        .route("/api/delete", any(ollama::refused))
        .route("/api/blobs/{digest}", any(ollama::refused))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route_layer(from_fn_with_state((app.clone(), Need::Principal), need));
    let scraped = Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/metrics/targets", get(metrics::targets))
        .route_layer(from_fn_with_state((app.clone(), Need::Metrics), need));
    open.merge(v1)
        .merge(scraped)
        .merge(administration(&app))
        .fallback(dashboard::fallback)
        .method_not_allowed_fallback(openai::method_not_allowed)
        .layer(from_fn_with_state(app.clone(), guarded))
        .layer(from_fn_with_state(app.clone(), outermost))
        .with_state(app)
}

/// What the owner sees and changes, and how one becomes known as the owner.
fn administration(app: &Arc<App>) -> Router<Arc<App>> {
    let owned = admin::routes()
        .route("/exo/v1/session", delete(entry::end_session))
        .route("/exo/v1/sessions", delete(entry::end_all_sessions))
        .route("/exo/v1/instances", post(admin::place))
        .route("/exo/v1/requests", get(admin::requests))
        .route("/exo/v1/requests/recent", get(admin::recent_requests))
        .route("/exo/v1/requests/{request}", delete(admin::cancel_request))
        .route("/exo/v1/members/{node}/devices/{device}/retry", post(admin::retry_device))
        .route("/exo/v1/models", post(admin::add_model))
        .route("/exo/v1/model_checks", get(admin::model_checks))
        .route("/exo/v1/pulls", get(admin::pulls))
        .route("/exo/v1/pulls/{pull}/pause", post(admin::pause_pull))
        .route("/exo/v1/pulls/{pull}/resume", post(admin::resume_pull))
        .route("/exo/v1/shutdown", post(admin::shutdown))
        .route_layer(from_fn_with_state((app.clone(), Need::Secret), need));
    let shown = Router::new()
        .route("/exo/v1/cluster", get(admin::cluster))
        .route("/exo/v1/events", get(admin::events))
        .route("/exo/v1/instances", get(admin::instances))
        .route("/exo/v1/instances/{instance}", get(admin::instance))
        .route_layer(from_fn_with_state((app.clone(), Need::View), need));
    // Each of these looks for itself who asks.
    let entry = Router::new()
        .route("/exo/v1/codes", post(entry::give_code))
        .route("/exo/v1/session", get(entry::session).post(entry::begin_session));
    owned.merge(shown).merge(entry)
}

/// Names the request, catches panics, counts the answer until it is read and sets the headers every answer
/// has.
async fn outermost(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let mut id = [0; 16];
    if let Err(e) = getrandom::fill(&mut id) {
        return ApiError::internal(format!("no randomness for a request id: {e}")).into_response();
    }
    let id = RequestId(u128::from_le_bytes(id));
    // The owner's commands are answered whatever others leave unread.
    let is_owner = request.extensions().get::<Peer>() == Some(&Peer::Owner);
    let is_anthropic = dialect::is_anthropic(request.uri().path(), request.headers());
    let is_ollama = dialect::is_ollama(request.uri().path());
    request.extensions_mut().insert(id);
    let shared_with = app.guard.shared_with(request.headers(), request.uri().path());
    let is_look = is_look(&request);
    if is_look {
        tracing::trace!(%id, method = %request.method(), path = request.uri().path(), "request");
    } else {
        tracing::debug!(%id, method = %request.method(), path = request.uri().path(), "request");
    }
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_panic) => {
            tracing::error!(%id, "a panic while answering");
            ApiError::internal("a panic while answering; the node goes on").into_response()
        }
    };
    let shown_id = id.to_string();
    if !is_owner {
        response = hold_whole(&app.room, response).await;
    }
    match response.extensions().get::<ApiError>() {
        Some(error) if is_anthropic => response = error.respond(&error.anthropic_body(&shown_id)),
        Some(error) if is_ollama => response = error.respond(&error.ollama_body()),
        _ => {}
    }
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("x-request-id"), ascii(&shown_id));
    if is_anthropic {
        headers.insert(HeaderName::from_static("request-id"), ascii(&shown_id));
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    dashboard::set_defaults(headers);
    if let Some(origin) = shared_with {
        origins::share(headers, origin);
    }
    let status = response.status().as_u16();
    if is_look {
        tracing::trace!(%id, status, "answered");
    } else {
        tracing::debug!(%id, status, "answered");
    }
    response
}

/// Whether a request only looks at the node, as pages and scrapes do every second or two: in the log they
/// would push out all else.
fn is_look(request: &Request) -> bool {
    let path = request.uri().path();
    let of_pages = ["/health", "/metrics", "/exo/v1/"].iter().any(|start| path.starts_with(start));
    of_pages && request.method() == axum::http::Method::GET
}

fn ascii(hex: &str) -> HeaderValue {
    HeaderValue::from_str(hex).expect("hexadecimal digits are a header value")
}

async fn guarded(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    app.guard.check(&parts)?;
    let is_shared = || app.guard.shared_with(&parts.headers, parts.uri.path()).is_some();
    if origins::is_preflight(&parts) && is_shared() {
        let mut answer = StatusCode::NO_CONTENT.into_response();
        origins::answer_preflight(answer.headers_mut(), &parts.headers);
        return Ok(answer);
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// What a caller must show.
#[derive(Clone, Copy)]
enum Need {
    /// A key of the API, where there are any: whose request it is.
    Principal,
    /// The local secret, or to be this node's user.
    Secret,
    /// What a viewer has.
    View,
    /// What a scraper has; nothing where metrics are open.
    Metrics,
}

/// Lets in who has what the route needs. The connection keeps its slot.
async fn need(
    State((app, need)): State<(Arc<App>, Need)>,
    Extension(peer): Extension<Peer>,
    Extension(slot): Extension<Arc<ConnectionSlot>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let caller = match need {
        Need::Metrics if app.options.metrics_open => return Ok(next.run(request).await),
        Need::Metrics => app.guard.check_metrics(request.headers(), peer)?,
        Need::Secret => app.guard.check_admin(request.headers(), peer)?,
        Need::View => app.guard.check_viewer(request.headers(), peer)?,
        Need::Principal => {
            let (principal, caller) = app.guard.principal(request.headers(), peer)?;
            request.extensions_mut().insert(principal);
            caller
        }
    };
    slot.keep();
    app.note_use(&caller);
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let health = app.facade.health();
    let ok = health.status == HealthStatus::Ok;
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, json(&health)).into_response()
}

async fn description() -> Response {
    let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (kind, Extension(OneCopy), DESCRIPTION.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_open_pages_ask_every_second_leaves_no_lines_in_the_log_and_what_changes_something_does() {
        let is_look = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(axum::body::Body::empty());
            is_look(&request.expect("a request"))
        };
        for path in [
            "/health",
            "/metrics?scope=cluster",
            "/exo/v1/requests/recent",
            "/exo/v1/logs?after=x",
            "/exo/v1/events",
        ] {
            assert!(is_look("GET", path), "{path}");
        }
        for (method, path) in
            [("POST", "/exo/v1/instances"), ("GET", "/v1/models"), ("DELETE", "/exo/v1/sessions")]
        {
            assert!(!is_look(method, path), "{method} {path}");
        }
    }
}
