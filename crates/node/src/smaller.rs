//! Other ways to store a model that does not fit: with a smaller cache, or with smaller weights.

use exo_formats::ModelConfig;
use exo_planner::PlanRequest;
use exo_quant::Target;
use exo_types::KvDType;

use crate::described;

/// Work of one search at most: some ten milliseconds.
const WORK_MAX: u64 = 2_000_000;

/// The largest type of cache and of weights that each makes what `request` asks for fit, in words behind
/// "it fits". `stored` is how a user asks for another type of the model.
pub fn smaller(
    config: &ModelConfig,
    kv: KvDType,
    stored: &str,
    request: &PlanRequest,
    fits: &dyn Fn(PlanRequest) -> bool,
) -> Vec<String> {
    let asked = |request: PlanRequest| {
        let work_max = request.work_max.min(WORK_MAX);
        fits(PlanRequest { explain: false, work_max, ..request })
    };
    let mut found = Vec::new();
    if kv != KvDType::Q8 && asked(with_cache(config, KvDType::Q8, request.clone())) {
        found.push("with keys and values as q8 (--kv q8)".to_owned());
    }
    let weight_bytes = request.shape.weight_bytes();
    let as_type = |target: Target| {
        let (shape, types) = described::shape(config, &described::tensors(config, target), kv);
        (shape.weight_bytes() < weight_bytes).then(|| PlanRequest {
            shape,
            weight_types: Some(types),
            ..request.clone()
        })
    };
    let fitting = Target::ALL.into_iter().find(|target| as_type(*target).is_some_and(asked));
    found.extend(fitting.map(|target| format!("as {target} ({stored})")));
    found
}

fn with_cache(config: &ModelConfig, kv: KvDType, mut request: PlanRequest) -> PlanRequest {
    let row_bytes = kv.row_bytes(config.head_dim as usize) as u64;
    request.kv = kv;
    for layer in &mut request.shape.layers {
        layer.kv_bytes_per_token = 2 * u64::from(config.kv_heads) * row_bytes;
    }
    request
}
