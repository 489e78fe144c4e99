//! Logit bias and the three penalties: the only part of sampling that remembers tokens.

use std::collections::{BTreeMap, VecDeque};

use exo_types::SamplingParams;

/// What the fold over the tokens has come to. Empty, and free, when nothing in the parameters needs it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Penalties {
    bias: Vec<(u32, f32)>,
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Tokens of the prompt and the answer with their counts; only for the repetition penalty.
    seen: BTreeMap<u32, u32>,
    /// Generated tokens with their counts; only for presence and frequency.
    generated: BTreeMap<u32, u32>,
    /// The last tokens and whether each was generated; only where the penalties look at no more than these.
    window: VecDeque<(u32, bool)>,
    /// 0 is no bound.
    window_len_max: usize,
}

impl Penalties {
    pub(crate) fn new(params: &SamplingParams, history: &[u32], prompt_tokens: usize) -> Self {
        let mut fold = Self {
            bias: params.logit_bias.iter().map(|(&token, &bias)| (token, bias)).collect(),
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            seen: BTreeMap::new(),
            generated: BTreeMap::new(),
            window: VecDeque::new(),
            window_len_max: params.penalty_window as usize,
        };
        let (prompt, generated) = history.split_at(prompt_tokens.min(history.len()));
        prompt.iter().for_each(|&token| fold.take_in(token, false));
        generated.iter().for_each(|&token| fold.take_in(token, true));
        fold
    }

    pub(crate) fn accept(&mut self, token: u32) {
        self.take_in(token, true);
    }

    fn take_in(&mut self, token: u32, is_generated: bool) {
        self.count(token, is_generated, |count| count.saturating_add(1));
        if self.window_len_max == 0 || !(self.repeats() || self.counts()) {
            return;
        }
        self.window.push_back((token, is_generated));
        if self.window.len() > self.window_len_max
            && let Some((token, is_generated)) = self.window.pop_front()
        {
            self.count(token, is_generated, |count| count.saturating_sub(1));
        }
    }

    /// Changes the counts of a token; one that is counted no more is forgotten.
    fn count(&mut self, token: u32, is_generated: bool, change: impl Fn(u32) -> u32) {
        let (repeats, counts) = (self.repeats(), self.counts() && is_generated);
        for (counts, is_used) in [(&mut self.seen, repeats), (&mut self.generated, counts)] {
            if !is_used {
                continue;
            }
            let count = counts.entry(token).or_insert(0);
            *count = change(*count);
            if *count == 0 {
                counts.remove(&token);
            }
        }
    }

    /// Whether logits come out as they went in, whatever the tokens.
    pub(crate) fn is_neutral(&self) -> bool {
        self.bias.is_empty() && !self.repeats() && !self.counts()
    }

    /// Tokens beyond the vocabulary, which a client or a peer may name, are passed over.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for &(token, bias) in &self.bias {
            adjust(logits, token, |l| l + bias);
        }
        for &token in self.seen.keys() {
            let by = self.repetition;
            adjust(logits, token, |l| if l > 0.0 { l / by } else { l * by });
        }
        for (&token, &count) in &self.generated {
            let by = self.presence + self.frequency * count as f32;
            adjust(logits, token, |l| l - by);
        }
    }

    fn repeats(&self) -> bool {
        self.repetition != 1.0
    }

    fn counts(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }
}

/// Clamped, because a huge logit times a penalty must not become an infinity the draw would trip over.
fn adjust(logits: &mut [f32], token: u32, f: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        let value = f(*logit);
        *logit = if value.is_nan() { f32::MIN } else { value.clamp(f32::MIN, f32::MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(params: SamplingParams, history: &[u32], prompt: usize, logits: &[f32]) -> Vec<f32> {
        let mut out = logits.to_vec();
        Penalties::new(&params, history, prompt).apply(&mut out);
        out
    }

    #[test]
    fn repetition_shrinks_seen_logits_towards_less_likely_on_both_signs() {
        let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
        assert_eq!(apply(params, &[0, 1, 1], 2, &[4.0, -4.0, 4.0]), [2.0, -8.0, 4.0]);
    }

    #[test]
    fn presence_and_frequency_count_generated_tokens_and_not_the_prompt() {
        let params =
            SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.25, ..SamplingParams::greedy() };
        assert_eq!(apply(params, &[0, 0, 1, 2, 2], 2, &[8.0, 8.0, 8.0]), [8.0, 6.75, 6.5]);
    }

    #[test]
    fn a_window_lets_go_of_what_is_behind_it() {
        let params =
            SamplingParams { repetition_penalty: 2.0, penalty_window: 2, ..SamplingParams::greedy() };
        assert_eq!(apply(params.clone(), &[0, 1, 2], 1, &[4.0; 4]), [4.0, 2.0, 2.0, 4.0]);
        // One that stands in it twice is still there when the first goes.
        assert_eq!(apply(params, &[0, 1, 1, 1], 1, &[4.0; 4]), [4.0, 2.0, 4.0, 4.0]);
        let params = SamplingParams { frequency_penalty: 1.0, penalty_window: 3, ..SamplingParams::greedy() };
        assert_eq!(apply(params.clone(), &[0, 0, 0, 1, 1], 2, &[8.0; 2]), [7.0, 6.0]);
        // What was said one token after the other is what a replay folds at once.
        let mut fold = Penalties::new(&params, &[0, 0], 2);
        [0, 1, 1, 0].into_iter().for_each(|token| fold.accept(token));
        assert_eq!(fold, Penalties::new(&params, &[0, 0, 0, 1, 1, 0], 2));
    }

    #[test]
    fn bias_adds_and_ids_beyond_the_vocabulary_are_passed_over() {
        let bias = [(1, -100.0), (9, 5.0)].into();
        let params = SamplingParams { logit_bias: bias, repetition_penalty: 1.5, ..SamplingParams::greedy() };
        assert_eq!(apply(params, &[7, u32::MAX], 1, &[1.0, 1.0]), [1.0, -99.0]);
    }

    #[test]
    fn huge_logits_stay_finite() {
        let params = SamplingParams { repetition_penalty: 10.0, ..SamplingParams::greedy() };
        assert_eq!(apply(params, &[0], 1, &[-3e38, 0.0]), [f32::MIN, 0.0]);
    }

    #[test]
    fn neutral_parameters_remember_nothing() {
        let fold = Penalties::new(&SamplingParams::greedy(), &[1, 2, 3], 1);
        assert!(fold.is_neutral() && fold.seen.is_empty() && fold.generated.is_empty());
    }
}
