//! Which devices have kernels for the weights of a model.
//!
//! A device says which types of weights it cannot run ([`exo_types::DeviceFacts::unsupported_types`]), and
//! the request says which layers have them. Files mix types within their layers and not between them, so a
//! device that cannot run one of them gets no layer at all, also where it could run some.

use exo_types::{DType, WeightTypes};

use crate::{PlanDevice, PlanRequest};

/// Runs of layers that are named one by one, at most.
const RUNS_MAX: usize = 3;

/// Which weights of the model a device cannot run, in words; `None` where it runs all that are known.
pub fn lacking_kernels(request: &PlanRequest, device: &PlanDevice) -> Option<String> {
    let types = request.weight_types.as_ref()?;
    let lacks = |dtype: &DType| Some(format!("{dtype} weights, which {}", needed_by(types, *dtype)?));
    let lacking: Vec<String> = device.device.unsupported_types.iter().filter_map(lacks).collect();
    (!lacking.is_empty()).then(|| format!("it cannot run {}", lacking.join(", and no ")))
}

/// "layers 3 to 5 and the output head need"; `None` if nothing does.
fn needed_by(types: &WeightTypes, dtype: DType) -> Option<String> {
    let is_needed = |of: &exo_types::TypeBytes| of.0.iter().any(|&(of, bytes)| of == dtype && bytes > 0);
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (layer, _) in types.layers.iter().enumerate().filter(|(_, types)| is_needed(types)) {
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
    let is_one = layers.is_none() || (count == 1 && !is_needed(&types.head));
    let head = is_needed(&types.head).then(|| "the output head".to_owned());
    let all: Vec<String> = layers.into_iter().chain(head).collect();
    (!all.is_empty()).then(|| format!("{} {}", all.join(" and "), if is_one { "needs" } else { "need" }))
}
