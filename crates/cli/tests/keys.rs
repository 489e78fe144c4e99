//! Keys of the API with names, and what becomes of one that is taken away while the node runs.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{
    Answer, Node, SOON, Start, exo, finish, flat, must_refuse, rest_of, stderr, stdout, stream_until,
    wait_for,
};

const ANNA: &str = "1f0c9a7b5d3e2f4a6b8c0d1e";
const BEN: &str = "2a4b6c8d0e1f3a5b7c9d1e2f";
const CARLA: &str = "3c5d7e9f1a2b4c6d8e0f1a2b";
/// Within which a change of the file counts.
const CHANGED: Duration = Duration::from_secs(5);

fn write(file: &Path, text: &str, mode: u32) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn start(file: &Path) -> Node {
    Node::start(Start::alone("keys", &["--config", file.to_str().unwrap()]))
}

/// Asks for the list of models with this key.
fn models(node: &mut Node, key: &str) -> (u16, String) {
    let secret = std::mem::replace(&mut node.secret, key.to_owned());
    let answer = node.call("GET", "/v1/models", None);
    node.secret = secret;
    (answer.status, answer.body)
}

fn exo_with(file: &Path, args: &[&str]) -> std::process::Output {
    finish(exo(args).arg("--config").arg(file), SOON)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    (folder, file)
}

#[test]
fn a_key_has_a_name_and_one_that_is_taken_away_ends_while_the_node_runs() {
    let (_folder, file) = folder();
    write(&file, &format!("slots = 2\n[api_keys]\nanna = \"{ANNA}\"\nben = \"{BEN}\"\n"), 0o600);
    for args in [&["config"][..], &["config", "--json"]] {
        let shown = stdout(&exo_with(&file, args));
        assert!(shown.contains("(2 set: anna, ben)") && !shown.contains(ANNA), "{shown}");
    }

    let mut node = start(&file);
    assert_eq!((models(&mut node, ANNA).0, models(&mut node, BEN).0), (200, 200));
    let secret = std::mem::replace(&mut node.secret, ANNA.to_owned());
    let mut running = vec![stream_until(&node, 400, 3)];
    running.extend((0..11).map(|_| stream_until(&node, 400, 0)));
    let by = stdout(&node.exo(&["status", "--requests"]));
    node.secret = secret;
    assert!(by.contains("anna"), "{by}");

    write(&file, &format!("slots = 2\n[api_keys]\nben = \"{BEN}\"\ncarla = \"{CARLA}\"\n"), 0o600);
    let refused = wait_for("anna's key is refused", CHANGED, || {
        let (status, body) = models(&mut node, ANNA);
        assert_eq!(models(&mut node, BEN).0, 200);
        (status == 401).then_some(body)
    });
    assert!(refused.contains("invalid_api_key"), "{refused}");
    assert_eq!(models(&mut node, CARLA).0, 200, "a new one counts as well");
    assert!(node.log().contains("API keys: 2 set: ben, carla, read again from"), "{}", node.log());
    running.into_iter().for_each(|stream| drop(rest_of(stream)));
    let recent = node.get("/exo/v1/requests/recent");
    assert!(recent.as_array().unwrap().iter().any(|request| request["principal"] == "anna"), "{recent:#}");
    assert!(!node.log().contains(BEN), "no key is printed");
}

#[test]
fn a_file_that_is_broken_changes_no_key_and_the_last_key_taken_away_opens_nothing() {
    let (_folder, file) = folder();
    write(&file, &format!("api_keys = [\"{ANNA}\"]\n"), 0o600);
    let mut node = start(&file);
    write(&file, &format!("api_keys = [\"{BEN}\"]\nslots = \n"), 0o600);
    let warning = "is not taken, the API's keys are those of before";
    wait_for("a warning", CHANGED, || node.log().contains(warning).then_some(()));
    assert!(node.log().contains("line 2") && !node.log().contains(BEN), "{}", node.log());
    assert_eq!((models(&mut node, ANNA).0, models(&mut node, BEN).0), (200, 401));
    write(&file, "", 0o600);
    wait_for("nobody is let in", CHANGED, || (models(&mut node, ANNA).0 == 401).then_some(()));
    assert_eq!(models(&mut node, "").0, 401);
    assert_eq!(node.log().matches(warning).count(), 1, "{}", node.log());
    assert!(node.log().contains("nobody is let in by a key"), "{}", node.log());
}

