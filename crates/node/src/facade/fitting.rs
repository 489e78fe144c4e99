//! Which models fit the cluster as it is, beside what runs.

use std::sync::Arc;
use std::time::Duration;

use exo_api::AdminError;
use exo_api::fits::{FitsQuery, FitsView};
use exo_hub::{Cancel, HubError};
use exo_machine::Resolved;

use super::placing::searched;
use super::{Missing, NodeFacade, unavailable};
use crate::fits::{self, FitsCluster, KnownModel, ReferenceError};
use exo_accelerators::chain;

/// For the heads of a hub's files, and for planning: shorter than what the server waits.
const FITS_MAX: Duration = Duration::from_secs(28);

impl NodeFacade {
    /// All of the catalogue, or the one that is asked for.
    pub(super) async fn which_fit(&self, query: FitsQuery) -> Result<FitsView, AdminError> {
        let named = query.context_tokens;
        let context_tokens = named.unwrap_or(self.config.context_tokens);
        if context_tokens == 0 {
            return Err(AdminError::invalid("context_tokens", "a context has at least one token"));
        }
        let (data_dir, cancel) = (self.config.data_dir.clone(), Arc::new(Cancel::default()));
        let (endpoint, token) = (query.endpoint.as_deref(), query.token.as_ref().map(|t| t.0.as_str()));
        let settings = self.downloads.settings().await?;
        let settings = settings.and_then(|settings| settings.aimed(endpoint, token));
        let known = match &query.reference {
            Some(text) if fits::may_be_known(text) => self.known_model(text).await?,
            _ => None,
        };
        let id = known.as_ref().map(|known| known.id);
        let now = match query.reference.as_deref().and_then(fits::hub_reference) {
            Some(reference) => self.downloads.cluster_for(&reference).await?,
            None => FitsCluster::now(&self.node, &self.view, self.config.usual_cache(), id).await?,
        };
        let mut cluster = FitsCluster { context_tokens, ..now };
        if let Some(known) = &known {
            cluster.disks.retain(|(node, _)| !known.holders.contains(node));
        }
        let (reference, wish) = (query.reference, cancel.clone());
        // Plans for every size of a model, or for the whole catalogue.
        let work = searched(move || match (known, reference) {
            (Some(known), _) => Ok(fits::fit_model(&cluster, &known)),
            (None, None) => Ok(fits::fit_catalogue(&cluster)),
            (None, Some(text)) => fits::fit_one(&cluster, &text, settings, &data_dir, &wish),
        });
        let Ok(found) = tokio::time::timeout(FITS_MAX, work).await else {
            cancel.cancel();
            return Err(unavailable("the hub has not answered in time"));
        };
        found?.map(|view| fits::within_context(view, named)).map_err(|error| match error {
            ReferenceError::Disk { .. } => AdminError::Failed { message: chain(&error) },
            ReferenceError::Hub(HubError::Reference { .. }) | ReferenceError::Unknown(_) => {
                AdminError::invalid("reference", chain(&error))
            }
            error => {
                let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                AdminError::Conflict { message: format!("{}{hint}", chain(&error)) }
            }
        })
    }

    /// The model that this cluster knows by this name or id, if it knows one.
    async fn known_model(&self, text: &str) -> Result<Option<KnownModel>, AdminError> {
        let resolved = match self.resolve(text).await {
            Ok(resolved) => resolved,
            Err(Missing::Unknown { .. }) => return Ok(None),
            Err(missing) => return Err(missing.for_admin(text)),
        };
        let described = self.library.describe(resolved.id, &resolved.holders);
        let Ok(model) = tokio::time::timeout(FITS_MAX, described).await else {
            return Err(unavailable("no node that has the model has described it in time"));
        };
        let model = model?;
        let Resolved { id, name, holder_nodes: holders, .. } = resolved;
        Ok(Some(KnownModel { id, name, model, holders }))
    }
}
