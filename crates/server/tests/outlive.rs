//! An answer whose reader leaves and comes back.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::common::{Server, chat_body, quick, start, start_with};
use exo_server::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Asks for a streamed answer that is kept, or is not, and reads until `count` events have come. What came,
/// and `exo-resume`.
async fn begin(server: &Server, model: &str, keep: &str, count: usize) -> (String, Option<String>) {
    let body = chat_body(model, r#","stream":true"#);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {keep}content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut text = String::new();
    while text.matches("data: ").count() < count {
        let mut bytes = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut bytes)).await;
        let read = read.expect("an event within 5 s").unwrap();
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    let ticket = text.lines().find_map(|line| line.strip_prefix("exo-resume: ")).map(str::to_owned);
    (text, ticket)
}

/// The request's id in front of the secret, and the header with both.
fn parts(ticket: &str) -> (String, String) {
    (ticket.split_once('.').unwrap().0.to_owned(), format!("exo-resume: {ticket}"))
}

const KEEP: &str = "exo-keep: true\r\n";

#[tokio::test]
async fn an_answer_goes_on_without_its_reader_and_is_read_on_from_the_last_event() {
    let server = start().await;
    let (text, ticket) = begin(&server, "endless", KEEP, 4).await;
    let (id, ticket) = parts(&ticket.unwrap());
    let last = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap().to_owned();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.fake.live(), 1, "it goes on");
    let last_header = format!("last-event-id: {last}");
    let again = async {
        let path = format!("GET /v1/requests/{id}");
        server.send(&path, &[&ticket, &last_header], "").await
    };
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(
            server.send(&format!("DELETE /v1/requests/{id}"), &["exo-resume: x.0"], "").await.status,
            404
        );
        server.send(&format!("DELETE /v1/requests/{id}"), &[&ticket], "").await
    };
    let (rest, stopped) = tokio::join!(again, stop);
    assert_eq!(stopped.status, 204);
    let ids: Vec<u32> =
        rest.body.lines().filter_map(|line| line.strip_prefix("id: 0:")?.parse().ok()).collect();
    let had: u32 = last.strip_prefix("0:").unwrap().parse().unwrap();
    assert!(ids.len() > 10 && ids[0] == had + 1, "{had}, then {ids:?}");
    assert!(ids.windows(2).all(|two| two[1] == two[0] + 1), "each once: {ids:?}");
    assert!(rest.body.contains(r#""code":"cancelled""#), "{}", rest.body);
    server.until_live(0).await;
    // What has ended is still there to be read, from the start too.
    let whole = server.send(&format!("GET /v1/requests/{id}"), &[&ticket], "").await;
    assert!(whole.body.contains("id: 0:1\n") && whole.body.contains("cancelled"));
}

#[tokio::test]
async fn an_answer_that_nobody_asked_to_keep_ends_with_its_reader() {
    let server = start().await;
    for keep in ["", "exo-keep: false\r\n"] {
        let (_, ticket) = begin(&server, "endless", keep, 2).await;
        server.until_live(0).await;
        let (id, ticket) = parts(&ticket.unwrap());
        let stop = server.send(&format!("DELETE /v1/requests/{id}"), &[&ticket], "").await;
        assert_eq!(stop.error(), "404 request_not_found");
    }
}

#[tokio::test]
async fn a_kept_answer_needs_its_secret_and_leaves_no_copy_where_none_is_wanted() {
    let server = start_with("127.0.0.1:0", ServerOptions { resume: false, ..quick() }).await;
    let (_, ticket) = begin(&server, "good", KEEP, 4).await;
    let (id, ticket) = parts(&ticket.unwrap());
    assert!(server.fake.last.lock().unwrap().as_ref().unwrap().resumable.is_none());
    let path = format!("GET /v1/requests/{id}");
    assert_eq!(server.get(&format!("/v1/requests/{id}")).await.error(), "401 missing_secret");
    assert_eq!(
        server.send(&path, &[&format!("exo-resume: {id}.guess")], "").await.error(),
        "404 request_not_found"
    );
    let whole = server.send(&path, &[&ticket], "").await;
    assert!(whole.body.contains("answer.") && whole.body.ends_with("data: [DONE]\n\n"), "{}", whole.body);
}

/// The request lives on for the copy that another member has of it, and with it the copy ends.
#[tokio::test]
async fn the_copy_of_a_kept_answer_is_there_behind_its_end_whether_or_not_it_was_read() {
    let server = start().await;
    let (_, ticket) = begin(&server, "good", KEEP, 2).await;
    let (id, ticket) = parts(&ticket.unwrap());
    let whole = server.send(&format!("GET /v1/requests/{id}"), &[&ticket], "").await;
    assert!(whole.body.ends_with("data: [DONE]\n\n"), "{}", whole.body);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.fake.live(), 1, "its reader left, and another one has had all of it");
    // No more of them than answers that are kept, and none of one that failed.
    for _ in 0..12 {
        begin(&server, "good", KEEP, 4).await;
    }
    server.until_live(8).await;
    let (_, ticket) = begin(&server, "breaks", KEEP, 2).await;
    let (id, ticket) = parts(&ticket.unwrap());
    let broken = server.send(&format!("GET /v1/requests/{id}"), &[&ticket], "").await;
    assert!(broken.body.contains("node b is gone"), "{}", broken.body);
    server.until_live(7).await;
}

