//! One node and its API, as plain HTTP and through OpenAI's own package.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{self, Node, finish, known, must_refuse, python, skip, stderr, stdout};
use serde_json::json;

#[test]
fn a_chat_and_a_completion_are_answered_and_the_model_is_placed_by_the_way() {
    let node = Node::alone();
    for (prompt, answer) in known() {
        assert_eq!(node.ask("demo", &prompt).text(), answer, "{prompt}");
    }
    let body = json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
    let first = node.post("/v1/completions", &body).json();
    assert_eq!(first["usage"]["completion_tokens"], 8, "{first}");
    let again = node.post("/v1/completions", &body).json();
    assert_eq!(first["choices"], again["choices"], "greedy text repeats itself");
}

#[test]
fn what_would_do_nothing_or_cannot_be_is_refused_with_what_is_wrong() {
    let node = Node::alone();
    let refused = |path: &str, body: String| {
        let answer = node.call("POST", path, Some(body));
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        answer.json()["error"].clone()
    };
    let chat = |more: &str| {
        let body =
            format!(r#"{{"model": "demo", "messages": [{{"role": "user", "content": "Hi"}}], {more}}}"#);
        refused("/v1/chat/completions", body)
    };
    let completion =
        |more: &str| refused("/v1/completions", format!(r#"{{"model": "demo", "prompt": "Hi", {more}}}"#));
    for ask in [&chat as &dyn Fn(&str) -> serde_json::Value, &completion] {
        let error = ask(r#""logit_bias": {"1": 1, "999999": 1}"#);
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["param"], "logit_bias", "{error}");
        assert!(message.contains("999999") && message.contains("vocabulary has"), "{message}");
        let error = ask(r#""stream_options": {"include_usage": true}"#);
        assert_eq!((&error["param"], &error["code"]), (&json!("stream_options"), &json!("invalid_value")));
        let number = ask(r#""temperature": 1e400"#);
        assert!(!number.to_string().contains("string"), "{number}");
    }
    let long = json!({"model": "demo", "messages": [{"role": "user", "content": "a ".repeat(3_000_000)}]});
    let error = refused("/v1/chat/completions", long.to_string());
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(message.contains("the model's context holds") && !message.contains("memory"), "{message}");
}

#[test]
fn what_an_earlier_request_began_with_is_not_computed_again() {
    let node = Node::alone();
    let ask = |prompt: &str| {
        let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0});
        let answer = node.post("/v1/completions", &body).json();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached.unwrap())
    };
    let text = "Once upon a time there was a small dog. It ran to the big tree. ".repeat(8);
    let (first, cached) = ask(&text);
    assert_eq!(cached, 0);
    let (again, cached) = ask(&text);
    assert!(cached >= 32 && cached % 32 == 0, "{cached}");
    assert_eq!(again, first, "kept keys and values are those that were computed");
    let (_, cached) = ask(&format!("But {text}"));
    assert_eq!(cached, 0, "another beginning");
}

#[test]
fn several_requests_at_once_give_the_texts_of_each_alone() {
    let node = Node::alone();
    let known = known();
    std::thread::scope(|scope| {
        let all: Vec<_> =
            known.iter().map(|(prompt, _)| scope.spawn(|| node.ask("demo", prompt).text())).collect();
        for (thread, (prompt, answer)) in all.into_iter().zip(&known) {
            assert_eq!(&thread.join().unwrap(), answer, "{prompt}");
        }
    });
}

/// The text of a streamed completion, when its first token came and when it was over.
fn streamed(node: &Node, body: &serde_json::Value) -> (String, Instant, Instant) {
    let mut lines = BufReader::new(node.send("POST", "/v1/completions", Some(body.to_string()))).lines();
    let (mut text, mut first) = (String::new(), None);
    loop {
        let line = lines.next().expect("a stream that ends with [DONE]").unwrap();
        match line.strip_prefix("data: ") {
            Some("[DONE]") => return (text, first.expect("a token"), Instant::now()),
            Some(chunk) => {
                first.get_or_insert_with(Instant::now);
                let chunk: serde_json::Value = serde_json::from_str(chunk).unwrap();
                text += chunk["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{chunk}"));
            }
            None => {}
        }
    }
}

#[test]
fn thirty_two_streams_run_at_once_each_with_the_text_it_has_alone() {
    let node = Node::alone();
    let order = json!({"model": "demo", "slots": 32, "context_tokens": 256});
    assert_eq!(node.post("/exo/v1/instances", &order).status, 200);
    // Prompts of less than a page, so that none finds anything of another.
    let body = |i: u32, stream: bool| {
        let prompt: Vec<u32> = (0..20).map(|at| 20 + (at * (i + 3) + i) % 150).collect();
        json!({
            "model": "demo", "prompt": prompt, "max_tokens": 100, "temperature": 0, "ignore_eos": true,
            "stream": stream,
        })
    };
    let alone = |i| {
        let answer = node.post("/v1/completions", &body(i, false)).good();
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let expected: Vec<String> = (0..32).map(alone).collect();
    assert!(expected.windows(2).any(|pair| pair[0] != pair[1]), "the prompts differ: {expected:?}");
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |i| {
            let node = &node;
            scope.spawn(move || streamed(node, &body(i, true)))
        };
        let all: Vec<_> = (0..32).map(ask).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (i, ((text, ..), expected)) in answers.iter().zip(&expected).enumerate() {
        assert_eq!(text, expected, "stream {i}");
    }
    let last_begun = answers.iter().map(|(_, first, _)| first).max();
    let first_over = answers.iter().map(|(_, _, end)| end).min();
    assert!(last_begun < first_over, "one waited for another's end");
}

#[test]
fn the_openai_package_works_against_a_real_node() {
    const TEST: &str = "the_openai_package_works_against_a_real_node";
    let node = Node::alone();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let url = format!("http://{}/v1", node.address);
    let mut command = Command::new(python());
    // A proxy of the environment must not stand between the two.
    command.args([script, &url, "demo", "--real"]).env("NO_PROXY", "*").env("no_proxy", "*");
    if Command::new(python()).arg("--version").output().is_err() {
        return skip(TEST, "there is no Python");
    }
    let output = finish(&mut command, Duration::from_secs(60));
    let text = stdout(&output);
    if output.status.code() == Some(77) {
        return skip(TEST, text.trim());
    }
    let end = text.trim_end().ends_with("ok");
    assert!(output.status.success() && end, "{text}\n{}\n{}", stderr(&output), node.log());
}

#[test]
fn bounds_of_a_request_are_checked_and_named() {
    let node = Node::alone();
    let chat = |more: serde_json::Value| {
        let body = json!({"model": "demo", "messages": [{"role": "user", "content": "What is 47 + 38?"}], "temperature": 0});
        node.post("/v1/chat/completions", &support::with(body, more))
    };
    let none = chat(json!({"max_tokens": 0}));
    assert_eq!(
        (none.status, none.json()["error"]["param"].as_str()),
        (400, Some("max_tokens")),
        "{}",
        none.body
    );
    let huge = chat(json!({"max_tokens": 4_000_000_000u64}));
    assert!(huge.text().ends_with("47 + 38 = 85."), "as much as the context leaves free: {}", huge.body);
    for wrong in [json!(-2), json!(1.5), json!("many")] {
        let answer = chat(json!({"max_tokens": wrong}));
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.body);
    }
    let unknown = node.ask("no-such-model", "Hello");
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "model_not_found"));
    let long = node.ask("demo", &"one two three four ".repeat(400));
    assert_eq!((long.status, long.code().as_str()), (400, "context_length_exceeded"), "{}", long.body);
    assert!(long.body.contains("512"), "the message says how long the context is: {}", long.body);
    support::answers(&node);
}

