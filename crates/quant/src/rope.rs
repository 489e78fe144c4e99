//! What a GGUF file says of rotary frequencies: in which order rows of Q and K are stored, and how the
//! frequencies are scaled.

use exo_formats::{Architecture, ModelConfig};

/// f32 frequencies are exact to this part of themselves, and so is what divided them.
const ROUNDING: f64 = 1e-6;

/// How a model's frequencies differ from the plain ones of its base.
pub(crate) enum Scaling {
    None,
    Linear(f32),
    Each(Vec<f32>),
}

/// Whether GGUF files of the architecture rotate neighbours, and so store the rows of Q and K in that order.
pub(crate) fn is_interleaved(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Llama | Architecture::Mistral)
}

/// What divides each frequency where that differs from one to the next: GGUF's `rope_freqs.weight`.
pub(crate) fn rope_divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    match scaling(config) {
        Scaling::Each(divisors) => Some(divisors),
        Scaling::None | Scaling::Linear(_) => None,
    }
}

/// Found by comparing: the configuration holds frequencies, ready to use.
pub(crate) fn scaling(config: &ModelConfig) -> Scaling {
    let head_dim = f64::from(config.head_dim);
    let plain = |i: usize| config.rope.theta.powf(-2.0 * i as f64 / head_dim);
    let divisor = |(i, frequency): (usize, &f32)| plain(i) / f64::from(*frequency);
    let divisors: Vec<f64> = config.rope.frequencies.iter().enumerate().map(divisor).collect();
    let is = |value: f64, divisor: &f64| (divisor / value - 1.0).abs() < ROUNDING;
    let first = divisors.first().copied().unwrap_or(1.0);
    if divisors.iter().all(|d| is(1.0, d)) {
        Scaling::None
    } else if divisors.iter().all(|d| is(first, d)) {
        Scaling::Linear(first as f32)
    } else {
        Scaling::Each(divisors.iter().map(|d| if is(1.0, d) { 1.0 } else { *d as f32 }).collect())
    }
}

#[cfg(test)]
mod tests {
    use exo_formats::{RopeConfig, RopeStyle};

    use super::*;
    use crate::mix;

    fn config(divide: impl Fn(usize) -> f64) -> ModelConfig {
        let frequency = |i: usize| (500_000f64.powf(-(i as f64) / 32.0) / divide(i)) as f32;
        let (style, frequencies) = (RopeStyle::Halves, (0..32).map(frequency).collect());
        let rope = RopeConfig { style, frequencies, theta: 500_000.0 };
        ModelConfig { rope, ..mix::tests::config(1, false) }
    }

    #[test]
    fn scalings_are_told_apart_and_divisors_found_again() {
        assert!(matches!(scaling(&config(|_| 1.0)), Scaling::None));
        assert!(matches!(scaling(&config(|_| 4.0)), Scaling::Linear(f) if (f - 4.0).abs() < 1e-5));
        let divisors = rope_divisors(&config(|i| if i < 20 { 1.0 } else { 32.0 })).unwrap();
        assert_eq!(&divisors[..20], [1.0; 20]);
        assert!(divisors[20..].iter().all(|d| (d - 32.0).abs() < 1e-4));
    }
}
