//! A model of a hub that is not in the catalogue: the heads of its files are read, and planned like any
//! other.
//!
//! A skeleton of the model is made in a temporary folder: files of the right length that are holes behind
//! their heads, so that `formats` opens them as it opens any model. No weights are fetched.

use exo_api::fits::FitView;
use exo_hub::{FetchPlan, HubReference, Snapshot, Variant};
use exo_planner::PlanError;

use super::unfit::Unfit;
use super::{FitsCluster, NoPlan, SizedModel, judge, sentences};
use crate::heads::{HeadBounds, HeadReader};
use crate::planning;
use crate::reference_error::ReferenceError;

/// What is read of a hub for one reference.
const BOUNDS: HeadBounds = HeadBounds { first_bytes: 64 << 10, bytes_max: 20_000_000, is_shape_only: true };
/// Types of a repository whose heads are read. The others differ in the bytes of their files.
const READ_MAX: usize = 2;

/// Whether a model of a hub fits. Blocks.
pub fn fit_reference(
    cluster: &FitsCluster,
    heads: &mut HeadReader<'_>,
    hub: &HubReference,
) -> Result<FitView, ReferenceError> {
    let snapshot = heads.client.snapshot(hub, heads.cancel)?;
    let (tried, _) = look(cluster, heads, hub, &snapshot)?;
    let Some((plan, _)) = tried.last() else {
        let summary = "the repository has no model of a type that exo computes with".to_owned();
        return Ok(FitView { summary, ..empty(hub, &snapshot.licence) });
    };
    let licence = plan.licence.clone();
    let models: Vec<SizedModel> = tried.into_iter().map(|(_, model)| model).collect();
    let shape = models.first().map(|m| &m.shape);
    let view = FitView {
        parameters: shape
            .map_or(0, |s| s.layers.iter().map(|l| l.flops_per_token / 2).sum::<u64>() + tables(s)),
        context_tokens_max: shape.map_or(0, |s| s.context_tokens_max),
        ..empty(hub, &licence)
    };
    Ok(judge(cluster, view, &models))
}

/// The type that is named, or the largest model of a repository that fits the memory that is free now, by its
/// head; else the smallest. Only if the machines could hold it with nothing beside it in their memory, and
/// their disks have room for their layers: for what is to run, nothing of what fits nowhere is fetched.
/// Blocks.
pub fn choose_fitting(
    cluster: &FitsCluster,
    heads: &mut HeadReader<'_>,
    hub: &HubReference,
) -> Result<FetchPlan, ReferenceError> {
    let snapshot = heads.client.snapshot(hub, heads.cancel)?;
    let (mut tried, is_fitting) = look(cluster, heads, hub, &snapshot)?;
    // Why there is none is said by who chooses among all.
    let Some((mut plan, model)) = tried.pop() else {
        return Ok(exo_hub::plan_of(heads.client, hub, &snapshot, None, heads.cancel)?);
    };
    let is_named = !hub.names_no_type();
    if is_fitting {
        if !is_named {
            plan.choice.reason = "the largest that fits the memory that is free now".to_owned();
        }
        return Ok(plan);
    }
    let Err(unfit) = fits_emptied(cluster, &model) else {
        let what = if is_named { plan.choice.reason.as_str() } else { "the smallest there is" };
        plan.choice.reason = format!("{what}: it fits once other programs and models give memory back");
        return Ok(plan);
    };
    let mut summary = unfit.to_string();
    if is_named {
        let fitting = |cluster: &FitsCluster| largest_fitting(cluster, heads, hub, &snapshot, &model);
        let said = |plan: &FetchPlan| {
            let variant = &plan.choice.variant;
            format!("{}, with {}", variant.label, sentences::gib(variant.bytes()))
        };
        // What is refused is so with nothing beside it in memory: what is offered may be, too.
        summary += &match (fitting(cluster), fitting(&cluster.emptied())) {
            (Some(plan), _) => format!("; the largest that fits is {}", said(&plan)),
            (None, Some(plan)) => format!(
                "; no other type of it fits now, and once other programs and models give memory back {}",
                said(&plan)
            ),
            (None, None) => "; no other type of it fits".to_owned(),
        };
    }
    Err(ReferenceError::DoesNotFit { reference: hub.to_string(), summary })
}

/// Whether the model of a plan, of which nothing is to be chosen, fits, by its head. Blocks.
pub fn check_fits(
    cluster: &FitsCluster,
    heads: &mut HeadReader<'_>,
    plan: &FetchPlan,
) -> Result<(), ReferenceError> {
    let model = sized(cluster, plan, &heads.open(plan, BOUNDS)?);
    fits_emptied(cluster, &model).map_err(|unfit| ReferenceError::DoesNotFit {
        reference: plan.reference.clone(),
        summary: unfit.to_string(),
    })
}

/// Whether the machines could hold it with nothing beside it in memory; what is missing if not.
fn fits_emptied(cluster: &FitsCluster, model: &SizedModel) -> Result<(), Unfit> {
    let emptied = cluster.emptied();
    let Err(error) = exo_planner::plan(&emptied.request(model, cluster.context_tokens)) else {
        return Ok(());
    };
    let NoPlan { error, remedies, disks } = emptied.no_plan(model, error);
    Err(match error {
        PlanError::DoesNotFit { .. } | PlanError::NoDevices { .. } if !disks.is_empty() => {
            Unfit::of_disks(model, disks, remedies.iter().find_map(sentences::of_disk))
        }
        PlanError::DoesNotFit { missing_bytes, .. } => Unfit::of(model, missing_bytes),
        error => error.into(),
    })
}

