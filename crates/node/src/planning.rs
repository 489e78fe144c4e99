//! Plans that no one carries out: what a [`PlanQuery`] asks of the planner, and what comes of it in words of
//! the API.
//!
//! `exo plan` uses it for clusters that a file describes. On the one that runs, the coordinator says with
//! what it would plan a placement ([`PlannerInputs`]), and the facade plans with that, so that the answer is
//! what a placement would be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exo_api::plan::{
    AlternativeKind, AlternativePlanView, AlternativeView, FasterPlanView, FigureView, PlanDeviceView,
    PlanLinkView, PlanObjective, PlanQuery, PlanRateView, PlanStageView, PlanView, ScoresView,
};
use exo_api::{
    ClusterView, InstanceView, LinkView, NodeStatus, PlaceRequest, ReplanDecision, ReplanStageView,
    ReplanView,
};
use exo_cluster::wire::{PlannerInputs, ReplanReport};
use exo_cluster::{DryRun, DryRunError, InstanceRequest, PlaceObjective};
use exo_formats::{LayerTensor, Model, TensorName};
use exo_machine::prediction_view;
use exo_planner::{
    Alternative, AlternativePlan, Figure, LinkFacts, Objective, Pin, PinLayers, Plan, PlanDevice, PlanError,
    PlanRequest, ShardMemory, Source,
};
use exo_types::{
    Corrections, DType, DeviceFacts, DeviceId, DeviceState, Exclusion, LayerRange, MemoryDomain, ModelShape,
    NodeId, Placement, Shard, Stage, SupportClass, TypeBytes, TypeRates, WeightTypes,
};

/// Why a query cannot be put to the planner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum QueryError {
    #[error("there is no device `{name}`; there are: {}", known.join(", "))]
    NoDevice { name: String, known: Vec<String> },
    #[error("`{name}` has several devices: say which, as in `{example}`")]
    Ambiguous { name: String, example: String },
    #[error("`{text}` names no layers: give a number, or a range as in `0..8`")]
    Layers { text: String },
    #[error("a throughput and at least {stages_min} devices are two objectives: leave one out")]
    TwoObjectives { stages_min: u32 },
    #[error("streams are what the objective `throughput` is computed for: name it, or leave them out")]
    Streams,
    #[error("{streams} streams do not run in {slots} slots: ask for as many slots, or for fewer streams")]
    FewSlots { streams: u32, slots: u32 },
    #[error("{what} must not be 0")]
    Zero { what: &'static str },
}

impl QueryError {
    /// Which field of a request to place or plan it is about.
    pub(crate) fn param(&self) -> &'static str {
        match self {
            Self::NoDevice { .. } | Self::Ambiguous { .. } | Self::Layers { .. } => "pins",
            Self::TwoObjectives { .. } => "objective",
            Self::Streams | Self::FewSlots { .. } => "streams",
            Self::Zero { what } => what,
        }
    }
}

/// Writes what the query says of objective, load and devices into `request`.
pub fn apply(query: &PlanQuery, request: &mut PlanRequest) -> Result<(), QueryError> {
    let workload = &mut request.workload;
    for (what, asked, field) in [
        ("streams", query.streams, &mut workload.streams),
        ("prompt_tokens", query.prompt_tokens, &mut workload.prompt_tokens),
        ("answer_tokens", query.answer_tokens, &mut workload.answer_tokens),
    ] {
        match asked {
            Some(0) => return Err(QueryError::Zero { what }),
            Some(number) => *field = number,
            None => {}
        }
    }
    if query.nodes_min == Some(0) {
        return Err(QueryError::Zero { what: "nodes_min" });
    }
    // Whatever the objective: a plan says what they all reach together.
    let streams = streams_of(query.streams, request.slots)?;
    request.objective = match (query.objective, query.nodes_min) {
        (PlanObjective::Latency, Some(stages_min)) if stages_min > 1 => Objective::Spread { stages_min },
        (PlanObjective::Latency, _) => Objective::Latency,
        (PlanObjective::Throughput, Some(stages_min)) if stages_min > 1 => {
            return Err(QueryError::TwoObjectives { stages_min });
        }
        (PlanObjective::Throughput, _) => {
            request.workload.streams = streams;
            Objective::Throughput
        }
    };
    for name in &query.exclude {
        let excluded = named(request, name)?;
        for index in excluded {
            request.devices[index].excluded = Some("as asked".to_owned());
        }
    }
    for text in &query.pins {
        let pin = pin(request, text)?;
        request.pins.push(pin);
    }
    Ok(())
}

