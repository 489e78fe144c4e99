//! The small model that guesses ahead for instances whose first stage is on this node: loaded at the start,
//! asked by their schedulers, at work on a thread of its own.
//!
//! What goes wrong with it at the start is an error of the start. What goes wrong later ends the guessing and
//! nothing else: answers come as they would without it.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use exo_backend::{CancelToken, Device};
use exo_engine::{DraftLimits, DraftRequest, Drafter, LoadError, StepError};
use exo_formats::Model;
use exo_machine::{DraftEvent, Input};
use exo_stdx::Mutex;
use exo_store::{FindError, Store, StoreError};
use exo_tokenizer::{Tokenizer, TokenizerError};
use exo_types::{InstanceId, ModelId, SequenceId};

use crate::NodeConfig;
use crate::draft_mismatch::{Difference, DraftMismatch};
use crate::events::EventSender;
use exo_accelerators::chain;

/// Longest time one of its steps may take: a chunk of prompt on a slow processor takes seconds.
const STEP_MAX: Duration = Duration::from_secs(60);

/// The draft model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    #[error("none is named; give one with --draft MODEL")]
    NotNamed,
    /// Nothing is known by that name, and no file has it.
    #[error(transparent)]
    Find(#[from] FindError),
    /// What is known by it cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("only parts of `{name}` are on this node")]
    Parts { name: String },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("no thread for it")]
    Thread(#[source] std::io::Error),
}

enum DraftJob {
    Ask { instance: InstanceId, request: DraftRequest },
    Forget(SequenceId),
}

/// What a draft model is and holds, to show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DraftFacts {
    /// The model's.
    pub name: String,
    /// Memory of its weights.
    pub weight_bytes: u64,
    /// Memory of its keys and values.
    pub kv_bytes: u64,
    /// Sequences it guesses for at once.
    pub slots: u32,
    /// The longest it can read.
    pub context_tokens: u32,
}

/// The handle of the small model.
pub struct Draft {
    model: ModelId,
    facts: DraftFacts,
    tokenizer: Tokenizer,
    /// Whether it may guess for a model, and why not.
    verdicts: Mutex<BTreeMap<ModelId, Result<(), DraftMismatch>>>,
    jobs: Sender<DraftJob>,
    cancel: CancelToken,
    /// Set once it guesses no more: then it stands in no one's way.
    is_over: AtomicBool,
}

impl Draft {
    /// Finds `wanted` (a name, an id, a file or a folder), loads it and starts its thread. Blocks while it
    /// loads.
    pub fn start(
        wanted: &str,
        config: &NodeConfig,
        store: &Store,
        device: Arc<dyn Device>,
        events: EventSender,
    ) -> Result<Self, DraftError> {
        let (id, name, mut model) = open(wanted, store)?;
        let tokenizer = Tokenizer::from_source(&model.take_tokenizer())?;
        let drafter = Drafter::load(device, &model, config.context_tokens, config.slots, config.kv)?;
        let report = drafter.report();
        let facts = DraftFacts {
            name,
            weight_bytes: report.weight_bytes,
            kv_bytes: report.kv_bytes,
            slots: config.slots,
            context_tokens: config.context_tokens.min(model.config.context_tokens_max),
        };
        let (jobs, inbox) = channel();
        let cancel = CancelToken::default();
        let work = DraftThread {
            drafter,
            inbox,
            readings: VecDeque::new(),
            cancel: cancel.clone(),
            events,
            name: facts.name.clone(),
        };
        let thread = std::thread::Builder::new().name("draft".to_owned());
        thread.spawn(move || run(work)).map_err(DraftError::Thread)?;
        let is_over = AtomicBool::new(false);
        Ok(Self { model: id, facts, tokenizer, verdicts: Mutex::default(), jobs, cancel, is_over })
    }

    /// Which model it is. Its name may have gone to a newer commit since.
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// What it is and holds.
    pub fn facts(&self) -> &DraftFacts {
        &self.facts
    }

    /// It failed and guesses no more: no model is refused for its sake.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.cancel.cancel();
    }

    /// Asks about a sequence; the answer comes as an event.
    pub fn ask(&self, instance: InstanceId, request: DraftRequest) {
        // A thread that has ended has said so.
        let _ = self.jobs.send(DraftJob::Ask { instance, request });
    }

    /// A sequence is over.
    pub fn forget(&self, sequence: SequenceId) {
        let _ = self.jobs.send(DraftJob::Forget(sequence));
    }

    /// Whether it may guess for `model`: their tokens must be the same. Looked at once per model.
    pub fn check(&self, model: ModelId, name: &str, tokenizer: &Tokenizer) -> Result<(), DraftMismatch> {
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(verdict) = self.verdict(model) {
            return verdict;
        }
        let verdict = same_tokens(&self.tokenizer, tokenizer).map_err(|difference| {
            let (draft, model) = (self.facts.name.clone(), name.to_owned());
            DraftMismatch::Differ { draft, model, difference }
        });
        self.verdicts.lock().insert(model, verdict.clone());
        verdict
    }

    /// The same for a model whose tokenizer is not built yet.
    pub fn check_model(&self, id: ModelId, model: &Model) -> Result<(), DraftMismatch> {
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.verdict(id) {
            Some(verdict) => verdict,
            None => self.check(id, &model.name, &Tokenizer::from_source(&model.tokenizer)?),
        }
    }

    /// What [`Draft::check`] found, if it was asked.
    pub fn verdict(&self, model: ModelId) -> Option<Result<(), DraftMismatch>> {
        self.verdicts.lock().get(&model).cloned()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // The thread ends when its inbox does; this ends what it is doing.
        self.cancel.cancel();
    }
}

