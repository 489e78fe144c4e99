//! `/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use exo_api::openai::{Detokenized, RenderedPrompt, Tokenized, TokensBody};
use exo_api::{BadParam, TokenizerQuery, TokensAnswer, TokensQuestion, TokensRequest};
use exo_types::Principal;
use serde_json::Value;

use crate::app::App;
use crate::body::{json, read_json};
use crate::dialect::Dialect;
use crate::errors::{ApiError, Query};

/// `POST /tokenize`
pub async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = |body, _: &str| Ok(TokensBody::parse_tokenize(body)?);
    ask(&app, (principal, request), read, |answer, in_, pieces| json(&Tokenized::new(answer, in_, pieces)))
        .await
}

/// `POST /detokenize`
pub async fn detokenize(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = |body, _: &str| Ok(TokensBody::parse_detokenize(body)?);
    ask(&app, (principal, request), read, |answer, _, _| {
        json(&Detokenized { content: answer.text.clone(), prompt: answer.text })
    })
    .await
}

/// `POST /apply-template`
pub async fn apply_template(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = |body, _: &str| Ok(TokensBody::parse_apply_template(body)?);
    ask(&app, (principal, request), read, |answer, _, _| json(&RenderedPrompt { prompt: answer.text })).await
}

/// `GET /tokenizer_info`
pub async fn tokenizer_info(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    Query(asked): Query<TokenizerQuery>,
) -> Result<Response, ApiError> {
    let model = match asked.model {
        Some(model) => model,
        None => placed_model(&app).await?,
    };
    let question = TokensQuestion::Tokenizer;
    let request = TokensRequest { model, question, principal, with_pieces: false };
    Ok(json(&app.tokens(Dialect::Tokens { asked_in: "model" }, request).await?.tokenizer))
}

async fn ask(
    app: &App,
    (principal, request): (Principal, Request),
    read: fn(Value, &str) -> Result<TokensBody, ApiError>,
    show: fn(TokensAnswer, &'static str, bool) -> Response,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let (body, _lease) = read_json(&parts.headers, body, app, read).await?;
    let (asked_in, with_pieces) = (body.asked_in, body.with_pieces);
    let model = match &body.model {
        Some(model) => model.clone(),
        None => placed_model(app).await?,
    };
    let answer = app.tokens(Dialect::Tokens { asked_in }, body.into_request(principal, model)).await?;
    Ok(show(answer, asked_in, with_pieces))
}

/// The one model that is placed: llama.cpp's clients name none.
async fn placed_model(app: &App) -> Result<String, ApiError> {
    let cluster = app.admin(app.facade.cluster()).await?;
    let mut placed: BTreeSet<String> = cluster.instances.into_iter().map(|instance| instance.model).collect();
    match (placed.len(), placed.pop_first()) {
        (1, Some(model)) => Ok(model),
        (count, _) => {
            let message = format!(
                "`model` is required: {count} models are placed, and only where it is one it may be left out"
            );
            Err(BadParam { message, ..BadParam::missing("model") }.into())
        }
    }
}
