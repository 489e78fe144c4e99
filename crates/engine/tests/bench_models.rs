//! The models of `bench/make_models.py`, which are too large to commit, against `bench/reference_logits.py`.
//!
//! Opt in with
//! `EXO_GOLDEN_MODELS=/folder cargo test -p exo-engine --test all bench_models:: -- --ignored --nocapture`,
//! where each `MODEL/hf` has a `MODEL/reference.json` beside it, written by
//! `reference_logits.py MODEL/hf --steps 64`.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use std::path::Path;

use crate::common::{part, solo, spec};
use exo_engine::EngineOptions;
use exo_golden::{LOGIT_ERROR_MAX, certain_steps};
use exo_types::SamplingParams;
use serde_json::Value;

/// What the script prints, as far as it is compared.
struct Reference {
    prompt: Vec<u32>,
    top1: Vec<u32>,
    std: f32,
    head: Vec<f32>,
    greedy: Vec<u32>,
    gaps: Vec<f32>,
    top5: Vec<Vec<(u32, f32)>>,
}

impl Reference {
    fn load(path: &Path) -> Self {
        let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let json: Value = serde_json::from_slice(&text).unwrap();
        let ids = |v: &Value| -> Vec<u32> { serde_json::from_value(v.clone()).unwrap() };
        let steps = json["steps"].as_array().unwrap();
        Self {
            prompt: ids(&json["prompt_ids"]),
            top1: ids(&json["prompt_top1"]),
            std: json["prompt_logit_std"].as_f64().unwrap() as f32,
            head: serde_json::from_value(json["first_logits_head"].clone()).unwrap(),
            greedy: ids(&json["greedy_ids"]),
            gaps: steps.iter().map(|s| s["gap"].as_f64().unwrap() as f32).collect(),
            top5: steps.iter().map(|s| serde_json::from_value(s["top5"].clone()).unwrap()).collect(),
        }
    }
}

/// Forced tokens: the worst logit among those the reference lists, in standard deviations, how many steps
/// agree, and at how many places of the prompt the best token does.
fn compare(source: &Path, reference: &Reference) -> (f32, usize, usize) {
    let mut engine = solo(source, EngineOptions::new(256, 1), 2);
    let vocab = engine.stages[0].config().vocab as usize;
    engine.open(&spec(1, &[], SamplingParams::greedy()));
    let prefill = engine.logits(vec![part(1, 0, &reference.prompt, false)]).unwrap();
    let best = |row: &[f32]| (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    let top1_same =
        prefill.chunks_exact(vocab).zip(&reference.top1).filter(|(row, id)| best(row) == **id).count();
    let mut row = prefill[prefill.len() - vocab..].to_vec();
    let mut worst = row.iter().zip(&reference.head).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    let mut same = 0;
    for (i, (&token, top5)) in reference.greedy.iter().zip(&reference.top5).enumerate() {
        worst = top5.iter().map(|(id, logit)| (row[*id as usize] - logit).abs()).fold(worst, f32::max);
        same += usize::from(same == i && best(&row) == token);
        row = engine.logits(vec![part(1, reference.prompt.len() + i, &[token], false)]).unwrap();
    }
    (worst / reference.std, same, top1_same)
}

#[test]
#[ignore = "needs models too large to commit, in the folder EXO_GOLDEN_MODELS"]
fn bench_models_agree_with_transformers() {
    let folder = std::env::var("EXO_GOLDEN_MODELS").expect("EXO_GOLDEN_MODELS names the folder");
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let model = entry.unwrap().path();
        if !model.join("reference.json").exists() {
            continue;
        }
        let reference = Reference::load(&model.join("reference.json"));
        let certain = certain_steps(&reference.gaps, reference.std);
        let name = model.file_name().unwrap().to_string_lossy().into_owned();
        for source in [model.join("hf"), model.join(format!("{name}-F16.gguf"))] {
            let (worst, same, top1_same) = compare(&source, &reference);
            let (steps, prompt) = (reference.greedy.len(), reference.prompt.len());
            println!(
                "{}: worst logit {worst:.2e} std, {same} of {steps} greedy steps ({certain} must agree), best token \
                of {top1_same} of {prompt} prompt positions",
                source.display()
            );
            // The script rounds to five digits behind the point: far below what is allowed.
            assert!(worst < LOGIT_ERROR_MAX && same >= certain, "{}", source.display());
            checked += 1;
        }
    }
    assert!(checked > 0, "{folder} holds no MODEL/reference.json");
}
