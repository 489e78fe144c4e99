//! Shows the folds of prompts ([`PromptFold`]) the rows of a step, and adds their reports to first tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_backend::{Alone, RunShape};
use exo_sampler::SampleError;
use exo_types::{PromptQuery, SequenceId, StepFrame};

use crate::prompt::PromptFold;
use crate::sequence::Row;
use crate::step::{OutputRows, StepBudget};
use crate::{Engine, Sampled, StepError};

/// Sequences of whose prompts nothing can be said.
type Failed = BTreeMap<SequenceId, SampleError>;

/// A row of a step that a fold is to be shown.
#[derive(Clone, Copy, Debug)]
struct PromptRow {
    sequence: SequenceId,
    position: u32,
}

impl Engine {
    /// Shows the folds of the step's sequences their rows, once all else of the step has worked, and adds the
    /// reports of prompts that are through to their first tokens.
    pub(crate) fn read_prompts(
        &mut self,
        frame: &StepFrame,
        sampled: &mut Sampled,
        budget: StepBudget<'_>,
    ) -> Result<(), StepError> {
        let mut folds: BTreeMap<SequenceId, PromptFold> = BTreeMap::new();
        let (mut scored, mut pooled) = (Vec::new(), Vec::new());
        let mut first = 0;
        for part in &frame.sequences {
            let sequence = part.sequence;
            if let Some(fold) = self.sequences.get(&sequence).and_then(|open| open.prompt.as_ref()) {
                if fold.query.needs_all_rows() && part.start != fold.position {
                    let (expected, got) = (fold.position, part.start);
                    return Err(StepError::PositionGap { sequence, expected, got });
                }
                let rows = fold
                    .positions(part)
                    .map(|position| (first + position - part.start, PromptRow { sequence, position }));
                match fold.query {
                    PromptQuery::Embedding(_) => pooled.extend(rows),
                    PromptQuery::Scores | PromptQuery::Nothing => scored.extend(rows),
                }
                folds.insert(sequence, PromptFold { position: part.end(), ..fold.clone() });
            }
            first += part.tokens.len() as u32;
        }
        if folds.is_empty() {
            return Ok(());
        }
        let mut failed = self.score_rows(&scored, frame.token_count(), &mut folds, budget)?;
        failed.append(&mut self.pool_rows(&pooled, frame.token_count(), &mut folds, budget)?);
        for (sequence, fold) in folds {
            let Some(open) = self.sequences.get_mut(&sequence) else { continue };
            if let Some(error) = failed.remove(&sequence) {
                open.prompt = None;
                sampled.runs.retain(|(of, _)| *of != sequence);
                if sampled.failed.iter().all(|(of, _)| *of != sequence) {
                    sampled.failed.push((sequence, error));
                }
                continue;
            }
            if fold.position < fold.prompt_tokens {
                open.prompt = Some(fold);
                continue;
            }
            open.prompt = None;
            let run = sampled.runs.iter_mut().find(|(of, _)| *of == sequence);
            if let Some(token) = run.and_then(|(_, tokens)| tokens.first_mut()) {
                token.prompt = Some(Arc::new(fold.report()));
            }
        }
        Ok(())
    }

    fn score_rows(
        &mut self,
        rows: &[(u32, PromptRow)],
        tokens: usize,
        folds: &mut BTreeMap<SequenceId, PromptFold>,
        budget: StepBudget<'_>,
    ) -> Result<Failed, StepError> {
        if rows.is_empty() {
            return Ok(Failed::new());
        }
        let wanted = OutputRows {
            rows: rows.iter().map(|(row, _)| *row).collect(),
            logit_rows: usize::MAX,
            is_uploaded: false,
        };
        let sequences = std::mem::take(&mut self.sequences);
        let mut failed = Failed::new();
        let done = self.for_rows(&wanted, tokens, budget, |index, row| {
            let PromptRow { sequence, position } = rows[index].1;
            let next =
                sequences.get(&sequence).and_then(|open| open.token_sampler.as_ref()?.token(position + 1));
            if let (Row::Logits(logits), Some(next), Some(fold)) = (row, next, folds.get_mut(&sequence)) {
                match exo_sampler::score(logits, next, fold.top) {
                    Ok(score) => fold.scores.push(score),
                    Err(error) => {
                        failed.entry(sequence).or_insert(error);
                    }
                }
            }
            true
        });
        self.sequences = sequences;
        done?;
        Ok(failed)
    }

    /// Adds rows behind the last norm, as many at a time as the head's buffers hold.
    fn pool_rows(
        &mut self,
        rows: &[(u32, PromptRow)],
        tokens: usize,
        folds: &mut BTreeMap<SequenceId, PromptFold>,
        budget: StepBudget<'_>,
    ) -> Result<Failed, StepError> {
        let (Some(program), Some(buffers)) = (&self.norm, &self.buffers.head) else {
            return Err(StepError::NoHead);
        };
        let hidden = self.config.hidden as usize;
        let (mut values, mut failed) = (Vec::new(), Failed::new());
        for group in rows.chunks(buffers.rows.len) {
            let places: Vec<u32> = group.iter().map(|(row, _)| *row).collect();
            self.stream.upload_u32(&buffers.rows, 0, &places)?;
            let shape = RunShape { tokens, selected: group.len() };
            self.stream.run(program.as_ref(), shape, &Alone, budget.cancel)?;
            values.resize(group.len() * hidden, 0.0);
            self.stream.download_f32(&buffers.selected, 0, &mut values, budget.left()?)?;
            for ((_, PromptRow { sequence, .. }), row) in group.iter().zip(values.chunks_exact(hidden)) {
                if let Some(index) = row.iter().position(|value| !value.is_finite()) {
                    let error = SampleError::NotFinite { token: index as u32, value: row[index] };
                    failed.entry(*sequence).or_insert(error);
                } else if let Some(fold) = folds.get_mut(sequence) {
                    fold.add(row);
                }
            }
        }
        Ok(failed)
    }
}
