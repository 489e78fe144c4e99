//! Where nothing goes wrong nothing is taken for wrong: a false alarm is repaired, and nobody would see it in
//! an answer.

use std::collections::{BTreeMap, BTreeSet};

use exo_cluster::wire::ControlMessage;
use exo_machine::{Effect, Notice, SequenceEvent};
use exo_types::{InstanceId, PlacementId};

use super::{Checked, Facts, Observation, Watch, said};
use crate::clients::AskWhat;
use crate::scenario::Kind;

#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Where each instance was placed first.
    placements: BTreeMap<InstanceId, PlacementId>,
    /// Who each node said is gone, and not yet that it is back.
    gone: BTreeMap<usize, BTreeSet<String>>,
}

/// A node says once that a member is gone, until it says that it is back.
pub(super) fn gone_is_said_once(watch: &mut Watch, _: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let gone = &mut watch.quiet.gone;
    match *seen {
        Observation::Began { node } => drop(gone.remove(&node)),
        Observation::Effects { node, effects } => {
            for effect in effects {
                match effect {
                    Effect::Notice(Notice::Lost { name, reason })
                        if !gone.entry(node).or_default().insert(name.clone()) =>
                    {
                        return Err(format!("n{node} says again that {name} is gone: {reason}"));
                    }
                    Effect::Notice(Notice::Up { name }) => {
                        gone.entry(node).or_default().remove(name);
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// No member is lost, no answer is interrupted, and nothing is placed anew, unless somebody asks for it.
pub(super) fn quiet_stays_quiet(watch: &mut Watch, facts: &Facts<'_>, seen: &Observation<'_>) -> Checked {
    let moves = facts.scenario.asks.iter().any(|ask| matches!(ask.what, AskWhat::Drain { .. }));
    let Observation::Effects { node, effects } = *seen else { return Ok(()) };
    if !matches!(facts.scenario.kind, Kind::Quiet | Kind::Wire | Kind::Strangers) || moves {
        return Ok(());
    }
    for effect in effects {
        match effect {
            Effect::Notice(Notice::Lost { name, reason }) => {
                return Err(format!("n{node} says that {name} is gone: {reason}"));
            }
            Effect::Emit { stream, event: SequenceEvent::Queued(wait) } if wait.interrupted_by.is_some() => {
                return Err(format!("n{node} tells client {}: {wait}", stream.0));
            }
            _ => {}
        }
    }
    let views = said(effects).filter_map(|said| match said.message {
        ControlMessage::Instances { instances, .. } => Some(instances),
        _ => None,
    });
    for view in views.flatten() {
        let (instance, now) = (view.instance(), view.placement.id);
        let first = *watch.quiet.placements.entry(instance).or_insert(now);
        if first != now {
            return Err(format!("n{node} has placed {instance} anew, as {now} in place of {first}"));
        }
    }
    Ok(())
}
