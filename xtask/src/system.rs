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
pub use linux::{
    Tap, can_apt, cores, enter_network, free_memory, held, pin_this_thread, processor_seconds, tell,
};
#[cfg(not(target_os = "linux"))]
pub use plain::{
    Tap, can_apt, cores, enter_network, free_memory, held, pin_this_thread, processor_seconds, tell,
};
#[cfg(unix)]
pub use unix::become_program;
#[cfg(windows)]
pub use windows::become_program;

/// Does something on a thread of its own, whose network and processors are chosen without changing ours.
pub fn on_own_thread<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.map_err(|_| anyhow::anyhow!("a thread panicked"))?
}

/// What a process is told.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// To end, after handing over.
    End,
    /// To stand still.
    Stop,
    /// To go on.
    Continue,
}
