//! Asking a device something whose answer is known, before it is trusted with anybody's question.
//!
//! The built-in model answers its known prompts, all at once, and then reads them back with their answers.
//! That runs the kernels of prefill and decode with one row and with many, on every layer, over several pages
//! of keys and values; one wrong sum shows in the words. The answers are those of the processor, and none of
//! their words was a near thing.

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{CancelToken, Device};
use exo_engine::{Engine, EngineOptions, LoadError, SequenceError, StepError, StepInput, StepOutput};
use exo_formats::Model;
use exo_tokenizer::Tokenizer;
use exo_types::{
    NodeId, Principal, PromptQuery, RequestId, SamplingParams, SequenceId, SequenceSpec, Shard, StepFrame,
    StepSequence,
};
use serde::Deserialize;

use crate::DEMO_MODEL;

const EXPECTED: &str = include_str!("../../../demo-model/expected.json");
/// Between the logit of each word of an answer and the next best: no sum in another order makes up for that.
const GAP_MIN: f64 = 5.0;
/// Answers that are asked for: with these two a step has from 1 to 77 rows, and a sequence more than a page.
const ANSWERS: usize = 2;
const STEP_MAX: Duration = Duration::from_secs(30);
const PRINCIPAL: Principal = Principal([0; 16]);

#[derive(Deserialize)]
struct Expected {
    greedy: Vec<KnownAnswer>,
}

/// A prompt and its answer.
#[derive(Deserialize)]
struct KnownAnswer {
    prompt_ids: Vec<u32>,
    answer_ids: Vec<u32>,
    logit_gap_min: f64,
}

