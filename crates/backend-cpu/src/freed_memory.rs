//! What the C library does with memory that was freed.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod plain;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use glibc as system;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
use plain as system;

/// Lets the C library give freed memory back to the system instead of keeping it for later. To be called
/// first thing in `main`; does nothing where the C library has no such switch.
///
/// Left alone, glibc raises its limits with every large block that is freed, and then keeps what reading a
/// vocabulary of 128 000 tokens leaves behind: 20 to 40 MB per node that only computes. A step allocates
/// small things only, and measured speeds stay the same.
pub fn return_freed_memory() {
    system::return_freed_memory();
}

/// Gives back now what has been freed, also what lies between things still in use. Takes some milliseconds,
/// in which other threads may wait for memory: for after something large. Does nothing where the C library
/// has no such call.
pub fn give_freed_memory_back() {
    system::give_freed_memory_back();
}
