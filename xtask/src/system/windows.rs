use std::process::Command;

use anyhow::{Context, bail};

/// Runs a program and waits for it: it cannot take our place.
pub fn become_program(mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    if status.success() { Ok(()) } else { bail!("{name} failed: {status}") }
}
