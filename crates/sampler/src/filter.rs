//! Top-k, typical-p, top-p and min-p, without sorting a whole vocabulary.

use std::cmp::Ordering;

use crate::passes::{self, greater, greatest};

/// Tokens still in the draw, with their scratch. The order of `ids` is a function of the logits alone, so the
/// same draw falls on the same token everywhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) ids: Vec<u32>,
    pub(crate) weights: Vec<f32>,
}

/// How many tokens top-p orders at first. Most answers need fewer; each further round takes four times more.
const TOP_P_CHUNK: usize = 256;
/// Neighbours of which the likeliest alone is compared with others at first.
const RUN: usize = 64;

impl Candidates {
    /// Every token of a vocabulary, in the order of ids.
    pub(crate) fn fill(&mut self, vocab: usize) {
        self.ids.clear();
        self.ids.extend(0..vocab as u32);
    }

    /// The tokens of a vocabulary that a mask has, in the order of ids. What lies beyond the mask is not in
    /// it.
    pub(crate) fn fill_allowed(&mut self, vocab: usize, mask: &[u32]) {
        self.ids.clear();
        for (base, &word) in (0u32..).step_by(32).zip(mask) {
            let mut left = word;
            while left != 0 {
                let id = base + left.trailing_zeros();
                left &= left - 1;
                if (id as usize) < vocab {
                    self.ids.push(id);
                }
            }
        }
    }

    /// The greatest logit's token, the lowest id among equals. There must be one.
    pub(crate) fn best(&self, logits: &[f32]) -> u32 {
        let first = self.ids[0];
        self.ids
            .iter()
            .fold(first, |best, &id| if logits[id as usize] > logits[best as usize] { id } else { best })
    }

    /// Keeps the `k` most likely, most likely first; 0 keeps all.
    pub(crate) fn top_k(&mut self, logits: &[f32], k: usize) {
        if k == 0 || k >= self.ids.len() {
            return;
        }
        order_next(&mut self.ids, k, logits);
        self.ids.truncate(k);
    }

    /// Keeps the smallest set of the most typical tokens whose probabilities, among those kept so far, sum to
    /// at least `p`; never fewer than one. How typical a token is says `|−ln p(token) − H|`, H being the
    /// entropy: the less, the more. 1 or more keeps all. Source: Meister et al. 2022, arXiv:2202.00666.
    pub(crate) fn typical_p(&mut self, logits: &[f32], p: f64) {
        if p.is_nan() || p >= 1.0 || self.ids.len() < 2 {
            return;
        }
        let max = self.max_logit(logits);
        let shifted = |id: u32| f64::from(logits[id as usize]) - max;
        let sum: f64 = self.ids.iter().map(|&id| shifted(id).exp()).sum();
        let log_probability = |id: u32| shifted(id) - sum.ln();
        let surprise = |id: u32| {
            let log = log_probability(id);
            // What underflows is never chosen, and adds nothing.
            if log.exp() > 0.0 { -log * log.exp() } else { 0.0 }
        };
        let entropy: f64 = self.ids.iter().map(|&id| surprise(id)).sum();
        let distance = |id: u32| (-log_probability(id) - entropy).abs();
        self.ids.sort_unstable_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)));
        let mut kept_sum = 0.0;
        let crossed = self.ids.iter().position(|&id| {
            kept_sum += log_probability(id).exp();
            kept_sum >= p
        });
        self.ids.truncate(crossed.map_or(self.ids.len(), |index| index + 1));
    }

    /// Keeps the smallest set of most likely tokens whose probabilities, among those kept so far, sum to at
    /// least `p`; never fewer than one. 1 or more keeps all.
    pub(crate) fn top_p(&mut self, logits: &[f32], p: f64) {
        if p.is_nan() || p >= 1.0 || self.ids.len() < 2 {
            return;
        }
        let (max, all) = self.weigh(logits, 1.0);
        let weight = |id: u32| f64::from(passes::weight(logits[id as usize] - max));
        let target = p * all;
        let (mut kept, mut sum, mut chunk) = (0, 0.0, TOP_P_CHUNK);
        while kept < self.ids.len() {
            order_next(&mut self.ids[kept..], chunk, logits);
            let ordered_end = self.ids.len().min(kept + chunk);
            for &id in &self.ids[kept..ordered_end] {
                sum += weight(id);
                kept += 1;
                if sum >= target {
                    return self.ids.truncate(kept);
                }
            }
            chunk *= 4;
        }
    }

    /// Drops tokens less likely than `p` times the most likely; 0 keeps all.
    pub(crate) fn min_p(&mut self, logits: &[f32], p: f32) {
        if p.is_nan() || p <= 0.0 {
            return;
        }
        let least = self.max_logit(logits) + f64::from(p.min(1.0)).ln();
        self.ids.retain(|&id| f64::from(logits[id as usize]) >= least);
    }

    /// Weighs each at a temperature: the greatest logit, and the sum of the weights, which are in proportion
    /// to probabilities.
    pub(crate) fn weigh(&mut self, logits: &[f32], temperature: f32) -> (f32, f64) {
        self.weights.clear();
        self.weights.extend(self.ids.iter().map(|&id| logits[id as usize]));
        let max = greatest(&self.weights);
        (max, passes::weigh(&mut self.weights, max, temperature))
    }

    fn max_logit(&self, logits: &[f32]) -> f64 {
        f64::from(greatest_of(&self.ids, logits))
    }
}

