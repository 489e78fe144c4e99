//! Why placements are replaced, wait, move and end: closed sets with their numbers. They cross the wire and
//! stay in the log; the sentence is made where it is shown, with the names that nodes have there.

use std::fmt;

use exo_types::{DeviceId, NodeId, size, size_up};
use serde::{Deserialize, Serialize};

use crate::failures::PipelineFailure;
use crate::load_failure::LoadFailure;
use crate::names::{NodeName, shown_by_id};
use crate::stage_status::StageStatus;

/// Why an instance is placed anew, or its stages are to be elsewhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ReplaceReason {
    /// A stage of it cannot go on.
    Stage { stage: u32, node: NodeId, loss: StageLoss },
    /// Its scheduler gave it up.
    Failed {
        /// So often in a row on the same devices; 1 where the first time is enough.
        times: u32,
        why: PipelineFailure,
    },
    /// A node is to have no stages.
    Drained { node: NodeId },
    /// A plan is better than what stands.
    Better(Gain),
}

/// What became of a stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum StageLoss {
    NodeGone,
    /// Its device is not supported any more. In the words of who tried it.
    Unsupported(String),
    /// Its node does not use the device any more.
    Unused {
        device: DeviceId,
    },
    /// It was ready, and is not.
    NotReady {
        status: StageStatus,
    },
    /// Its device refused to load it.
    LoadRefused {
        failed_loads: u32,
        why: LoadFailure,
    },
    /// Its load does not come further.
    NoProgress {
        seconds: u64,
        status: StageStatus,
    },
}

/// Why an instance waits, or was given up: nothing that is there takes what it lost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WaitReason {
    /// What it lost.
    pub lost: ReplaceReason,
    /// Why that is nowhere else.
    pub why: Unplaced,
}

/// Why there is no other placement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Unplaced {
    /// It was placed anew again and again, and never became ready.
    InVain { times: u32 },
    /// It fits only over two nodes that do not talk.
    Apart { a: NodeId, b: NodeId },
    /// The planner finds nothing, as it says.
    NoPlan(String),
}

/// Why an instance is no more.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum RemoveReason {
    /// Somebody asked for that.
    Asked { by: NodeId },
    /// A request had loaded it, and another model needs its room.
    MakesRoom { model_name: String },
    /// A request had loaded it, and none came any more.
    Unused { seconds: u64 },
    /// It never served, and nothing takes what it lost.
    GivenUp(WaitReason),
}

/// What a better plan gains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gain {
    /// Of the time that it takes where it is, in per cent.
    pub percent: u64,
    /// Time of what.
    pub of: GainOf,
}

/// What a better plan makes faster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GainOf {
    /// One request.
    Request,
    /// A token for every stream.
    Streams,
}

/// Why an instance that serves is worth a move, or is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ReplanReason {
    Better(Gain),
    BeingUnloaded,
    /// The planner would place it as it is placed.
    Same,
    BeingMoved,
    /// The best plan is not worth a move.
    GainsLittle {
        percent: u64,
        percent_min: u64,
    },
    /// The better plan cannot be loaded while what stands serves.
    NoRoom {
        percent: u64,
        node: NodeId,
        /// Its device; `None` where that and others share the memory.
        device: Option<DeviceId>,
        needed_bytes: u64,
        free_bytes: u64,
    },
}

/// A better plan that nobody has asked for, and why the planner has looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Advice {
    /// What it gains.
    pub gain: Gain,
    /// The link whose change made it look, where it was one.
    pub link: Option<LinkChange>,
}

/// A number of a link that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct LinkChange {
    /// Who measures it.
    pub at: NodeId,
    pub peer: NodeId,
    pub what: LinkQuantity,
    /// What it was; nothing is known of one that was not measured before.
    pub before: Option<u64>,
    pub now: u64,
}

/// What is measured of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LinkQuantity {
    /// The round trip, in microseconds.
    RoundTripUs,
    /// Bytes per second from the other end to the one that measures.
    BytesPerS,
}

