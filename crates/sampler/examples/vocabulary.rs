//! What a token takes of the thread that computes the step, by how it is chosen:
//! `cargo run --release -p exo-sampler --example vocabulary`.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Instant;

use exo_sampler::Sampler;
use exo_types::SamplingParams;

/// As Qwen3 has them.
const TOKENS: u32 = 151_936;
const ROUNDS: u64 = 200;

/// Like a model's: most near 0, one in thousands far above.
fn logits() -> Vec<f32> {
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..TOKENS).map(|_| 4.0 * (next() + next() + next() - 1.5) + 16.0 * next().powi(4000)).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let logits = logits();
    let drawn = SamplingParams { temperature: 1.0, seed: 1, ..SamplingParams::greedy() };
    let cases = [
        ("the likeliest", SamplingParams::greedy()),
        (
            "the same with its log-probability",
            SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() },
        ),
        ("drawn from all", drawn.clone()),
        ("drawn from the 20 likeliest", SamplingParams { top_k: 20, ..drawn.clone() }),
        ("drawn from the likeliest 95 %", SamplingParams { top_p: 0.95, ..drawn.clone() }),
        ("drawn from those of a twentieth of the likeliest", SamplingParams { min_p: 0.05, ..drawn }),
    ];
    println!("| a token of {TOKENS} | microseconds |\n|---|---|");
    for (name, params) in cases {
        let mut sampler = Sampler::new(params, &[], 0);
        sampler.sample(&logits, 0)?;
        let began = Instant::now();
        let mut sum = 0u64;
        for position in 0..ROUNDS {
            sum += u64::from(sampler.sample(&logits, position)?.token);
        }
        let us = began.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
        println!("| {name} | {us:.0} |");
        // So that nothing is left out.
        std::hint::black_box(sum);
    }
    Ok(())
}
