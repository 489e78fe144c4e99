//! Assigns contiguous layer ranges of one model to the devices of a cluster.
//!
//! [`plan`] is a pure function from a [`PlanRequest`] (model shape, context, devices, links, objective) to a
//! [`Plan`]: stages in pipeline order, a reason for every device, and a prediction where everything it rests on
//! was measured. *Solo is a legal answer*, and so is leaving a device out.
//!
//! For now the search is simple: memory decides who can take part, measured speed decides the shares. The
//! interface is the one the constraint search will stand behind.
//!
//! **Architecture invariant:** nothing here knows how bytes travel or what a tensor is. Link cost arrives as a
//! number; the transport that measured it stays out of sight.
//!
//! Start reading at [`plan`].

#![forbid(unsafe_code)]

mod errors;
mod request;

pub use errors::{DeviceMemory, PlanError};
pub use request::{
    DeviceReason, LinkFacts, Objective, Plan, PlanDevice, PlanRequest, Prediction, StageMemory,
};

/// Places the model of `request` on its devices.
pub fn plan(_request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
    todo!()
}
