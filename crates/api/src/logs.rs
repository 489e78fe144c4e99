//! What `/exo/v1/logs` shows: the last log lines of every node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Lines of one answer, at most.
pub const LOG_LINES_MAX: u32 = 2000;
/// For so long the level of a target stays raised, in seconds.
pub const LOG_RAISED_S: u64 = 600;

/// How much a line matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Per message.
    Trace,
    /// Per request.
    Debug,
    /// Life of the node.
    Info,
    /// Worse than it could be.
    Warn,
    /// Somebody must act.
    Error,
}

impl LogLevel {
    /// As lines show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Which lines are asked for.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Of this node, by id in full or by name; left out, of all that are reached.
    pub node: Option<String>,
    /// Of this level and above; left out, all.
    pub level: Option<LogLevel>,
    /// Of targets that begin so.
    pub target: Option<String>,
    /// Of the request with this id.
    pub request: Option<String>,
    /// Behind an earlier answer's `next`.
    pub after: Option<String>,
    /// So many, the last ones; left out 200.
    pub limit: Option<u32>,
}

/// Log lines of one or more nodes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogsView {
    /// In the order of their times, by each node's own clock.
    pub lines: Vec<LogLineView>,
    /// To ask for what follows.
    pub next: String,
    /// Nodes that did not answer.
    pub silent: Vec<SilentNodeView>,
}

/// A node that did not answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SilentNodeView {
    /// Node id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A line of a node's log. Never a prompt or an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogLineView {
    /// Node id.
    pub node: String,
    /// The node's name.
    pub name: String,
    /// Its number on that node, growing.
    pub number: u64,
    /// When, in milliseconds since 1970 by the node's clock.
    pub at_unix_ms: u64,
    /// How much it matters.
    pub level: LogLevel,
    /// Which part of the program says it.
    pub target: String,
    /// The request that it is about, where it names one.
    pub request: Option<String>,
    /// What it says, on one line.
    pub text: String,
}

/// Has more of one target kept for ten minutes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLevelRequest {
    /// The target, or the beginning of several: `exo_cluster::scheduler`.
    pub target: String,
    /// What is kept of it from then on.
    pub level: LogLevel,
}
