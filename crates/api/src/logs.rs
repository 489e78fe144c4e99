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
    /// Written for each message.
    Trace,
    /// Written for each request.
    Debug,
    /// Life of the node.
    Info,
    /// Worse than it could be.
    Warn,
    /// Something failed and somebody must act.
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
    /// Only lines of this level and above; left out, all.
    pub level: Option<LogLevel>,
    /// Only lines whose target begins with this.
    pub target: Option<String>,
    /// Only lines about the request with this id.
    pub request: Option<String>,
    /// Only lines after those of an earlier answer, which named this as `next`.
    pub after: Option<String>,
    /// Most lines, the last ones; left out 200.
    pub limit: Option<u32>,
}

/// Log lines of one or more nodes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogsView {
    /// The lines in the order of their times, by each node's own clock.
    pub lines: Vec<LogLineView>,
    /// Value of `after` that asks for what follows.
    pub next: String,
    /// Nodes that did not answer.
    pub silent: Vec<SilentNodeView>,
}

/// A node that did not answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SilentNodeView {
    /// Id of the node that did not answer.
    pub node: String,
    /// Name of the node that did not answer.
    pub name: String,
    /// Why its lines are missing.
    pub reason: String,
}

/// A line of a node's log. Never a prompt or an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogLineView {
    /// Id of the node that wrote the line.
    pub node: String,
    /// Name of the node that wrote the line.
    pub name: String,
    /// Number of the line on that node, growing.
    pub number: u64,
    /// When, in milliseconds since 1970 by the node's clock.
    pub at_unix_ms: u64,
    /// How much the line matters.
    pub level: LogLevel,
    /// Part of the program that wrote the line.
    pub target: String,
    /// The request that it is about, where it names one.
    pub request: Option<String>,
    /// Text of the line.
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
