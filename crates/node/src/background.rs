//! Work that no one waits for within milliseconds, such as a plan: on a thread that gets what others leave
//! over.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::io;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Runs `work` on a thread of its own, with the lowest priority where a thread can have one. A thread that
/// has it cannot take it back, so none that serves others is used for it.
pub fn run(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let lowered = move || {
        lower_priority();
        work();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(lowered).map(drop)
}

/// Gives this thread the lowest priority, which it cannot take back: for a process that does nothing else.
pub fn lower_priority() {
    if let Err(error) = system::lower_priority() {
        tracing::debug!(%error, "this thread keeps its priority");
    }
}
