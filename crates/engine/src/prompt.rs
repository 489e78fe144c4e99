//! What is asked of a prompt beside a continuation: how likely its tokens were, or one vector for all of it.
//!
//! A sequence that asks has a [`PromptFold`] on the stage with the head. Each step shows it the rows of its
//! chunk; the report goes with the first token behind the prompt. A fold takes rows in the order of positions
//! and only of steps that worked, so however the prompt is cut, batched or split, the report is the same.

use std::ops::Range;

use exo_types::{Pooling, PromptQuery, PromptReport, SequenceSpec, StepSequence, TokenScore};

/// What has been seen of a prompt that something is asked of.
#[derive(Clone, Debug)]
pub(crate) struct PromptFold {
    pub query: PromptQuery,
    pub prompt_tokens: u32,
    /// Likeliest tokens of each score.
    pub top: usize,
    /// Positions taken in.
    pub position: u32,
    pub scores: Vec<TokenScore>,
    /// `[C]`: the sum of the rows that count.
    pub sum: Vec<f64>,
    /// So many.
    pub rows: u32,
}

impl PromptFold {
    /// For a sequence that begins behind `start` cached positions; `None` if nothing is asked.
    pub fn new(spec: &SequenceSpec, start: u32) -> Option<Self> {
        let query = spec.open_query();
        let top = spec.sampling.logprobs.map_or(0, usize::from);
        let (prompt_tokens, position) = (spec.prompt_tokens, start);
        let (scores, sum, rows) = (Vec::new(), Vec::new(), 0);
        let fold = Self { query, prompt_tokens, top, position, scores, sum, rows };
        (query != PromptQuery::Nothing).then_some(fold)
    }

    /// Positions of `part` whose rows it must see.
    pub fn positions(&self, part: &StepSequence) -> Range<u32> {
        let (start, end, last) = (part.start, part.end(), self.prompt_tokens.saturating_sub(1));
        match self.query {
            PromptQuery::Nothing => start..start,
            // Behind the last token of the prompt stands none that could be scored.
            PromptQuery::Scores => start..end.min(last),
            PromptQuery::Embedding(Pooling::First) => start..end.min(1),
            PromptQuery::Embedding(Pooling::Mean) => start..end.min(self.prompt_tokens),
            PromptQuery::Embedding(Pooling::Last) => start.max(last)..end.min(self.prompt_tokens),
        }
    }

    pub fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        for (sum, value) in self.sum.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
        self.rows += 1;
    }

    pub fn report(self) -> PromptReport {
        match self.query {
            PromptQuery::Embedding(_) => {
                let rows = f64::from(self.rows.max(1));
                PromptReport::Embedding(self.sum.into_iter().map(|sum| (sum / rows) as f32).collect())
            }
            PromptQuery::Scores | PromptQuery::Nothing => PromptReport::Scores(self.scores),
        }
    }
}
