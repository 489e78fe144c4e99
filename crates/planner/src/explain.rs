//! The words: why a device got its part, and why there is no plan.

use exo_types::{Stage, SupportClass};

use crate::memory::{Held, Sizes};
use crate::search::fits;
use crate::{Chosen, DeviceMemory, DeviceReason, PlanDevice, PlanError, PlanRequest, ShardMemory};

/// Up to so many devices the missing bytes of a model that fits in sum and not in pieces are searched exactly.
const EXACT_MISSING_MAX: usize = 8;

/// Why a device must not be used, if it must not.
pub(crate) fn unusable(device: &PlanDevice) -> Option<String> {
    if let Some(reason) = &device.excluded {
        return Some(format!("excluded: {reason}"));
    }
    if device.device.support == SupportClass::Unsupported {
        return Some(format!("unsupported: {}", device.device.support_reason));
    }
    None
}

pub(crate) fn no_devices(request: &PlanRequest) -> PlanError {
    let reason = |d: &PlanDevice| format!("{}: {}", name(d), unusable(d).unwrap_or_default());
    PlanError::NoDevices { reasons: request.devices.iter().map(reason).collect() }
}

pub(crate) fn reasons(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    chosen: &Chosen,
    stages: &[Stage],
    memory: &[ShardMemory],
) -> Vec<DeviceReason> {
    let measured = chosen.order.iter().all(|&d| request.devices[d].device.read_bytes_per_s.is_some());
    let text = |index: usize, device: &PlanDevice| match chosen.order.iter().position(|&d| d == index) {
        Some(stage) => placed(device, &stages[stage], &memory[stage], stages.len(), measured),
        None => unusable(device).unwrap_or_else(|| left_out(device, sizes, stages.len())),
    };
    let reason = |(index, device): (usize, &PlanDevice)| DeviceReason {
        node: device.node,
        device: device.device.id.clone(),
        text: text(index, device),
    };
    request.devices.iter().enumerate().map(reason).collect()
}

fn placed(device: &PlanDevice, stage: &Stage, memory: &ShardMemory, stages: usize, measured: bool) -> String {
    let bytes = format!("{} of {} free", size(memory.total_bytes()), size(device.device.memory_free_bytes));
    let why = match (stages, measured) {
        (1, _) => "the whole model fits here, and a hop costs time",
        (_, true) => "share by measured read speed, within memory",
        (_, false) => "share by memory: not every device was measured",
    };
    format!("{}: {bytes}; {why}", stage.leader().shard)
}

fn left_out(device: &PlanDevice, sizes: &Sizes<'_>, stages: usize) -> String {
    let (free, held) = (device.device.memory_free_bytes, Held::by(device.device.kind));
    let least = (0..sizes.layer_count()).map(|layer| sizes.bytes(held, layer, layer + 1)).min().unwrap_or(0);
    if free < least {
        return format!("no layer: the smallest needs {}, {} are free", size(least), size(free));
    }
    match stages {
        1 => "no layer: the model fits on one device, and each hop costs time".to_owned(),
        n => format!("no layer: {n} devices are enough, and each hop costs time"),
    }
}

pub(crate) fn does_not_fit(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> PlanError {
    let memory = |&d: &usize| {
        let device = &request.devices[d];
        let free_bytes = device.device.memory_free_bytes;
        let usable_bytes = free_bytes.saturating_sub(sizes.workspace());
        DeviceMemory { name: name(device), free_bytes, usable_bytes }
    };
    let per_device: Vec<DeviceMemory> = usable.iter().map(memory).collect();
    let sum = |of: fn(&DeviceMemory) -> u64| per_device.iter().map(of).fold(0u64, u64::saturating_add);
    let (free_bytes, usable_bytes) = (sum(|d| d.free_bytes), sum(|d| d.usable_bytes));
    // Where a card may take a part, the least that is needed in all is what it would take.
    let by = |&device: &usize| Held::by(request.devices[device].device.kind);
    let all_packed = usable.iter().all(|device| by(device) == Held::Packed);
    let held = if all_packed { Held::Packed } else { Held::AsStored };
    let needed_bytes = sizes.model_bytes(held);
    let missing_bytes = match needed_bytes.saturating_sub(usable_bytes) {
        0 => least_growth(request, sizes, usable),
        short => short,
    };
    let (largest_unit, largest_unit_bytes) = sizes.largest_unit(held);
    PlanError::DoesNotFit {
        needed_bytes,
        free_bytes,
        usable_bytes,
        missing_bytes,
        per_device,
        largest_unit,
        largest_unit_bytes,
    }
}

/// The fewest bytes that, added to one device, make the model fit.
fn least_growth(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> u64 {
    let free: Vec<u64> = request.devices.iter().map(|d| d.device.memory_free_bytes).collect();
    let solo =
        |device: usize| sizes.bytes(Held::by(request.devices[device].device.kind), 0, sizes.layer_count());
    let growth = |&device: &usize| {
        // With this much more the device holds the whole model alone.
        let (mut low, mut high) = (1, solo(device).saturating_sub(free[device]));
        while usable.len() <= EXACT_MISSING_MAX && low < high {
            let middle = low + (high - low) / 2;
            let mut grown = free.clone();
            grown[device] += middle;
            if fits(request, sizes, usable, &grown) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    };
    usable.iter().map(growth).min().unwrap_or(0)
}

pub(crate) fn name(device: &PlanDevice) -> String {
    format!("{} {}", device.node_name, device.device.id)
}

/// Bytes for people, to three figures.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
