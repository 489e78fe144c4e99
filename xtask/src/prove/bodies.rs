//! Three minutes of hostile bodies at a node that may have 1 GiB: the long form of an ordinary test of the
//! command line, which starts the node and keeps the bounds.

use std::process::{Command, Stdio};

use anyhow::Context;

use super::Verdict;
use crate::run;

const ARGS: [&str; 11] = [
    "test",
    "--quiet",
    "--package",
    "exo",
    "--test",
    "all",
    "--",
    "--ignored",
    "--nocapture",
    "--exact",
    "hostile_bodies::a_node_of_1_gib_withstands_three_minutes_of_hostile_bodies_from_sixteen_clients",
];

/// Runs it; its lines, one for each kind of body and answer, go to our terminal.
pub(super) fn prove() -> anyhow::Result<Verdict> {
    let program = run::cargo_program();
    let status = Command::new(&program).args(ARGS).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start `{program}`"))?;
    Ok(Verdict::of_program("bodies", status.success()))
}
