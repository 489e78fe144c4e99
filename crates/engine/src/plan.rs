//! Looks at a step before anything is done about it, and lays out what it uploads.

use exo_types::{StepFrame, StepSequence};

use crate::{Engine, StepError, StepInput};

impl Engine {
    /// Whether the step can be done, as far as can be known before doing it. Changes nothing.
    pub(crate) fn check_step(&self, frame: &StepFrame, input: StepInput<'_>) -> Result<(), StepError> {
        let (tokens, max) = (frame.token_count(), self.options.chunk_tokens_max as usize);
        if tokens == 0 {
            return Err(StepError::Empty { sequence: None });
        }
        if tokens > max {
            return Err(StepError::TooManyTokens { tokens, max });
        }
        self.check_input(input, tokens)?;
        let (mut needed, mut free) = (0, self.pages.free_count());
        for (i, part) in frame.sequences.iter().enumerate() {
            if frame.sequences[..i].iter().any(|other| other.sequence == part.sequence) {
                return Err(StepError::DuplicateSequence { sequence: part.sequence });
            }
            let (more, freed) = self.check_part(part)?;
            needed += more;
            free += freed;
        }
        if needed > free { Err(StepError::OutOfPages { needed, free }) } else { Ok(()) }
    }

    fn check_input(&self, input: StepInput<'_>, tokens: usize) -> Result<(), StepError> {
        match (input, self.shard.embedding) {
            (StepInput::Tokens, true) => Ok(()),
            (StepInput::Hidden(rows), false) => {
                let hidden = self.config.hidden as usize;
                let (got, expected) = (rows.len(), tokens * hidden);
                if got != expected {
                    return Err(StepError::HiddenLength { got, expected, tokens, hidden });
                }
                Ok(())
            }
            (_, true) => Err(StepError::WrongInput { expected: "token ids" }),
            (_, false) => Err(StepError::WrongInput { expected: "hidden rows" }),
        }
    }

    /// Checks one sequence's part. Returns the pages it takes, and those its truncation frees before.
    fn check_part(&self, part: &StepSequence) -> Result<(usize, usize), StepError> {
        let sequence = part.sequence;
        let open = self.sequences.get(&sequence).ok_or(StepError::UnknownSequence { sequence })?;
        if open.principal != part.principal {
            return Err(StepError::PrincipalMismatch { sequence });
        }
        if part.tokens.is_empty() {
            return Err(StepError::Empty { sequence: Some(sequence) });
        }
        let (has, to) = (open.len, part.truncate_to.unwrap_or(open.len));
        if to > has {
            return Err(StepError::TruncateBeyondEnd { sequence, has, to });
        }
        if part.start != to {
            return Err(StepError::PositionGap { sequence, expected: to, got: part.start });
        }
        let (tokens, context_tokens) =
            (u64::from(part.start) + part.tokens.len() as u64, self.options.context_tokens);
        if tokens > u64::from(context_tokens) {
            return Err(StepError::ContextExceeded { sequence, tokens, context_tokens });
        }
        if part.drafts > 0 && (!part.sample || part.drafts as usize >= part.tokens.len()) {
            let (drafts, tokens) = (part.drafts, part.tokens.len());
            return Err(StepError::Drafts { sequence, drafts, tokens, sample: part.sample });
        }
        let position = part.sample_position();
        if let Some(token_sampler) = &open.token_sampler
            && part.sample
            && token_sampler.known() < position as usize
        {
            return Err(StepError::HistoryIncomplete { sequence, known: token_sampler.known(), position });
        }
        let vocab = self.config.vocab;
        if self.shard.embedding
            && let Some(&token) = part.tokens.iter().find(|t| **t >= vocab)
        {
            return Err(StepError::TokenOutOfRange { token, vocab });
        }
        let page_tokens = self.options.page_tokens;
        let pages = |positions: u32| positions.div_ceil(page_tokens) as usize;
        // What is written must be no one else's: the page that `start` lies in, if it does not begin one.
        let written = (!part.start.is_multiple_of(page_tokens)).then(|| open.pages[pages(part.start) - 1]);
        if written.is_some_and(|page| !self.pages.is_exclusive(page)) {
            return Err(StepError::SharedPage { sequence, position: part.start });
        }
        let freed = open.pages[pages(part.start)..].iter().filter(|page| self.pages.is_exclusive(**page));
        Ok((pages(tokens as u32) - pages(part.start), freed.count()))
    }

    /// Lays the step out for upload. Every sequence holds its pages already.
    pub(crate) fn lay_out(&mut self, frame: &StepFrame) {
        self.host.clear();
        let columns = self.buffers.batch.pages_per_sequence;
        let (mut by_best, mut runs) = (Vec::new(), 0..);
        for (index, part) in frame.sequences.iter().enumerate() {
            let count = part.tokens.len() as u32;
            self.host.positions.extend(part.start..part.start + count);
            self.host.sequences.extend(part.tokens.iter().map(|_| index as u32));
            if self.shard.embedding {
                self.host.ids.extend(&part.tokens);
            }
            let open = self.sequences.get(&part.sequence);
            self.host.page_table.extend(open.map_or(&[][..], |s| &s.pages));
            self.host.page_table.resize((index + 1) * columns, 0);
            if part.sample {
                let end = self.host.positions.len() as u32;
                let rows =
                    (end - 1 - part.drafts..end).zip(std::iter::repeat(runs.next().unwrap_or_default()));
                match open
                    .and_then(|s| s.token_sampler.as_ref())
                    .is_some_and(|token_sampler| token_sampler.asks_logits())
                {
                    true => self.host.sample(rows),
                    false => by_best.extend(rows),
                }
            }
        }
        self.host.logit_rows = self.host.rows.len();
        self.host.sample(by_best);
    }
}
