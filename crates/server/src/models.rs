//! `/v1/models`, in OpenAI's shape, and in Anthropic's for who names a version of its API.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use exo_api::anthropic::{ModelInfo, ModelPage, PageQuery};
use exo_api::openai::{ModelList, ModelObject};

use crate::app::App;
use crate::body::json;
use crate::dialect::ANTHROPIC_VERSION;
use crate::errors::{ApiError, Path};

/// `GET /v1/models`
pub async fn models(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    query: Result<Query<PageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let models = app.admin(app.facade.models()).await?;
    if !headers.contains_key(ANTHROPIC_VERSION) {
        return Ok(json(&ModelList::new(&models)));
    }
    let Query(query) =
        query.map_err(|e| ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", e.body_text()))?;
    Ok(json(&ModelPage::new(&models, &query)?))
}

/// `GET /v1/models/{model}`
pub async fn model(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let model = app.admin(app.facade.model(name)).await?;
    Ok(match headers.contains_key(ANTHROPIC_VERSION) {
        true => json(&ModelInfo::from(&model)),
        false => json(&ModelObject::from(&model)),
    })
}
