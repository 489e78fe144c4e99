//! An engine: sequences, pages and steps as a real one keeps them, with numbers for hidden rows.
//!
//! It is stricter than a real engine, which would compute wrong text in silence: a position that is computed
//! twice without truncation, a gap, rows that do not fit, a page that nobody kept, or more pages than there
//! are, is a [`Misuse`], and the run has failed.

use std::collections::{BTreeMap, BTreeSet};

use exo_cluster::wire::{StageCommand, TokenResult};
use exo_cluster::{ComputeResult, FailedSequence};
use exo_machine::StepJob;
use exo_types::{Attempt, FailureKind, PageKey, Principal, SequenceId, SequenceSpec, Shard, StepSequence};

use crate::model::{Model, NoNumbers, ROW_BYTES, sampled};

/// Tokens of a page.
pub const PAGE_TOKENS: u32 = 16;

/// An engine was given what no engine can carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misuse(pub String);

/// What a device makes of a step that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepFault {
    /// It says that it failed.
    Fails(FailureKind),
    /// It says nothing, and all that it computes is no number: what leaves, and what it keeps of it.
    NoNumbers,
}

/// One loaded shard.
#[derive(Clone, Debug)]
pub struct Engine {
    shard: Shard,
    pages_max: usize,
    pages_given: u64,
    open: BTreeMap<SequenceId, Open>,
    kept: BTreeMap<PageKey, Page>,
}

#[derive(Clone, Debug)]
struct Open {
    spec: SequenceSpec,
    /// Positions in the cache.
    len: u32,
    pages: Vec<Page>,
    /// A step of it failed: what is on the engine behind that step does not fit any more.
    failed: bool,
}

/// Positions in the cache: what each layer of the shard left there.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Page {
    /// Pages that are shared have the same.
    number: u64,
    principal: Principal,
    /// By position, then by layer.
    cached: Vec<u64>,
}

impl Engine {
    /// An engine that has just loaded `shard`, with memory for so many pages.
    pub fn new(shard: Shard, pages_max: u32) -> Self {
        let (open, kept) = (BTreeMap::new(), BTreeMap::new());
        Self { shard, pages_max: pages_max as usize, pages_given: 0, open, kept }
    }

    /// Drops sequences, and kept pages but some; the weights stay.
    pub fn rewire(&mut self, keep: &[PageKey]) -> Result<(), Misuse> {
        if let Some(key) = keep.iter().find(|key| !self.kept.contains_key(key)) {
            return misuse(format!("{key} is to outlive a term and was not kept"));
        }
        let keep: BTreeSet<PageKey> = keep.iter().copied().collect();
        self.open.clear();
        self.kept.retain(|key, _| keep.contains(key));
        Ok(())
    }

    /// Sequences that are open.
    pub fn sequences(&self) -> usize {
        self.open.len()
    }

    /// Carries out the commands, then the batch. `fault` is what the device makes of it, if that goes wrong.
    pub fn run(
        &mut self,
        model: &dyn Model,
        job: &StepJob,
        fault: Option<StepFault>,
    ) -> Result<ComputeResult, Misuse> {
        job.commands.iter().try_for_each(|command| self.command(command))?;
        let parts = &job.frame.sequences;
        if parts.is_empty() {
            return Ok(self.nothing());
        }
        if let Some(part) = parts.iter().find(|part| self.is_behind_a_failure(part)) {
            let message = format!("{} stands elsewhere after a failed step", part.sequence);
            return Ok(self.fail(parts, FailureKind::Protocol, message));
        }
        let rows = self.rows_in(job)?;
        parts.iter().try_for_each(|part| self.check(part))?;
        match fault {
            Some(StepFault::Fails(kind)) => {
                Ok(self.fail(parts, kind, "the simulated device failed".to_owned()))
            }
            Some(StepFault::NoNumbers) if self.shard.head => {
                Ok(no_logits(self.advance(model, parts, &rows)?))
            }
            Some(StepFault::NoNumbers) => self.advance(&NoNumbers, parts, &rows),
            None => self.advance(model, parts, &rows),
        }
    }

    /// The answer to a step without sequences.
    fn nothing(&self) -> ComputeResult {
        if self.shard.head {
            ComputeResult::Tokens(Vec::new())
        } else {
            ComputeResult::Rows(Default::default())
        }
    }

    fn is_behind_a_failure(&self, part: &StepSequence) -> bool {
        self.open.get(&part.sequence).is_some_and(|open| open.failed && part.start > open.len)
    }

