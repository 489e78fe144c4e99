//! What makes a fact impossible.

use exo_types::{InstanceId, PlacementId};

/// An event that contradicts the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ApplyError {
    #[error("there is no instance {instance}")]
    UnknownInstance { instance: InstanceId },
    /// Instance ids are never used twice.
    #[error("instance {instance} is not after {last}, the last one placed")]
    InstanceReused { instance: InstanceId, last: InstanceId },
    #[error("instance {instance} is beyond {end}, where ids end")]
    InstanceBeyond { instance: InstanceId, end: InstanceId },
    /// Ids of placements are never used twice.
    #[error("placement {given} is not after {last}, the last one")]
    PlacementReused { given: PlacementId, last: PlacementId },
    #[error("the placement of instance {instance} does not serve its request: {what}")]
    Placement { instance: InstanceId, what: &'static str },
    #[error("a cluster has at most {max} {what}")]
    TooMany { what: &'static str, max: usize },
}
