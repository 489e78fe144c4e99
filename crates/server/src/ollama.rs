//! `/api/*`: events to Ollama's lines and answers, and its lists of models.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use exo_api::ollama::{
    NamedModel, OllamaAnswer, OllamaModels, OllamaPull, OllamaRequest, OllamaShow, OllamaStream,
    OllamaVersion, OllamaWhole, models::created_at,
};
use exo_api::{AdminError, GenerateEvent, Summary, TokensQuestion, TokensRequest};
use exo_types::Principal;
use serde::Serialize;

use crate::app::App;
use crate::body::{json, read_json};
use crate::dialect::Dialect;
use crate::encode::{Chunks, Whole};
use crate::errors::ApiError;
use crate::generate::{IncomingRequest, PostedRequest, read, stream, whole};
use crate::resumed::Resumed;
use crate::ticket::recorded;

/// Lines of JSON.
const LINES: &str = "application/x-ndjson";

/// `POST /api/chat`
pub async fn chat(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let asked = OllamaRequest::parse_chat(body)?.with_arguments_of(text);
        Ok((record_of(&asked, text), asked))
    };
    answer(&app, read(&app, posted, take).await?).await
}

/// `POST /api/generate`
pub async fn generate(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let asked = OllamaRequest::parse_generate(body)?;
        Ok((record_of(&asked, text), asked))
    };
    answer(&app, read(&app, posted, take).await?).await
}

/// Where only a model is loaded there is no answer that could go on elsewhere.
fn record_of(asked: &OllamaRequest, text: &str) -> Option<Vec<u8>> {
    recorded(asked.streams && !asked.only_loads, text)
}

async fn answer(
    app: &Arc<App>,
    asked: IncomingRequest<(Option<Vec<u8>>, OllamaRequest)>,
) -> Result<Response, ApiError> {
    let IncomingRequest { body: (record, asked), context, origin, lease: _lease } = asked;
    let fold = OllamaStream::new(context.request.to_string(), created_at(origin.created), &asked);
    let (streams, is_chat) = (asked.streams, asked.is_chat);
    let (dialect, endpoint) = match is_chat {
        true => (Dialect::Ollama { is_chat }, Resumed::OllamaChat),
        false => (Dialect::Ollama { is_chat }, Resumed::OllamaGenerate),
    };
    let request = asked.into_generate(context)?;
    let ticket = origin.ticket(app, endpoint, &request, record)?;
    if streams && !ticket.is_whole {
        let fold = if ticket.has_ids() { fold.with_ids() } else { fold };
        stream(app, dialect, request, OllamaChunks(fold), ticket).await
    } else {
        whole(app, dialect, request, WholeAnswer(OllamaWhole::new(fold)), ticket).await
    }
}

/// `GET /api/tags`
pub async fn tags(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    Ok(json(&OllamaModels::known(&app.admin(app.facade.models()).await?)))
}

/// `GET /api/ps`
pub async fn ps(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let models = app.admin(app.facade.models()).await?;
    Ok(json(&OllamaModels::placed(&app.admin(app.facade.cluster()).await?, &models)))
}

/// `GET /api/version`
pub async fn version(State(app): State<Arc<App>>) -> Response {
    json(&OllamaVersion::new(app.facade.health().version))
}

/// The model that a request names.
async fn named_model(app: &App, request: Request) -> Result<NamedModel, ApiError> {
    let (parts, body) = request.into_parts();
    Ok(read_json(&parts.headers, body, app, |body, _| Ok(NamedModel::parse(body)?)).await?.0)
}

/// `POST /api/show`
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let named = named_model(&app, request).await?;
    let view = app.admin(app.facade.model(named.model)).await?;
    let (model, question) = (view.id.clone(), TokensQuestion::Capabilities);
    let request = TokensRequest { model, question, principal, with_pieces: false };
    let answer = app.tokens(DIALECT, request).await?;
    Ok(json(&OllamaShow::new(&view, answer.capabilities)))
}

/// `POST /api/pull`: what is here already is all that a client may have.
pub async fn pull(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let named = named_model(&app, request).await?;
    let success = OllamaPull { status: "success".to_owned() };
    let known = app.facade.model(named.model.clone());
    let known = app.admin(async {
        match known.await {
            Err(AdminError::ModelUnknown { .. }) => Ok(false),
            found => found.map(|_| true),
        }
    });
    match known.await? {
        true if named.streams => Ok(lines(line(&success))),
        true => Ok(json(&success)),
        false => {
            let message = format!(
                "no model `{:.200}` is here, and clients bring none: `exo pull` does, on one of the cluster's machines",
                named.model
            );
            Err(ApiError::invalid(StatusCode::NOT_FOUND, "model_not_found", message))
        }
    }
}

/// What would change models.
pub async fn refused(request: Request) -> ApiError {
    let path = request.uri().path();
    let why = match path.trim_start_matches("/api/").split('/').next() {
        Some("create" | "copy" | "blobs") => {
            "clients do not change models, `exo models add` makes a file known"
        }
        Some("delete") => "clients do not change models, `exo models remove` forgets one",
        _ => "models go from here to no registry",
    };
    let message = format!("`{path:.100}` is not supported: {why}");
    ApiError::invalid(StatusCode::FORBIDDEN, "unsupported_operation", message)
}

const DIALECT: Dialect = Dialect::Ollama { is_chat: false };

fn line<T: Serialize>(value: &T) -> String {
    // JSON of plain values always serialises, and never holds a line break.
    serde_json::to_string(value).expect("plain values serialise") + "\n"
}

fn lines(text: String) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(LINES));
    response
}

/// Lines of a streamed answer.
struct OllamaChunks(OllamaStream);

impl Chunks for OllamaChunks {
    fn content_type(&self) -> &'static str {
        LINES
    }

    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        if let Some(answer) = self.0.push(event) {
            out.push_str(&line(&answer));
        }
    }

    fn keep_alive(&self, _waiting_for: Option<&str>, out: &mut String) {
        out.push_str(&line(&self.0.nothing()));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&line(&error.ollama_body()));
    }
}

/// The whole answer.
struct WholeAnswer(OllamaWhole);

impl Whole for WholeAnswer {
    type Answer = OllamaAnswer;

    fn push(&mut self, event: GenerateEvent) {
        self.0.push(event);
    }

    fn finish(mut self, summary: &Summary) -> Option<OllamaAnswer> {
        self.0.push(GenerateEvent::Done(summary.clone()));
        self.0.finish()
    }
}
