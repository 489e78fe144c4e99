//! Logits and greedy text against transformers, on every fixture.

use crate::common::{self, options, solo};
use exo_golden::{Drift, Fixture, LOGIT_ERROR_MAX, certain_steps};
use exo_types::SamplingParams;

/// Drift of quantised files from the reference on their dequantised weights, in standard deviations of the
/// logits: root mean square and largest. The processor rounds the other side of such products to eight bits
/// (decision 0010), and rounding is no continuous function: what one layer changes, the next rounds
/// elsewhere. Measured: 0.033 and 0.21, on random weights, which make the most of any error. That the kernels
/// compute what the rounded rows say, to 1e-11, is the oracle's business.
const QUANTISED_RMS_MAX: f32 = 0.05;
const QUANTISED_MAX: f32 = 0.3;

/// The same of BF16 files, whose products the processor rounds to sixteen bits on both sides (decision 0021).
/// Measured: 2.8e-4 and 2.7e-3.
const BF16_RMS_MAX: f32 = 5e-4;
const BF16_MAX: f32 = 5e-3;

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
            let [rms, max] = match fixture.name.contains("bf16") {
                true => [BF16_RMS_MAX, BF16_MAX],
                false => [LOGIT_ERROR_MAX; 2],
            };
            assert!(drift.rms < rms && drift.max < max, "{} {drift:?}", source.display());
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for fixture in fixtures(false) {
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
        let within = drift.rms < QUANTISED_RMS_MAX && drift.max < QUANTISED_MAX;
        assert!(within, "{} {drift:?}", fixture.name);
    }
}

/// After the reference's own tokens, the next one is the reference's wherever the runner-up is farther than
/// the largest drift: six times the root mean square of a difference of two.
#[test]
fn quantised_files_choose_the_reference_s_tokens_where_the_choice_is_clear() {
    for fixture in fixtures(true) {
        let tokens = fixture.forced_tokens();
        let logits = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&tokens, 64);
        let rows = logits.chunks_exact(fixture.vocab).skip(fixture.prompt.len() - 1);
        let steps = rows.zip(fixture.greedy.iter().zip(&fixture.gaps));
        let clear: Vec<_> = steps.filter(|(_, (_, gap))| **gap > QUANTISED_MAX * fixture.logit_std).collect();
        assert!(clear.len() >= 4, "{} has {} clear steps", fixture.name, clear.len());
        for (row, (token, gap)) in clear {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            assert_eq!(best, *token as usize, "{} gap {gap}", fixture.name);
        }
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
