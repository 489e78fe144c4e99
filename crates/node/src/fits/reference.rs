//! A model of a hub that is not in the catalogue: the heads of its files are read, and planned like any other.
//!
//! A skeleton of the model is made in a temporary folder: files of the right length that are holes behind their heads, so that `formats`
//! opens them as it opens any model. No weights are fetched.

use std::path::Path;

use exo_api::fits::{FitVerdict, FitView};
use exo_hub::{Cancel, Client, HubReference, Plan, Reference};

use super::{FitsCluster, SizedModel, judge};
use crate::heads::HeadReader;
use crate::planning;
use crate::reference_error::ReferenceError;

/// Bytes that are read of a hub for one reference.
const BYTES_MAX: u64 = 20 << 20;
/// The first bytes of a file that are asked for: a small vocabulary fits.
const FIRST_BYTES: u64 = 1 << 20;
/// Types of a repository that are tried until one fits.
const TRIES_MAX: usize = 3;

/// Whether a model of a hub fits. `folder` is empty and its content can be thrown away afterwards. Blocks.
pub fn fit_reference(
    cluster: &FitsCluster,
    client: &Client,
    hub: &HubReference,
    folder: &Path,
    cancel: &Cancel,
) -> Result<FitView, ReferenceError> {
    let snapshot = client.snapshot(hub, cancel)?;
    let variants = exo_hub::variants(&snapshot);
    let is_wanted =
        |label: &str| hub.quantisation.as_deref().is_none_or(|wanted| label.eq_ignore_ascii_case(wanted));
    let is_named = hub.quantisation.is_some() || hub.file.is_some();
    let usable = variants.iter().filter(|v| v.problem.is_none() && v.is_supported && is_wanted(&v.label));
    // What is larger than all memory needs no look, but the smallest is looked at in any case.
    let memory = cluster.memory_free_bytes();
    let mut labels: Vec<&str> = usable.clone().filter(|v| v.bytes() <= memory).map(|v| &*v.label).collect();
    if labels.is_empty() {
        labels.extend(usable.clone().next_back().map(|v| &*v.label));
    }
    let mut reader = HeadReader::new(client, cancel, folder, FIRST_BYTES, BYTES_MAX);
    let mut models = Vec::new();
    let mut plan = None;
    for label in labels.into_iter().take(if is_named { 1 } else { TRIES_MAX }) {
        let mut one = hub.clone();
        one.revision = Some(snapshot.commit.clone());
        if hub.file.is_none() {
            one.quantisation = Some(label.to_owned());
        }
        let found = exo_hub::resolve(client, &Reference::Hub(one), None, cancel)?;
        let model = match reader.open(&found) {
            // A second description does not fit into what is read: the first one says enough.
            Err(ReferenceError::TooLarge { .. }) if !models.is_empty() => break,
            other => sized(cluster, &found, &other?),
        };
        let fits = exo_planner::plan(&cluster.request(&model, cluster.context_tokens)).is_ok();
        models.push(model);
        plan = Some(found);
        if fits {
            break;
        }
    }
    let Some(plan) = plan else {
        let summary = "the repository has no model of a type that exo computes with".to_owned();
        return Ok(FitView { summary, ..empty(hub, &snapshot.licence) });
    };
    let shape = models.first().map(|m| &m.shape);
    let view = FitView {
        parameters: shape
            .map_or(0, |s| s.layers.iter().map(|l| l.flops_per_token / 2).sum::<u64>() + tables(s)),
        context_tokens_max: shape.map_or(0, |s| s.context_tokens_max),
        ..empty(hub, &plan.licence)
    };
    Ok(judge(cluster, view, &models))
}

/// Numbers in the tables at a model's ends.
fn tables(shape: &exo_types::ModelShape) -> u64 {
    let table = u64::from(shape.hidden) * u64::from(shape.vocab);
    if shape.tied { table } else { 2 * table }
}

fn empty(hub: &HubReference, licence: &exo_hub::Licence) -> FitView {
    FitView {
        name: hub.to_string(),
        title: hub.repo.clone(),
        reference: hub.to_string(),
        good_for: String::new(),
        licence: licence.label().to_owned(),
        terms: licence.notable_terms(),
        parameters: 0,
        context_tokens_max: 0,
        verdict: FitVerdict::NotSupported,
        summary: String::new(),
        best: None,
        sizes: Vec::new(),
        changes: Vec::new(),
    }
}

fn sized(cluster: &FitsCluster, plan: &Plan, model: &exo_formats::Model) -> SizedModel {
    let shape = model.shape_packed(cluster.kv, &exo_backend_cpu::weight_bytes);
    let weight_types = planning::weight_types(model, &shape);
    let variant = &plan.choice.variant;
    let (quantisation, download_bytes) = (variant.label.clone(), variant.bytes());
    SizedModel { quantisation, download_bytes, shape, weight_types }
}
