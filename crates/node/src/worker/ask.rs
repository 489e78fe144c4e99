//! Asking a child what a device is, or what a backend shows. The node itself opens no driver.

use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exo_accelerators::{
    Backend, DeviceAsk, DeviceInfo, ProbeFailure, ProbeFailureKind, Survey, SurveyAsk, Surveyor, chain,
};

use super::frames::{FrameError, FrameReader, FrameWriter};
use super::messages::{FromWorker, ToWorker};
use super::process::{Process, SpawnError, WorkerProgram, was_told_to_stop};

/// For loading a driver, opening a device, checking and measuring it.
const ASK_MAX: Duration = Duration::from_secs(20);
/// More, for the known answers of the built-in model.
const TRIAL_MAX: Duration = Duration::from_secs(40);
/// More, for decoding a little.
const STEPS_MAX: Duration = Duration::from_secs(40);
/// For its end, once it has answered.
const END_MAX: Duration = Duration::from_secs(1);
/// Between two looks whether anybody waits for the answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A child gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum AskError {
    #[error(transparent)]
    NotStarted(#[from] SpawnError),
    #[error("the {backend} driver did not answer within {} s and is not used", .bound.as_secs())]
    Late {
        backend: Backend,
        bound: Duration,
        /// It had listed its devices by then.
        has_listed: bool,
    },
    #[error("the {backend} driver ended the process that asked it ({how}) and is not used")]
    Ended { backend: Backend, how: String },
    /// The child was ended from outside.
    #[error(
        "the process that asked the {backend} driver was told to stop ({status}); nothing is known of it"
    )]
    Stopped { backend: Backend, status: ExitStatus },
    /// No one waits for it any more.
    #[error("the {backend} driver is not asked any more")]
    Cancelled { backend: Backend },
    #[error("the process that asked the {backend} driver answered something else than was asked")]
    Nonsense { backend: Backend },
    #[error("{reason}")]
    Refused {
        /// Stable: of `exo_accelerators::DeviceError`.
        code: String,
        reason: String,
    },
}

impl AskError {
    /// Stable, for whoever chooses by it.
    pub fn code(&self) -> &str {
        match self {
            Self::NotStarted(_) | Self::Cancelled { .. } | Self::Stopped { .. } => "worker_not_started",
            Self::Late { .. } => "driver_hangs",
            Self::Ended { .. } | Self::Nonsense { .. } => "driver_broken",
            Self::Refused { code, .. } => code,
        }
    }
}

/// Opens, verifies and measures a device in a child.
pub fn ask(how: &WorkerProgram, device: &DeviceAsk) -> Result<DeviceInfo, AskError> {
    let backend = device.backend;
    let conversation = Conversation { how, backend, bound: ASK_MAX, cancelled: &AtomicBool::new(false) };
    match conversation.hold(&ToWorker::Open(device.clone()))? {
        (FromWorker::Opened(info), _) => Ok(*info),
        _ => Err(AskError::Nonsense { backend }),
    }
}

/// Asks backends in children, a new one each time.
pub struct Children {
    program: WorkerProgram,
    cancelled: Arc<AtomicBool>,
}

