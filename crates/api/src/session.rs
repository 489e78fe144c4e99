//! How a browser gets in: a code that is good once becomes a session.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A code that becomes a session, once. It belongs behind `#code=` in the address of the page, where no
/// server and no log sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CodeView {
    /// Code that lets its bearer in.
    pub code: String,
    /// Seconds for which the code is good, and once.
    pub expires_in_s: u64,
}

/// Asks for a session: with a code, or with the local secret.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// The code that `exo open` gave out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What the file `api-secret` of the data folder holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// What the sender of a request may do here.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// What every request of the page sends as its bearer token, in the answer that begins the session and in
    /// no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What its token or key opens.
    pub access: SessionAccess,
    /// The node that answers.
    pub node: String,
    /// Name of the node that answers.
    pub name: String,
    /// Version of exo on that node.
    pub version: String,
    /// A session ends when nothing was asked in it for so long; `null` for keys, which do not end.
    pub idle_max_s: Option<u64>,
    /// The request came from another machine over plain HTTP: whoever is on the way reads it.
    pub plain_http: bool,
    /// Programs that ask this listener need an API key, from this machine too.
    pub needs_key: bool,
}

/// What a token or key opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionAccess {
    /// Everything, administration included.
    Owner,
    /// Answers of models, and the state of the cluster to look at.
    Viewer,
    /// Answers of models and nothing else.
    Chat,
}
