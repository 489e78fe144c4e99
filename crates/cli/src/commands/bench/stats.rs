//! A few numbers about a few samples.

use serde::Serialize;

/// What a list of samples amounts to.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Stats {
    pub mean: f64,
    pub median: f64,
    /// Of the samples about their mean, n - 1 in the denominator; 0 for a single one.
    pub stddev: f64,
    pub min: f64,
    pub max: f64,
}

impl Stats {
    /// `None` for no samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let n = sorted.len();
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|s| (s - mean).powi(2)).sum();
        let stddev = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        let median = f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]);
        Some(Self { mean, median, stddev, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_and_odd_numbers_of_samples() {
        let stats = Stats::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((stats.mean, stats.median, stats.min, stats.max), (2.5, 2.5, 1.0, 4.0));
        assert!((stats.stddev - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(Stats::of(&[9.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Stats::of(&[7.0]).unwrap().stddev, 0.0);
        assert_eq!(Stats::of(&[]), None);
    }
}
