//! Errors in OpenAI's shape.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success, and of an `error` event within a stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong, and its code.
    pub error: ErrorDetail,
}

/// What went wrong, and its code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// For people: what was attempted, with which numbers.
    pub message: String,
    /// The class: `invalid_request_error`, `authentication_error`, `permission_error`, `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter to change, where it is one.
    pub param: Option<String>,
    /// Code of the error; stable, for programs.
    pub code: String,
}
