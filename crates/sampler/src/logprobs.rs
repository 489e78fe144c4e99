//! Log-probabilities as the model gave them, for reporting.

use crate::passes::{greatest, sum_of_exponentials};

/// `ln softmax(logits)`, computed on demand: only the normaliser is kept.
pub(crate) struct LogProbs<'a> {
    logits: &'a [f32],
    /// `ln Σ exp(logit)`.
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Logits must be finite and not empty.
    pub(crate) fn of(logits: &'a [f32]) -> Self {
        let max = greatest(logits);
        Self { logits, log_sum: f64::from(max) + sum_of_exponentials(logits, max).ln() }
    }

    pub(crate) fn at(&self, token: u32) -> f32 {
        (f64::from(self.logits[token as usize]) - self.log_sum) as f32
    }

    /// The `count` most likely tokens, best first, the lowest id first among equals. `count` is at most 20:
    /// insertion into a short list beats selecting from a copy of the vocabulary.
    pub(crate) fn top(&self, count: usize) -> Vec<(u32, f32)> {
        if count == 0 {
            return Vec::new();
        }
        let mut best: Vec<u32> = Vec::with_capacity(count + 1);
        for (i, &logit) in self.logits.iter().enumerate() {
            let full = best.len() == count;
            if full && best.last().is_none_or(|&worst| logit <= self.logits[worst as usize]) {
                continue;
            }
            let place = best.partition_point(|&other| self.logits[other as usize] >= logit);
            best.insert(place, i as u32);
            best.truncate(count);
        }
        best.into_iter().map(|token| (token, self.at(token))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_however_large_the_logits() {
        for shift in [0.0, 1e4, -1e4] {
            let logits: Vec<f32> = (0..100).map(|i| shift + (i % 7) as f32).collect();
            let all = LogProbs::of(&logits);
            let sum: f64 = (0..100).map(|t| f64::from(all.at(t)).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
    }

    #[test]
    fn the_top_list_is_ordered_and_ties_go_to_the_lower_id() {
        let top = LogProbs::of(&[1.0, 3.0, 2.0, 3.0, 0.0]).top(3);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 2]);
        assert!(top[0].1 > top[2].1);
        assert!(LogProbs::of(&[1.0, 2.0]).top(0).is_empty());
        assert_eq!(LogProbs::of(&[1.0, 2.0]).top(5).len(), 2, "no more than there are tokens");
    }
}
