//! What nodes say while tokens flow: sequences to the scheduler, steps along the pipeline, tokens back.

use bytes::Bytes;
use exo_types::{
    Attempt, FailureKind, PageKey, PlacementId, SampledToken, SamplingParams, SequenceId, SequenceSpec,
    StepFrame, StepSequence, Term, WireDType, list,
};
use serde::{Deserialize, Serialize};

use super::limits::{COMMANDS_MAX, PAGES_MAX, PAGES_OF_TERM_MAX, SAMPLED_MAX, SEQUENCES_MAX, STAGES_MAX};
use super::{ComputeFault, Missing, PipelineBreak, PipelineFailure, Rejection};

/// A message on the data channel. The sender is whoever the transport authenticated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum DataMessage {
    /// Driver to scheduler: run this sequence.
    Submit(Submission),
    /// Driver to scheduler: stop it, nobody listens.
    Cancel { placement: PlacementId, sequence: SequenceId, attempt: Attempt },
    /// Scheduler to driver: it is queued.
    Accepted { placement: PlacementId, term: Term, sequence: SequenceId, attempt: Attempt, queue_ahead: u32 },
    /// Scheduler to driver: its pages are reserved and it is being computed. Repeated every few seconds until
    /// its first token while the pipeline moves (behind long prompts that token may take a while), and when
    /// more of its prompt turns out to be cached.
    Started {
        placement: PlacementId,
        term: Term,
        sequence: SequenceId,
        attempt: Attempt,
        /// Leading tokens whose keys and values are there already; the last word counts.
        cached_tokens: u32,
    },
    /// Scheduler to driver: it does not run.
    Rejected {
        /// The placement that its submission named.
        placement: PlacementId,
        sequence: SequenceId,
        attempt: Attempt,
        /// What is in the way. Which class of failure that is follows from it.
        why: Rejection,
    },
    /// Along the pipeline: commands, then a batch.
    Step(StepMessage),
    /// Last stage to the scheduler's node (every step, also without tokens), and to drivers on third nodes
    /// (only theirs).
    Tokens(TokensMessage),
    /// Scheduler to driver: no more tokens come than these.
    SequenceEnded {
        placement: PlacementId,
        term: Term,
        sequence: SequenceId,
        attempt: Attempt,
        reason: EndReason,
        /// Tokens generated in this submission. The driver waits for the last of them: they come another way.
        generated: u32,
        /// Where the time of this submission went, since it was last admitted.
        times: SequenceTimes,
    },
    /// Scheduler to driver: it will not be finished.
    SequenceFailed {
        placement: PlacementId,
        term: Term,
        sequence: SequenceId,
        attempt: Attempt,
        kind: FailureKind,
        why: PipelineFailure,
    },
    /// Any stage to the drivers of the step: it could not be computed. The scheduler learns it in `Tokens`.
    StepFailed(StepFailure),
    /// Any stage to the scheduler: the link to a neighbour ended, which ends the term, or steps no longer fit
    /// together here, which ends the placement.
    PipelineBroken { placement: PlacementId, term: Term, stage: u32, kind: FailureKind, why: PipelineBreak },
    /// A step met a stage or a link that is not there. From the node where it waited in vain to the node that
    /// sent it, and from there against the direction of the steps to the scheduler: step 0 is sent again, any
    /// other ends the term.
    NotWired { placement: PlacementId, term: Term, stage: u32, step: u64, missing: Missing },
    /// Last stage to the scheduler, the way `NotWired` takes: tokens did not reach their driver. Its
    /// sequences end.
    Undelivered {
        placement: PlacementId,
        term: Term,
        step: u64,
        /// The sequences, and which submission of each.
        #[serde(deserialize_with = "list::<_, _, SEQUENCES_MAX>")]
        sequences: Vec<(SequenceId, Attempt)>,
        missing: Missing,
    },
}

/// About as many bytes as a sequence takes in a message that opens or submits it: its lists and its grammar;
/// everything else of it is small.
pub fn spec_bytes_about(spec: &SequenceSpec) -> usize {
    4 * spec.history.len() + sampling_bytes_about(&spec.sampling)
}

/// The same of its grammar and biases.
pub(crate) fn sampling_bytes_about(sampling: &SamplingParams) -> usize {
    let constraint = sampling.constraint.as_ref().map_or(0, |c| c.grammar.len() + c.engine.len());
    constraint + sampling.logit_bias.len() * size_of::<(u32, f32)>()
}

/// A sequence and when to end it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Submission {
    /// The placement. Its term is the scheduler's to know, which says it in its answers.
    pub placement: PlacementId,
    /// Which submission of the sequence this is.
    pub attempt: Attempt,
    /// Sampling and history: the prompt, and on a replay what was generated before.
    pub spec: SequenceSpec,
    /// Tokens to generate at most behind the history, at least one.
    pub max_tokens: u32,
    /// Tokens that end the answer (they are reported as its last token).
    pub stop_tokens: Vec<u32>,
    /// Go on behind stop tokens (benchmarks).
    pub ignore_eos: bool,
    /// Whether tokens may be guessed ahead. Changes how fast the answer comes, never what it is.
    pub speculate: bool,
}

