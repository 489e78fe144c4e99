//! The words: why a device got its part, and why there is no plan.

use exo_types::{DeviceFacts, LayerRange, MemoryDomain, Shard, SupportClass, size};

use crate::cost::Costs;
use crate::errors::Remedy;
use crate::fit::fits;
use crate::kernels::{Runnable, lacking_in_model};
use crate::memory::{Sizes, WeightForm};
use crate::ratios::TypeRatios;
use crate::search::{BestLayout, Outcome};
use crate::{
    DeviceMemory, DeviceReason, Objective, PlanDevice, PlanError, PlanRequest, ShardMemory, disk, domains,
};

/// Work of a search that an explanation takes, at most.
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

/// A reason for every device. What the plan would cost without it, or with it, is from a search of its own.
pub(crate) fn reasons(request: &PlanRequest, sizes: &Sizes<'_>, plan: &Explained<'_>) -> Vec<DeviceReason> {
    let reason = |(index, device): (usize, &PlanDevice)| {
        let stage = plan.layout.iter().position(|(d, _)| *d == index);
        let other = plan.otherwise.get(index).and_then(Option::as_ref);
        let text = match (unusable(request, device), stage) {
            (Some(why), _) => why,
            (None, Some(stage)) => placed(request, device, stage, plan, other),
            (None, None) => left_out(request, device, sizes, plan, other),
        };
        let text = text + &kernels_text(request, device) + &disk_text(device) + &heat_text(request, device);
        let found = other.and_then(|other| other.as_ref().ok());
        let otherwise_ns = found.map(|found| found.objective_ns);
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
    /// For every device what comes out with it or without it, see `alternatives::otherwise`.
    pub(crate) otherwise: &'a [Option<Outcome>],
}

impl Explained<'_> {
    /// "a request of 512 + 128 tokens takes 4.1 s instead of 3.2 s"
    fn instead(&self, request: &PlanRequest, found: &BestLayout) -> String {
        let (then, now) = (time(found.objective_ns), time(self.objective_ns));
        let then = if found.is_proven() { then } else { format!("at most {then}") };
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

fn placed(
    request: &PlanRequest,
    device: &PlanDevice,
    stage: usize,
    plan: &Explained<'_>,
    other: Option<&Outcome>,
) -> String {
    let (index, range) = plan.layout[stage];
    let (token_ns, stage_ns) =
        (plan.costs.times(plan.layout).token_ns, plan.costs.stage_token_ns(index, range));
    let shard = Shard::pipeline(range, request.shape.layer_count());
    let free = size(device.device.memory_free_bytes);
    let read = TypeRatios::of(request).read_rate(request, index, range);
    let learned = device.rates.corrections.text().map_or(String::new(), |text| format!(", {text}"));
    let part = format!(
        "{shard}: {} of {free} free; {} of {} {} at {:.1} GB/s ({}{learned})",
        size(plan.memory[stage].total_bytes()),
        time(stage_ns),
        time(token_ns),
        a_token(request),
        read.value / 1e9,
        read.source.text()
    );
    match other {
        Some(Ok(found)) => format!("{part}; without it {}", plan.instead(request, found)),
        Some(Err(none)) => format!("{part}; without it {}", none.why),
        None => part,
    }
}

fn left_out(
    request: &PlanRequest,
    device: &PlanDevice,
    sizes: &Sizes<'_>,
    plan: &Explained<'_>,
    other: Option<&Outcome>,
) -> String {
    let (free, least) = (device.device.memory_free_bytes, smallest_layer(sizes, device));
    if free < least {
        return format!("no layer: the smallest needs {}, {} are free", size(least), size(free));
    }
    match other {
        Some(Ok(found)) => {
            let (ours, times) = (plan.costs.times(plan.layout), plan.costs.times(&found.layout));
            let fetch = plan.costs.fetch(&found.layout);
            let (now, then) = ((ours.hop_ns, ours.compute_ns()), (times.hop_ns, times.compute_ns()));
            let change = change(a_token(request), now, then);
            let instead = plan.instead(request, found);
            let first = match fetch.ns > plan.costs.fetch(plan.layout).ns {
                true => {
                    let least = if fetch.is_estimated { "by a guess" } else { "at least" };
                    format!(", and {} are fetched first, {} {least}", size(fetch.bytes), time(fetch.ns))
                }
                false => String::new(),
            };
            format!("no layer: adding it {change}; {instead}{first}")
        }
        Some(Err(_)) => "no layer: no plan with it was found".to_owned(),
        None => "no layer: the plan is made without it".to_owned(),
    }
}

/// Memory of the layer that needs the least on a device.
pub(crate) fn smallest_layer(sizes: &Sizes<'_>, device: &PlanDevice) -> u64 {
    let held = WeightForm::by(device.device.kind);
    (0..sizes.layer_count()).map(|layer| sizes.bytes(held, layer, layer + 1)).min().unwrap_or(0)
}

/// What is said of a token is of one stream, which a plan for many is not chosen by.
fn a_token(request: &PlanRequest) -> &'static str {
    match request.objective {
        Objective::Throughput => "a token of one stream",
        Objective::Latency | Objective::Spread { .. } => "a token",
    }
}

/// What changes of a token from `now` to `then`, each the time between stages and the time of computing.
fn change(a_token: &str, now: (u64, u64), then: (u64, u64)) -> String {
    let hops = format!("{} {a_token} between stages", time(now.0.abs_diff(then.0)));
    let computing = format!("{} of computing", time(now.1.abs_diff(then.1)));
    match (then.0 >= now.0, then.1 >= now.1) {
        (true, false) => format!("costs {hops} and saves {computing}"),
        (false, true) => format!("costs {computing} and saves {hops}"),
        (true, true) => format!("costs {hops} and {computing}"),
        (false, false) => format!("saves {hops} and {computing}"),
    }
}

/// Nanoseconds to be displayed, to three figures.
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
    let (free_bytes, usable_bytes) = free_and_usable(request, sizes, usable);
    let held = least_form(request, usable);
    let (largest_unit, largest_unit_bytes) = sizes.largest_unit(held);
    PlanError::DoesNotFit {
        needed_bytes: sizes.model_bytes(held),
        free_bytes,
        usable_bytes,
        missing_bytes: missing_bytes(request, sizes, usable, EXACT_MISSING_MAX),
        per_device: usable.iter().map(memory).collect(),
        largest_unit: largest_unit.into(),
        largest_unit_bytes,
        left_out: not_counted(request),
        remedies: disk_room(asked).into_iter().chain(remedies(request, sizes, usable)).collect(),
    }
}

