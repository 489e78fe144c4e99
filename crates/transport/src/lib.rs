//! Authenticated streams of bytes between nodes: QUIC and TLS over TCP.
//!
//! A node is its Ed25519 key ([`NodeKey`]). Both ends of every connection prove theirs in a TLS 1.3 handshake
//! with raw public keys (RFC 7250): no certificate authority, no names. Who may connect is a [`MemberSet`]
//! that the caller keeps current; a stranger is refused in the handshake, a removed member at once. What is
//! gained is a [`Channel`]: two directions of bounded [frames](Frame) that carry bytes and a kind, nothing
//! more.
//!
//! Strangers reach one thing only, the join exchange ([`JoinChannel`]): TCP, 4 KiB each way, 5 seconds, 8 at
//! once.
//!
//! **Architecture invariant:** nothing here knows what a tensor, a model or an instance is. Frames have a
//! kind byte that belongs to the layer above.
//!
//! Start reading at [`Endpoint`].

#![forbid(unsafe_code)]

mod accept;
mod channel;
mod endpoint;
mod errors;
mod frame;
mod half_open;
mod hello;
mod join;
mod join_slots;
mod key;
mod live;
mod members;
mod protocols;
mod quic;
mod quic_timer;
mod renewal;
mod socket;
mod tcp;
mod tls;

pub use channel::{Channel, Incoming};
pub use endpoint::{Endpoint, Options};
pub use errors::{BindError, DialError, FrameError, SendError};
pub use frame::{Frame, FrameLimits, FrameReader, FrameWriter};
pub use join::{JOIN_TIME_MAX, JoinChannel, JoinError};
pub use join_slots::JOIN_CONCURRENT_MAX;
pub use key::{KeyFileError, NodeKey};
pub use members::MemberSet;
pub use protocols::Protocols;
pub use renewal::Renewal;
