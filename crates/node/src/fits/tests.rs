//! The catalogue on described clusters, and a model of the mock hub by its head.

use std::collections::BTreeMap;

use exo_api::fits::{FitVerdict, FitsView};
use exo_planner::{DeviceRates, Figure, PlanDevice};
use exo_types::{Corrections, DeviceFacts, DeviceId, DeviceKind, KvDType, NodeId, SupportClass};

use super::{FitsCluster, find_known, fit_catalogue, fit_known};

/// `name=GIB@GB_PER_S`, one device each.
fn cluster(text: &str, context_tokens: u32) -> FitsCluster {
    let devices = text.split_whitespace().enumerate().map(|(index, device)| {
        let (name, rest) = device.split_once('=').unwrap();
        let (gib, rate) = rest.split_once('@').unwrap();
        let bytes = gib.parse::<u64>().unwrap() << 30;
        let facts = DeviceFacts {
            id: DeviceId("cpu".to_owned()),
            kind: DeviceKind::Cpu,
            name: name.to_owned(),
            backend: "described".to_owned(),
            memory_total_bytes: bytes,
            memory_free_bytes: bytes,
            memory_domain: None,
            compute_units: 8,
            read_bytes_per_s: Some(rate.parse::<f64>().unwrap() * 1e9),
            flops_per_s: Some(1e12),
            rates_by_type: Vec::new(),
            corrections: Corrections::default(),
            support: SupportClass::Full,
            support_reason: String::new(),
        };
        PlanDevice::reported(NodeId([index as u8 + 1; 32]), name.to_owned(), facts, None)
    });
    FitsCluster {
        devices: devices.collect(),
        links: Vec::new(),
        context_tokens,
        slots: 1,
        cache_tokens: None,
        kv: KvDType::default(),
    }
}

fn verdicts(view: &FitsView) -> BTreeMap<&str, FitVerdict> {
    view.models.iter().map(|m| (m.name.as_str(), m.verdict)).collect()
}

#[test]
fn a_laptop_runs_small_models_well_large_ones_slowly_and_is_told_what_the_largest_need() {
    let view = fit_catalogue(&cluster("laptop=16@40", 4096));
    let verdicts = verdicts(&view);
    assert_eq!(verdicts["qwen3-0.6b"], FitVerdict::Comfortable);
    assert_eq!(verdicts["qwen3-14b"], FitVerdict::Slow);
    assert_eq!(verdicts["llama-3.3-70b"], FitVerdict::TooLarge);
    assert_eq!(verdicts["mixtral-8x7b"], FitVerdict::NotSupported);
    let of = |name: &str| view.models.iter().find(|m| m.name == name).unwrap();
    let large = of("llama-3.3-70b");
    assert!(large.summary.contains("memory are missing"), "{}", large.summary);
    assert!(large.changes.iter().any(|c| c.contains("one more machine with 32 GiB")), "{:?}", large.changes);
    let small = of("llama-3.1-8b").best.as_ref().unwrap();
    assert!(small.context_tokens_max >= 32_768, "{small:?}");
    assert!(of("mixtral-8x7b").sizes.iter().all(|s| s.bytes > 20 << 30 && s.tokens_per_s.is_none()));
    // What is comfortable stands before what is not, the most capable first.
    let order: Vec<FitVerdict> = view.models.iter().map(|m| m.verdict).collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn the_best_type_is_the_largest_that_is_fast_enough_and_else_the_fastest() {
    let best = |text: &str| {
        let view = fit_known(&cluster(text, 4096), find_known("Qwen3-8B").unwrap());
        (view.verdict, view.best.map(|b| b.quantisation).unwrap_or_default())
    };
    assert_eq!(best("fast=64@800"), (FitVerdict::Comfortable, "Q8_0".to_owned()));
    assert_eq!(best("slow=64@10"), (FitVerdict::Slow, "Q4_K_M".to_owned()));
    // Too little memory for the larger types, though they would be fast enough.
    let (verdict, small) = best("small=7@800");
    assert!(verdict == FitVerdict::Comfortable && small != "Q8_0", "{small}");
    assert_eq!(best("tiny=3@800").0, FitVerdict::TooLarge);
    let two = fit_known(&cluster("a=4@200 b=4@200", 4096), find_known("qwen3-8b").unwrap());
    assert_eq!(two.best.unwrap().stages.len(), 2, "together they hold what neither does alone");
}

#[test]
fn a_context_that_is_too_long_is_the_smallest_change() {
    let view = fit_known(&cluster("laptop=7@100", 40_960), find_known("qwen3-8b").unwrap());
    assert_eq!(view.verdict, FitVerdict::TooLarge);
    assert!(view.changes[0].starts_with("shorter texts: "), "{:?}", view.changes);
}

/// What is recommended is then placed with the node's slots and cache.
#[test]
fn every_slot_has_its_cache() {
    let mut laptop = cluster("laptop=6@100", 8192);
    let known = find_known("llama-3.1-8b").unwrap();
    assert!(fit_known(&laptop, known).best.is_some());
    laptop.slots = 4;
    assert_eq!(fit_known(&laptop, known).verdict, FitVerdict::TooLarge, "3 GiB of cache more");
    laptop.cache_tokens = Some(8192);
    assert!(fit_known(&laptop, known).best.is_some(), "the cache is bounded");
}

/// Rates by type are what a node may report; the catalogue is planned with those too.
#[test]
fn rates_by_type_count() {
    let mut slow = cluster("a=64@100", 4096);
    let known = find_known("qwen3-8b").unwrap();
    let before = fit_known(&slow, known).best.unwrap().predicted.tokens_per_s.expected;
    let by_type = exo_types::DType::Q8_0;
    let rates = DeviceRates {
        read_by_type: BTreeMap::from([(by_type, Figure::stated(5e9))]),
        ..slow.devices[0].rates.clone()
    };
    slow.devices[0].rates = rates;
    let sizes = fit_known(&slow, known).sizes;
    assert!(sizes[0].tokens_per_s.unwrap() < before / 2.0, "{sizes:?}");
}