    fn fail(&mut self, parts: &[StepSequence], kind: FailureKind, message: String) -> ComputeResult {
        for part in parts {
            if let Some(open) = self.open.get_mut(&part.sequence) {
                open.truncate(part.start.min(open.len));
                open.failed = true;
            }
        }
        ComputeResult::Failed { kind, message }
    }

    fn command(&mut self, command: &StageCommand) -> Result<(), Misuse> {
        match command {
            StageCommand::Open { spec, cached, .. } => self.open(spec, cached),
            StageCommand::Keep { sequence, pages } => self.keep(*sequence, pages),
            StageCommand::Forget(keys) => keys.iter().try_for_each(|key| match self.kept.remove(key) {
                Some(_) => Ok(()),
                None => misuse(format!("{key} is forgotten and was not kept")),
            }),
            StageCommand::Close(sequence) => match self.open.remove(sequence) {
                Some(_) => Ok(()),
                None => misuse(format!("{sequence} is closed and was not open")),
            },
            #[allow(unreachable_patterns)] // a command to come must be modelled before it is simulated
            other => misuse(format!("the simulated engine does not know {other:?}")),
        }
    }

    fn open(&mut self, spec: &SequenceSpec, cached: &[PageKey]) -> Result<(), Misuse> {
        let page = |key: &PageKey| match self.kept.get(key) {
            Some(page) if page.principal == spec.principal => Ok(page.clone()),
            Some(_) => misuse(format!("{} begins with another principal's {key}", spec.sequence)),
            None => misuse(format!("{} begins with {key}, which was not kept", spec.sequence)),
        };
        let pages: Vec<Page> = cached.iter().map(page).collect::<Result<_, _>>()?;
        let len = pages.len() as u32 * PAGE_TOKENS;
        if len as usize >= spec.history.len().max(1) {
            return misuse(format!("{} begins with {len} positions: nothing to compute", spec.sequence));
        }
        let open = Open { spec: spec.clone(), len, pages, failed: false };
        match self.open.insert(spec.sequence, open) {
            None => Ok(()),
            Some(_) => misuse(format!("{} is opened twice", spec.sequence)),
        }
    }

    fn keep(&mut self, sequence: SequenceId, pages: &[(u32, PageKey)]) -> Result<(), Misuse> {
        let open = self.opened(sequence)?.clone();
        for &(index, key) in pages {
            if (index + 1) * PAGE_TOKENS > open.len {
                return misuse(format!("page {index} of {sequence} is kept with {} positions", open.len));
            }
            if self.kept.insert(key, open.pages[index as usize].clone()).is_some() {
                return misuse(format!("{key} names two pages"));
            }
        }
        Ok(())
    }

    fn opened(&mut self, sequence: SequenceId) -> Result<&mut Open, Misuse> {
        self.open.get_mut(&sequence).ok_or_else(|| Misuse(format!("{sequence} is not open")))
    }

