//! Where this user's commands reach the node of a data folder.

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use plain::{connect, open};
#[cfg(unix)]
pub use unix::{connect, open};