fn open(wanted: &str, store: &Store) -> Result<(ModelId, String, Model), DraftError> {
    let record = match store.find(wanted) {
        Ok(record) => record,
        Err(_) if Path::new(wanted).exists() => store.add_path(Path::new(wanted), &mut |_, _| {})?,
        Err(error) => return Err(error.into()),
    };
    if !record.complete {
        return Err(DraftError::Parts { name: record.name });
    }
    let model = store.open_model(record.id)?;
    Ok((record.id, record.name, model))
}

fn same_tokens(draft: &Tokenizer, target: &Tokenizer) -> Result<(), Difference> {
    let (own, other) = (draft.vocab_len(), target.vocab_len());
    if own != other {
        return Err(Difference::Count { own, other });
    }
    let text = |tokenizer: &Tokenizer, id| tokenizer.token_text(id).unwrap_or_default();
    let differs =
        |&id: &u32| draft.token_bytes(id) != target.token_bytes(id) || text(draft, id) != text(target, id);
    match (0..own).find(differs) {
        None => Ok(()),
        Some(id) => Err(Difference::Token { id, own: text(draft, id), other: text(target, id) }),
    }
}

struct DraftThread {
    drafter: Drafter,
    inbox: Receiver<DraftJob>,
    /// Texts to read while no one waits for guesses.
    readings: VecDeque<(InstanceId, DraftRequest)>,
    cancel: CancelToken,
    events: EventSender,
    name: String,
}

fn run(mut work: DraftThread) {
    let (events, name) = (work.events.clone(), work.name.clone());
    // A bug in a kernel must cost the guesses, not the node.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.serve()));
    let reason = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(error)) => chain(&error),
        Err(_) => "it panicked; the log has the place".to_owned(),
    };
    events.post(Input::Draft(DraftEvent::Over { name, reason }));
}

impl DraftThread {
    /// Works until no one can ask any more.
    fn serve(&mut self) -> Result<(), StepError> {
        loop {
            let first = match self.readings.is_empty() {
                true => match self.inbox.recv() {
                    Ok(job) => Some(job),
                    Err(_) => return Ok(()),
                },
                false => self.inbox.try_recv().ok(),
            };
            let mut guesses = Vec::new();
            let jobs: Vec<DraftJob> = first.into_iter().chain(self.inbox.try_iter()).collect();
            for job in jobs {
                self.sort(job, &mut guesses);
            }
            if self.cancel.is_cancelled() {
                return Ok(());
            }
            if guesses.is_empty() {
                guesses.extend(self.readings.pop_front());
            }
            self.answer(guesses)?;
        }
    }

    fn sort(&mut self, job: DraftJob, guesses: &mut Vec<(InstanceId, DraftRequest)>) {
        match job {
            DraftJob::Ask { instance, request } if request.count > 0 => guesses.push((instance, request)),
            DraftJob::Ask { instance, request } => self.readings.push_back((instance, request)),
            DraftJob::Forget(sequence) => {
                guesses.retain(|(_, r)| r.spec.sequence != sequence);
                self.readings.retain(|(_, r)| r.spec.sequence != sequence);
                self.drafter.forget(sequence);
            }
        }
    }

    fn answer(&mut self, asked: Vec<(InstanceId, DraftRequest)>) -> Result<(), StepError> {
        let about: Vec<_> = asked.iter().map(|(i, r)| (*i, r.spec.sequence, r.spec.history.len())).collect();
        let began = Instant::now();
        let limits = DraftLimits { cancel: &self.cancel, deadline: STEP_MAX };
        let requests = asked.into_iter().map(|(_, request)| request).collect();
        let guesses = match self.drafter.propose(requests, limits) {
            Ok(guesses) => guesses,
            Err(_) if self.cancel.is_cancelled() => return Ok(()),
            Err(error) => return Err(error),
        };
        let rounds = guesses.iter().flatten().map(Vec::len).max().unwrap_or(0) as u32;
        let each = (rounds > 0).then(|| began.elapsed() / rounds);
        for ((instance, sequence, text_len), tokens) in about.into_iter().zip(guesses) {
            let event = match tokens {
                Some(tokens) => DraftEvent::Answer { instance, sequence, text_len, tokens, each },
                None => DraftEvent::Refused { instance, sequence },
            };
            self.events.post(Input::Draft(event));
        }
        Ok(())
    }
}
