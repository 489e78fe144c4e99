//! Tokens guessed ahead, through the API: the same text with and without, and counts that add up.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::support::{Node, SOON, Start, flat, run, stderr, stdout, wait_for, with};
use serde_json::{Value, json};

/// A text that goes on as it began: the easiest to guess.
const PROMPT: &str = "one two three four five one two three four five one two three four five one two";
const TOKENS: u64 = 120;

fn node(flags: &[&str]) -> Node {
    Node::start(Start::alone("speculation", flags))
}

fn body(more: Value) -> Value {
    let body = json!({
        "model": "demo", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true,
    });
    with(body, more)
}

fn complete(node: &Node, more: Value) -> Value {
    node.post("/v1/completions", &body(more)).good().json()
}

/// Accepted and rejected guesses of an answer or of a stream's last chunk. Its rate is what follows from
/// them.
fn counts(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let (accepted, rejected) = (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"));
    let rate = answer["exo"]["draft_acceptance_rate"].as_f64();
    assert_eq!(rate.is_some(), accepted + rejected > 0, "{answer}");
    assert_eq!(details["prediction_acceptance_rate"].as_f64(), rate, "it stands in both places");
    // Its last digit may be lost in the text.
    let right = rate.unwrap_or(0.0) * (accepted + rejected) as f64;
    assert!((right - accepted as f64).abs() < 1e-6, "{answer}");
    (accepted, rejected)
}

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect()
}

/// The last chunk of a stream: the one with the usage.
fn last_chunk(node: &Node) -> Value {
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let answer = node.post("/v1/completions", &body(more));
    let mut chunks = answer.body.lines().filter_map(|l| l.strip_prefix("data: {"));
    let last = chunks.next_back().unwrap_or_else(|| panic!("{}", answer.body));
    serde_json::from_str(&format!("{{{last}")).unwrap()
}

#[test]
fn guesses_change_no_text_and_their_counts_add_up() {
    let (with, without) = (node(&[]), node(&["--speculate", "off"]));
    let (guessed, plain) = (complete(&with, json!({})), complete(&without, json!({})));
    assert_eq!(texts(&guessed), texts(&plain));
    assert_eq!(guessed["usage"]["completion_tokens"], TOKENS);
    let (mut accepted, mut rejected) = counts(&guessed);
    assert!(accepted > 0 && accepted < TOKENS, "{guessed}");
    assert_eq!(counts(&plain), (0, 0), "nothing is guessed where that is off");
    // Drawn texts of several choices are the same too, and their guesses are counted together.
    let drawn = json!({"temperature": 0.8, "seed": 5, "n": 2});
    let (guessed, plain) = (complete(&with, drawn.clone()), complete(&without, drawn));
    assert_eq!(texts(&guessed), texts(&plain));
    let streamed = last_chunk(&with);
    for answer in [&guessed, &streamed] {
        let (right, wrong) = counts(answer);
        (accepted, rejected) = (accepted + right, rejected + wrong);
    }
    assert_eq!(counts(&last_chunk(&without)), (0, 0));
    // The view follows within a second.
    wait_for("the totals of the instance", SOON, || {
        let load = with.get("/exo/v1/cluster")["instances"][0]["load"].clone();
        let totals = (load["drafts"].as_u64()?, load["drafts_accepted"].as_u64()?);
        (totals == (accepted + rejected, accepted)).then_some(())
    });
    let status = flat(&stdout(&with.exo(&["status"])));
    assert!(status.contains(&format!("{accepted} of {} guessed tokens", accepted + rejected)), "{status}");
    assert!(!stdout(&without.exo(&["status"])).contains("guessed"), "nothing to show");
}

#[test]
fn exo_run_prints_what_was_guessed() {
    let node = node(&[]);
    let output = node.exo(&["run", "demo", "What is 17 + 25?", "--temperature", "0", "--json"]);
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    counts(&answer);
}

#[test]
fn the_setting_is_checked_and_shown() {
    let wrong = run(&["start", "--speculate", "magic"]);
    assert!(!wrong.status.success());
    let text = stderr(&wrong);
    assert!(
        text.contains("`speculate` is `magic` (from flag)") && text.contains("ngram, draft or off"),
        "{text}"
    );
    let shown = stdout(&run(&["config", "--speculate", "off", "--json"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["speculate"], json!({"value": "off", "source": "flag"}));
}
