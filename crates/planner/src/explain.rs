//! The words: why a device got its part, and why there is no plan.

use exo_types::{LayerRange, MemoryDomain, Shard, SupportClass, size};

use crate::cost::{Costs, Fetch, Times};
use crate::errors::Remedy;
use crate::fit::fits;
use crate::kernels::{Runnable, lacking_in_model};
use crate::memory::{Sizes, WeightForm};
use crate::ratios::TypeRatios;
use crate::{
    DeviceMemory, DeviceReason, Objective, Pin, PinLayers, PlanDevice, PlanError, PlanRequest, ShardMemory,
    disk, domains, fetching,
};

/// Up to so many usable devices each is explained by a search with or without it.
const EXPLAINED_MAX: usize = 16;
/// Work of one such search at most.
pub(crate) const EXPLAIN_WORK_MAX: u64 = 20_000_000;

/// Tokens of a page of keys and values: `engine`'s. A cache is made of whole ones.
pub const PAGE_TOKENS: u32 = 32;
/// Up to so many devices the missing bytes of a model that fits in sum and not in pieces are searched
/// exactly.
const EXACT_MISSING_MAX: usize = 8;

/// The devices that may be used.
pub(crate) fn usable(request: &PlanRequest) -> Vec<usize> {
    (0..request.devices.len()).filter(|&i| unusable(request, &request.devices[i]).is_none()).collect()
}

/// Why a device must not be used for this model, if it must not.
pub(crate) fn unusable(request: &PlanRequest, device: &PlanDevice) -> Option<String> {
    if let Some(reason) = &device.excluded {
        return Some(format!("excluded: {reason}"));
    }
    if device.device.support == SupportClass::Unsupported {
        return Some(format!("unsupported: {}", device.device.support_reason));
    }
    // What it runs of the model it may have.
    let is_of_use = Runnable::of(request, device).is_any(request.shape.layer_count());
    if is_of_use { None } else { lacking_in_model(request, device) }
}

pub(crate) fn no_devices(request: &PlanRequest, asked: &PlanRequest) -> PlanError {
    let reason = |d: &PlanDevice| format!("{}: {}", name(d), unusable(request, d).unwrap_or_default());
    let reasons = request.devices.iter().map(reason).collect();
    let remedies: Vec<Remedy> = disk_room(asked).into_iter().collect();
    // Another model could have some of them.
    let is_free = |d: &PlanDevice| unusable(request, d) == lacking_in_model(request, d);
    if remedies.is_empty() && request.devices.iter().any(is_free) {
        return PlanError::NoKernels { reasons };
    }
    PlanError::NoDevices { reasons, remedies }
}

/// That no device runs some layer, with what each lacks.
pub(crate) fn no_kernels(request: &PlanRequest) -> PlanError {
    let why = |d: &PlanDevice| unusable(request, d).or_else(|| lacking_in_model(request, d));
    let reason = |d: &PlanDevice| Some(format!("{}: {}", name(d), why(d)?));
    PlanError::NoKernels { reasons: request.devices.iter().filter_map(reason).collect() }
}

/// A reason for every device. What the plan would cost without it, or with it, comes from a search of its
/// own.
pub(crate) fn reasons(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    plan: &Explained<'_>,
) -> Vec<DeviceReason> {
    let reason = |(index, device): (usize, &PlanDevice)| {
        let stage = plan.layout.iter().position(|(d, _)| *d == index);
        let is_asked = usable.len() <= EXPLAINED_MAX && request.explain;
        let other =
            if is_asked { plan.otherwise(request, sizes, usable, index) } else { Alternative::NotAsked };
        let text = match (unusable(request, device), stage) {
            (Some(why), _) => why,
            (None, Some(stage)) => placed(request, device, stage, plan, &other),
            (None, None) => left_out(request, device, sizes, plan, &other),
        };
        let text = text + &kernels_text(request, device) + &disk_text(device) + &heat_text(request, device);
        let otherwise_ns = match &other {
            Alternative::Plan { objective_ns, .. } => Some(*objective_ns),
            Alternative::Impossible { .. } | Alternative::NotAsked => None,
        };
        DeviceReason { node: device.node, device: device.device.id.clone(), text, otherwise_ns }
    };
    request.devices.iter().enumerate().map(reason).collect()
}

