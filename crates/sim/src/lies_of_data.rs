//! What a member says on the data channel that is not its to say: what others have said, as it was or bent,
//! and sequences of its own that no model can take.

use exo_cluster::wire::{
    ComputeFault, DataMessage, EndReason, PipelineBreak, PipelineFailure, SequenceTimes, Submission,
};
use exo_machine::{LinkId, Outgoing, Purpose};
use exo_types::{FailureKind, NodeId, PlacementId, RequestId};

use crate::model::VOCAB;
use crate::world::World;

/// What becomes of a message before the liar says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bend {
    /// Nothing: it comes again, from somebody else.
    Same,
    /// It is of the next term.
    NextTerm,
    /// It is of a later step.
    LaterStep,
    /// Its first token is another one.
    OtherToken,
    /// Its first token is none of the model.
    NoToken,
    /// It is of the next submission.
    NextAttempt,
    /// Its sequences have failed.
    Failed,
    /// Its sequence ended before its first token.
    Ended,
    /// Its pipeline broke.
    Broken,
    /// Its driver wants it no more.
    Cancelled,
    /// A sequence of the liar's own, with a token that is none of the model.
    Mine,
}

impl Bend {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Same,
        Self::NextTerm,
        Self::LaterStep,
        Self::OtherToken,
        Self::NoToken,
        Self::NextAttempt,
        Self::Failed,
        Self::Ended,
        Self::Broken,
        Self::Cancelled,
        Self::Mine,
    ];
}

/// A lie that waits for the message that it is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    liar: usize,
    to: usize,
    /// Messages that it could be made of, and lets go by.
    passes: usize,
    bend: Bend,
}

impl World {
    /// From now on a liar waits for what it could repeat to a node.
    pub(crate) fn lie_of_data(&mut self, liar: usize, to: usize, passes: usize, bend: Bend) {
        self.lies_waiting.push(Waiting { liar, to, passes, bend });
    }

    /// A node sends a message: others may say the same.
    pub(crate) fn overhear(&mut self, from: usize, link: LinkId, message: &Outgoing) {
        let Outgoing::Data(message) = message else { return };
        let Some((wire, side)) = self.net.of_link(from, link) else { return };
        let to = self.net.wire(wire).ends[1 - side].node;
        for mut waiting in std::mem::take(&mut self.lies_waiting) {
            // Each message has one sender to whom it is due.
            let is_due = waiting.to == to && waiting.liar != from;
            let own = self.nodes[waiting.liar].id;
            let lie = if is_due { bent(message, waiting.bend, own, self.now.0) } else { None };
            match lie {
                Some(lie) if waiting.passes == 0 => self.tell_lie(waiting.liar, to, lie),
                lie => {
                    waiting.passes -= usize::from(lie.is_some());
                    self.lies_waiting.push(waiting);
                }
            }
        }
    }

    fn tell_lie(&mut self, liar: usize, to: usize, lie: DataMessage) {
        let Some(link) = self.link_to_lie(liar, to, Purpose::Data) else { return };
        if let DataMessage::PipelineBroken { placement, .. } = &lie
            && self.is_part(liar, *placement)
        {
            return; // any stage may say so
        }
        // What the wire refuses ends the link, and nothing is learned.
        if DataMessage::decode(&lie.encode()).is_ok() {
            self.fired("lie on the data channel");
            self.tell(|| format!("n{liar} lies to n{to}: {lie:?}"));
            self.send(liar, link, Outgoing::Data(Box::new(lie)));
        }
    }

    /// Whether a node has a stage of a placement.
    fn is_part(&self, node: usize, placement: PlacementId) -> bool {
        let id = self.nodes[node].id;
        let placements = self.nodes.iter().flat_map(|node| node.disk.state().instances().values());
        let mut named = placements.map(|i| &i.placement).filter(|p| p.id == placement);
        named.any(|placement| placement.stages.iter().any(|stage| stage.leader().node == id))
    }
}

/// The message as the liar says it; `None` where it cannot be bent like that.
fn bent(message: &DataMessage, bend: Bend, liar: NodeId, number: u64) -> Option<DataMessage> {
    let mut lie = message.clone();
    match bend {
        Bend::Same => {}
        Bend::NextTerm => match &mut lie {
            DataMessage::Step(step) => step.frame.term = step.frame.term.next()?,
            DataMessage::Tokens(tokens) => tokens.term = tokens.term.next()?,
            DataMessage::Accepted { term, .. }
            | DataMessage::Started { term, .. }
            | DataMessage::SequenceEnded { term, .. } => *term = term.next()?,
            _ => return None,
        },
        Bend::LaterStep => match &mut lie {
            DataMessage::Step(step) => step.frame.step += 1,
            DataMessage::Tokens(tokens) => tokens.step += 1,
            _ => return None,
        },
        Bend::OtherToken => other_token(&mut lie, |token| (token + 1) % VOCAB)?,
        Bend::NoToken => other_token(&mut lie, |_| VOCAB + 7)?,
        Bend::NextAttempt => match &mut lie {
            DataMessage::Accepted { attempt, .. }
            | DataMessage::Started { attempt, .. }
            | DataMessage::Cancel { attempt, .. }
            | DataMessage::Submit(Submission { attempt, .. }) => attempt.0 += 1,
            DataMessage::Tokens(tokens) => tokens.results.first_mut()?.attempt.0 += 1,
            _ => return None,
        },
        Bend::Failed => {
            let DataMessage::Started { placement, term, sequence, attempt, .. } = *message else {
                return None;
            };
            let why = PipelineFailure::Step(ComputeFault::Engine("a lie".to_owned()));
            let kind = FailureKind::Constraint;
            lie = DataMessage::SequenceFailed { placement, term, sequence, attempt, kind, why };
        }
        Bend::Ended => {
            let DataMessage::Started { placement, term, sequence, attempt, .. } = *message else {
                return None;
            };
            let (reason, times) = (EndReason::MaxTokens, SequenceTimes::default());
            lie = DataMessage::SequenceEnded {
                placement,
                term,
                sequence,
                attempt,
                reason,
                generated: 0,
                times,
            };
        }
        Bend::Broken => {
            let DataMessage::Tokens(tokens) = message else { return None };
            let (placement, term) = (tokens.placement, tokens.term);
            let (kind, why) = (FailureKind::StageLost, PipelineBreak::LaterTerm { own: term });
            lie = DataMessage::PipelineBroken { placement, term, stage: 0, kind, why };
        }
        Bend::Cancelled => {
            let DataMessage::Submit(submission) = message else { return None };
            let (placement, sequence) = (submission.placement, submission.spec.sequence);
            lie = DataMessage::Cancel { placement, sequence, attempt: submission.attempt };
        }
        Bend::Mine => {
            let DataMessage::Submit(submission) = &mut lie else { return None };
            submission.spec.driver = liar;
            submission.spec.sequence.request = RequestId(u128::from(number) << 64 | 7);
            *submission.spec.history.last_mut()? = VOCAB + 7;
        }
    }
    Some(lie)
}

fn other_token(lie: &mut DataMessage, other: impl Fn(u32) -> u32) -> Option<()> {
    let token = match lie {
        DataMessage::Tokens(tokens) => &mut tokens.results.first_mut()?.tokens.first_mut()?.token,
        DataMessage::Submit(submission) => submission.spec.history.first_mut()?,
        DataMessage::Step(step) => step.frame.sequences.first_mut()?.tokens.first_mut()?,
        _ => return None,
    };
    *token = other(*token);
    Some(())
}
