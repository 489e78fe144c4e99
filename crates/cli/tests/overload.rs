//! More than a node can do: who is answered, who is told to come back, and that nothing stays behind.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a pause in which a load builds up")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{self, Answer, Node, Start, known, wait_for};
use serde_json::{Value, json};

/// Memory that may stay behind a flood: caches of the allocator, grown maps.
const LEFT_BYTES_MAX: u64 = 24 << 20;

fn read(node: &Node, mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap_or_else(|e| panic!("{e}\n{}", node.log()));
    Answer::parse(&bytes)
}

/// Sends `count` requests before reading any answer.
fn flood(node: &Node, count: usize) -> Vec<Answer> {
    let body = json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
    let send = |_| node.send("POST", "/v1/completions", Some(body.to_string()));
    let streams: Vec<_> = (0..count).map(send).collect();
    streams.into_iter().map(|stream| read(node, stream)).collect()
}

fn load(node: &Node) -> Value {
    node.get("/exo/v1/cluster")["instances"][0]["load"].clone()
}

/// Waits until no request is left; gives what the instance then shows.
fn idle(node: &Node, at_most: Duration) -> Value {
    wait_for("all requests to be over", at_most, || {
        let load = load(node);
        (load["running"] == 0 && load["waiting"] == 0).then_some(load)
    })
}

/// Where the system tells it.
#[cfg(target_os = "linux")]
fn resident_bytes(node: &Node) -> Option<u64> {
    Some(support::counted(node.pid(), "status", "VmRSS") << 10)
}

#[cfg(not(target_os = "linux"))]
fn resident_bytes(_node: &Node) -> Option<u64> {
    None
}

