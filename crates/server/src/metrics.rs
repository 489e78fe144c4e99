//! `/metrics` for Prometheus, and where it finds the nodes of a cluster. Readable with an API key or the
//! local secret.

mod exposition;
mod gather;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use exo_api::{ClusterView, ScrapeTargets, TelemetryView};
use serde::Deserialize;

use self::gather::{Scope, gather, labels_of};
use crate::app::App;
use crate::body::json;
use crate::errors::{ApiError, Query};

const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What stands behind the question mark.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsQuery {
    scope: Option<String>,
    /// A member by its id in full: its samples, as this node knows them.
    node: Option<String>,
}

/// `GET /metrics`
pub async fn metrics(
    State(app): State<Arc<App>>,
    Query(asked): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut view = app.admin(app.facade.cluster()).await?;
    // A silence counts at once.
    view.alerts = app.admin(app.facade.alerts()).await?;
    let told = app.admin(app.facade.telemetry()).await?;
    let scope = scope(asked, &view, &told)?;
    let samples = gather(&view, &told, &scope);
    let (text, kind) = match is_open_metrics(&headers) {
        true => (samples.open_metrics(), OPEN_METRICS),
        false => (samples.prometheus(), PROMETHEUS),
    };
    let text = text.map_err(|error| ApiError::internal(format!("metrics cannot be written: {error}")))?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// `GET /metrics/targets`: every member is scraped through this node, whose API may be the only one that
/// others reach.
pub async fn targets(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let told = app.admin(app.facade.telemetry()).await?;
    // The guard has seen to it that there is one, and that it is one of ours.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let names = labels_of(&told);
    let target = |(id, name): (String, String)| ScrapeTargets {
        targets: vec![host.to_owned()],
        labels: BTreeMap::from([
            ("__metrics_path__".to_owned(), "/metrics".to_owned()),
            ("__param_node".to_owned(), id),
            ("instance".to_owned(), name),
        ]),
    };
    Ok(json(&names.into_iter().map(target).collect::<Vec<_>>()))
}

fn scope(asked: MetricsQuery, view: &ClusterView, told: &TelemetryView) -> Result<Scope, ApiError> {
    let invalid = |message: &str| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", message);
    match (asked.scope.as_deref(), asked.node) {
        (Some("cluster"), None) => Ok(Scope::Cluster),
        (None | Some("node"), None) => Ok(Scope::Node(view.self_node.clone())),
        (None | Some("node"), Some(node)) if told.nodes.iter().any(|known| known.node == node) => {
            Ok(Scope::Node(node))
        }
        (None | Some("node"), Some(_)) => Err(ApiError::invalid(
            StatusCode::NOT_FOUND,
            "not_found",
            "`node` is not a member of this cluster",
        )),
        (Some("cluster"), Some(_)) => Err(invalid("`node` goes with `scope=node` only")),
        _ => Err(invalid("`scope` must be `node` or `cluster`")),
    }
}

/// Whether the scraper prefers it: Prometheus names it first where it can read it.
fn is_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).map(str::trim);
    kinds.any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "application/openmetrics-text"))
}
