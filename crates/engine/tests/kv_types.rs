//! What storing keys and values in fewer bits saves and costs, on every fixture.

use crate::common::{options, solo};
use exo_backend::KvDType;
use exo_engine::EngineOptions;
use exo_golden::{Drift, Fixture};

/// Drift of the logits, in standard deviations of the logits: root mean square and largest.
struct Cost {
    kv: KvDType,
    rms_max: f32,
    max: f32,
}

/// The worst of the fixtures: F16 1.0e-3 and 6.6e-3, Q8 1.7e-2 and 1.2e-1. Their random weights make the most
/// of any error.
const COSTS: [Cost; 2] =
    [Cost { kv: KvDType::F16, rms_max: 2e-3, max: 1e-2 }, Cost { kv: KvDType::Q8, rms_max: 3e-2, max: 2e-1 }];

#[test]
fn fewer_bits_move_the_logits_by_a_stated_amount() {
    // Where products round their rows, the smallest change is rounded up to the size of that rounding.
    for fixture in Fixture::all().into_iter().filter(|fixture| fixture.hugging_face) {
        let logits = |kv_dtype| {
            let mut engine = solo(&fixture.gguf(), EngineOptions { kv_dtype, ..options() }, 1);
            engine.logits_in_chunks(&fixture.prompt, 64)
        };
        let exact = logits(KvDType::F32);
        for Cost { kv, rms_max, max } in COSTS {
            let drift = Drift::between(&logits(kv), &exact, fixture.logit_std);
            println!("{:20} {kv} {drift:?}", fixture.name);
            assert!(drift.rms < rms_max && drift.max < max, "{} {kv} {drift:?}", fixture.name);
            assert!(drift.rms > 1e-6, "{} {kv} must really round: {drift:?}", fixture.name);
        }
    }
}

#[test]
fn a_cache_takes_the_bytes_of_its_type() {
    let fixture = Fixture::load("llama-bf16-tied");
    let bytes = KvDType::ALL.map(|kv_dtype| {
        let engine = solo(&fixture.gguf(), EngineOptions { kv_dtype, ..options() }, 1);
        let shape = exo_formats::open(&fixture.gguf()).unwrap().shape_with_kv(kv_dtype);
        let kv_bytes = engine.stages[0].report().kv_bytes;
        let tokens = u64::from(options().context_tokens * options().slots);
        assert_eq!(kv_bytes, tokens * shape.layers.iter().map(|l| l.kv_bytes_per_token).sum::<u64>());
        kv_bytes
    });
    assert!(bytes[0] == 2 * bytes[1] && 10 * bytes[2] < 6 * bytes[1], "{bytes:?}");
}
