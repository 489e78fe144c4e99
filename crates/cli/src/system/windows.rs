use std::fs::File;
use std::os::windows::io::AsHandle;
use std::path::Path;
use std::process::ExitStatus;

/// Waits for Ctrl-C.
pub struct StopSignals;

impl StopSignals {
    /// Nothing is to be set up.
    #[allow(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self)
    }

    /// Waits for it; whether it is that.
    pub async fn wait(&mut self) -> bool {
        tokio::signal::ctrl_c().await.is_ok()
    }
}

/// Each prompt puts the console back itself.
pub struct TerminalState;

impl TerminalState {
    /// Nothing is kept.
    pub fn kept() -> Self {
        Self
    }
}

/// The folder of a user's configuration is that user's.
pub fn is_open_to_others(_path: &Path) -> bool {
    false
}

/// There is no such limit.
pub fn allow_many_files() -> Option<u64> {
    None
}

/// What the system keeps of a crash is set for all programs of a machine.
pub fn leave_no_core_file() {}

/// Standard output, which a driver that prints shares with us.
pub fn own_output() -> std::io::Result<File> {
    Ok(File::from(std::io::stdout().as_handle().try_clone_to_owned()?))
}

/// What is written next says whether anybody reads.
pub async fn unread(_output: impl AsHandle) {
    std::future::pending().await
}

/// Ends this process at once.
#[allow(clippy::disallowed_methods, reason = "a worker of the binary ends itself")]
pub fn die() {
    std::process::abort();
}

/// Nobody tells.
pub fn parent_id() -> Option<i32> {
    None
}

/// Whether Ctrl-C ended a process that did not listen for it.
pub fn was_interrupted(status: ExitStatus) -> bool {
    const CONTROL_C_EXIT: u32 = 0xc000_013a;
    status.code().is_some_and(|code| code.cast_unsigned() == CONTROL_C_EXIT)
}

/// Ctrl-C reaches every process of the console.
pub fn pass_stop(_child: &tokio::process::Child) {}
