//! One forward pass over a batch.

use std::time::{Duration, Instant};

use exo_backend::{Alone, CancelToken, RunError, RunShape};
use exo_types::StepFrame;

use crate::sequence::Row;
use crate::verify::SampledTokens;
use crate::{Engine, Sampled, StepError, StepInput, StepOutput};

/// What a step is allowed: how long it may take, and who may stop it.
#[derive(Clone, Copy)]
pub(crate) struct StepBudget<'a> {
    pub cancel: &'a CancelToken,
    pub started: Instant,
    pub deadline: Duration,
}

impl StepBudget<'_> {
    /// Time that is left, or the error that none is.
    pub fn left(&self) -> Result<Duration, RunError> {
        let left = self.deadline.checked_sub(self.started.elapsed()).filter(|d| !d.is_zero());
        left.ok_or(RunError::Deadline { waited_ms: self.deadline.as_millis() as u64 })
    }
}

/// Rows of a step of which something is wanted.
pub(crate) struct OutputRows {
    pub rows: Vec<u32>,
    /// So many, the first, give their logits; the others the place of the greatest, and their logits only
    /// where these are not all finite.
    pub logit_rows: usize,
    /// Whether the first that fit were uploaded with the step's inputs.
    pub is_uploaded: bool,
}

impl Engine {
    /// Runs one step: all its sequences advance by their tokens, or none does.
    ///
    /// The last stage gives tokens for each sequence that wants some, drawn for the positions after those of
    /// its tokens that are not drafts, or says why there are none; an earlier stage gives hidden rows.
    /// Positions of wrong drafts stay until the sequence is truncated. If the step fails while it runs, what
    /// it truncated stays truncated.
    pub fn step(
        &mut self,
        frame: &StepFrame,
        input: StepInput<'_>,
        cancel: &CancelToken,
        deadline: Duration,
    ) -> Result<StepOutput, StepError> {
        let budget = StepBudget { cancel, started: Instant::now(), deadline };
        self.check_step(frame, input)?;
        self.advance(frame, |engine| {
            if engine.shard.head {
                let wanted = OutputRows {
                    rows: std::mem::take(&mut engine.host.rows),
                    logit_rows: engine.host.logit_rows,
                    is_uploaded: true,
                };
                engine.run_layers(frame, input, &wanted.rows, budget)?;
                let sampled = engine.sample_rows(frame, &wanted, budget);
                engine.host.rows = wanted.rows;
                let mut sampled = sampled?;
                engine.read_prompts(frame, &mut sampled, budget)?;
                Ok(StepOutput::Sampled(sampled))
            } else {
                engine.run_layers(frame, input, &[], budget)?;
                engine.hidden_rows(frame, budget).map(StepOutput::Hidden)
            }
        })
    }

    /// Runs one step like [`Engine::step`], and gives the logits `[T, V]` of all its rows instead of
    /// sampling. For scoring prompts and for tests; only on a stage with the output head.
    pub fn step_logits(
        &mut self,
        frame: &StepFrame,
        input: StepInput<'_>,
        cancel: &CancelToken,
        deadline: Duration,
    ) -> Result<Vec<f32>, StepError> {
        let rows = (0..frame.token_count() as u32).collect();
        let all = OutputRows { rows, logit_rows: usize::MAX, is_uploaded: true };
        let mut logits = Vec::with_capacity(all.rows.len() * self.config.vocab as usize);
        self.step_rows(frame, input, &all, (cancel, deadline), |_, row| {
            if let Row::Logits(row) = row {
                logits.extend_from_slice(row);
            }
            true
        })?;
        Ok(logits)
    }

