//! Which models fit a cluster: every one of the catalogue planned on the devices as they are, in words that
//! need no knowledge of models.
//!
//! The best of a model is its largest type of weights that still answers as fast as people read; where none
//! does, the fastest. A search is cut short after some milliseconds each, so that the whole catalogue takes
//! seconds: a plan may be a little slower than the one that `exo plan` finds, and never faster.

mod catalogue;
mod known_in_layers;
mod model_shape;
mod reference;
mod sentences;
#[cfg(test)]
mod tests;
mod unfit;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exo_api::fits::{FitPlanView, FitSizeView, FitVerdict, FitView, FitsView};
use exo_api::{AdminError, ClusterView};
use exo_formats::Model;
use exo_hub::{Cancel, Client, FetchPlan, HubError, Licence, Reference, Settings};
use exo_machine::prediction_view;
use exo_planner::{Figure, LinkFacts, Plan, PlanDevice, PlanError, PlanRequest, Remedy, WeightTypes};
use exo_quant::Target;
use exo_types::{DiskRoom, KvDType, ModelId, ModelShape, NodeId};
use tokio::sync::watch;

pub use crate::reference_error::ReferenceError;
use catalogue::{CatalogueModel, catalogue};
pub use known_in_layers::KnownInLayers;
pub(crate) use known_in_layers::known_in_layers;
pub use model_shape::ModelNumbers;
use reference::fit_reference;
pub(crate) use reference::{check_fits, choose_fitting};
pub use sentences::{answer as answer_text, pages};
use unfit::Unfit;

use crate::cache::CacheRequest;
use crate::details::Details;
use crate::events::EventSender;
use crate::heads::HeadReader;
use crate::questions::{PlanFacts, plan_facts, planner_inputs};
use crate::{described, planning};

/// Types that hub repositories have of most models, the largest first.
const TYPES: [Target; 4] = [Target::Q8_0, Target::Q6_K, Target::Q5_K_M, Target::Q4_K_M];
/// Of one search: some ten milliseconds.
const WORK_MAX: u64 = 2_000_000;
/// Tokens per second that people read: 250 words a minute, and three words in four tokens.
const READING_TOKENS_PER_S: f64 = 5.5;
/// Memory of a machine that could be added, in GiB.
const MACHINES_GIB: [u64; 9] = [4, 8, 16, 24, 32, 64, 128, 256, 512];
/// Memory that a machine may get free by ending other programs.
const CLOSED_BYTES: u64 = 4 << 30;
/// As many disks as an answer names.
const DISKS_MAX: usize = 8;
/// Contexts that are tried, in tokens.
const CONTEXTS: [u32; 9] = [2048, 4096, 8192, 16_384, 32_768, 40_960, 65_536, 98_304, 131_072];

/// Where models should fit.
#[derive(Clone, Debug)]
pub struct FitsCluster {
    /// The devices.
    pub devices: Vec<PlanDevice>,
    /// The paths between them.
    pub links: Vec<LinkFacts>,
    /// What a hop takes beside the wire, where that was measured.
    pub hop_s: Option<Figure>,
    /// The room that the disks of nodes without a file have for it.
    pub disks: Vec<(NodeId, DiskRoom)>,
    /// Models whose layers nodes may have, where each fetches its own.
    pub known: Arc<Vec<KnownInLayers>>,
    /// Where a fetch of whole files goes on from what came before.
    pub fetches: Option<FetchesHere>,
    /// Context to plan for; never more than a model's own.
    pub context_tokens: u32,
    /// Sequences that may run at once, as for whatever is placed.
    pub slots: u32,
    /// Tokens of the cache over all of them; `None` for every slot at full context.
    pub cache_tokens: Option<u32>,
    /// How keys and values are stored.
    pub kv: KvDType,
}

/// The node that fetches whole files.
#[derive(Clone, Debug)]
pub struct FetchesHere {
    /// Which it is.
    pub node: NodeId,
    /// Its folder of fetched models.
    pub root: PathBuf,
}

/// A model whose files the cluster has.
pub struct KnownModel {
    /// Which it is.
    pub id: ModelId,
    /// What it is called.
    pub name: String,
    /// Its description.
    pub model: Model,
    /// Nodes that have all of it.
    pub holders: Vec<NodeId>,
}

