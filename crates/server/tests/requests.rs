//! Requests as their owner sees them: cancelled, and remembered without their text.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::common::{self, Server, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Begins a streamed answer without an end, and gives its id.
async fn begin(server: &Server) -> (TcpStream, String) {
    let body = common::chat_body("endless", r#","stream":true"#);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut text = String::new();
    while !text.contains("\r\n\r\n") {
        let mut bytes = vec![0; 4096];
        let read = stream.read(&mut bytes).await.unwrap();
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    let id = text.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap().to_owned();
    (stream, id)
}

async fn recent(server: &Server) -> serde_json::Value {
    server.admin("GET /exo/v1/requests/recent", "").await.json()
}

#[tokio::test]
async fn a_cancelled_request_ends_at_once_with_its_error_and_frees_the_node() {
    let server = start().await;
    let (mut stream, id) = begin(&server).await;
    server.until_live(1).await;
    assert_eq!(server.send(&format!("DELETE /exo/v1/requests/{id}"), &[], "").await.status, 401);
    assert_eq!(server.admin(&format!("DELETE /exo/v1/requests/chatcmpl-{id}"), "").await.status, 204);
    let mut rest = String::new();
    let read = tokio::time::timeout(Duration::from_secs(3), stream.read_to_string(&mut rest)).await;
    read.expect("the end within 3 s").unwrap();
    assert!(rest.contains(r#""code":"cancelled""#), "{rest}");
    server.until_live(0).await;
    let view = &recent(&server).await[0];
    assert_eq!((view["id"].as_str(), view["end"].as_str()), (Some(id.as_str()), Some("cancelled")));
    assert_eq!(
        server.admin(&format!("DELETE /exo/v1/requests/{id}"), "").await.error(),
        "404 not_found request"
    );
    assert_eq!(server.admin("DELETE /exo/v1/requests/x", "").await.error(), "400 invalid_request_id");
}

#[tokio::test]
async fn an_answer_that_is_waited_for_as_a_whole_is_cancelled_with_a_status_that_nobody_repeats() {
    let server = start().await;
    let waiting = server.chat("silent", "");
    let cancel = async {
        server.until_live(1).await;
        // Its client has not seen an id yet; the node has.
        let id = server.fake.last.lock().unwrap().as_ref().unwrap().request;
        server.admin(&format!("DELETE /exo/v1/requests/{id}"), "").await
    };
    let (answer, cancelled) = tokio::join!(waiting, cancel);
    assert_eq!((answer.error().as_str(), cancelled.status), ("499 cancelled", 204));
}

#[tokio::test]
async fn ended_requests_are_told_the_last_first_without_their_text_and_a_bounded_number_of_them() {
    let server = start().await;
    server.chat("good", r#","max_tokens":2"#).await;
    server.chat("nothing", "").await;
    let (stream, id) = begin(&server).await;
    drop(stream);
    server.until_live(0).await;
    let list = recent(&server).await;
    let ends: Vec<_> = list.as_array().unwrap().iter().map(|view| view["end"].as_str().unwrap()).collect();
    assert_eq!(ends, ["client_left", "model_not_found", "length"]);
    assert_eq!(list[0]["id"], id);
    let done = &list[2];
    assert_eq!((done["prompt_tokens"].as_u64(), done["tokens"].as_u64()), (Some(5), Some(2)));
    assert_eq!((done["cached_tokens"].as_u64(), done["stages"].as_u64()), (Some(2), Some(3)));
    let told = list.to_string().replace("answer_ms", "");
    assert!(!told.contains("answer") && !told.contains("Hi"), "{list}");
    let long = "m".repeat(10_000);
    for _ in 0..205 {
        server.chat(&long, "").await;
    }
    let list = recent(&server).await;
    assert_eq!(list.as_array().unwrap().len(), 200);
    assert!(list[0]["model"].as_str().unwrap().len() < 300);
}

/// Each of the threads that tasks share waits for a disk that does not answer.
#[test]
fn a_large_body_needs_no_thread_that_waits_for_a_disk_and_what_needs_one_is_refused_in_its_time() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (answered, disk) = std::sync::mpsc::channel::<()>();
    let (large, written) = runtime.block_on(async {
        let options = exo_server::ServerOptions { body_timeout: Duration::from_secs(2), ..common::quick() };
        let server = common::start_with("127.0.0.1:0", options).await;
        tokio::task::spawn_blocking(move || disk.recv());
        let not_json = format!(r#"{{"prompt":"{}"#, "a".repeat(100 << 10));
        let large = server.post("/v1/completions", &not_json).await;
        (large, server.admin("DELETE /exo/v1/sessions", "").await)
    });
    drop(answered);
    assert_eq!(large.error(), "400 invalid_json", "it was read");
    assert_eq!(written.error(), "504 deadline_exceeded");
    assert!(written.body.contains("the session has ended, but"), "{}", written.body);
}
