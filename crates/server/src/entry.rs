//! How a browser gets in and out: codes, sessions, and what a token opens.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use exo_api::{CodeView, SessionAccess, SessionRequest, SessionView};
use exo_stdx::unix_s;

use crate::app::App;
use crate::body::{json, read_unproven};
use crate::connection_slots::ConnectionSlot;
use crate::errors::{Answer, ApiError};
use crate::guard::{Caller, Peer};
use crate::sessions::{BadCode, CODE_LIFE};

/// `POST /exo/v1/codes`: over the local channel alone, where the system says whose command it is.
pub async fn give_code(State(app): State<Arc<App>>, Extension(peer): Extension<Peer>) -> Answer {
    if peer != Peer::Owner {
        let message = "codes are given out over the node's local channel only: run `exo open`";
        return Err(ApiError::forbidden("owner_only", message));
    }
    if app.options.is_proxied {
        let message = "the page needs administration over HTTP, which the setting `api_proxied` shuts: commands work as ever";
        return Err(ApiError::invalid(StatusCode::CONFLICT, "conflict", message));
    }
    let code = app.sessions.give_code(Instant::now(), unix_s()).map_err(no_randomness)?;
    Ok(json(&CodeView { code, expires_in_s: CODE_LIFE.as_secs() }))
}

/// `POST /exo/v1/session`
pub async fn begin_session(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Extension(slot): Extension<Arc<ConnectionSlot>>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    app.guard.check_near(&parts.headers, peer)?;
    let wanted: SessionRequest = read_unproven(&parts.headers, body, &app.options).await?;
    match wanted {
        SessionRequest { code: Some(code), secret: None } => {
            app.sessions.take_code(&code, Instant::now(), unix_s()).map_err(refused_code)?;
        }
        SessionRequest { code: None, secret: Some(secret) } if app.guard.knows_secret(secret.trim()) => {}
        SessionRequest { code: None, secret: Some(_) } => {
            let message = "that is not the local secret of this node";
            return Err(ApiError::unauthorized("invalid_local_secret", message));
        }
        _ => {
            let message = "a session needs `code` or `secret`, and not both";
            return Err(ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", message));
        }
    }
    slot.keep();
    let token = app.sessions.begin(unix_s()).map_err(no_randomness)?;
    // It is good until the node ends.
    match save(&app).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "the sessions of browsers cannot be written: this one ends with the node");
        }
        Err(late) => tracing::warn!(error = late.message, "the session of a browser may end with the node"),
    }
    let session = view(&app, SessionAccess::Owner, false, Some(app.sessions.idle_max_s())).await?;
    Ok(json(&SessionView { token: Some(token), ..session }))
}

/// `GET /exo/v1/session`
pub async fn session(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Extension(slot): Extension<Arc<ConnectionSlot>>,
    headers: HeaderMap,
) -> Answer {
    let caller = app.guard.check_known(&headers, peer)?;
    slot.keep();
    app.note_use(&caller);
    let (access, idle_max_s) = match caller {
        Caller::Key if app.options.keys_see_cluster => (SessionAccess::Viewer, None),
        Caller::Key | Caller::Open => (SessionAccess::Chat, None),
        Caller::Owner => (SessionAccess::Owner, None),
        Caller::Session { .. } => (SessionAccess::Owner, Some(app.sessions.idle_max_s())),
    };
    Ok(json(&view(&app, access, !app.guard.is_near(&headers, peer), idle_max_s).await?))
}

/// `DELETE /exo/v1/session`
pub async fn end_session(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Answer {
    let Caller::Session { id, .. } = caller else {
        let message = "the sender has no session: `DELETE /exo/v1/sessions` ends all of them";
        return Err(ApiError::invalid(StatusCode::CONFLICT, "conflict", message));
    };
    app.sessions.end(id);
    written(&app).await
}

/// `DELETE /exo/v1/sessions`
pub async fn end_all_sessions(State(app): State<Arc<App>>) -> Answer {
    app.sessions.end_all();
    written(&app).await
}

/// Nothing, once the disk agrees: what it still has would be back with the next start.
async fn written(app: &Arc<App>) -> Answer {
    let told = |error: &dyn std::fmt::Display| {
        format!(
            "the session has ended, but that cannot be written, and it is back when the node starts again: {error}"
        )
    };
    let saved = save(app).await.map_err(|late| ApiError { message: told(&late.message), ..late })?;
    saved.map_err(|error| ApiError::internal(told(&error)))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// An error of the disk, or that it has not answered in time.
async fn save(app: &App) -> Result<std::io::Result<()>, ApiError> {
    let sessions = app.sessions.clone();
    app.blocking(move || sessions.save()).await
}

async fn view(
    app: &App,
    access: SessionAccess,
    plain_http: bool,
    idle_max_s: Option<u64>,
) -> Result<SessionView, ApiError> {
    let cluster = app.admin(app.facade.cluster()).await?;
    let own = cluster.nodes.iter().find(|node| node.is_self);
    let name = own.map(|node| node.name.clone()).unwrap_or_default();
    let version = app.facade.health().version;
    let needs_key = app.guard.needs_key();
    Ok(SessionView {
        token: None,
        access,
        node: cluster.self_node,
        name,
        version,
        idle_max_s,
        plain_http,
        needs_key,
    })
}

fn refused_code(bad: BadCode) -> ApiError {
    let (code, message) = match bad {
        BadCode::Unknown => (
            "code_unknown",
            "this code is not one of this node's, or the node was started anew: run `exo open` again",
        ),
        BadCode::Used => (
            "code_used",
            "this code was used already. If that was not you, run `exo open --sign-out`, which ends all sessions",
        ),
        BadCode::Expired => ("code_expired", "this code was good for a minute: run `exo open` again"),
    };
    ApiError::unauthorized(code, message)
}

fn no_randomness(error: getrandom::Error) -> ApiError {
    ApiError::internal(format!("no randomness for a session: {error}"))
}
