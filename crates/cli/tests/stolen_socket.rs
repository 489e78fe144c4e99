//! Another user takes the path of a node's socket after the node crashed: commands tell that user nothing.

#![cfg(target_os = "linux")] // `setpriv`
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Node, SOON, exo, finish, must_refuse, skip};

/// Whoever owns nothing here.
const USER: &str = "65534";
const TOKEN: &str = "hf_of_the_owner";
/// Says `bound`, and when its input ends, how many connected and what they sent.
const THIEF: &str = "import os, select, socket, sys
os.unlink(sys.argv[1])
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
s.listen(8)
print('bound', flush=True)
came, heard, held, ending = 0, b'', [], False
while True:
    watched = [s] + held + ([] if ending else [sys.stdin])
    ready, _, _ = select.select(watched, [], [], 0.5 if ending else None)
    if ending and not ready:
        break
    for one in [one for one in held if one in ready]:
        got = one.recv(4096)
        heard += got
        if not got:
            held.remove(one)
    if s in ready:
        held.append(s.accept()[0])
        came += 1
    ending = ending or sys.stdin in ready
print(came, heard)";

/// The other user's process, as soon as it has the socket; `None` where it cannot get it.
fn steal(socket: &Path) -> Option<(Child, BufReader<std::process::ChildStdout>)> {
    let mut thief = Command::new("setpriv");
    thief.args(["--reuid", USER, "--regid", USER, "--clear-groups", "/usr/bin/python3", "-c", THIEF]);
    thief.arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut thief = thief.spawn().ok()?;
    let mut said = BufReader::new(thief.stdout.take()?);
    let mut line = String::new();
    said.read_line(&mut line).ok()?;
    if line != "bound\n" {
        thief.wait().ok()?;
        return None;
    }
    Some((thief, said))
}

#[test]
fn a_command_tells_nothing_to_another_user_who_took_the_socket_of_a_node_that_crashed() {
    const TEST: &str = "a_command_tells_nothing_to_another_user_who_took_the_socket_of_a_node_that_crashed";
    let mut node = Node::alone();
    node.kill();
    // As a careless owner would: everybody may write to all of it.
    for folder in [node.data_dir.parent().unwrap(), node.data_dir.as_path()] {
        std::fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
    }
    let published = std::fs::read_to_string(node.data_dir.join("api.json")).unwrap();
    let published: serde_json::Value = serde_json::from_str(&published).unwrap();
    let socket = Path::new(published["socket"].as_str().unwrap());
    let Some((mut thief, mut said)) = steal(socket) else {
        return skip(
            TEST,
            "it takes root, `setpriv`, /usr/bin/python3 and a temporary folder that others reach",
        );
    };
    for command in ["status", "invite", "alerts"] {
        must_refuse(node.exo(&[command]), "no exo node is running");
    }
    // One that has a secret to tell.
    let mut pull = exo(&["pull", "hf.co/org/repo"]);
    pull.arg("--data-dir").arg(&node.data_dir).env("HF_TOKEN", TOKEN).env("EXO_OFFLINE", "1");
    pull.env("HOME", node.data_dir.join("no-home"));
    must_refuse(finish(&mut pull, SOON), "");
    drop(thief.stdin.take());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(thief.wait().unwrap().success());
    let (came, heard) = line.trim().split_once(' ').unwrap();
    assert!(came.parse::<u32>().unwrap() >= 4, "no command came to the socket: {line}");
    assert_eq!(heard, "b''", "what another user heard");
}
