//! Every way a request can fail, as a status code and a body in OpenAI's shape. One table: [`ApiError::of`]
//! for what the node says, the constructors for what this crate finds by itself. Codes are stable.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use exo_api::anthropic::MessagesError;
use exo_api::ollama::OllamaError;
use exo_api::openai::{ErrorBody, ErrorDetail};
use exo_api::{AdminError, BadParam, GenerateError, RequestPart};
use exo_types::{FailureKind, RequestId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dialect::Dialect;

/// What a handler gives.
pub type Answer = Result<Response, ApiError>;

/// A request that got no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError {
    /// The status code.
    pub status: StatusCode,
    /// OpenAI's class of error.
    pub kind: &'static str,
    /// Stable, for programs.
    pub code: &'static str,
    /// The parameter to change.
    pub param: Option<String>,
    /// To be displayed.
    pub message: String,
    /// When to try again.
    pub retry_after_s: Option<u32>,
    /// The connection cannot be used further: its request was not read to the end.
    pub close: bool,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

/// After a lost stage: placing again takes a moment.
const REPLACE_RETRY_S: u32 = 2;

impl ApiError {
    /// An error without parameter or retry time.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let message = message.into();
        Self { status, kind, code, param: None, message, retry_after_s: None, close: false }
    }

    /// The client's fault.
    pub fn invalid(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, INVALID, code, message)
    }

    /// No or a wrong key.
    pub fn unauthorized(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", code, message)
    }

    /// Not from there.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", code, message)
    }

    /// A bug of exo.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error", message)
    }

    /// Somebody ended the request. No client takes this status for one to try again.
    pub fn cancelled() -> Self {
        let status = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
        Self::invalid(status, "cancelled", "the request was cancelled by the owner of this node")
    }

    /// The server ends before the answer does. Of this request another member may have a copy.
    pub fn shutting_down(resumable: Option<RequestId>) -> Self {
        let what = match resumable {
            Some(id) => format!(
                "another member of its cluster, if there is one, goes on with it within 60 s: `GET /v1/requests/{id}` there, with \
                 `exo-resume` from the head of this answer and its last event's id (or last `exo_id`) as `last-event-id`"
            ),
            None => "ask another node of its cluster, or this one when it runs again".to_owned(),
        };
        let message = format!("the node is shutting down and has ended the answer; {what}");
        Self::unavailable("shutting_down", message, REPLACE_RETRY_S)
    }

    /// Nothing came in time.
    pub fn deadline(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER, "deadline_exceeded", message)
    }

    /// Not now; after so many seconds maybe.
    pub fn unavailable(code: &'static str, message: String, retry_after_s: u32) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message);
        Self { retry_after_s: Some(retry_after_s.max(1)), ..error }
    }

    fn too_many(code: &'static str, message: String, retry_after_s: u32) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", code, message);
        Self { retry_after_s: Some(retry_after_s.max(1)), ..error }
    }

    fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()).filter(|p| !p.is_empty()), ..self }
    }

    /// The connection ends after this answer.
    pub fn closing(self) -> Self {
        Self { close: true, ..self }
    }

    /// As Anthropic's clients read it.
    pub fn anthropic_body(&self, request_id: &str) -> MessagesError {
        let (status, param) = (self.status.as_u16(), self.param.as_deref());
        MessagesError::new(status, self.code, param, self.message.clone(), request_id.to_owned())
    }

    /// As Ollama's clients read it.
    pub fn ollama_body(&self) -> OllamaError {
        OllamaError { error: self.message.clone(), code: self.code.to_owned(), param: self.param.clone() }
    }

    /// As JSON, for a body or an event.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: self.kind.to_owned(),
                param: self.param.clone(),
                code: self.code.to_owned(),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.respond(&self.body());
        // What this says in another dialect is up to who knows in which the request came.
        response.extensions_mut().insert(self);
        response
    }
}

impl ApiError {
    /// The response with this body.
    pub fn respond<T: Serialize>(&self, body: &T) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        } else if self.status.is_server_error() {
            // OpenAI's clients repeat every 5xx unless told that it is useless.
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A part of the address. One that is no text is refused as all else is.
pub struct Path<T>(pub T);

impl<T, S: Send + Sync> FromRequestParts<S> for Path<T>
where
    axum::extract::Path<T>: FromRequestParts<S, Rejection = PathRejection>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Path(part) = axum::extract::Path::from_request_parts(parts, state).await?;
        Ok(Self(part))
    }
}

