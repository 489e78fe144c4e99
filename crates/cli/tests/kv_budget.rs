//! How many tokens of keys and values an instance may hold: what fits is served, what never can is told why.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::support::{Answer, Node, SOON, Start, exo, finish, flat, run, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Four pages.
const CACHE_TOKENS: u32 = 128;

fn node(cache_tokens: Option<u32>) -> Node {
    let mut flags = vec!["--no-discovery".to_owned()];
    flags.extend(cache_tokens.map(|tokens| format!("--cache-tokens={tokens}")));
    Node::start(Start { name: "small", group: "budget", flags, ..Start::default() })
}

/// A prompt of `len` tokens that no other `kind` shares a page with.
fn prompt(kind: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 20 + (i * (kind + 3) + kind) % 150).collect()
}

fn complete(node: &Node, prompt: &[u32]) -> Answer {
    let body = json!({
        "model": "demo", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": true,
    });
    node.post("/v1/completions", &body)
}

/// Its text, and how much of the prompt was cached.
fn served(answer: &Answer) -> (String, u64) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

fn load(node: &Node) -> Value {
    node.get("/exo/v1/cluster")["instances"][0]["load"].clone()
}

#[test]
fn a_prompt_that_fits_only_after_eviction_is_served() {
    let (small, large) = (node(Some(CACHE_TOKENS)), node(None));
    let (a, b) = (prompt(1, 100), prompt(2, 100));
    assert_eq!(served(&complete(&small, &a)).1, 0);
    assert_eq!(served(&complete(&small, &a)).1, 96, "its three full pages are kept");
    wait_for("the kept pages to be shown", SOON, || (load(&small)["pages_cached"] == 3).then_some(()));
    // 116 tokens need all four pages.
    let (text, cached) = served(&complete(&small, &b));
    assert_eq!((text, cached), served(&complete(&large, &b)), "the same answer as with room for both");
    assert!(served(&complete(&small, &a)).1 < 96, "pages of the first had to go");
    let again = served(&complete(&small, &a));
    assert_eq!(again, served(&complete(&small, &a)), "and the node goes on");
}

#[test]
fn sequences_that_do_not_fit_together_wait_for_each_other() {
    let (small, large) = (node(Some(CACHE_TOKENS)), node(None));
    let body = json!({
        "model": "demo", "prompt": prompt(3, 60), "max_tokens": 40, "temperature": 1, "seed": 9, "n": 4,
        "ignore_eos": true,
    });
    let texts = |node: &Node| {
        let answer = node.post("/v1/completions", &body).good();
        answer.json()["choices"].as_array().unwrap().iter().map(|c| c["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&small), texts(&large));
}

#[test]
fn a_prompt_longer_than_the_budget_is_told_both_numbers() {
    let node = node(Some(CACHE_TOKENS));
    // Before anything is placed, and after.
    for _ in 0..2 {
        let answer = complete(&node, &prompt(1, 200));
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "context_length_exceeded"),
            "{}",
            answer.body
        );
        for part in
            ["has 200 tokens", "context of 128", "cache of keys and values of 128", "more cache_tokens"]
        {
            assert!(answer.body.contains(part), "{part}: {}", answer.body);
        }
        served(&complete(&node, &prompt(1, 100)));
    }
}

#[test]
fn a_budget_that_holds_no_sequence_is_refused_before_anything_loads() {
    let text = stderr(&run(&["start", "--cache-tokens", "31"]));
    for part in ["`cache_tokens`", "a cache of 31 tokens", "ask for 32 or more"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A context that somebody named must fit.
    let named = finish(exo(&["start", "--cache-tokens", "500"]).env("EXO_CONTEXT_TOKENS", "1000"), SOON);
    let text = stderr(&named);
    for part in ["a cache of 500 tokens", "context of 1000 tokens", "at least 1024"] {
        assert!(!named.status.success() && text.contains(part), "{part}: {text}");
    }
    let (node, small) = (node(None), node(Some(CACHE_TOKENS)));
    let refused = |node: &Node, body: Value, param: &str| {
        let answer = node.post("/exo/v1/instances", &body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{}", answer.body);
        error["message"].as_str().unwrap().to_owned()
    };
    let both = json!({"model": "demo", "context_tokens": 512, "cache_tokens": 256});
    let text = refused(&node, both, "cache_tokens");
    assert!(text.contains("256") && text.contains("512"), "{text}");
    let text = refused(&node, json!({"model": "demo", "cache_tokens": 0}), "cache_tokens");
    assert!(text.contains("a cache of 0 tokens"), "{text}");
    // The cache is the node's setting: what was asked for is the context, or more slots than there can be.
    let text = refused(&small, json!({"model": "demo", "context_tokens": 512}), "context_tokens");
    assert!(text.contains("a cache of 128 tokens") && text.contains("at least 512"), "{text}");
    let text = refused(&node, json!({"model": "demo", "slots": 1_000_000}), "slots");
    assert!(text.contains("a cache of 512000000 tokens"), "{text}");
    let output = node.exo(&["place", "demo", "--context", "512", "--cache-tokens", "256"]);
    assert!(!output.status.success() && stderr(&output).contains("at least 512"), "{output:?}");
    assert_eq!(node.get("/exo/v1/cluster")["instances"], json!([]), "nothing was placed");
}

#[test]
fn plan_engine_and_status_count_the_same_cache() {
    let node = node(None);
    let bytes = |instance: &Value| instance["stages"][0]["kv_bytes"].as_u64().unwrap();
    let usual = node.place("demo", 1);
    assert_eq!(usual["cache_tokens"], 4 * 512);
    let id = usual["id"].as_str().unwrap();
    assert!(node.exo(&["unload", id]).status.success());
    let output = node.exo(&["place", "demo", "--cache-tokens", "1000", "--json"]);
    let small: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!((&small["context_tokens"], &small["cache_tokens"]), (&512.into(), &992.into()), "whole pages");
    assert_eq!(bytes(&small) * 4 * 512, bytes(&usual) * 992);
    wait_for("the pages to be shown", SOON, || (load(&node)["pages"] == 31).then_some(()));
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("4 slots · cache of 992 tokens") && status.contains("of 31 ·"), "{status}");
    assert!(node.exo(&["unload", small["id"].as_str().unwrap()]).status.success());
    // The planner counts it too: so much is nowhere.
    let answer = node.post("/exo/v1/instances", &json!({"model": "demo", "cache_tokens": 60_000_000}));
    assert_eq!((answer.status, answer.code().as_str()), (507, "insufficient_memory"), "{}", answer.body);
}