/// One type of weights of a model.
pub(crate) struct SizedModel {
    pub quantisation: String,
    pub download_bytes: u64,
    /// The room that the disks of nodes have for it, with what they have of it.
    pub disks: Vec<(NodeId, DiskRoom)>,
    pub shape: ModelShape,
    pub weight_types: Option<WeightTypes>,
}

impl FitsCluster {
    /// The cluster as its coordinator would plan this model with it, or one that is not there, as this node
    /// places models. What requests loaded and none uses counts as free.
    pub(crate) async fn now(
        node: &EventSender,
        view: &watch::Receiver<ClusterView>,
        usual: CacheRequest,
        model: Option<ModelId>,
    ) -> Result<Self, AdminError> {
        let model = model.unwrap_or(ModelId([0; 32]));
        let inputs = planner_inputs(node, view, model, None).await?;
        let PlanFacts { links, hop_s, disks } = plan_facts(node, model).await?;
        let links = inputs.links(links);
        let devices = inputs.devices_without_idle();
        let CacheRequest { context_tokens, slots, cache_tokens, kv, .. } = usual;
        let (known, fetches) = (Arc::default(), None);
        Ok(Self { devices, links, hop_s, disks, known, fetches, context_tokens, slots, cache_tokens, kv })
    }

    /// With nothing in any memory. Disks stay as full as they are.
    fn emptied(&self) -> Self {
        let mut emptied = self.clone();
        let mut shared: BTreeMap<u64, u64> = BTreeMap::new();
        for PlanDevice { device, .. } in &mut emptied.devices {
            device.memory_free_bytes = device.memory_total_bytes;
            if let Some(domain) = device.memory_domain {
                let total_bytes = shared.entry(domain.id).or_default();
                *total_bytes = (*total_bytes).max(device.memory_total_bytes);
            }
        }
        for domain in emptied.devices.iter_mut().filter_map(|d| d.device.memory_domain.as_mut()) {
            domain.free_bytes = shared.get(&domain.id).copied().unwrap_or(domain.free_bytes);
        }
        emptied
    }

    /// Why there is no plan, which was found with an error: by the disks only where it would fit but for
    /// them.
    fn no_plan(&self, model: &SizedModel, error: PlanError) -> NoPlan {
        let remedies = match &error {
            PlanError::DoesNotFit { remedies, .. } | PlanError::NoDevices { remedies, .. } => {
                remedies.clone()
            }
            _ => Vec::new(),
        };
        let request = self.request(model, self.context_tokens);
        if request.disks.is_empty() {
            return NoPlan { error, remedies, disks: Vec::new() };
        }
        let disks = disk_texts(&request);
        match exo_planner::plan(&PlanRequest { disks: Vec::new(), ..request }) {
            Ok(_) => NoPlan { error, remedies, disks },
            Err(error) => NoPlan { error, remedies, disks: Vec::new() },
        }
    }

    /// The room that disks have for a plan, with what they have of it. Whole files and layers are models of
    /// their own: neither goes on from the other.
    fn disks_for(&self, plan: &FetchPlan) -> Vec<(NodeId, DiskRoom)> {
        if let Some(known) = self.known.iter().find(|known| known.is_of(plan)) {
            return known.disks.clone();
        }
        let mut disks = self.disks.clone();
        if let Some(FetchesHere { node: fetching, root }) = &self.fetches {
            let here_bytes = plan.bytes().saturating_sub(plan.have(root, &plan.copies(root)).missing_bytes);
            let own = disks.iter_mut().filter(|(node, _)| node == fetching);
            own.for_each(|(_, room)| *room = room.plus(here_bytes));
        }
        disks
    }

    fn request(&self, model: &SizedModel, context_tokens: u32) -> PlanRequest {
        let devices = self.devices.clone();
        let Self { slots, cache_tokens, kv, .. } = *self;
        let cache = CacheRequest { context_tokens, context_named: false, slots, cache_tokens, kv };
        let too_large = |_| (context_tokens.min(model.shape.context_tokens_max.max(1)), u32::MAX);
        let (context_tokens, cache_tokens) =
            cache.shape(model.shape.context_tokens_max).unwrap_or_else(too_large);
        PlanRequest {
            slots,
            cache_tokens,
            kv,
            links: self.links.clone(),
            hop_s: self.hop_s,
            disks: model.disks.clone(),
            weight_types: model.weight_types.clone(),
            work_max: WORK_MAX,
            explain: false,
            ..PlanRequest::new(model.shape.clone(), context_tokens, devices)
        }
    }

