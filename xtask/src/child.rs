//! Programs that run pinned, with a deadline, and that do not outlive us.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::system;

/// What a program printed at most; the rest is dropped.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;

/// A running program; dropping it ends it.
pub struct Running {
    child: Child,
    name: String,
    /// Says when both of its outputs are closed: it has ended.
    ended: Receiver<(Vec<u8>, Vec<u8>)>,
}

/// Starts a program on these cores.
pub fn start(mut command: Command, cores: &[usize]) -> anyhow::Result<Running> {
    command.stdin(Stdio::null());
    spawn(command, cores)
}

/// Starts a program on these cores that ends when its standard input does: so it does not outlive us,
/// whatever ends us.
pub fn start_held(mut command: Command, cores: &[usize]) -> anyhow::Result<Running> {
    command.stdin(Stdio::piped());
    spawn(command, cores)
}

/// A thread's children inherit its affinity, so a thread of their own starts them.
fn spawn(mut command: Command, cores: &[usize]) -> anyhow::Result<Running> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = system::on_own_thread(|| {
        system::pin_this_thread(cores)?;
        command.spawn().context("cannot start it")
    });
    let mut child = child.with_context(|| format!("starting {name}"))?;
    let (sender, ended) = channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let other = std::thread::spawn(move || stderr.map(read_all).unwrap_or_default());
    std::thread::spawn(move || {
        let stdout = stdout.map(read_all).unwrap_or_default();
        // Nobody listens any more if the program was given up.
        let _ = sender.send((stdout, other.join().unwrap_or_default()));
    });
    Ok(Running { child, name, ended })
}

/// Runs a program to its end and gives its standard output.
pub fn output(command: Command, cores: &[usize], at_most: Duration) -> anyhow::Result<String> {
    let line = format!("{command:?}");
    let mut running = start(command, cores)?;
    match running.ended.recv_timeout(at_most) {
        Ok((stdout, stderr)) => {
            let status = running.child.wait().with_context(|| format!("waiting for {line}"))?;
            if !status.success() {
                bail!("{line} failed ({status}): {}", last_lines(&stderr));
            }
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            bail!("{line} was ended after {} s without a result", at_most.as_secs())
        }
    }
}

impl Running {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has, and the last of what it said.
    pub fn has_ended(&mut self) -> Option<(ExitStatus, String)> {
        let status = self.child.try_wait().ok().flatten()?;
        let (_, stderr) = self.ended.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        Some((status, last_lines(&stderr)))
    }

    /// Closes its standard input, which [`start_held`] has opened.
    pub fn ask_to_end(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end: how it ended, and the last of what it said. `None` if that takes longer; dropping
    /// this then ends it.
    pub fn wait(&mut self, at_most: Duration) -> Option<(ExitStatus, String)> {
        let until = Instant::now() + at_most;
        let (_, stderr) = self.ended.recv_timeout(at_most).ok()?;
        loop {
            if let Some(status) = self.child.try_wait().ok()? {
                return Some((status, last_lines(&stderr)));
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Ends it at once, as a crash or a lack of power would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut from = from.take(OUTPUT_BYTES_MAX);
    let _ = from.read_to_end(&mut bytes);
    // Read on, so that a talkative program does not wait for us.
    let _ = std::io::copy(&mut from.into_inner(), &mut std::io::sink());
    bytes
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("; ")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::system::cores;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_runs_on_the_cores_it_is_given() {
        let all = cores().unwrap();
        let mine = &all[all.len() - 1..];
        let text =
            output(shell("grep Cpus_allowed_list /proc/self/status"), mine, Duration::from_secs(10)).unwrap();
        assert_eq!(text.split_whitespace().nth(1), Some(mine[0].to_string().as_str()));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let (began, all) = (Instant::now(), cores().unwrap());
        let error = output(shell("exec sleep 60"), &all, Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("without a result") && began.elapsed() < Duration::from_secs(10), "{error}");
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error =
            output(shell("echo broken >&2; exit 3"), &cores().unwrap(), Duration::from_secs(10)).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }
}
