//! Every message between nodes, with its encoding.
//!
//! Two channels: [`ControlMessage`] coordinates, [`DataMessage`] carries sequences, steps and tokens. Both
//! are postcard behind a version byte; decoding bounds every list before it is in memory and every count and
//! text before anything is believed, so that a hostile peer costs some thirty times the bytes it sent at
//! most. Hidden rows follow a step as a raw tail.

mod backup;
mod check;
mod codec;
mod control;
mod data;
pub(crate) mod events;
pub mod limits;
mod measurements;
mod refusal;
mod rejection;
mod size;
#[cfg(test)]
mod tests;

pub use backup::{Backup, BackupMessage, Claimed};
pub(crate) use check::Check;
pub use check::{CheckError, token_bytes};
pub use codec::{WIRE_VERSION, WireError};
pub use control::{
    Bandwidth, CardChange, CardEvent, ControlAsk, ControlMessage, ControlReply, DesiredShard, DesiredState,
    DeviceExclusion, DeviceReport, Drain, FreeMemory, HeldModel, InstanceFailure, LinkReport, LogMessage,
    NodeReport, PlannerDevice, PlannerInputs, RecentPackets, Refusal, ReplanReport, StageReport, Traffic,
    Unloadable,
};
pub(crate) use data::sampling_bytes_about;
pub use data::{
    AloneTimes, DataMessage, EndReason, PhaseTimes, SequenceTimes, StageCommand, StagePages, StageSet,
    StepFailure, StepMessage, Submission, TokenResult, TokensMessage, spec_bytes_about,
};
pub use limits::{BACKUP_BYTES_MAX, clip};
pub use measurements::{
    FetchSource, Histogram, LoadReport, ModelTotals, NodeMeasurements, NodeVitals, PullReport,
};
pub(crate) use refusal::in_use_text;
pub use refusal::{
    Busyness, ControlRefusal, InvalidAsk, LogFailure, NoPlan, NotCoordinator, RequestDifference, Undecided,
    UnknownTarget,
};
pub use rejection::{Busy, Rejection};

pub use crate::failures::{
    CacheMismatch, ComputeFault, Missing, MissingPart, PageFault, PipelineBreak, PipelineFailure,
    SequenceFault, TermEnd,
};
