//! Who is alive, who leads, in which epoch: a state machine over messages.
//!
//! Members hold leases at the coordinator and followers watch it: both are one heartbeat in each direction. A
//! node is *suspected* after about a second of silence or at once when its connection is reset, and *lost*
//! within five seconds, or a second and a half after a reset that nothing contradicts. Signs of life on its
//! data link count as well, for ten seconds without a message. A clean exit says goodbye and is lost at once.
//!
//! An election happens only when the coordinator is lost or two halves meet. There is no majority: of two
//! nodes either may go on alone, and when halves merge, the side that serves more announces the higher
//! counter plus one. The [`Epoch`](exo_types::Epoch) is the pair (counter, coordinator). To lead or to follow
//! a new one waits inside the machine until the epoch is on disk ([`Input::Persisted`]); until then this node
//! stays what it was, and heartbeats go on.
//!
//! **Architecture invariant:** nothing here asks the time, opens a socket or draws a random number. Time and
//! messages come in through [`Membership::handle`], decisions go out as [`Output`]s, in order.
//!
//! Start reading at [`Membership::handle`].

#![forbid(unsafe_code)]

mod config;
mod detector;
mod election;
mod epoch_write;
mod io;
mod machine;
mod meeting;
mod message;
mod report;

pub use config::{
    Config, DECLARE, DECLARE_AFTER_RESET, DECLARE_WITHOUT_MESSAGE, EPOCH_JUMP_MAX, PATIENCE, Persisted,
};
pub use io::{Input, Output};
pub use machine::Membership;
pub use message::{Body, Heartbeat, LogEnd, LossReason, Message, MessageError, NodeStatus, Rank, Role};

#[cfg(test)]
mod tests;
