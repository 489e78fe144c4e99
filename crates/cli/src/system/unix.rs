use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::Context;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, kill_process, setrlimit};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

/// Ctrl-C and a polite kill.
pub struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// Starts to listen.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
        })
    }

    /// Waits for one; whether it is Ctrl-C.
    pub async fn wait(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => true,
        }
    }
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

/// What is in memory when a process crashes is what people wrote.
pub fn leave_no_core_file() {
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
        tracing::warn!(%error, "a crash may leave a core file, with prompts in it");
    }
}

/// Each connection is a file, and shells allow 1024 of them where the system allows far more.
pub fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Standard output for us alone: what a driver prints must not come between our frames, and goes to the log.
pub fn own_output() -> std::io::Result<File> {
    let output = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3)?;
    rustix::stdio::dup2_stdout(std::io::stderr())?;
    Ok(File::from(output))
}

/// Ends this process without asking anybody: a driver may be stuck, and its clean-up would be too.
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
