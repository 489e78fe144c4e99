//! What goes into the machine and what comes out.

use std::collections::BTreeSet;

use exo_types::{Epoch, NodeId, Time};

use crate::{LogEnd, LossReason, Message};

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Input {
    /// Time passed. At the latest at the last [`Output::WakeAt`]; more often does no harm.
    Tick,
    /// The admitted members now, this node among them. Until the first of these the node is outside and
    /// silent; a node that is the only member leads at once.
    Members(BTreeSet<NodeId>),
    /// This node gave up a cluster of its own and became a member of this one: it forgets its epoch and waits
    /// to be led. Later changes come as [`Input::Members`].
    Joined(BTreeSet<NodeId>),
    /// The connection to this member came up. Messages are sent to connected members only.
    LinkUp(NodeId),
    /// The connection to this member was reset or closed: it is suspected at once.
    LinkReset(NodeId),
    /// Nothing listens any more where this member did: the process is gone whose connection was reset.
    Refused(NodeId),
    /// These members gave signs of life on their data links, the last one at that time: that puts off
    /// suspicion and loss, though not for ever.
    Signs(Vec<(NodeId, Time)>),
    /// A member said something. `from` is whom the transport authenticated.
    Message { from: NodeId, message: Message },
    /// This node's standing in elections changed.
    LocalFacts {
        /// Running instances this node serves: all of the cluster's on the coordinator, else those with a
        /// stage here.
        instances_served: u32,
        /// Whether it runs on mains power.
        mains_power: bool,
        /// How much of the logs is on its disk.
        log: LogEnd,
    },
    /// The process ends: goodbye to all. Nothing comes out afterwards.
    Leave,
    /// The machine slept, and its clock with it: the time that passes on this clock says nothing of it.
    Slept,
    /// The epoch of an [`Output::Persist`] is on disk. What was to be done in it comes out now, not before.
    Persisted(Epoch),
    /// The epoch of an [`Output::Persist`] could not be written: what waits for it does not come about. It is
    /// asked for again.
    NotPersisted(Epoch),
    /// This node cannot keep what a coordinator decides: somebody else leads for a while, if there is
    /// anybody.
    StepAside,
    /// A member has entries that this coordinator lacks: it leads in a new epoch, which begins with them.
    Renew,
    /// What this member says as coordinator cannot be: it is not followed until then.
    Distrust { node: NodeId, until: Time },
}

/// What to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Output {
    /// Send to a member. Dropping it when the connection is gone is fine.
    Send { to: NodeId, message: Message },
    /// Write this epoch to disk and flush it, then answer [`Input::Persisted`]. Nothing else waits meanwhile,
    /// and nothing that comes out before the answer says this epoch. Each is higher than the one before,
    /// unless that could not be written.
    Persist(Epoch),
    /// The node works, for the first time or again after suspicion or loss.
    NodeUp(NodeId),
    /// The node may be gone. Decide nothing for good yet.
    NodeSuspected(NodeId),
    /// The node is gone with everything it held. If it returns, a `NodeUp` follows.
    NodeLost { node: NodeId, reason: LossReason },
    /// Follow this coordinator and refuse commands of lower epochs. Also said to the coordinator itself.
    CoordinatorChanged { epoch: Epoch, coordinator: NodeId },
    /// No one leads, as far as this node can see. Commands of this epoch may still be in flight.
    CoordinatorLost { epoch: Epoch },
    /// This node leads from now on, under this epoch. Said again with a higher epoch when halves merge.
    Lead { epoch: Epoch },
    /// This node leads no more.
    StepDown,
    /// Call `handle` again at that time if nothing happens before. Replaces the previous one.
    WakeAt(Time),
}
