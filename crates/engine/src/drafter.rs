//! A small model that guesses the next tokens of a large one's sequences.
//!
//! It keeps each sequence in a cache of its own, reads what the large model has said meanwhile, and goes on
//! from there by itself: those are the guesses. It draws them as the large model will, with the sequence's
//! own parameters, seed and positions, so where both think alike they draw alike too; greedy sequences get
//! its likeliest tokens.
//!
//! Whether a guess is right is decided in `verify`, by the large model. Nothing here can change an answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use exo_backend::{CancelToken, Device, KvDType};
use exo_formats::Model;
use exo_sampler::Sampler;
use exo_types::{SamplingParams, SequenceId, SequenceSpec, Shard, StepFrame, StepSequence};

use crate::step::OutputRows;
use crate::{Engine, EngineOptions, EngineReport, LoadError, StepError, StepInput};

/// What may be left to read when the guessing begins: the large model's last token and, where all guesses
/// were right, the last of them.
const NEWS_MAX: usize = 2;

/// Asks what comes next in a sequence.
#[derive(Clone, PartialEq, Debug)]
pub struct DraftRequest {
    /// The sequence as the large model has it: `history` holds prompt and answer so far.
    pub spec: SequenceSpec,
    /// Tokens wanted at most; 0 has the small model read the sequence and no more.
    pub count: u32,
}

/// A whole model that guesses. It holds as many sequences as it has slots; others are refused.
#[derive(Debug)]
pub struct Drafter {
    engine: Engine,
    /// Tokens whose keys and values the engine has.
    cached: BTreeMap<SequenceId, Vec<u32>>,
}

/// How long a step may take, and who may stop it.
#[derive(Clone, Copy, Debug)]
pub struct DraftLimits<'a> {
    /// Who may stop it.
    pub cancel: &'a CancelToken,
    /// Of each of its steps.
    pub deadline: Duration,
}

/// A sequence while it is guessed at.
struct DraftingSequence {
    /// Which request it answers.
    index: usize,
    spec: SequenceSpec,
    count: usize,
    sampler: Sampler,
    drafts: Vec<u32>,
}

impl DraftingSequence {
    /// Tokens of text and guesses.
    fn len(&self) -> usize {
        self.spec.history.len() + self.drafts.len()
    }
}

/// Whether a sequence can be read.
enum Room {
    Held,
    /// Not now: every slot is taken.
    Full,
    Never,
}

impl Drafter {
    /// Loads the whole of `model`. Memory for `slots` sequences of `context_tokens` is taken now.
    pub fn load(
        device: Arc<dyn Device>,
        model: &Model,
        context_tokens: u32,
        slots: u32,
        kv_dtype: KvDType,
    ) -> Result<Self, LoadError> {
        let usual = EngineOptions::new(context_tokens.min(model.config.context_tokens_max), slots);
        let chunk_tokens_max = usual.chunk_tokens_max.max(slots.saturating_mul(NEWS_MAX as u32));
        let options = EngineOptions { chunk_tokens_max, kv_dtype, ..usual };
        let shard = Shard::whole(model.config.layers);
        let engine = Engine::load(device, model, shard, options, &mut |_| {})?;
        Ok(Self { engine, cached: BTreeMap::new() })
    }

    /// What it holds.
    pub fn report(&self) -> EngineReport {
        self.engine.report()
    }

    /// Guesses for each request, in order; none where the context ends, none are wanted, or no slot is free
    /// at present. `None` for a sequence that it can never hold: it is too long, or has tokens that this
    /// model lacks. After an error its caches are not to be trusted.
    pub fn propose(
        &mut self,
        requests: Vec<DraftRequest>,
        limits: DraftLimits<'_>,
    ) -> Result<Vec<Option<Vec<u32>>>, StepError> {
        let mut guesses = vec![None; requests.len()];
        let mut runs = Vec::new();
        for (index, request) in requests.into_iter().enumerate() {
            let DraftRequest { spec, count } = request;
            match self.room(&spec) {
                Room::Held => {}
                Room::Full => {
                    guesses[index] = Some(Vec::new());
                    continue;
                }
                Room::Never => {
                    self.forget(spec.sequence);
                    continue;
                }
            }
            let context = self.engine.options().context_tokens;
            let count = count.min(context - spec.history.len() as u32) as usize;
            self.catch_up(&spec, count > 0, limits)?;
            // A guess that breaks the grammar is wrong, and found to be.
            let sampling = SamplingParams { logprobs: None, constraint: None, ..spec.sampling.clone() };
            let sampler = Sampler::new(sampling, &spec.history, spec.prompt_tokens);
            runs.push(DraftingSequence { index, spec, count, sampler, drafts: Vec::new() });
        }
        while self.go_on(&mut runs, limits)? {}
        for run in runs {
            guesses[run.index] = Some(run.drafts);
        }
        Ok(guesses)
    }

    /// Frees a sequence's slot, if it has one.
    pub fn forget(&mut self, sequence: SequenceId) {
        if self.cached.remove(&sequence).is_some() {
            // What is in `cached` is open in the engine.
            let _ = self.engine.close(sequence);
        }
    }

