//! Steps, tokens and failures on their way: the stages of this node, the schedulers whose first stage is
//! here, and where each message goes.

use std::collections::BTreeMap;

use exo_cluster::wire::{
    DataMessage, InstanceFailure, MissingPart, Rejection, StageCommand, StageReport, StepMessage, Submission,
    TokensMessage,
};
use exo_cluster::{
    DriverInput, EngineId, Scheduler, SchedulerConfig, SchedulerInput, SchedulerOutput, Speculation,
    StageInput, StageMachine, StageOutput, Undeliverable,
};
#[cfg(feature = "planted")]
use exo_types::Term;
use exo_types::{FailureKind, InstanceId, NodeId, Placement, PlacementId, SequenceId, ShardPosition};

use crate::{DraftAsk, DraftEvent, Effect, NodeMachine, Notice, StepJob};

/// A stage of this node: step 0 can come.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) engine: EngineId,
    pub(crate) machine: StageMachine,
}

/// The scheduler of a placement whose first stage is here. An instance has one.
#[derive(Debug)]
pub(crate) struct SchedulerEntry {
    pub(crate) instance: InstanceId,
    pub(crate) scheduler: Scheduler,
}

impl NodeMachine {
    // ---- stages ----

    /// A stage stands on its engine: what waited for it goes in, and the first stage's scheduler begins with
    /// step 0.
    pub(crate) fn stage_wired(&mut self, position: ShardPosition, placement: Placement) {
        for (from, message) in self.held_steps.take(position) {
            self.feed_stage(position, StageInput::Step { from, message });
        }
        if position.stage == 0 {
            self.start_scheduler(placement);
        }
    }

    pub(crate) fn feed_stage(&mut self, position: ShardPosition, input: StageInput) {
        let Some(stage) = self.stages.get_mut(&position) else {
            return tracing::trace!(?position, "words for a stage that is over");
        };
        let engine = stage.engine;
        for output in stage.machine.handle(self.awake.now(), input) {
            match output {
                StageOutput::Compute { commands, frame, rows } => {
                    self.step_corrections.begun(engine, position, &frame);
                    let job = StepJob { commands, frame, rows };
                    self.out.push(Effect::Compute { engine, position, job });
                }
                #[cfg(feature = "planted")]
                StageOutput::Rewire { term, .. } if self.has_bug(crate::planted::Bug::NoRewire) => {
                    self.feed_stage(position, StageInput::Rewired { term });
                }
                #[cfg(feature = "planted")]
                StageOutput::Rewire { term, .. } if self.has_bug(crate::planted::Bug::ForgetsNamed) => {
                    self.out.push(Effect::Rewire { engine, position, term, keep: Vec::new() });
                }
                #[cfg(feature = "planted")]
                StageOutput::Rewire { term: Term::FIRST, .. }
                    if self.has_bug(crate::planted::Bug::KeepsPages) =>
                {
                    self.feed_stage(position, StageInput::Rewired { term: Term::FIRST });
                }
                StageOutput::Rewire { term, keep } => {
                    self.out.push(Effect::Rewire { engine, position, term, keep });
                }
                StageOutput::NotFinite { request, prompt } => {
                    self.gave_no_numbers(engine, request, prompt);
                }
                #[cfg(feature = "planted")]
                StageOutput::Send { to, message: message @ DataMessage::Tokens(_) }
                    if self.has_bug(crate::planted::Bug::ThriceTold) =>
                {
                    (0..3).for_each(|_| self.send_data(to, message.clone()));
                }
                StageOutput::Send { to, message } => {
                    self.note_numbers(engine, &message);
                    self.send_data(to, message);
                }
            }
        }
    }

    /// A step arrived for one of this node's stages.
    fn step_arrived(&mut self, from: NodeId, message: StepMessage) {
        let (placement, stage) = (message.frame.placement, message.stage);
        let position = ShardPosition { placement, stage, rank: 0 };
        if self.stages.contains_key(&position) {
            // So that a request is found in the log of every node that works on it.
            for command in &message.commands {
                if let StageCommand::Open { spec, cached, .. } = command {
                    let (request, cached_pages) = (spec.sequence.request, cached.len());
                    tracing::debug!(%request, stage, cached_pages, "a stage begins with a sequence");
                }
            }
            return self.feed_stage(position, StageInput::Step { from, message });
        }
        let missing = self.missing_stage(position);
        if let Some(answer) = self.held_steps.hold(self.awake.now(), from, message, missing) {
            self.send_data(from, answer);
        }
    }

