//! Asking a child what a device is: opened, verified, measured. The node itself opens no driver.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::frames::{FrameError, FrameReader, FrameWriter};
use super::process::{Process, WorkerProgram};
use super::words::{CardWords, DeviceAsk, FromWorker, ToWorker};

/// For loading a driver, opening a device, checking and measuring it.
const ASK_MAX: Duration = Duration::from_secs(20);
/// For its end, once it has answered.
const END_MAX: Duration = Duration::from_secs(1);

/// A device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No child.
    #[error("{0}")]
    NotStarted(String),
    /// No answer.
    #[error("the {backend} driver did not answer within {} s and is not used", ASK_MAX.as_secs())]
    Late {
        /// Which.
        backend: String,
    },
    /// The child is gone.
    #[error("the {backend} driver ended the process that asked it ({how}) and is not used")]
    Ended {
        /// Which.
        backend: String,
        /// Its exit, and what it wrote last.
        how: String,
    },
    /// The driver, or the check, said no.
    #[error("{0}")]
    Refused(String),
}

/// Opens, verifies and measures a device in a child.
pub fn ask(how: &WorkerProgram, device: &DeviceAsk) -> Result<CardWords, AskError> {
    let (mut process, stdin, stdout) = Process::spawn(how).map_err(AskError::NotStarted)?;
    let (tell, answer) = channel();
    let reading = std::thread::Builder::new().name("worker's answer".to_owned());
    let read = move || tell.send(FrameReader::new(stdout).read::<FromWorker>());
    reading.spawn(read).map_err(|e| AskError::NotStarted(format!("no thread for a worker's answer: {e}")))?;
    let mut to = FrameWriter::new(stdin);
    // A child that has ended already shows in its answer.
    let _ = to.write(&ToWorker::Open(device.clone()), &[]);
    let answer = answer.recv_timeout(ASK_MAX);
    drop(to);
    let backend = device.backend.clone();
    match answer {
        Err(_) => Err(AskError::Late { backend }),
        Ok(Ok((FromWorker::Opened(card), _))) => {
            process.end(END_MAX);
            Ok(*card)
        }
        Ok(Ok((FromWorker::Refused { reason }, _))) => Err(AskError::Refused(reason)),
        Ok(Ok(_)) => Err(AskError::Refused("its process answered something else than was asked".to_owned())),
        Ok(Err(error)) => {
            let status = process.end(END_MAX).map_or("it hangs".to_owned(), |status| status.to_string());
            let nonsense = match error {
                FrameError::Ended | FrameError::Truncated => String::new(),
                other => format!(", after it had answered with nonsense: {other}"),
            };
            Err(AskError::Ended { backend, how: format!("{status}{nonsense}{}", process.last_words()) })
        }
    }
}
