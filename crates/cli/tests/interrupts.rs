//! Ctrl-C while a child computes on a graphics processor: the command ends as interrupted, and leaves no process behind.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::{Killed, SOON, children_of, exo, is_alive, skip, wait_for};

/// Opening the device in a debug build on a busy machine, and what a command gives its work to stop.
const END_MAX: Duration = Duration::from_secs(60);

/// Runs a command on a Vulkan device, sends SIGINT to it alone once its child has loaded the model, and gives how it ended with
/// the numbers of its children. `None` if there is no such device.
fn interrupted(args: &[&str]) -> Option<(ExitStatus, Vec<u32>)> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = exo(args);
    command.args(["--backend", "vulkan", "--log", "info", "--data-dir"]).arg(folder.path().join("none"));
    let mut command = Killed(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    // Both write to it, so it ends with the last of them; nobody waits for that.
    let log = BufReader::new(command.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (tell, lines) = channel();
    std::thread::spawn(move || log.for_each(|line| drop(tell.send(line))));
    let (began, mut said) = (Instant::now(), String::new());
    loop {
        match lines.recv_timeout(END_MAX.saturating_sub(began.elapsed())) {
            Ok(line) if line.contains("loaded") => break,
            Ok(line) => said = said + "\n" + &line,
            Err(_) => {
                assert!(said.contains("exo devices"), "the model was not loaded: {said}");
                return None;
            }
        }
    }
    let children = children_of(command.0.id());
    assert!(!children.is_empty(), "nothing computes for it");
    kill_process(Pid::from_child(&command.0), Signal::INT).unwrap();
    let status = wait_for("the end of the command", END_MAX, || command.0.try_wait().unwrap());
    Some((status, children))
}

fn check(test: &str, args: &[&str]) {
    let Some((status, children)) = interrupted(args) else {
        return skip(test, "no Vulkan device (Debian: mesa-vulkan-drivers)");
    };
    assert_eq!(status.code(), Some(130), "{status}");
    let is_over = || children.iter().all(|child| !is_alive(*child)).then_some(());
    wait_for("the end of its children", SOON, is_over);
}

#[test]
fn a_benchmark_ends_with_the_child_that_computes_for_it() {
    check("a_benchmark_ends", &["bench", "demo", "-p", "8", "-n", "0", "-r", "1000"]);
}

#[test]
fn a_perplexity_ends_with_the_child_that_computes_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    let heldout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/heldout.txt");
    // Minutes of work.
    std::fs::write(&text, std::fs::read_to_string(heldout).unwrap().repeat(50)).unwrap();
    let text = text.to_str().unwrap();
    check("a_perplexity_ends", &["perplexity", "demo", "--text", text, "--context", "128"]);
}
