//! Errors in the dialect's shape.

use serde::Serialize;
use utoipa::ToSchema;

/// The body of an answer that is not a success, and of an `error` event within a stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct MessagesError {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error, with its kind and message.
    pub error: MessagesErrorDetail,
    /// As in the header `request-id` and in the logs.
    pub request_id: String,
}

/// Kind and message of an error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct MessagesErrorDetail {
    /// The class: `invalid_request_error`, `not_found_error`, `overloaded_error`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// What was attempted, with which numbers.
    pub message: String,
    /// Extension: stable, for programs, the same as in every dialect.
    pub code: String,
    /// Only where the vendor's packages act on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<MessagesErrorCause>,
}

/// What the vendor's packages look for before they go on in another way by themselves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct MessagesErrorCause {
    /// Always `thread_unsupported_request`: the whole conversation is to be sent, without `thread`.
    pub error_code: String,
}

impl MessagesError {
    /// Of an answer of this status; `param` is the field to change.
    pub fn new(status: u16, code: &str, param: Option<&str>, message: String, request_id: String) -> Self {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            408 | 504 => "timeout_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        // Runners of tools ask for a thread unasked, and go on without one only at this.
        let details = (param == Some("thread"))
            .then(|| MessagesErrorCause { error_code: "thread_unsupported_request".to_owned() });
        let error = MessagesErrorDetail { kind: kind.to_owned(), message, code: code.to_owned(), details };
        Self { kind: "error".to_owned(), error, request_id }
    }
}
