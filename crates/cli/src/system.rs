//! What is asked of the operating system: one file for each.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub use linux::end_with_parent;
#[cfg(not(target_os = "linux"))]
pub use plain::end_with_parent;
#[cfg(unix)]
pub use unix::{
    StopSignals, TerminalState, allow_many_files, die, is_open_to_others, leave_no_core_file, own_output,
    parent_id, pass_stop, unread, was_interrupted,
};
#[cfg(windows)]
pub use windows::{
    StopSignals, TerminalState, allow_many_files, die, is_open_to_others, leave_no_core_file, own_output,
    parent_id, pass_stop, unread, was_interrupted,
};