    fn machines(&self) -> u32 {
        let mut nodes: Vec<NodeId> =
            self.devices.iter().filter(|d| d.excluded.is_none()).map(|d| d.node).collect();
        nodes.sort();
        nodes.dedup();
        nodes.len() as u32
    }

    fn memory_free_bytes(&self) -> u64 {
        let usable = self.devices.iter().filter(|d| d.excluded.is_none());
        exo_planner::memory_free_bytes(usable.map(|d| &d.device))
    }
}

/// Why a model does not fit.
struct NoPlan {
    /// To be told: where memory lacks, too, as it would be without disks.
    error: PlanError,
    /// What would do, with the disks as they are or with more room on one.
    remedies: Vec<Remedy>,
    /// What the disks leave, where it would fit but for them.
    disks: Vec<String>,
}

/// What the disks leave of the file, those that have no room for all of it.
fn disk_texts(request: &PlanRequest) -> Vec<String> {
    let (mut nodes, mut texts) = (BTreeSet::new(), Vec::new());
    for device in &request.within_disks().devices {
        let Some(disk) = device.disk.filter(|_| nodes.insert(device.node)) else { continue };
        if texts.len() < DISKS_MAX {
            texts.push(disk.text(&device.node_name));
        }
    }
    let more = nodes.len() - texts.len();
    texts.extend((more > 0).then(|| format!("{more} more with too little room")));
    texts
}

/// Every model of the catalogue on these devices, the most capable that is comfortable first.
pub fn fit_catalogue(cluster: &FitsCluster) -> FitsView {
    let mut models: Vec<FitView> = catalogue().map(|model| fit_known(cluster, model)).collect();
    sort(&mut models);
    view(cluster, models)
}

fn sort(models: &mut [FitView]) {
    models.sort_by(|a, b| {
        a.verdict.cmp(&b.verdict).then_with(|| match a.verdict {
            FitVerdict::TooLarge | FitVerdict::NotSupported => a.parameters.cmp(&b.parameters),
            FitVerdict::Comfortable | FitVerdict::Slow | FitVerdict::ContextTooLong => {
                b.parameters.cmp(&a.parameters)
            }
        })
    });
}

/// The same where somebody named the context: what was made for less does not run with it, as `exo place`
/// says, though it would with its own.
pub fn within_context(mut view: FitsView, named: Option<u32>) -> FitsView {
    let Some(asked) = named else { return view };
    for model in &mut view.models {
        let made_for = model.context_tokens_max;
        // 0 is not known.
        if made_for == 0 || made_for >= asked || model.verdict == FitVerdict::NotSupported {
            continue;
        }
        let runs_shorter = model.best.take().is_some();
        model.verdict = FitVerdict::ContextTooLong;
        model.summary = sentences::made_for_less(made_for, asked);
        model.sizes.clear();
        model.changes = runs_shorter.then(|| sentences::shorter(made_for, asked)).into_iter().collect();
    }
    sort(&mut view.models);
    view
}

/// One model: of the catalogue by its name, else of a hub. Blocks.
pub fn fit_one(
    cluster: &FitsCluster,
    text: &str,
    settings: Result<Settings, HubError>,
    data_dir: &Path,
    cancel: &Cancel,
) -> Result<FitsView, ReferenceError> {
    let model = match find_known(text) {
        Some(known) => fit_known(cluster, known),
        None => match text.parse::<Reference>() {
            Ok(Reference::Hub(hub)) => {
                let client = Client::new(settings?);
                fit_reference(cluster, &mut HeadReader::new(&client, cancel, data_dir), &hub)?
            }
            // One word was meant as a name.
            Err(error) if text.contains(['/', ':', '@']) => return Err(error.into()),
            _ => return Err(ReferenceError::Unknown(text.to_owned())),
        },
    };
    Ok(view(cluster, vec![model]))
}

/// Whether a reference could be the name of a model that a cluster has: it is in no catalogue and in no hub.
pub fn may_be_known(text: &str) -> bool {
    find_known(text).is_none() && hub_reference(text).is_none()
}

/// The reference to a repository of a hub, if it is that and not the name of a model of the catalogue.
pub fn hub_reference(text: &str) -> Option<Reference> {
    let reference = text.parse().ok().filter(|reference| matches!(reference, Reference::Hub(_)))?;
    find_known(text).is_none().then_some(reference)
}

