//! Pages that a stage lacks because it was loaded anew, while those around it still keep them.
//!
//! Step 0 finds out: a stage that has none of the pages that it names says so instead of striking them out,
//! and the stage in front of it strikes out those whose rows it did not keep. A sequence that begins with
//! such pages has them computed by the stages that lack them alone, in the same steps wherever they are in
//! the pipeline, and kept there under the same names. What a stage keeps outlives its placement, as long as
//! its engine stays and the next placement is of the same instance. When the next stage is lost before that
//! is done, one that has computed the smaller part of it begins again.

use std::collections::BTreeMap;

use bytes::Bytes;
use exo_types::{InstanceId, PageKey, StepFrame, StepSequence};

use super::rows::KeptRows;
use super::{Open, StageMachine};
use crate::page_chain::PageHash;
use crate::wire::{PageFault, PipelineBreak, SequenceFault, StageSet};

/// What a stage leaves to the next one on its engine.
#[derive(Clone, Debug)]
pub struct StagePagesLeft {
    instance: InstanceId,
    kept: BTreeMap<PageKey, PageHash>,
    rows: KeptRows,
}

impl StagePagesLeft {
    /// Whose they are.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Names of the pages, in order. The engine has them.
    pub fn keys(&self) -> Vec<PageKey> {
        self.kept.keys().copied().collect()
    }

    /// Bytes of the rows beside them.
    pub fn rows_bytes(&self) -> u64 {
        self.rows.bytes().0
    }
}

impl StageMachine {
    /// What it keeps, for the next placement of its instance.
    pub fn into_left(mut self) -> StagePagesLeft {
        self.forget_beginning();
        self.rows.retain(|key| self.kept.contains_key(key));
        StagePagesLeft { instance: self.placement.instance, kept: self.kept, rows: self.rows }
    }

    /// The same stage before its first step, with what an earlier one left on its engine.
    pub fn inheriting(self, left: StagePagesLeft) -> Self {
        let StagePagesLeft { kept, rows, .. } = left;
        Self { inherits: !kept.is_empty(), kept, rows, ..self }
    }

    /// The rows that it keeps may take so many bytes.
    pub fn set_rows_max(&mut self, max_bytes: u64) {
        self.rows.set_max(max_bytes);
    }

    /// Bytes that rows would take if it kept those of all its pages. The last stage sends none.
    pub fn rows_bytes_of_all(&self) -> u64 {
        if self.is_last() {
            return 0;
        }
        let tokens = u64::from(self.geometry.pages).saturating_mul(u64::from(self.geometry.page_tokens));
        tokens.saturating_mul(self.rows_bytes(1) as u64)
    }

    /// Bytes of rows that it keeps, and at most.
    pub fn rows_kept(&self) -> (u64, u64) {
        self.rows.bytes()
    }

    /// Whether it computes a step that is for these stages only, if it is for some.
    pub(super) fn computes(&self, rebuilds: Option<StageSet>) -> bool {
        rebuilds.is_none_or(|stages| stages.has(self.index))
    }

    /// When it has computed less of what it lacked than it still lacks, it forgets that: it computes all of
    /// it again by itself, and no other stage computes the rest.
    pub(super) fn forget_beginning(&mut self) {
        if self.lacking.len() > self.kept.len() {
            self.kept.clear();
        }
    }

    /// With step 0: whether this stage lacks all of the pages that those in front keep, or which of them it
    /// has.
    pub(super) fn find_lacking(&mut self, kept: &mut Vec<PageKey>, rebuilds: &mut Option<StageSet>) {
        let (index, named) = (self.index, kept.len());
        self.lacking.clear();
        if !kept.is_empty() && !kept.iter().any(|key| self.kept.contains_key(key)) {
            *rebuilds = Some(rebuilds.unwrap_or_default().with(index));
            self.lacking = kept.iter().copied().collect();
        } else if rebuilds.is_some_and(|stages| stages.has(index)) {
            kept.clear();
        } else {
            kept.retain(|key| self.kept.contains_key(key));
        }
        if rebuilds.is_some_and(|stages| stages.has(index + 1) && !stages.has(index)) {
            kept.retain(|key| self.rows.of(*key).is_some());
            self.rows.promise(kept);
        }
        self.rebuilds = *rebuilds;
        if named > 0 {
            let (placement, term) = (self.placement.id, self.term);
            let (kept, lacking) = (kept.len(), self.lacking.len());
            tracing::debug!(%placement, %term, stage = index, named, kept, lacking, ?rebuilds, "step 0 names kept pages");
        }
    }

    /// A part of a step that other stages compute: this one has it.
    pub(super) fn check_held(&self, step: u64, part: &StepSequence) -> Result<(), PipelineBreak> {
        let sequence = part.sequence;
        let Some(open) = self.open.get(&sequence) else {
            return Err(PipelineBreak::Sequence { step, fault: SequenceFault::ComputesUnopened, sequence });
        };
        if open.principal != part.principal {
            return Err(PipelineBreak::Sequence { step, fault: SequenceFault::WrongPrincipal, sequence });
        }
        let end = u64::from(part.start) + part.tokens.len() as u64;
        if part.tokens.is_empty() || part.sample || end > u64::from(open.length()) {
            return Err(self.misplaced(step, part));
        }
        Ok(())
    }

    fn misplaced(&self, step: u64, part: &StepSequence) -> PipelineBreak {
        let (sequence, start, context) = (part.sequence, part.start, self.placement.context_tokens);
        let end = u64::from(start) + part.tokens.len() as u64;
        let length = self.open.get(&sequence).map_or(0, Open::length);
        PipelineBreak::Position { step, sequence, start, end, length, context }
    }

    /// The rows that the stage behind this one computes from, where it lacks pages: those of whole pages.
    pub(super) fn rows_of(&self, step: u64, parts: &[StepSequence]) -> Result<Bytes, PipelineBreak> {
        if self.rebuilds.is_none_or(|stages| !stages.has(self.index + 1)) {
            return Ok(Bytes::new());
        }
        let page_tokens = self.geometry.page_tokens;
        let tokens: usize = parts.iter().map(|part| part.tokens.len()).sum();
        let mut rows = Vec::with_capacity(self.rows_bytes(tokens));
        for part in parts {
            let (start, end) = (part.start, part.end());
            let pages = (start / page_tokens) as usize..(end / page_tokens) as usize;
            let is_whole = start.is_multiple_of(page_tokens) && end.is_multiple_of(page_tokens);
            let keys = self.begun.get(&part.sequence).and_then(|keys| keys.get(pages));
            let keys = keys.filter(|_| is_whole).ok_or_else(|| self.misplaced(step, part))?;
            for &key in keys {
                let fault = PageFault::WithoutRows;
                let of_page = self.rows.of(key).ok_or(PipelineBreak::Page { step, fault, key })?;
                rows.extend_from_slice(of_page);
            }
        }
        Ok(rows.into())
    }

    /// Rows of a step are about to be sent on.
    pub(super) fn note_rows(&mut self, frame: &StepFrame, rows: &[u8]) {
        let mut rest = rows;
        for part in &frame.sequences {
            let bytes = self.rows_bytes(part.tokens.len()).min(rest.len());
            let (own, behind) = rest.split_at(bytes);
            self.rows.note(part.sequence, part.start, own);
            rest = behind;
        }
    }
}
