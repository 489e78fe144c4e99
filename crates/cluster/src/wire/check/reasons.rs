//! Bounds of reasons, on the wire and in the log.

use super::super::{ControlRefusal, InvalidAsk, LogFailure, NoPlan, PipelineFailure, TermEnd, Undecided};
use super::placement::{device_id, name};
use super::{Check, CheckError, text};
use crate::reasons::{RemoveReason, ReplaceReason, ReplanReason, StageLoss, Unplaced, WaitReason};
use crate::{InstanceState, LoadFailure, Moving};

impl Check for ReplaceReason {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Stage { loss, .. } => loss.check(),
            Self::Failed { why, .. } => why.check(),
            Self::Drained { .. } | Self::Better(_) => Ok(()),
        }
    }
}

impl Check for PipelineFailure {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Ended(end) | Self::NoToken { last: end, .. } => end.check(),
            Self::NotOpened { missing, .. } => missing.as_ref().map_or(Ok(()), Check::check),
            Self::Undelivered(missing) => missing.check(),
            Self::Step(why) | Self::Steps { why, .. } => why.check(),
            Self::NodeGone { .. }
            | Self::Caches(_)
            | Self::Order { .. }
            | Self::NoTokens { .. }
            | Self::Stopped => Ok(()),
        }
    }
}

impl Check for TermEnd {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::NotThrough { missing, .. } => missing.check(),
            Self::Link { .. } | Self::Stage { .. } | Self::Late { .. } => Ok(()),
        }
    }
}

impl Check for StageLoss {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::NodeGone => Ok(()),
            Self::Unsupported(reason) => text("bytes of a reason", reason),
            Self::LoadRefused { why, .. } => why.check(),
            Self::Unused { device } => device_id(device),
            Self::NotReady { status } | Self::NoProgress { status, .. } => status.check(),
        }
    }
}

impl Check for LoadFailure {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::NoHolder { model_name, .. } => name(model_name),
            Self::Fault { detail, .. } => text("bytes of a reason", detail),
            Self::NoMemory { .. } | Self::NoProgress { .. } | Self::LetGo => Ok(()),
        }
    }
}

impl Check for WaitReason {
    fn check(&self) -> Result<(), CheckError> {
        self.lost.check()?;
        match &self.why {
            Unplaced::NoPlan(why) => text("bytes of a reason", why),
            Unplaced::InVain { .. } | Unplaced::Apart { .. } => Ok(()),
        }
    }
}

impl Check for RemoveReason {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Asked { .. } | Self::Unused { .. } => Ok(()),
            Self::MakesRoom { model_name } => name(model_name),
            Self::GivenUp(reason) => reason.check(),
        }
    }
}

impl Check for ReplanReason {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::NoRoom { device: Some(device), .. } => device_id(device),
            _ => Ok(()),
        }
    }
}

impl Check for ControlRefusal {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::DoesNotFit(plan) => plan.check(),
            Self::Invalid(what) => what.check(),
            Self::LogFailed(LogFailure::Write(error)) => text("bytes of a reason", error),
            Self::NoPlan { model_name, why } => {
                model_name.as_deref().map_or(Ok(()), name)?;
                match why {
                    Undecided::Changed { at_last, .. } => text("bytes of a reason", at_last),
                    Undecided::Apart { .. }
                    | Undecided::Late { .. }
                    | Undecided::Unloaded
                    | Undecided::Unpredictable => Ok(()),
                }
            }
            Self::InUse { model_names } => model_names.iter().try_for_each(|model| name(model)),
            Self::NotCoordinator(_)
            | Self::Unknown(_)
            | Self::LogFailed(LogFailure::Full { .. })
            | Self::Busy(_) => Ok(()),
        }
    }
}

impl Check for InvalidAsk {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::PlacedOtherwise { model_name, .. } => name(model_name),
            Self::NoPlan(plan) => plan.check(),
            Self::OutOfBounds(what) => text("bytes of a reason", what),
            Self::LeavesForOther(_) | Self::NotServing(_) => Ok(()),
        }
    }
}

impl Check for NoPlan {
    fn check(&self) -> Result<(), CheckError> {
        text("bytes of a reason", &self.explanation)?;
        self.unloaded.iter().try_for_each(|model| name(model))
    }
}

impl Check for InstanceState {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Degraded { reason } => reason.check(),
            Self::Waiting { reason } => reason.check(),
            Self::Failed { reason } => reason.check(),
            Self::Placing | Self::Loading | Self::Wiring | Self::Ready => Ok(()),
        }
    }
}

impl Check for Moving {
    fn check(&self) -> Result<(), CheckError> {
        match self {
            Self::Loading { reason, .. } => reason.check(),
            Self::Stays { .. } => Ok(()),
        }
    }
}