    /// Whether it can read the sequence: its tokens, its length, and it has or gets a slot.
    fn room(&mut self, spec: &SequenceSpec) -> Room {
        let (vocab, sequence) = (self.engine.config().vocab, spec.sequence);
        let fits = (1..=self.engine.options().context_tokens as usize).contains(&spec.history.len());
        if !fits || spec.history.iter().any(|token| *token >= vocab) {
            return Room::Never;
        }
        if self.cached.contains_key(&sequence) {
            return Room::Held;
        }
        // The engine's own sampler is not used: it draws from what it has drawn.
        let (sampling, history) = (SamplingParams::greedy(), Vec::new());
        let opened = self.engine.open(SequenceSpec {
            sampling,
            history,
            prompt_tokens: 0,
            query: exo_types::PromptQuery::Nothing,
            ..spec.clone()
        });
        if opened.is_err() {
            return Room::Full;
        }
        self.cached.insert(sequence, Vec::new());
        Room::Held
    }

    /// Reads the text up to its last token, or to what the first guess leaves to be read.
    fn catch_up(
        &mut self,
        spec: &SequenceSpec,
        guesses: bool,
        limits: DraftLimits<'_>,
    ) -> Result<(), StepError> {
        let Some(cached) = self.cached.get_mut(&spec.sequence) else { return Ok(()) };
        let (text, chunk) = (&spec.history, self.engine.options().chunk_tokens_max as usize);
        let same = cached.iter().zip(text).take_while(|(a, b)| a == b).count();
        cached.truncate(same.min(text.len() - 1));
        let left_max = if guesses { NEWS_MAX } else { 1 };
        while text.len() - cached.len() > left_max {
            let end = (text.len() - 1).min(cached.len() + chunk);
            let part = part(&self.engine, spec, cached.len(), &text[cached.len()..end]);
            self.engine.step(&frame(vec![part]), StepInput::Tokens, limits.cancel, limits.deadline)?;
            cached.extend_from_slice(&text[cached.len()..end]);
        }
        Ok(())
    }

    /// One more guess for each run that wants one, in one step. Says whether there was any.
    fn go_on(&mut self, runs: &mut [DraftingSequence], limits: DraftLimits<'_>) -> Result<bool, StepError> {
        let mut wanting: Vec<&mut DraftingSequence> =
            runs.iter_mut().filter(|r| r.drafts.len() < r.count).collect();
        if wanting.is_empty() {
            return Ok(false);
        }
        // Those that must see their logits come first.
        wanting.sort_by_key(|run| run.sampler.is_plain_greedy());
        let news: Vec<Vec<u32>> = wanting.iter().map(|run| self.news(run)).collect();
        let parts = wanting
            .iter()
            .zip(&news)
            .map(|(run, news)| part(&self.engine, &run.spec, run.len() - news.len(), news));
        let frame = frame(parts.collect());
        let wanted = wanted_of(&wanting, &news);
        let (limits, mut failed) = ((limits.cancel, limits.deadline), None);
        self.engine.step_rows(&frame, StepInput::Tokens, &wanted, limits, |index, row| {
            let run = &mut wanting[index];
            let position = run.len() as u64;
            match row.sample(&mut run.sampler, position) {
                Ok(Some(sampled)) => {
                    run.sampler.accept(sampled.token);
                    run.drafts.push(sampled.token);
                }
                Ok(None) => return false,
                Err(source) => failed = Some(StepError::Sample { sequence: run.spec.sequence, source }),
            }
            true
        })?;
        for (run, news) in wanting.iter().zip(news) {
            self.cached.entry(run.spec.sequence).or_default().extend(news);
        }
        failed.map_or(Ok(true), Err)
    }

    /// The tokens of text and guesses that the engine has not read; at least one.
    fn news(&self, run: &DraftingSequence) -> Vec<u32> {
        let cached = self.cached.get(&run.spec.sequence).map_or(0, Vec::len);
        run.spec.history.iter().chain(&run.drafts).skip(cached).copied().collect()
    }
}

/// The last row of each.
fn wanted_of(runs: &[&mut DraftingSequence], news: &[Vec<u32>]) -> OutputRows {
    let ends = news.iter().scan(0, |end, news| {
        *end += news.len() as u32;
        Some(*end - 1)
    });
    let logit_rows = runs.partition_point(|run| !run.sampler.is_plain_greedy());
    OutputRows { rows: ends.collect(), logit_rows, is_uploaded: true }
}

/// A part that is read and not sampled after; positions from `start` on are forgotten first.
fn part(engine: &Engine, spec: &SequenceSpec, start: usize, tokens: &[u32]) -> StepSequence {
    let (sequence, principal, start) = (spec.sequence, spec.principal, start as u32);
    let truncate_to = engine.positions(sequence).filter(|has| *has > start).map(|_| start);
    StepSequence {
        sequence,
        principal,
        start,
        tokens: tokens.to_vec(),
        sample: false,
        drafts: 0,
        truncate_to,
    }
}

fn frame(sequences: Vec<StepSequence>) -> StepFrame {
    StepFrame::unplaced(0, sequences)
}
