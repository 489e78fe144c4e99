//! Logits and greedy text against transformers, on every fixture.

mod common;

use common::{options, solo};
use exo_golden::{Drift, Fixture, LOGIT_ERROR_MAX, certain_steps};
use exo_types::SamplingParams;

/// Drift of quantised files from the reference on their dequantised weights. The weights are the same numbers and
/// the processor's kernels multiply them with f32 activations, so the budget is that of unquantised files. A kernel
/// that rounds activations to blocks of 8 bits will need more, and brings its numbers when it asks for them.
const QUANTISED_MAX: f32 = LOGIT_ERROR_MAX;

fn fixtures(quantised: bool) -> Vec<Fixture> {
    Fixture::all().into_iter().filter(|f| f.hugging_face != quantised).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    for fixture in fixtures(false) {
        for source in fixture.sources() {
            let logits = solo(&source, options(), 1).logits_in_chunks(&fixture.prompt, 64);
            let drift = Drift::between(&logits, &fixture.logits(), fixture.logit_std);
            println!("{:20} {drift:?} {}", fixture.name, source.display());
            assert!(drift.max < LOGIT_ERROR_MAX, "{} {drift:?}", source.display());
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for fixture in Fixture::all() {
        let steps = certain_steps(&fixture.gaps, fixture.logit_std);
        assert_eq!(steps, 64, "the script looks for such seeds");
        for source in fixture.sources() {
            let mut engine = solo(&source, options(), 1);
            let answer = engine.generate(&fixture.prompt, 64, steps, SamplingParams::greedy());
            assert_eq!(answer, fixture.greedy[..steps], "{}", source.display());
        }
    }
}

#[test]
fn quantised_files_stay_within_their_budget_of_the_dequantised_reference() {
    for fixture in fixtures(true) {
        let tokens = fixture.forced_tokens();
        let logits = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&tokens, 64);
        let drift = Drift::between(&logits, &fixture.logits(), fixture.logit_std);
        println!("{:20} {drift:?}", fixture.name);
        assert!(drift.max < QUANTISED_MAX, "{} {drift:?}", fixture.name);
    }
}

#[test]
fn perplexity_of_the_greedy_answer_is_that_of_its_logits() {
    let fixture = Fixture::load("llama-bf16-tied");
    let mut pipeline = solo(&fixture.folder(), options(), 1);
    let spec = common::spec(1, &[], SamplingParams::greedy());
    pipeline.open(&spec);
    let got = pipeline.stages[0].perplexity(spec.sequence, &fixture.prompt).unwrap();
    let logits = fixture.logits();
    let rows = logits.chunks_exact(fixture.vocab);
    let surprise = rows.zip(&fixture.prompt[1..]).map(|(row, next)| {
        let sum: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
        sum.ln() - f64::from(row[*next as usize])
    });
    let want = (surprise.sum::<f64>() / (fixture.prompt.len() - 1) as f64).exp();
    assert!((got / want - 1.0).abs() < 1e-4, "{got} against {want}");
}
