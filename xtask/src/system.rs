//! What is asked of the operating system: what only Linux tells, and what there is on every Unix.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub use linux::{can_apt, cores, free_memory, pin_this_thread};
#[cfg(not(target_os = "linux"))]
pub use plain::{can_apt, cores, free_memory, pin_this_thread};
#[cfg(unix)]
pub use unix::become_program;
#[cfg(windows)]
pub use windows::become_program;
