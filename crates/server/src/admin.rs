//! `/exo/v1/*`: the cluster, shown and changed. Every route here is behind the local secret or a session.

use std::future::ready;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use exo_api::fits::FitsQuery;
use exo_api::{
    AddModelRequest, AdminError, AdmitRequest, DoctorQuery, DrainRequest, HubLoginRequest, HubSearchRequest,
    HubShowRequest, InviteRequest, JoinRequest, JoinWindowRequest, KeepModelRequest, LogLevelRequest,
    LogQuery, ModelCheckRequest, PlaceRequest, PlanQuery, PullRequest, ReplanRequest, RoleRequest,
    SeriesQuery, SilenceRequest, UpdateQuery,
};
use exo_stdx::unix_s;
use exo_types::{InstanceId, ParseIdError};
use futures_util::{StreamExt, stream};
use serde::Serialize;

use crate::app::App;
use crate::body::{JsonBody, NoBody, json};
use crate::encode::push_event;
use crate::errors::{Answer, ApiError, Path, Query};
use crate::guard::Caller;
use crate::live::{Scope, for_viewers};
use crate::sse::event_stream;
use crate::ticket::request_id;

/// For a file to be read once: a hundred gigabytes of a slow disk.
const ADD_MAX: Duration = Duration::from_secs(3600);

/// Answers with what an administrative call gives.
async fn shown<T: Serialize>(app: &App, call: impl Future<Output = Result<T, AdminError>>) -> Answer {
    Ok(json(&app.admin(call).await?))
}

