//! What makes a fact impossible.

use exo_types::{InstanceId, PlacementId};

/// An event that contradicts the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// No such instance.
    #[error("there is no instance {instance}")]
    UnknownInstance {
        /// The instance.
        instance: InstanceId,
    },
    /// Instance ids are never used twice.
    #[error("instance {instance} is not after {last}, the last one placed")]
    InstanceReused {
        /// The new one.
        instance: InstanceId,
        /// The last one.
        last: InstanceId,
    },
    /// No coordinator gives out such an id.
    #[error("instance {instance} is beyond {end}, where ids end")]
    InstanceBeyond {
        /// The new one.
        instance: InstanceId,
        /// The first that is none.
        end: InstanceId,
    },
    /// Ids of placements are never used twice.
    #[error("placement {given} is not after {last}, the last one")]
    PlacementReused {
        /// The new one.
        given: PlacementId,
        /// The last one.
        last: PlacementId,
    },
    /// The placement is not one of this request.
    #[error("the placement of instance {instance} does not serve its request: {what}")]
    Placement {
        /// The instance.
        instance: InstanceId,
        /// What is wrong.
        what: &'static str,
    },
    /// More instances than a cluster may have.
    #[error("a cluster has at most {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}