/// Brings the `count` most likely of `ids` to the front, in order.
fn order_next(ids: &mut [u32], count: usize, logits: &[f32]) {
    let count = count.min(ids.len());
    let likely = bring_likely(ids, count, logits);
    if count < likely {
        ids[..likely].select_nth_unstable_by(count, |a, b| likelier_first(logits, *a, *b));
    }
    ids[..count].sort_unstable_by(|a, b| likelier_first(logits, *a, *b));
}

/// Brings all that may be among the `count` most likely to the front, and says how many these are. Where
/// `count` runs of neighbours have a token each that is as likely as a bound, nothing less likely is among
/// them.
fn bring_likely(ids: &mut [u32], count: usize, logits: &[f32]) -> usize {
    if count == 0 || count >= ids.len().div_ceil(RUN) {
        return ids.len();
    }
    let runs: Vec<f32> = ids.chunks(RUN).map(|run| greatest_of(run, logits)).collect();
    let (_, &mut bound, _) = runs.clone().select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    let mut likely = 0;
    for (run, _) in runs.iter().enumerate().filter(|(_, greatest)| **greatest >= bound) {
        for at in run * RUN..ids.len().min((run + 1) * RUN) {
            if logits[ids[at] as usize] >= bound {
                ids.swap(likely, at);
                likely += 1;
            }
        }
    }
    likely
}

fn greatest_of(ids: &[u32], logits: &[f32]) -> f32 {
    ids.iter().map(|&id| logits[id as usize]).fold(f32::MIN, greater)
}

