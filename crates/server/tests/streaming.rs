//! What goes over the wire while a request runs, and what happens when either side stops.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::{Duration, Instant};

use crate::common::{Server, chat_body, events, quick, start, start_with};
use exo_server::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const STREAM: &str = r#","stream":true"#;

#[tokio::test]
async fn a_chat_stream_has_openais_shape() {
    let server = start().await;
    let answer = server.chat("good", r#","stream":true,"stream_options":{"include_usage":true}"#).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    insta::assert_snapshot!(events(&answer));
}

#[tokio::test]
async fn without_include_usage_every_chunk_has_a_choice() {
    let server = start().await;
    for answer in [server.chat("good", STREAM).await, server.complete("good", STREAM).await] {
        let chunks = answer.body.lines().filter_map(|l| l.strip_prefix("data: {"));
        for chunk in chunks {
            let value: serde_json::Value = serde_json::from_str(&format!("{{{chunk}")).unwrap();
            assert_eq!(value["choices"].as_array().unwrap().len(), 1, "{value}");
        }
        assert!(answer.body.ends_with("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn a_thought_has_both_names_that_clients_look_for() {
    let server = start().await;
    let whole = server.chat("thinks-and-calls", "").await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Rome?", "{whole}");
    assert_eq!(message["reasoning"], "Rome?", "{whole}");
    let streamed = server.chat("thinks-and-calls", STREAM).await;
    let delta = r#""delta":{"reasoning_content":"Rome?","reasoning":"Rome?"}"#;
    assert_eq!(streamed.body.matches(delta).count(), 1, "{}", streamed.body);
}

#[tokio::test]
async fn what_of_a_tool_is_not_enforced_is_named_in_every_stream() {
    let server = start().await;
    let named = r#""unenforced":["tool `f` at `#/not`"]"#;
    for (model, extra, expected) in [
        ("half-enforces", STREAM, 1),
        ("half-enforces", r#","stream":true,"stream_options":{"include_usage":true}"#, 1),
        ("good", STREAM, 0),
    ] {
        let answer = server.chat(model, extra).await;
        assert_eq!(answer.body.matches(named).count(), expected, "{model} {extra}: {}", answer.body);
        let chunks = answer.body.lines().filter_map(|line| line.strip_prefix("data: {"));
        let without_choice = chunks.filter(|chunk| chunk.contains(r#""choices":[]"#)).count();
        assert_eq!(without_choice, usize::from(extra.contains("include_usage")), "{}", answer.body);
    }
}

#[tokio::test]
async fn choices_stream_under_their_index() {
    let server = start().await;
    let answer = server.chat("good", r#","stream":true,"n":2,"max_tokens":2"#).await;
    insta::assert_snapshot!(events(&answer));
}

#[tokio::test]
async fn a_completion_stream_has_openais_shape() {
    let server = start().await;
    let extra = r#","stream":true,"echo":true,"stream_options":{"include_usage":true}"#;
    insta::assert_snapshot!(events(&server.complete("good", extra).await));
}

#[tokio::test]
async fn probabilities_stream_with_their_tokens() {
    let server = start().await;
    let chat = server.chat("good", r#","stream":true,"logprobs":true,"top_logprobs":2"#).await;
    let completion = server.complete("good", r#","stream":true,"logprobs":2"#).await;
    insta::assert_snapshot!(format!("{}\n\n{}", events(&chat), events(&completion)));
}

#[tokio::test]
async fn whole_answers_have_openais_shape() {
    let server = start().await;
    let extra = r#","n":2,"logprobs":true,"top_logprobs":1"#;
    let mut chat = server.chat("good", extra).await;
    let mut completion = server.complete("good", r#","echo":true"#).await;
    let mut scored = server.complete("good", r#","logprobs":1"#).await;
    for answer in [&mut chat, &mut completion, &mut scored] {
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body = format!("data: {}", answer.body);
    }
    insta::assert_snapshot!(format!("{}\n\n{}\n\n{}", events(&chat), events(&completion), events(&scored)));
}

#[tokio::test]
async fn whoever_waits_sees_why_and_then_gets_the_answer() {
    let server = start().await;
    let answer = server.chat("loading", STREAM).await;
    assert_eq!(answer.status, 200);
    let (waiting, rest) = answer.body.split_once("data: ").unwrap();
    assert!(waiting.starts_with(": loading 37 %\n"), "{waiting}");
    assert!(waiting.contains(": loading 74 %\n"), "{waiting}");
    assert!(rest.ends_with("data: [DONE]\n\n"));
    assert_eq!(server.chat("loading", "").await.status, 200, "without a stream it waits too");
}

#[tokio::test]
async fn a_model_that_does_not_come_up_ends_in_503_or_an_error_event() {
    let server = start().await;
    let whole = server.chat("never-loads", "").await;
    assert_eq!(whole.error(), "503 unavailable");
    assert_eq!(whole.header("retry-after"), Some("9"));
    let streamed = server.chat("never-loads", STREAM).await;
    assert_eq!(streamed.status, 200, "its headers were sent when it had waited for a while");
    insta::assert_snapshot!(events(&streamed).lines().skip_while(|l| l.starts_with(':')).collect::<Vec<_>>().join("\n"), @r#"
    event: error
    data: {"error":{"message":"not available at the moment: still loading at 99 %","type":"server_error","param":null,"code":"unavailable"}}
    "#);
    let patient = ServerOptions { stream_headers_after: Duration::from_secs(2), ..quick() };
    let server = start_with("127.0.0.1:0", patient).await;
    assert_eq!(
        server.chat("never-loads", STREAM).await.error(),
        "503 unavailable",
        "until then it is a status"
    );
}

#[tokio::test]
async fn a_stream_that_breaks_says_so_and_ends() {
    let server = start().await;
    let answer = server.chat("breaks", STREAM).await;
    insta::assert_snapshot!(events(&answer));
    let whole = server.chat("breaks", "").await;
    assert_eq!(whole.error(), "503 stage_lost");
    assert!(whole.header("retry-after").is_some());
    for model in ["stops-short", "panics-later"] {
        let answer = server.chat(model, STREAM).await;
        assert!(answer.body.contains("event: error\n"), "{}", answer.body);
        assert!(answer.body.contains(r#""code":"internal_error""#), "{}", answer.body);
        assert!(!answer.body.contains("[DONE]"));
        assert_eq!(server.chat(model, "").await.error(), "500 internal_error");
    }
    server.until_live(0).await;
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_server_goes_on() {
    let server = start().await;
    for extra in ["", STREAM] {
        let answer = server.chat("panics", extra).await;
        assert_eq!(answer.error(), "500 internal_error");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    assert_eq!(server.chat("good", "").await.status, 200);
}

#[tokio::test]
async fn a_node_that_falls_silent_is_not_waited_for() {
    let options = ServerOptions { silence_max: Duration::from_millis(300), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    // One that keeps saying that it is placing makes no progress either.
    for model in ["silent", "babbling"] {
        assert_eq!(server.chat(model, "").await.error(), "504 deadline_exceeded", "{model}");
        let streamed = server.chat(model, STREAM).await;
        assert!(streamed.body.contains(r#""code":"deadline_exceeded""#), "{model}: {}", streamed.body);
    }
    server.until_live(0).await;
}

/// A request whose client is under the test's control.
async fn hold(server: &Server, model: &str, extra: &str) -> TcpStream {
    let body = chat_body(model, extra);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot_within_a_second() {
    let server = start().await;
    for (model, extra) in
        [("endless", STREAM), ("endless", ""), ("silent", STREAM), ("silent", ""), ("loading", "")]
    {
        let client = hold(&server, model, extra).await;
        server.until_live(1).await;
        drop(client);
        let began = Instant::now();
        server.until_live(0).await;
        assert!(began.elapsed() < Duration::from_secs(1), "{model} {extra}");
    }
}

#[tokio::test]
async fn tokens_are_sent_as_they_come() {
    let server = start().await;
    let mut client = hold(&server, "endless", STREAM).await;
    let mut seen = String::new();
    let mut buffer = [0; 1024];
    let began = Instant::now();
    while seen.matches(r#""content":"x""#).count() < 5 {
        let n = tokio::time::timeout(Duration::from_secs(1), client.read(&mut buffer))
            .await
            .expect("tokens")
            .unwrap();
        seen += &String::from_utf8_lossy(&buffer[..n]);
    }
    assert!(began.elapsed() < Duration::from_secs(1), "five tokens of 10 ms took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_request_that_is_looked_at_for_long_is_refused_by_its_status() {
    let server = start().await;
    assert_eq!(server.chat("looks-and-refuses", STREAM).await.error(), "404 model_not_found model");
}

#[tokio::test]
async fn an_answer_that_shows_nothing_of_what_is_made_gives_signs_of_life() {
    let server = start().await;
    let messages =
        r#"{"model":"ponders","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go."}]}"#;
    let chat = r#"{"model":"ponders","think":false,"messages":[{"role":"user","content":"Go."}]}"#;
    for (path, body, sign) in
        [("/v1/messages", messages, "event: ping"), ("/api/chat", chat, r#""content":"""#)]
    {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        client.write_all(request.as_bytes()).await.unwrap();
        let (mut seen, mut buffer, began) = (String::new(), [0; 1024], Instant::now());
        while seen.matches(sign).count() < 4 {
            let read = tokio::time::timeout(Duration::from_secs(2), client.read(&mut buffer)).await;
            let n = read.unwrap_or_else(|_| panic!("{path} is silent: {seen}")).unwrap();
            seen += &String::from_utf8_lossy(&buffer[..n]);
        }
        assert!(began.elapsed() >= Duration::from_millis(100), "no more often than they must: {seen}");
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off() {
    let options = ServerOptions { write_timeout: Duration::from_millis(300), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let client = hold(&server, "flood", STREAM).await;
    server.until_live(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.until_live(0).await;
    drop(client);
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded_in_sum() {
    let options = ServerOptions { bodies_bytes_max: 1 << 20, unread_bytes_max: usize::MAX, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(hold(&server, "flood", STREAM).await);
    }
    server.until_live(4).await;
    // What the sockets take is the system's; the rest ends long before a blocked write would.
    for _ in 0..10 {
        if server.fake.live() > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    assert_eq!(server.fake.live(), 0, "all of them lost their request");
    let ended = server.chat("good", STREAM).await;
    assert!(ended.body.ends_with("data: [DONE]\n\n"), "who reads is served meanwhile: {}", ended.body);
    assert_eq!(server.chat("good", "").await.status, 200);
    assert_eq!(server.chat("long", "").await.error(), "413 answer_too_large");
    let mut rest = Vec::new();
    for mut client in clients {
        rest.clear();
        client.set_nodelay(true).unwrap();
        let read = async {
            while !rest.ends_with(b"\r\n0\r\n\r\n") {
                assert!(client.read_buf(&mut rest).await.unwrap() > 0, "closed before its end");
            }
        };
        tokio::time::timeout(Duration::from_secs(10), read).await.expect("the rest, and the reason");
        assert!(String::from_utf8_lossy(&rest).contains(r#""code":"too_many_bytes""#));
    }
    let mut flood = hold(&server, "flood", STREAM).await;
    let mut taken = 0;
    while taken < 4 << 20 {
        taken += flood.read(&mut [0; 65536]).await.unwrap();
    }
    assert_eq!(server.fake.live(), 1, "the room is given back, and a fast reader never needs it for long");
}

#[tokio::test]
async fn one_answer_waits_for_its_reader_up_to_a_bound() {
    let options = ServerOptions { unread_bytes_max: 1 << 20, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut client = hold(&server, "flood", STREAM).await;
    server.until_live(1).await;
    for _ in 0..10 {
        if server.fake.live() > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    assert_eq!(server.fake.live(), 0);
    let mut rest = Vec::new();
    while !rest.ends_with(b"\r\n0\r\n\r\n") {
        assert!(client.read_buf(&mut rest).await.unwrap() > 0, "closed before its end");
    }
    assert!(String::from_utf8_lossy(&rest).contains(r#""code":"slow_reader""#));
}

/// What its client lacks yet another node may have to tell it.
#[tokio::test]
async fn a_request_lives_until_its_client_has_read_the_answer_or_has_left() {
    let options = ServerOptions { unread_bytes_max: usize::MAX, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut reads = hold(&server, "longest", STREAM).await;
    let leaves = hold(&server, "longest", STREAM).await;
    let is_made = || async {
        let ended = server.admin("GET /exo/v1/requests/recent", "").await.json();
        ended.as_array().unwrap().len() == 2
    };
    let began = Instant::now();
    while !is_made().await {
        assert!(began.elapsed() < Duration::from_secs(20), "both are made, whoever reads them");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.fake.live(), 2, "no one has read them");
    drop(leaves);
    server.until_live(1).await;
    let mut rest = Vec::new();
    while !rest.ends_with(b"\r\n0\r\n\r\n") {
        assert!(reads.read_buf(&mut rest).await.unwrap() > 0, "closed before its end");
    }
    server.until_live(0).await;
}

#[tokio::test]
async fn whole_answers_that_are_collected_are_bounded_in_sum() {
    let options = ServerOptions { bodies_bytes_max: 1 << 20, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let refused = tokio::time::timeout(Duration::from_secs(5), server.chat("flood", "")).await;
    let refused = refused.expect("an answer of any length is not collected");
    assert_eq!(refused.error(), "413 answer_too_large");
    server.until_live(0).await;
    assert_eq!(server.chat("good", "").await.status, 200, "the room is given back");
}

#[tokio::test]
async fn shutdown_ends_answers_with_an_error_and_returns() {
    let options = ServerOptions { shutdown_grace: Duration::from_millis(200), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut clients = Vec::new();
    for extra in [STREAM, ""] {
        clients.push(hold(&server, "endless", extra).await);
    }
    server.until_live(2).await;
    server.stop.notify_one();
    let ended = tokio::time::timeout(Duration::from_secs(2), server.task).await;
    ended.expect("serve returns").unwrap().unwrap();
    assert_eq!(server.fake.live(), 0);
    for mut client in clients {
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.contains(r#""code":"shutting_down""#), "{text}");
        assert!(!text.starts_with("HTTP/1.1 200") || text.ends_with("\r\n0\r\n\r\n"), "cut: {text}");
    }
    assert!(TcpStream::connect(server.address).await.is_err(), "the port is free again");
}
