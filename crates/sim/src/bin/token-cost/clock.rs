//! Time that this thread has computed.

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use plain::thread_ns;
#[cfg(unix)]
pub use unix::thread_ns;
