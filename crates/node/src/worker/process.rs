//! A worker as a process: started, listened to, ended.

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exo_stdx::Mutex;
#[cfg(not(unix))]
use plain as system;
#[cfg(unix)]
use unix as system;

pub use system::was_told_to_stop;

/// Of one line that a driver writes.
const LINE_BYTES_MAX: u64 = 1000;
/// Lines of one worker that reach the log.
const LINES_LOGGED_MAX: usize = 200;
/// Lines kept for the reason of its end.
const LAST_LINES: usize = 3;
/// After it was killed. One that hangs inside the kernel stays longer, and is left behind.
const REAP_MAX: Duration = Duration::from_secs(5);
/// For the last lines of one that has ended to be read.
const HEAR_MAX: Duration = Duration::from_millis(200);
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How a worker is started, and how long it may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Longest time one step may take, and a quarter of a second more for each of its tokens.
    pub step_max: Duration,
}

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum SpawnError {
    #[error("cannot start {}", .program.display())]
    Program { program: PathBuf, source: std::io::Error },
    #[error("cannot start {}: it has no pipes", .program.display())]
    NoPipes { program: PathBuf },
    #[error("no thread for {what}")]
    Thread { what: &'static str, source: std::io::Error },
}

type Lines = Arc<Mutex<VecDeque<String>>>;

/// A running worker. Dropping it kills it.
pub struct Process {
    child: Child,
    last_lines: Lines,
    listening: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts one. It inherits the two pipes given back, one for its errors, and nothing else.
    pub fn spawn(how: &WorkerProgram) -> Result<(Self, ChildStdin, ChildStdout), SpawnError> {
        let mut command = Command::new(&how.program);
        command.args(&how.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C at a terminal is for the node: it closes the worker's input when it is time.
        system::lead_group(&mut command);
        let program = || how.program.clone();
        let spawned = command.spawn();
        let mut child = spawned.map_err(|source| SpawnError::Program { program: program(), source })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut process = Self { child, last_lines: Lines::default(), listening: None };
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(SpawnError::NoPipes { program: program() });
        };
        let (pid, lines) = (process.child.id(), process.last_lines.clone());
        let thread = std::thread::Builder::new().name("worker's errors".to_owned());
        let listening = thread.spawn(move || listen(pid, stderr, &lines));
        let no_thread = |source| SpawnError::Thread { what: "a worker's errors", source };
        process.listening = Some(listening.map_err(no_thread)?);
        Ok((process, stdin, stdout))
    }

    /// Ends it at once, whatever it does, with what a driver may have started.
    pub fn kill(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Not reaped, so the number is still its own: `spawn` made it the head of a group.
            system::kill_group(&self.child);
        }
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    /// Waits until it has ended, kills it after `patience`. `None` if not even that ended it.
    pub fn end(&mut self, patience: Duration) -> Option<ExitStatus> {
        if let Some(status) = self.wait(patience) {
            return Some(status);
        }
        self.kill();
        self.wait(REAP_MAX)
    }

    /// What it wrote last, to be put behind a reason. For one that has ended.
    pub fn last_output(&self) -> String {
        let (began, heard) = (Instant::now(), self.listening.as_ref());
        while heard.is_some_and(|thread| !thread.is_finished()) && began.elapsed() < HEAR_MAX {
            std::thread::park_timeout(LOOK);
        }
        let lines = self.last_lines.lock();
        match lines.is_empty() {
            true => String::new(),
            false => format!("; it wrote: {}", lines.iter().cloned().collect::<Vec<_>>().join(" | ")),
        }
    }

    fn wait(&mut self, at_most: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if began.elapsed() < at_most => std::thread::park_timeout(LOOK),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Passes what a worker writes to the log, within bounds.
fn listen(pid: u32, stderr: ChildStderr, last: &Mutex<VecDeque<String>>) {
    let mut from = BufReader::new(stderr);
    for number in 0.. {
        let mut line = Vec::new();
        match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        match number {
            ..LINES_LOGGED_MAX => tracing::info!(pid, line, "worker"),
            LINES_LOGGED_MAX => tracing::info!(pid, "the worker writes on; no more of it is logged"),
            _ => {}
        }
        let mut last = last.lock();
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
}