#[test]
fn weak_keys_and_a_file_that_others_read_are_warned_of_and_unusable_keys_are_refused() {
    let (folder, file) = folder();
    write(&file, "api_keys = [\"abc\", \"abc\"]\n", 0o644);
    let data = folder.path().join("data");
    let doctor = exo_with(&file, &["doctor", "--no-discovery", "--data-dir", data.to_str().unwrap()]);
    let node = start(&file);
    for said in [flat(&stdout(&doctor)), node.log()] {
        for part in ["3 characters", "openssl rand -hex 24", "is there twice", "chmod 600"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    for (text, why) in [
        (format!("api_keys = [\"{ANNA}\", \"open sesame\"]"), "key 2 must be"),
        (format!("[api_keys]\nanna = \"{ANNA}\"\nben = \"{ANNA}\""), "`anna` and `ben` have the same key"),
        (format!("[api_keys]\nlocal = \"{ANNA}\""), "`local` cannot name a key"),
        ("api_proxied = true".to_owned(), "set `api_keys` for it"),
        ("[api_keys]\nanna = 3".to_owned(), "`api_keys.anna` must be a text"),
    ] {
        write(&file, &text, 0o600);
        let refused = exo_with(&file, &["start", "--data-dir", data.to_str().unwrap()]);
        let said = stderr(&refused);
        assert!(!refused.status.success() && said.contains(why), "{said}");
        assert!(!said.contains(ANNA) && !said.contains("sesame"), "{said}");
    }
    // What a start refuses, the doctor finds.
    write(&file, "api_proxied = true", 0o600);
    let doctor = exo_with(&file, &["doctor", "--no-discovery", "--data-dir", data.to_str().unwrap()]);
    let said = flat(&stdout(&doctor));
    assert!(!doctor.status.success() && said.contains("proxy opens the API to others"), "{said}");
}

/// A request as a browser sends it: with these lines and no others.
fn as_browser(node: &Node, line: &str, headers: &[&str], body: &str) -> Answer {
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let (host, length) = (&node.address, body.len());
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

#[test]
fn a_web_view_that_is_named_streams_an_answer_with_a_key_and_gets_nothing_else() {
    const VIEW: &str = "Origin: app://obsidian.md";
    const SHARED: &str = "access-control-allow-origin: app://obsidian.md";
    let (folder, file) = folder();
    let keys = format!("[api_keys]\nanna = \"{ANNA}\"\n");
    write(
        &file,
        &format!("allowed_origins = [\"app://obsidian.md\", \"vscode-webview://*\"]\n{keys}"),
        0o600,
    );
    let shown = stdout(&exo_with(&file, &["config", "--json"]));
    assert!(shown.contains("app://obsidian.md,vscode-webview://*"), "{shown}");
    let node = start(&file);
    let key = format!("Authorization: Bearer {ANNA}");
    let chat = "POST /v1/chat/completions";
    let asks = [VIEW, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"];
    let may = as_browser(&node, "OPTIONS /v1/chat/completions", &asks, "");
    assert!(may.status == 204 && may.head.contains(SHARED), "{}", may.head);
    let body = r#"{"model": "demo", "stream": true, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}"#;
    let from_view = [VIEW, "Sec-Fetch-Site: cross-site", "Content-Type: application/json"];
    let answer = as_browser(&node, chat, &[&from_view[..], &[key.as_str()]].concat(), body);
    assert!(answer.status == 200 && answer.head.contains(SHARED), "{}\n{}", answer.head, answer.body);
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);
    let keyless = as_browser(&node, chat, &from_view, body);
    assert_eq!((keyless.status, keyless.code().as_str()), (401, "missing_api_key"));
    assert!(keyless.head.contains(SHARED), "the page may read why: {}", keyless.head);
    let owner = format!("Authorization: Bearer {}", node.secret);
    for (path, who, status) in
        [("/exo/v1/cluster", &owner, 403), ("/v1/models", &owner, 401), ("/v1/models", &key, 200)]
    {
        let answer = as_browser(&node, &format!("GET {path}"), &[VIEW, who], "");
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    let other = as_browser(&node, "GET /v1/models", &["Origin: app://other", &key], "");
    assert!(other.status == 403 && other.body.contains("`allowed_origins`"), "{}", other.body);
    assert!(!other.head.contains("access-control"), "{}", other.head);

    // What a start refuses, the doctor finds.
    write(&file, &format!("allowed_origins = [\"http://localhost:3000/\"]\n{keys}"), 0o600);
    let data = folder.path().join("data");
    must_refuse(exo_with(&file, &["start", "--data-dir", data.to_str().unwrap()]), "has no path");
    let doctor = exo_with(&file, &["doctor", "--no-discovery", "--data-dir", data.to_str().unwrap()]);
    assert!(
        !doctor.status.success() && flat(&stdout(&doctor)).contains("has no path"),
        "{}",
        stdout(&doctor)
    );
}