/// The streams of a throughput: as many as there are slots, where no one says how many.
fn streams_of(asked: Option<u32>, slots: u32) -> Result<u32, QueryError> {
    match asked {
        Some(streams) if streams > slots => Err(QueryError::FewSlots { streams, slots }),
        asked => Ok(asked.unwrap_or(slots)),
    }
}

/// Writes what whoever places a model says of objective and devices into what the log keeps.
pub(crate) fn constrain(
    place: &PlaceRequest,
    inputs: &PlannerInputs,
    wanted: &mut InstanceRequest,
) -> Result<(), QueryError> {
    let stages_min = place.nodes_min.unwrap_or(1);
    if stages_min == 0 {
        return Err(QueryError::Zero { what: "nodes_min" });
    }
    wanted.objective = match (place.objective.unwrap_or_default(), place.streams) {
        (PlanObjective::Throughput, _) if stages_min > 1 => {
            return Err(QueryError::TwoObjectives { stages_min });
        }
        (PlanObjective::Throughput, Some(0)) => return Err(QueryError::Zero { what: "streams" }),
        (PlanObjective::Throughput, streams) => {
            PlaceObjective::Throughput { streams: streams_of(streams, wanted.slots)? }
        }
        (PlanObjective::Latency, Some(_)) => return Err(QueryError::Streams),
        (PlanObjective::Latency, None) if stages_min > 1 => PlaceObjective::Spread { stages_min },
        (PlanObjective::Latency, None) => PlaceObjective::Fit,
    };
    let request = inputs.request(wanted, Vec::new(), Vec::new());
    wanted.pins = place.pins.iter().map(|text| pin(&request, text)).collect::<Result<_, _>>()?;
    for name in &place.exclude {
        let found = named(&request, name)?;
        let PlanDevice { node, node_name, device, .. } = &request.devices[found[0]];
        let device = (!is_node((*node, node_name), name)).then(|| device.id.clone());
        wanted.excluded.push(Exclusion { node: *node, device });
    }
    Ok(())
}

fn pin(request: &PlanRequest, text: &str) -> Result<Pin, QueryError> {
    let (name, layers) = text.split_once('=').map_or((text, None), |(name, layers)| (name, Some(layers)));
    let found = named(request, name)?;
    let device = &request.devices[found[0]];
    if found.len() > 1 {
        let example = format!("{}/{}", device.node_name, device.device.id);
        return Err(QueryError::Ambiguous { name: name.to_owned(), example });
    }
    let layers = match layers {
        None => PinLayers::Any,
        Some(text) => pin_layers(text).ok_or_else(|| QueryError::Layers { text: text.to_owned() })?,
    };
    Ok(Pin { node: device.node, device: device.device.id.clone(), layers })
}

fn pin_layers(text: &str) -> Option<PinLayers> {
    match text.split_once("..") {
        Some((start, end)) => {
            let (start, end) = (start.parse().ok()?, end.parse().ok()?);
            Some(PinLayers::Range(LayerRange { start, end }))
        }
        None => Some(PinLayers::Count(text.parse().ok()?)),
    }
}