/// The largest type of a repository that fits now, by what is known of another of its types.
fn largest_fitting(
    cluster: &FitsCluster,
    heads: &HeadReader<'_>,
    hub: &HubReference,
    snapshot: &Snapshot,
    known: &SizedModel,
) -> Option<FetchPlan> {
    let any = HubReference { quantisation: None, file: None, ..hub.clone() };
    let plan_of = |one| exo_hub::plan_of(heads.client, &one, snapshot, None, heads.cancel).ok();
    let is_fitting = |plan: &FetchPlan| {
        let model = known.scaled(cluster, plan);
        exo_planner::plan(&cluster.request(&model, cluster.context_tokens)).is_ok()
    };
    candidates(cluster, &any, snapshot).into_iter().filter_map(plan_of).find(is_fitting)
}

/// Looks at the head of what is named, or of one type after the other until one fits; whether the last one
/// does.
fn look(
    cluster: &FitsCluster,
    heads: &mut HeadReader<'_>,
    hub: &HubReference,
    snapshot: &Snapshot,
) -> Result<(Vec<(FetchPlan, SizedModel)>, bool), ReferenceError> {
    let (mut tried, mut is_fitting) = (Vec::<(FetchPlan, SizedModel)>::new(), false);
    for one in candidates(cluster, hub, snapshot) {
        let plan = exo_hub::plan_of(heads.client, &one, snapshot, None, heads.cancel)?;
        if !plan.choice.variant.is_supported {
            break;
        }
        let model = match tried.last() {
            Some((_, before)) if tried.len() >= READ_MAX => before.scaled(cluster, &plan),
            before => match (heads.open(&plan, BOUNDS), before) {
                // A second description does not fit into what is read: the first one says enough.
                (Err(ReferenceError::TooLarge { .. }), Some((_, before))) => before.scaled(cluster, &plan),
                (opened, _) => sized(cluster, &plan, &opened?),
            },
        };
        is_fitting = exo_planner::plan(&cluster.request(&model, cluster.context_tokens)).is_ok();
        tried.push((plan, model));
        if is_fitting {
            break;
        }
    }
    Ok((tried, is_fitting))
}

/// What is looked at, the largest first: what is named; else all that are no larger than all memory, and the
/// smallest in any case. By their files, as several may have the same label.
fn candidates(cluster: &FitsCluster, hub: &HubReference, snapshot: &Snapshot) -> Vec<HubReference> {
    if hub.quantisation.is_some() || hub.file.is_some() {
        return vec![hub.clone()];
    }
    let (variants, memory) = (exo_hub::variants(snapshot), cluster.memory_free_bytes());
    let usable = exo_hub::usable(&variants);
    let mut tried: Vec<&Variant> = usable.iter().copied().filter(|v| v.bytes() <= memory).collect();
    tried.extend(usable.last().copied().filter(|smallest| !tried.contains(smallest)));
    let named = tried.into_iter().map(|variant| {
        let gguf = variant.files.first().map(|file| &file.path).filter(|path| path.ends_with(".gguf"));
        let quantisation = if gguf.is_none() { Some(variant.label.clone()) } else { None };
        HubReference { file: gguf.cloned(), quantisation, ..hub.clone() }
    });
    named.collect()
}

impl SizedModel {
    /// The same model in another type: its layers take as much more as its files.
    fn scaled(&self, cluster: &FitsCluster, plan: &FetchPlan) -> Self {
        let (bytes, before) = (plan.choice.variant.bytes(), self.download_bytes.max(1));
        let mut shape = self.shape.clone();
        let scale = |held: &mut u64| {
            *held = (u128::from(*held) * u128::from(bytes) / u128::from(before)).min(u64::MAX.into()) as u64;
        };
        for layer in &mut shape.layers {
            scale(&mut layer.weight_bytes);
            scale(&mut layer.packed_bytes);
        }
        for table in [
            &mut shape.embedding_bytes,
            &mut shape.head_bytes,
            &mut shape.embedding_packed_bytes,
            &mut shape.head_packed_bytes,
        ] {
            scale(table);
        }
        let (quantisation, disks) = (plan.choice.variant.label.clone(), cluster.disks_for(plan));
        Self { quantisation, download_bytes: bytes, disks, shape, weight_types: None }
    }
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
        licence: licence.label().to_owned(),
        terms: licence.notable_terms(),
        ..FitView::default()
    }
}

fn sized(cluster: &FitsCluster, plan: &FetchPlan, model: &exo_formats::Model) -> SizedModel {
    let shape = model.shape_packed(cluster.kv, &exo_backend_cpu::weight_bytes);
    let weight_types = planning::weight_types(model, &shape);
    let variant = &plan.choice.variant;
    SizedModel {
        quantisation: variant.label.clone(),
        download_bytes: variant.bytes(),
        disks: cluster.disks_for(plan),
        shape,
        weight_types,
    }
}
