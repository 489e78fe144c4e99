//! A conversation as coding agents send it: dozens of tools, marks for a cache, thirty thousand tokens; and
//! its next round.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::Read;
use std::time::{Duration, Instant};

use crate::support::{Node, Start, TOOL_TEMPLATE, Zeros, with};
use serde_json::{Value, json};

const MODEL: Zeros = Zeros { context: 65_536, template: Some(TOOL_TEMPLATE), ..Zeros::SMALL };
const TOOLS: usize = 48;
const ROUNDS: usize = 24;
/// The whole of the first round: on an idle machine it takes a few seconds.
const ROUND_MAX: Duration = Duration::from_secs(100);
const CACHE: &str = "ephemeral";

fn node(folder: &std::path::Path) -> Node {
    let node = Node::start(Start::alone("agents", &[]));
    node.add_zeros(folder, "agent", &MODEL);
    node.place_as(&json!({"model": "agent", "context_tokens": MODEL.context}), Duration::from_secs(60));
    node
}

/// As agents describe theirs: long, with words that no grammar can keep to.
fn tool(n: usize) -> Value {
    let description = format!(
        "Tool {n}: reads, searches or changes files of the project. Paths are absolute. Never call it for a folder; \
         ask first where a change cannot be undone, and say in one sentence what it is for."
    );
    let mut tool = json!({
        "name": format!("project_tool_{n}"), "description": description,
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,
            "properties": {
                "file_path": {"enum": ["/src/main.rs", "/src/lib.rs"], "description": "The file, from the root of the project."},
                "edits": {"type": "array", "uniqueItems": true, "maxItems": 2, "items": {"enum": ["insert", "delete", "replace"]}},
                "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 2000, "default": 100},
            },
            "required": ["file_path"],
        },
    });
    if n + 1 == TOOLS {
        tool["cache_control"] = json!({"type": CACHE});
    }
    tool
}

/// A listing as an agent reads it, of which no two are alike.
fn listing(round: usize) -> String {
    let line = |n: usize| format!("{n:>5}\tlet value_{round}_{n} = compute(&input[{n}..], {});\n", round * n);
    (1..32).map(line).collect()
}

fn conversation() -> Vec<Value> {
    let mut messages = vec![json!({"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>\nThe folder is /src.\n</system-reminder>"},
        {"type": "text", "text": "Find where the value is computed and make it faster.", "cache_control": {"type": CACHE}},
    ]})];
    for round in 0..ROUNDS {
        let id = format!("toolu_{round:024}");
        messages.push(json!({"role": "assistant", "content": [
            {"type": "text", "text": format!("I look at part {round} of it.")},
            {"type": "tool_use", "id": id, "name": "project_tool_3", "input": {"file_path": "/src/lib.rs", "limit": round + 1}},
        ]}));
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": listing(round)}],
                "cache_control": {"type": CACHE}},
        ]}));
    }
    messages
}

fn body(messages: &[Value], more: Value) -> Value {
    let body = json!({
        "model": "agent", "max_tokens": 400, "temperature": 1, "seed": 3, "stream": true,
        "metadata": {"user_id": "user_0_account_0_session_0"},
        "system": [
            {"type": "text", "text": "You are an agent that writes programs.", "cache_control": {"type": CACHE}},
            {"type": "text", "text": "Be brief. ".repeat(200), "cache_control": {"type": CACHE}},
        ],
        "tools": (0..TOOLS).map(tool).collect::<Vec<_>>(),
        "messages": messages,
    });
    with(body, more)
}

/// The events of a round, and how long it took.
fn round(node: &Node, body: &Value) -> (Vec<Value>, Duration) {
    let (began, mut text) = (Instant::now(), String::new());
    node.send("POST", "/v1/messages?beta=true", Some(body.to_string())).read_to_string(&mut text).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    assert_eq!(
        events.last().unwrap_or_else(|| panic!("{text:.2000}"))["type"],
        "message_stop",
        "{text:.2000}"
    );
    (events, began.elapsed())
}

/// Prompt tokens of a round: computed, and kept from before.
fn read(events: &[Value]) -> [u64; 2] {
    let usage = events
        .iter()
        .rev()
        .find_map(|event| event["usage"]["input_tokens"].as_u64().map(|_| &event["usage"]));
    let usage = usage.unwrap_or(&events[0]["message"]["usage"]);
    ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().unwrap_or(0))
}

#[test]
fn an_agents_conversation_of_thirty_thousand_tokens_goes_on_round_by_round() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(folder.path());
    let mut messages = conversation();
    let call =
        json!({"tool_choice": {"type": "tool", "name": "project_tool_7", "disable_parallel_tool_use": true}});
    let (events, first_took) = round(&node, &body(&messages, call));
    let [computed, kept] = read(&events);
    assert!(computed + kept > 30_000, "{computed} tokens and {kept}: the test tests nothing");
    assert!(first_took < ROUND_MAX, "{computed} tokens took {first_took:?}");
    let opened = events.iter().find(|event| event["content_block"]["type"] == "tool_use").unwrap();
    assert_eq!(opened["content_block"]["name"], "project_tool_7");
    let pieces = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    let input: Value = serde_json::from_str(&pieces.collect::<String>()).unwrap();
    assert!(["/src/main.rs", "/src/lib.rs"].contains(&input["file_path"].as_str().unwrap()), "{input}");

    // The next round: what was read is not read again.
    let id = &opened["content_block"]["id"];
    messages.push(json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": id, "name": "project_tool_7", "input": input},
    ]}));
    messages.push(
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "Done."}]}),
    );
    let (events, took) = round(&node, &body(&messages, json!({"max_tokens": 16})));
    let [computed, kept] = read(&events);
    assert!(kept > 30_000 && computed < 600, "{computed} tokens were computed, {kept} were kept");
    assert!(took < first_took, "{took:?} after {first_took:?}");
}