/// Whether a node is meant: by its name, its id, or so much of that as no other node's begins with.
fn is_node((node, name): (NodeId, &str), wanted: &str) -> bool {
    const ID_CHARS_MIN: usize = 16;
    name == wanted || (wanted.len() >= ID_CHARS_MIN && node.to_full().starts_with(wanted))
}

/// The devices that `NODE` or `NODE/DEVICE` means, at least one.
fn named(request: &PlanRequest, text: &str) -> Result<Vec<usize>, QueryError> {
    let is_of = |d: &PlanDevice, name: &str| is_node((d.node, &d.node_name), name);
    let is_meant = |d: &PlanDevice| {
        is_of(d, text)
            || text.rsplit_once('/').is_some_and(|(node, device)| is_of(d, node) && d.device.id.0 == device)
    };
    let mut found: Vec<usize> =
        (0..request.devices.len()).filter(|&i| is_meant(&request.devices[i])).collect();
    // A long beginning of an id is that node, whoever calls itself so.
    let node = text.split_once('/').map_or(text, |(node, _)| node);
    let is_by_id = |i: &usize| is_node((request.devices[*i].node, ""), node);
    if found.iter().any(is_by_id) {
        found.retain(is_by_id);
    }
    if found.is_empty() {
        let known = request.devices.iter().map(|d| format!("{}/{}", d.node_name, d.device.id)).collect();
        return Err(QueryError::NoDevice { name: text.to_owned(), known });
    }
    Ok(found)
}

/// Devices and links as a node shows them, to describe a cluster in a file. What an instance holds now is not
/// free.
pub fn devices_of(view: &ClusterView) -> (Vec<PlanDevice>, Vec<LinkFacts>) {
    let mut devices = Vec::new();
    for node in &view.nodes {
        let Ok(id) = node.id.parse::<NodeId>() else { continue };
        for device in &node.devices {
            let facts = DeviceFacts {
                id: DeviceId(device.id.clone()),
                kind: device.kind,
                name: device.name.clone(),
                backend: device.backend.clone(),
                memory_total_bytes: device.memory_total_bytes,
                memory_free_bytes: device.memory_free_bytes,
                memory_domain: device.memory_domain.as_ref().and_then(|domain| {
                    let id = u64::from_str_radix(&domain.id, 16).ok()?;
                    Some(MemoryDomain { id, free_bytes: domain.free_bytes })
                }),
                compute_units: device.compute_units.unwrap_or(0),
                read_bytes_per_s: device.read_bytes_per_s,
                flops_per_s: device.flops_per_s,
                rates_by_type: device.rates_by_type.iter().map(TypeRates::from).collect(),
                layer_rates: device.layer_rates,
                rates_measured: device.rates_measured.map(Into::into),
                corrections: device.corrections,
                unsupported_types: device.unsupported_types.clone(),
                support: device.support,
                support_reason: device.support_reason.clone(),
            };
            let excluded = match (node.status, device.state, device.support) {
                (NodeStatus::Lost | NodeStatus::Left, ..) => Some("its node is not there".to_owned()),
                _ if node.is_drained => Some("its node is drained".to_owned()),
                _ if node.is_disk_hung => Some("the disk of its node does not answer".to_owned()),
                (_, DeviceState::Lost | DeviceState::Quarantined, _) => Some(device.state_reason.clone()),
                (.., SupportClass::Unsupported) => Some(device.support_reason.clone()),
                _ => None,
            };
            devices.push(PlanDevice::reported(id, node.name.clone(), facts, excluded));
        }
    }
    (devices, link_facts(&view.links))
}

