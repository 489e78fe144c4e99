//! What `/exo/v1/doctor` shows: what works on each machine of the cluster, what does not, and the next step.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::logs::SilentNodeView;

/// Checks of one machine, at most.
pub const CHECKS_MAX: usize = 200;

/// How a check went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    /// What was checked works.
    Ok,
    /// Worth knowing; nothing is wrong.
    Note,
    /// Something is worse than it could be; exo runs.
    Warning,
    /// exo cannot run like this.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckView {
    /// What: `memory`. Several checks may be of one kind.
    pub check: String,
    /// How the check went.
    pub verdict: CheckVerdict,
    /// What the check found.
    pub found: String,
    /// What to do about it; empty when there is nothing to do.
    pub next: String,
}

impl CheckView {
    /// Without a next step.
    pub fn new(check: &str, verdict: CheckVerdict, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), verdict, found: found.into(), next: String::new() }
    }

    /// It works.
    pub fn ok(check: &str, found: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Ok, found)
    }

    /// It is worth knowing.
    pub fn note(check: &str, found: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Note, found)
    }

    /// It is worse than it could be.
    pub fn warning(check: &str, found: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Warning, found)
    }

    /// exo cannot run like this.
    pub fn broken(check: &str, found: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Broken, found)
    }

    /// With what to do about it.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = next.into();
        self
    }
}

/// Whose machines are looked over.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub enum DoctorScope {
    /// Those of all members.
    #[default]
    #[serde(rename = "cluster")]
    Cluster,
    /// Only that of the node that is asked, whose answer waits for no other.
    #[serde(rename = "self")]
    OwnNode,
}

/// What stands behind the question mark of `/exo/v1/doctor`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoctorQuery {
    /// Whose machines: `cluster` where it is missing.
    #[serde(default)]
    pub of: DoctorScope,
}

/// The checks of every member that was asked.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct DoctorView {
    /// Those that answered, in the order of their names.
    pub nodes: Vec<NodeChecksView>,
    /// Those that did not.
    pub silent: Vec<SilentNodeView>,
}

/// The checks of one machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeChecksView {
    /// Id of the node that was looked over.
    pub node: String,
    /// Name of the node that was looked over.
    pub name: String,
    /// What the node itself has checked.
    pub checks: Vec<CheckView>,
}
