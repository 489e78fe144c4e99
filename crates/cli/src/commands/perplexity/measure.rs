//! Scores the second half of each chunk, and sums up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use exo_backend::{CancelToken, Device};
use exo_engine::{Engine, EngineOptions, StepInput};
use exo_tokenizer::Tokenizer;
use exo_types::{
    KvDType, NodeId, Principal, PromptQuery, RequestId, SamplingParams, SequenceId, SequenceSpec, Shard,
    StepFrame, StepSequence,
};
use serde_json::{Value, json};

use super::chunks::{self, Chunks};
use crate::commands::subject::Subject;
use crate::ui;

/// No step takes this long on a device that still works.
const STEP_MAX: Duration = Duration::from_secs(600);
const PRINCIPAL: Principal = Principal([0; 16]);
const SEQUENCE: SequenceId = SequenceId { request: RequestId(1), index: 0 };

/// What is asked for.
pub struct Options {
    pub kv: KvDType,
    pub context: Option<u32>,
    pub chunks_max: Option<u32>,
    pub parse_special: bool,
}

/// What came out.
pub struct PerplexityResult {
    pub model: String,
    pub backend: String,
    pub kv: KvDType,
    pub context: u32,
    pub chunks: u32,
    pub score: Score,
    /// Of the steps and the scoring, loading not counted.
    pub seconds: f64,
}

impl PerplexityResult {
    /// Tokens that went through the model per second, scored or not.
    pub fn tokens_per_s(&self) -> f64 {
        f64::from(self.context) * f64::from(self.chunks) / self.seconds.max(1e-9)
    }

    /// For scripts.
    pub fn document(&self) -> Value {
        json!({
            "model": self.model,
            "backend": self.backend,
            "type_kv": self.kv.name(),
            "context_tokens": self.context,
            "chunks": self.chunks,
            "tokens_scored": self.score.count(),
            "perplexity": self.score.perplexity(),
            "error": self.score.error(),
            "tokens_per_s": self.tokens_per_s(),
        })
    }
}

/// The negative log-likelihoods of scored tokens, summed up.
#[derive(Clone, Copy, Default, Debug)]
pub struct Score {
    sum: f64,
    squares: f64,
    count: u64,
}

impl Score {
    fn add(&mut self, logprob: f64) {
        self.sum -= logprob;
        self.squares += logprob * logprob;
        self.count += 1;
    }

    /// Tokens scored.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `exp` of the mean.
    pub fn perplexity(&self) -> f64 {
        (self.sum / self.count as f64).exp()
    }

    /// One standard error of the perplexity, tokens taken as independent; 0 for fewer than two.
    pub fn error(&self) -> f64 {
        let n = self.count as f64;
        if self.count < 2 {
            return 0.0;
        }
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        (variance / (n - 1.0)).sqrt() * self.perplexity()
    }
}

/// Loads the model and scores the text.
pub fn run(
    subject: &Subject,
    device: Arc<dyn Device>,
    text: &str,
    options: &Options,
    cancel: &CancelToken,
) -> anyhow::Result<PerplexityResult> {
    let model = subject.open()?;
    let context = chunks::context(options.context, model.config.context_tokens_max)?;
    let tokenizer = Tokenizer::from_source(&model.tokenizer).context("cannot build the tokenizer")?;
    let chunks = Chunks::new(text, &tokenizer, options.parse_special, context, options.chunks_max)?;
    let engine_options = EngineOptions { kv_dtype: options.kv, ..EngineOptions::new(context, 1) };
    let shard = Shard::whole(model.config.layers);
    let loading = ui::bar(0, "loading {bar:30} {bytes}/{total_bytes}");
    let mut progress = |p: exo_engine::LoadProgress| {
        loading.set_length(p.bytes_total);
        loading.set_position(p.bytes_done);
    };
    let mut engine = Engine::load(device.clone(), &model, shard, engine_options, &mut progress)
        .with_context(|| format!("cannot load {} with a context of {context} tokens", model.name))?;
    loading.finish_and_clear();
    let bar = ui::bar(chunks.count.into(), "{bar:30} {pos}/{len} chunks, {msg}, {eta} left");
    let (mut score, began) = (Score::default(), Instant::now());
    for index in 0..chunks.count {
        score_chunk(&mut engine, &chunks.get(index), &mut score, cancel)?;
        bar.set_message(format!("perplexity {:.4}", score.perplexity()));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(PerplexityResult {
        model: model.name.clone(),
        backend: device.facts().backend,
        kv: options.kv,
        context,
        chunks: chunks.count,
        score,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// The first half is only seen; in the second, each token but the first is scored after all before it.
fn score_chunk(
    engine: &mut Engine,
    chunk: &[u32],
    score: &mut Score,
    cancel: &CancelToken,
) -> anyhow::Result<()> {
    engine.open(SequenceSpec {
        sequence: SEQUENCE,
        principal: PRINCIPAL,
        driver: NodeId([0; 32]),
        sampling: SamplingParams::greedy(),
        history: chunk.to_vec(),
        prompt_tokens: chunk.len() as u32,
        query: PromptQuery::Nothing,
    })?;
    let (seen, scored) = chunk.split_at(chunk.len() / 2);
    let step_max = engine.options().chunk_tokens_max as usize;
    for (i, tokens) in seen.chunks(step_max).enumerate() {
        let part = StepSequence {
            sequence: SEQUENCE,
            principal: PRINCIPAL,
            start: (i * step_max) as u32,
            tokens: tokens.to_vec(),
            sample: false,
            drafts: 0,
            truncate_to: None,
        };
        let frame = StepFrame::unplaced(0, vec![part]);
        engine.step(&frame, StepInput::Tokens, cancel, STEP_MAX).context("a step failed")?;
    }
    let scores = engine.score(SEQUENCE, scored, 0, cancel, STEP_MAX).context("a step failed")?;
    scores.iter().for_each(|token| score.add(token.logprob.into()));
    engine.close(SEQUENCE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_geometric_mean_with_its_standard_error() {
        let mut score = Score::default();
        for p in [0.5f64, 0.25, 0.125] {
            score.add(p.ln());
        }
        // Mean 2 bits, deviations of one bit each way: variance 2/3 bit², over n - 1 = 2.
        assert!((score.perplexity() - 4.0).abs() < 1e-12);
        let expected = (1.0f64 / 3.0).sqrt() * 2.0f64.ln() * 4.0;
        assert!((score.error() - expected).abs() < 1e-12, "{} {expected}", score.error());
        assert_eq!(score.count(), 3);
    }
}
