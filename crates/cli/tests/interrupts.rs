//! Ctrl-C while a child computes on a graphics processor, or tries one: the command ends as interrupted,
//! leaves no process behind, and holds it against no card.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::emulated;
use crate::support::{Killed, SOON, children_of, exo, finish, is_alive, skip, stderr, stdout, wait_for};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Opening the device in a debug build on a busy machine, and what a command gives its work to stop.
const END_MAX: Duration = Duration::from_secs(60);

/// Runs a command on a Vulkan device, sends SIGINT to it alone once its child has loaded the model, and gives
/// how it ended with the numbers of its children. `None` if there is no such device.
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

/// A card takes longer to be opened than it is given for its trial.
const OPENS_MS: &str = "600000";
/// Far longer than a child takes to list its cards.
const STAYS: Duration = Duration::from_secs(2);
/// From a signal to the end: no time at all, on an idle machine.
const STOP_MAX: Duration = Duration::from_secs(8);

/// A command on a machine that has one emulated card, and no other, and a data folder of its own.
fn with_a_card(args: &[&str], data: &Path) -> Command {
    let nowhere = "/proc/sys/vm"; // no driver is described there
    let mut command = exo(args);
    command.args(["--backend", "auto", "--no-discovery", "--data-dir"]).arg(data);
    command.env("LD_LIBRARY_PATH", emulated::library()).env("EXO_EMULATED_CARDS", "1");
    command.env("HIP_VISIBLE_DEVICES", "");
    command.env("VK_DRIVER_FILES", nowhere).env("VK_ICD_FILENAMES", nowhere);
    command
}

/// Starts it as the head of a group, and gives it with the child in which it tries its card.
fn trying(mut command: Command) -> (Killed, u32) {
    command.env("EXO_EMULATED_OPENS_MS", OPENS_MS).process_group(0);
    let command = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let trial = wait_for("the trial of a new card", SOON, || trial_of(command.0.id()));
    (command, trial)
}

#[allow(clippy::disallowed_methods, reason = "looks twice at another process")]
/// The child in which a process tries its card: the one that stays. Those that only list are gone at once.
fn trial_of(pid: u32) -> Option<u32> {
    let child = children_of(pid).pop()?;
    std::thread::sleep(STAYS);
    is_alive(child).then_some(child)
}

/// Whether something is noted of a card whose trial nobody let end.
fn is_noted(data: &Path) -> bool {
    std::fs::read_to_string(data.join("gpu_registry.json")).is_ok_and(|all| all.contains("Emulated"))
}

#[test]
fn a_first_start_that_is_stopped_ends_at_once_and_holds_nothing_against_the_card() {
    let start: &[&str] = &["start", "--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let ask: &[&str] = &["run", "demo", "Who are you?"];
    let group = kill_process_group;
    for (args, kill, signal) in [
        (start, group as fn(_, _) -> _, Signal::INT),
        (ask, group, Signal::INT),
        (start, group, Signal::TERM),
        (ask, kill_process, Signal::TERM),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (mut command, trial) = trying(with_a_card(args, folder.path()));
        let began = Instant::now();
        kill(Pid::from_child(&command.0), signal).unwrap();
        let status = wait_for("its end", STOP_MAX, || command.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(130), "{args:?} {signal:?}: {status} after {:?}", began.elapsed());
        wait_for("the end of the trial", SOON, || (!is_alive(trial)).then_some(()));
        assert!(!is_noted(folder.path()), "{args:?} {signal:?}");
    }
}

#[test]
fn a_trial_ends_with_whoever_asked_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, trial) = trying(with_a_card(&["run", "demo", "Who are you?"], folder.path()));
    command.0.kill().unwrap();
    wait_for("the end of the trial", SOON, || (!is_alive(trial)).then_some(()));
}

#[test]
fn a_trial_that_somebody_ends_is_no_verdict_and_the_processor_answers_for_now() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let answer = std::thread::scope(|scope| {
        let ask = ["run", "demo", "Who are you?", "--max-tokens", "4", "--temperature", "0"];
        let mut command = with_a_card(&ask, &data);
        command.env("EXO_EMULATED_OPENS_MS", OPENS_MS);
        let answer = scope.spawn(move || finish(&mut command, END_MAX));
        let of_ours = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&*data.to_string_lossy())
        };
        let trial = wait_for("the trial of a new card", SOON, || {
            trial_of(children_of(std::process::id()).into_iter().find(of_ours)?)
        });
        // As a service manager does it, which ends every process of a service.
        kill_process(Pid::from_raw(trial.cast_signed()).unwrap(), Signal::TERM).unwrap();
        answer.join().unwrap()
    });
    let told = stderr(&answer);
    assert!(answer.status.success() && !stdout(&answer).trim().is_empty(), "{told}");
    assert!(told.contains("was not tried to the end, so the next start tries it"), "{told}");
    assert!(!is_noted(&data), "{told}");
}
