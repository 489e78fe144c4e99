//! Coordinator, instance scheduler, driver, worker reconcile and stage as state machines.
//!
//! Every machine is a struct with `handle(now: Time, input) -> Vec<Output>`. The machine of a node (crate
//! `machine`) puts them together: it feeds them time, messages and disk results, and turns what they put out
//! into effects. What nodes say to each other is [`wire`]; the protocol in words is `docs/protocol.md`.
//!
//! | machine | runs on | one per |
//! |---|---|---|
//! | [`Coordinator`] | every node, active on the elected one | process |
//! | [`Worker`] | every node | process |
//! | [`Scheduler`] | the first stage's node | placement |
//! | [`StageMachine`] | every stage's node | stage of a placement |
//! | [`Driver`] | the node that took the request | sequence |
//!
//! **Architecture invariant:** no clock, socket, file, thread or global randomness; ordered maps and closed
//! enums only, so that one seed replays a whole cluster. What a peer sends is checked before it is believed,
//! and every state a request can be in has a deadline.
//!
//! Start reading at [`wire`], then [`Scheduler`] and [`StageMachine`].

#![forbid(unsafe_code)]

pub mod bounds;
mod coordinator;
mod driver;
mod failures;
mod instances;
mod load_failure;
mod names;
mod page_chain;
mod reasons;
mod replication;
mod scheduler;
mod stage;
mod stage_status;
mod state;
#[cfg(test)]
mod testing;
mod undeliverable;
pub mod wire;
mod worker;

pub use coordinator::{
    AppendId, Coordinator, CoordinatorInput, CoordinatorOutput, DryRun, DryRunError, LEAVING_FOR, PlanId,
    ReplyTo, disk_rooms, dry_run, hop_seconds, link_facts,
};
pub use driver::{
    DraftCounts, Driver, DriverConfig, DriverInput, DriverOutput, DriverPhase, DriverStart, InterruptCause,
    PAUSE_MAX,
};
pub use instances::{EngineId, InstanceState, InstanceView, Moving, StageView};
pub use load_failure::{HOLDERS_NAMED_MAX, LoadFailure, LoadFault};
pub use names::NodeName;
pub use reasons::{
    Advice, Gain, GainOf, LinkChange, LinkQuantity, RemoveReason, ReplaceReason, ReplanReason, StageLoss,
    Unplaced, WaitReason,
};
pub use replication::{FollowerStep, LeaderStep, follow, lead};
#[cfg(feature = "planted")]
pub use scheduler::planted::SchedulerBug;
pub use scheduler::{
    PagesLeft, STEP_PER_TOKEN, Scheduler, SchedulerConfig, SchedulerInput, SchedulerOutput, Speculation,
    UnknownSpeculation,
};
pub use stage::{
    ComputeResult, FailedSequence, HeldSteps, StageGeometry, StageInput, StageMachine, StageOutput,
    StagePagesLeft,
};
pub use stage_status::StageStatus;
pub use state::{ApplyError, State, StateInstance};
pub use undeliverable::{MessageKind, Undeliverable};
pub use wire::events::{Event, EventError, InstanceRequest, PlaceObjective};
pub use worker::{Action, ActualShard, Phase, Worker, WorkerInput, plan};
