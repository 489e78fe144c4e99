//! What is done before a signal ends this process: Ctrl-C, SIGTERM, or a terminal that is closed.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::system::{self, Told};

/// Of a process that a signal ended.
const EXIT_SIGNALLED: i32 = 130;

static CLEANUPS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());
/// Processes of ours that stand still: the end of their standard input would reach them only when they go on.
static STOPPED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Has this done before a signal ends this process. To be called once for each thing to do.
#[allow(clippy::disallowed_methods, reason = "nobody waits for the thread that takes signals")]
pub fn before_end(clean: fn()) {
    static ONCE: Once = Once::new();
    lock(&CLEANUPS).push(clean);
    ONCE.call_once(|| {
        let set = ctrlc::set_handler(|| {
            lock(&CLEANUPS).iter().for_each(|clean| clean());
            std::process::exit(EXIT_SIGNALLED);
        });
        if let Err(error) = set {
            eprintln!("warning: what a proof has made stays where a signal ends it: {error}");
        }
    });
}

/// A process that stands still until this is dropped, or until a signal ends this process.
pub struct StoppedProcess(u32);

impl StoppedProcess {
    /// Stops the process, which must not be reaped while this lives.
    pub fn new(id: u32) -> anyhow::Result<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| before_end(|| lock(&STOPPED).iter().for_each(|id| go_on(*id))));
        lock(&STOPPED).push(id);
        let stopped = Self(id);
        system::tell(id, Told::Stop)?;
        Ok(stopped)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        go_on(self.0);
        lock(&STOPPED).retain(|id| *id != self.0);
    }
}

/// It may be gone: then there is nothing to be told.
fn go_on(id: u32) {
    let _ = system::tell(id, Told::Continue);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The letter that Linux shows for what a process does.
    fn state(id: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    #[test]
    fn a_process_stands_still_as_long_as_its_guard_lives() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let id = child.id();
        let within = (std::time::Duration::from_secs(10), std::time::Duration::from_millis(1));
        let stopped = StoppedProcess::new(id).unwrap();
        crate::wait::wait_for("standing still", within, || Ok((state(id) == Some('T')).then_some(())))
            .unwrap();
        assert!(lock(&STOPPED).contains(&id));
        drop(stopped);
        crate::wait::wait_for("going on", within, || Ok((state(id) != Some('T')).then_some(()))).unwrap();
        assert!(!lock(&STOPPED).contains(&id));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