/// The coordinator counts links the same way (`exo_cluster::link_facts`).
fn link_facts(links: &[LinkView]) -> Vec<LinkFacts> {
    let by_ends: BTreeMap<(&str, &str), &LinkView> =
        links.iter().map(|link| ((&*link.from, &*link.to), link)).collect();
    let age = |seconds: Option<f64>| {
        seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(Duration::ZERO)
    };
    let rate =
        |l: &LinkView| Some(Figure::measured_at(l.bytes_per_s?, age(l.bandwidth_age_s), l.bandwidth_samples));
    let round_trip =
        |l: &LinkView| Some(Figure::measured_at(l.rtt_ms? / 1e3, age(l.rtt_age_s), l.rtt_samples));
    let facts = |link: &LinkView| {
        let back = by_ends.get(&(&*link.to, &*link.from));
        let round_trips = [round_trip(link), back.and_then(|back| round_trip(back))].into_iter().flatten();
        Some(LinkFacts {
            from: link.from.parse().ok()?,
            to: link.to.parse().ok()?,
            rtt_s: round_trips.max_by(|a, b| a.value.total_cmp(&b.value)),
            bytes_per_s: rate(link).or_else(|| rate(back?)),
        })
    };
    links.iter().filter_map(facts).collect()
}

/// In what a placed instance is not what a caller has named.
pub(crate) fn differences(
    placed: &Placement,
    shown: Option<&InstanceView>,
    request: &PlaceRequest,
    wanted: &InstanceRequest,
    view: &ClusterView,
) -> Vec<String> {
    let mut differences = Vec::new();
    let numbers = [
        ("a context of", request.context_tokens.is_some(), placed.context_tokens, wanted.context_tokens),
        ("slots", request.slots.is_some(), placed.slots, wanted.slots),
        ("a cache of", request.cache_tokens.is_some(), placed.cache_tokens, wanted.cache_tokens),
    ];
    for (what, is_named, is, asked) in numbers {
        if is_named && is != asked {
            differences.push(match what {
                "slots" => format!("{is} slots and not {asked}"),
                _ => format!("{what} {is} tokens and not {asked}"),
            });
        }
    }
    if request.kv.is_some() && placed.kv != wanted.kv {
        differences.push(format!("keys and values as {} and not {}", placed.kv, wanted.kv));
    }
    let stages_min = request.nodes_min.unwrap_or(1);
    // After losses one device may have several stages.
    let devices: BTreeSet<_> = placed.shards().map(|(_, shard)| (shard.node, shard.device.clone())).collect();
    if (devices.len() as u32) < stages_min {
        let plural = if devices.len() == 1 { "" } else { "s" };
        differences.push(format!("{} device{plural} and not at least {stages_min}", devices.len()));
    }
    differences.extend(shown.into_iter().flat_map(|shown| other_wishes(shown, request, wanted, view)));
    differences
}

/// Pins or exclusions, by what one of them is called.
fn listed(what: &str, texts: &[String]) -> String {
    match texts {
        [] => format!("no {what}s"),
        [one] => format!("the {what} {one}"),
        more => format!("the {what}s {}", more.join(", ")),
    }
}

/// The same of devices and objective. Whoever names devices means all of them, as the coordinator takes it.
fn other_wishes(
    shown: &InstanceView,
    request: &PlaceRequest,
    wanted: &InstanceRequest,
    view: &ClusterView,
) -> Vec<String> {
    let name = |id: NodeId| {
        let node = view.nodes.iter().find(|node| node.id == id.to_full());
        node.map_or_else(|| id.to_string(), |node| node.name.clone())
    };
    let pin = |pin: &Pin| format!("{}/{}{}", name(pin.node), pin.device, pin.layers);
    let exclusion = |excluded: &Exclusion| match &excluded.device {
        Some(device) => format!("{}/{device}", name(excluded.node)),
        None => name(excluded.node),
    };
    let pins: Vec<String> = wanted.pins.iter().map(pin).collect();
    let excluded: Vec<String> = wanted.excluded.iter().map(exclusion).collect();
    let mut differences = Vec::new();
    // What is to be replaced is placed as it is asked for now, without wishes of before.
    let are_named = request.replace || !(pins.is_empty() && excluded.is_empty());
    for (what, asked, is) in [("pin", &pins, &shown.pins), ("exclusion", &excluded, &shown.exclude)] {
        if are_named && asked != is {
            differences.push(format!("{} and not {}", listed(what, is), listed(what, asked)));
        }
    }
    let asked = match wanted.objective {
        PlaceObjective::Throughput { streams } => (PlanObjective::Throughput, Some(streams)),
        PlaceObjective::Fit | PlaceObjective::Spread { .. } => (PlanObjective::Latency, None),
    };
    if (request.replace || request.objective.is_some()) && asked != (shown.objective, shown.streams) {
        let text = |(objective, streams): (PlanObjective, Option<u32>)| match (objective, streams) {
            (PlanObjective::Throughput, streams) => {
                format!("the throughput of {} streams", streams.unwrap_or(1))
            }
            (PlanObjective::Latency, _) => "latency".to_owned(),
        };
        let is = text((shown.objective, shown.streams));
        differences.push(format!("the objective {is} and not {}", text(asked)));
    }
    differences
}

