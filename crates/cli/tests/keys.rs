//! Keys of the API with names, and what becomes of one that is taken away while the node runs.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Node, SOON, Start, exo, finish, flat, rest_of, stderr, stdout, stream_until, wait_for};

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
    let flags = ["--no-discovery", "--config", file.to_str().unwrap()].map(str::to_owned).to_vec();
    Node::start(Start { name: "solo", group: "keys", flags, ..Start::default() })
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
        (format!("[api_keys]\nlocal = \"{ANNA}\""), "`local` is no name"),
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