    /// The rows that came with the job, one for each token; none for an engine that begins with tokens.
    fn rows_in(&self, job: &StepJob) -> Result<Vec<u64>, Misuse> {
        let tokens = job.frame.token_count();
        let expected = if self.shard.embedding { 0 } else { tokens * ROW_BYTES };
        if job.rows.len() != expected {
            let (got, step) = (job.rows.len(), job.frame.step);
            return misuse(format!("step {step} came with {got} bytes of rows instead of {expected}"));
        }
        Ok(job.rows.as_chunks::<ROW_BYTES>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }

    fn check(&mut self, part: &StepSequence) -> Result<(), Misuse> {
        let open = self.opened(part.sequence)?;
        let len = part.truncate_to.map_or(open.len, |keep| keep.min(open.len));
        if part.start != len || part.tokens.is_empty() {
            let (sequence, start, end) = (part.sequence, part.start, part.end());
            return misuse(format!("{sequence} computes {start}..{end} after {len} positions"));
        }
        if part.principal != open.spec.principal {
            return misuse(format!("{} is computed on another's behalf", part.sequence));
        }
        open.truncate(len);
        Ok(())
    }

    fn advance(
        &mut self,
        model: &dyn Model,
        parts: &[StepSequence],
        rows: &[u64],
    ) -> Result<ComputeResult, Misuse> {
        let mut given = rows.iter().copied();
        let (mut out, mut results) = (Vec::new(), Vec::new());
        for part in parts {
            let leaving = self.forward(model, part, &mut given)?;
            if !self.shard.head {
                out.extend(leaving.iter().flat_map(|row| row.to_le_bytes()));
            } else if part.sample {
                let spec = &self.open[&part.sequence].spec;
                results.push(sample(model, spec, part, &leaving));
            }
        }
        let used = self.pages_used();
        if used > self.pages_max {
            return misuse(format!("{used} pages are used, there are {}", self.pages_max));
        }
        Ok(if self.shard.head { ComputeResult::Tokens(results) } else { ComputeResult::Rows(out.into()) })
    }

    /// The rows that leave the shard, one for each token of the part.
    fn forward(
        &mut self,
        model: &dyn Model,
        part: &StepSequence,
        rows: &mut impl Iterator<Item = u64>,
    ) -> Result<Vec<u64>, Misuse> {
        let shard = self.shard;
        let mut pages_given = self.pages_given;
        let open = self.opened(part.sequence)?;
        let mut leaving = Vec::with_capacity(part.tokens.len());
        let mut before = open.last(shard.layers.len() as usize);
        for (position, &token) in (part.start..).zip(&part.tokens) {
            let embedded = || model.embed(token, position);
            let mut row = if shard.embedding { embedded() } else { rows.next().expect("counted before") };
            for (layer, before) in shard.layers.iter().zip(&mut before) {
                row = model.layer(layer, *before, row);
                *before = row;
            }
            open.push(&before, &mut pages_given);
            leaving.push(row);
        }
        self.pages_given = pages_given;
        Ok(leaving)
    }

    fn pages_used(&self) -> usize {
        let open = self.open.values().flat_map(|open| &open.pages);
        let numbers: BTreeSet<u64> = open.chain(self.kept.values()).map(|page| page.number).collect();
        numbers.len()
    }
}

impl Open {
    fn truncate(&mut self, len: u32) {
        self.len = len;
        self.pages.truncate(len.div_ceil(PAGE_TOKENS) as usize);
    }

    /// What each layer left at the last position; zeros before the first.
    fn last(&self, layers: usize) -> Vec<u64> {
        let Some(last) = self.len.checked_sub(1) else { return vec![0; layers] };
        let (page, at) = ((last / PAGE_TOKENS) as usize, (last % PAGE_TOKENS) as usize);
        self.pages[page].cached[at * layers..(at + 1) * layers].to_vec()
    }

    /// One more position. A page that is cut here and shared with others is this sequence's own from now on.
    fn push(&mut self, cached: &[u64], pages_given: &mut u64) {
        let at = (self.len % PAGE_TOKENS) as usize;
        if at == 0 {
            *pages_given += 1;
            let page = Page { number: *pages_given, principal: self.spec.principal, cached: Vec::new() };
            self.pages.push(page);
        }
        let page = self.pages.last_mut().expect("pushed when the last was full");
        if page.cached.len() > at * cached.len() {
            page.cached.truncate(at * cached.len());
        }
        page.cached.extend_from_slice(cached);
        self.len += 1;
    }
}

/// The tokens of one part: as far as its drafts are right, and one more.
fn sample(model: &dyn Model, spec: &SequenceSpec, part: &StepSequence, leaving: &[u64]) -> TokenResult {
    let (sequence, position, drafts) = (part.sequence, part.sample_position(), part.drafts);
    let (own, guesses) = part.split_drafts();
    let mut tokens = Vec::new();
    for (index, &row) in leaving.iter().enumerate().skip(own.len() - 1) {
        let token = model.sample(row, part.start + index as u32 + 1, &spec.sampling);
        tokens.push(sampled(token));
        if guesses.get(tokens.len() - 1) != Some(&token) {
            break;
        }
    }
    TokenResult { sequence, attempt: Attempt::FIRST, position, tokens, drafts, forced: vec![] }
}

fn misuse<T>(what: String) -> Result<T, Misuse> {
    Err(Misuse(what))
}

/// Logits that are no numbers: the engine says so of each sequence that was to get a token.
fn no_logits(computed: ComputeResult) -> ComputeResult {
    let ComputeResult::Tokens(results) = computed else { return computed };
    let failed = |result: TokenResult| FailedSequence {
        sequence: result.sequence,
        kind: FailureKind::Device,
        message: "the simulated logits are no numbers".to_owned(),
        is_not_finite: true,
    };
    let failed = results.into_iter().map(failed).collect();
    ComputeResult::Partial { results: Vec::new(), failed }
}

#[cfg(test)]
mod tests;
