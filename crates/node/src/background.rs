//! Work that no one waits for within milliseconds, such as a plan: on a thread that gets what others leave
//! over.

use std::io;

/// Runs `work` on a thread of its own, with the lowest priority where a thread can have one. A thread that
/// has it cannot take it back, so none that serves others is used for it.
pub fn run(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let lowered = move || {
        lower_priority();
        work();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(lowered).map(drop)
}

/// Gives this thread the lowest priority, which it cannot take back: for a process that does nothing else. On
/// Linux a nice value is a thread's, and 19 is the highest; elsewhere it is a whole process's, or there is
/// none, and nothing is done.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!(%error, "this thread keeps its priority");
    }
}
