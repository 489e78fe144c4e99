//! Which layers a device has kernels for.
//!
//! A device says which types of weights it cannot run ([`exo_types::DeviceFacts::unsupported_types`]), and
//! the request says which layers have them. A layer with one of them does not go there, and the others may:
//! files mix types between their layers, too. The embedding goes with the first layer and the output head
//! with the last, so these need kernels for both.

use exo_types::{DType, LayerRange, TypeBytes, WeightTypes};

use crate::{PlanDevice, PlanRequest};

/// Runs of layers that are named one by one, at most.
const RUNS_MAX: usize = 3;

/// Which weights of these layers, with the embedding and the head where they go along, a device cannot run,
/// in words; `None` where it runs all that are known.
pub fn lacking_kernels(request: &PlanRequest, device: &PlanDevice, layers: LayerRange) -> Option<String> {
    let types = request.weight_types.as_ref()?;
    let lacks = |dtype: &DType| Some(format!("{dtype} weights, which {}", needed_by(types, *dtype, layers)?));
    let lacking: Vec<String> = device.device.unsupported_types.iter().filter_map(lacks).collect();
    (!lacking.is_empty()).then(|| format!("it cannot run {}", lacking.join(", and no ")))
}

/// The same of the whole model.
pub(crate) fn lacking_in_model(request: &PlanRequest, device: &PlanDevice) -> Option<String> {
    lacking_kernels(request, device, LayerRange::new(0, request.shape.layer_count()))
}

/// Whether no device of these runs some layer.
pub(crate) fn is_some_layer_lost(request: &PlanRequest, devices: &[usize]) -> bool {
    let runs: Vec<Runnable> = devices.iter().map(|&at| Runnable::of(request, &request.devices[at])).collect();
    (0..request.shape.layer_count()).any(|layer| runs.iter().all(|runs| runs.lacks(layer)))
}

/// The layers that a device has kernels for.
#[derive(Clone, Debug)]
pub(crate) struct Runnable {
    /// Of each layer whether it has none; empty where it runs all.
    lacking: Vec<bool>,
}

impl Runnable {
    pub(crate) fn of(request: &PlanRequest, device: &PlanDevice) -> Self {
        let unsupported = &device.device.unsupported_types;
        let Some(types) = request.weight_types.as_ref().filter(|_| !unsupported.is_empty()) else {
            return Self { lacking: Vec::new() };
        };
        let lacks = |of: &TypeBytes| of.0.iter().any(|(dtype, _)| unsupported.contains(dtype));
        let mut lacking: Vec<bool> = types.layers.iter().map(lacks).collect();
        if let Some(last) = lacking.last_mut() {
            *last |= lacks(&types.head);
        }
        Self { lacking }
    }

    fn lacks(&self, layer: u32) -> bool {
        self.lacking.get(layer as usize).copied().unwrap_or(false)
    }

    /// Whether it runs any layer of so many.
    pub(crate) fn is_any(&self, layers: u32) -> bool {
        (0..layers).any(|layer| !self.lacks(layer))
    }

    /// Whether it runs all of them.
    pub(crate) fn is_all(&self) -> bool {
        self.lacking.iter().all(|lacks| !lacks)
    }

    /// For each end up to the last layer's the least start from which it runs all; the end itself where it
    /// does not run the layer before it.
    pub(crate) fn starts(&self, layers: u32) -> Vec<u32> {
        let mut start = 0;
        let least = |end: u32| {
            if end > 0 && self.lacks(end - 1) {
                start = end;
            }
            start
        };
        (0..=layers).map(least).collect()
    }

    /// The first layer from this one on that it does not run, or `layers`.
    pub(crate) fn stop(&self, start: u32, layers: u32) -> u32 {
        (start..layers).find(|layer| self.lacks(*layer)).unwrap_or(layers)
    }
}

/// "layers 3 to 5 and the output head need"; `None` if nothing in `range` does.
fn needed_by(types: &WeightTypes, dtype: DType, range: LayerRange) -> Option<String> {
    let has = |of: &TypeBytes, is_counted: bool| {
        of.0.iter().any(|&(of, bytes)| of == dtype && (bytes > 0) == is_counted)
    };
    let in_range = |layer: usize| range.start as usize <= layer && layer < range.end as usize;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (layer, _) in types.layers.iter().enumerate().filter(|(at, of)| in_range(*at) && has(of, true)) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == layer => *last = layer,
            _ => runs.push((layer, layer)),
        }
    }
    let count: usize = runs.iter().map(|(first, last)| last - first + 1).sum();
    let run = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    let layers = match (count, runs.len()) {
        (0, _) => None,
        (1, _) => runs.first().map(|run| format!("layer {}", run.0)),
        (_, ..=RUNS_MAX) => Some(format!("layers {}", runs.iter().map(run).collect::<Vec<_>>().join(", "))),
        _ => Some(format!("{count} of {} layers", types.layers.len())),
    };
    let is_first = types.layers.first().is_some_and(|first| in_range(0) && has(first, false));
    let is_last = in_range(types.layers.len().saturating_sub(1)) && has(&types.head, true);
    let embedding = is_first.then(|| "the embedding".to_owned());
    let head = is_last.then(|| "the output head".to_owned());
    let all: Vec<String> = layers.into_iter().chain(embedding).chain(head).collect();
    let is_one = all.len() == 1 && count <= 1;
    (!all.is_empty()).then(|| format!("{} {}", all.join(" and "), if is_one { "needs" } else { "need" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_layers_end_at_those_without_kernels() {
        let of = |lacking: &[bool]| Runnable { lacking: lacking.to_vec() };
        let some = of(&[false, true, false, false, true]);
        assert_eq!(some.starts(5), [0, 0, 2, 2, 2, 5]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|start| some.stop(start, 5)), [1, 1, 4, 4, 4, 5]);
        assert!(some.is_any(5) && !some.is_all() && !of(&[true; 3]).is_any(3));
        assert_eq!((of(&[]).starts(3), of(&[]).stop(1, 3)), (vec![0; 4], 3));
        assert!(of(&[]).is_all() && of(&[]).is_any(3));
    }
}
