//! A few bytes of a file, in memory: what a model says of itself before its weights.

use std::io::Read;
use std::time::Duration;

use crate::client::{Failure, check_wait, pause, unreachable};
use crate::plan::PlannedFile;
use crate::{Cancel, Client, HubError, address, answers, identity, retry};

const TRIES_MAX: u32 = 4;
/// Nobody asks for more at once.
const BYTES_MAX: u64 = 64 << 20;

impl Client {
    /// The bytes from `start` to `end` of a file, at its commit where it has one. Tried a few times, and never resumed: this is not for weights.
    pub fn part(
        &self,
        file: &PlannedFile,
        commit: Option<&str>,
        (start, end): (u64, u64),
        cancel: &Cancel,
    ) -> Result<Vec<u8>, HubError> {
        let attempt = format!("read bytes {start} to {end} of {}", file.name);
        if end > file.size || end.saturating_sub(start) > BYTES_MAX {
            return Err(HubError::TooLarge { what: attempt, found: end, max: file.size.min(BYTES_MAX) });
        }
        if start >= end {
            return Ok(Vec::new());
        }
        let (mut tries, mut waited) = (0, Duration::ZERO);
        loop {
            tries += 1;
            if cancel.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            let mut answer = match self.get(&file.uri, Some((start, end))) {
                Ok(answer) => answer,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Connection(error)) if tries < TRIES_MAX && retry::is_passing(&error) => {
                    pause(cancel, retry::backoff(tries))?;
                    continue;
                }
                Err(Failure::Connection(error)) => {
                    return Err(unreachable(&file.uri, &attempt, tries, error));
                }
            };
            match answer.status {
                206 | 200 => {}
                401 if tries < TRIES_MAX && self.answer_challenge(&answer, cancel)? => continue,
                429 => {
                    let asked = retry::retry_after(&answer.headers).max(Duration::from_millis(100));
                    waited = waited.saturating_add(asked);
                    check_wait(&answer.uri, waited)?;
                    pause(cancel, asked)?;
                    continue;
                }
                500..600 if tries < TRIES_MAX => {
                    pause(cancel, retry::backoff(tries))?;
                    continue;
                }
                _ => return Err(self.refusal(answer, &attempt)),
            }
            if let Some(problem) = identity::problem(&answer, file, commit) {
                return Err(HubError::Answer { host: address::host(&answer.uri), attempt, problem });
            }
            let range = answers::header(&answer.headers, "content-range").and_then(answers::content_range);
            let is_whole = answer.status == 200 && (start, end) == (0, file.size);
            let is_wrong = answers::is_encoded(&answer.headers)
                || (!is_whole && range != Some((start, end - 1, file.size)));
            let mut bytes = Vec::new();
            let read = answer.body.as_reader().take(end - start + 1).read_to_end(&mut bytes);
            match read {
                Ok(_) if !is_wrong && bytes.len() as u64 == end - start => return Ok(bytes),
                _ if tries < TRIES_MAX && !is_wrong => pause(cancel, retry::backoff(tries))?,
                _ => {
                    let problem = "it is not the range that was asked for".to_owned();
                    return Err(HubError::Answer { host: address::host(&answer.uri), attempt, problem });
                }
            }
        }
    }
}
