//! `/v1/models` in the dialect's shape.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fields::BadParam;
use crate::view::ModelView;

/// Models of a page where no number is asked for, as documented.
const PAGE_MODELS: usize = 20;
/// Most models of a page.
const PAGE_MODELS_MAX: usize = 1000;

/// Which page of the list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct PageQuery {
    /// At most so many models, 1 to 1000. Default 20.
    pub limit: Option<usize>,
    /// Those behind this one.
    pub after_id: Option<String>,
    /// Those before this one.
    pub before_id: Option<String>,
}

/// A page of the models that can be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct ModelPage {
    /// The models, by name.
    pub data: Vec<ModelInfo>,
    /// Whether there are more in the direction that was asked for.
    pub has_more: bool,
    /// The first of the page.
    pub first_id: Option<String>,
    /// The last of the page.
    pub last_id: Option<String>,
}

/// One model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct ModelInfo {
    /// Always `model`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What to send as `model`.
    pub id: String,
    /// The model's name, the same as `id`.
    pub display_name: String,
    /// When the model became known.
    pub created_at: String,
    /// Always `active`.
    pub lifecycle: String,
    /// Tokens of the longest context that a request has now.
    pub max_input_tokens: u32,
    /// The same: prompt and answer share it.
    pub max_tokens: u32,
}

impl From<&ModelView> for ModelInfo {
    fn from(view: &ModelView) -> Self {
        let added = i64::try_from(view.added_unix_s).ok().and_then(|s| DateTime::from_timestamp(s, 0));
        let added: DateTime<Utc> = added.unwrap_or_default();
        Self {
            kind: "model".to_owned(),
            id: view.request_name().to_owned(),
            display_name: view.name.clone(),
            created_at: added.to_rfc3339_opts(SecondsFormat::Secs, true),
            lifecycle: "active".to_owned(),
            max_input_tokens: view.context_tokens_usable(),
            max_tokens: view.context_tokens_usable(),
        }
    }
}

impl ModelPage {
    /// The page of `views` that `query` asks for, of one name the model that it means.
    pub fn new(views: &[ModelView], query: &PageQuery) -> Result<Self, BadParam> {
        let limit = query.limit.unwrap_or(PAGE_MODELS);
        if !(1..=PAGE_MODELS_MAX).contains(&limit) {
            let message = format!("`limit` is {limit}, it must be between 1 and {PAGE_MODELS_MAX}");
            return Err(BadParam::invalid("limit", message));
        }
        let views: Vec<&ModelView> = views.iter().filter(|view| !view.needs_id).collect();
        let place = |id: &String, param: &str| {
            let found = views.iter().position(|view| view.name == *id);
            found.ok_or_else(|| BadParam::invalid(param, format!("there is no model `{id:.100}`")))
        };
        let from =
            query.after_id.as_ref().map(|id| place(id, "after_id")).transpose()?.map_or(0, |at| at + 1);
        let to =
            query.before_id.as_ref().map(|id| place(id, "before_id")).transpose()?.unwrap_or(views.len());
        let all = views.get(from..to).unwrap_or_default();
        let has_more = all.len() > limit;
        // What comes before a model is read from it backwards.
        let page = match query.before_id.is_some() && query.after_id.is_none() {
            true => &all[all.len() - limit.min(all.len())..],
            false => &all[..limit.min(all.len())],
        };
        let data: Vec<ModelInfo> = page.iter().map(|view| ModelInfo::from(*view)).collect();
        let (first_id, last_id) = (data.first().map(|m| m.id.clone()), data.last().map(|m| m.id.clone()));
        Ok(Self { data, has_more, first_id, last_id })
    }
}
