//! Routers of this machine's networks.
//!
//! A connection that comes from a router's address comes through it: a forwarded port, or address translation
//! that puts its own address in the place of the sender's. Nothing tells it from a node on the router itself.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

#[cfg(target_os = "linux")]
pub(crate) use linux::gateways;
#[cfg(not(target_os = "linux"))]
pub(crate) use plain::gateways;
