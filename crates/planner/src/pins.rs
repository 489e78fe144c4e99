//! Pins that no plan can meet, told before the search.

use exo_types::{LayerRange, size, size_up};

use crate::kernels::{Runnable, lacking_in_model, lacking_kernels};
use crate::memory::{Sizes, WeightForm};
use crate::{Pin, PinLayers, PlanError, PlanRequest, explain};

/// Whether every pin names a usable device once, layers of the model, and what that device can hold; and
/// whether they leave room for each other.
pub(crate) fn check(request: &PlanRequest, sizes: &Sizes<'_>) -> Result<(), PlanError> {
    let layers = sizes.layer_count();
    let mut counted = 0u32;
    for (at, pin) in request.pins.iter().enumerate() {
        let refused = |why: String| PlanError::Pin { device: name(request, pin), why };
        let is_this = |d: &&crate::PlanDevice| d.node == pin.node && d.device.id == pin.device;
        let Some(device) = request.devices.iter().find(is_this) else {
            return Err(refused(
                "there is no such device now: start its node, or place the model anew without the pin"
                    .to_owned(),
            ));
        };
        if let Some(why) = explain::unusable(request, device) {
            return Err(refused(why));
        }
        if request.pins[..at].iter().any(|p| p.node == pin.node && p.device == pin.device) {
            return Err(refused("it is pinned twice: name it once".to_owned()));
        }
        let held = WeightForm::by(device.device.kind);
        let (count, needed_bytes) = match pin.layers {
            PinLayers::Any => (1, 0),
            PinLayers::Count(count) if count == 0 || count > layers => {
                return Err(refused(format!("{count} of {layers} layers: pin 1 to {layers}")));
            }
            PinLayers::Count(count) => {
                let runs = Runnable::of(request, device);
                let starts = (0..=layers - count).filter(|start| runs.stop(*start, layers) >= start + count);
                let least = starts.map(|start| sizes.bytes(held, start, start + count)).min();
                let lacking = || refused(lacking_in_model(request, device).unwrap_or_default());
                (count, least.ok_or_else(lacking)?)
            }
            PinLayers::Range(LayerRange { start, end }) if start >= end || end > layers => {
                return Err(refused(format!("layers {start}..{end} of {layers}: pin some of 0..{layers}")));
            }
            PinLayers::Range(range) => {
                if let Some(other) = request.pins[..at].iter().find(|p| overlap(p.layers, range)) {
                    return Err(refused(format!("{} has some of layers {range}", name(request, other))));
                }
                if let Some(lacking) = lacking_kernels(request, device, range) {
                    return Err(refused(lacking));
                }
                (range.end - range.start, sizes.bytes(held, range.start, range.end))
            }
        };
        let free_bytes = device.device.memory_free_bytes;
        if needed_bytes > free_bytes {
            let most = most_layers(sizes, held, free_bytes);
            if let Some(disk) = device.disk {
                return Err(refused(format!(
                    "its node does not have it, and {}, {most} layers at most: pin fewer, {}",
                    disk.text(&device.node_name),
                    disk.remedy(needed_bytes)
                )));
            }
            return Err(refused(format!(
                "it needs {} and has {} free, room for {most} layers at most: pin fewer, free memory \
                 there, or ask for less context or fewer slots",
                size_up(needed_bytes),
                size(free_bytes)
            )));
        }
        counted = counted.saturating_add(count);
        if counted > layers {
            return Err(refused(format!(
                "the pins ask for {counted} layers, the model has {layers}: pin fewer"
            )));
        }
    }
    Ok(())
}

/// The longest run of layers for which a device has room.
fn most_layers(sizes: &Sizes<'_>, held: WeightForm, free_bytes: u64) -> u32 {
    let layers = sizes.layer_count();
    let fits =
        |count: &u32| (0..=layers - count).any(|start| sizes.bytes(held, start, start + count) <= free_bytes);
    (1..=layers).rev().find(fits).unwrap_or(0)
}

fn overlap(layers: PinLayers, range: LayerRange) -> bool {
    matches!(layers, PinLayers::Range(other) if other.start < range.end && range.start < other.end)
}

/// Node and device, to be displayed.
pub(crate) fn name(request: &PlanRequest, pin: &Pin) -> String {
    let node = request.devices.iter().find(|d| d.node == pin.node);
    let node = node.map_or_else(|| pin.node.to_string(), |d| d.node_name.clone());
    format!("{node} {}", pin.device)
}
