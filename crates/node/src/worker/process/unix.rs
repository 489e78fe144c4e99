use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process_group};

pub(super) fn lead_group(command: &mut Command) {
    command.process_group(0);
}

/// Ends a child that leads a group and was not waited for, with what it started.
pub(super) fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Whether somebody ended a process, and nothing that went wrong in it.
pub fn was_told_to_stop(status: ExitStatus) -> bool {
    let polite = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    status.signal().is_some_and(|signal| polite.contains(&signal))
}
