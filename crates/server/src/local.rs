//! The channel for commands of the user whose node this is.

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use plain::LocalListener;
#[cfg(unix)]
pub use unix::LocalListener;