/// A total order (ids differ), so unstable sorts have one result. Zeros of either sign are equals, as they
/// are where the greatest is asked for.
fn likelier_first(logits: &[f32], a: u32, b: u32) -> Ordering {
    let unsigned_zero = |id: u32| logits[id as usize] + 0.0;
    unsigned_zero(b).total_cmp(&unsigned_zero(a)).then(a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(logits: &[f32]) -> Candidates {
        let mut c = Candidates::default();
        c.fill(logits.len());
        c
    }

    #[test]
    fn a_mask_keeps_its_tokens_and_none_beyond_the_vocabulary() {
        let mut c = Candidates::default();
        c.fill_allowed(40, &[1 << 31 | 1 << 3, 0b1000_0011]);
        assert_eq!(c.ids, [3, 31, 32, 33, 39]);
        c.fill_allowed(33, &[1 << 31 | 1 << 3, 0b1000_0011]);
        assert_eq!(c.ids, [3, 31, 32]);
        let mut logits = [0.0; 33];
        (logits[5], logits[31], logits[32]) = (9.0, 2.0, 2.0);
        assert_eq!(c.best(&logits), 31);
    }

    #[test]
    fn top_k_keeps_the_lower_id_among_equals() {
        let logits = [1.0, 2.0, 2.0, 2.0];
        let mut c = all(&logits);
        c.top_k(&logits, 2);
        assert_eq!(c.ids, [1, 2]);
        // The one that a greedy sampler takes.
        let zeros = [-1.0, -0.0, 0.0, -0.0];
        let mut c = all(&zeros);
        c.top_k(&zeros, 1);
        assert_eq!(c.ids, [passes::argmax(&zeros)]);
    }

    #[test]
    fn top_p_keeps_the_token_that_crosses_the_threshold() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        for (p, kept) in [(0.0, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 3)] {
            let mut c = all(&logits);
            c.top_p(&logits, p);
            assert_eq!(c.ids.len(), kept, "p = {p}");
        }
    }

    #[test]
    fn typical_p_keeps_what_is_about_as_surprising_as_the_mean() {
        // The entropy is 1.03; the surprises are 0.69, 1.20 and 1.61: the second is nearest, then the first.
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        for (p, kept) in [(0.0, &[1][..]), (0.29, &[1]), (0.31, &[1, 0]), (0.79, &[1, 0]), (0.81, &[1, 0, 2])]
        {
            let mut c = all(&logits);
            c.typical_p(&logits, p);
            assert_eq!(c.ids, kept, "p = {p}");
        }
        let mut c = all(&logits);
        c.typical_p(&logits, 1.0);
        assert_eq!(c.ids, [0, 1, 2], "1 keeps all as they are");
        let mut c = all(&[3e38, -3e38]);
        c.typical_p(&[3e38, -3e38], 0.5);
        assert_eq!(c.ids, [0], "what cannot come does not count");
    }

    #[test]
    fn min_p_is_relative_to_the_most_likely() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        for (p, kept) in [(0.0, 3), (0.39, 3), (0.41, 2), (0.61, 1), (1.0, 1)] {
            let mut c = all(&logits);
            c.min_p(&logits, p);
            assert_eq!(c.ids.len(), kept, "p = {p}");
        }
    }

    proptest! {
        /// Equals among them, zeros of either sign too, and tokens that a mask left out.
        #[test]
        fn top_k_agrees_with_a_full_sort(
            halves in prop::collection::vec(-80i8..80, 1..6000),
            (k, step) in (1usize..50, 1usize..4),
        ) {
            let logits: Vec<f32> = halves.into_iter().map(|half| (f32::from(half) / 2.0).trunc()).collect();
            let ids: Vec<u32> = (0..logits.len() as u32).step_by(step).collect();
            let mut sorted = ids.clone();
            // In the order of ids among equals.
            sorted.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap());
            sorted.truncate(k);
            let mut c = Candidates { ids: ids.clone(), weights: Vec::new() };
            c.top_k(&logits, k);
            if k < ids.len() {
                prop_assert_eq!(c.ids, sorted);
            } else {
                prop_assert_eq!(c.ids, ids);
            }
        }

        /// The chunked search keeps what sorting everything and summing would keep.
        #[test]
        fn top_p_agrees_with_a_full_sort(
            logits in prop::collection::vec(-6f32..6.0, 1..3000),
            p in 0f64..1.0,
        ) {
            let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
            sorted.sort_by(|a, b| likelier_first(&logits, *a, *b));
            let max = logits[sorted[0] as usize];
            let weight = |id: &u32| f64::from(passes::weight(logits[*id as usize] - max));
            let total: f64 = (0..logits.len() as u32).map(|id| weight(&id)).sum();
            let mut sum = 0.0;
            let crossed = sorted.iter().position(|id| { sum += weight(id); sum >= p * total });
            sorted.truncate(crossed.map_or(usize::MAX, |i| i + 1));
            let mut c = all(&logits);
            c.top_p(&logits, p);
            if c.ids.len() < logits.len() {
                prop_assert_eq!(c.ids, sorted);
            } else {
                prop_assert_eq!(sorted.len(), logits.len());
            }
        }
    }
}
