//! A small model that guesses ahead: the built-in one for itself, one that speaks another language, none at
//! all.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::PathBuf;

use crate::support::{Node, SOON, Start, exo, finish, known, stderr, wait_for, with};
use serde_json::{Value, json};

fn node(flags: &[&str]) -> Node {
    Node::start(Start::alone("draft", flags))
}

fn complete(node: &Node, more: Value) -> Value {
    let body = json!({
        "model": "demo", "prompt": "Once upon a time there was a", "max_tokens": 200, "ignore_eos": true,
    });
    node.post("/v1/completions", &with(body, more)).good().json()
}

/// The built-in model with one token renamed: as large as before, and another vocabulary.
fn foreign(folder: &tempfile::TempDir) -> PathBuf {
    let (name, renamed) = (b"<|endoftext|>", b"<|other-end|>");
    let mut bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/exo-demo-Q8_0.gguf")).unwrap();
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    bytes[at..at + name.len()].copy_from_slice(renamed);
    let path = folder.path().join("foreign.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_model_that_drafts_for_itself_is_right_and_changes_nothing() {
    let without = node(&["--speculate", "off"]);
    // Drawn answers are guessed with the same dice.
    for more in [json!({"temperature": 0}), json!({"temperature": 1, "seed": 3, "n": 3})] {
        // One that does not know yet that a draft model of the same size cannot pay.
        let with = node(&["--draft", "demo"]);
        wait_for("the draft model's line", SOON, || {
            with.log().contains("draft      demo guesses ahead for 4 sequences").then_some(())
        });
        let refused = finish(
            &mut exo(&["models", "remove", "demo", "--data-dir", with.data_dir.to_str().unwrap()]),
            SOON,
        );
        assert!(stderr(&refused).contains("`demo` guesses ahead for this node"), "{}", stderr(&refused));
        let (guessed, plain) = (complete(&with, more.clone()), complete(&without, more));
        assert_eq!(guessed["choices"], plain["choices"]);
        let details = &guessed["usage"]["completion_tokens_details"];
        assert!(details["accepted_prediction_tokens"].as_u64().unwrap() > 0, "{guessed}");
        let rate = guessed["exo"]["draft_acceptance_rate"].as_f64().unwrap();
        assert!(rate > 0.95, "{guessed}");
        for (prompt, answer) in known() {
            assert_eq!(with.ask("demo", &prompt).text(), answer, "{prompt}");
        }
        let log = with.log();
        assert!(!log.contains("no longer guessed"), "{log}");
    }
}

#[test]
fn an_answer_goes_on_beyond_what_the_draft_model_can_hold() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("exo.toml");
    std::fs::write(&config, "context_tokens = 64\n").unwrap();
    let with = node(&["--draft", "demo", "--config", config.to_str().unwrap()]);
    with.post("/exo/v1/instances", &json!({"model": "demo", "context_tokens": 512})).good();
    let guessed = complete(&with, json!({"temperature": 0}));
    let plain = complete(&node(&["--speculate", "off"]), json!({"temperature": 0}));
    assert_eq!(guessed["choices"], plain["choices"]);
    let details = &guessed["usage"]["completion_tokens_details"];
    let right = details["accepted_prediction_tokens"].as_u64().unwrap();
    assert!(right > 0, "by the small model at first, then from the text itself: {guessed}");
    assert!(!with.log().contains("no longer guessed"), "{}", with.log());
}

#[test]
fn a_draft_model_of_another_tokenizer_is_refused_with_the_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = foreign(&folder);
    let node = node(&["--draft", path.to_str().unwrap()]);
    let asked = node.ask("demo", "Hello");
    let placed = node.post("/exo/v1/instances", &json!({"model": "demo"}));
    for answer in [asked, placed] {
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_value"), "{}", answer.body);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("`foreign` cannot guess ahead for `demo`"), "{message}");
        assert!(message.contains(r#"token 0 is "<|other-end|>" against "<|endoftext|>""#), "{message}");
    }
    // What has its tokenizer is served.
    let own = complete(&node, json!({"model": "foreign", "temperature": 0}));
    assert_eq!(own["usage"]["completion_tokens"], 200, "{own}");
}

#[test]
fn a_draft_model_that_cannot_be_used_is_an_error_of_the_start() {
    let start = |flags: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let args = ["start", "--no-discovery", "--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
        let output = finish(exo(&args).args(flags).arg("--data-dir").arg(data), SOON);
        assert!(!output.status.success(), "{output:?}");
        stderr(&output)
    };
    let unknown = start(&["--draft", "no-such-model"]);
    assert!(unknown.contains("draft model `no-such-model`: ") && unknown.contains("demo"), "{unknown}");
    let unnamed = start(&["--speculate", "draft"]);
    assert!(unnamed.contains("give one with --draft MODEL"), "{unnamed}");
    let large = start(&["--draft", "demo", "--memory-mib", "2"]);
    assert!(large.contains("draft model `demo`: ") && large.contains("bytes"), "{large}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    std::fs::write(&path, b"GGUF and then nothing").unwrap();
    let broken = start(&["--draft", path.to_str().unwrap()]);
    assert!(broken.contains("broken.gguf"), "{broken}");
}
