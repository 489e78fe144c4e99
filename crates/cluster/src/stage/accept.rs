//! A step arrives: order, commands, batch, rows; then the engine gets it.

use std::collections::BTreeSet;

use bytes::Bytes;
use exo_types::{Attempt, NodeId, PageKey, SequenceId, SequenceSpec, StepFrame, StepSequence, Time};

use super::finish::no_value;
use super::{Computing, Open, StageGeometry, StageMachine, StageOutput};
use crate::page_chain::PageChain;
use crate::wire::{PageFault, PipelineBreak, SequenceFault, StageCommand, StagePages, StepMessage};

impl StageMachine {
    pub(super) fn arrive(
        &mut self,
        from: NodeId,
        mut message: StepMessage,
        out: &mut Vec<StageOutput>,
    ) -> Result<(), PipelineBreak> {
        if from != self.upstream() || message.stage as usize != self.index {
            let upstream = self.upstream();
            tracing::trace!(%from, %upstream, got = message.stage, own = self.index, "a step of nobody who feeds this stage");
            return Ok(());
        }
        let (got, serving) = (message.frame.placement, self.placement.id);
        if got != serving {
            tracing::trace!(%from, %got, %serving, step = message.frame.step, "a step of another placement");
            return Ok(());
        }
        self.offer(&mut message);
        if !self.follows(from, &message, out) {
            return Ok(());
        }
        // Before it waits: rows are by far the most of it.
        let tokens = message.frame.token_count();
        let takes_rows = self.index > 0 && self.computes(message.rebuilds);
        let expected_bytes = if takes_rows { self.rows_bytes(tokens) } else { 0 } as u64;
        let (step, got_bytes) = (message.frame.step, message.rows.len() as u64);
        if got_bytes != expected_bytes {
            return Err(PipelineBreak::Rows { step, got_bytes, expected_bytes });
        }
        let (got, expected) =
            (message.frame.step, self.waiting.back().map_or(self.step_next, |last| last.frame.step + 1));
        if got == 0 {
            return self.arrive_first(message, expected);
        }
        if got < expected {
            tracing::trace!(%serving, got, expected, "a step that came again");
            return Ok(());
        }
        if got > expected {
            return Err(PipelineBreak::Order { got, expected });
        }
        // The scheduler keeps one step per stage in flight: more than that is a peer filling our memory.
        let (waiting, stages) = (self.waiting.len() as u64 + 1, self.placement.stages.len() as u64);
        if waiting > stages {
            return Err(PipelineBreak::TooMany { waiting, stages });
        }
        self.waiting.push_back(message);
        Ok(())
    }

    /// Step 0 came, perhaps again: the scheduler repeats it until one comes back, and then begins with
    /// step 1. Behind that it is another scheduler's, which knows nothing of what is open here.
    fn arrive_first(&mut self, message: StepMessage, expected: u64) -> Result<(), PipelineBreak> {
        // Its own scheduler names all that is kept here, each time.
        let named: BTreeSet<PageKey> = message.kept.iter().copied().collect();
        let is_of_another = self.kept.keys().any(|key| !named.contains(key));
        if expected > 1 || is_of_another {
            return Err(PipelineBreak::Order { got: 0, expected });
        }
        let (got, in_front) = (message.pages.len() as u64, self.index as u64);
        if got != in_front {
            return Err(PipelineBreak::Pages { got, expected: in_front });
        }
        if self.waiting.is_empty() {
            self.waiting.push_back(message);
        } else {
            tracing::trace!(got = 0, expected, "step 0 waits already");
        }
        Ok(())
    }

