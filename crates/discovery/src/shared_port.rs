//! A port that other programs have as well, as all that speak mDNS have its port.

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use plain::share;
#[cfg(unix)]
pub use unix::share;
