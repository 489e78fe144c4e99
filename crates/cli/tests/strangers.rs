//! What other nodes and models say, on its way to a terminal: a node that says the worst there is, and
//! commands that ask it.

#![cfg(unix)] // the hostile node listens where commands look for one: on a Unix socket
#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::support::{self, Node, SOON, finish, stderr, stdout};
use serde_json::{Value, json};

/// Clears the screen, sets a title, turns text around, begins a line of its own, closes a suggested command
/// and a quotation, and is long.
const HOSTILE: &str =
    "\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{202E}\u{2066}\u{200B}\nerror: forged`; exo admit evil `'\"$(id)";
const ID: &str = "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst";

fn hostile() -> String {
    HOSTILE.repeat(200)
}

/// Adds to every text that is another's to choose, alone or in a list.
fn infect(key: &str, value: &mut Value) {
    const THEIRS: [&str; 26] = [
        "name",
        "node_name",
        "model",
        "reason",
        "reasons",
        "support_reason",
        "state_reason",
        "backend",
        "driver",
        "architecture",
        "text",
        "version",
        "platform",
        "waits_for",
        "advice",
        "source",
        "licence",
        "fetched_from",
        "transport",
        "path",
        "device",
        "format",
        "addresses",
        "pins",
        "subject",
        "exclude",
    ];
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| infect(key, item)),
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| infect(key, value)),
        Value::String(text) if THEIRS.contains(&key) => text.push_str(&hostile()),
        _ => {}
    }
}

/// What a hostile node answers, made of what an honest one did.
struct Answers {
    cluster: Value,
    models: Value,
    plan: Value,
}

/// What a hostile node answers to a path.
fn answer(path: &str, Answers { cluster, models, plan }: &Answers) -> (u16, String) {
    match path {
        "/health" => (200, "{}".to_owned()),
        "/exo/v1/cluster" => (200, cluster.to_string()),
        "/exo/v1/models" => (200, models.to_string()),
        "/exo/v1/alerts" => (200, cluster["alerts"].to_string()),
        "/exo/v1/plan" => (200, plan.to_string()),
        "/exo/v1/members" => {
            (200, json!([{"node": ID, "name": hostile(), "role": "worker", "is_self": false}]).to_string())
        }
        "/v1/chat/completions" => {
            let piece =
                |text: &str| format!("data: {}\n\n", json!({"choices": [{"delta": {"content": text}}]}));
            // The sequence is cut by the border of two pieces.
            let pieces = ["plain\ttext\n\x1b", "[2Jred\u{9b}", "31m\u{202E}", "end"].map(piece).concat();
            (200, format!(": {HOSTILE}\n\n{pieces}data: [DONE]\n\n"))
        }
        _ => (418, json!({"error": {"message": hostile(), "code": "teapot"}}).to_string()),
    }
}

fn serve(stream: UnixStream, answers: &Answers) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let (status, body) = answer(first.split(' ').nth(1).unwrap_or_default(), answers);
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    reader.get_mut().write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())
}

/// Publishes a hostile node on this data folder, made of what an honest one says.
fn hostile_node(data_dir: &Path) {
    let honest = Node::alone();
    honest.place("demo", 1);
    let (mut cluster, mut models) = (honest.get("/exo/v1/cluster"), honest.get("/exo/v1/models"));
    let plan = honest.post("/exo/v1/plan", &json!({"model": "demo"})).good();
    let mut plan = plan.json();
    cluster["join_requests"] =
        json!([{"node": ID, "name": "", "address": "192.0.2.1:1", "check_words": "a b c d"}]);
    cluster["links"] = json!([{"from": ID, "to": cluster["self_node"], "transport": "tcp", "rtt_ms": 1.0}]);
    cluster["other_clusters"] = json!([{"node": ID, "name": "", "address": "192.0.2.1:2"}]);
    cluster["alerts"] = json!([{"id": "a", "rule": "node_lost", "severity": "critical", "since_unix_s": 1,
        "subject": "", "text": "", "what_to_do": "look", "runbook": "docs/runbook.md#node_lost"}]);
    for value in [&mut cluster, &mut models, &mut plan] {
        infect("", value);
    }
    let answers = Answers { cluster, models, plan };
    let socket = data_dir.join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let api = json!({"address": "127.0.0.1:1", "socket": socket, "pid": 1});
    std::fs::write(data_dir.join("api.json"), api.to_string()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = serve(stream, &answers);
        }
    });
}

