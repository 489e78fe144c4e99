//! A few bytes of a file, in memory: what a model says of itself before its weights.

use std::time::Duration;

use crate::body::{self, BodyError, Bounds};
use crate::client::{Failure, HubResponse, check_wait, pause, pause_as_asked, unreachable, wait_max};
use crate::fetch_plan::{PlannedFile, RepoCommit};
use crate::{Cancel, Client, HubError, address, answers, identity, retry};

const TRIES_MAX: u32 = 4;
/// Nobody asks for more at once.
const BYTES_MAX: u64 = 64 << 20;

impl Client {
    /// The bytes from `start` to `end` of a file, at its repository and commit where it has one. Tried a few
    /// times, and never resumed: this is not for weights.
    pub fn part(
        &self,
        file: &PlannedFile,
        at: Option<RepoCommit<'_>>,
        range: (u64, u64),
        cancel: &Cancel,
    ) -> Result<Vec<u8>, HubError> {
        self.part_soon(file, at, range, cancel, wait_max(cancel))
    }

    /// The same for who waits no longer than `wait_max` where the hub asks for that.
    pub(crate) fn part_soon(
        &self,
        file: &PlannedFile,
        at: Option<RepoCommit<'_>>,
        (start, end): (u64, u64),
        cancel: &Cancel,
        wait_max: Duration,
    ) -> Result<Vec<u8>, HubError> {
        let attempt = format!("read bytes {start} to {end} of {}", file.name);
        if end > file.size || end.saturating_sub(start) > BYTES_MAX {
            return Err(HubError::TooLarge { what: attempt, found: end, max: file.size.min(BYTES_MAX) });
        }
        if start >= end {
            return Ok(Vec::new());
        }
        let asked = RangeRequest { range: (start, end), attempt, cancel };
        let attempt = &asked.attempt;
        let (mut tries, mut waited) = (0, Duration::ZERO);
        loop {
            tries += 1;
            if cancel.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            let located = self.located(&file.uri);
            let answer = match self.get(&file.uri, located.as_ref(), Some((start, end)), None) {
                Ok(answer) => answer,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Connection(error)) if tries < TRIES_MAX && retry::is_passing(&error) => {
                    self.forget_located(&file.uri); // it may lead to a machine that is gone
                    pause(cancel, retry::backoff(tries))?;
                    continue;
                }
                Err(Failure::Connection(error)) => {
                    return Err(unreachable(&file.uri, attempt, tries, error));
                }
            };
            if let Some(wait) = retry::asked_wait(answer.status, &answer.headers, tries) {
                if answer.status != 429 {
                    self.forget_located(&file.uri); // another host may have more to spare
                }
                waited = waited.saturating_add(wait);
                check_wait(&answer.uri, waited, wait_max)?;
                pause_as_asked(cancel, wait)?;
                continue;
            }
            match answer.status {
                206 | 200 => {}
                400 | 401 | 403 | 404 | 410 if located.is_some() && tries < TRIES_MAX => {
                    self.forget_located(&file.uri);
                    continue;
                }
                401 if tries < TRIES_MAX && self.answer_challenge(&answer, cancel)? => continue,
                500..600 if tries < TRIES_MAX => {
                    pause(cancel, retry::backoff(tries))?;
                    continue;
                }
                _ => return Err(self.refusal(answer, attempt, at.map(|at| at.repo))),
            }
            match self.read_part(answer, file, at.map(|at| at.commit), &asked) {
                Ok(bytes) => return Ok(bytes),
                Err(PartError::Broken(_)) if tries < TRIES_MAX => pause(cancel, retry::backoff(tries))?,
                Err(PartError::Broken(error) | PartError::Final(error)) => return Err(error),
            }
        }
    }

    /// The bytes of an answer, if it is exactly the range that was asked for.
    fn read_part(
        &self,
        mut answer: HubResponse,
        file: &PlannedFile,
        commit: Option<&str>,
        asked: &RangeRequest<'_>,
    ) -> Result<Vec<u8>, PartError> {
        let RangeRequest { range: (start, end), ref attempt, cancel } = *asked;
        let host = address::host(&answer.uri);
        let wrong =
            |problem: String| HubError::Answer { host: host.clone(), attempt: attempt.clone(), problem };
        let range = answers::header(&answer.headers, "content-range").and_then(answers::content_range);
        let is_whole = answer.status == 200 && (start, end) == (0, file.size);
        let is_range = is_whole || range == Some((start, end - 1, file.size));
        let problem = identity::problem(&answer, file, commit);
        let problem = problem.or_else(|| {
            let is_right = is_range && !answers::is_encoded(&answer.headers);
            (!is_right).then(|| "it is not the range that was asked for".to_owned())
        });
        if let Some(problem) = problem {
            return Err(PartError::Final(wrong(problem)));
        }
        let bounds = Bounds { bytes_max: end - start, time_max: Duration::MAX, stall: self.settings().stall };
        let bytes = body::read(&mut answer.body, &bounds, cancel).map_err(|error| match error {
            BodyError::Cancelled => PartError::Final(HubError::Cancelled),
            BodyError::TooLarge => {
                PartError::Final(wrong("it has more bytes than were asked for".to_owned()))
            }
            BodyError::Broken(problem) => PartError::Broken(wrong(problem)),
        })?;
        if bytes.len() as u64 != end - start {
            let problem = format!("it has {} bytes, {} were asked for", bytes.len(), end - start);
            return Err(PartError::Broken(wrong(problem)));
        }
        if address::origin(&answer.uri) != address::origin(&file.uri) {
            self.keep_located(&file.uri, &answer.uri);
        }
        Ok(bytes)
    }
}

/// What is read, for whom.
struct RangeRequest<'a> {
    range: (u64, u64),
    attempt: String,
    cancel: &'a Cancel,
}

/// Why an answer did not give the bytes.
enum PartError {
    /// The next one may.
    Broken(HubError),
    Final(HubError),
}
