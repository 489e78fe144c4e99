use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::Context;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, kill_process, setrlimit};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

/// Ctrl-C, a polite kill, and the end of the terminal.
pub struct StopSignals {
    /// Not where it was started to outlive its terminal (`nohup`), or where that cannot be seen.
    hangup: Option<tokio::signal::unix::Signal>,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// Starts to listen.
    pub fn new() -> anyhow::Result<Self> {
        let is_heeded = std::fs::read_to_string("/proc/self/status").is_ok_and(|s| heeds_hangup(&s));
        let hangup = is_heeded.then(|| signal(SignalKind::hangup()));
        Ok(Self {
            hangup: hangup.transpose().context("cannot listen for SIGHUP")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
        })
    }

    /// Waits for one; whether it is Ctrl-C.
    pub async fn wait(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => true,
            Some(_) = async { self.hangup.as_mut()?.recv().await } => false,
        }
    }
}

/// Whether a process of this `/proc/PID/status` was not told to ignore SIGHUP.
fn heeds_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Signals count from 1, the first is in the lowest bit.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 0)
}

/// The terminal as it was, put back when this is dropped: a prompt that waits in a thread of its own does not
/// do it when the process is told to end.
pub struct TerminalState(Option<Termios>);

impl TerminalState {
    /// As it is now, if there is one.
    pub fn kept() -> Self {
        Self(tcgetattr(std::io::stdin()).ok())
    }
}

impl Drop for TerminalState {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, state);
            crate::ui::leave_prompt();
        }
    }
}

/// Waits until nobody reads what is written here: the other end of a pipe is closed. For ever, if it is none.
#[expect(
    deprecated,
    reason = "the other way is `unsafe`; an owned descriptor stays open for as long as it must"
)]
pub async fn unread(output: impl AsFd) {
    let owned = output.as_fd().try_clone_to_owned();
    // The system has no news of a plain file.
    let Ok(output) = owned.and_then(|owned| AsyncFd::with_interest(owned, Interest::WRITABLE)) else {
        return std::future::pending().await;
    };
    loop {
        let Ok(mut guard) = output.ready(Interest::WRITABLE | Interest::ERROR).await else { return };
        if guard.ready().is_error() || guard.ready().is_write_closed() {
            return;
        }
        guard.clear_ready();
    }
}

/// What is in memory when a process crashes is what people wrote.
pub fn leave_no_core_file() {
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
        tracing::warn!(%error, "a crash may leave a core file, with prompts in it");
    }
}

/// Whether other users of this machine may read or change the file.
pub fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

/// Each connection is a file, and shells allow 1024 of them where the system allows far more. How many there
/// may be now; `None` where nothing bounds them.
pub fn allow_many_files() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    getrlimit(Resource::Nofile).current
}

/// Standard output for us alone: what a driver prints must not come between our frames, and goes to the log.
pub fn own_output() -> std::io::Result<File> {
    let output = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3)?;
    rustix::stdio::dup2_stdout(std::io::stderr())?;
    Ok(File::from(output))
}

/// Ends this process without asking anybody: a driver may be stuck, and its clean-up would be too.
#[allow(clippy::disallowed_methods, reason = "a worker of the binary ends itself")]
pub fn die() {
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort();
}

/// The number of the process that started this one, where the system tells; 0 if it is none that we may know.
pub fn parent_id() -> Option<i32> {
    Some(getppid().map_or(0, |parent| parent.as_raw_nonzero().get()))
}

/// Whether Ctrl-C ended a process that did not listen for it.
pub fn was_interrupted(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::INT.as_raw())
}

/// Ctrl-C at a terminal reaches the child as well; a signal to this process alone does not.
pub fn pass_stop(child: &tokio::process::Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It is not reaped before we have waited for it, so the number is still its own.
        let _ = kill_process(pid, Signal::INT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_pipe_is_noticed_without_a_write() {
        let (reader, writer) = std::io::pipe().unwrap();
        let within = |ms| std::time::Duration::from_millis(ms);
        let mut unread = std::pin::pin!(unread(writer));
        assert!(tokio::time::timeout(within(50), &mut unread).await.is_err(), "somebody may read");
        drop(reader);
        tokio::time::timeout(within(5000), unread).await.unwrap();
    }

    #[test]
    fn who_was_started_with_nohup_outlives_its_terminal() {
        assert!(heeds_hangup("Name:\texo\nSigIgn:\t0000000000001000\n"));
        assert!(!heeds_hangup("Name:\texo\nSigIgn:\t0000000000000001\n"));
        assert!(!heeds_hangup(""), "nothing is known");
    }
}
