//! A model to compute with: its text shows every token that was wrong, missing, double or computed by a wrong
//! layer.

use std::collections::BTreeMap;

use exo_types::{SampledToken, SamplingParams};

use crate::draw::hash;

/// Tokens of the vocabulary.
pub const VOCAB: u32 = 100;
/// Ends an answer.
pub const STOP_TOKEN: u32 = 99;
/// Elements of a hidden row: eight bytes, one number of 64 bits.
pub const HIDDEN: u32 = 2;
/// Bytes of a hidden row.
pub const ROW_BYTES: usize = 4 * HIDDEN as usize;

/// What an engine computes. A number of 64 bits stands for a hidden row, and another for all that a layer has
/// cached up to a position.
pub trait Model: std::fmt::Debug {
    /// The hidden row that enters the first layer.
    fn embed(&self, token: u32, position: u32) -> u64;
    /// A layer at one position: `before` is its own result one position earlier (0 at the first), `row` what
    /// enters. The result is what is cached, and the row that leaves. It depends on all positions before, as
    /// attention does.
    fn layer(&self, layer: u32, before: u64, row: u64) -> u64;
    /// The token that follows a position, from the row that left the last layer.
    fn sample(&self, row: u64, position: u32, sampling: &SamplingParams) -> u32;
}

/// Tokens by hash. In half of the sequences a phrase comes again and again, so that guesses are right now and
/// then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashModel;

impl Model for HashModel {
    fn embed(&self, token: u32, position: u32) -> u64 {
        row(hash(u64::from(token) << 32 | u64::from(position)))
    }

    fn layer(&self, layer: u32, before: u64, row: u64) -> u64 {
        self::row(hash(before.rotate_left(17) ^ row).wrapping_add(hash(u64::from(layer))))
    }

    fn sample(&self, row: u64, position: u32, sampling: &SamplingParams) -> u32 {
        let seed = sampling.seed;
        let repeats = seed.is_multiple_of(2) && !hash(seed ^ u64::from(position / 8)).is_multiple_of(3);
        if repeats {
            return ((seed >> 1) % 7 + u64::from(position % 4)) as u32;
        }
        let drawn = hash(row ^ seed);
        if drawn.is_multiple_of(64) { STOP_TOKEN } else { (drawn >> 8) as u32 % (VOCAB - 1) }
    }
}

/// What a device computes that is broken and does not say so: no element of a row is a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoNumbers;

impl Model for NoNumbers {
    fn embed(&self, _: u32, _: u32) -> u64 {
        u64::MAX
    }

    fn layer(&self, _: u32, _: u64, _: u64) -> u64 {
        u64::MAX
    }

    fn sample(&self, _: u64, _: u32, _: &SamplingParams) -> u32 {
        STOP_TOKEN
    }
}

/// A row whose two elements are numbers, as a stage expects of a device: no exponent is all ones.
fn row(drawn: u64) -> u64 {
    drawn & !0x4000_0000_4000_0000
}

/// What an answer is when one engine computes it without any cluster.
pub struct Question<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// How tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Tokens at most.
    pub max_tokens: u32,
    /// The longest sequence.
    pub context_tokens: u32,
}

/// The tokens of the answer, the stop token included.
pub fn solo(model: &dyn Model, layers: u32, question: &Question<'_>) -> Vec<u32> {
    let mut cached = vec![0; layers as usize];
    let mut forward = |token, position| {
        let mut row = model.embed(token, position);
        for (layer, before) in (0..).zip(&mut cached) {
            row = model.layer(layer, *before, row);
            *before = row;
        }
        row
    };
    let (mut row, mut position) = (0, 0);
    for &token in question.prompt {
        row = forward(token, position);
        position += 1;
    }
    let mut answer = Vec::new();
    while (answer.len() as u32) < question.max_tokens && position < question.context_tokens {
        let token = model.sample(row, position, question.sampling);
        answer.push(token);
        if token == STOP_TOKEN {
            break;
        }
        row = forward(token, position);
        position += 1;
    }
    answer
}

/// A token as engines give it.
pub fn sampled(token: u32) -> SampledToken {
    SampledToken::bare(token)
}

/// Sampling whose draws are fixed by `seed`.
pub fn sampling(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, logit_bias: BTreeMap::new(), ..SamplingParams::greedy() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(prompt: &[u32], layers: u32, seed: u64) -> Vec<u32> {
        let sampling = sampling(seed);
        let question = Question { prompt, sampling: &sampling, max_tokens: 40, context_tokens: 128 };
        solo(&HashModel, layers, &question)
    }

    #[test]
    fn any_other_token_or_layer_gives_another_text() {
        let text = answer(&[1, 2, 3], 4, 5);
        for other in [answer(&[1, 2, 4], 4, 5), answer(&[2, 1, 3], 4, 5), answer(&[1, 2, 3, 3], 4, 5)] {
            assert_ne!(text, other);
        }
        assert_ne!(text, answer(&[1, 2, 3], 3, 5), "a layer is missing");
        assert_ne!(text, answer(&[1, 2, 3], 4, 7), "another seed");
        assert_eq!(text, answer(&[1, 2, 3], 4, 5));
    }

    #[test]
    fn answers_end_early_now_and_then_and_phrases_repeat() {
        let answers: Vec<_> = (0..40).map(|seed| answer(&[3], 4, seed)).collect();
        assert!(answers.iter().any(|a| a.last() == Some(&STOP_TOKEN)));
        let repeats = |a: &Vec<u32>| a.windows(4).zip(a.windows(4).skip(4)).any(|(x, y)| x == y);
        assert!(answers.iter().filter(|a| repeats(a)).count() > 5);
    }
}
