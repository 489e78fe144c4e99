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

/// One model of the list.
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
    /// Extension: tokens of the longest context that a request has now, prompt and answer.
    pub context_length: u32,
}

impl From<&ModelView> for ModelObject {
    fn from(view: &ModelView) -> Self {
        Self {
            id: view.request_name().to_owned(),
            object: "model".to_owned(),
            created: view.added_unix_s,
            owned_by: "exo".to_owned(),
            context_length: view.context_tokens_usable(),
        }
    }
}

impl ModelList {
    /// The list of `views`: of one name the model that it means.
    pub fn new(views: &[ModelView]) -> Self {
        let meant = views.iter().filter(|view| !view.needs_id);
        Self { object: "list".to_owned(), data: meant.map(ModelObject::from).collect() }
    }
}
