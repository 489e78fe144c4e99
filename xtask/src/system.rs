//! What is asked of the operating system: one file for Linux, one for every other.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

#[cfg(target_os = "linux")]
pub use linux::{become_program, can_apt, cores, free_memory, pin_this_thread};
#[cfg(not(target_os = "linux"))]
pub use plain::{become_program, can_apt, cores, free_memory, pin_this_thread};