impl ReplaceReason {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Stage { stage, node, loss } => {
                let which = format!("stage {stage} on {}", name(*node));
                match loss {
                    StageLoss::NodeGone => format!("{which} is lost"),
                    StageLoss::Unsupported(reason) => format!("{which}: {reason}"),
                    StageLoss::Unused { device } => {
                        format!("{which}: it does not compute on {device} any more")
                    }
                    StageLoss::NotReady { status } => {
                        format!("{which} is no longer ready: {}", status.text(name))
                    }
                    StageLoss::LoadRefused { failed_loads, why } => {
                        format!("{which} could not be loaded, {failed_loads} times: {}", why.text(name))
                    }
                    StageLoss::NoProgress { seconds, status } => {
                        format!("{which} made no progress for {seconds} s: {}", status.text(name))
                    }
                }
            }
            Self::Failed { times: 0 | 1, why } => why.text(name),
            Self::Failed { times, why } => format!("{times} times on the same devices: {}", why.text(name)),
            Self::Drained { node } => format!("{} is drained", name(*node)),
            Self::Better(gain) => gain.to_string(),
        }
    }
}

impl WaitReason {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        self.text_behind(None, name)
    }

    /// The sentence behind one that has said already what was lost.
    pub fn text_behind(&self, said: Option<&ReplaceReason>, name: NodeName<'_>) -> String {
        let lost = (said != Some(&self.lost)).then(|| self.lost.text(name));
        let parts = match &self.why {
            Unplaced::InVain { times } => {
                let in_vain = format!("placed anew {times} times without becoming ready");
                [Some(in_vain), lost.map(|lost| format!("last: {lost}"))]
            }
            Unplaced::Apart { a, b } => [lost, Some(apart_text(&name(*a), &name(*b)))],
            Unplaced::NoPlan(why) => [lost, Some(why.clone())],
        };
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Why a plan is refused although it fits: two that it puts beside each other do not talk.
pub(crate) fn apart_text(a: &str, b: &str) -> String {
    format!("it fits only over {a} and {b}, and between these no data link is open")
}

impl RemoveReason {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        self.text_behind(None, name)
    }

    /// The sentence behind one that has said already what was lost.
    pub fn text_behind(&self, said: Option<&ReplaceReason>, name: NodeName<'_>) -> String {
        match self {
            Self::Asked { by } => format!("unloaded by {}", name(*by)),
            Self::MakesRoom { model_name } => format!("unloaded to make room for {model_name}"),
            Self::Unused { seconds } => {
                format!("unloaded: a request had loaded it, and none used it for {seconds} s")
            }
            Self::GivenUp(reason) => reason.text_behind(said, name),
        }
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.of {
            GainOf::Request => "a request",
            GainOf::Streams => "a token for every stream",
        };
        write!(f, "{what} takes {} % less time", self.percent)
    }
}

impl ReplanReason {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::Better(gain) => gain.to_string(),
            Self::BeingUnloaded => "it is being unloaded".to_owned(),
            Self::Same => "the planner would place it as it is placed".to_owned(),
            Self::BeingMoved => "it is being moved, or placed anew, already".to_owned(),
            Self::GainsLittle { percent, percent_min } => {
                format!("the best plan gains {percent} %, and less than {percent_min} % is not worth a move")
            }
            Self::NoRoom { percent, node, device, needed_bytes, free_bytes } => {
                let node = name(*node);
                let shared = || "with what shares its memory".to_owned();
                let what = device.as_ref().map_or_else(shared, ToString::to_string);
                let (needed, free) = (size_up(*needed_bytes), size(*free_bytes));
                format!(
                    "a plan that gains {percent} % cannot be loaded beside what serves: {node} {what} needs {needed} and has \
                     {free} free; `exo unload` and `exo place` move it with a pause"
                )
            }
        }
    }
}

impl Advice {
    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match &self.link {
            Some(link) => format!("{}; it was looked at because {}", self.gain, link.text(name)),
            None => self.gain.to_string(),
        }
    }
}

impl LinkChange {
    /// "the round trip between a and b is 20 ms, and was 0.2 ms"
    pub fn text(&self, name: NodeName<'_>) -> String {
        let (here, there) = (name(self.at), name(self.peer));
        let unknown = "was not measured before".to_owned();
        match self.what {
            LinkQuantity::RoundTripUs => {
                let ms = |us: u64| format!("{} ms", us as f64 / 1e3);
                let before = self.before.map_or(unknown, |us| format!("was {}", ms(us)));
                format!("the round trip between {here} and {there} is {}, and {before}", ms(self.now))
            }
            LinkQuantity::BytesPerS => {
                let rate = |bytes: u64| format!("{}/s", size(bytes));
                let before = self.before.map_or(unknown, |bytes| format!("was {}", rate(bytes)));
                format!("the link from {there} to {here} has {}, and {before}", rate(self.now))
            }
        }
    }
}

shown_by_id!(ReplaceReason, WaitReason, RemoveReason, ReplanReason, Advice, LinkChange);