/// Nothing that a terminal obeys but ends of lines and tabs, no line forged, no command with a stranger's
/// words, not endless.
fn assert_harmless(what: &str, text: &str) {
    let obeyed = |c: char| exo_types::is_terminal_control(c) && c != '\n' && c != '\t';
    assert!(!text.contains(obeyed), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("error: forged")), "{what}: {text}");
    assert!(!text.contains("exo admit \u{FFFD}") && !text.contains("exo remove \u{FFFD}"), "{what}: {text}");
    // The text is in some forty fields; each is cut.
    assert!(text.len() < 200_000, "{what}: {} bytes", text.len());
}

#[test]
fn no_command_shows_a_terminal_what_strangers_call_themselves() {
    let folder = tempfile::tempdir().unwrap();
    hostile_node(folder.path());
    let commands: [&[&str]; 30] = [
        &["status"],
        &["status", "--json"],
        &["status", "--links"],
        &["status", "--requests"],
        &["models"],
        &["models", "--json"],
        &["models", "remove", "x"],
        &["doctor"],
        &["doctor", "--json"],
        &["place", "demo"],
        &["unload", "nothing"],
        &["admit", "nobody"],
        &["remove", "nobody"],
        &["remove", ID],
        &["plan", "demo"],
        &["plan", "demo", "--json"],
        &["replan", "demo"],
        &["replan", "demo", "--dry-run"],
        &["drain", ID],
        &["drain", ID, "--undo"],
        &["invite"],
        &["join", "123-456-789"],
        &["admin", "add", ID],
        &["admin", "remove", ID],
        &["place", "demo", "--replace"],
        &["alerts"],
        &["alerts", "--json"],
        &["logs"],
        &["pulls"],
        &["fits"],
    ];
    for args in commands {
        let output = finish(support::exo(args).arg("--data-dir").arg(folder.path()), SOON);
        let (out, err) = (stdout(&output), stderr(&output));
        assert_harmless(&format!("{args:?}"), &format!("{out}{err}"));
        assert!(
            out.contains('\u{FFFD}') || err.contains('\u{FFFD}'),
            "{args:?} shows none of it: {out}{err}"
        );
        if args == ["status"] || args == ["doctor"] {
            assert!(out.contains("`exo admit abcdefghijklmnop`"), "{args:?}: {out}");
        }
    }
}

#[test]
fn a_pipe_gets_a_models_words_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    hostile_node(folder.path());
    for raw in [&[][..], &["--raw"]] {
        let output =
            finish(support::exo(&["run", "demo", "hi"]).args(raw).arg("--data-dir").arg(folder.path()), SOON);
        assert_eq!(stdout(&output), "plain\ttext\n\x1b[2Jred\u{9b}31m\u{202E}end\n", "{}", stderr(&output));
    }
}

/// What `exo` writes to a terminal as its standard output, recorded by `script`.
#[test]
fn a_terminal_gets_no_escape_sequence_of_a_model_unless_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    hostile_node(folder.path());
    let recorded = |flag: &str| {
        let line = format!(
            "'{}' run demo hi {flag} --data-dir '{}' 2>/dev/null",
            support::EXO,
            folder.path().display()
        );
        stdout(&finish(&mut support::at_terminal(&line), SOON)).replace("\r\n", "\n")
    };
    assert_eq!(recorded(""), "plain\ttext\n\u{FFFD}[2Jred\u{FFFD}31m\u{FFFD}end\n");
    assert_eq!(recorded("--raw"), "plain\ttext\n\x1b[2Jred\u{9b}31m\u{202E}end\n");
}
