//! Where other nodes may be: mDNS addresses, never trust, never liveness.
//!
//! A node announces `_exo-gpu._tcp.local.` under the first 16 characters of its key, with the whole key in
//! TXT, and listens for others. What is found is a hint for a dial: whoever answers must prove the key in the
//! handshake. Only addresses on a network this machine is on are reported, so an announcement cannot send us
//! elsewhere.
//!
//! **Architecture invariant:** nothing here connects to anybody or decides who belongs to the cluster.
//!
//! Start reading at [`Discovery::start`].

#![deny(unsafe_code)] // allowed in the file that calls Windows

mod announcement;
mod discovery;
mod gateways;
mod interfaces;
mod marks;
mod remembered;
mod shared_port;
mod surroundings;
mod wireless;

pub use announcement::{FoundNode, Source};
pub use discovery::{Discovery, DiscoveryError, Options, UpdateError};
pub use interfaces::{Interface, InterfaceReach, is_multicast_heard, local_interfaces, probe};
pub use surroundings::Surroundings;
