//! The sampler as the last stage uses it.

use exo_sampler::{ConstraintError, SampleError, Sampler, TokenConstraint};
use exo_types::SamplingParams;
use proptest::prelude::*;

fn hot() -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: 42, ..SamplingParams::greedy() }
}

/// Logits that depend on the tokens so far, as a model's do.
fn model(tokens: &[u32], vocab: u32) -> Vec<f32> {
    let state = tokens.iter().fold(17u32, |s, &t| s.wrapping_mul(31).wrapping_add(t));
    (0..vocab).map(|i| (state.wrapping_mul(i + 1).wrapping_mul(2654435761) >> 20) as f32 / 800.0).collect()
}

fn generate(sampler: &mut Sampler, tokens: &mut Vec<u32>, count: usize, vocab: u32) {
    for _ in 0..count {
        let token = sampler.sample(&model(tokens, vocab), tokens.len() as u64).expect("finite logits").token;
        sampler.accept(token);
        tokens.push(token);
    }
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let numbers = (0f32..2.0, 0u32..20, 0.05f32..=1.0, 0f32..0.5, 0.05f32..=1.0);
    let penalties = (0.5f32..2.0, -2f32..2.0, -2f32..2.0, any::<u64>(), 0u32..9);
    let bias = prop::collection::btree_map(0u32..40, -5f32..5.0, 0..4);
    (numbers, penalties, bias).prop_map(|(n, p, logit_bias)| SamplingParams {
        temperature: n.0,
        top_k: n.1,
        top_p: n.2,
        min_p: n.3,
        typical_p: n.4,
        repetition_penalty: p.0,
        presence_penalty: p.1,
        frequency_penalty: p.2,
        penalty_window: p.4,
        logit_bias,
        seed: p.3,
        logprobs: Some(3),
        constraint: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A worker that takes over in the middle says what the first would have said.
    #[test]
    fn a_fresh_sampler_with_the_same_history_continues_identically(
        params in params(), prompt in prop::collection::vec(0u32..32, 0..8), before in 0usize..12,
    ) {
        let mut first = Sampler::new(params.clone(), &prompt, prompt.len() as u32);
        let mut tokens = prompt.clone();
        generate(&mut first, &mut tokens, before, 32);
        let mut second = Sampler::new(params, &tokens, prompt.len() as u32);
        let mut again = tokens.clone();
        generate(&mut first, &mut tokens, 12, 32);
        generate(&mut second, &mut again, 12, 32);
        prop_assert_eq!(tokens, again);
    }

    /// Sampling is free of side effects: asking twice changes nothing.
    #[test]
    fn asking_twice_gives_the_same_token(params in params(), position in any::<u64>()) {
        let mut sampler = Sampler::new(params, &[1, 2, 3, 3], 2);
        let logits = model(&[5], 32);
        prop_assert_eq!(sampler.sample(&logits, position), sampler.sample(&logits, position));
    }

    /// Whatever the parameters and the finite logits, the token exists.
    #[test]
    fn the_token_is_always_in_the_vocabulary(
        params in params(), logits in prop::collection::vec(prop::num::f32::NORMAL, 1..64),
    ) {
        let sampled = Sampler::new(params, &[0, 1, 2], 1).sample(&logits, 7).unwrap();
        prop_assert!((sampled.token as usize) < logits.len());
    }
}

/// Draws 20,000 positions and compares counts with expected probabilities by a chi-squared bound.
fn check_frequencies(params: SamplingParams, logits: &[f32], expected: &[f64]) {
    const DRAWS: u64 = 20_000;
    let mut counts = vec![0u64; logits.len()];
    let mut sampler = Sampler::new(params, &[], 0);
    for position in 0..DRAWS {
        counts[sampler.sample(logits, position).expect("finite logits").token as usize] += 1;
    }
    let mut chi2 = 0.0;
    for (i, (&count, &p)) in counts.iter().zip(expected).enumerate() {
        let mean = p * DRAWS as f64;
        if p == 0.0 {
            assert_eq!(count, 0, "token {i} was filtered out and drawn all the same");
        } else {
            chi2 += (count as f64 - mean).powi(2) / mean;
        }
    }
    // Four degrees of freedom at most: 18.5 is the 0.999 quantile. The seed is fixed, so this never flickers.
    assert!(chi2 < 18.5, "chi-squared {chi2}, counts {counts:?}, expected {expected:?}");
}

const P: [f64; 5] = [0.4, 0.3, 0.15, 0.1, 0.05];

fn logits_of(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32 + 3.0).collect()
}

#[test]
fn frequencies_match_probabilities() {
    check_frequencies(hot(), &logits_of(&P), &P);
}

#[test]
fn temperature_flattens_and_sharpens_what_the_filters_kept() {
    let total: f64 = P.iter().map(|p| p * p).sum();
    let sharp = P.map(|p| p * p / total);
    check_frequencies(SamplingParams { temperature: 0.5, ..hot() }, &logits_of(&P), &sharp);
    // Filters come before temperature: 0.4 + 0.3 reaches 0.69. Flattened first, the two would sum to 0.55 and
    // a third token would be drawn.
    let total = P[0].sqrt() + P[1].sqrt();
    let kept = [P[0].sqrt() / total, P[1].sqrt() / total, 0.0, 0.0, 0.0];
    check_frequencies(SamplingParams { temperature: 2.0, top_p: 0.69, ..hot() }, &logits_of(&P), &kept);
}

#[test]
fn each_filter_leaves_the_rest_in_proportion() {
    let expect = |n: usize| {
        let total: f64 = P[..n].iter().sum();
        P.iter().enumerate().map(|(i, p)| if i < n { p / total } else { 0.0 }).collect::<Vec<_>>()
    };
    check_frequencies(SamplingParams { top_k: 3, ..hot() }, &logits_of(&P), &expect(3));
    check_frequencies(SamplingParams { top_p: 0.8, ..hot() }, &logits_of(&P), &expect(3));
    check_frequencies(SamplingParams { min_p: 0.2, ..hot() }, &logits_of(&P), &expect(4));
    // Top-p sees what top-k left: 0.4 of 0.7 is 0.57.
    check_frequencies(SamplingParams { top_k: 2, top_p: 0.5, ..hot() }, &logits_of(&P), &expect(1));
}

#[test]
fn seeds_and_positions_both_matter() {
    let logits = vec![0.0; 1000];
    let at = |seed, position| {
        Sampler::new(SamplingParams { seed, ..hot() }, &[], 0).sample(&logits, position).unwrap().token
    };
    assert_ne!(at(1, 0), at(2, 0));
    assert_ne!(at(1, 0), at(1, 1));
    assert_eq!(at(1, 1), at(1, 1));
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let mut sampler = Sampler::new(SamplingParams::greedy(), &[], 0);
    assert_eq!(sampler.sample(&[1.0, 5.0, 5.0, -1.0], 0).unwrap().token, 1);
    assert_eq!(sampler.sample(&[0.0, -0.0], 0).unwrap().token, 0);
}

#[test]
fn logprobs_are_the_models_own_whatever_was_penalised() {
    let params =
        SamplingParams { logprobs: Some(2), logit_bias: [(0, -100.0)].into(), ..SamplingParams::greedy() };
    let sampled = Sampler::new(params, &[], 0).sample(&logits_of(&P), 0).unwrap();
    assert_eq!(sampled.token, 1, "the bias moved the choice");
    assert!((f64::from(sampled.logprob.unwrap()) - 0.3f64.ln()).abs() < 1e-5);
    assert_eq!(sampled.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
    assert!((f64::from(sampled.top[0].1) - 0.4f64.ln()).abs() < 1e-5);
}

#[test]
fn logits_that_are_no_numbers_are_an_error_that_names_the_token() {
    let mut sampler = Sampler::new(hot(), &[], 0);
    assert_eq!(sampler.sample(&[], 0), Err(SampleError::Empty));
    let infinite = SampleError::NotFinite { token: 1, value: f32::INFINITY };
    assert_eq!(sampler.sample(&[0.0, f32::INFINITY], 0), Err(infinite));
    assert!(matches!(sampler.sample(&[f32::NAN], 0), Err(SampleError::NotFinite { token: 0, .. })));
}

/// Takes some tokens of the first 32, whatever came before.
#[derive(Debug)]
struct Only([u32; 1]);

impl Only {
    fn these(tokens: &[u32]) -> Option<Box<dyn TokenConstraint>> {
        Some(Box::new(Self([tokens.iter().fold(0, |mask, token| mask | 1 << token)])))
    }
}

impl TokenConstraint for Only {
    fn allows(&mut self, token: u32) -> Result<bool, ConstraintError> {
        Ok(self.0[0] >> token & 1 == 1)
    }

    fn mask(&mut self) -> Result<&[u32], ConstraintError> {
        Ok(&self.0)
    }

    fn accept(&mut self, _token: u32) {}

    fn end_token(&self) -> u32 {
        31
    }
}

#[test]
fn a_constraint_stands_behind_bias_and_penalties_and_before_the_filters() {
    // The likeliest token may not come, and top-k sees those alone that may: else nothing would be left.
    let logits = [9.0, 5.0, 4.0, 3.0];
    let sample = |params: SamplingParams, history: &[u32]| {
        Sampler::constrained(params, history, 0, Only::these(&[1, 2, 3])).sample(&logits, 0).unwrap()
    };
    let one = SamplingParams { top_k: 1, logprobs: Some(4), ..hot() };
    assert_eq!(sample(one.clone(), &[]).token, 1);
    // Bias and penalty decide among those that may come.
    let biased = SamplingParams { logit_bias: [(2, 1.5)].into(), ..one };
    assert_eq!(sample(biased.clone(), &[]).token, 2);
    let penalised = SamplingParams { presence_penalty: 2.0, ..biased };
    let history = |params: SamplingParams| {
        let mut sampler = Sampler::constrained(params, &[], 0, Only::these(&[1, 2, 3]));
        sampler.accept(2);
        sampler.sample(&logits, 0).unwrap()
    };
    let said = history(penalised.clone());
    assert_eq!(said.token, 1);
    assert_eq!(history(SamplingParams { temperature: 0.0, ..penalised }).token, 1, "greedy, too");

    // What is said of probabilities is the model's: as without constraint, bias and penalties.
    let plain = SamplingParams { logprobs: Some(4), ..SamplingParams::greedy() };
    let plain = Sampler::new(plain, &[], 0).sample(&logits, 0).unwrap();
    assert_eq!(said.top, plain.top);
    assert_eq!((said.top[0].0, said.logprob), (0, Some(plain.top[1].1)));
}

#[test]
fn where_no_token_may_come_the_answer_is_ended() {
    for params in [hot(), SamplingParams::greedy()] {
        let mut sampler = Sampler::constrained(params, &[], 0, Only::these(&[]));
        assert_eq!(sampler.sample(&[1.0; 32], 0).unwrap().token, 31);
    }
}
