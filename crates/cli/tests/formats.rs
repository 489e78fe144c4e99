//! Answers that must be of a format, through the door of real nodes: the demo model knows no JSON, and gives
//! none but what was asked for.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{BufRead, BufReader};

use crate::support::{self, Node, cluster, wait_for, with};
use serde_json::{Value, json};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

fn chat(more: Value) -> Value {
    let body = json!({
        "model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": "Tell me about Tom, as JSON."}],
    });
    with(body, more)
}

fn with_schema(more: Value) -> Value {
    let body = chat(json!({"response_format": {
        "type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": schema()},
    }}));
    with(body, more)
}

/// By hand, so that the check is not the engine's own.
fn is_person(text: &str) -> bool {
    let Ok(Value::Object(person)) = serde_json::from_str(text) else { return false };
    let keys: Vec<&str> = person.keys().map(String::as_str).collect();
    let tags = person["tags"].as_array().unwrap();
    keys == ["name", "age", "tags"]
        && person["name"].as_str().is_some_and(|n| n.chars().count() <= 10)
        && person["age"].as_u64().is_some_and(|n| n <= 120)
        && tags.len() <= 3
        && tags.iter().all(|tag| ["red", "green", "blue"].contains(&tag.as_str().unwrap_or_default()))
}

#[test]
fn every_answer_is_of_its_schema_whatever_the_model_would_say() {
    let node = Node::alone();
    for seed in 0..6 {
        let hot = node
            .post("/v1/chat/completions", &with_schema(json!({"temperature": 1.5, "seed": seed, "n": 3})))
            .good();
        for choice in hot.json()["choices"].as_array().unwrap() {
            let text = choice["message"]["content"].as_str().unwrap();
            assert_eq!(choice["finish_reason"], "stop", "{text}");
            assert!(is_person(text), "{text}");
        }
    }
    let greedy = node.post("/v1/chat/completions", &with_schema(json!({"temperature": 0})));
    assert!(is_person(&greedy.text()), "{}", greedy.body);
    let watched =
        node.post("/v1/chat/completions", &with_schema(json!({"temperature": 0, "logprobs": true})));
    assert_eq!(watched.text(), greedy.text(), "whoever finds the greatest logit");
    // What ends the answer is no part of it.
    let watched_json = watched.json();
    let pieces = watched_json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let said: String = pieces.iter().map(|piece| piece["token"].as_str().unwrap()).collect();
    assert_eq!(said, watched.text());
    let object = node.post(
        "/v1/chat/completions",
        &chat(json!({
            "response_format": {"type": "json_object"}, "temperature": 1.2, "seed": 4, "max_tokens": 400,
        })),
    );
    let is_cut = object.json()["choices"][0]["finish_reason"] == "length";
    let value: Result<Value, _> = serde_json::from_str(&object.text());
    assert!(is_cut || value.is_ok_and(|v| v.is_object()), "{}", object.body);
    let regex = chat(json!({"grammar": {"regex": "(yes|no), [A-Z][a-z]{2,6}/"}, "temperature": 1}));
    let text = node.post("/v1/chat/completions", &regex).text();
    let name = text.strip_prefix("yes, ").or(text.strip_prefix("no, ")).and_then(|t| t.strip_suffix('/'));
    assert!(name.is_some_and(|n| (3..=7).contains(&n.len())), "{text}");
    let lark =
        chat(json!({"grammar": {"lark": "start: \"a\" WORD \"!\"\nWORD: /[xyz]{3}/"}, "temperature": 1}));
    let text = node.post("/v1/chat/completions", &lark).text();
    assert!(text.len() == 5 && text.starts_with('a') && text.ends_with('!'), "{text}");
}

#[test]
fn a_stream_of_pieces_is_the_value_and_a_cut_one_its_beginning() {
    let node = Node::alone();
    let whole = node.post("/v1/chat/completions", &with_schema(json!({"temperature": 1, "seed": 7}))).text();
    assert!(is_person(&whole), "{whole}");
    let body = with_schema(json!({"temperature": 1, "seed": 7, "stream": true}));
    let mut text = String::new();
    let stream = node.send("POST", "/v1/chat/completions", Some(body.to_string()));
    for line in BufReader::new(stream).lines() {
        match line.unwrap().strip_prefix("data: ") {
            Some("[DONE]") => break,
            Some(chunk) => {
                let chunk: Value = serde_json::from_str(chunk).unwrap();
                text += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
            }
            None => {}
        }
    }
    assert_eq!(text, whole);
    let cut = node
        .post("/v1/chat/completions", &with_schema(json!({"temperature": 1, "seed": 7, "max_tokens": 5})));
    assert_eq!(cut.json()["choices"][0]["finish_reason"], "length");
    assert!(whole.starts_with(&cut.text()) && !cut.text().is_empty(), "{}", cut.body);
}

