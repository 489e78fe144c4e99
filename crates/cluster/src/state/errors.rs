//! What makes a fact impossible.

use exo_types::{InstanceId, NodeId, PlacementId};

/// An event that contradicts the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Something before, or a second, founding.
    #[error("the cluster is {}", if *.founded { "founded already" } else { "not founded yet" })]
    Founding {
        /// Whether it is.
        founded: bool,
    },
    /// The founder or an appointed admin does not qualify.
    #[error("{node} is not an admin member")]
    NotAdmin {
        /// The node.
        node: NodeId,
    },
    /// Removal is for ever: a removed key never comes back.
    #[error("{node} was removed from this cluster")]
    Revoked {
        /// The node.
        node: NodeId,
    },
    /// No such member.
    #[error("{node} is not a member")]
    UnknownMember {
        /// The node.
        node: NodeId,
    },
    /// A cluster keeps at least one admin.
    #[error("{node} is the only admin: appoint another first")]
    LastAdmin {
        /// The node.
        node: NodeId,
    },
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
    /// More members or instances than a cluster may have.
    #[error("a cluster has at most {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}
