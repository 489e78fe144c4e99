//! `/v1/embeddings`, `/api/embed` and `/api/embeddings` over the wire.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::common::{quick, start, start_with};
use exo_server::{ApiKey, ServerOptions};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const OPENAI: &str = "/v1/embeddings";

#[tokio::test]
async fn each_dialect_is_answered_in_its_shape() {
    let server = start().await;
    let list = server.post(OPENAI, r#"{"model":"good","input":["a","b"]}"#).await.json();
    let object = |index| json!({"object": "embedding", "index": index, "embedding": [0.6, -0.8]});
    assert_eq!((&list["object"], &list["data"]), (&json!("list"), &json!([object(0), object(1)])));
    assert_eq!((&list["usage"]["prompt_tokens"], &list["usage"]["total_tokens"]), (&json!(7), &json!(7)));
    let body = r#"{"model":"good","input":[1,2],"encoding_format":"base64","pooling":"last","dimensions":2,"user":"u"}"#;
    let list = server.post(OPENAI, body).await.json();
    assert_eq!(list["data"][0]["embedding"], "mpkZP83MTL8=");
    assert_eq!(server.fake.calls.lock().unwrap().last().unwrap(), "vectors of 1 inputs: Some(Last) Some(2)");

    let body =
        r#"{"model":"good","input":"a","truncate":false,"keep_alive":"5m","options":{"temperature":1}}"#;
    let answer = server.post("/api/embed", body).await.json();
    assert_eq!((&answer["model"], &answer["embeddings"]), (&json!("good"), &json!([[0.6, -0.8]])));
    assert_eq!((&answer["prompt_eval_count"], &answer["truncated_tokens"]), (&json!(7), &json!(null)));
    let cut = server.post("/api/embed", r#"{"model":"good","input":"a"}"#).await.json();
    assert_eq!(cut["truncated_tokens"], 3, "what is left out by default is said");
    let older = server.post("/api/embeddings", r#"{"model":"good","prompt":"a"}"#).await.json();
    assert_eq!(older, json!({"embedding": [0.6, -0.8], "truncated_tokens": 3}));
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name() {
    let server = start().await;
    for (path, body, error) in [
        (OPENAI, r#"{"model":"good"}"#, "400 missing_required_parameter input"),
        (OPENAI, r#"{"model":"good","input":[]}"#, "400 invalid_value input"),
        (OPENAI, r#"{"model":"good","input":["a",1]}"#, "400 invalid_value input"),
        (OPENAI, r#"{"model":"good","input":"a","pooling":"rank"}"#, "400 invalid_value pooling"),
        (
            OPENAI,
            r#"{"model":"good","input":"a","encoding_format":"int8"}"#,
            "400 invalid_value encoding_format",
        ),
        (OPENAI, r#"{"model":"good","input":"a","tempo":1}"#, "400 unknown_parameter tempo"),
        (OPENAI, r#"{"model":"none","input":"a"}"#, "404 model_not_found model"),
    ] {
        assert_eq!(server.post(path, body).await.error(), error, "{path} {body}");
    }
    let unknown = server.post("/api/embed", r#"{"model":"good","input":"a","options":{"tempo":1}}"#).await;
    assert_eq!((unknown.status, unknown.json()["param"].as_str()), (400, Some("options.tempo")));
}

#[tokio::test]
async fn vectors_need_the_key_as_well() {
    let options = ServerOptions { api_keys: vec![ApiKey::from_key("k")].into(), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    for path in [OPENAI, "/api/embed", "/api/embeddings"] {
        let answer = server.post(path, r#"{"model":"good","input":"a"}"#).await;
        assert_eq!(answer.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_vectors() {
    let server = start().await;
    for path in [OPENAI, "/api/embed"] {
        let body = r#"{"model":"hang","input":"a"}"#;
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
            .await
            .unwrap();
        server.until_live(1).await;
        drop(client);
        server.until_live(0).await;
    }
}

#[tokio::test]
async fn a_node_that_falls_silent_over_vectors_is_not_waited_for() {
    let options = ServerOptions { silence_max: Duration::from_millis(400), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let silent = server.post(OPENAI, r#"{"model":"hang","input":"a"}"#).await;
    assert_eq!(silent.error(), "504 deadline_exceeded");
    assert!(silent.body.contains("within 400 ms") && silent.body.contains("`exo status`"), "{}", silent.body);
    for (path, field) in [("/api/embed", "input"), ("/api/embeddings", "prompt")] {
        let silent = server.post(path, &format!(r#"{{"model":"hang","{field}":"a"}}"#)).await;
        let error = silent.json();
        assert_eq!((silent.status, error["code"].as_str()), (504, Some("deadline_exceeded")), "{path}");
        assert!(error["error"].as_str().is_some_and(|text| text.contains("within 400 ms")), "{error}");
    }
    server.until_live(0).await;
    // One that takes longer and says so is waited for.
    assert_eq!(server.post(OPENAI, r#"{"model":"slow","input":"a"}"#).await.status, 200);
}

#[tokio::test]
async fn vectors_take_room_of_answers_while_they_are_made() {
    // Forty MiB with their text: too many for half of 64, and of 128 for two at once. In base64 they are 27.
    for (mib, encoding, refusal) in [
        (64, "float", "413 answer_too_large"),
        (128, "float", "503 too_many_bytes"),
        (48, "base64", "413 answer_too_large"),
        (64, "base64", "503 too_many_bytes"),
    ] {
        let options = ServerOptions { bodies_bytes_max: mib << 20, ..quick() };
        let server = start_with("127.0.0.1:0", options).await;
        let body = format!(r#"{{"model":"wide","input":"a","encoding_format":"{encoding}"}}"#);
        let wide = || server.post(OPENAI, &body);
        let refused = async {
            tokio::select! { one = wide() => one, other = wide() => other }
        };
        let refused = tokio::time::timeout(Duration::from_secs(5), refused).await;
        assert_eq!(refused.expect("it ends while they are made").error(), refusal, "{mib} {encoding}");
        server.until_live(0).await;
        assert_eq!(server.post(OPENAI, r#"{"model":"good","input":"a"}"#).await.status, 200, "given back");
    }
}
