//! Reference logits and the tiny models they belong to. For tests only; nothing shipped depends on it.
//!
//! The files lie in `fixtures` and are written by `make_fixtures.py`, which says what is in
//! them: one folder per [`Fixture`], holding the model as a Hugging Face folder, as GGUF or as both, and what
//! transformers computed for it in f32. A file that is missing or does not parse is a panic: the repository
//! is broken then.
//!
//! **Architecture invariant:** knows no engine. It says what is right, never how it is computed.

#![forbid(unsafe_code)]

mod drift;

use std::path::PathBuf;

use serde::Deserialize;

pub use drift::Drift;

/// Allowed error of a logit, in standard deviations of the logits, where blocks are not quantised.
pub const LOGIT_ERROR_MAX: f32 = 1e-3;

/// Names of all fixtures, in the order of the script.
pub const NAMES: [&str; 12] = [
    "llama-f32",
    "llama-bf16-tied",
    "mistral-f16-window",
    "qwen2-bf16",
    "qwen3-f16",
    "qwen3-bf16-untied",
    "llama-q8_0",
    "llama-q4_0",
    "qwen3-q8_0",
    "qwen3-q4_0",
    "llama-q4_1-q5",
    "llama-k-quants",
];

/// One tiny model and what the reference computed for it.
#[derive(Clone, Debug, Deserialize)]
pub struct Fixture {
    /// Its name, and that of its folder.
    pub name: String,
    /// How its matrices are stored.
    pub dtype: String,
    /// Whether it exists as a Hugging Face folder too. Quantised ones are GGUF alone.
    pub hugging_face: bool,
    /// Transformer layers.
    pub layers: u32,
    /// V
    pub vocab: usize,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Rows of the reference logits: the prompt, and of quantised fixtures the first tokens of the answer.
    pub logit_rows: usize,
    /// Standard deviation of the prompt's logits: the yardstick of every error.
    pub logit_std: f32,
    /// The greedy answer.
    pub greedy: Vec<u32>,
    /// By how much each token of the answer is ahead of the second best.
    pub gaps: Vec<f32>,
}

impl Fixture {
    /// The fixture called `name`.
    pub fn load(name: &str) -> Self {
        let path = folder(name).join("reference.json");
        let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Every fixture.
    pub fn all() -> Vec<Self> {
        NAMES.iter().map(|name| Self::load(name)).collect()
    }

    /// The Hugging Face folder. Only where [`Fixture::hugging_face`] says there is one.
    pub fn folder(&self) -> PathBuf {
        folder(&self.name)
    }

    /// The GGUF file.
    pub fn gguf(&self) -> PathBuf {
        self.folder().join("model.gguf")
    }

    /// Everything the model can be opened from.
    pub fn sources(&self) -> Vec<PathBuf> {
        let folder = self.hugging_face.then(|| self.folder());
        folder.into_iter().chain([self.gguf()]).collect()
    }

    /// `[logit_rows, vocab]` reference logits.
    pub fn logits(&self) -> Vec<f32> {
        let path = self.folder().join("logits.f32");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let logits: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert_eq!(logits.len(), self.logit_rows * self.vocab, "{} has another size", path.display());
        logits
    }

    /// The tokens whose logits the reference holds: the prompt and the first tokens of the answer.
    pub fn forced_tokens(&self) -> Vec<u32> {
        self.prompt.iter().chain(&self.greedy).copied().take(self.logit_rows).collect()
    }
}

/// How many greedy steps must agree: those before the first whose gap is below ten times the allowed error.
pub fn certain_steps(gaps: &[f32], logit_std: f32) -> usize {
    gaps.iter().position(|gap| *gap < 10.0 * LOGIT_ERROR_MAX * logit_std).unwrap_or(gaps.len())
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fixture_is_whole_and_none_of_its_steps_is_a_near_tie() {
        for fixture in Fixture::all() {
            assert!(fixture.logits().iter().all(|l| l.is_finite()), "{}", fixture.name);
            assert_eq!(fixture.forced_tokens().len(), fixture.logit_rows, "{}", fixture.name);
            assert_eq!(certain_steps(&fixture.gaps, fixture.logit_std), 64, "{}", fixture.name);
            assert!(fixture.sources().iter().all(|s| s.exists()), "{}", fixture.name);
        }
    }

    #[test]
    fn a_near_tie_ends_what_must_agree() {
        assert_eq!(certain_steps(&[1.0, 0.5, 0.009, 1.0], 1.0), 2);
        assert_eq!(certain_steps(&[1.0, 0.5, 0.009, 1.0], 0.5), 4);
    }
}