    /// How far a stage is that is not there.
    fn missing_stage(&self, position: ShardPosition) -> MissingPart {
        let node = self.me;
        match self.worker.reports().iter().find(|r| r.serves == Some(position)) {
            Some(StageReport { status, .. }) => MissingPart::NotReady { node, status: status.clone() },
            None => MissingPart::Unheard { node },
        }
    }

    /// News from a later stage for the scheduler: it is here, or they go on against the direction of the
    /// steps.
    fn stage_report(&mut self, from: NodeId, placement: PlacementId, message: DataMessage) {
        if self.schedulers.contains_key(&placement) {
            return self.feed_scheduler(placement, SchedulerInput::Report { from, message });
        }
        match self.stages.keys().find(|p| p.placement == placement).copied() {
            Some(position) => self.feed_stage(position, StageInput::Report { from, message }),
            None => {
                tracing::trace!(peer = %from, got = %placement, "a report about a placement that is not here")
            }
        }
    }

    /// A message waited in vain for its link.
    pub(crate) fn undeliverable(&mut self, undeliverable: Undeliverable) {
        let (to, waited_ms) = (undeliverable.to, undeliverable.waited_ms);
        let step = undeliverable.kind.step();
        tracing::trace!(peer = %to, ?step, waited_ms, "a message found no link");
        let Some((placement, _)) = undeliverable.kind.pipeline() else { return };
        // A node may hold several stages of one pipeline: each knows what it has sent.
        let own: Vec<ShardPosition> =
            self.stages.keys().filter(|p| p.placement == placement).copied().collect();
        for position in own {
            self.feed_stage(position, StageInput::Undeliverable(undeliverable.clone()));
        }
    }

    // ---- schedulers ----

    fn start_scheduler(&mut self, placement: Placement) {
        let (id, instance) = (placement.id, placement.instance);
        // A pipeline that was given up gets no second scheduler: its stages are out of step.
        if self.instance_failures.iter().any(|t| t.placement == id) {
            return tracing::trace!(placement = %id, %instance, "no second scheduler for a placement that was given up");
        }
        if let Some(older) = self.scheduler_of(instance) {
            self.drop_scheduler(older);
        }
        let config = SchedulerConfig {
            vocab: self.vocab_of(id),
            speculation: self.speculation_of(&placement),
            #[cfg(feature = "planted")]
            planted: self.scheduler_bug(),
            ..Default::default()
        };
        let mut scheduler = Scheduler::new(config, self.awake.now(), placement);
        if let Some(left) = self.pages_left.remove(&instance) {
            scheduler = scheduler.inheriting(left);
        }
        self.schedulers.insert(id, SchedulerEntry { instance, scheduler });
        self.feed_scheduler(id, SchedulerInput::Tick);
    }

    pub(crate) fn drop_scheduler(&mut self, placement: PlacementId) {
        self.feed_scheduler(placement, SchedulerInput::Stop);
        self.leave_pages(placement);
    }

    /// A scheduler is over: what its stages keep is for the next placement of its instance.
    fn leave_pages(&mut self, placement: PlacementId) {
        let Some(SchedulerEntry { instance, scheduler }) = self.schedulers.remove(&placement) else { return };
        if let Some(left) = scheduler.into_left() {
            self.pages_left.insert(instance, left);
        }
    }

    pub(crate) fn scheduler_of(&self, instance: InstanceId) -> Option<PlacementId> {
        self.schedulers.iter().find(|(_, entry)| entry.instance == instance).map(|(placement, _)| *placement)
    }

    /// Whether step 0 has come back to this first stage's scheduler.
    pub(crate) fn is_serving(&self, position: ShardPosition) -> bool {
        self.schedulers.get(&position.placement).is_some_and(|entry| entry.scheduler.is_serving())
    }

    /// Between two terms an instance is not ready: its coordinator hears of it at once.
    pub(crate) fn feed_scheduler(&mut self, placement: PlacementId, input: SchedulerInput) {
        let Some(entry) = self.schedulers.get_mut(&placement) else {
            return tracing::trace!(%placement, "words for a scheduler that is over");
        };
        let was_serving = entry.scheduler.is_serving();
        let outputs = entry.scheduler.handle(self.awake.now(), input);
        let stopped = was_serving && !entry.scheduler.is_serving();
        self.scheduler_outputs(placement, outputs);
        if stopped {
            self.report_now();
        }
    }

    fn scheduler_outputs(&mut self, placement: PlacementId, outputs: Vec<SchedulerOutput>) {
        let Some(instance) = self.schedulers.get(&placement).map(|entry| entry.instance) else { return };
        for output in outputs {
            self.scheduler_output(placement, instance, output);
        }
    }

