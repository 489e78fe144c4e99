//! Log-probabilities as the model gave them, for reporting.
//!
//! Who asks for them has every logit's exponential taken for each token, 150,000 of them, by the thread that
//! computes the step. So these are in plain 32-bit arithmetic, several at once, and the same on every
//! machine.

/// `ln softmax(logits)`, computed on demand: only the normaliser is kept.
pub(crate) struct LogProbs<'a> {
    logits: &'a [f32],
    /// `ln Σ exp(logit)`.
    log_sum: f64,
}

/// Sums that are taken side by side: a vector of f32 on any processor.
const LANES: usize = 8;

impl<'a> LogProbs<'a> {
    /// Logits must be finite and not empty.
    pub(crate) fn of(logits: &'a [f32]) -> Self {
        let (whole, rest) = logits.as_chunks::<LANES>();
        let greater = |one: f32, other: f32| if other > one { other } else { one };
        let (mut greatest, mut sums) = ([f32::MIN; LANES], [0.0; LANES]);
        for chunk in whole {
            greatest = std::array::from_fn(|lane| greater(greatest[lane], chunk[lane]));
        }
        let max = greatest.iter().chain(rest).fold(f32::MIN, |one, other| greater(one, *other));
        for chunk in whole {
            sums = std::array::from_fn(|lane| sums[lane] + f64::from(exp(chunk[lane] - max)));
        }
        let sum = sums.iter().sum::<f64>() + rest.iter().map(|l| f64::from(exp(l - max))).sum::<f64>();
        Self { logits, log_sum: f64::from(max) + sum.ln() }
    }

    pub(crate) fn at(&self, token: u32) -> f32 {
        (f64::from(self.logits[token as usize]) - self.log_sum) as f32
    }

    /// The `count` most likely tokens, best first, the lowest id first among equals. `count` is at most 20:
    /// insertion into a short list beats selecting from a copy of the vocabulary.
    pub(crate) fn top(&self, count: usize) -> Vec<(u32, f32)> {
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

/// `e^x` of a number that is not above 0, within 3e-7 of it; of one below -87 what it is of -87.
///
/// `x = n·ln 2 + r` with `|r| ≤ ln 2 / 2`, `e^r` by its series up to `r^7 / 7!`, and `2^n` by its bits.
fn exp(x: f32) -> f32 {
    // Added to a small number it leaves the nearest whole number in the lowest bits.
    const ROUND: f32 = (3 << 22) as f32;
    // The first has few bits, so that its product with `n` is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let high = ((1.0 / 5040.0 * r + 1.0 / 720.0) * r + 1.0 / 120.0) * r + 1.0 / 24.0;
    let power = (((high * r + 1.0 / 6.0) * r + 0.5) * r + 1.0) * r + 1.0;
    power * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_library() {
        for at in 0..=87_000 {
            let x = at as f32 / -1000.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 3e-7, "{x}: {} {expected}", exp(x));
        }
        assert!(exp(0.0) == 1.0 && exp(f32::MIN) > 0.0 && exp(f32::MIN) < 1e-37);
    }

    /// Of every length, so that each lane and the rest behind them count once.
    #[test]
    fn the_normaliser_is_the_sum_of_all_exponentials() {
        let logits: Vec<f32> = (0..100u32).map(|i| (i * 37 % 101) as f32 / 7.0 - 9.0).collect();
        for len in 1..=logits.len() {
            let sum: f64 = logits[..len].iter().map(|l| f64::from(*l).exp()).sum();
            let ours = LogProbs::of(&logits[..len]).log_sum;
            assert!((ours - sum.ln()).abs() < 3e-7, "{len}: {ours} {}", sum.ln());
        }
    }

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
