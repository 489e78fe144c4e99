//! How the next token is chosen from logits. Plain values; the choosing lives in `sampler`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{SharedReport, TOP_MAX, list};

/// Parameters of one sequence's sampler. [`SamplingParams::greedy`] is the neutral start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy. Otherwise logits are divided by it.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keep the smallest set of the most typical tokens whose probabilities sum to at least this: those whose
    /// surprise is nearest to the mean surprise; 1 keeps all.
    pub typical_p: f32,
    /// Divide (positive) or multiply (negative) the logits of seen tokens by this; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of generated tokens; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logits of generated tokens; 0 is off.
    pub frequency_penalty: f32,
    /// The three penalties look at so many tokens before the next, prompt included; 0 is all.
    pub penalty_window: u32,
    /// Added to the logit of each named token.
    pub logit_bias: BTreeMap<u32, f32>,
    /// With the position it fixes every draw.
    pub seed: u64,
    /// How many of the most likely tokens to report per position; `None` reports no probability at all.
    pub logprobs: Option<u8>,
    /// What the generated tokens must spell, if anything.
    pub constraint: Option<Arc<Constraint>>,
}

/// Longest text of a [`Constraint`]'s grammar.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// A grammar that the generated tokens keep to. Whoever samples compiles it for itself, with the same engine
/// and over the same vocabulary as the driver that checks them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Constraint {
    /// In the engine's dialect of Lark.
    pub grammar: String,
    /// The engine and its version.
    pub engine: String,
    /// A hash of the vocabulary's bytes and end tokens.
    pub vocabulary: [u8; 32],
}

impl SamplingParams {
    /// Always the most likely token, nothing else.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 0,
            logit_bias: BTreeMap::new(),
            seed: 0,
            logprobs: None,
            constraint: None,
        }
    }

    /// Whether every number is finite and in its range; peers and clients both pass through here.
    pub fn check(&self) -> Result<(), SamplingParamsError> {
        let ranges: [(&'static str, f32, f32, f32); 7] = [
            ("temperature", self.temperature, 0.0, 2.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("typical_p", self.typical_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 10.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(SamplingParamsError { name, value, min, max });
            }
        }
        if let Some(&value) = self.logit_bias.values().find(|v| !(-100.0..=100.0).contains(*v)) {
            return Err(SamplingParamsError { name: "logit_bias", value, min: -100.0, max: 100.0 });
        }
        if let Some(constraint) = self.constraint.as_ref().filter(|c| c.grammar.len() > GRAMMAR_BYTES_MAX) {
            let (value, max) = (constraint.grammar.len() as f32, GRAMMAR_BYTES_MAX as f32);
            return Err(SamplingParamsError { name: "grammar_bytes", value, min: 0.0, max });
        }
        match self.logprobs {
            Some(n) if n > 20 => {
                Err(SamplingParamsError { name: "top_logprobs", value: n.into(), min: 0.0, max: 20.0 })
            }
            _ => Ok(()),
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {value}, it must be between {min} and {max}")]
#[allow(missing_docs)] // the messages say what the fields are
pub struct SamplingParamsError {
    pub name: &'static str,
    pub value: f32,
    pub min: f32,
    pub max: f32,
}

/// A token the last stage chose.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SampledToken {
    /// The token's id.
    pub token: u32,
    /// Natural logarithm of its probability before temperature and filters; `None` unless asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log-probabilities, best first; empty unless asked for.
    #[serde(deserialize_with = "list::<_, _, TOP_MAX>")]
    pub top: Vec<(u32, f32)>,
    /// What was asked of the prompt, with the first token behind it.
    pub prompt: Option<SharedReport>,
}

impl SampledToken {
    /// A token of which nothing more is known.
    pub fn bare(token: u32) -> Self {
        Self { token, logprob: None, top: Vec::new(), prompt: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_number_is_out_of_range() {
        let params = SamplingParams { temperature: f32::NAN, ..SamplingParams::greedy() };
        assert_eq!(params.check().map_err(|e| e.name), Err("temperature"));
        assert!(SamplingParams::greedy().check().is_ok());
    }

    #[test]
    fn a_grammar_has_a_bound() {
        let of = |len: usize| {
            let grammar = "x".repeat(len);
            let constraint = Constraint { grammar, engine: String::new(), vocabulary: [0; 32] };
            SamplingParams { constraint: Some(Arc::new(constraint)), ..SamplingParams::greedy() }
        };
        assert!(of(GRAMMAR_BYTES_MAX).check().is_ok());
        assert_eq!(of(GRAMMAR_BYTES_MAX + 1).check().map_err(|e| e.name), Err("grammar_bytes"));
    }
}