    fn scheduler_output(&mut self, placement: PlacementId, instance: InstanceId, output: SchedulerOutput) {
        let (to, message) = match output {
            SchedulerOutput::Send { to, message } => (to, message),
            SchedulerOutput::Draft { spec, count } if self.has_draft => {
                return self.out.push(Effect::Draft(DraftAsk::Guess { instance, spec, count }));
            }
            SchedulerOutput::Draft { .. } => {
                return self.feed_scheduler(placement, SchedulerInput::DraftsOver);
            }
            SchedulerOutput::DraftOver(sequence) => {
                return self.out.push(Effect::Draft(DraftAsk::Forget(sequence)));
            }
            SchedulerOutput::Step(step) => (self.me, DataMessage::Step(step)),
            SchedulerOutput::Serving => return self.report_now(),
            SchedulerOutput::InstanceFailed { kind, stage, why } => {
                let message = why.text(&|node| self.name_of(node));
                tracing::info!(target: "events::instance", %instance, %placement, message, "broke");
                match kind {
                    FailureKind::StageLost => self.leave_pages(placement),
                    // What stages hold may be why.
                    _ => drop(self.schedulers.remove(&placement)),
                }
                #[cfg(feature = "planted")]
                if self.has_bug(crate::planted::Bug::Unreported) {
                    return;
                }
                self.instance_failures.push(InstanceFailure { placement, stage, why });
                return self.report_now();
            }
        };
        self.send_data(to, message);
    }

    // ---- the small model ----

    /// How tokens of an instance are guessed ahead: as configured, or from the text itself where the small
    /// model cannot guess for it.
    fn speculation_of(&mut self, placement: &Placement) -> Speculation {
        let wanted = self.config.speculation;
        if wanted != Speculation::Model {
            return wanted;
        }
        let spec = placement.spec(0, 0);
        let engine = self.engines.values().find(|engine| engine.spec == spec);
        let verdict = engine.and_then(|engine| engine.loaded.as_ref()?.draft.clone());
        match verdict.filter(|_| self.has_draft) {
            Some(Ok(())) => Speculation::Model,
            Some(Err(reason)) => {
                // A request to this node for the model is refused; another node placed it.
                self.notice(Notice::Warning(format!("no small model guesses ahead: {reason}")));
                Speculation::Lookup
            }
            None => Speculation::Lookup,
        }
    }

    pub(crate) fn draft_event(&mut self, event: DraftEvent) {
        match event {
            DraftEvent::Answer { instance, sequence, text_len, mut tokens, each } => {
                if let Some(placement) = self.scheduler_of(instance) {
                    // Vocabularies may be padded differently: what the large model has no row for, it must
                    // not see.
                    let vocab = self.vocab_of(placement);
                    let good = tokens.iter().take_while(|token| **token < vocab).count();
                    tokens.truncate(good);
                    self.feed_scheduler(
                        placement,
                        SchedulerInput::Drafted { sequence, text_len, tokens, each },
                    );
                }
            }
            DraftEvent::Refused { instance, sequence } => {
                if let Some(placement) = self.scheduler_of(instance) {
                    self.feed_scheduler(placement, SchedulerInput::DraftRefused(sequence));
                }
            }
            DraftEvent::Over { name, reason } => {
                if !std::mem::replace(&mut self.has_draft, false) {
                    return;
                }
                let warning = format!("tokens are no longer guessed ahead by `{name}`: {reason}");
                self.notice(Notice::Warning(warning));
                self.feed_schedulers(|| SchedulerInput::DraftsOver);
            }
        }
    }

    /// By the engine of its first stage, which is here.
    fn vocab_of(&self, placement: PlacementId) -> u32 {
        let first = self.stages.iter().find(|(p, _)| p.placement == placement && p.stage == 0);
        let engine = first.and_then(|(_, stage)| self.engines.get(&stage.engine));
        engine.and_then(|engine| Some(engine.loaded.as_ref()?.geometry.vocab)).unwrap_or(0)
    }

    // ---- messages ----

