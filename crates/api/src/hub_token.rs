//! The token of a hub, in requests that bring one.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token for a hub. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct HubToken(pub String);

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubToken(***)")
    }
}
