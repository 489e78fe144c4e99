//! RoPE frequencies with their scaling applied. f64 throughout, rounded to f32 once at the end.

use std::f64::consts::TAU;

use crate::ConfigError;

/// How the frequencies of a longer context are made from those of training.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Scaling {
    /// As trained.
    None,
    /// Every frequency divided by `factor`.
    Linear { factor: f64 },
    /// Llama 3: long waves are divided by `factor`, short ones kept, the band between blended.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, trained_tokens: f64 },
}

/// Inverse frequencies `[D/2]` of a head of `head_dim`: `theta^(-2i/D)`, scaled.
///
/// `divisors` are GGUF's rope factors, already checked to be `D/2` positive numbers.
pub(crate) fn frequencies(
    head_dim: u32,
    theta: f64,
    scaling: &Scaling,
    divisors: Option<&[f32]>,
) -> Result<Vec<f32>, ConfigError> {
    check_positive("rope_theta", theta)?;
    match scaling {
        Scaling::None => {}
        Scaling::Linear { factor } => check_positive("rope scaling factor", *factor)?,
        Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, trained_tokens } => {
            check_positive("rope scaling factor", *factor)?;
            check_positive("low_freq_factor", *low_freq_factor)?;
            check_positive("original_max_position_embeddings", *trained_tokens)?;
            if high_freq_factor.partial_cmp(low_freq_factor) != Some(std::cmp::Ordering::Greater) {
                return Err(ConfigError::Value {
                    field: "high_freq_factor".to_owned(),
                    found: high_freq_factor.to_string(),
                    expected: format!("more than low_freq_factor, {low_freq_factor}"),
                });
            }
        }
    }
    let base = (0..head_dim / 2).map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(head_dim)));
    let scaled = base.map(|frequency| scale(frequency, scaling));
    let divided = scaled.enumerate().map(|(i, f)| match divisors.and_then(|d| d.get(i)) {
        Some(divisor) => f / f64::from(*divisor),
        None => f,
    });
    Ok(divided.map(|f| f as f32).collect())
}

fn scale(frequency: f64, scaling: &Scaling) -> f64 {
    match *scaling {
        Scaling::None => frequency,
        Scaling::Linear { factor } => frequency / factor,
        Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, trained_tokens } => {
            let wave = TAU / frequency;
            if wave < trained_tokens / high_freq_factor {
                return frequency;
            }
            if wave > trained_tokens / low_freq_factor {
                return frequency / factor;
            }
            let blend = (trained_tokens / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
            (1.0 - blend) * frequency / factor + blend * frequency
        }
    }
}

fn check_positive(field: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    let expected = "a finite number above 0".to_owned();
    Err(ConfigError::Value { field: field.to_owned(), found: value.to_string(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unscaled_frequencies_fall_from_one_to_nearly_the_inverse_base() {
        let f = frequencies(4, 10000.0, &Scaling::None, None).unwrap();
        assert_eq!(f, [1.0, 0.01]);
    }

    /// Values of transformers' `ROPE_INIT_FUNCTIONS["llama3"]` for Llama 3.2 1B (computed there in f32).
    #[test]
    fn llama3_scaling_agrees_with_transformers() {
        let scaling = Scaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            trained_tokens: 8192.0,
        };
        let f = frequencies(64, 500000.0, &scaling, None).unwrap();
        for (i, expected) in TRANSFORMERS_LLAMA3 {
            assert!((f[i] / expected - 1.0).abs() < 1e-5, "pair {i}: {} and {expected}", f[i]);
        }
    }

    const TRANSFORMERS_LLAMA3: [(usize, f32); 6] = [
        (0, 1.0),
        (13, 0.004_839_421_2),
        (15, 0.001_290_548),
        (16, 0.000_429_556_7),
        (17, 9.708_286e-5),
        (31, 9.418_306e-8),
    ];

    #[test]
    fn nonsense_is_an_error_and_not_a_nan() {
        for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(frequencies(64, theta, &Scaling::None, None).is_err());
        }
        assert!(frequencies(64, 1e4, &Scaling::Linear { factor: 0.0 }, None).is_err());
        let equal = Scaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 1.0,
            trained_tokens: 8192.0,
        };
        assert!(frequencies(64, 1e4, &equal, None).is_err());
    }
}