/// One model that the cluster has, of the one type that it is stored in.
pub fn fit_model(cluster: &FitsCluster, known: &KnownModel) -> FitsView {
    let (KnownModel { name, model, holders, .. }, details) = (known, Details::of(&known.model));
    let shape = model.shape_packed(cluster.kv, &exo_backend_cpu::weight_bytes);
    let most = details.dtypes.iter().max_by_key(|(_, bytes)| **bytes);
    let sized = SizedModel {
        quantisation: most.map(|(dtype, _)| dtype.clone()).unwrap_or_default(),
        download_bytes: details.weight_bytes,
        disks: cluster.disks.clone(),
        weight_types: planning::weight_types(model, &shape),
        shape,
    };
    let fit = FitView {
        name: name.clone(),
        title: name.clone(),
        reference: name.clone(),
        parameters: details.parameters,
        context_tokens_max: details.context_tokens_max,
        ..FitView::default()
    };
    let mut fit = judge(cluster, fit, &[sized]);
    if let Some(best) = fit.best.as_mut().filter(|_| !holders.is_empty()) {
        best.download_bytes = 0;
    }
    view(cluster, vec![fit])
}

fn view(cluster: &FitsCluster, models: Vec<FitView>) -> FitsView {
    FitsView {
        context_tokens: cluster.context_tokens,
        machines: cluster.machines(),
        memory_free_bytes: cluster.memory_free_bytes(),
        models,
    }
}

/// The model of this name in the catalogue.
fn find_known(name: &str) -> Option<CatalogueModel> {
    catalogue().find(|model| model.name.eq_ignore_ascii_case(name))
}

/// One model of the catalogue on these devices.
fn fit_known(cluster: &FitsCluster, model: CatalogueModel) -> FitView {
    let licence = Licence { name: Some(model.licence.to_owned()), link: None };
    let view = FitView {
        name: model.name.to_owned(),
        title: model.title.to_owned(),
        reference: format!("hf.co/{}", model.repo),
        good_for: model.good_for.to_owned(),
        licence: model.licence.to_owned(),
        terms: licence.notable_terms(),
        parameters: model.numbers.parameters(),
        context_tokens_max: model.numbers.context_tokens_max,
        ..FitView::default()
    };
    if let Some(not_yet) = model.not_yet {
        let size = |stored: &Target| FitSizeView {
            quantisation: stored.to_string(),
            bytes: model.numbers.file_bytes(*stored),
            tokens_per_s: None,
        };
        return FitView { summary: not_yet.to_owned(), sizes: TYPES.iter().map(size).collect(), ..view };
    }
    let config = model.numbers.config();
    let sized = |stored: &Target| {
        let tensors = described::tensors(&config, *stored);
        let (shape, types) = described::shape(&config, &tensors, cluster.kv);
        let download_bytes = tensors.iter().map(described::DescribedTensor::bytes).sum();
        let (quantisation, disks) = (stored.to_string(), cluster.disks.clone());
        SizedModel { quantisation, download_bytes, disks, shape, weight_types: Some(types) }
    };
    judge(cluster, view, &TYPES.iter().map(sized).collect::<Vec<_>>())
}

/// Fills in what follows from planning each type, the largest first.
pub(crate) fn judge(cluster: &FitsCluster, view: FitView, models: &[SizedModel]) -> FitView {
    let context_tokens = cluster.context_tokens;
    let planned: Vec<Result<Plan, PlanError>> =
        models.iter().map(|model| exo_planner::plan(&cluster.request(model, context_tokens))).collect();
    let speed = |plan: &Result<Plan, PlanError>| plan.as_ref().ok().map(|p| p.predicted.tokens_per_s());
    let sizes = models.iter().zip(&planned).map(|(model, plan)| FitSizeView {
        quantisation: model.quantisation.clone(),
        bytes: model.download_bytes,
        tokens_per_s: speed(plan),
    });
    let view = FitView { sizes: sizes.collect(), ..view };
    let is_comfortable =
        |plan: &Result<Plan, PlanError>| speed(plan).is_some_and(|s| s >= READING_TOKENS_PER_S);
    let comfortable = planned.iter().position(is_comfortable);
    let fastest = || {
        let fitting = planned.iter().enumerate().filter_map(|(i, plan)| Some((i, speed(plan)?)));
        fitting.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
    };
    let chosen = comfortable.or_else(fastest);
    let best = chosen.and_then(|i| Some((models.get(i)?, planned.get(i)?.as_ref().ok()?)));
    let Some((model, plan)) = best else {
        return match (models.last(), planned.last()) {
            (Some(model), Some(Err(error))) => too_large(cluster, view, model, error.clone()),
            _ => FitView { summary: "it has no type of weights that exo computes with".to_owned(), ..view },
        };
    };
    let request = cluster.request(model, context_tokens);
    let best = FitPlanView {
        quantisation: model.quantisation.clone(),
        download_bytes: model.download_bytes,
        predicted: prediction_view(&plan.predicted),
        context_tokens_max: longest_context(cluster, model, request.context_tokens),
        stages: planning::stages(&request, &plan.stages, &plan.memory),
    };
    let verdict = if comfortable.is_some() { FitVerdict::Comfortable } else { FitVerdict::Slow };
    FitView { verdict, summary: sentences::runs(&best), best: Some(best), ..view }
}