#[test]
fn what_cannot_be_kept_to_is_refused_before_the_first_token() {
    let node = Node::alone();
    let schema = |schema: Value| {
        chat(
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        )
    };
    let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    let many: Vec<Value> = (0..30_000).map(|i| json!(format!("value {i}"))).collect();
    for (body, says) in [
        (schema(json!({"properties": {"a": {"not": {}}}})), "#/properties/a/not"),
        (schema(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
        (schema(json!({"$ref": "https://example.com/schema.json"})), "only references into this schema"),
        (schema(json!({"x-guidance": {"lenient": true}})), "x-guidance"),
        (
            schema(json!({"type": "object", "required": ["a"], "additionalProperties": false})),
            "cannot be kept to",
        ),
        (schema(json!({"$ref": "#"})), "cannot be kept to"),
        (schema(json!("text")), "a schema is an object"),
        (schema(json!({"type": "string", "pattern": "(?=x)y"})), "cannot be kept to"),
        (schema(deep), "nested deeper"),
        (schema(json!({"enum": many})), "more than 20000 places and values"),
        (chat(json!({"response_format": {"type": "xml"}})), "unknown format"),
        (chat(json!({"grammar": {"lark": "start: x"}})), "cannot be kept to"),
        (chat(json!({"grammar": {"regex": "("}})), "cannot be kept to"),
        (chat(json!({"grammar": {"regex": "a", "lark": "start: \"a\""}})), "either"),
        (chat(json!({"grammar": {"regex": "a"}, "response_format": {"type": "json_object"}})), "one of them"),
        (chat(json!({"grammar": {"regex": "a"}, "ignore_eos": true})), "ignore_eos"),
    ] {
        let answer = node.post("/v1/chat/completions", &body);
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, 400, "{says}: {}", answer.body);
        assert!(message.contains(says) && message.len() < 700, "{says}: {message}");
    }
    support::answers(&node);
}

#[test]
fn a_split_model_gives_the_value_that_it_gives_alone() {
    let alone = Node::alone();
    let bodies: Vec<Value> = (0..3)
        .map(|seed| with_schema(json!({"temperature": 1.0, "seed": seed})))
        .chain([with_schema(json!({"temperature": 0}))])
        .collect();
    let ask = |node: &Node, body: &Value| node.post("/v1/chat/completions", body);
    let want: Vec<String> = bodies.iter().map(|body| ask(&alone, body).text()).collect();
    drop(alone);
    let nodes = cluster("formats", &["a", "b", "c"]);
    nodes[0].place("demo", 3);
    for (i, (body, want)) in bodies.iter().zip(&want).enumerate() {
        let answer = wait_for("an answer", support::SOON, || {
            let answer = ask(&nodes[i % 3], body);
            (answer.status == 200).then_some(answer)
        });
        assert_eq!(&answer.text(), want);
        assert_eq!(answer.json()["exo"]["stages"], 3, "{}", answer.body);
    }
}

/// Writes the built-in model to `path` with no token that has this letter in it: those that had are control
/// tokens, which no text spells.
fn without_letter(path: &std::path::Path, letter: char) {
    const KEY: &[u8] = b"tokenizer.ggml.token_type";
    let mut bytes = std::fs::read(support::demo_gguf()).unwrap();
    let mut demo = exo_formats::open(&support::demo_gguf()).unwrap();
    let exo_formats::TokenizerSource::Gguf(keys) = demo.take_tokenizer() else { panic!("a GGUF file") };
    // Behind the key: the kind of value, the kind of its elements (4 bytes each), how many there are (8).
    let first = bytes.windows(KEY.len()).position(|w| w == KEY).unwrap() + KEY.len() + 16;
    for (id, _) in keys.tokens.iter().enumerate().filter(|(_, token)| token.contains(letter)) {
        bytes[first + 4 * id..][..4].copy_from_slice(&support::CONTROL.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_answer_that_no_token_can_go_on_with_is_an_error_of_its_dialect() {
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    let path = folder.path().join("mute.gguf");
    without_letter(&path, 'Q');
    assert_eq!(node.post("/exo/v1/models", &json!({"path": path, "name": "mute"})).status, 200);
    let question = json!([{"role": "user", "content": "Say it."}]);
    let schema = json!({"const": "aQ"});
    let named = json!({"type": "json_schema", "name": "x", "schema": schema});
    let asked = [
        (
            "/v1/chat/completions",
            json!({"model": "mute", "messages": question,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        ),
        ("/v1/responses", json!({"model": "mute", "input": "Say it.", "text": {"format": named}})),
        (
            "/v1/messages",
            json!({"model": "mute", "messages": question, "max_tokens": 50,
            "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        ),
        ("/api/chat", json!({"model": "mute", "messages": question, "format": schema, "stream": false})),
    ];
    for (path, body) in asked {
        let whole = node.post(path, &body);
        let says = "its grammar wants text that no token of the model spells";
        assert!(whole.status == 500 && whole.body.contains(says), "{path}: {} {}", whole.status, whole.body);
        let error = whole.json();
        let code = [&error["error"]["code"], &error["code"]].into_iter().find(|code| code.is_string());
        assert_eq!(code.unwrap(), "constraint_failed", "{path}: {error}");
        let mut body = body;
        body["stream"] = json!(true);
        let streamed = node.post(path, &body);
        assert!(streamed.status == 200 && streamed.body.contains(says), "{path}: {}", streamed.body);
    }
    // Beside it, others are answered.
    support::answers(&node);
}

#[test]
fn an_answer_is_the_same_alone_and_beside_others_and_with_and_without_guesses() {
    let env = vec![("EXO_SPECULATE", "off".into())];
    let start = support::Start { env, ..support::Start::alone("no-guesses", &[]) };
    let (guessing, plain) = (Node::alone(), Node::start(start));
    let ask = |node: &Node, seed: u64| {
        let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.2 };
        let answer = node
            .post("/v1/chat/completions", &with_schema(json!({"temperature": temperature, "seed": seed})));
        answer.text()
    };
    let alone: Vec<String> = (0..8).map(|seed| ask(&guessing, seed)).collect();
    for node in [&guessing, &plain] {
        let together: Vec<String> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|seed| scope.spawn(move || ask(node, seed))).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        assert_eq!(together, alone);
    }
    let drafts = |node: &Node| {
        let answer = node.post("/v1/chat/completions", &with_schema(json!({"temperature": 0}))).json();
        answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
            .as_u64()
            .unwrap_or_default()
    };
    assert!(drafts(&guessing) > 0, "nothing was guessed, which shows nothing");
    assert_eq!(drafts(&plain), 0);
}
