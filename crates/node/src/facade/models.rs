//! The models that are known: shown, added, removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exo_api::{AdminError, InstanceState, InstanceView, ModelView, NodeView};
use exo_hub::Origin;
use exo_machine::{Answer, ModelHolders, Question};
use exo_stdx::unix_s;
use exo_store::{ModelRecord, Store, StoreError};
use exo_types::ModelId;

use super::model_uses::unloads_unix_s;
use super::{ANSWER_MAX, NodeFacade};
use crate::bulk::{FetchError, Fetcher, MemberError};
use crate::details::Details;
use crate::library::{Library, modified_unix_s};
use crate::library_error::LibraryError;
use crate::questions::{NoAnswer, blocking};
use exo_accelerators::chain;

/// For one member to say what it has.
const MEMBER_MAX: Duration = Duration::from_secs(10);
/// For members to have said it before a list is made.
const LIST_WAITS_MAX: Duration = Duration::from_millis(300);

async fn ask_member(library: Arc<Library>, node: NodeView, models: Vec<ModelId>) {
    let asked = async {
        let mut member = Fetcher::dial_member(library.endpoint(), &node).await?;
        for model in &models {
            match member.details(*model).await {
                Ok(told) => library.tell(*model, Some(told)),
                Err(error @ FetchError::Refused { .. }) => {
                    tracing::debug!(peer = %node.name, %model, %error, "a member says nothing of a model");
                    library.tell(*model, None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    let late = |_| Err(MemberError::Late { seconds: MEMBER_MAX.as_secs() });
    if let Err(error) = tokio::time::timeout(MEMBER_MAX, asked).await.unwrap_or_else(late) {
        tracing::debug!(peer = %node.name, reason = chain(&error), "a member says nothing of its models");
        models.iter().for_each(|model| library.tell(*model, None));
    }
    library.end_asking(&node.id);
}

impl NodeFacade {
    pub(super) async fn list_models(&self, question: Question) -> Result<Vec<ModelView>, AdminError> {
        let held = match self.ask(question, ANSWER_MAX).await {
            Ok(Answer::Models(held)) => held,
            other => return Err(AdminError::from(NoAnswer::of(other))),
        };
        // The disk is read off the threads that answer, and the list of models once for all of them.
        let store = self.library.store().clone();
        let records = blocking(move || records_of(&store)).await?;
        self.ask_of_others(&held, &records).await;
        let store = self.library.store().clone();
        let shown = move |held: ModelHolders| {
            let local = records.get(&held.id);
            let is_here = local.is_some_and(|r| r.complete || r.is_of_hub);
            (held.id, is_here, model_view(&store, held, local))
        };
        let mut views = Vec::new();
        for (id, is_here, mut view) in blocking(|| held.into_iter().map(shown).collect::<Vec<_>>()).await? {
            let details = match is_here {
                true => self.library.details(id).await.ok(),
                false => self.library.told(id).0.map(|told| {
                    view.added_unix_s = told.added_unix_s;
                    told.details
                }),
            };
            if let Some(details) = details {
                describe(&mut view, details);
            }
            views.push(view);
        }
        self.say_of_requests(&mut views).await;
        Ok(views)
    }

    /// What a request for each has: how it names the model, the context, and until when the model is loaded.
    async fn say_of_requests(&self, views: &mut [ModelView]) {
        for name in shared_names(views) {
            // Where this fails the next list says it.
            let Ok(meant) = self.resolve(&name).await else { continue };
            let meant = meant.id.to_full();
            let so_named = views.iter_mut().filter(|view| view.name == name);
            so_named.for_each(|view| view.needs_id = view.id != meant);
        }
        let (cluster, usual) = (self.view.borrow().clone(), self.config.usual_cache());
        let now = unix_s();
        for view in views {
            let of = |instance: &&InstanceView| {
                instance.model_id == view.id && !matches!(instance.state, InstanceState::Failed { .. })
            };
            view.context_tokens = match cluster.instances.iter().find(of) {
                Some(instance) => {
                    let used = view.id.parse().map_or(0, |id| self.model_uses.last(id));
                    let after = self.config.unload_idle_after;
                    view.unloads_unix_s = unloads_unix_s(instance, after, used, now);
                    instance.context_tokens
                }
                None if view.context_tokens_max == 0 => 0,
                None => usual.shape(view.context_tokens_max).map_or(0, |(context, _)| context),
            };
        }
    }

    /// The model that a request of this name is answered by.
    pub(super) async fn find_model(&self, wanted: String) -> Result<ModelView, AdminError> {
        let resolved = self.resolve(&wanted).await.map_err(|m| m.for_admin(&wanted))?;
        let id = resolved.id.to_full();
        let listed = self.list_models(Question::Models).await?;
        if let Some(model) = listed.into_iter().find(|model| model.id == id) {
            return Ok(model);
        }
        // It is loaded, and no list has what no one has the file of.
        let details = Details::of(&self.library.open(resolved.id, &resolved.holders).await?.model);
        let instances = self.instances().await?.into_iter().filter(|i| i.model() == resolved.id);
        let held = ModelHolders {
            id: resolved.id,
            name: resolved.name,
            bytes: details.weight_bytes,
            nodes: Vec::new(),
            node_names: Vec::new(),
            whole_on: Vec::new(),
            instances: instances.map(|i| i.instance()).collect(),
        };
        let store = self.library.store().clone();
        let mut view = blocking(move || model_view(&store, held, None)).await?;
        describe(&mut view, details);
        Ok(view)
    }

    /// Has members asked about models that they alone have. The list waits a moment; what comes later is in
    /// the next one.
    async fn ask_of_others(&self, held: &[ModelHolders], records: &BTreeMap<ModelId, ModelRecord>) {
        let view = self.view.borrow().clone();
        let mut of_members: BTreeMap<&str, (&NodeView, Vec<ModelId>)> = BTreeMap::new();
        for model in held.iter().filter(|model| self.library.told(model.id).1) {
            if records.get(&model.id).is_some_and(|record| record.complete) {
                continue;
            }
            let holders: Vec<String> = model.whole_on.iter().map(|node| node.to_full()).collect();
            let holder = view.nodes.iter().find(|node| !node.is_self && holders.contains(&node.id));
            if let Some(node) = holder {
                of_members.entry(&node.id).or_insert((node, Vec::new())).1.push(model.id);
            }
        }
        let asks = of_members.into_values().filter(|(node, _)| self.library.begin_asking(&node.id));
        let asks: Vec<_> = asks
            .map(|(node, models)| tokio::spawn(ask_member(self.library.clone(), node.clone(), models)))
            .collect();
        if !asks.is_empty() {
            let all = futures_util::future::join_all(asks);
            let _ = tokio::time::timeout(LIST_WAITS_MAX, all).await;
        }
    }

    pub(super) async fn add(&self, path: String, name: Option<String>) -> Result<ModelView, AdminError> {
        let added = crate::adding::add(&self.library, PathBuf::from(path), name).await;
        let refused = |error: LibraryError| match error {
            LibraryError::Store(StoreError::DiskFull { .. }) => AdminError::from(error),
            error => AdminError::invalid("path", chain(&error)),
        };
        let record = added.map_err(refused)?;
        let models = self.list_models(Question::ModelsAfterScan).await?;
        let id = record.id.to_full();
        let found = models.into_iter().find(|m| m.id == id);
        found
            .ok_or_else(|| AdminError::Failed { message: "the model was added but is not listed".to_owned() })
    }

    pub(super) async fn keep(&self, wanted: String, kept: bool) -> Result<ModelView, AdminError> {
        let resolved = self.resolve(&wanted).await.map_err(|m| m.for_admin(&wanted))?;
        let (store, id) = (self.library.store().clone(), resolved.id);
        let noted = blocking(move || match store.record(id) {
            Ok(_) => store.keep(id, kept).map(|()| true),
            Err(StoreError::UnknownModel { .. }) => Ok(false),
            Err(error) => Err(error),
        });
        if !noted.await?.map_err(|e| AdminError::Failed { message: chain(&e) })? {
            return Err(not_here(&wanted));
        }
        let (models, id) = (self.list_models(Question::Models).await?, resolved.id.to_full());
        let found = models.into_iter().find(|m| m.id == id);
        found.ok_or_else(|| AdminError::Failed { message: "the model is not listed any more".to_owned() })
    }

    pub(super) async fn remove(&self, wanted: String) -> Result<(), AdminError> {
        let resolved = self.resolve(&wanted).await.map_err(|m| m.for_admin(&wanted))?;
        let views = self.list_models(Question::Models).await?;
        let names = [Some(wanted.as_str()), exo_api::ollama::untagged(&wanted)].into_iter().flatten();
        if let Some(message) = names.into_iter().find_map(|name| several(&views, name)) {
            return Err(AdminError::Conflict { message });
        }
        let instances = self.instances().await?;
        if let Some(instance) = instances.iter().find(|i| i.model() == resolved.id) {
            let message = format!("`{wanted}` is placed as {}; unload it first", instance.instance());
            return Err(AdminError::Conflict { message });
        }
        if let Some(reason) = self.library.room.why_needed(resolved.id) {
            return Err(AdminError::Conflict { message: format!("`{wanted}` {reason}") });
        }
        let library = self.library.clone();
        let removed = blocking(move || match library.store().record(resolved.id) {
            Ok(_) => {
                library.forget(resolved.id);
                library.store().remove(resolved.id).map(|_| true)
            }
            Err(StoreError::UnknownModel { .. }) => Ok(false),
            Err(error) => Err(error),
        });
        match removed.await? {
            Ok(true) => self.list_models(Question::ModelsAfterScan).await.map(drop),
            Ok(false) => Err(not_here(&wanted)),
            Err(error) => Err(AdminError::Failed { message: chain(&error) }),
        }
    }
}

/// Names that more than one model has.
fn shared_names(views: &[ModelView]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    views.iter().filter(|view| !seen.insert(view.name.as_str())).map(|view| view.name.clone()).collect()
}

/// What is deleted is not left to a rule: why a name does not say it.
fn several(views: &[ModelView], wanted: &str) -> Option<String> {
    let so_named: Vec<&ModelView> = views.iter().filter(|view| view.name == wanted).collect();
    let of = |view: &&ModelView| format!("{} (on {})", view.id, view.nodes.join(", "));
    let ids: Vec<String> = so_named.iter().map(of).collect();
    (ids.len() > 1).then(|| {
        format!("{} models are called `{wanted}`: say which by its id: {}", ids.len(), ids.join("; "))
    })
}

/// What the disk has, by id.
fn records_of(store: &Store) -> BTreeMap<ModelId, ModelRecord> {
    let records = store.list().unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "the list of models cannot be read");
        Vec::new()
    });
    records.into_iter().map(|record| (record.id, record)).collect()
}

fn describe(view: &mut ModelView, details: Details) {
    view.architecture = details.architecture;
    view.format = details.format;
    view.weight_bytes = details.weight_bytes;
    view.parameters = details.parameters;
    view.layers = details.layers;
    view.context_tokens_max = details.context_tokens_max;
    view.chat = details.chat;
    view.tools = Some(details.tools);
    view.dtypes = details.dtypes;
}

/// What is known of a model without opening it. One that only others have is shown by what they say of it.
fn model_view(store: &Store, held: ModelHolders, local: Option<&ModelRecord>) -> ModelView {
    let mut view = ModelView {
        id: held.id.to_full(),
        name: held.name,
        weight_bytes: held.bytes,
        path: local.map(|r| r.path.display().to_string()),
        nodes: held.node_names,
        chat: true,
        instances: held.instances.iter().map(ToString::to_string).collect(),
        added_unix_s: local.map_or(0, |r| modified_unix_s(&r.path)),
        kept: local.is_some_and(|r| r.is_kept),
        used_unix_s: local.map(|r| r.used_unix_s).filter(|at| *at > 0),
        ..ModelView::default()
    };
    let checked = local.and_then(|record| record.checked);
    if let Some(origin) = local.and_then(|r| Origin::beside(&r.path)) {
        let differs = if checked == Some(false) { ", NOT what the hub promised" } else { "" };
        view.source = Some(origin.label() + differs);
        view.licence = Some(origin.licence.label().to_owned());
    }
    let hub = store.manifest(held.id).ok().and_then(|manifest| manifest.hub.clone());
    if let Some(hub) = hub {
        let how = match checked {
            Some(true) => "verified",
            Some(false) => "NOT what the hub promised",
            None => "not verified",
        };
        view.source = Some(format!("{} in parts, {how}", hub.name()));
        view.licence = Some(hub.licence);
    }
    view
}

fn not_here(wanted: &str) -> AdminError {
    let message = format!("`{wanted}` is not on this machine's disk; each machine keeps what it has");
    AdminError::Conflict { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(id: &str, name: &str) -> ModelView {
        let view = serde_json::json!({
            "id": id, "name": name, "architecture": "", "format": "", "weight_bytes": 1, "layers": 1,
            "context_tokens_max": 1, "path": null, "nodes": ["desk"], "chat": true,
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn a_name_of_two_models_does_not_say_which_one_to_delete() {
        let views = [view("aa", "m"), view("bb", "m"), view("cc", "n")];
        assert_eq!(shared_names(&views), BTreeSet::from(["m".to_owned()]));
        let message = several(&views, "m").unwrap();
        assert_eq!(message, "2 models are called `m`: say which by its id: aa (on desk); bb (on desk)");
        assert_eq!((several(&views, "n"), several(&views, "aa")), (None, None));
    }
}