    /// Gives the engine the next step, if it has none and one is there.
    pub(super) fn start_next(&mut self, now: Time, out: &mut Vec<StageOutput>) -> Result<(), PipelineBreak> {
        if self.rewiring || self.computing.is_some() {
            return Ok(());
        }
        let Some(message) = self.waiting.pop_front() else { return Ok(()) };
        let StepMessage {
            commands,
            mut frame,
            failures,
            mut pages,
            mut kept,
            mut rebuilds,
            computed_us,
            rows,
            ..
        } = message;
        let step = frame.step;
        self.step_next = step + 1;
        if step == 0 {
            let StageGeometry { pages: own, page_tokens, .. } = self.geometry;
            pages.push(StagePages { pages: own, page_tokens });
            self.find_lacking(&mut kept, &mut rebuilds);
        } else if rebuilds.is_some() && rebuilds != self.rebuilds {
            return Err(PipelineBreak::Rebuilds { step });
        }
        let mut own = Vec::with_capacity(commands.len());
        for command in &commands {
            own.extend(self.command(step, command)?);
        }
        let is_computed = self.computes(rebuilds);
        for part in &frame.sequences {
            if is_computed { self.advance(step, part)? } else { self.check_held(step, part)? }
        }
        let mut rows = self.without_lost(&frame.sequences, rows);
        frame.sequences.retain(|s| !self.is_lost(s));
        let passed = if is_computed { None } else { Some(self.rows_of(step, &frame.sequences)?) };
        let drivers = self.drivers(&frame);
        let mut coming = Computing {
            commands,
            frame,
            failures,
            pages,
            kept,
            computed_us,
            began: now,
            drivers,
            rebuilds,
            passed,
        };
        // An honest stage sends none: it has looked at what its device gave.
        if let Some(at) = no_value(&rows) {
            self.refuse_rows(&mut coming, at, out);
            rows = Bytes::new();
        }
        let mut frame = coming.frame.clone();
        if !is_computed {
            frame.sequences.clear();
        }
        out.push(StageOutput::Compute { commands: own, frame, rows });
        self.computing = Some(coming);
        Ok(())
    }

    /// Drivers of a frame's sequences, in its order.
    fn drivers(&self, frame: &StepFrame) -> Vec<NodeId> {
        frame.sequences.iter().filter_map(|s| Some(self.open.get(&s.sequence)?.driver)).collect()
    }

    /// Takes in a command, and gives what of it is for the engine here.
    fn command(&mut self, step: u64, command: &StageCommand) -> Result<Option<StageCommand>, PipelineBreak> {
        let wrong = |fault, sequence| Err(PipelineBreak::Sequence { step, fault, sequence });
        match command {
            StageCommand::Open { spec, .. } if self.open.contains_key(&spec.sequence) => {
                wrong(SequenceFault::OpensAgain, spec.sequence)
            }
            StageCommand::Open { spec, .. } if self.open.len() >= self.placement.slots as usize => {
                wrong(SequenceFault::NoSlot, spec.sequence)
            }
            StageCommand::Open { spec, attempt, cached } => {
                let here = self.open(step, spec, *attempt, cached)?;
                let (spec, cached) = (spec.clone(), cached[..here].to_vec());
                Ok(Some(StageCommand::Open { spec, attempt: *attempt, cached }))
            }
            StageCommand::Keep { sequence, pages } => {
                let pages = self.keep(step, *sequence, pages)?;
                Ok((!pages.is_empty()).then_some(StageCommand::Keep { sequence: *sequence, pages }))
            }
            StageCommand::Forget(keys) => {
                let mut here = Vec::with_capacity(keys.len());
                for &key in keys {
                    if self.lacking.remove(&key) {
                        continue;
                    }
                    if self.kept.remove(&key).is_none() {
                        let fault = PageFault::ForgetsUnkept;
                        return Err(PipelineBreak::Page { step, fault, key });
                    }
                    self.rows.forget(key);
                    here.push(key);
                }
                Ok((!here.is_empty()).then_some(StageCommand::Forget(here)))
            }
            StageCommand::Close(sequence) => match self.open.remove(sequence) {
                Some(_) => {
                    self.begun.remove(sequence);
                    self.rows.close(*sequence);
                    Ok(Some(command.clone()))
                }
                None => wrong(SequenceFault::ClosesUnknown, *sequence),
            },
        }
    }

    /// Opens a sequence that begins with kept pages of its own content. Gives how many of them, the first,
    /// are here: it begins with these, and the others are rebuilt.
    fn open(
        &mut self,
        step: u64,
        spec: &SequenceSpec,
        attempt: Attempt,
        cached: &[PageKey],
    ) -> Result<usize, PipelineBreak> {
        let page_tokens = self.geometry.page_tokens;
        let Some(begin) = spec.history.get(..cached.len() * page_tokens as usize) else {
            let (fault, sequence) = (SequenceFault::BeginsBehindHistory, spec.sequence);
            return Err(PipelineBreak::Sequence { step, fault, sequence });
        };
        let (principal, driver) = (spec.principal, spec.driver);
        let mut chain = PageChain::new(&self.placement, principal, page_tokens, begin);
        let here = cached.iter().take_while(|key| self.kept.contains_key(*key)).count();
        for (index, &key) in cached.iter().enumerate() {
            let fault = match self.kept.get(&key) {
                Some(&hash) if index < here && chain.get(index) == Some(hash) => continue,
                Some(_) if index < here => PageFault::OpensOther,
                None if self.lacking.contains(&key) => continue,
                Some(_) | None => PageFault::OpensUnkept,
            };
            return Err(PipelineBreak::Page { step, fault, key });
        }
        chain.truncate(here);
        let tokens = begin[..here * page_tokens as usize].to_vec();
        let prompt = prompt_hash(spec);
        self.open
            .insert(spec.sequence, Open { principal, attempt, driver, prompt, tokens, chain, lost: false });
        self.rows.open(spec.sequence, cached);
        if self.rebuilds.is_some() {
            self.begun.insert(spec.sequence, cached.to_vec());
        }
        Ok(here)
    }

