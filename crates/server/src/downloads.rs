//! `/exo/v1/pulls`, `/exo/v1/hub/*` and `/exo/v1/found`: models of a hub, and downloads with their progress.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use exo_api::{HubLoginRequest, HubSearchRequest, HubShowRequest, PullRequest, UpdateQuery};

use crate::app::App;
use crate::body::{JsonBody, NoBody, json};
use crate::errors::{ApiError, Path};

type Answer = Result<Response, ApiError>;

/// `GET /exo/v1/pulls`
pub async fn list(State(app): State<Arc<App>>) -> Response {
    json(&app.facade.downloads().list())
}

/// `POST /exo/v1/pulls`
pub async fn start(State(app): State<Arc<App>>, JsonBody(pull): JsonBody<PullRequest>) -> Answer {
    Ok(json(&app.admin(app.facade.downloads().start(pull)).await?))
}

/// `POST /exo/v1/pulls/{pull}/pause`
pub async fn pause(State(app): State<Arc<App>>, Path(id): Path<String>, _: NoBody) -> Answer {
    Ok(json(&app.facade.downloads().pause(&id)?))
}

/// `POST /exo/v1/pulls/{pull}/resume`
pub async fn resume(State(app): State<Arc<App>>, Path(id): Path<String>, _: NoBody) -> Answer {
    Ok(json(&app.facade.downloads().resume(&id)?))
}

/// `DELETE /exo/v1/pulls/{pull}`
pub async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    app.admin(app.facade.downloads().cancel(id)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `POST /exo/v1/hub/search`
pub async fn search(State(app): State<Arc<App>>, JsonBody(search): JsonBody<HubSearchRequest>) -> Answer {
    Ok(json(&app.admin(app.facade.downloads().search(search)).await?))
}

/// `POST /exo/v1/hub/show`
pub async fn show(State(app): State<Arc<App>>, JsonBody(show): JsonBody<HubShowRequest>) -> Answer {
    Ok(json(&app.admin(app.facade.downloads().show(show)).await?))
}

/// `POST /exo/v1/hub/updates`
pub async fn updates(State(app): State<Arc<App>>, JsonBody(query): JsonBody<UpdateQuery>) -> Answer {
    Ok(json(&app.admin(app.facade.downloads().updates(query)).await?))
}

/// `POST /exo/v1/hub/prune`
pub async fn prune(State(app): State<Arc<App>>, _: NoBody) -> Answer {
    Ok(json(&app.admin(app.facade.downloads().prune()).await?))
}

/// `POST /exo/v1/hub/login`
pub async fn login(State(app): State<Arc<App>>, JsonBody(login): JsonBody<HubLoginRequest>) -> Answer {
    app.admin(app.facade.downloads().login(login)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `DELETE /exo/v1/hub/login`
pub async fn logout(State(app): State<Arc<App>>) -> Answer {
    app.admin(app.facade.downloads().logout()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET /exo/v1/found`
pub async fn found(State(app): State<Arc<App>>) -> Answer {
    Ok(json(&app.admin(app.facade.downloads().found()).await?))
}
