//! Whether a card gave the known answer of a small model, as a matter of record.

use serde::{Deserialize, Serialize};

use super::{QUARANTINE_S, REASON_CHARS_MAX};

/// What came of asking a card something whose answer is known. Counts for one backend, driver version and
/// version of exo.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// The version of exo that asked.
    pub version: String,
    /// When, in seconds since 1970.
    pub at_unix_s: u64,
    /// What it did instead of giving the answer; `None` if it gave it.
    pub failed: Option<String>,
}

impl Trial {
    /// One that ends now.
    pub fn new(version: &str, failed: Option<&str>, now_unix_s: u64) -> Self {
        let failed = failed.map(|reason| reason.chars().take(REASON_CHARS_MAX).collect());
        Self { version: version.to_owned(), at_unix_s: now_unix_s, failed }
    }

    /// Whether it still says something: what made a card fail may have been a passing thing.
    pub fn counts(&self, version: &str, now_unix_s: u64) -> bool {
        self.version == version && (self.failed.is_none() || self.is_recent(now_unix_s))
    }

    /// Whether it is no older than a quarantine lasts.
    pub(super) fn is_recent(&self, now_unix_s: u64) -> bool {
        now_unix_s.abs_diff(self.at_unix_s) < QUARANTINE_S
    }
}