/// Answers that an administrative call is done.
async fn done(app: &App, call: impl Future<Output = Result<(), AdminError>>) -> Answer {
    app.admin(call).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Routes, each with the parts of a request that it takes and the call of the node that answers it.
macro_rules! routes {
    ($app:ident; $($method:ident $path:literal $($part:ident $(($name:ident: $type:ty))?),*
        => $answer:ident $call:expr;)*) => {
        Router::new()$(.route($path, $method(
            |State($app): State<Arc<App>> $(, $part $(($name))?: $part $(<$type>)?)*| async move {
                $answer(&$app, $call).await
            },
        )))*
    };
}

/// The routes that pass a call on to the node, and what it gives back.
pub fn routes() -> Router<Arc<App>> {
    routes! { app;
        post   "/exo/v1/plan" JsonBody(query: PlanQuery) => shown app.facade.plan(query);
        get    "/exo/v1/fits" => shown app.facade.fits(FitsQuery::default());
        post   "/exo/v1/fits" JsonBody(query: FitsQuery) => shown app.facade.fits(query);
        post   "/exo/v1/instances/{instance}/replan" Path(id: String), JsonBody(replan: ReplanRequest)
            => shown app.facade.replan(parse("instance", &id)?, replan);
        delete "/exo/v1/instances/{instance}" Path(id: String)
            => done app.facade.unload(parse("instance", &id)?);

        get    "/exo/v1/members" => shown app.facade.members();
        post   "/exo/v1/members" JsonBody(admit: AdmitRequest)
            => shown app.facade.admit_member(parse("node", &admit.node)?);
        delete "/exo/v1/members/{node}" Path(node: String)
            => done app.facade.remove_member(parse("node", &node)?);
        post   "/exo/v1/members/{node}/role" Path(node: String), JsonBody(wanted: RoleRequest)
            => done app.facade.set_role(parse("node", &node)?, wanted.role);
        post   "/exo/v1/members/{node}/drain" Path(node: String), JsonBody(wanted: DrainRequest)
            => done app.facade.drain(parse("node", &node)?, wanted.drain);
        delete "/exo/v1/join_requests/{node}" Path(node: String)
            => done app.facade.refuse_node(parse("node", &node)?);
        post   "/exo/v1/join_window" JsonBody(wanted: JoinWindowRequest)
            => done app.facade.open_join_window(wanted.minutes);
        delete "/exo/v1/join_window" => done app.facade.shut_join_window();
        post   "/exo/v1/invites" JsonBody(invite: InviteRequest) => shown app.facade.invite(invite);
        post   "/exo/v1/join" JsonBody(join: JoinRequest) => shown app.facade.join(join);

        get    "/exo/v1/models" => shown app.facade.models();
        get    "/exo/v1/models/{*model}" Path(model: String) => shown app.facade.model(model);
        delete "/exo/v1/models/{*model}" Path(model: String) => done app.facade.remove_model(model);
        post   "/exo/v1/kept_models" JsonBody(keep: KeepModelRequest)
            => shown app.facade.keep_model(keep.model, keep.kept);
        post   "/exo/v1/model_checks" JsonBody(check: ModelCheckRequest)
            => shown app.facade.check_model(check.model);

        post   "/exo/v1/pulls" JsonBody(pull: PullRequest) => shown app.facade.downloads().start(pull);
        delete "/exo/v1/pulls/{pull}" Path(id: String) => done app.facade.downloads().cancel(id);
        post   "/exo/v1/hub/search" JsonBody(search: HubSearchRequest)
            => shown app.facade.downloads().search(search);
        post   "/exo/v1/hub/show" JsonBody(show: HubShowRequest) => shown app.facade.downloads().show(show);
        post   "/exo/v1/hub/updates" JsonBody(query: UpdateQuery)
            => shown app.facade.downloads().updates(query);
        post   "/exo/v1/hub/prune" NoBody => shown app.facade.downloads().prune();
        post   "/exo/v1/hub/login" JsonBody(login: HubLoginRequest)
            => done app.facade.downloads().login(login);
        delete "/exo/v1/hub/login" => done app.facade.downloads().logout();
        get    "/exo/v1/found" => shown app.facade.downloads().found();

        get    "/exo/v1/telemetry" => shown app.facade.telemetry();
        get    "/exo/v1/series" Query(asked: SeriesQuery) => shown app.facade.series(asked);
        get    "/exo/v1/alerts" => shown app.facade.alerts();
        post   "/exo/v1/alerts/silence" JsonBody(silence: SilenceRequest) => done app.facade.silence(silence);
        get    "/exo/v1/logs" Query(asked: LogQuery) => shown app.facade.logs(asked);
        post   "/exo/v1/logs/level" JsonBody(wanted: LogLevelRequest)
            => done app.facade.raise_log_level(wanted);
        get    "/exo/v1/doctor" Query(asked: DoctorQuery) => shown app.facade.doctor(asked.of);
    }
}

/// `GET /exo/v1/cluster`
pub async fn cluster(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Answer {
    let cluster = app.admin(app.facade.cluster()).await?;
    Ok(json(&if caller == Caller::Key { for_viewers(cluster) } else { cluster }))
}

/// `GET /exo/v1/events`: the cluster, and between its changes the downloads of the node for who owns it. It
/// ends with the server, and with the session that it was asked for with.
pub async fn events(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Answer {
    let scope = if caller == Caller::Key { Scope::Viewer } else { Scope::Owner };
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let owner = app.clone();
    let is_over = move || match caller {
        Caller::Session { id, .. } => !owner.sessions.lasts(id, unix_s()),
        Caller::Owner | Caller::Key | Caller::Open => false,
    };
    let live = app.live.stream(&app.facade, scope, after, app.sessions.ended(), Box::new(is_over));
    if matches!(scope, Scope::Viewer) {
        return Ok(event_stream(live));
    }
    let pulls = app.facade.downloads().watch().map(|pulls| {
        let mut text = String::new();
        push_event(&mut text, "pulls", &pulls);
        Some(text.into())
    });
    let both = stream::select(live.map(Some).chain(stream::once(ready(None))), pulls);
    Ok(event_stream(both.take_while(|event| ready(event.is_some())).filter_map(ready)))
}

/// `GET /exo/v1/instances`
pub async fn instances(State(app): State<Arc<App>>) -> Answer {
    Ok(json(&app.admin(app.facade.cluster()).await?.instances))
}

/// `GET /exo/v1/instances/{instance}`
pub async fn instance(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let id = parse::<InstanceId>("instance", &id)?.to_string();
    let instances = app.admin(app.facade.cluster()).await?.instances;
    let found = instances.iter().find(|i| i.id == id);
    found.map(json).ok_or_else(|| AdminError::NotFound { what: "instance", name: id }.into())
}

/// `POST /exo/v1/instances`
pub async fn place(State(app): State<Arc<App>>, JsonBody(place): JsonBody<PlaceRequest>) -> Answer {
    let facade = app.facade.clone();
    let placing = async move { facade.place(place).await };
    Ok(json(&app.admin_whole(app.options.admin_timeout, placing).await?))
}

/// `GET /exo/v1/requests`
pub async fn requests(State(app): State<Arc<App>>) -> Answer {
    let mut running = app.admin(app.facade.requests()).await?;
    running.iter_mut().for_each(|request| app.options.api_keys.name(&mut request.principal));
    Ok(json(&running))
}

/// `GET /exo/v1/requests/recent`
pub async fn recent_requests(State(app): State<Arc<App>>) -> Answer {
    let mut recent = app.requests.recent();
    recent.iter_mut().for_each(|request| app.options.api_keys.name(&mut request.principal));
    Ok(json(&recent))
}

/// `DELETE /exo/v1/requests/{request}`
pub async fn cancel_request(State(app): State<Arc<App>>, Path(request): Path<String>) -> Answer {
    let id = request_id(&request)?;
    if !app.requests.cancel(id) {
        return Err(AdminError::NotFound { what: "request", name: id.to_string() }.into());
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `POST /exo/v1/members/{node}/devices/{device}/retry`
pub async fn retry_device(
    State(app): State<Arc<App>>,
    Path((node, device)): Path<(String, String)>,
    _: NoBody,
) -> Answer {
    done(&app, app.facade.retry_device(parse("node", &node)?, device)).await
}

/// `POST /exo/v1/models`
pub async fn add_model(State(app): State<Arc<App>>, JsonBody(add): JsonBody<AddModelRequest>) -> Answer {
    let facade = app.facade.clone();
    let adding = async move { facade.add_model(add.path, add.name).await };
    Ok(json(&app.admin_whole(ADD_MAX, adding).await?))
}

/// `GET /exo/v1/model_checks`
pub async fn model_checks(State(app): State<Arc<App>>) -> Response {
    json(&app.facade.model_checks())
}

/// `GET /exo/v1/pulls`
pub async fn pulls(State(app): State<Arc<App>>) -> Response {
    json(&app.facade.downloads().list())
}

/// `POST /exo/v1/pulls/{pull}/pause`
pub async fn pause_pull(State(app): State<Arc<App>>, Path(id): Path<String>, _: NoBody) -> Answer {
    Ok(json(&app.facade.downloads().pause(&id)?))
}

/// `POST /exo/v1/pulls/{pull}/resume`
pub async fn resume_pull(State(app): State<Arc<App>>, Path(id): Path<String>, _: NoBody) -> Answer {
    Ok(json(&app.facade.downloads().resume(&id)?))
}

/// `POST /exo/v1/shutdown`
pub async fn shutdown(State(app): State<Arc<App>>, _: NoBody) -> Answer {
    app.facade.shutdown();
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn parse<T: FromStr<Err = ParseIdError>>(param: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|e: ParseIdError| AdminError::invalid(param, e.to_string()).into())
}
