//! Tokens guessed ahead: a node that guesses beside one that does not, one stream, greedy.
//!
//! With random weights nothing can be said of how often guesses are right in real text. What can be measured
//! are the two ends: what they cost where they are never right and switch themselves off, and, with the model
//! itself as its draft model, what checking costs where they always are.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::Bench;
use super::cells::{Sample, Subject, What};
use super::load::{ANSWER_MAX, Target, prompt};

/// Tokens of prompt and answer.
const PROMPT: usize = 64;
const TOKENS: u32 = 256;

/// One answer.
struct Run {
    tokens_per_s: f64,
    accepted: u64,
    rejected: u64,
    text: String,
}

impl Bench {
    /// Each way to guess against none, in turns, on the same prompts.
    pub(super) fn guesses(&mut self, model: &Path, threads: usize) -> anyhow::Result<()> {
        let subject = Subject::new(model, &self.dtype_of(model));
        let plain = self.start_node(model, threads, 1, &["--speculate=off".to_owned()])?;
        for (what, flags) in self.ways() {
            let guessing = self.start_node(model, threads, 1, &flags)?;
            for round in 0..self.args.rounds {
                if !self.has_time(&what.label()) {
                    return Ok(());
                }
                let tokens = prompt(PROMPT, 300_000 + u64::from(round));
                let (with, without) = (answer(&guessing.target, &tokens)?, answer(&plain.target, &tokens)?);
                anyhow::ensure!(with.text == without.text, "{} changed the text", what.label());
                let ours = with.tokens_per_s / without.tokens_per_s;
                self.cells.add(&subject, threads, what, Sample { ours, theirs: None, share: None });
                eprintln!(
                    "round {} {} {threads} threads: {}: {:.1} t/s against {:.1} ({ours:.2} x), {} guesses right, {} wrong",
                    round + 1,
                    subject.name,
                    what.label(),
                    with.tokens_per_s,
                    without.tokens_per_s,
                    with.accepted,
                    with.rejected,
                );
            }
        }
        Ok(())
    }

    /// Prompt lookup, and a small model if one is given.
    fn ways(&self) -> Vec<(What, [String; 1])> {
        let lookup = (What::GuessesOfPrompt, ["--speculate=ngram".to_owned()]);
        let draft = |file: &PathBuf| (What::GuessesOfModel, [format!("--draft={}", file.display())]);
        [lookup].into_iter().chain(self.args.draft.as_ref().map(draft)).collect()
    }
}

fn answer(target: &Target, prompt: &[u64]) -> anyhow::Result<Run> {
    let body = json!({
        "model": target.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true,
    });
    let answer = target.server.post("/v1/completions", &body, ANSWER_MAX)?;
    let details = &answer["usage"]["completion_tokens_details"];
    let count =
        |name: &str| details[name].as_u64().with_context(|| format!("the answer does not tell its {name}"));
    let rate = answer["exo"]["timings"]["tokens_per_s"].as_f64();
    Ok(Run {
        tokens_per_s: rate.context("the answer does not tell its tokens per second")?,
        accepted: count("accepted_prediction_tokens")?,
        rejected: count("rejected_prediction_tokens")?,
        text: answer["choices"][0]["text"].as_str().context("the answer has no text")?.to_owned(),
    })
}
