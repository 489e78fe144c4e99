use std::process::{Child, Command, ExitStatus};

/// Groups are Unix's.
pub(super) fn lead_group(_command: &mut Command) {}

/// What a driver may have started is left behind.
pub(super) fn kill_group(_child: &Child) {}

/// Whether Ctrl-C ended a process that did not listen for it.
pub fn was_told_to_stop(status: ExitStatus) -> bool {
    const CONTROL_C_EXIT: u32 = 0xc000_013a;
    status.code().is_some_and(|code| code.cast_unsigned() == CONTROL_C_EXIT)
}