impl Submission {
    /// Whether it goes on where an earlier submission of the sequence was interrupted: somebody has read its
    /// beginning.
    pub fn is_resumed(&self) -> bool {
        self.spec.history.len() > self.spec.prompt_tokens as usize
    }
}

/// Why a sequence ended well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A stop token was chosen.
    StopToken,
    /// As many tokens as asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The driver asked: client gone, or a stop string.
    Cancelled,
}

/// What a stage does to its sequences before the step behind it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum StageCommand {
    /// Make room for a sequence.
    Open {
        spec: SequenceSpec,
        /// Which submission of it: the last stage says so with its tokens.
        attempt: Attempt,
        /// Pages it begins with, in order of position: kept ones of its own principal.
        #[serde(deserialize_with = "list::<_, _, PAGES_MAX>")]
        cached: Vec<PageKey>,
    },
    /// Keep full pages of a sequence beyond its end, for others to begin with.
    Keep {
        sequence: SequenceId,
        /// Which of its pages (the first is 0), and their names from now on.
        #[serde(deserialize_with = "list::<_, _, PAGES_MAX>")]
        pages: Vec<(u32, PageKey)>,
    },
    /// Free kept pages; no open sequence began with them or named them.
    Forget(#[serde(deserialize_with = "list::<_, _, PAGES_MAX>")] Vec<PageKey>),
    /// Free the sequence's pages, but for kept ones.
    Close(SequenceId),
}

/// One step on its way. A batch without sequences only carries commands. Step 0 begins a term: it carries
/// neither, and proves every link that steps and tokens take.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepMessage {
    /// Index of the stage it is for: one node may hold several.
    pub stage: u32,
    /// Carried out before the batch, in order.
    #[serde(deserialize_with = "list::<_, _, COMMANDS_MAX>")]
    pub commands: Vec<StageCommand>,
    /// The batch.
    pub frame: StepFrame,
    /// What earlier stages could not compute of this step; the last stage passes it on to the scheduler.
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub failures: Vec<StepFailure>,
    /// The caches of the stages that step 0 has passed, in order; empty in every other step.
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub pages: Vec<StagePages>,
    /// With step 0: pages of the term before that all stages it has passed still keep. What is not named is
    /// forgotten.
    #[serde(deserialize_with = "list::<_, _, PAGES_OF_TERM_MAX>")]
    pub kept: Vec<PageKey>,
    /// With step 0: the stages that it has passed and that have none of these pages, those that the scheduler
    /// knows of included. With another step: only these stages compute it, and any other one that has one of
    /// them behind it sends the rows that it kept.
    pub rebuilds: Option<StageSet>,
    /// How long each stage that it has passed computed it, in microseconds. It decides nothing.
    pub computed_us: Vec<u32>,
    /// How `rows` are encoded.
    pub rows_dtype: WireDType,
    /// Hidden rows, little-endian, in the order of the frame's tokens; empty towards the first stage. Travels
    /// as a raw tail behind the rest.
    #[serde(skip)]
    pub rows: Bytes,
}

/// Some stages of a placement, by their index: a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StageSet([u64; STAGES_MAX / 64]);

impl StageSet {
    /// The set of these stages.
    pub fn of(stages: impl IntoIterator<Item = usize>) -> Self {
        stages.into_iter().fold(Self::default(), Self::with)
    }

    /// These and one more; of an index that no stage of a placement has, only these.
    pub fn with(mut self, stage: usize) -> Self {
        if let Some(word) = self.0.get_mut(stage / 64) {
            *word |= 1 << (stage % 64);
        }
        self
    }

    /// Whether this stage is one of them.
    pub fn has(self, stage: usize) -> bool {
        self.0.get(stage / 64).is_some_and(|word| (word >> (stage % 64)) & 1 == 1)
    }

    /// Whether all of the others are among them.
    pub fn includes(self, others: Self) -> bool {
        self.0.iter().zip(others.0).all(|(own, other)| (other & !own) == 0)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether they are some, and not all, of so many.
    pub fn is_part_of(self, stages: usize) -> bool {
        (1..stages).contains(&self.stages().count()) && self.stages().all(|stage| stage < stages)
    }

    /// Their indices, in order.
    fn stages(self) -> impl Iterator<Item = usize> {
        (0..STAGES_MAX).filter(move |&stage| self.has(stage))
    }
}

impl std::fmt::Debug for StageSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.stages()).finish()
    }
}