/// What stands behind the question mark, likewise.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let invalid = |bad: QueryRejection| {
            ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_value", bad.body_text())
        };
        let asked = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        asked.map(|axum::extract::Query(asked)| Self(asked)).map_err(invalid)
    }
}

impl From<PathRejection> for ApiError {
    fn from(bad: PathRejection) -> Self {
        Self::invalid(StatusCode::BAD_REQUEST, "bad_path", bad.body_text())
    }
}

impl From<BadParam> for ApiError {
    fn from(bad: BadParam) -> Self {
        Self::invalid(StatusCode::BAD_REQUEST, bad.kind.code(), bad.message).param(bad.param)
    }
}

impl ApiError {
    /// What a node says of a request in `dialect`.
    pub fn of(dialect: Dialect, error: GenerateError) -> Self {
        use GenerateError as E;
        let message = error.to_string();
        let prompt = || dialect.part_name(RequestPart::Prompt);
        match error {
            E::ModelUnknown { .. } => {
                Self::invalid(StatusCode::NOT_FOUND, "model_not_found", message).param("model")
            }
            E::DoesNotFit { .. } => does_not_fit(message),
            E::LoadFailed { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "model_load_failed", message)
            }
            // Clients of this dialect look for these words.
            E::PromptTooLong { prompt_tokens, context_tokens, .. } if dialect == Dialect::Messages => {
                let room = context_tokens.saturating_sub(1);
                let message =
                    format!("prompt is too long: {prompt_tokens} tokens > {room} maximum: {message}");
                Self::invalid(StatusCode::BAD_REQUEST, "context_length_exceeded", message).param(prompt())
            }
            E::PromptTooLarge { .. } if dialect == Dialect::Messages => {
                let message = format!("prompt is too long: {message}");
                Self::invalid(StatusCode::BAD_REQUEST, "context_length_exceeded", message).param(prompt())
            }
            E::PromptTooLong { .. } | E::PromptTooLarge { .. } => {
                Self::invalid(StatusCode::BAD_REQUEST, "context_length_exceeded", message).param(prompt())
            }
            E::TemplateFailed { .. } => {
                Self::invalid(StatusCode::BAD_REQUEST, "chat_template_failed", message).param(prompt())
            }
            E::Invalid { part, .. } => {
                let name = dialect.part_name(part);
                let message = format!("`{name}`: {message}");
                Self::invalid(StatusCode::BAD_REQUEST, "invalid_value", message).param(name)
            }
            E::QueueFull { retry_after_s, .. } => Self::too_many("queue_full", message, retry_after_s),
            E::SlowReader { .. } => Self::invalid(StatusCode::REQUEST_TIMEOUT, "slow_reader", message),
            E::Unavailable { retry_after_s, .. } => Self::unavailable("unavailable", message, retry_after_s),
            E::Failed { kind, .. } => failed(kind, message),
            E::Deadline { .. } => Self::deadline(message),
            E::Internal { .. } => Self::internal(message),
            // A variant this crate does not know yet still has its own words.
            _ => Self::internal(message),
        }
    }
}

impl From<AdminError> for ApiError {
    fn from(error: AdminError) -> Self {
        use AdminError as E;
        let message = error.to_string();
        match error {
            E::NotFound { what, .. } => {
                Self::invalid(StatusCode::NOT_FOUND, "not_found", message).param(what)
            }
            E::ModelUnknown { .. } => {
                Self::invalid(StatusCode::NOT_FOUND, "model_not_found", message).param("model")
            }
            E::Invalid { param, .. } => {
                Self::invalid(StatusCode::BAD_REQUEST, "invalid_value", message).param(param)
            }
            E::Conflict { .. } => Self::invalid(StatusCode::CONFLICT, "conflict", message),
            E::DoesNotFit { .. } => does_not_fit(message),
            E::Unavailable { retry_after_s, .. } => Self::unavailable("unavailable", message, retry_after_s),
            E::Late { .. } => Self::deadline(message),
            E::Disk { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "disk_failed", message),
            E::Failed { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "failed", message),
            _ => Self::internal(message),
        }
    }
}