    /// A message on the data channel, from a member or from this node itself.
    pub(crate) fn data(&mut self, from: NodeId, message: DataMessage) {
        match message {
            DataMessage::Submit(submission) => self.submitted(from, submission),
            DataMessage::Cancel { placement, sequence, attempt } => {
                let cancel = SchedulerInput::Cancel { from, placement, sequence, attempt };
                self.feed_scheduler(placement, cancel);
            }
            DataMessage::Step(step) => self.step_arrived(from, step),
            DataMessage::Tokens(tokens) => self.tokens_arrived(from, tokens),
            DataMessage::StepFailed(failure) => {
                for (sequence, _) in failure.sequences.clone() {
                    self.driver_hears(from, sequence, DataMessage::StepFailed(failure.clone()));
                }
            }
            DataMessage::NotWired { placement, .. }
            | DataMessage::Undelivered { placement, .. }
            | DataMessage::PipelineBroken { placement, .. } => self.stage_report(from, placement, message),
            DataMessage::Accepted { sequence, .. }
            | DataMessage::Started { sequence, .. }
            | DataMessage::Rejected { sequence, .. }
            | DataMessage::SequenceEnded { sequence, .. }
            | DataMessage::SequenceFailed { sequence, .. } => self.driver_hears(from, sequence, message),
        }
    }

    /// Results go to the scheduler, and from here to the drivers of this node: each to its own, once.
    fn tokens_arrived(&mut self, from: NodeId, tokens: TokensMessage) {
        let TokensMessage { placement, term, step, .. } = tokens;
        if let Some(entry) = self.schedulers.get_mut(&placement) {
            let outputs = entry.scheduler.tokens(self.awake.now(), from, &tokens);
            self.scheduler_outputs(placement, outputs);
        } else if tokens.results.is_empty() {
            tracing::trace!(peer = %from, %placement, %term, step, "a step came back to no scheduler");
        }
        for result in tokens.results {
            if !self.drivers.contains_key(&result.sequence) {
                tracing::trace!(peer = %from, request = %result.sequence.request, %placement, step, "tokens for no driver of this node");
                continue;
            }
            self.feed_driver(result.sequence, DriverInput::Tokens { from, placement, term, step, result });
        }
    }

    fn driver_hears(&mut self, from: NodeId, sequence: SequenceId, message: DataMessage) {
        if self.drivers.contains_key(&sequence) {
            self.feed_driver(sequence, DriverInput::Message { from, message });
        } else {
            tracing::trace!(peer = %from, request = %sequence.request, "words for a driver that is over");
        }
    }

    fn submitted(&mut self, from: NodeId, submission: Submission) {
        let Submission { placement, attempt, .. } = submission;
        let (request, prompt_tokens) = (submission.spec.sequence.request, submission.spec.prompt_tokens);
        tracing::debug!(%request, %attempt, peer = %from, prompt_tokens, "a sequence for the scheduler");
        if self.schedulers.contains_key(&placement) {
            return self.feed_scheduler(placement, SchedulerInput::Submit { from, submission });
        }
        tracing::trace!(peer = %from, got = %placement, %attempt, "a submission to a placement that is not scheduled here");
        let (sequence, why) = (submission.spec.sequence, Rejection::NoScheduler { node: self.me, placement });
        self.send_data(from, DataMessage::Rejected { placement, sequence, attempt, why });
    }

    // ---- losses ----

    /// The data link to a node ended: what was in it is lost. The pipelines that it was part of begin their
    /// next term.
    pub(crate) fn data_link_lost(&mut self, node: NodeId) {
        let positions: Vec<ShardPosition> = self.stages.keys().copied().collect();
        for position in positions {
            self.feed_stage(position, StageInput::LinkLost(node));
        }
        self.feed_schedulers(|| SchedulerInput::LinkLost(node));
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::DeafDrivers) {
            return;
        }
        self.feed_drivers(|| DriverInput::LinkLost(node));
    }

    /// A node is gone.
    pub(crate) fn requests_lost(&mut self, node: NodeId) {
        #[cfg(feature = "planted")]
        if self.config.planted == Some(crate::planted::Bug::LostMeansUnlinked) {
            self.feed_schedulers(|| SchedulerInput::LinkLost(node));
        }
        self.feed_schedulers(|| SchedulerInput::NodeLost(node));
        self.feed_drivers(|| DriverInput::NodeLost(node));
    }

    fn feed_schedulers(&mut self, input: impl Fn() -> SchedulerInput) {
        let placements: Vec<_> = self.schedulers.keys().copied().collect();
        for placement in placements {
            self.feed_scheduler(placement, input());
        }
    }

    pub(crate) fn tick_pipelines(&mut self) {
        for (from, answer) in self.held_steps.expire(self.awake.now()) {
            self.send_data(from, answer);
        }
        self.feed_schedulers(|| SchedulerInput::Tick);
    }
}

pub(crate) type Schedulers = BTreeMap<PlacementId, SchedulerEntry>;