/// The outcome of one step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct TokensMessage {
    pub placement: PlacementId,
    pub term: Term,
    pub step: u64,
    /// One per sequence that samples.
    #[serde(deserialize_with = "list::<_, _, SEQUENCES_MAX>")]
    pub results: Vec<TokenResult>,
    /// What stages could not compute of this step (for a driver: empty, it is told by `StepFailed`).
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub failures: Vec<StepFailure>,
    /// With step 0: the caches of all stages, in order.
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub pages: Vec<StagePages>,
    /// With step 0: pages of the term before that every stage still keeps.
    #[serde(deserialize_with = "list::<_, _, PAGES_OF_TERM_MAX>")]
    pub kept: Vec<PageKey>,
    /// With step 0: stages that have none of these pages.
    pub rebuilds: Option<StageSet>,
    /// How long each stage computed it, in microseconds (for a driver: empty, it is told at the end). It
    /// decides nothing.
    pub computed_us: Vec<u32>,
}

/// Where the time of some steps of a sequence went, in microseconds. Steps on their way at once count each.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// What each stage computed, in order.
    #[serde(deserialize_with = "list::<_, _, STAGES_MAX>")]
    pub stages_us: Vec<u64>,
    /// The rest: links, and waiting for steps in front.
    pub between_us: u64,
}

impl PhaseTimes {
    /// Takes in one step, which was on its way for `total_us`.
    pub fn add(&mut self, computed_us: &[u32], total_us: u64) {
        if self.stages_us.len() < computed_us.len() {
            self.stages_us.resize(computed_us.len(), 0);
        }
        let mut rest_us = total_us;
        for (sum_us, &us) in self.stages_us.iter_mut().zip(computed_us) {
            // Of what a member says of itself no more than there was.
            let us = u64::from(us).min(rest_us);
            *sum_us = sum_us.saturating_add(us);
            rest_us -= us;
        }
        self.between_us = self.between_us.saturating_add(rest_us);
    }
}

/// The same for its prompt and for the tokens behind the first.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SequenceTimes {
    /// Up to the first token.
    pub prompt: PhaseTimes,
    /// Behind it.
    pub answer: PhaseTimes,
}

/// What the last answer took that had its pipeline to itself, of a prompt of which nothing was kept.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct AloneTimes {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// From its first step to its first token, in microseconds.
    pub first_token_us: u64,
    /// Where the time of these steps went.
    pub prompt: PhaseTimes,
    /// Tokens behind the first that came one a step, without guesses.
    pub answer_tokens: u32,
    /// Where the time of these went.
    pub answer: PhaseTimes,
}

/// Fewer tokens say nothing of the time of one.
const TELLING_TOKENS_MIN: u32 = 8;

impl AloneTimes {
    /// Whether its first token has come.
    pub fn has_begun(&self) -> bool {
        self.prompt_tokens > 0
    }

    /// Whether it has tokens enough to say how long one takes.
    pub fn is_telling(&self) -> bool {
        self.answer_tokens >= TELLING_TOKENS_MIN
    }
}

/// The cache of one stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StagePages {
    /// Pages of keys and values.
    pub pages: u32,
    /// Tokens that one page holds.
    pub page_tokens: u32,
}

/// What a step sampled of one sequence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TokenResult {
    /// The sequence.
    pub sequence: SequenceId,
    /// Which submission of it. The engine does not know; the stage fills it in.
    pub attempt: Attempt,
    /// Where the first token stands in the sequence (prompt included, from 0).
    pub position: u32,
    /// The tokens, in order: at least one; every one but the last is an accepted draft.
    #[serde(deserialize_with = "list::<_, _, SAMPLED_MAX>")]
    pub tokens: Vec<SampledToken>,
    /// Drafts the step carried for it. One more token than these at most.
    pub drafts: u32,
    /// Tokens that its grammar leaves no choice about behind these, as the model's tokenizer spells them (for
    /// a driver: empty). What comes may be others: they are good for drafts and for nothing else.
    pub forced: Vec<u32>,
}

impl TokenResult {
    /// Drafts that were right.
    pub fn drafts_accepted(&self) -> u32 {
        // Messages come in with at most one token more than drafts.
        (self.tokens.len() as u32).saturating_sub(1).min(self.drafts)
    }

    /// Whether it is what `part` of a step of a model with so many tokens can give.
    pub fn answers(&self, part: &StepSequence, vocab: u32) -> bool {
        let place = (self.sequence, self.position, self.drafts);
        self.tokens.iter().all(|token| token.token < vocab)
            && place == (part.sequence, part.sample_position(), part.drafts)
            && part.is_answered_by(self.tokens.iter().map(|t| t.token))
    }
}

/// A step that could not be computed. The pipeline goes on without its sequences.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct StepFailure {
    pub placement: PlacementId,
    pub term: Term,
    pub step: u64,
    pub stage: u32,
    /// The sequences lost with it, and which submission of each (for a driver: only its own).
    #[serde(deserialize_with = "list::<_, _, SEQUENCES_MAX>")]
    pub sequences: Vec<(SequenceId, Attempt)>,
    pub kind: FailureKind,
    pub why: ComputeFault,
}
