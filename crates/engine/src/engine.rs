//! The engine and its sequences. Loading is in `load`, stepping in `step`.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_backend::{Device, KvCache, Program, Stream};
use exo_formats::ModelConfig;
use exo_models::StepBuffers;
use exo_types::{PageKey, SequenceId, SequenceSpec, Shard};

use crate::host_batch::HostBatch;
use crate::pages::{PagePool, Refused};
use crate::prompt::PromptFold;
use crate::sequence::{Sequence, StartConstraint, TokenSampler};
use crate::weights::ResidentWeights;
use crate::{EngineOptions, EngineReport, SequenceError};

/// One shard of a model on one device, ready to step.
pub struct Engine {
    pub(crate) config: ModelConfig,
    pub(crate) shard: Shard,
    pub(crate) options: EngineOptions,
    pub(crate) weights: ResidentWeights,
    pub(crate) buffers: StepBuffers,
    pub(crate) kv: KvCache,
    pub(crate) layers: Box<dyn Program>,
    /// Only where the shard has the head.
    pub(crate) head: Option<Box<dyn Program>>,
    /// The head's norm alone; the same.
    pub(crate) norm: Option<Box<dyn Program>>,
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) pages: PagePool,
    pub(crate) sequences: BTreeMap<SequenceId, Sequence>,
    /// What is uploaded at each step; kept for its memory.
    pub(crate) host: HostBatch,
    pub(crate) steps: u64,
    pub(crate) tokens: u64,
    /// Rows of plain greedy sequences whose logits were read back after all.
    pub(crate) logit_rows_read: u64,
    pub(crate) start_constraint: Option<Arc<StartConstraint>>,
    /// Last: everything above was made by it.
    pub(crate) device: Arc<dyn Device>,
}

impl Engine {
    /// What part of the model it holds.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The model it holds a part of.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How large it was made.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The device it runs on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Gives it the way to follow grammars. Without it, sequences that ask for one get no token.
    pub fn follow_grammars(&mut self, start: Arc<StartConstraint>) {
        self.start_constraint = Some(start);
    }

    /// Rows of plain greedy sequences whose logits were read back, because the best token would not do.
    pub fn logit_rows_read(&self) -> u64 {
        self.logit_rows_read
    }

    /// Bytes of weights that are used from their file for now and still on their way to the device's memory.
    /// It steps as it will when there are none, but slower.
    pub fn unpacked_bytes(&mut self) -> u64 {
        self.weights.unpacked_bytes()
    }

    /// Gives a sequence a slot. It takes pages as it grows.
    pub fn open(&mut self, spec: SequenceSpec) -> Result<(), SequenceError> {
        self.open_cached(spec, &[])
    }

    /// Gives a sequence a slot, and kept pages of its principal as its first positions: the caller knows that
    /// they were filled from the same tokens. The first step starts behind them.
    pub fn open_cached(&mut self, spec: SequenceSpec, cached: &[PageKey]) -> Result<(), SequenceError> {
        self.check_spec(&spec)?;
        let (sequence, principal, tokens) = (spec.sequence, spec.principal, spec.history.len());
        let cached_tokens = cached.len().saturating_mul(self.options.page_tokens as usize);
        if cached_tokens > tokens {
            return Err(SequenceError::CachedBeyondHistory { cached_tokens, tokens });
        }
        let prompt = PromptFold::new(&spec, cached_tokens as u32).filter(|_| self.shard.head);
        if prompt.is_some() && cached_tokens > 0 && spec.open_query().needs_all_rows() {
            return Err(SequenceError::CachedQuery { sequence, cached_tokens });
        }
        let start = self.start_constraint.clone();
        let token_sampler = self.shard.head.then(|| TokenSampler::new(spec, start));
        let pages = self.pages.share(cached, principal).map_err(|(key, refused)| match refused {
            Refused::Unknown => SequenceError::PageUnknown { key },
            Refused::Foreign => SequenceError::PageForeign { key },
        })?;
        self.sequences.insert(
            sequence,
            Sequence { principal, len: cached_tokens as u32, pages, token_sampler, prompt },
        );
        Ok(())
    }

    /// Keeps full pages of a sequence under names, for [`Engine::open_cached`]; all of them or none. They
    /// stay when the sequence is closed, until they are forgotten.
    pub fn keep(&mut self, sequence: SequenceId, pages: &[(u32, PageKey)]) -> Result<(), SequenceError> {
        let open = self.sequences.get(&sequence).ok_or(SequenceError::Unknown { sequence })?;
        let (has, full) = (open.len, open.len / self.options.page_tokens);
        if let Some(&(index, _)) = pages.iter().find(|(index, _)| *index >= full) {
            return Err(SequenceError::PageNotFull { sequence, index, has });
        }
        let mut keys: Vec<PageKey> = pages.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        let twice = keys.windows(2).find(|k| k[0] == k[1]).map(|k| k[0]);
        if let Some(key) = twice.or_else(|| keys.into_iter().find(|key| self.pages.is_kept(*key))) {
            return Err(SequenceError::PageTaken { key });
        }
        for &(index, key) in pages {
            self.pages.keep(open.pages[index as usize], key);
        }
        Ok(())
    }