/// The plan that is explained.
pub(crate) struct Explained<'a> {
    pub(crate) layout: &'a [(usize, LayerRange)],
    pub(crate) memory: &'a [ShardMemory],
    pub(crate) objective_ns: u64,
    /// As they are expected.
    pub(crate) costs: &'a Costs<'a>,
}

/// What comes out when one device is used that was not, or the other way round.
enum Alternative {
    /// Nobody looked: there are too many devices, or it cannot be used.
    NotAsked,
    /// There is no such plan.
    Impossible { why: String },
    Plan {
        objective_ns: u64,
        times: Times,
        /// What it fetches first.
        fetch: Fetch,
        /// Nothing is better, or the search for it was cut short.
        is_proven: bool,
    },
}

impl Explained<'_> {
    fn otherwise(
        &self,
        request: &PlanRequest,
        sizes: &Sizes<'_>,
        usable: &[usize],
        index: usize,
    ) -> Alternative {
        if !usable.contains(&index) {
            return Alternative::NotAsked;
        }
        let device = &request.devices[index];
        let is_placed = self.layout.iter().any(|(d, _)| *d == index);
        let others: Vec<usize> = usable.iter().copied().filter(|&d| !is_placed || d != index).collect();
        let mut asked = request.clone();
        asked.work_max = request.work_max.min(EXPLAIN_WORK_MAX);
        let is_this = |p: &Pin| p.node == device.node && p.device == device.device.id;
        if is_placed {
            asked.pins.retain(|p| !is_this(p));
        } else {
            let pin = Pin { node: device.node, device: device.device.id.clone(), layers: PinLayers::Any };
            asked.pins.push(pin);
        }
        if others.is_empty() {
            return Alternative::Impossible { why: "there is no device".to_owned() };
        }
        match fetching::best(&asked, sizes, &others).map(|weighed| weighed.outcome) {
            Some(found) => Alternative::Plan {
                objective_ns: found.objective_ns,
                is_proven: found.lower_bound_ns >= found.objective_ns,
                times: self.costs.times(&found.layout),
                fetch: self.costs.fetch(&found.layout),
            },
            None => Alternative::Impossible { why: why_none(&asked, others.len()) },
        }
    }

    /// "a request of 512 + 128 tokens takes 4.1 s instead of 3.2 s"
    fn instead(&self, request: &PlanRequest, otherwise_ns: u64, is_proven: bool) -> String {
        let (then, now) = (time(otherwise_ns), time(self.objective_ns));
        let then = if is_proven { then } else { format!("at most {then}") };
        match request.objective {
            Objective::Throughput => {
                format!(
                    "a token for each of {} streams takes {then} instead of {now}",
                    request.workload.streams
                )
            }
            Objective::Latency | Objective::Spread { .. } => {
                let (prompt, answer) = (self.costs.prompt(), self.costs.answer());
                format!("a request of {prompt} + {answer} tokens takes {then} instead of {now}")
            }
        }
    }
}

/// Why so many devices have no plan.
fn why_none(asked: &PlanRequest, devices: usize) -> String {
    match asked.objective {
        Objective::Spread { stages_min } if devices < stages_min as usize => {
            format!("there are fewer than the {stages_min} devices that were asked for")
        }
        Objective::Latency | Objective::Throughput if asked.pins.is_empty() => {
            "the model does not fit".to_owned()
        }
        _ => "no plan is as it was asked for".to_owned(),
    }
}