    /// Gives the pages that are not kept here yet: of those that some stages rebuilt, the others have all.
    fn keep(
        &mut self,
        step: u64,
        sequence: SequenceId,
        pages: &[(u32, PageKey)],
    ) -> Result<Vec<(u32, PageKey)>, PipelineBreak> {
        let Some(open) = self.open.get_mut(&sequence) else {
            return Err(PipelineBreak::Sequence { step, fault: SequenceFault::KeepsUnopened, sequence });
        };
        let begun = self.begun.get(&sequence);
        let mut here = Vec::with_capacity(pages.len());
        for &(index, key) in pages {
            let began_with = begun.and_then(|keys| keys.get(index as usize));
            if began_with == Some(&key) && self.kept.contains_key(&key) {
                self.rows.delivered(key);
                continue;
            }
            let Some(hash) = open.page(index) else {
                return Err(PipelineBreak::Page { step, fault: PageFault::KeepsUnfinished, key });
            };
            if self.kept.len() >= self.geometry.pages as usize {
                return Err(PipelineBreak::Page { step, fault: PageFault::KeepsTooMany, key });
            }
            if self.kept.insert(key, hash).is_some() {
                return Err(PipelineBreak::Page { step, fault: PageFault::KeepsAnother, key });
            }
            self.lacking.remove(&key);
            self.rows.keep(sequence, index, key);
            here.push((index, key));
        }
        Ok(here)
    }

    /// Moves the sequence forward by its part of the step.
    fn advance(&mut self, step: u64, part: &StepSequence) -> Result<(), PipelineBreak> {
        let sequence = part.sequence;
        let (context, vocab) = (self.placement.context_tokens, self.geometry.vocab);
        let Some(open) = self.open.get_mut(&sequence) else {
            return Err(PipelineBreak::Sequence { step, fault: SequenceFault::ComputesUnopened, sequence });
        };
        if open.principal != part.principal {
            return Err(PipelineBreak::Sequence { step, fault: SequenceFault::WrongPrincipal, sequence });
        }
        let length = part.truncate_to.map_or(open.length(), |keep| keep.min(open.length()));
        let end = u64::from(part.start) + part.tokens.len() as u64;
        if part.tokens.is_empty() || part.start != length || end > u64::from(context) {
            return Err(PipelineBreak::Position { step, sequence, start: part.start, end, length, context });
        }
        if let Some(&token) = part.tokens.iter().find(|&&t| t >= vocab) {
            return Err(PipelineBreak::Token { step, token, vocab });
        }
        open.put(part.start, &part.tokens);
        Ok(())
    }

    fn is_lost(&self, part: &StepSequence) -> bool {
        self.open.get(&part.sequence).is_some_and(|open| open.lost)
    }

    /// The rows of the sequences that are still computed here.
    fn without_lost(&self, parts: &[StepSequence], rows: Bytes) -> Bytes {
        if rows.is_empty() || !parts.iter().any(|s| self.is_lost(s)) {
            return rows;
        }
        let (mut kept, mut at) = (Vec::with_capacity(rows.len()), 0);
        for part in parts {
            let end = at + self.rows_bytes(part.tokens.len());
            if !self.is_lost(part) {
                kept.extend_from_slice(&rows[at..end]);
            }
            at = end;
        }
        kept.into()
    }
}

/// Of the prompt alone: a replay adds to the history what was generated.
fn prompt_hash(spec: &SequenceSpec) -> [u8; 32] {
    let tokens = spec.history.iter().take(spec.prompt_tokens as usize);
    let bytes: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
    *blake3::hash(&bytes).as_bytes()
}
