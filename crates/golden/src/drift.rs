//! How far logits are from their reference.

/// Distance between logits, in standard deviations of the reference logits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drift {
    /// The worst single logit.
    pub max: f32,
    /// Root mean square over all.
    pub rms: f32,
}

impl Drift {
    /// How far `got` is from `want`. Panics if they differ in length; a NaN anywhere is infinitely far.
    pub fn between(got: &[f32], want: &[f32], logit_std: f32) -> Self {
        assert_eq!(got.len(), want.len(), "as many logits as the reference has");
        let errors = || got.iter().zip(want).map(|(g, w)| f64::from((g - w).abs()));
        let errors = || errors().map(|e| if e.is_nan() { f64::INFINITY } else { e });
        let mean_square = errors().map(|e| e * e).sum::<f64>() / got.len().max(1) as f64;
        let std = f64::from(logit_std);
        Self { max: (errors().fold(0.0, f64::max) / std) as f32, rms: (mean_square.sqrt() / std) as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_measured_in_standard_deviations() {
        let drift = Drift::between(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 5.0], 0.5);
        assert_eq!((drift.max, drift.rms), (2.0, 1.0));
    }

    #[test]
    fn not_a_number_is_infinitely_far() {
        assert_eq!(Drift::between(&[f32::NAN], &[0.0], 1.0).max, f32::INFINITY);
    }
}
