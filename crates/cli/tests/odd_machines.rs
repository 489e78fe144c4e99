//! Machines that are not as they should be: a data folder that cannot be written, a clock that was never set.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{self, EXO, Node, SOON, Start, good, known, shared_library, skip, stderr, wait_for};

/// A program that finds the folder mounted read-only.
fn read_only(folder: &Path, program: &str) -> Command {
    let mut unshare = Command::new("unshare");
    let mounts = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    unshare.args(["--mount", "sh", "-c", mounts]).arg(folder).arg(program);
    unshare
}

#[test]
fn a_data_folder_that_cannot_be_written_is_refused_by_name_and_stays_as_it_is() {
    const TEST: &str = "a_data_folder_that_cannot_be_written_is_refused_by_name_and_stays_as_it_is";
    let folder = tempfile::tempdir().unwrap();
    if !read_only(folder.path(), "true").output().is_ok_and(|output| output.status.success()) {
        return skip(TEST, "this system gives no mounts of our own");
    }
    let start = || Start::alone("fixed", &[]);
    let refused = || {
        let mut command = read_only(folder.path(), EXO);
        command.args(["start", "--data-dir"]).arg(folder.path());
        command.args(["--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--no-discovery"]);
        let output = support::finish(command.stdin(Stdio::null()), SOON);
        let error = stderr(&output);
        assert!(!output.status.success(), "{error}");
        let names_it = error.contains(folder.path().to_str().unwrap());
        assert!(names_it && error.contains("Read-only file system") && error.contains("hint:"), "{error}");
    };
    refused();
    let mut node = Node::start_in(folder.path(), start());
    let cluster = node.get("/exo/v1/cluster")["cluster"].clone();
    node.kill();
    refused();
    let again = Node::start_in(folder.path(), start());
    assert_eq!(again.get("/exo/v1/cluster")["cluster"], cluster);
}

/// A clock that counts from 1970 as the machine has run.
const UNSET_CLOCK: &str = "#define _GNU_SOURCE\n#include <time.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n\
    int clock_gettime(clockid_t clock, struct timespec *at) {\n\
        int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;\n\
        return syscall(SYS_clock_gettime, is_wall ? CLOCK_MONOTONIC : clock, at);\n}\n";

#[test]
fn a_node_whose_clock_was_never_set_computes_with_others_before_and_after_it_is() {
    const REJOINS_MAX: Duration = Duration::from_secs(30);
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("unset.so");
    assert!(shared_library(&library, UNSET_CLOCK), "cc: install Debian's gcc");
    let start = |index: usize, is_set: bool| {
        let name = ["one", "two"][index];
        let env = if is_set { vec![] } else { vec![("LD_PRELOAD", library.clone().into_os_string())] };
        Node::start_in(&folder.path().join(name), Start { name, group: "clock", env, ..Start::default() })
    };
    let serves = |nodes: &[Node; 2]| {
        wait_for("one cluster", REJOINS_MAX, || nodes.iter().all(|n| n.sees().len() == 2).then_some(()));
        let (prompt, answer) = &known()[0];
        for node in nodes {
            wait_for("an answer over both nodes", REJOINS_MAX, || {
                let reply = node.ask("demo", prompt);
                (reply.status == 200 && &reply.text() == answer).then_some(())
            });
        }
    };
    let mut nodes = [start(0, true), start(1, false)];
    good(nodes[1].exo(&["status"]));
    wait_for("one cluster", REJOINS_MAX, || nodes.iter().all(|n| n.sees().len() == 2).then_some(()));
    nodes[0].place("demo", 2);
    serves(&nodes);
    // Its clock is set at the next start; then the other one's battery is empty.
    for (index, is_set) in [(1, true), (0, false)] {
        nodes[index].kill();
        nodes[index] = start(index, is_set);
        serves(&nodes);
    }
}

#[test]
fn a_node_leaves_no_core_file() {
    let node = Node::alone();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.pid())).unwrap();
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    let [soft, hard, ..] = core.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{core}") };
    assert_eq!((soft, hard), ("0", "0"));
}
