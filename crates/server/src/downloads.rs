//! `/exo/v1/pulls`, `/exo/v1/hub/*` and `/exo/v1/found`: models of a hub, and downloads with their progress.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use exo_api::{HubLoginRequest, HubSearchRequest, HubShowRequest, PullRequest, UpdateQuery};

use crate::admin::{done, shown};
use crate::app::App;
use crate::body::{JsonBody, NoBody, json};
use crate::errors::{Answer, Path};

/// `GET /exo/v1/pulls`
pub async fn list(State(app): State<Arc<App>>) -> Response {
    json(&app.facade.downloads().list())
}

/// `POST /exo/v1/pulls`
pub async fn start(State(app): State<Arc<App>>, JsonBody(pull): JsonBody<PullRequest>) -> Answer {
    shown(&app, app.facade.downloads().start(pull)).await
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
    done(&app, app.facade.downloads().cancel(id)).await
}

/// `POST /exo/v1/hub/search`
pub async fn search(State(app): State<Arc<App>>, JsonBody(search): JsonBody<HubSearchRequest>) -> Answer {
    shown(&app, app.facade.downloads().search(search)).await
}

/// `POST /exo/v1/hub/show`
pub async fn show(State(app): State<Arc<App>>, JsonBody(show): JsonBody<HubShowRequest>) -> Answer {
    shown(&app, app.facade.downloads().show(show)).await
}

/// `POST /exo/v1/hub/updates`
pub async fn updates(State(app): State<Arc<App>>, JsonBody(query): JsonBody<UpdateQuery>) -> Answer {
    shown(&app, app.facade.downloads().updates(query)).await
}

/// `POST /exo/v1/hub/prune`
pub async fn prune(State(app): State<Arc<App>>, _: NoBody) -> Answer {
    shown(&app, app.facade.downloads().prune()).await
}

/// `POST /exo/v1/hub/login`
pub async fn login(State(app): State<Arc<App>>, JsonBody(login): JsonBody<HubLoginRequest>) -> Answer {
    done(&app, app.facade.downloads().login(login)).await
}

/// `DELETE /exo/v1/hub/login`
pub async fn logout(State(app): State<Arc<App>>) -> Answer {
    done(&app, app.facade.downloads().logout()).await
}

/// `GET /exo/v1/found`
pub async fn found(State(app): State<Arc<App>>) -> Answer {
    shown(&app, app.facade.downloads().found()).await
}