/// How many bytes of each layer and of the head are of which type, and the type of the embedding. `None`
/// where only part of the model is here.
pub fn weight_types(model: &Model, shape: &ModelShape) -> Option<WeightTypes> {
    let embedding = model.tensor(TensorName::Embedding).ok()?.dtype;
    let types = types_of(model, 0..model.config.layers).with_embedding(embedding);
    types.are_of(shape).then_some(types)
}

/// The same of what is here of a shard.
pub(crate) fn types_of_shard(model: &Model, shard: &Shard) -> TypeBytes {
    let layers = shard.layers.start..shard.layers.end.min(model.config.layers);
    let WeightTypes { layers, head } = types_of(model, layers);
    let head = shard.head.then_some(head);
    layers.into_iter().chain(head).flat_map(|types| types.0).collect()
}

fn types_of(model: &Model, layers: std::ops::Range<u32>) -> WeightTypes {
    let bytes = |names: &[TensorName]| -> TypeBytes {
        let views = names.iter().filter_map(|name| model.tensor(*name).ok());
        views.map(|view| (view.dtype, view.range.len() as u64)).collect()
    };
    let layer = |i: u32| bytes(&LayerTensor::ALL.map(|tensor| TensorName::Layer(i, tensor)));
    let head = bytes(&[TensorName::OutputNorm, TensorName::Head]);
    WeightTypes { layers: layers.map(layer).collect(), head }
}

/// Plans, and says it in words of the API.
pub fn answer(model: &str, request: &PlanRequest) -> Result<PlanView, PlanError> {
    Ok(plan_view(model, request, &exo_planner::plan(request)?))
}

/// The same as a placement would be now. What would be unloaded stands beside the devices that hold it.
pub(crate) fn answer_as_placed(
    model: &str,
    inputs: &PlannerInputs,
    request: PlanRequest,
    is_over: &dyn Fn() -> bool,
) -> Result<PlanView, DryRunError> {
    let DryRun { request, plan, unloads } = exo_cluster::dry_run(inputs, request, is_over)?;
    let mut view = plan_view(model, &request, &plan);
    for (instance, text) in unloads {
        let of_it = inputs.unloadable.iter().filter(|unloadable| unloadable.instance == instance);
        for (node, device) in of_it.flat_map(|unloadable| &unloadable.shards) {
            let is_this = |d: &&mut PlanDeviceView| d.node == node.to_full() && d.device == device.0;
            if let Some(device) = view.devices.iter_mut().find(is_this) {
                device.reason = format!("{}; {text}", device.reason);
            }
        }
    }
    Ok(view)
}