fn placed(
    request: &PlanRequest,
    device: &PlanDevice,
    stage: usize,
    plan: &Explained<'_>,
    other: &Alternative,
) -> String {
    let (index, range) = plan.layout[stage];
    let (token_ns, stage_ns) =
        (plan.costs.times(plan.layout).token_ns, plan.costs.stage_token_ns(index, range));
    let shard = Shard::pipeline(range, request.shape.layer_count());
    let free = size(device.device.memory_free_bytes);
    let read = TypeRatios::of(request).read_rate(request, index, range);
    let learned = device.rates.corrections.text().map_or(String::new(), |text| format!(", {text}"));
    let part = format!(
        "{shard}: {} of {free} free; {} of {} a token at {:.1} GB/s ({}{learned})",
        size(plan.memory[stage].total_bytes()),
        time(stage_ns),
        time(token_ns),
        read.value / 1e9,
        read.source.text()
    );
    match other {
        Alternative::Plan { objective_ns, is_proven, .. } => {
            format!("{part}; without it {}", plan.instead(request, *objective_ns, *is_proven))
        }
        Alternative::Impossible { why } => format!("{part}; without it {why}"),
        Alternative::NotAsked => part,
    }
}

fn left_out(
    request: &PlanRequest,
    device: &PlanDevice,
    sizes: &Sizes<'_>,
    plan: &Explained<'_>,
    other: &Alternative,
) -> String {
    let (free, held) = (device.device.memory_free_bytes, WeightForm::by(device.device.kind));
    let least = (0..sizes.layer_count()).map(|layer| sizes.bytes(held, layer, layer + 1)).min().unwrap_or(0);
    if free < least {
        return format!("no layer: the smallest needs {}, {} are free", size(least), size(free));
    }
    match other {
        Alternative::Plan { objective_ns, times, fetch, is_proven } => {
            let ours = plan.costs.times(plan.layout);
            let change = change((ours.hop_ns, ours.compute_ns()), (times.hop_ns, times.compute_ns()));
            let instead = plan.instead(request, *objective_ns, *is_proven);
            let first = match fetch.ns > plan.costs.fetch(plan.layout).ns {
                true => {
                    let least = if fetch.is_estimated { "by a guess" } else { "at least" };
                    format!(", and {} are fetched first, {} {least}", size(fetch.bytes), time(fetch.ns))
                }
                false => String::new(),
            };
            format!("no layer: adding it {change}; {instead}{first}")
        }
        Alternative::Impossible { .. } => "no layer: no plan with it was found".to_owned(),
        Alternative::NotAsked => "no layer: the plan is made without it".to_owned(),
    }
}

/// What changes of a token from `now` to `then`, each the time between stages and the time of computing.
fn change(now: (u64, u64), then: (u64, u64)) -> String {
    let step = |now: u64, then: u64, of: &str| format!("{} {of}", time(now.abs_diff(then)));
    let hops = step(now.0, then.0, "a token between stages");
    let computing = step(now.1, then.1, "of computing");
    match (then.0 >= now.0, then.1 >= now.1) {
        (true, false) => format!("costs {hops} and saves {computing}"),
        (false, true) => format!("costs {computing} and saves {hops}"),
        (true, true) => format!("costs {hops} and {computing}"),
        (false, false) => format!("saves {hops} and {computing}"),
    }
}

/// Nanoseconds for people, to three figures.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0 => "0 ms".to_owned(),
        1..1_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        1_000_000..100_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        100_000_000..1_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// That no devices hold what was `asked`, which `request` is within the disks of its nodes.
