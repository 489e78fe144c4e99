//! Routers of this machine's networks.
//!
//! A connection that comes from a router's address comes through it: a forwarded port, or address translation
//! that puts its own address in the place of the sender's. Nothing tells it from a node on the router itself.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::net::IpAddr;
use std::path::Path;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Addresses of routers that this machine has a route through. `root` is where `/proc` is on Linux; other
/// systems are not asked.
pub(crate) fn gateways(root: &Path) -> Vec<IpAddr> {
    system::gateways(root)
}