/// The longest of the tried contexts that fits, or `fits` which does; by halves, as less context always fits
/// where more does.
fn longest_context(cluster: &FitsCluster, model: &SizedModel, fits: u32) -> u32 {
    let made_for = model.shape.context_tokens_max;
    let mut longer: Vec<u32> = CONTEXTS.into_iter().filter(|c| *c > fits && *c < made_for).collect();
    longer.extend((made_for > fits).then_some(made_for));
    let count =
        longer.partition_point(|context| exo_planner::plan(&cluster.request(model, *context)).is_ok());
    let longest = count.checked_sub(1).and_then(|last| longer.get(last)).copied().unwrap_or(fits);
    longest.min(cluster.cache_tokens.unwrap_or(u32::MAX))
}

/// What would make it fit.
fn too_large(cluster: &FitsCluster, view: FitView, smallest: &SizedModel, error: PlanError) -> FitView {
    let NoPlan { error, remedies, disks } = cluster.no_plan(smallest, error);
    if !matches!(error, PlanError::DoesNotFit { .. } | PlanError::NoDevices { .. }) {
        return FitView { verdict: FitVerdict::TooLarge, summary: error.to_string(), ..view };
    }
    let change = |remedy: &Remedy| match remedy {
        Remedy::Disk { .. } => sentences::of_disk(remedy),
        Remedy::Context { context_tokens, .. } => {
            Some(sentences::shorter(*context_tokens, cluster.context_tokens))
        }
        Remedy::Memory { .. } => None,
    };
    let mut changes: Vec<String> = remedies.iter().filter_map(change).collect();
    let machine = MACHINES_GIB.into_iter().find(|gib| fits_with_machine(cluster, smallest, gib << 30));
    let machine = machine.map(|gib| (gib << 30, format!("one more machine with {gib} GiB free for models")));
    let memory = remedies.iter().filter_map(|remedy| match remedy {
        Remedy::Memory { device, bytes } => {
            Some((*bytes, format!("{} more memory that is free on {device}", sentences::gib(*bytes))))
        }
        Remedy::Context { .. } | Remedy::Disk { .. } => None,
    });
    // Some programs can be closed; beyond that another machine is the smaller change.
    let cost = |bytes: u64| if bytes < CLOSED_BYTES { bytes } else { bytes.saturating_mul(2) };
    let mut more: Vec<(u64, String)> =
        memory.map(|(bytes, text)| (cost(bytes), text)).chain(machine).collect();
    more.sort();
    changes.extend(more.into_iter().map(|(_, text)| text));
    let summary = match &error {
        _ if !disks.is_empty() => {
            format!("too large for the disks: even {}", Unfit::of_disks(smallest, disks, None))
        }
        PlanError::DoesNotFit { missing_bytes, .. } => {
            format!("too large: even {}", Unfit::of(smallest, *missing_bytes))
        }
        error => error.to_string(),
    };
    FitView { verdict: FitVerdict::TooLarge, summary, changes, ..view }
}

/// Whether another machine like the largest one, with so much memory, would do.
fn fits_with_machine(cluster: &FitsCluster, model: &SizedModel, bytes: u64) -> bool {
    let usable = cluster.devices.iter().filter(|d| d.excluded.is_none());
    let Some(like) = usable.max_by_key(|d| d.device.memory_free_bytes) else { return false };
    let mut another = like.clone();
    another.node = NodeId([0xff; 32]);
    another.device.memory_domain = None;
    another.device.memory_total_bytes = bytes;
    another.device.memory_free_bytes = bytes;
    let mut larger = cluster.clone();
    larger.devices.push(another);
    exo_planner::plan(&larger.request(model, cluster.context_tokens)).is_ok()
}