#[test]
fn a_stop_string_that_is_a_control_token_ends_the_answer() {
    let node = Node::alone();
    // The bias has the model say nothing but `<|im_start|>`, which is no text.
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 20, "temperature": 0, "logit_bias": {"1": 100}});
    let ask = |stop: serde_json::Value| {
        let mut body = body.clone();
        body["stop"] = stop;
        let answer = node.post("/v1/completions", &body).good();
        let answer = answer.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "", "{answer}");
        (choice["finish_reason"].as_str().unwrap().to_owned(), answer["usage"]["completion_tokens"].as_u64())
    };
    assert_eq!(ask(json!(["<|im_start|>"])), ("stop".to_owned(), Some(1)));
    assert_eq!(ask(json!(["<|im_end|>"])), ("length".to_owned(), Some(20)));
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let node = Node::alone();
    node.place("demo", 1);
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 480, "ignore_eos": true, "stream": true, "n": 4});
    let streams: Vec<_> =
        (0..4).map(|_| node.send("POST", "/v1/completions", Some(body.to_string()))).collect();
    drop(streams);
    let began = Instant::now();
    let queue = || {
        let view = node.get("/exo/v1/cluster");
        let load = &view["instances"][0]["load"];
        load["running"].as_u64().unwrap() + load["waiting"].as_u64().unwrap()
    };
    support::wait_for("the queue to empty", Duration::from_secs(5), || (queue() == 0).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_fits_nowhere_says_how_many_bytes_are_missing() {
    let flags = vec!["--no-discovery".to_owned(), "--memory-mib".to_owned(), "6".to_owned()];
    let node = Node::start(support::Start { name: "small", group: "small", flags, ..Default::default() });
    let answer = node.post("/exo/v1/instances", &json!({"model": "demo"}));
    assert_eq!((answer.status, answer.code().as_str()), (507, "insufficient_memory"), "{}", answer.body);
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("missing") || message.contains("lacks") || message.contains("short"),
        "{message}"
    );
    assert!(message.contains("small"), "it names the node: {message}");
    let asked = node.ask("demo", "Hello");
    assert_eq!((asked.status, asked.code().as_str()), (507, "insufficient_memory"), "{}", asked.body);
    must_refuse(node.exo(&["place", "demo"]), "hint: start exo on more machines");
}
