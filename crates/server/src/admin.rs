//! `/exo/v1/*`: the cluster, shown and changed. Every route here is behind the local secret or a session.

use std::future::ready;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use exo_api::fits::FitsQuery;
use exo_api::{
    AddModelRequest, AdminError, AdmitRequest, DrainRequest, InviteRequest, JoinRequest, JoinWindowRequest,
    KeepModelRequest, ModelCheckRequest, PlaceRequest, PlanQuery, ReplanRequest, RoleRequest,
};
use exo_stdx::unix_s;
use exo_types::{InstanceId, ParseIdError};
use futures_util::{StreamExt, stream};
use serde::Serialize;

use crate::app::App;
use crate::body::{JsonBody, NoBody, json};
use crate::encode::push_event;
use crate::errors::{Answer, ApiError, Path};
use crate::guard::Caller;
use crate::live::{Scope, for_viewers};
use crate::sse::event_stream;
use crate::ticket::request_id;

/// For a file to be read once: a hundred gigabytes of a slow disk.
const ADD_MAX: Duration = Duration::from_secs(3600);

/// Answers with what an administrative call gives.
pub async fn shown<T: Serialize>(app: &App, call: impl Future<Output = Result<T, AdminError>>) -> Answer {
    Ok(json(&app.admin(call).await?))
}

/// Answers that an administrative call is done.
pub async fn done(app: &App, call: impl Future<Output = Result<(), AdminError>>) -> Answer {
    app.admin(call).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
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

/// `POST /exo/v1/plan`
pub async fn plan(State(app): State<Arc<App>>, JsonBody(query): JsonBody<PlanQuery>) -> Answer {
    shown(&app, app.facade.plan(query)).await
}

/// `GET /exo/v1/fits`
pub async fn fits(State(app): State<Arc<App>>) -> Answer {
    shown(&app, app.facade.fits(FitsQuery::default())).await
}

/// `POST /exo/v1/fits`
pub async fn fits_one(State(app): State<Arc<App>>, JsonBody(query): JsonBody<FitsQuery>) -> Answer {
    shown(&app, app.facade.fits(query)).await
}

/// `POST /exo/v1/instances/{instance}/replan`
pub async fn replan(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    JsonBody(replan): JsonBody<ReplanRequest>,
) -> Answer {
    shown(&app, app.facade.replan(parse("instance", &id)?, replan)).await
}

/// `DELETE /exo/v1/instances/{instance}`
pub async fn unload(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    done(&app, app.facade.unload(parse("instance", &id)?)).await
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

/// `GET /exo/v1/members`
pub async fn members(State(app): State<Arc<App>>) -> Answer {
    shown(&app, app.facade.members()).await
}

/// `POST /exo/v1/members`
pub async fn admit(State(app): State<Arc<App>>, JsonBody(admit): JsonBody<AdmitRequest>) -> Answer {
    shown(&app, app.facade.admit_member(parse("node", &admit.node)?)).await
}

/// `DELETE /exo/v1/join_requests/{node}`
pub async fn refuse(State(app): State<Arc<App>>, Path(node): Path<String>) -> Answer {
    done(&app, app.facade.refuse_node(parse("node", &node)?)).await
}

/// `POST /exo/v1/join_window`
pub async fn open_join_window(
    State(app): State<Arc<App>>,
    JsonBody(wanted): JsonBody<JoinWindowRequest>,
) -> Answer {
    done(&app, app.facade.open_join_window(wanted.minutes)).await
}

/// `DELETE /exo/v1/join_window`
pub async fn shut_join_window(State(app): State<Arc<App>>) -> Answer {
    done(&app, app.facade.shut_join_window()).await
}

/// `DELETE /exo/v1/members/{node}`
pub async fn remove_member(State(app): State<Arc<App>>, Path(node): Path<String>) -> Answer {
    done(&app, app.facade.remove_member(parse("node", &node)?)).await
}

/// `POST /exo/v1/members/{node}/role`
pub async fn set_role(
    State(app): State<Arc<App>>,
    Path(node): Path<String>,
    JsonBody(wanted): JsonBody<RoleRequest>,
) -> Answer {
    done(&app, app.facade.set_role(parse("node", &node)?, wanted.role)).await
}

/// `POST /exo/v1/members/{node}/drain`
pub async fn drain(
    State(app): State<Arc<App>>,
    Path(node): Path<String>,
    JsonBody(wanted): JsonBody<DrainRequest>,
) -> Answer {
    done(&app, app.facade.drain(parse("node", &node)?, wanted.drain)).await
}

/// `POST /exo/v1/invites`
pub async fn invite(State(app): State<Arc<App>>, JsonBody(invite): JsonBody<InviteRequest>) -> Answer {
    shown(&app, app.facade.invite(invite)).await
}

/// `POST /exo/v1/join`
pub async fn join(State(app): State<Arc<App>>, JsonBody(join): JsonBody<JoinRequest>) -> Answer {
    shown(&app, app.facade.join(join)).await
}

/// `GET /exo/v1/models`
pub async fn models(State(app): State<Arc<App>>) -> Answer {
    shown(&app, app.facade.models()).await
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

/// `POST /exo/v1/model_checks`
pub async fn check_model(
    State(app): State<Arc<App>>,
    JsonBody(check): JsonBody<ModelCheckRequest>,
) -> Answer {
    shown(&app, app.facade.check_model(check.model)).await
}

/// `GET /exo/v1/models/{model}`
pub async fn model(State(app): State<Arc<App>>, Path(model): Path<String>) -> Answer {
    shown(&app, app.facade.model(model)).await
}

/// `DELETE /exo/v1/models/{model}`
pub async fn remove_model(State(app): State<Arc<App>>, Path(model): Path<String>) -> Answer {
    done(&app, app.facade.remove_model(model)).await
}

/// `POST /exo/v1/kept_models`
pub async fn keep_model(State(app): State<Arc<App>>, JsonBody(keep): JsonBody<KeepModelRequest>) -> Answer {
    shown(&app, app.facade.keep_model(keep.model, keep.kept)).await
}

/// `POST /exo/v1/shutdown`
pub async fn shutdown(State(app): State<Arc<App>>, _: NoBody) -> Answer {
    app.facade.shutdown();
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn parse<T: FromStr<Err = ParseIdError>>(param: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|e: ParseIdError| {
        AdminError::Invalid { param: param.to_owned(), message: e.to_string() }.into()
    })
}
