//! `GET /v1/models`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::view::ModelView;

/// The models that can be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: String,
    /// The models, by name.
    pub data: Vec<ModelObject>,
}

/// One model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelObject {
    /// What to send as `model`.
    pub id: String,
    /// Always `model`.
    pub object: String,
    /// When it became known, seconds since 1970.
    pub created: u64,
    /// Always `exo`.
    pub owned_by: String,
    /// Extension: longest context in tokens.
    pub context_length: u32,
}

impl From<&ModelView> for ModelObject {
    fn from(view: &ModelView) -> Self {
        Self {
            id: view.name.clone(),
            object: "model".to_owned(),
            created: view.added_unix_s,
            owned_by: "exo".to_owned(),
            context_length: view.context_tokens_max,
        }
    }
}

impl ModelList {
    /// The list of `views`.
    pub fn new(views: &[ModelView]) -> Self {
        Self { object: "list".to_owned(), data: views.iter().map(ModelObject::from).collect() }
    }
}
