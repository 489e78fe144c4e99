//! Steps for a stage that is not there yet: loading, or its placement is not known on this node.

use std::time::Duration;

use exo_types::{NodeId, ShardPosition, Time};

use crate::wire::{DataMessage, Missing, MissingPart, StepMessage};

/// How long a step waits for its stage.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(2);
/// Steps that wait for one stage.
const FRAMES_MAX: usize = 4;
/// Steps that wait for all stages of a node.
const FRAMES_IN_ALL_MAX: usize = 64;
/// And their bytes. A step 0 that is honest has as many as its stage has kept pages, 8 each.
const BYTES_IN_ALL_MAX: usize = 16 << 20;

/// Holds step 0 until its stage is there, or says what is missing. A later step finds its stage, or the term
/// is over: it is not held.
#[derive(Clone, Debug, Default)]
pub struct HeldSteps {
    /// In order of arrival.
    frames: Vec<HeldStep>,
}

#[derive(Clone, Debug)]
struct HeldStep {
    since: Time,
    from: NodeId,
    position: ShardPosition,
    message: StepMessage,
    bytes: usize,
    missing: MissingPart,
}

impl HeldSteps {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// A step came from `from` for a stage that is not there, and how far that is. Gives the answer to the
    /// sender if the step is not held.
    pub fn hold(
        &mut self,
        now: Time,
        from: NodeId,
        message: StepMessage,
        missing: MissingPart,
    ) -> Option<DataMessage> {
        let (placement, stage) = (message.frame.placement, message.stage);
        let position = ShardPosition { placement, stage, rank: 0 };
        let waiting = self.frames.iter().filter(|held| held.position == position).count();
        let bytes = message.bytes_about();
        let is_full = waiting >= FRAMES_MAX || !self.has_room(from, bytes);
        let held = HeldStep { since: now, from, position, message, bytes, missing };
        if held.message.frame.step > 0 || is_full {
            return Some(held.answer(now));
        }
        self.frames.push(held);
        None
    }

    /// Whether one more fits. Half of all places, and half of their bytes, are not for one sender: it may
    /// have made up the placements of its steps.
    fn has_room(&self, from: NodeId, bytes: usize) -> bool {
        let sum = |frames: &mut dyn Iterator<Item = &HeldStep>| {
            frames.fold((1, bytes), |(count, bytes), held| (count + 1, bytes + held.bytes))
        };
        let (count, all) = sum(&mut self.frames.iter());
        let (own_count, own) = sum(&mut self.frames.iter().filter(|held| held.from == from));
        count <= FRAMES_IN_ALL_MAX
            && all <= BYTES_IN_ALL_MAX
            && own_count <= FRAMES_IN_ALL_MAX / 2
            && own <= BYTES_IN_ALL_MAX / 2
    }

    /// The stage is there: its steps in order, with their senders.
    pub fn take(&mut self, position: ShardPosition) -> Vec<(NodeId, StepMessage)> {
        self.frames
            .extract_if(.., |held| held.position == position)
            .map(|held| (held.from, held.message))
            .collect()
    }

    /// Answers to the senders of what has waited too long. Call it on every tick.
    pub fn expire(&mut self, now: Time) -> Vec<(NodeId, DataMessage)> {
        let late = self.frames.extract_if(.., |held| now.since(held.since) >= HOLD_MAX);
        late.map(|held| (held.from, held.answer(now))).collect()
    }
}