    /// Runs one step like [`Engine::step`], and shows `see` what it wants of it instead of sampling.
    pub(crate) fn step_rows(
        &mut self,
        frame: &StepFrame,
        input: StepInput<'_>,
        wanted: &OutputRows,
        (cancel, deadline): (&CancelToken, Duration),
        see: impl FnMut(usize, Row<'_>) -> bool,
    ) -> Result<(), StepError> {
        if !self.shard.head {
            return Err(StepError::NoHead);
        }
        let budget = StepBudget { cancel, started: Instant::now(), deadline };
        self.check_step(frame, input)?;
        self.advance(frame, |engine| {
            engine.run_layers(frame, input, &wanted.rows, budget)?;
            engine.for_rows(wanted, frame.token_count(), budget, see)
        })
    }

    /// Truncates, gives out pages and runs `work`. On success every sequence advances, else none keeps a new
    /// page.
    pub(crate) fn advance<T>(
        &mut self,
        frame: &StepFrame,
        work: impl FnOnce(&mut Self) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        for part in &frame.sequences {
            self.set_len(part.sequence, part.start);
        }
        let result = self.take_pages(frame).and_then(|()| {
            self.lay_out(frame);
            work(self)
        });
        for part in &frame.sequences {
            let taken = if result.is_ok() { part.tokens.len() as u32 } else { 0 };
            self.set_len(part.sequence, part.start + taken);
        }
        if result.is_ok() {
            self.steps += 1;
            self.tokens += frame.token_count() as u64;
        }
        result
    }

    /// Gives each sequence the pages its new tokens need. Pages of another principal are overwritten first.
    fn take_pages(&mut self, frame: &StepFrame) -> Result<(), StepError> {
        for part in &frame.sequences {
            let sequence = part.sequence;
            let open = self.sequences.get_mut(&sequence).ok_or(StepError::UnknownSequence { sequence })?;
            let end = part.start + part.tokens.len() as u32;
            let more = end.div_ceil(self.options.page_tokens) as usize - open.pages.len();
            let taken = self.pages.take(more, open.principal)?;
            // Noted before the clearing, which may fail: the pages find their way back with the sequence's.
            open.pages.extend(taken.iter().map(|t| t.page));
            for page in taken {
                if page.must_clear {
                    self.stream.clear_kv(&self.kv, page.page as usize)?;
                }
                self.pages.own(page.page, open.principal);
            }
        }
        Ok(())
    }

    /// Uploads what the step needs and runs the layers. `rows` are those that [`Self::for_rows`] is asked for
    /// behind it: the first go along, since an upload between layers and head would cut the step in two.
    pub(crate) fn run_layers(
        &mut self,
        frame: &StepFrame,
        input: StepInput<'_>,
        rows: &[u32],
        budget: StepBudget<'_>,
    ) -> Result<(), StepError> {
        budget.left()?;
        let (stream, b, host) = (&mut self.stream, &self.buffers, &self.host);
        stream.upload_u32(&b.batch.positions, 0, &host.positions)?;
        stream.upload_u32(&b.batch.sequences, 0, &host.sequences)?;
        stream.upload_u32(&b.batch.page_table, 0, &host.page_table)?;
        match (input, &b.ids) {
            (StepInput::Hidden(hidden), _) => stream.upload_f32(&b.hidden, 0, hidden)?,
            (StepInput::Tokens, Some(ids)) => stream.upload_u32(ids, 0, &host.ids)?,
            (StepInput::Tokens, None) => return Err(StepError::WrongInput { expected: "hidden rows" }),
        }
        if let (Some(head), [_, ..]) = (&b.head, rows) {
            stream.upload_u32(&head.rows, 0, &rows[..rows.len().min(head.rows.len)])?;
        }
        let shape = RunShape { tokens: frame.token_count(), selected: 0 };
        Ok(stream.run(self.layers.as_ref(), shape, &Alone, budget.cancel)?)
    }

    fn hidden_rows(&mut self, frame: &StepFrame, budget: StepBudget<'_>) -> Result<Vec<f32>, StepError> {
        let mut rows = vec![0.0; frame.token_count() * self.config.hidden as usize];
        self.stream.download_f32(&self.buffers.hidden, 0, &mut rows, budget.left()?)?;
        Ok(rows)
    }

    /// Draws tokens for each sequence that wants some. If the step fails, samplers may have taken theirs:
    /// they forget them when the same positions are sampled again.
    fn sample_rows(
        &mut self,
        frame: &StepFrame,
        wanted: &OutputRows,
        budget: StepBudget<'_>,
    ) -> Result<Sampled, StepError> {
        if wanted.rows.is_empty() {
            // A prompt chunk: nothing to draw, but the step must be over, and known to have worked.
            self.stream.synchronize(budget.left()?)?;
            return Ok(Sampled::default());
        }
        let mut runs: Vec<SampledTokens<'_>> =
            frame.sequences.iter().filter(|s| s.sample).map(SampledTokens::new).collect();
        let run_of_row = std::mem::take(&mut self.host.run_of_row);
        let mut sequences = std::mem::take(&mut self.sequences);
        let finished = self.for_rows(wanted, frame.token_count(), budget, |index, row| {
            let run = &mut runs[run_of_row[index]];
            match sequences.get_mut(&run.sequence()).and_then(|s| s.token_sampler.as_mut()) {
                Some(token_sampler) => run.see(token_sampler, row),
                None => true,
            }
        });
        self.sequences = sequences;
        self.host.run_of_row = run_of_row;
        finished?;
        let mut sampled = Sampled::default();
        for run in runs {
            match run.finish() {
                Ok(run) => sampled.runs.push(run),
                Err(failed) => sampled.failed.push(failed),
            }
        }
        Ok(sampled)
    }

    /// Runs the head over the wanted rows of the step's `tokens`, as many at a time as fit, and shows each. A
    /// row whose best token is refused is shown again, with its logits.
    pub(crate) fn for_rows(
        &mut self,
        wanted: &OutputRows,
        tokens: usize,
        budget: StepBudget<'_>,
        mut see: impl FnMut(usize, Row<'_>) -> bool,
    ) -> Result<(), StepError> {
        let (Some(program), Some(buffers)) = (&self.head, &self.buffers.head) else {
            return Err(StepError::NoHead);
        };
        let (vocab, logits) = (self.config.vocab as usize, &mut self.host.logits);
        let mut first = 0;
        for group in wanted.rows.chunks(buffers.rows.len) {
            budget.left()?;
            if first > 0 || !wanted.is_uploaded {
                self.stream.upload_u32(&buffers.rows, 0, group)?;
            }
            let shape = RunShape { tokens, selected: group.len() };
            self.stream.run(program.as_ref(), shape, &Alone, budget.cancel)?;
            let logit_rows = wanted.logit_rows.saturating_sub(first).min(group.len());
            let mut best = vec![0.0; group.len() - logit_rows];
            let coming = match best.len() {
                0 => None,
                len => Some(self.stream.download_later(&buffers.best, logit_rows, len)?),
            };
            if logit_rows > 0 {
                let all = 0..logit_rows * vocab;
                self.stream.show_f32(&buffers.logits, all, logits, budget.left()?, &mut |all| {
                    for (i, row) in all.chunks_exact(vocab).enumerate() {
                        see(first + i, Row::Logits(row));
                    }
                })?;
            }
            if let Some(coming) = coming {
                coming.finish(&mut best, budget.left()?)?;
            }
            for (i, place) in (logit_rows..).zip(best) {
                if place < 0.0 || !see(first + i, Row::Best(place as u32)) {
                    // Whoever looks at them says which is not finite, or which the grammar takes.
                    self.logit_rows_read += 1;
                    let row = i * vocab..(i + 1) * vocab;
                    self.stream.show_f32(&buffers.logits, row, logits, budget.left()?, &mut |row| {
                        see(first + i, Row::Logits(row));
                    })?;
                }
            }
            first += group.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use exo_backend_cpu::{CpuDevice, CpuOptions};
    use exo_golden::Fixture;
    use exo_types::{
        NodeId, Principal, PromptQuery, RequestId, SamplingParams, SequenceId, SequenceSpec, Shard,
        StepSequence,
    };

    use super::*;
    use crate::EngineOptions;

    const PAGE_TOKENS: u32 = 8;

    /// An engine of a single page, so that everybody gets the same one.
    fn engine() -> Engine {
        let model = exo_formats::open(&Fixture::load("qwen3-f16").gguf()).unwrap();
        let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let options = EngineOptions { page_tokens: PAGE_TOKENS, ..EngineOptions::new(PAGE_TOKENS, 1) };
        Engine::load(device, &model, Shard::whole(model.config.layers), options, &mut |_| {}).unwrap()
    }

    /// Opens a sequence, and gives the step that computes `tokens` for it.
    fn opened(engine: &mut Engine, principal: Principal, tokens: &[u32]) -> StepFrame {
        let sequence = SequenceId { request: RequestId(1), index: 0 };
        let (driver, sampling) = (NodeId([0; 32]), SamplingParams::greedy());
        let history = Vec::new();
        engine
            .open(SequenceSpec {
                sequence,
                principal,
                driver,
                sampling,
                history,
                prompt_tokens: 0,
                query: PromptQuery::Nothing,
            })
            .unwrap();
        let tokens = tokens.to_vec();
        let (start, sample, drafts, truncate_to) = (0, false, 0, None);
        let part = StepSequence { sequence, principal, start, tokens, sample, drafts, truncate_to };
        StepFrame::unplaced(0, vec![part])
    }

    /// Runs `tokens` for `principal` and gives, per slot of the page in the last layer, whether anything is
    /// in it.
    fn slots_used_after(engine: &mut Engine, principal: Principal, tokens: &[u32]) -> Vec<bool> {
        let frame = opened(engine, principal, tokens);
        engine.step(&frame, StepInput::Tokens, &CancelToken::default(), Duration::from_secs(60)).unwrap();
        engine.close(frame.sequences[0].sequence).unwrap();
        let page = engine.stream.export_kv(&engine.kv, engine.kv.shape.layers - 1, 0).unwrap();
        let (slots, d) = (PAGE_TOKENS as usize, engine.kv.shape.head_dim);
        let used = |slot| page.chunks_exact(slots * d).any(|h| h[slot * d..][..d].iter().any(|v| *v != 0.0));
        (0..slots).map(used).collect()
    }

    #[test]
    fn logits_of_a_processor_are_looked_at_where_they_are() {
        let mut engine = engine();
        let frame = opened(&mut engine, Principal([1; 16]), &[5, 6]);
        let (cancel, deadline) = (CancelToken::default(), Duration::from_secs(60));
        let logits = engine.step_logits(&frame, StepInput::Tokens, &cancel, deadline).unwrap();
        assert_eq!(logits.len(), 2 * engine.config.vocab as usize);
        assert!(engine.host.logits.is_empty(), "none is copied on its way to who looks at it");
    }

    #[test]
    fn a_freed_page_is_cleared_before_another_principal_gets_it() {
        let (mut engine, [a, b]) = (engine(), [Principal([1; 16]), Principal([2; 16])]);
        assert_eq!(slots_used_after(&mut engine, a, &[5; 8]), [true; 8]);
        let mut only_first = [false; 8];
        only_first[0] = true;
        assert_eq!(slots_used_after(&mut engine, b, &[5]), only_first);
        // To its own owner a page may come back as it was: nothing before a sequence's positions is ever
        // read.
        assert_eq!(slots_used_after(&mut engine, b, &[5, 6]).iter().filter(|u| **u).count(), 2);
    }
}