pub(crate) fn does_not_fit(
    request: &PlanRequest,
    asked: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
) -> PlanError {
    let memory = |&d: &usize| {
        let device = &request.devices[d];
        let free_bytes = device.device.memory_free_bytes;
        let usable_bytes = free_bytes.saturating_sub(sizes.workspace());
        DeviceMemory { name: name(device) + &disk_text(device), free_bytes, usable_bytes }
    };
    let per_device: Vec<DeviceMemory> = usable.iter().map(memory).collect();
    let sum = |of: fn(&DeviceMemory) -> u64| per_device.iter().map(of).fold(0u64, u64::saturating_add);
    // What devices share is there once.
    let free_bytes = domains::memory_free_bytes(usable.iter().map(|&device| &request.devices[device].device));
    let shared_bytes = sum(|d| d.free_bytes) - free_bytes;
    let usable_bytes = sum(|d| d.usable_bytes).saturating_sub(shared_bytes);
    // Where a card may take a part, the least that is needed in all is what it would take.
    let by = |&device: &usize| WeightForm::by(request.devices[device].device.kind);
    let all_packed = usable.iter().all(|device| by(device) == WeightForm::Packed);
    let held = if all_packed { WeightForm::Packed } else { WeightForm::AsStored };
    let needed_bytes = sizes.model_bytes(held);
    let missing_bytes = match needed_bytes.saturating_sub(usable_bytes) {
        // In sum it is enough; how little more would do in pieces is searched among few devices only.
        0 if usable.len() <= EXACT_MISSING_MAX => {
            least_growth(request, sizes, usable).map_or(0, |(_, bytes)| bytes)
        }
        short => short,
    };
    let (largest_unit, largest_unit_bytes) = sizes.largest_unit(held);
    PlanError::DoesNotFit {
        needed_bytes,
        free_bytes,
        usable_bytes,
        missing_bytes,
        per_device,
        largest_unit: largest_unit.into(),
        largest_unit_bytes,
        left_out: not_counted(request),
        remedies: disk_room(asked).into_iter().chain(remedies(request, sizes, usable)).collect(),
    }
}

/// Which layers a device that may be used does not run.
fn kernels_text(request: &PlanRequest, device: &PlanDevice) -> String {
    match lacking_in_model(request, device).filter(|_| unusable(request, device).is_none()) {
        Some(lacking) => format!(", and {lacking}"),
        None => String::new(),
    }
}

/// What bounds the layers of a device beside its memory.
fn disk_text(device: &PlanDevice) -> String {
    match device.disk.filter(|_| device.excluded.is_none()) {
        Some(disk) => format!(", and {}", disk.text(&device.node_name)),
        None => String::new(),
    }
}

/// That a device is slowed down, where that counts.
fn heat_text(request: &PlanRequest, device: &PlanDevice) -> String {
    match device.thermal_percent {
        percent @ ..100 if unusable(request, device).is_none() => {
            format!(", and it is throttled: {percent} % of its speed counts")
        }
        _ => String::new(),
    }
}

/// As many as an error names.
const LEFT_OUT_MAX: usize = 8;

/// Devices that do not count, or not for all layers, with the reason: one of them may be what would help.
pub(crate) fn not_counted(request: &PlanRequest) -> Box<str> {
    let why = |d: &PlanDevice| unusable(request, d).or_else(|| lacking_in_model(request, d));
    let text = |device: &PlanDevice| Some(format!("{} ({})", name(device), why(device)?));
    request.devices.iter().filter_map(text).take(LEFT_OUT_MAX).collect::<Vec<_>>().join(", ").into()
}

/// The least room on a disk that would do, where that is what lacks.
fn disk_room(asked: &PlanRequest) -> Option<Remedy> {
    let is_possible = |within: &PlanRequest| {
        let usable = usable(within);
        let is_searched = usable.len() <= EXACT_MISSING_MAX;
        is_searched && fits(within, &Sizes::of(within), &usable, &free_of(within))
    };
    let (remedy, enough) = disk::least_room(asked, is_possible)?;
    let within = enough.within_disks();
    is_planned(&within, &usable(&within)).then_some(remedy)
}

/// Whether there is a plan that a search of no more work than an explanation's finds.
fn is_planned(request: &PlanRequest, usable: &[usize]) -> bool {
    let asked = PlanRequest { work_max: request.work_max.min(EXPLAIN_WORK_MAX), ..request.clone() };
    domains::best(&asked, &Sizes::of(&asked), usable).is_some()
}