#[test]
fn a_thousand_requests_at_once_are_answered_or_told_to_come_back() {
    let node = Node::alone();
    node.place("demo", 1);
    // What a first flood allocates once is no leak.
    flood(&node, 200);
    idle(&node, Duration::from_secs(20));
    let before = resident_bytes(&node);

    let answers = flood(&node, 1000);
    let (served, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.status == 200);
    let text = &served[0].json()["choices"][0]["text"];
    for answer in &served {
        let answer = answer.json();
        assert_eq!(&answer["choices"][0]["text"], text, "greedy text is the same for all");
        assert_eq!(answer["usage"]["completion_tokens"], 8);
    }
    for answer in &refused {
        assert_eq!((answer.status, answer.code().as_str()), (429, "queue_full"), "{}", answer.body);
        // Some hundred answers were measured by now, a few milliseconds each.
        let retry = answer.head.lines().find_map(|l| l.strip_prefix("retry-after: "));
        let retry: u32 = retry.unwrap_or_else(|| panic!("{}", answer.head)).trim().parse().unwrap();
        assert!((1..=60).contains(&retry), "{}", answer.head);
        assert!(answer.body.contains(&format!("try again in {retry} s")), "{}", answer.body);
        assert!(answer.body.contains("64 answers wait for `demo`"), "{}", answer.body);
    }
    assert!(served.len() >= 68, "four slots and a queue of 64 are served, not {}", served.len());
    assert!(!refused.is_empty(), "the queue has a bound");

    let load = idle(&node, Duration::from_secs(20));
    assert_eq!(load["pages_used"], 0, "{load}");
    if let Some(before) = before {
        wait_for("the memory to come back", Duration::from_secs(30), || {
            (resident_bytes(&node)? < before + LEFT_BYTES_MAX).then_some(())
        });
    }
    support::answers(&node);
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let node = Node::alone();
    node.place("demo", 1);
    // Some twenty megabytes of events: more than sockets hold.
    let body = json!({
        "model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "stream": true,
        "n": 16, "max_tokens": 450, "ignore_eos": true, "logprobs": true, "top_logprobs": 20,
    });
    let slow = node.send("POST", "/v1/chat/completions", Some(body.to_string()));
    wait_for("the slow client's request to have run", Duration::from_secs(10), || {
        (load(&node)["prompt_tokens"].as_u64()? > 0).then_some(())
    });
    for (prompt, answer) in &known()[..3] {
        let began = Instant::now();
        assert_eq!(&node.ask("demo", prompt).text(), answer, "{prompt}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    // Its slots are free although it has read nothing.
    let load = idle(&node, Duration::from_secs(60));
    assert_eq!(load["pages_used"], 0, "{load}");
    let answer = read(&node, slow);
    let end = &answer.body[answer.body.len().saturating_sub(300)..];
    assert!(end.contains("slow_reader"), "it is told why its answer ends: {end}");
}

/// A completion of so many tokens for who has this key.
fn complete(node: &Node, key: &str, tokens: u32) -> Answer {
    let body =
        json!({"model": "demo", "prompt": "Once", "max_tokens": tokens, "ignore_eos": true}).to_string();
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        node.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    read(node, stream)
}

/// How long the holder of one key waits for each of its answers, the shortest first, while another keeps so
/// many connections busy; and how often the other was refused.
fn waits_beside(node: &Node, connections: usize) -> (Vec<Duration>, usize) {
    const TOKENS: u32 = 100;
    let (is_over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut waits = Vec::new();
    std::thread::scope(|threads| {
        for _ in 0..connections {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let answer = complete(node, "key-of-a", TOKENS);
                    if answer.status == 429 {
                        refused.fetch_add(1, Ordering::Relaxed);
                        // As clients do: a loop of refusals would measure who gets the processor.
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..20 {
            let began = Instant::now();
            let answer = complete(node, "key-of-b", TOKENS);
            assert_eq!(answer.status, 200, "beside {connections}: {}", answer.body);
            waits.push(began.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    waits.sort_unstable();
    (waits, refused.into_inner())
}

/// The bound is twice as long; other tests that run beside this one count for the rest.
#[test]
fn a_key_beside_a_hundred_connections_of_another_is_never_refused_and_waits_little_longer() {
    let env = vec![("EXO_API_KEYS", "key-of-a,key-of-b".into())];
    let node = Node::start(Start { env, ..Start::alone("keys", &[]) });
    node.place("demo", 1);
    let (few, _) = waits_beside(&node, 1);
    let (many, refused) = waits_beside(&node, 100);
    let median = |waits: &[Duration]| waits[waits.len() / 2];
    println!(
        "median {:?} beside one connection, {:?} beside a hundred (slowest {:?} and {:?}); the other key was refused {refused} times",
        median(&few),
        median(&many),
        few[few.len() - 1],
        many[many.len() - 1]
    );
    assert!(refused > 0, "the other key has more connections than its share of the queue");
    assert!(
        median(&many) < median(&few) * 3 + Duration::from_millis(100),
        "{:?}, {:?}",
        median(&few),
        median(&many)
    );
}

#[test]
fn the_next_model_that_is_asked_for_takes_the_room_of_one_that_a_request_loaded() {
    let plan = Node::alone().post("/exo/v1/plan", &json!({"model": "demo"})).json();
    let bytes: u64 = ["weight_bytes", "kv_bytes", "workspace_bytes"]
        .map(|what| plan["stages"][0][what].as_u64().unwrap())
        .iter()
        .sum();
    // Room for one and a half.
    let memory = ((bytes * 3 / 2) >> 20).to_string();
    let node = Node::start(Start::alone("room", &["--memory-mib", &memory]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.gguf");
    support::another_model(&path);
    let added = node.exo(&["models", "add", &path.display().to_string()]);
    assert!(added.status.success(), "{}", support::stderr(&added));
    let placed = || {
        let view = node.get("/exo/v1/cluster");
        let names =
            view["instances"].as_array().unwrap().iter().map(|i| i["model"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };

    support::answers(&node);
    assert_eq!(placed(), ["demo"]);
    // It waits until the first model has had no request for three seconds.
    let began = Instant::now();
    support::answers_as(&node, "mine"); // the same weights
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(placed(), ["mine"]);

    // What a person places stays.
    node.place("mine", 1);
    std::thread::sleep(Duration::from_secs(4));
    let refused = node.ask("demo", "Hello");
    assert_eq!(refused.code(), "insufficient_memory", "{}", refused.body);
    assert_eq!(placed(), ["mine"]);
}
