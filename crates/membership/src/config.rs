//! The times of the protocol and what a node remembers between runs.

use std::time::Duration;

use exo_types::Epoch;

/// A message whose counter is further ahead than this is refused: a broken peer cannot use up the counters.
pub const EPOCH_JUMP_MAX: u64 = 1 << 20;

/// Time between heartbeats of a coordinator and its members, and of all while no one leads.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(250);
/// Time between heartbeats of two members of which neither leads.
pub(crate) const HEARTBEAT_IDLE: Duration = Duration::from_millis(500);
/// Silence after which a node that sends a heartbeat each [`HEARTBEAT`] is suspected.
pub(crate) const SUSPECT: Duration = Duration::from_millis(1000);
/// Silence after which a node that sends one each [`HEARTBEAT_IDLE`] is suspected.
pub(crate) const SUSPECT_IDLE: Duration = Duration::from_millis(2000);
/// Silence after which a suspected node is lost.
pub const DECLARE: Duration = Duration::from_millis(4000);
/// The same from its last message on, for a node that gives signs of life on its data link all the while:
/// time enough for another control link, dialled over another transport.
pub const DECLARE_WITHOUT_MESSAGE: Duration = Duration::from_millis(10_000);
/// Time after a reset in which a message or a new connection clears the node.
pub const DECLARE_AFTER_RESET: Duration = Duration::from_millis(1500);
/// How long a starting or joining node waits for members it has never heard.
pub const PATIENCE: Duration = Duration::from_millis(3000);
/// How long the second-best candidate waits for the best to claim, the third-best for the second-best, …
pub(crate) const STAGGER: Duration = Duration::from_millis(600);
/// Least time between two announcements by one coordinator.
pub(crate) const EPOCH_AGE_MIN: Duration = Duration::from_millis(1000);

/// This run of the process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Config {
    /// Differs from one run of the process to the next, for example its start in milliseconds since 1970. A
    /// peer that comes back with another number has forgotten everything it held.
    pub incarnation: u64,
    /// A planted bug: a majority of followers keeps no lead.
    #[cfg(feature = "planted")]
    pub yields: bool,
}

/// What a node remembers between runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Persisted {
    /// The epoch of the last [`Output::Persist`](crate::Output::Persist) that the disk holds; `None` on the
    /// first start.
    pub epoch: Option<Epoch>,
}
