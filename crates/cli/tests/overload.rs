//! More than a node can do: who is answered, who is told to come back, and that nothing stays behind.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Answer, Node, known, wait_for};

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
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    Some(line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10)
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
    let (prompt, answer) = &known()[0];
    assert_eq!(&node.ask("demo", prompt).text(), answer, "and the node goes on");
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
