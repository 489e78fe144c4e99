//! Vectors of texts and scores of prompts through the door of real nodes.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::Read;
use std::time::Duration;

use crate::support::{Answer, Node, Start, cluster, wait_for, with};
use serde_json::{Value, json};

fn ok(answer: Answer) -> Value {
    answer.good().json()
}

fn vectors(node: &Node, input: &Value) -> Vec<Vec<f32>> {
    let body = json!({"model": "demo", "input": input, "pooling": "mean"});
    let data = ok(node.post("/v1/embeddings", &body))["data"].clone();
    let vector = |object: &Value| serde_json::from_value(object["embedding"].clone()).unwrap();
    data.as_array().unwrap().iter().map(vector).collect()
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits =
        text.bytes().filter(|b| *b != b'=').map(|b| DIGITS.iter().position(|d| *d == b).unwrap() as u32);
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0, 0);
    for digit in digits {
        (held, bits) = (held << 6 | digit, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
        }
    }
    bytes
}

fn refusal(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn texts_become_vectors_one_by_one_and_together() {
    let node = Node::alone();
    // More than are with the scheduler at once.
    let texts: Vec<String> = (0..20).map(|n| format!("The fox number {n} sleeps.")).collect();
    let all = vectors(&node, &json!(texts));
    assert_eq!(all.len(), 20);
    for (text, vector) in texts.iter().zip(&all).step_by(7) {
        assert_eq!(&vectors(&node, &json!(text))[0], vector, "alone it is the same");
        let length: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    assert_ne!(all[0], all[1]);
    let tokens = ok(node.post("/tokenize", &json!({"model": "demo", "prompt": texts[3]})))["tokens"].clone();
    assert_eq!(vectors(&node, &json!([tokens, tokens])), [all[3].clone(), all[3].clone()]);

    let body = json!({"model": "demo", "input": texts[3], "pooling": "mean", "encoding_format": "base64"});
    let list = ok(node.post("/v1/embeddings", &body));
    let bytes = from_base64(list["data"][0]["embedding"].as_str().unwrap());
    let decoded: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(decoded, all[3]);
    assert_eq!(list["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());

    let body = json!({"model": "demo:latest", "input": texts[3], "pooling": "mean"});
    let ollama = ok(node.post("/api/embed", &body));
    assert_eq!(
        serde_json::from_value::<Vec<Vec<f32>>>(ollama["embeddings"].clone()).unwrap(),
        [all[3].clone()]
    );
    let body = json!({"model": "demo", "prompt": texts[3], "pooling": "mean"});
    let older = ok(node.post("/api/embeddings", &body));
    assert_eq!(serde_json::from_value::<Vec<f32>>(older["embedding"].clone()).unwrap(), all[3]);
    for pooling in ["first", "last"] {
        let body = json!({"model": "demo", "input": texts[3], "pooling": pooling});
        let other = ok(node.post("/v1/embeddings", &body))["data"][0]["embedding"].clone();
        assert_ne!(serde_json::from_value::<Vec<f32>>(other).unwrap(), all[3], "{pooling}");
    }
}

#[test]
fn a_node_that_is_told_how_to_pool_gives_vectors_to_clients_that_cannot_say_it() {
    let env = vec![("EXO_EMBEDDING_POOLING", "mean".into())];
    let node = Node::start(Start { env, ..Start::alone("pools", &[]) });
    let text = "The fox sleeps.";
    let mean = vectors(&node, &json!(text)).remove(0);
    let one = |answer: Answer, at: &str| -> Vec<f32> {
        serde_json::from_value(ok(answer).pointer(at).unwrap().clone()).unwrap()
    };
    let body = json!({"model": "demo", "input": text});
    assert_eq!(one(node.post("/v1/embeddings", &body), "/data/0/embedding"), mean);
    assert_eq!(one(node.post("/api/embed", &body), "/embeddings/0"), mean);
    let older = json!({"model": "demo", "prompt": text});
    assert_eq!(one(node.post("/api/embeddings", &older), "/embedding"), mean);
    // Who can say it is heard.
    let last = json!({"model": "demo", "input": text, "pooling": "last"});
    assert_ne!(one(node.post("/v1/embeddings", &last), "/data/0/embedding"), mean);
}

#[test]
fn what_a_model_cannot_give_is_refused_and_a_text_is_cut_only_where_that_is_asked_for() {
    let node = Node::alone();
    let ask = |more: Value| {
        let body = json!({"model": "demo", "input": "The fox", "pooling": "mean"});
        node.post("/v1/embeddings", &with(body, more))
    };
    let unsaid = ask(json!({"pooling": null}));
    assert_eq!(refusal(&unsaid), (400, "pooling".to_owned()), "it was made to write text");
    for way in ["send `pooling`", "setting `embedding_pooling`"] {
        assert!(unsaid.body.contains(way), "{}", unsaid.body);
    }
    assert_eq!(refusal(&ask(json!({"dimensions": 2}))), (400, "dimensions".to_owned()));
    let whole = ok(ask(json!({})))["data"][0]["embedding"].as_array().unwrap().len();
    assert_eq!(
        ok(ask(json!({"dimensions": whole})))["data"][0]["embedding"].as_array().unwrap().len(),
        whole
    );
    assert_eq!(refusal(&ask(json!({"input": [[4_000_000_000_u32]]}))), (400, "input".to_owned()));
    let long = "The fox sleeps. ".repeat(2000);
    let refused = ask(json!({"input": long}));
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "context_length_exceeded"),
        "{}",
        refused.body
    );
    let body = json!({"model": "demo", "input": long, "pooling": "last"});
    let cut = ok(node.post("/api/embed", &body));
    assert!(cut["truncated_tokens"].as_u64().unwrap() > 0, "the answer says how many");
    let body = json!({"model": "demo", "input": long, "pooling": "last", "truncate": false});
    assert_eq!(node.post("/api/embed", &body).status, 400);
}

#[test]
fn a_prompt_is_scored_as_programs_that_compare_answers_ask_for_it() {
    let node = Node::alone();
    let prompt = "Once upon a time the fox";
    let ask = |more: Value| {
        let body = json!({"model": "demo", "prompt": prompt, "echo": true, "logprobs": 2, "temperature": 0});
        ok(node.post("/v1/completions", &with(body, more)))
    };
    let scored = ask(json!({"max_tokens": 0}));
    let choice = &scored["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(prompt), &json!("length")));
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    let scores = choice["logprobs"]["token_logprobs"].as_array().unwrap().clone();
    let prompt_tokens = scored["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(scores.len(), prompt_tokens);
    assert!(scores[0].is_null() && choice["logprobs"]["top_logprobs"][0].is_null(), "{choice}");
    assert!(scores[1..].iter().all(|score| score.as_f64().unwrap() <= 0.0), "{scores:?}");
    assert!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len() <= 2);
    // What was read before is computed again, and says the same.
    let again = ask(json!({"max_tokens": 4, "n": 2}));
    for choice in again["choices"].as_array().unwrap() {
        let all = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!((&all[..prompt_tokens], all.len() > prompt_tokens), (&scores[..], true));
        assert!(choice["text"].as_str().unwrap().starts_with(prompt), "{choice}");
    }
    // A token that the model chose by itself has the score that it was chosen with.
    let own = again["choices"][0].clone();
    let tokens = ok(node.post("/tokenize", &json!({"model": "demo", "prompt": own["text"]})));
    if tokens["tokens"].as_array().unwrap().len()
        == own["logprobs"]["token_logprobs"].as_array().unwrap().len()
    {
        let whole = ask(json!({"prompt": own["text"], "max_tokens": 0}));
        let (got, want) = (&whole["choices"][0]["logprobs"], &own["logprobs"]);
        for (got, want) in got["token_logprobs"].as_array().unwrap()[1..]
            .iter()
            .zip(&want["token_logprobs"].as_array().unwrap()[1..])
        {
            assert!((got.as_f64().unwrap() - want.as_f64().unwrap()).abs() < 1e-3, "{got} {want}");
        }
    }
    let streamed = node.post(
        "/v1/completions",
        &json!({"model": "demo", "prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 1, "stream": true, "temperature": 0}),
    );
    assert!(streamed.body.contains("token_logprobs"), "{}", streamed.body);
    let refused = node.post("/v1/completions", &json!({"model": "demo", "prompt": prompt, "max_tokens": 0}));
    assert_eq!(refusal(&refused), (400, "max_tokens".to_owned()));
}

#[test]
fn a_request_for_many_vectors_ends_when_its_client_leaves() {
    let node = Node::alone();
    vectors(&node, &json!("The model is placed."));
    let texts: Vec<String> =
        (0..2000).map(|n| format!("Fox {n}: {}", "sleeps and runs ".repeat(20))).collect();
    let body = json!({"model": "demo", "input": texts, "pooling": "mean"}).to_string();
    let client = node.send("POST", "/v1/embeddings", Some(body));
    let running = |some: bool| {
        let count = node.get("/exo/v1/requests").as_array().unwrap().len();
        ((count > 0) == some).then_some(())
    };
    wait_for("the request at work", Duration::from_secs(20), || running(true));
    drop(client);
    wait_for("the request ended", Duration::from_secs(10), || running(false));
}

#[test]
fn vectors_of_a_split_model_are_the_same_and_outlive_a_stage() {
    let texts: Vec<String> = (0..400).map(|n| format!("Fox {n} {}", "sleeps and runs ".repeat(12))).collect();
    let alone = vectors(&Node::alone(), &json!(texts[..3]));
    let mut nodes = cluster("vectors", &["one", "two", "three"]);
    let stages = nodes[0].place("demo", 3)["stages"].clone();
    let at = |stage: usize| {
        let name = stages[stage]["node_name"].as_str().unwrap();
        ["one", "two", "three"].iter().position(|n| *n == name).unwrap()
    };
    let (driver, last) = (at(1), at(2));
    assert_eq!(vectors(&nodes[driver], &json!(texts[..3])), alone);
    let body = json!({"model": "demo", "input": texts, "pooling": "mean"}).to_string();
    let mut answer = nodes[driver].send("POST", "/v1/embeddings", Some(body));
    let running = |nodes: &[Node]| !nodes[driver].get("/exo/v1/requests").as_array().unwrap().is_empty();
    wait_for("the request at work", Duration::from_secs(20), || running(&nodes).then_some(()));
    nodes[last].kill();
    let mut bytes = Vec::new();
    answer.read_to_end(&mut bytes).unwrap();
    let data = ok(Answer::parse(&bytes))["data"].clone();
    assert_eq!(data.as_array().unwrap().len(), texts.len());
    for (object, want) in data.as_array().unwrap().iter().zip(&alone) {
        assert_eq!(&serde_json::from_value::<Vec<f32>>(object["embedding"].clone()).unwrap(), want);
    }
}

#[test]
fn requests_for_vectors_are_counted_and_listed() {
    let node = Node::alone();
    vectors(&node, &json!(["The fox", "A bird"]));
    let body = json!({"model": "demo", "input": "The fox", "pooling": "mean"});
    let usage = ok(node.post("/v1/embeddings", &body))["usage"]["prompt_tokens"].as_u64().unwrap();
    ok(node.post("/api/embed", &body));
    assert_eq!(
        node.post(
            "/v1/embeddings",
            &json!({"model": "demo", "input": "x", "pooling": "mean", "dimensions": 3})
        )
        .status,
        400
    );
    let sample = |text: &str, begin: &str| {
        let line = text.lines().find(|line| line.starts_with(begin))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    let counted = |endpoint: &str, reason: &str| {
        format!("exo_requests_total{{model=\"demo\",endpoint=\"{endpoint}\",reason=\"{reason}\"}}")
    };
    // The loop of the node reads what is counted once a second.
    let text = wait_for("the last request to be counted", Duration::from_secs(20), || {
        let text = node.call("GET", "/metrics", None).body;
        sample(&text, &counted("embeddings", "invalid")).is_some().then_some(text)
    });
    assert_eq!(sample(&text, &counted("embeddings", "stop")), Some(2.0), "{text}");
    assert_eq!(sample(&text, &counted("ollama_embed", "stop")), Some(1.0), "{text}");
    assert_eq!(sample(&text, "exo_request_duration_seconds_count{model=\"demo\""), Some(3.0), "{text}");
    let tokens = sample(&text, "exo_prompt_tokens_total{model=\"demo\"").unwrap();
    assert!(tokens >= (usage * 3) as f64, "{tokens} for {usage}");
    let recent = node.get("/exo/v1/requests/recent");
    let ends: Vec<&str> = recent.as_array().unwrap().iter().map(|r| r["end"].as_str().unwrap()).collect();
    assert!(ends.len() == 4 && ends[1..] == ["stop"; 3], "{recent}");
    assert_eq!(
        (&recent[1]["prompt_tokens"], &recent[1]["model"]),
        (&json!(usage), &json!("demo")),
        "{recent}"
    );
    let came: Vec<&str> =
        recent.as_array().unwrap().iter().map(|r| r["endpoint"].as_str().unwrap()).collect();
    assert!(came.contains(&"ollama_embed") && came.contains(&"embeddings"), "{recent}");
}