/// A device could not be asked, which says nothing of its answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// They are part of the program.
    #[error("demo-model/expected.json is not what the trial reads")]
    Known(#[source] serde_json::Error),
    /// The same.
    #[error("the known answers of the built-in model are empty, or none is certain enough")]
    NoneCertain,
    /// It is part of the program.
    #[error("the built-in model cannot be read")]
    Model(#[source] exo_formats::OpenError),
    /// It is part of the program.
    #[error("the tokenizer of the built-in model cannot be read")]
    Tokenizer(#[source] exo_tokenizer::TokenizerError),
    /// Somebody has filled its memory, say.
    #[error("it could not load the built-in model")]
    Load(#[source] LoadError),
}

/// What went wrong while it answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("it could not take a sequence of the built-in model")]
    Sequence(#[from] SequenceError),
    #[error("it could not compute a step of the built-in model")]
    Step(#[from] StepError),
    #[error("a whole model gave hidden rows")]
    Hidden,
}

pub(crate) fn demo_model() -> Result<Model, TrialError> {
    exo_formats::open_gguf_bytes("demo", DEMO_MODEL.to_vec()).map_err(TrialError::Model)
}

/// Asks `device`. `Some` is what it did instead of answering rightly.
pub fn run(device: Arc<dyn Device>) -> Result<Option<String>, TrialError> {
    let expected: Expected = serde_json::from_str(EXPECTED).map_err(TrialError::Known)?;
    let certain = expected.greedy.into_iter().filter(|known| known.logit_gap_min >= GAP_MIN);
    let known: Vec<KnownAnswer> = certain.take(ANSWERS).collect();
    let mut model = demo_model()?;
    let tokenizer = Tokenizer::from_source(&model.take_tokenizer()).map_err(TrialError::Tokenizer)?;
    let longest = known.iter().map(|k| k.prompt_ids.len() + k.answer_ids.len()).max();
    let longest = longest.filter(|_| known.iter().all(|known| !known.answer_ids.is_empty()));
    let longest = longest.ok_or(TrialError::NoneCertain)?;
    let options = EngineOptions::new(longest as u32, known.len() as u32);
    let shard = Shard::whole(model.config.layers);
    let engine = Engine::load(device, &model, shard, options, &mut |_| {}).map_err(TrialError::Load)?;
    let mut asker = Asker { engine, step: 0 };
    let wrong = asker.answer(&known).and_then(|wrong| match wrong {
        None => asker.read_back(&known),
        wrong => Ok(wrong),
    });
    let text = |ids: &[u32]| tokenizer.decode(ids, true).unwrap_or_else(|_| format!("{ids:?}"));
    Ok(match wrong {
        Ok(None) => None,
        Ok(Some((given, expected))) => Some(format!(
            "it gave another text than the processor: `{}` instead of `{}`",
            text(&given),
            text(&expected)
        )),
        Err(error) => Some(crate::chain(&error)),
    })
}

/// What was given, and what should have been.
type Wrong = Option<(Vec<u32>, Vec<u32>)>;

/// Drives an engine without a scheduler.
pub(crate) struct Asker {
    pub(crate) engine: Engine,
    pub(crate) step: u64,
}

impl Asker {
    /// Answers all prompts at once.
    fn answer(&mut self, known: &[KnownAnswer]) -> Result<Wrong, AnswerError> {
        let prompts: Vec<Vec<u32>> = known.iter().map(|k| k.prompt_ids.clone()).collect();
        self.open(&prompts)?;
        let mut parts: Vec<StepSequence> =
            prompts.into_iter().enumerate().map(|(index, prompt)| part(index, 0, prompt)).collect();
        let mut given = vec![Vec::new(); known.len()];
        while !parts.is_empty() {
            for (index, token) in self.step(parts)? {
                given[index].push(token);
            }
            let is_open = |index: &usize| given[*index].len() < known[*index].answer_ids.len();
            let next = |index: usize| {
                let position = known[index].prompt_ids.len() + given[index].len() - 1;
                let last = given[index].last().copied().unwrap_or_default();
                part(index, position as u32, vec![last])
            };
            parts = (0..known.len()).filter(is_open).map(next).collect();
        }
        let both = given.into_iter().zip(known).map(|(given, known)| (given, known.answer_ids.clone()));
        Ok(both.into_iter().find(|(given, expected)| given != expected))
    }

    /// Reads each prompt with its answer but for the last word, all in one step, and gives that word.
    fn read_back(&mut self, known: &[KnownAnswer]) -> Result<Wrong, AnswerError> {
        let but_last = |known: &KnownAnswer| {
            let answer = known.answer_ids.split_last().map_or(&[][..], |(_, answer)| answer);
            [&known.prompt_ids, answer].concat()
        };
        let texts: Vec<Vec<u32>> = known.iter().map(but_last).collect();
        self.open(&texts)?;
        let parts = texts.into_iter().enumerate().map(|(index, text)| part(index, 0, text)).collect();
        let last = self.step(parts)?;
        let both = last.into_iter().map(|(index, token)| {
            let expected = known[index].answer_ids.last().copied();
            (vec![token], expected.into_iter().collect::<Vec<_>>())
        });
        Ok(both.into_iter().find(|(given, expected)| given != expected))
    }

    /// Closes what is open and opens a sequence for each text.
    pub(crate) fn open(&mut self, texts: &[Vec<u32>]) -> Result<(), AnswerError> {
        for (index, text) in texts.iter().enumerate() {
            if self.engine.positions(sequence(index)).is_some() {
                self.engine.close(sequence(index))?;
            }
            self.engine.open(SequenceSpec {
                sequence: sequence(index),
                principal: PRINCIPAL,
                driver: NodeId([0; 32]),
                sampling: SamplingParams::greedy(),
                history: text.clone(),
                prompt_tokens: text.len() as u32,
                query: PromptQuery::Nothing,
            })?;
        }
        Ok(())
    }

    /// Runs one step and gives the token drawn for each part.
    pub(crate) fn step(&mut self, sequences: Vec<StepSequence>) -> Result<Vec<(usize, u32)>, AnswerError> {
        self.step += 1;
        let indices: Vec<usize> = sequences.iter().map(|part| part.sequence.request.0 as usize).collect();
        let frame = StepFrame::unplaced(self.step, sequences);
        let output = self.engine.step(&frame, StepInput::Tokens, &CancelToken::default(), STEP_MAX);
        let StepOutput::Sampled(drawn) = output? else { return Err(AnswerError::Hidden) };
        let tokens = drawn.all()?.into_iter().filter_map(|(_, tokens)| Some(tokens.first()?.token));
        Ok(indices.into_iter().zip(tokens).collect())
    }
}

fn sequence(index: usize) -> SequenceId {
    SequenceId { request: RequestId(index as u128), index: 0 }
}

pub(crate) fn part(index: usize, start: u32, tokens: Vec<u32>) -> StepSequence {
    let (sequence, drafts) = (sequence(index), 0);
    StepSequence { sequence, principal: PRINCIPAL, start, tokens, sample: true, drafts, truncate_to: None }
}

#[cfg(test)]
mod tests {
    use exo_backend_cpu::{CpuDevice, CpuOptions};

    use super::*;

    #[test]
    fn the_processor_gives_its_own_answers_on_every_instruction_set() {
        for isa in exo_backend_cpu::Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let options = CpuOptions { isa: Some(isa), ..CpuOptions::default() };
            run(CpuDevice::open(options).unwrap()).unwrap();
        }
    }
}