fn does_not_fit(message: String) -> ApiError {
    ApiError::new(StatusCode::INSUFFICIENT_STORAGE, SERVER, "insufficient_memory", message).param("model")
}

fn failed(kind: FailureKind, message: String) -> ApiError {
    let broken = |code| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, code, message.clone());
    let again = |code| ApiError::unavailable(code, message.clone(), REPLACE_RETRY_S);
    match kind {
        FailureKind::StageLost => again("stage_lost"),
        FailureKind::InstanceGone => again("instance_gone"),
        FailureKind::QueueFull => ApiError::too_many("queue_full", message, REPLACE_RETRY_S),
        FailureKind::OutOfMemory => again("out_of_memory"),
        FailureKind::Deadline => ApiError::deadline(message),
        FailureKind::Device => broken("device_failed"),
        FailureKind::Protocol => broken("protocol_error"),
        FailureKind::Constraint => broken("constraint_failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, error: ApiError) -> String {
        let retry = error.retry_after_s.map(|s| format!("retry {s} s")).unwrap_or_default();
        let param = error.param.unwrap_or_default();
        format!(
            "{name:<28} {} {:<22} {:<24} {param:<8} {retry}",
            error.status.as_u16(),
            error.kind,
            error.code
        )
        .trim_end()
        .to_owned()
    }

    fn of(error: GenerateError) -> String {
        let name = format!("{error:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
        let kind = if let GenerateError::Failed { kind, .. } = &error {
            format!(" {kind:?}")
        } else {
            String::new()
        };
        line(&(name + &kind), ApiError::of(Dialect::Chat, error))
    }

    #[test]
    fn the_error_table_is_stable() {
        use FailureKind as K;
        let (model, text) = (|| "m".to_owned(), || "x".to_owned());
        let mut lines = vec![
            of(GenerateError::ModelUnknown { model: model(), known: vec![] }),
            of(GenerateError::DoesNotFit { model: model(), needed_bytes: 2, free_bytes: 1, detail: text() }),
            of(GenerateError::LoadFailed { model: model(), reason: text() }),
            of(GenerateError::PromptTooLong { prompt_tokens: 9, context_tokens: 8, cache_tokens: 32 }),
            of(GenerateError::PromptTooLarge { bytes: 9, bytes_max: 8, context_tokens: 4 }),
            of(GenerateError::TemplateFailed { message: text() }),
            of(GenerateError::Invalid { part: RequestPart::Tools, message: text() }),
            of(GenerateError::QueueFull { model: model(), waiting: 3, retry_after_s: 4 }),
            of(GenerateError::SlowReader { unread: 9 }),
            of(GenerateError::Unavailable { reason: text(), retry_after_s: 0 }),
            of(GenerateError::Deadline { waited_ms: 5, reason: text() }),
            of(GenerateError::Internal { message: text() }),
        ];
        let kinds = [
            K::StageLost,
            K::InstanceGone,
            K::QueueFull,
            K::Deadline,
            K::Device,
            K::OutOfMemory,
            K::Protocol,
            K::Constraint,
        ];
        lines.extend(kinds.map(|kind| of(GenerateError::Failed { kind, message: text() })));
        let admin = [
            AdminError::NotFound { what: "instance", name: text() },
            AdminError::ModelUnknown { model: model(), known: vec![] },
            AdminError::Invalid { param: "path".into(), message: text() },
            AdminError::Conflict { message: text() },
            AdminError::DoesNotFit { model: model(), needed_bytes: 2, free_bytes: 1, detail: text() },
            AdminError::Unavailable { reason: text(), retry_after_s: 7 },
            AdminError::Late { message: text() },
            AdminError::Disk { message: text() },
            AdminError::Failed { message: text() },
        ];
        lines.extend(admin.map(|e| {
            let name = format!("admin {e:?}");
            line(name.split(" {").next().unwrap_or_default(), e.into())
        }));
        insta::assert_snapshot!(lines.join("\n"));
    }
}
