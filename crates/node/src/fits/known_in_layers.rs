//! Models of hubs that this node knows before they are whole anywhere, each node with layers of it.
//!
//! Who looks at a reference has read heads of its files for their shape, which is less than an identity is
//! made of. So a model is recognised by what its manifest says of the hub: repository, commit, and path and
//! digest of each file (decision 0054). A name says nothing: files of two repositories, and of two commits of
//! one, may have the same. Of a model that other nodes know and this one does not, nothing is counted.

use std::sync::Arc;

use exo_api::AdminError;
use exo_hub::FetchPlan;
use exo_store::{HubFile, HubSource, Store, StoreError};
use exo_types::{DiskRoom, ModelId, NodeId};

use crate::events::EventSender;
use crate::questions::plan_facts;
use exo_accelerators::chain;

/// A model that this node knows in layers.
#[derive(Clone, Debug)]
pub struct KnownInLayers {
    /// Which files of which commit it is.
    pub source: HubSource,
    /// The room that the disks of nodes have for it, with what they have of it.
    pub disks: Vec<(NodeId, DiskRoom)>,
}

impl KnownInLayers {
    /// Whether these are the files of a plan.
    pub(super) fn is_of(&self, plan: &FetchPlan) -> bool {
        let HubSource { repo, commit, files, .. } = &self.source;
        let is_planned = |file: &HubFile| {
            plan.files.iter().any(|planned| planned.name == file.path && planned.digest() == file.sha256)
        };
        repo.eq_ignore_ascii_case(&plan.repo)
            && plan.commit.as_ref() == Some(commit)
            && files.iter().all(is_planned)
    }
}

/// Those of a repository.
pub(crate) async fn known_in_layers(
    node: &EventSender,
    store: Arc<Store>,
    repo: &str,
) -> Result<Vec<KnownInLayers>, AdminError> {
    let repo = repo.to_owned();
    let found = tokio::task::spawn_blocking(move || sources(&store, &repo)).await;
    let failed = |message: String| AdminError::Failed { message };
    let found = found.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(chain(&e)))?;
    let mut known = Vec::new();
    for (id, source) in found {
        let disks = plan_facts(node, id).await?.disks;
        known.push(KnownInLayers { source, disks });
    }
    Ok(known)
}

fn sources(store: &Store, repo: &str) -> Result<Vec<(ModelId, HubSource)>, StoreError> {
    let in_layers = store.list()?.into_iter().filter(|record| record.is_of_hub);
    let source = |id| Some((id, store.manifest(id).ok()?.hub.clone()?));
    let found = in_layers.filter_map(|record| source(record.id));
    Ok(found.filter(|(_, source)| source.repo.eq_ignore_ascii_case(repo)).collect())
}