/// Bytes that these devices, which do not hold the model, lack at least; 0 where that is not known. Where it
/// is enough in sum and not in pieces, that is searched among `searched_max` devices only.
pub(crate) fn missing_bytes(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    devices: &[usize],
    searched_max: usize,
) -> u64 {
    let (_, usable_bytes) = free_and_usable(request, sizes, devices);
    match sizes.model_bytes(least_form(request, devices)).saturating_sub(usable_bytes) {
        0 if devices.len() <= searched_max => {
            least_growth(request, sizes, devices).map_or(0, |(_, bytes)| bytes)
        }
        short => short,
    }
}

/// Bytes that are free on these devices, and what layers can fill of them.
fn free_and_usable(request: &PlanRequest, sizes: &Sizes<'_>, devices: &[usize]) -> (u64, u64) {
    let all: Vec<&DeviceFacts> = devices.iter().map(|&device| &request.devices[device].device).collect();
    let sum = |less: u64| {
        let each = all.iter().map(|device| device.memory_free_bytes.saturating_sub(less));
        each.fold(0u64, u64::saturating_add)
    };
    // What devices share is there once.
    let free_bytes = domains::memory_free_bytes(all.iter().copied());
    let shared_bytes = sum(0).saturating_sub(free_bytes);
    (free_bytes, sum(sizes.workspace()).saturating_sub(shared_bytes))
}

/// As the whole model needs the least on these devices: where a card may take a part, as a card holds it.
fn least_form(request: &PlanRequest, devices: &[usize]) -> WeightForm {
    let by = |&device: &usize| WeightForm::by(request.devices[device].device.kind);
    let all_packed = devices.iter().all(|device| by(device) == WeightForm::Packed);
    if all_packed { WeightForm::Packed } else { WeightForm::AsStored }
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
    request.devices.iter().map(free_bytes).collect()
}

/// The same of one device.
pub(crate) fn free_bytes(PlanDevice { device, .. }: &PlanDevice) -> u64 {
    device.memory_domain.map_or(u64::MAX, |domain| domain.free_bytes).min(device.memory_free_bytes)
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