/// The smallest changes, each of which alone makes the request possible, pins and number of stages included.
/// Only where that can be searched exactly.
fn remedies(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> Vec<Remedy> {
    if usable.len() > EXACT_MISSING_MAX {
        return Vec::new();
    }
    let grown = |&(device, bytes): &(usize, u64)| {
        let mut asked = request.clone();
        grow(&mut asked.devices, device, bytes);
        is_planned(&asked, usable)
    };
    // More memory does not help where the disk is what is full.
    let has_disk = |&(device, _): &(usize, u64)| request.devices[device].disk.is_none();
    let growth = least_growth(request, sizes, usable).filter(has_disk).filter(grown);
    let growth =
        growth.map(|(device, bytes)| Remedy::Memory { device: name(&request.devices[device]), bytes });
    let shorter = shorter(request, usable).filter(|asked| is_planned(asked, usable));
    let shorter = shorter.map(|PlanRequest { context_tokens, cache_tokens, .. }| Remedy::Context {
        context_tokens,
        cache_tokens,
    });
    growth.into_iter().chain(shorter).collect()
}

/// So much more on a device is so much more in the memory that it shares.
fn grow(devices: &mut [PlanDevice], grown: usize, bytes: u64) {
    let free_bytes = &mut devices[grown].device.memory_free_bytes;
    *free_bytes = free_bytes.saturating_add(bytes);
    let Some(MemoryDomain { id, .. }) = devices[grown].device.memory_domain else { return };
    for domain in devices.iter_mut().filter_map(|d| d.device.memory_domain.as_mut()) {
        if domain.id == id {
            domain.free_bytes = domain.free_bytes.saturating_add(bytes);
        }
    }
}

/// What is free on each device, no more than in the memory that it shares.
fn free_of(request: &PlanRequest) -> Vec<u64> {
    let free = |PlanDevice { device, .. }: &PlanDevice| {
        device.memory_domain.map_or(u64::MAX, |domain| domain.free_bytes).min(device.memory_free_bytes)
    };
    request.devices.iter().map(free).collect()
}

/// The request with the longest context with which the model fits, if a shorter one helps. In whole pages, as
/// caches are made.
fn shorter(request: &PlanRequest, usable: &[usize]) -> Option<PlanRequest> {
    let free = free_of(request);
    let PlanRequest { context_tokens: context, cache_tokens: cache, slots, .. } = *request;
    let is_full =
        u64::from(cache) == u64::from(slots) * u64::from(context).next_multiple_of(PAGE_TOKENS.into());
    let with = |pages: u32| {
        let context_tokens = pages * PAGE_TOKENS;
        let cut = match is_full {
            true => u64::from(slots) * u64::from(context_tokens),
            false => u64::from(cache) * u64::from(context_tokens) / u64::from(context),
        };
        let cache_tokens = (cut as u32 / PAGE_TOKENS * PAGE_TOKENS).max(context_tokens); // below `cache`
        PlanRequest { context_tokens, cache_tokens, ..request.clone() }
    };
    let holds = |pages: u32| {
        let asked = with(pages);
        fits(&asked, &Sizes::of(&asked), usable, &free)
    };
    let (mut low, mut high) = (0, (context - 1) / PAGE_TOKENS);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    (low > 0).then(|| with(low))
}

/// The device, and the fewest bytes that, added to it, make the model fit.
fn least_growth(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> Option<(usize, u64)> {
    let free = free_of(request);
    let solo = |device: usize| {
        sizes.bytes(WeightForm::by(request.devices[device].device.kind), 0, sizes.layer_count())
    };
    let growth = |&device: &usize| {
        let holds = |more: u64| {
            let mut grown = free.clone();
            grown[device] = grown[device].saturating_add(more);
            fits(request, sizes, usable, &grown)
        };
        // With this much more the device holds the whole model alone, if it runs all of it.
        let (mut low, mut high) = (1, solo(device).saturating_sub(free[device]));
        if !holds(high) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some((device, high))
    };
    usable.iter().filter_map(growth).min_by_key(|(_, bytes)| *bytes)
}

pub(crate) fn name(device: &PlanDevice) -> String {
    format!("{} {}", device.node_name, device.device.id)
}