/// Ends the children when it is dropped.
pub struct EndOnDrop(Arc<AtomicBool>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Children {
    /// Of this program.
    pub fn new(program: WorkerProgram) -> Self {
        Self { program, cancelled: Arc::default() }
    }

    /// Whoever drops this waits for no answer any more.
    pub fn end_with(&self) -> EndOnDrop {
        EndOnDrop(self.cancelled.clone())
    }
}

impl Surveyor for Children {
    fn survey(&self, ask: &SurveyAsk) -> Result<Survey, ProbeFailure> {
        let more = [(ask.trial, TRIAL_MAX), (ask.steps, STEPS_MAX)];
        let more: Duration = more.iter().filter(|(is_asked, _)| *is_asked).map(|(_, max)| *max).sum();
        let (backend, bound) = (ask.backend, ASK_MAX + more);
        let conversation = Conversation { how: &self.program, backend, bound, cancelled: &self.cancelled };
        let answer = conversation.hold(&ToWorker::Survey(ask.clone()));
        let survey = answer.and_then(|(message, tail)| match message {
            FromWorker::Surveyed => serde_json::from_slice(&tail).map_err(|_| AskError::Nonsense { backend }),
            _ => Err(AskError::Nonsense { backend }),
        });
        survey.map_err(|error| silence(&error))
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

fn silence(error: &AskError) -> ProbeFailure {
    let kind = match error {
        AskError::Refused { code, .. } if code == "driver_missing" || code == "accelerator_not_there" => {
            ProbeFailureKind::Absent
        }
        AskError::Late { has_listed: false, .. } => ProbeFailureKind::Hung,
        AskError::Stopped { .. } | AskError::Cancelled { .. } => ProbeFailureKind::Stopped,
        // The limit of this process: that says nothing of a driver either.
        AskError::NotStarted(SpawnError::Program { source, .. } | SpawnError::Thread { source, .. })
            if exo_stdx::is_out_of_files(source) =>
        {
            ProbeFailureKind::Stopped
        }
        _ => ProbeFailureKind::Broken,
    };
    let mut silence = ProbeFailure::new(kind, chain(error));
    if let AskError::Late { bound, .. } = error {
        silence.cause = Some(format!("it did not answer within {} s", bound.as_secs()));
    }
    silence
}

/// One question to a child of its own.
struct Conversation<'a> {
    how: &'a WorkerProgram,
    backend: Backend,
    bound: Duration,
    cancelled: &'a AtomicBool,
}

impl Conversation<'_> {
    fn hold(&self, question: &ToWorker) -> Result<(FromWorker, Bytes), AskError> {
        let backend = self.backend;
        let (mut process, stdin, stdout) = Process::spawn(self.how)?;
        let (tell, told) = channel();
        let reading = std::thread::Builder::new().name("worker's answer".to_owned());
        let read = move || {
            let mut from = FrameReader::new(stdout);
            loop {
                let message = from.read::<FromWorker>();
                let is_listed = matches!(message, Ok((FromWorker::Listed, _)));
                if tell.send(message).is_err() || !is_listed {
                    return;
                }
            }
        };
        let what = "a worker's answer";
        reading.spawn(read).map_err(|source| SpawnError::Thread { what, source })?;
        let mut to = FrameWriter::new(stdin);
        // A child that has ended already shows in its answer.
        let _ = to.write(question, &[]);
        let (began, mut has_listed) = (Instant::now(), false);
        let answer = loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(Ok((FromWorker::Listed, _))) => has_listed = true,
                Ok(answer) => break answer,
                // Dropping the process ends it.
                Err(_) if self.cancelled.load(Ordering::Relaxed) => {
                    return Err(AskError::Cancelled { backend });
                }
                Err(RecvTimeoutError::Timeout) if began.elapsed() < self.bound => {}
                Err(_) => return Err(AskError::Late { backend, bound: self.bound, has_listed }),
            }
        };
        drop(to);
        match answer {
            Ok((FromWorker::Refused { code, reason }, _)) => Err(AskError::Refused { code, reason }),
            Ok(answer) => {
                process.end(END_MAX);
                Ok(answer)
            }
            Err(error) => Err(self.ended(&mut process, &error)),
        }
    }

    /// It ended, or what it said is no frame.
    fn ended(&self, process: &mut Process, error: &FrameError) -> AskError {
        let backend = self.backend;
        let status = process.end(END_MAX);
        if let Some(status) = status.filter(|status| was_told_to_stop(*status)) {
            return AskError::Stopped { backend, status };
        }
        let status = status.map_or("it hangs".to_owned(), |status| status.to_string());
        let nonsense = match error {
            FrameError::Ended | FrameError::Truncated => String::new(),
            other => format!(", after it had answered with nonsense: {other}"),
        };
        AskError::Ended { backend, how: format!("{status}{nonsense}{}", process.last_output()) }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_could_not_be_started_for_lack_of_files_says_nothing_of_a_driver() {
        let failure = |code| {
            let source = std::io::Error::from_raw_os_error(code);
            silence(&AskError::NotStarted(SpawnError::Program { program: "exo".into(), source })).kind
        };
        assert_eq!(failure(24), ProbeFailureKind::Stopped, "EMFILE");
        assert_eq!(failure(2), ProbeFailureKind::Broken, "ENOENT");
    }
}
