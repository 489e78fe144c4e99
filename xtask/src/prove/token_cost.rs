//! What a token costs the machine, measured in a process of its own: it counts what it allocates, and is
//! built as the simulator is.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::Verdict;
use crate::run;

/// Runs it; its lines, a case each, go to our terminal.
pub(super) fn prove() -> anyhow::Result<Verdict> {
    let program = run::cargo_program();
    let args = ["run", "--quiet", "--package", "exo-sim", "--bin", "token-cost"];
    let status = Command::new(&program).args(args).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start `{program}`"))?;
    match status.code() {
        Some(code @ (0 | 1)) => Ok(Verdict::of_program("token-cost", code == 0)),
        _ => bail!("`{program} {}` failed: {status}", args.join(" ")),
    }
}