impl HeldStep {
    fn answer(&self, now: Time) -> DataMessage {
        let ShardPosition { placement, stage, .. } = self.position;
        let term = self.message.frame.term;
        let (step, waited_ms) = (self.message.frame.step, now.since(self.since).as_millis() as u64);
        tracing::trace!(%placement, %term, stage, step, waited_ms, missing = ?self.missing, "a step met no stage");
        let missing = Missing { stage, what: self.missing.clone(), waited_ms };
        DataMessage::NotWired { placement, term, stage, step, missing }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use exo_types::{StepFrame, Term, WireDType};

    use super::*;
    use crate::StageStatus;
    use crate::testing::{node, placement_id};

    fn step(step: u64, stage: u32) -> StepMessage {
        let frame = StepFrame { placement: placement_id(1, 1), term: Term::FIRST, step, sequences: vec![] };
        let (commands, failures, pages, rows_dtype) = (vec![], vec![], vec![], WireDType::F32);
        StepMessage {
            stage,
            commands,
            frame,
            failures,
            pages,
            kept: vec![],
            rebuilds: None,
            computed_us: vec![],
            rows_dtype,
            rows: Bytes::new(),
        }
    }

    fn loading() -> MissingPart {
        MissingPart::NotReady { node: node(1), status: StageStatus::Waiting }
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// What a stage that did not come is answered with.
    fn missing(message: &DataMessage) -> String {
        match message {
            DataMessage::NotWired { step, missing, .. } => format!("step {step}: {missing}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn step_0_waits_for_its_stage() {
        let (mut held, key) =
            (HeldSteps::default(), ShardPosition { placement: placement_id(1, 1), stage: 1, rank: 0 });
        assert_eq!(held.hold(at(0), node(1), step(0, 1), loading()), None);
        assert_eq!(held.hold(at(0), node(1), step(0, 2), loading()), None);
        assert!(held.expire(at(1900)).is_empty());
        assert_eq!(held.take(key), [(node(1), step(0, 1))]);
        assert!(held.take(key).is_empty(), "once");
    }

    #[test]
    fn after_two_seconds_its_sender_hears_what_is_missing() {
        let mut held = HeldSteps::default();
        held.hold(at(0), node(1), step(0, 1), loading());
        let late = held.expire(at(2000));
        assert_eq!(late[0].0, node(1));
        assert_eq!(
            missing(&late[0].1),
            format!(
                "step 0: stage 1: it is not ready on node {}: {} (waited 2000 ms)",
                node(1),
                StageStatus::Waiting.text(&crate::names::by_id)
            )
        );
        assert!(held.expire(at(9000)).is_empty(), "once");
    }

    #[test]
    fn a_fifth_step_and_one_that_is_not_step_0_are_answered_at_once() {
        let mut held = HeldSteps::default();
        assert_eq!(
            missing(&held.hold(at(0), node(1), step(3, 1), loading()).unwrap()),
            format!(
                "step 3: stage 1: it is not ready on node {}: {} (waited 0 ms)",
                node(1),
                StageStatus::Waiting.text(&crate::names::by_id)
            )
        );
        for _ in 0..FRAMES_MAX {
            assert_eq!(held.hold(at(0), node(1), step(0, 1), loading()), None);
        }
        assert!(held.hold(at(0), node(1), step(0, 1), loading()).is_some());
        assert_eq!(held.hold(at(0), node(1), step(0, 2), loading()), None, "another stage has room");
    }

    #[test]
    fn one_sender_takes_neither_all_places_nor_more_than_so_many_bytes() {
        let mut held = HeldSteps::default();
        let stages = |held: &mut HeldSteps, from: u8, rows: usize| {
            let fits = |stage: &u32| {
                let message =
                    StepMessage { rows: vec![0; rows].into(), ..step(0, 100 * u32::from(from) + stage) };
                held.hold(at(0), node(from), message, loading()).is_none()
            };
            (0..99).take_while(fits).count()
        };
        assert_eq!(stages(&mut held, 1, 0), FRAMES_IN_ALL_MAX / 2);
        assert_eq!(stages(&mut held, 2, 0), FRAMES_IN_ALL_MAX / 2, "the other half is there for others");
        assert_eq!(stages(&mut held, 3, 0), 0);
        let mut held = HeldSteps::default();
        assert_eq!(stages(&mut held, 1, 1 << 20), 8);
        assert_eq!(stages(&mut held, 2, 1 << 20), 8);
        assert_eq!(stages(&mut held, 3, 1 << 10), 0, "16 MiB wait");
        held.expire(at(2000));
        assert_eq!(stages(&mut held, 3, 1 << 20), 8, "what went takes no room");
    }
}
