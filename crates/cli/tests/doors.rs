//! Who gets in, and who is taken in: on nodes as processes of their own.

#![cfg(target_os = "linux")] // the tables of sockets
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a pause in which nothing happens is what is measured")]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use self::support::{Killed, Node, SOON, Start, exo, wait_for};

/// Local addresses of the sockets of one kind that a process has, as the kernel writes them; only those in `state`.
fn sockets(pid: u32, kind: &str, state: &str) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let own: Vec<_> = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok()).collect();
    let is_own = |inode: &str| own.iter().any(|link| link.to_string_lossy() == format!("socket:[{inode}]"));
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/{kind}")).unwrap_or_default();
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words[3] == state && is_own(words[9])).then(|| words[1].to_owned())
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

#[test]
fn a_command_opens_no_port_for_others_joins_nobody_and_leaves_the_window_to_the_first_start() {
    const LISTENING: &str = "0A";
    const ANY_UDP: &str = "07";
    const LOOPBACK: &str = "0100007F:";
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let other = Node::start(Start { name: "other", group: "doors", ..Start::default() });

    let mut command = exo(&["run", "demo", "--listen", "127.0.0.1:0", "--max-tokens", "4"]);
    command.arg("--data-dir").arg(&data).env("EXO_GROUP", format!("doors-{}", std::process::id()));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Killed(command.spawn().unwrap());
    wait_for("its API", SOON, || data.join("api.json").exists().then_some(()));
    std::thread::sleep(Duration::from_secs(3)); // others of the group meet within one
    let pid = run.0.id();
    let listening = [sockets(pid, "tcp", LISTENING), sockets(pid, "tcp6", LISTENING)].concat();
    assert!(listening.len() == 1 && listening[0].starts_with(LOOPBACK), "the API alone: {listening:?}");
    let udp = [sockets(pid, "udp", ANY_UDP), sockets(pid, "udp6", ANY_UDP)].concat();
    assert_eq!(udp, [""; 0], "neither QUIC nor mDNS");
    assert_eq!(other.sees(), ["other"]);
    let mut stdin = run.0.stdin.take().unwrap();
    stdin.write_all(b"Who are you?").unwrap();
    drop(stdin);
    assert!(run.0.wait().unwrap().success());

    // Who tried a prompt first still gets a cluster without a question.
    let start = Start { name: "first", group: "doors", ..Start::default() };
    let first = Node::start_in(&data, start);
    wait_for("one cluster", SOON, || (first.sees().len() == 2).then_some(()));
    assert_eq!(first.get("/exo/v1/cluster")["join_window"]["open"], true);
}

#[test]
fn a_lone_node_that_has_placed_a_model_joins_no_cluster_that_shows_up() {
    let one = Node::start(Start { name: "one", group: "taken", ..Start::default() });
    one.place("demo", 1);
    let two = Node::start(Start { name: "two", group: "taken", ..Start::default() });
    // The new one joins: the door of the other is open, and its own model stays.
    wait_for("one cluster", SOON, || (two.sees().len() == 2).then_some(()));
    let cluster = one.get("/exo/v1/cluster");
    let founder = cluster["nodes"].as_array().unwrap().iter().find(|node| node["role"] == "admin").unwrap();
    assert_eq!(founder["name"], "one");
    assert_eq!(cluster["instances"].as_array().unwrap().len(), 1);
}
