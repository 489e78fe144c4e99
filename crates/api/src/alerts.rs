//! What `/exo/v1/alerts` shows: what is wrong in the cluster, what is affected, and what to do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest silence, in seconds: a week.
pub const SILENCE_S_MAX: u64 = 7 * 24 * 3600;

/// Rules of alerts about strangers; their ids begin so.
pub(crate) const NOT_FOR_VIEWERS: [&str; 2] = ["join_waiting", "other_cluster"];

/// How much an alert matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Somebody may want to act.
    #[default]
    Info,
    /// Something is worse than it could be.
    Warning,
    /// Something does not work, or will soon not.
    Critical,
}

impl Severity {
    /// As metrics and people write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// One alert.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AlertView {
    /// Names it while it lasts: the rule, and what is affected.
    pub id: String,
    /// The rule's stable id: `node_lost`.
    pub rule: String,
    /// How much the alert matters.
    pub severity: Severity,
    /// Since when, in seconds since 1970 by the node that answers.
    pub since_unix_s: u64,
    /// When it was over; `null` while it lasts. Kept for a day.
    pub resolved_unix_s: Option<u64>,
    /// Until when it is silenced.
    pub silenced_until_unix_s: Option<u64>,
    /// The node that is affected.
    pub node: Option<String>,
    /// The device of that node that is affected.
    pub device: Option<String>,
    /// The instance that is affected.
    pub instance: Option<String>,
    /// What is affected, to be displayed.
    pub subject: String,
    /// What is wrong, with the numbers.
    pub text: String,
    /// What a user can do about the alert.
    pub what_to_do: String,
    /// Section of the runbook.
    pub runbook: String,
}

impl AlertView {
    /// As they are listed: what lasts, the newest first, and behind it what is over, the last first.
    pub fn order(a: &Self, b: &Self) -> std::cmp::Ordering {
        let key = |alert: &Self| {
            let over = alert.resolved_unix_s.map(std::cmp::Reverse);
            (over.is_some(), over, std::cmp::Reverse(alert.since_unix_s))
        };
        key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
    }

    /// Whether it is the same alert: one of an id may be over and another have begun.
    pub fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.since_unix_s == other.since_unix_s
    }

    /// Whether somebody who may only look at the cluster is told: not who asks to join, with the words that
    /// let them in, nor who is near.
    pub fn is_for_viewers(&self) -> bool {
        !NOT_FOR_VIEWERS.contains(&self.rule.as_str())
    }
}

/// Silences an alert for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceRequest {
    /// Id of an alert, or of a rule for all of its alerts.
    pub alert: String,
    /// For how many seconds, a week at most; 0 ends a silence.
    pub for_s: u64,
}
