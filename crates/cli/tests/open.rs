//! `exo open` and `exo status --watch`, on nodes as processes.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Answer, Killed, Node, SOON, Start, exo, finish, stderr, stdout, wait_for};

/// A request that shows this token, or none.
fn call(node: &Node, line: &str, token: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(
        stream,
        "{line} HTTP/1.1\r\nhost: {}\r\norigin: http://{}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        node.address,
        node.address,
        body.len()
    )
    .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

/// The code of a link.
fn code(link: &str) -> String {
    link.trim().split_once("/#code=").unwrap_or_else(|| panic!("no link: {link}")).1.to_owned()
}

#[test]
fn a_link_of_exo_open_signs_in_once_and_the_session_outlasts_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let start = Start { name: "desk", ..Start::alone("open", &[]) };
    let mut node = Node::start_in(&data, start.clone());
    let greeting =
        wait_for("the greeting", SOON, || Some(node.log()).filter(|log| log.contains("`exo open`")));
    assert!(!greeting.contains("#code="), "{greeting}");
    let printed = node.exo(&["open", "--print"]);
    let link = stdout(&printed);
    assert!(link.starts_with(&format!("http://{}/#code=", node.address)), "{link}{}", stderr(&printed));
    let code = json!({"code": code(&link)});
    let session = call(&node, "POST /exo/v1/session", "none", &code).good();
    let token = session.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(
        (session.json()["name"].as_str(), session.json()["access"].as_str()),
        (Some("desk"), Some("owner"))
    );
    assert_eq!(call(&node, "POST /exo/v1/session", "none", &code).json()["error"]["code"], "code_used");
    assert_eq!(call(&node, "GET /exo/v1/cluster", &token, &Value::Null).status, 200);
    let file = std::fs::read_to_string(data.join("sessions.json")).unwrap();
    assert!(!file.contains(token.trim_start_matches("exs_")));

    node.kill();
    let node = Node::start_in(&data, start);
    assert_eq!(call(&node, "GET /exo/v1/cluster", &token, &Value::Null).status, 200, "over a restart");
    let out = node.exo(&["open", "--sign-out"]);
    assert!(stdout(&out).contains("signed out"), "{}", stderr(&out));
    let ended = call(&node, "GET /exo/v1/cluster", &token, &Value::Null);
    assert_eq!((ended.status, ended.json()["error"]["code"].as_str()), (401, Some("session_ended")));
}

#[test]
fn without_a_screen_exo_open_says_how_to_get_the_page_to_one() {
    let node = Node::alone();
    let mut command = exo(&["open"]);
    command.arg("--data-dir").arg(&node.data_dir).env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    command.env("USER", "ann").env("SSH_CONNECTION", "203.0.113.5 50000 192.0.2.7 22");
    let out = stdout(&finish(&mut command, SOON));
    let port = node.address.rsplit(':').next().unwrap();
    assert!(out.contains(&format!("ssh -L {port}:127.0.0.1:{port} ann@192.0.2.7")), "{out}");
    assert_eq!(code(out.lines().next().unwrap()).len(), 64);
    assert!(!node.data_dir.join("open.html").exists());
}

#[test]
fn status_watch_shows_the_cluster_and_then_what_changes() {
    let node = Node::alone();
    let mut command = exo(&["status", "--watch", "--json"]);
    command.arg("--data-dir").arg(&node.data_dir).stdout(Stdio::piped());
    let mut watch = Killed(command.spawn().unwrap());
    let lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(tell.send(line))));
    let next = || -> Value { serde_json::from_str(&told.recv_timeout(SOON).expect("an event")).unwrap() };
    let first = next();
    assert_eq!(first["cluster"]["nodes"][0]["name"], "solo");
    node.place("demo", 1);
    let placed = wait_for("the instance in the events", SOON, || {
        let changes = next()["changes"].as_array()?.clone();
        changes.into_iter().find(|change| change["kind"] == "instance")
    });
    assert_eq!(placed["instance"]["model"], "demo");
    let plain =
        exo(&["status", "--watch"]).arg("--data-dir").arg(&node.data_dir).stdout(Stdio::piped()).spawn();
    let mut plain = Killed(plain.unwrap());
    let mut text = BufReader::new(plain.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(text.any(|line| line.contains("demo")));
}