    /// Keeps pages no longer. Those that an open sequence holds are free when it is closed.
    pub fn forget(&mut self, keys: &[PageKey]) -> Result<(), SequenceError> {
        if let Some(&key) = keys.iter().find(|key| !self.pages.is_kept(**key)) {
            return Err(SequenceError::PageUnknown { key });
        }
        for key in keys {
            self.pages.forget(*key);
        }
        Ok(())
    }

    /// Frees a sequence's slot, and those of its pages that are not kept.
    pub fn close(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        let closed = self.sequences.remove(&sequence).ok_or(SequenceError::Unknown { sequence })?;
        self.pages.give_back(closed.pages);
        Ok(())
    }

    /// Closes every sequence and forgets every kept page but some, as if it had just been loaded. Weights and
    /// the memory of the cache stay: nothing is read, packed or uploaded.
    pub fn reset(&mut self, keep: &[PageKey]) {
        for (_, closed) in std::mem::take(&mut self.sequences) {
            self.pages.give_back(closed.pages);
        }
        self.pages.forget_all_but(&keep.iter().copied().collect());
    }

    /// Forgets a sequence's positions from `to` on. What was sampled stays known, so that it can be replayed.
    pub fn truncate(&mut self, sequence: SequenceId, to: u32) -> Result<(), SequenceError> {
        let has = self.sequences.get(&sequence).ok_or(SequenceError::Unknown { sequence })?.len;
        if to > has {
            return Err(SequenceError::TruncateBeyondEnd { sequence, has, to });
        }
        self.set_len(sequence, to);
        Ok(())
    }

    /// Positions a sequence has in the cache; `None` if it is not open.
    pub fn positions(&self, sequence: SequenceId) -> Option<u32> {
        self.sequences.get(&sequence).map(|s| s.len)
    }

    /// Tokens that the grammar of an open sequence leaves no choice about behind what was sampled last, as
    /// the model's tokenizer spells them: guesses that are mostly right. None where there is no grammar, and
    /// none that the model has no row for.
    pub fn forced(&mut self, sequence: SequenceId) -> Vec<u32> {
        let vocab = self.config.vocab;
        let sampler = self.sequences.get_mut(&sequence).and_then(|s| s.token_sampler.as_mut());
        let forced = sampler.map(|sampler| sampler.forced()).unwrap_or_default();
        forced.into_iter().take_while(|token| *token < vocab).collect()
    }

    /// What it holds and has done.
    pub fn report(&self) -> EngineReport {
        EngineReport {
            weight_bytes: self.weights.bytes,
            kv_bytes: self.kv.shape.total_bytes(),
            workspace_bytes: self.buffers.bytes(),
            pages_free: self.pages.free_count() as u32,
            pages_kept: self.pages.kept_count() as u32,
            pages_total: self.pages.total() as u32,
            sequences: self.sequences.len() as u32,
            steps: self.steps,
            tokens: self.tokens,
        }
    }

    /// Sets an open sequence to `len` positions and returns the pages beyond them. Never lengthens what is
    /// cached.
    pub(crate) fn set_len(&mut self, sequence: SequenceId, len: u32) {
        if let Some(s) = self.sequences.get_mut(&sequence) {
            s.len = len;
            let keep = len.div_ceil(self.options.page_tokens) as usize;
            let keep = keep.min(s.pages.len());
            self.pages.give_back(s.pages.drain(keep..));
        }
    }

    fn check_spec(&self, spec: &SequenceSpec) -> Result<(), SequenceError> {
        let (sequence, tokens) = (spec.sequence, spec.history.len());
        let EngineOptions { slots, context_tokens, .. } = self.options;
        if self.sequences.contains_key(&sequence) {
            return Err(SequenceError::AlreadyOpen { sequence });
        }
        if self.sequences.len() >= slots as usize {
            return Err(SequenceError::NoSlot { slots });
        }
        if tokens > context_tokens as usize {
            return Err(SequenceError::HistoryTooLong { tokens, context_tokens });
        }
        if spec.prompt_tokens as usize > tokens {
            return Err(SequenceError::PromptBeyondHistory { prompt_tokens: spec.prompt_tokens, tokens });
        }
        let vocab = self.config.vocab;
        if let Some(&token) = spec.history.iter().find(|t| **t >= vocab) {
            return Err(SequenceError::TokenOutOfRange { token, vocab });
        }
        Ok(spec.sampling.check()?)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({}, {} of {} slots)", self.shard, self.sequences.len(), self.options.slots)
    }
}
