//! The times of the protocol and what a node remembers between runs.

use std::time::Duration;

use exo_types::Epoch;

/// A message whose counter is further ahead than this is refused: a broken peer cannot use up the counters.
pub const EPOCH_JUMP_MAX: u64 = 1 << 20;

/// The times of the protocol. The defaults meet the bounds of the design; tests shrink nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Differs from one run of the process to the next, for example its start in milliseconds since 1970. A
    /// peer that comes back with another number has forgotten everything it held.
    pub incarnation: u64,
    /// Between a coordinator and its members, and while no one leads.
    pub heartbeat: Duration,
    /// Between two members that neither leads.
    pub heartbeat_idle: Duration,
    /// Silence after which a node of the first kind is suspected.
    pub suspect: Duration,
    /// Silence after which a node of the second kind is suspected.
    pub suspect_idle: Duration,
    /// Silence after which a suspected node is lost.
    pub declare: Duration,
    /// The same from its last message on, for a node that gives signs of life on its data link all the while:
    /// time enough for another control link, dialled over another transport.
    pub declare_without_message: Duration,
    /// Time after a reset in which a message or a new connection clears the node.
    pub declare_after_reset: Duration,
    /// How long a starting or joining node waits for members it has never heard.
    pub patience: Duration,
    /// How long the second-best candidate waits for the best to claim, the third-best for the second-best, …
    pub stagger: Duration,
    /// Least time between two announcements by one coordinator.
    pub epoch_age_min: Duration,
    /// A planted bug: a majority of followers keeps no lead.
    #[cfg(feature = "planted")]
    pub yields: bool,
}

impl Default for Config {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            incarnation: 0,
            heartbeat: ms(250),
            heartbeat_idle: ms(500),
            suspect: ms(1000),
            suspect_idle: ms(2000),
            declare: ms(4000),
            declare_without_message: ms(10_000),
            declare_after_reset: ms(1500),
            patience: ms(3000),
            stagger: ms(600),
            epoch_age_min: ms(1000),
            #[cfg(feature = "planted")]
            yields: false,
        }
    }
}

/// What a node remembers between runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Persisted {
    /// The epoch of the last [`Output::Persist`](crate::Output::Persist) that the disk holds; `None` on the
    /// first start.
    pub epoch: Option<Epoch>,
}
