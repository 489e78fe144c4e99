//! What is measured, what is wrong, and what was logged: the administrative routes that show it.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use exo_api::{DoctorQuery, LogLevelRequest, LogQuery, SeriesQuery, SilenceRequest};

use crate::admin::{done, shown};
use crate::app::App;
use crate::body::JsonBody;
use crate::errors::{Answer, ApiError};

/// `GET /exo/v1/telemetry`
pub async fn telemetry(State(app): State<Arc<App>>) -> Answer {
    shown(&app, app.facade.telemetry()).await
}

/// `GET /exo/v1/series`
pub async fn series(
    State(app): State<Arc<App>>,
    query: Result<Query<SeriesQuery>, QueryRejection>,
) -> Answer {
    shown(&app, app.facade.series(taken(query)?)).await
}

/// `GET /exo/v1/alerts`
pub async fn alerts(State(app): State<Arc<App>>) -> Answer {
    shown(&app, app.facade.alerts()).await
}

/// `POST /exo/v1/alerts/silence`
pub async fn silence(State(app): State<Arc<App>>, JsonBody(silence): JsonBody<SilenceRequest>) -> Answer {
    done(&app, app.facade.silence(silence)).await
}

/// `GET /exo/v1/logs`
pub async fn logs(State(app): State<Arc<App>>, query: Result<Query<LogQuery>, QueryRejection>) -> Answer {
    shown(&app, app.facade.logs(taken(query)?)).await
}

/// `GET /exo/v1/doctor`
pub async fn doctor(
    State(app): State<Arc<App>>,
    query: Result<Query<DoctorQuery>, QueryRejection>,
) -> Answer {
    shown(&app, app.facade.doctor(taken(query)?.of)).await
}

/// `POST /exo/v1/logs/level`
pub async fn raise_log_level(
    State(app): State<Arc<App>>,
    JsonBody(wanted): JsonBody<LogLevelRequest>,
) -> Answer {
    done(&app, app.facade.raise_log_level(wanted)).await
}

/// What stood behind the question mark, or why it cannot be taken.
pub fn taken<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    let invalid =
        |bad: QueryRejection| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", bad.body_text());
    query.map(|Query(asked)| asked).map_err(invalid)
}