#[tokio::test]
async fn an_answer_ends_with_an_error_where_its_writer_panics() {
    let server = start().await;
    let (_, ticket) = begin(&server, "panics-when-dropped", KEEP, 2).await;
    let (id, ticket) = parts(&ticket.unwrap());
    let read = async { server.send(&format!("GET /v1/requests/{id}"), &[&ticket], "").await };
    let whole = tokio::time::timeout(Duration::from_secs(5), read).await.expect("it ends");
    assert!(whole.body.contains(r#""code":"internal_error""#), "{}", whole.body);
    let unkept = server.chat("panics-when-dropped", r#","stream":true"#).await;
    assert!(unkept.body.contains(r#""code":"internal_error""#), "{}", unkept.body);
    server.until_live(0).await;
}

#[tokio::test]
async fn a_panic_before_the_head_is_an_error_of_the_dialect_and_no_end_of_the_node() {
    let server = start().await;
    let headers = ["content-type: application/json", "exo-keep: true"];
    let model = "panics-before-its-head";
    let chat = chat_body(model, r#","stream":true"#);
    let chat = server.send("POST /v1/chat/completions", &headers, &chat).await;
    assert_eq!(chat.error(), "500 internal_error", "{}", chat.body);
    let messages = format!(
        r#"{{"model":"{model}","max_tokens":9,"stream":true,"messages":[{{"role":"user","content":"Hi"}}]}}"#
    );
    let messages = server.send("POST /v1/messages", &headers, &messages).await;
    assert!(messages.status == 500 && messages.body.contains("a panic while answering"), "{}", messages.body);
    assert!(messages.body.contains(r#"{"type":"error","error":{"type":"api_error""#), "{}", messages.body);
    server.until_live(0).await;
}

#[tokio::test]
async fn who_reads_an_answer_of_messages_on_hears_errors_in_its_shape() {
    let server = start().await;
    let version = "anthropic-version: 2023-06-01";
    let (path, ticket) = (format!("GET /v1/requests/{ID}"), format!("exo-resume: {ID}.{SECRET}"));
    let unknown = server.send(&path, &[&ticket, version], "").await;
    assert!(unknown.status == 404 && unknown.body.starts_with(r#"{"type":"error""#), "{}", unknown.body);
    assert_eq!(server.send(&path, &[&ticket], "").await.error(), "404 request_not_found");
}

#[tokio::test]
async fn requests_that_fail_leave_place_for_answers_that_are_kept() {
    let server = start_with("127.0.0.1:0", ServerOptions { resume: false, ..quick() }).await;
    for _ in 0..20 {
        let body = chat_body("unknown", r#","stream":true"#);
        let refused = server.send(
            "POST /v1/chat/completions",
            &["content-type: application/json", "exo-keep: true"],
            &body,
        );
        assert_eq!(refused.await.status, 404);
    }
    let (_, ticket) = begin(&server, "good", KEEP, 4).await;
    let (id, ticket) = parts(&ticket.expect("the answer is kept"));
    let whole = server.send(&format!("GET /v1/requests/{id}"), &[&ticket], "").await;
    assert!(whole.body.ends_with("data: [DONE]\n\n"), "{}", whole.body);
}

const ID: &str = "00112233445566778899aabbccddeeff";
const SECRET: &str = "ffeeddccbbaa99887766554433221100";

/// Sends a request under an id and a secret of the client's, and leaves before its head comes.
async fn leave_before_the_head(server: &Server, path: &str, body: &str) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexo-keep: {ID}.{SECRET}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all((head + body).as_bytes()).await.unwrap();
    server.until_live(1).await;
    drop(stream);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_head_finds_its_answer_under_the_id_that_it_chose() {
    // Without copies on others, for which a request would be there beyond its end.
    let stream_headers_after = Duration::from_secs(5);
    let options = ServerOptions { stream_headers_after, resume: false, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let (path, ticket) = (format!("/v1/requests/{ID}"), format!("exo-resume: {ID}.{SECRET}"));
    leave_before_the_head(&server, "/v1/chat/completions", &chat_body("loading", r#","stream":true"#)).await;
    let whole = server.send(&format!("GET {path}"), &[&ticket], "").await;
    assert!(whole.body.contains("answer.") && whole.body.ends_with("data: [DONE]\n\n"), "{}", whole.body);
    let told = whole.header("exo-resume").unwrap();
    assert!(
        told.ends_with(SECRET) && !told.starts_with(ID),
        "copies on other members are under the node's own id: {told}"
    );
    let guess = format!("exo-resume: {ID}.{ID}");
    assert_eq!(server.send(&format!("GET {path}"), &[&guess], "").await.error(), "404 request_not_found");

    // A continuation is a completion; it is stopped under the same id.
    server.until_live(0).await;
    let body = r#"{"model":"loading","prompt":"Once","stream":true}"#;
    leave_before_the_head(&server, "/v1/completions", body).await;
    assert_eq!(server.send(&format!("DELETE {path}"), &[&ticket], "").await.status, 204);
    server.until_live(0).await;
    let rest = server.send(&format!("GET {path}"), &[&ticket], "").await;
    assert!(rest.body.contains(r#""code":"cancelled""#), "{}", rest.body);
}

#[tokio::test]
async fn a_question_that_comes_twice_under_one_id_is_computed_once() {
    let server = start().await;
    let body = chat_body("endless", r#","stream":true"#);
    leave_before_the_head(&server, "/v1/chat/completions", &body).await;
    leave_before_the_head(&server, "/v1/chat/completions", &body).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.until_live(1).await;
    let (path, ticket) = (format!("/v1/requests/{ID}"), format!("exo-resume: {ID}.{SECRET}"));
    assert_eq!(server.send(&format!("DELETE {path}"), &[&ticket], "").await.status, 204);
    server.until_live(0).await;
}

#[tokio::test]
async fn what_a_request_failed_of_before_its_head_is_there_for_who_comes_back() {
    let server =
        start_with("127.0.0.1:0", ServerOptions { stream_headers_after: Duration::from_secs(5), ..quick() })
            .await;
    leave_before_the_head(&server, "/v1/chat/completions", &chat_body("never-loads", r#","stream":true"#))
        .await;
    let ticket = format!("exo-resume: {ID}.{SECRET}");
    let rest = server.send(&format!("GET /v1/requests/{ID}"), &[&ticket], "").await;
    assert!(rest.status == 200 && rest.body.contains("still loading at 99 %"), "{}", rest.body);
}

#[tokio::test]
async fn an_id_that_a_client_did_not_draw_is_refused() {
    let server = start().await;
    let body = chat_body("good", r#","stream":true"#);
    for wrong in ["1.2", "yes", "ID.SECRET", &format!("{ID}.{}", &SECRET[1..])] {
        let keep = format!("exo-keep: {wrong}");
        let refused =
            server.send("POST /v1/chat/completions", &["content-type: application/json", &keep], &body).await;
        assert_eq!(refused.error(), "400 invalid_keep", "{wrong}");
    }
}