fn plan_view(model: &str, request: &PlanRequest, plan: &Plan) -> PlanView {
    PlanView {
        model: model.to_owned(),
        context_tokens: request.context_tokens,
        slots: request.slots,
        cache_tokens: request.cache_tokens,
        stages: stages(request, &plan.stages, &plan.memory),
        predicted: prediction_view(&plan.predicted),
        objective_ms: ms(plan.proof.objective_ns),
        lower_bound_ms: ms(plan.proof.lower_bound_ns),
        gap_percent: plan.proof.gap_per_mille() as f64 / 10.0,
        verdict: plan.verdict(),
        faster: plan.faster.map(|faster| FasterPlanView {
            objective_ms: ms(faster.objective_ns),
            fetch_bytes: faster.fetch_bytes,
            fetch_ms: ms(faster.fetch_ns),
            is_fetch_estimated: faster.is_fetch_estimated,
        }),
        links: links(request, &plan.stages),
        devices: devices(request, plan),
        alternatives: alternatives(request, plan),
    }
}

/// What the coordinator said of an instance that serves so many answers, in words of the API.
pub(crate) fn replan_view(
    report: &ReplanReport,
    running: u32,
    name: impl Fn(NodeId) -> String,
) -> ReplanView {
    let stage = |stage: &Stage| {
        let shard = stage.shards.first()?;
        let (node_name, device) = (name(shard.node), shard.device.to_string());
        Some(ReplanStageView { node_name, device, layers: stage.layers })
    };
    ReplanView {
        instance: report.instance.to_string(),
        decision: match (report.is_better(), report.is_moved) {
            (false, _) => ReplanDecision::Keep,
            (true, false) => ReplanDecision::WouldMove,
            (true, true) => ReplanDecision::Move,
        },
        reason: report.reason.text(&name),
        now_ms: ms(report.now_ns),
        then_ms: ms(report.then_ns),
        load_bytes: report.load_bytes,
        fetch_bytes: report.fetch_bytes,
        fetch_ms: ms(report.fetch_ns),
        running,
        stages: report.stages.iter().filter_map(stage).collect(),
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(crate) fn stages(request: &PlanRequest, stages: &[Stage], memory: &[ShardMemory]) -> Vec<PlanStageView> {
    let stage = |(stage, memory): (&Stage, &ShardMemory)| {
        let shard = stage.leader();
        PlanStageView {
            node: shard.node.to_full(),
            node_name: node_name(request, shard.node),
            device: shard.device.to_string(),
            layers: stage.layers,
            weight_bytes: memory.weight_bytes,
            kv_bytes: memory.kv_bytes,
            workspace_bytes: memory.workspace_bytes,
        }
    };
    stages.iter().zip(memory).map(stage).collect()
}

/// From each stage to the next, and from the last to the first, where these are two nodes.
fn links(request: &PlanRequest, stages: &[Stage]) -> Vec<PlanLinkView> {
    let nodes: Vec<NodeId> = stages.iter().map(|stage| stage.leader().node).collect();
    let hops = nodes.iter().zip(nodes.iter().cycle().skip(1)).filter(|(from, to)| from != to);
    let view = |(&from, &to): (&NodeId, &NodeId)| {
        let (rtt_s, bytes_per_s) = exo_planner::link_figures(request, from, to);
        PlanLinkView {
            from: node_name(request, from),
            to: node_name(request, to),
            rtt_ms: figure_view(Figure { value: rtt_s.value * 1e3, ..rtt_s }),
            bytes_per_s: figure_view(bytes_per_s),
        }
    };
    hops.map(view).collect()
}

fn figure_view(Figure { value, source }: Figure) -> FigureView {
    let (samples, age_s) = match source {
        Source::Measured { age, samples } => (Some(samples), Some(age.as_secs_f64())),
        Source::Stated | Source::Derived | Source::Estimated => (None, None),
    };
    FigureView { value, source: source.text().to_owned(), samples, age_s }
}

fn devices(request: &PlanRequest, plan: &Plan) -> Vec<PlanDeviceView> {
    let described = request.devices.iter().zip(plan.reasons.iter().zip(&plan.scores)).enumerate();
    let per_mille = |score: u32| f64::from(score) / 1e3;
    described
        .map(|(at, (device, (reason, score)))| PlanDeviceView {
            node: device.node.to_full(),
            node_name: device.node_name.clone(),
            device: device.device.id.to_string(),
            reason: reason.text.clone(),
            otherwise_ms: reason.otherwise_ns.map(ms),
            rates: rates(request, at),
            scores: ScoresView {
                compute: per_mille(score.compute),
                memory: per_mille(score.memory),
                network: per_mille(score.network),
                thermal: per_mille(score.thermal),
                bandwidth: per_mille(score.bandwidth),
                total: per_mille(score.total),
            },
        })
        .collect()
}

/// Of each type that counts. What is missing was taken from another type's, which is said.
fn rates(request: &PlanRequest, device: usize) -> Vec<PlanRateView> {
    let Some(types) = &request.weight_types else { return Vec::new() };
    let all: TypeBytes =
        types.layers.iter().chain([&types.head]).flat_map(|types| types.0.iter().copied()).collect();
    let mut uncorrected = request.clone();
    uncorrected.devices[device].rates.corrections = Corrections::default();
    let rates = exo_planner::rates_of(&uncorrected, device);
    let counts = |(_, bytes): &&(DType, u64)| *bytes >= all.total() / 100;
    let view = |&(dtype, _): &(DType, u64)| {
        let read = rates.read_of(dtype);
        let known = |dtype: DType| rates.read_by_type.contains_key(&dtype);
        // Of a model that caches hold, its own number is derived too.
        let has_own = request.devices[device].rates.read_by_type.contains_key(&dtype);
        let source = match read.source {
            Source::Derived if has_own => Source::Derived.text(),
            Source::Derived if known(dtype) => "taken from devices alike",
            Source::Derived if known(DType::Q8_0) => "taken from Q8_0",
            source => source.text(),
        };
        let FigureView { value, samples, age_s, .. } = figure_view(read);
        PlanRateView {
            dtype,
            read_bytes_per_s: value,
            flops_per_s: rates.flops_of(dtype).value,
            source: source.to_owned(),
            samples,
            age_s,
        }
    };
    all.0.iter().filter(counts).map(view).collect()
}

fn alternatives(request: &PlanRequest, plan: &Plan) -> Vec<AlternativeView> {
    let kind = |kind: exo_planner::AlternativeKind| match kind {
        exo_planner::AlternativeKind::Alone => AlternativeKind::Alone,
        exo_planner::AlternativeKind::Without => AlternativeKind::Without,
        exo_planner::AlternativeKind::With => AlternativeKind::With,
    };
    let plan_of = |other: &AlternativePlan| AlternativePlanView {
        stages: stages(request, &other.stages, &other.memory),
        predicted: prediction_view(&other.predicted),
        objective_ms: ms(other.objective_ns),
        is_proven: other.is_proven,
        is_as_asked: other.is_as_asked,
    };
    let view = |other: &Alternative| AlternativeView {
        kind: kind(other.kind),
        node: other.node.to_full(),
        node_name: node_name(request, other.node),
        device: other.device.to_string(),
        plan: other.outcome.as_ref().ok().map(plan_of),
        why: other.outcome.as_ref().err().map(|none| none.why.clone()),
        missing_bytes: other.outcome.as_ref().err().and_then(|none| none.missing_bytes),
    };
    plan.alternatives.iter().map(view).collect()
}

fn node_name(request: &PlanRequest, node: NodeId) -> String {
    let device = request.devices.iter().find(|device| device.node == node);
    device.map_or_else(|| node.to_string(), |device| device.node_name.clone())
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn what_a_model_is_placed_with_is_named_as_one_would_say_it() {
        let texts = ["attic/cpu".to_owned(), "desk/cpu".to_owned()];
        let said: Vec<String> = (0..3).map(|count| listed("pin", &texts[..count])).collect();
        assert_eq!(said, ["no pins", "the pin attic/cpu", "the pins attic/cpu, desk/cpu"]);
    }
}
