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
        Some(0) => Ok(Verdict { line: "token-cost: every bound is kept".to_owned(), is_kept: true }),
        Some(1) => {
            Ok(Verdict { line: "token-cost: not every bound is kept, see above".to_owned(), is_kept: false })
        }
        _ => bail!("`{program} {}` failed: {status}", args.join(" ")),
    }
}
