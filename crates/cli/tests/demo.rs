//! `exo demo`: it succeeds, and whenever it is ended it leaves nothing behind.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a signal at a chosen moment")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{self, Killed, exo, finish, good, is_alive, known, stderr, stdout, wait_for};

/// What the issue allows.
const DEMO_MAX: Duration = Duration::from_secs(60);

#[test]
fn two_demos_at_once_succeed_unattended_as_clusters_of_their_own_and_show_the_known_answers() {
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(a_demo_succeeds));
        for demo in both {
            demo.join().unwrap();
        }
    });
}

fn a_demo_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let text = stdout(&good(finish(exo(&["demo"]).env("TMPDIR", folder.path()), DEMO_MAX)));
    for (prompt, answer) in known().into_iter().take(3) {
        assert!(text.contains(&format!("> {prompt}\n{answer}\n")), "{prompt}: {text}");
    }
    for claim in
        ["found each other by mDNS", "share of time", "more per token and hop", "checked: split and solo"]
    {
        assert!(text.contains(claim), "no `{claim}` in: {text}");
    }
    assert!(!text.contains('\u{1b}'), "colours and cursor moves belong on a terminal");
    assert_left_nothing(folder.path());
}

#[test]
fn a_user_who_turned_discovery_off_gets_a_demo_without_it() {
    let text = stdout(&good(finish(&mut exo(&["demo", "--no-discovery", "--nodes", "2"]), DEMO_MAX)));
    assert!(text.contains("mDNS is off: joining by address") && !text.contains("found each other"), "{text}");
}

#[test]
fn ctrl_c_at_any_moment_leaves_no_process_and_no_file() {
    for (after_ms, signal) in [(60, "-INT"), (500, "-TERM"), (1500, "-INT"), (3000, "-INT")] {
        let folder = tempfile::tempdir().unwrap();
        let mut demo = Killed(
            exo(&["demo", "--keep"]).env("TMPDIR", folder.path()).stdout(Stdio::null()).spawn().unwrap(),
        );
        std::thread::sleep(Duration::from_millis(after_ms));
        let sent = Command::new("kill").args([signal, &demo.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let what = format!("the end after {signal} at {after_ms} ms");
        let status = wait_for(&what, Duration::from_secs(12), || demo.0.try_wait().unwrap());
        // Before the program listens for signals the system ends it.
        assert!(!status.success() || after_ms == 3000, "{signal} at {after_ms} ms: {status}");
        if status.code().is_some() {
            assert_left_nothing(folder.path());
        }
        assert_no_process_of(folder.path());
    }
}

#[test]
fn a_killed_demo_takes_its_nodes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo =
        Killed(exo(&["demo", "--keep"]).env("TMPDIR", folder.path()).stdout(Stdio::null()).spawn().unwrap());
    let nodes = wait_for("three nodes", Duration::from_secs(20), || {
        let nodes = processes_of(folder.path());
        (nodes.len() == 3).then_some(nodes)
    });
    demo.0.kill().unwrap();
    demo.0.wait().unwrap();
    for pid in nodes {
        wait_for("the end of a node", Duration::from_secs(12), || (!is_alive(pid)).then_some(()));
    }
}

#[test]
fn without_multicast_the_demo_says_so_and_joins_by_address() {
    if !rustix::process::geteuid().is_root() {
        return support::skip(
            "without_multicast_the_demo_says_so_and_joins_by_address",
            "needs root for a network namespace",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    // A network of its own in which no socket may listen to multicast.
    let script = "ip link set lo up && echo 0 > /proc/sys/net/ipv4/igmp_max_memberships && exec \"$0\" demo";
    let mut command = exo(&[]);
    command.env("TMPDIR", folder.path());
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "sh", "-c", script, support::EXO]);
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => unshare.env(key, value),
            None => unshare.env_remove(key),
        };
    }
    let output = finish(unshare.stdin(Stdio::null()), DEMO_MAX);
    let text = stdout(&output);
    if stderr(&output).contains("Operation not permitted") {
        return support::skip(
            "without_multicast_the_demo_says_so_and_joins_by_address",
            "no right to make a namespace",
        );
    }
    assert!(output.status.success(), "{text}\n{}", stderr(&output));
    assert!(
        text.contains("mDNS did not bring them together")
            && text.contains("joined through --peer 127.0.0.1:"),
        "{text}"
    );
}

fn assert_left_nothing(folder: &Path) {
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    assert_no_process_of(folder);
}

fn assert_no_process_of(folder: &Path) {
    // Killed from outside the demo cannot wait for its nodes: they notice by themselves.
    wait_for("no process", Duration::from_secs(12), || processes_of(folder).is_empty().then_some(()));
}

/// Nodes whose data folder lies in `folder`.
fn processes_of(folder: &Path) -> Vec<u32> {
    let wanted = folder.to_str().unwrap();
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(wanted) && is_alive(*pid)
    })
    .collect()
}
