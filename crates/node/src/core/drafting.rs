//! Guesses of the small model, between it and the schedulers of this node.

use exo_cluster::{InstanceView, SchedulerInput, ShardKey, Speculation};
use exo_types::{InstanceId, SequenceId};

use super::Core;
use crate::Notice;
use crate::draft::DraftEvent;

impl Core {
    /// How tokens of an instance are guessed ahead: as configured, unless the small model cannot guess for it.
    pub(super) fn speculation_of(&self, view: &InstanceView) -> Speculation {
        let wanted = self.p.config.speculation;
        if wanted != Speculation::Model {
            return wanted;
        }
        match self.p.draft.as_ref().and_then(|draft| draft.verdict(view.model())) {
            Some(Ok(())) => Speculation::Model,
            Some(Err(reason)) => {
                // Whoever asks this node for the model is refused; another node placed it.
                self.notice(Notice::Warning(format!("no tokens are guessed ahead: {reason}")));
                Speculation::Off
            }
            None => Speculation::Off,
        }
    }

    pub(super) fn draft_event(&mut self, event: DraftEvent) {
        match event {
            DraftEvent::Answer { instance, sequence, text_len, mut tokens, each } => {
                // Vocabularies may be padded differently: what the large model has no row for, it must not see.
                let vocab = self.vocab_of(instance);
                let good = tokens.iter().take_while(|token| **token < vocab).count();
                tokens.truncate(good);
                let drafted = SchedulerInput::Drafted { sequence, text_len, tokens, each };
                self.feed_scheduler(instance, drafted);
            }
            DraftEvent::Refused { instance, sequence } => {
                self.feed_scheduler(instance, SchedulerInput::DraftRefused(sequence));
            }
            DraftEvent::Over { reason } => self.stop_drafting(&reason),
        }
    }

    /// The small model failed: everybody goes on without it.
    fn stop_drafting(&mut self, reason: &str) {
        let Some(draft) = self.p.draft.take() else { return };
        draft.end();
        let name = &draft.facts().name;
        self.notice(Notice::Warning(format!("tokens are no longer guessed ahead by `{name}`: {reason}")));
        let instances: Vec<_> = self.schedulers.keys().copied().collect();
        for instance in instances {
            self.feed_scheduler(instance, SchedulerInput::DraftsOver);
        }
    }

    pub(super) fn draft_over(&self, sequence: SequenceId) {
        if let Some(draft) = &self.p.draft {
            draft.forget(sequence);
        }
    }

    fn vocab_of(&self, instance: InstanceId) -> u32 {
        let generation = self.schedulers.get(&instance).map_or(0, |s| s.generation);
        let first = self.stages.get(&ShardKey { instance, generation, stage: 0 });
        first.and_then(|stage| stage.loaded).map_or(0, |loaded| loaded.geometry.vocab)
    }
}
