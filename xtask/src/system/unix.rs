use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;

/// Runs a program in our place: Ctrl-C and the exit status are its own. Comes back with an error only.
pub fn become_program(mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    Err(command.exec()).with_context(|| format!("cannot start {name}"))
}
