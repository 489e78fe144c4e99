//! `/v1/messages` over the wire.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::common::{Answer, events, messages_body, quick, start, start_with};
use exo_api::{AnswerFormat, Prompt, Reasoning};
use exo_server::{ApiKey, ServerOptions};
use serde_json::{Value, json};

const STREAM: &str = r#","stream":true"#;
const THINKS: &str = r#","thinking":{"type":"adaptive"}"#;

/// Status and class of an error in this dialect's shape.
fn error(answer: &Answer) -> String {
    let body = answer.json();
    let id = body["request_id"].as_str().unwrap();
    assert_eq!((&body["type"], answer.header("request-id")), (&json!("error"), Some(id)), "{}", answer.body);
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    format!(
        "{} {} {}",
        answer.status,
        body["error"]["type"].as_str().unwrap(),
        body["error"]["code"].as_str().unwrap()
    )
}

/// The events, with ids made plain.
fn plain(answer: &Answer) -> String {
    let id = answer.header("request-id").unwrap();
    events(&Answer { body: answer.body.replace(id, "ID"), headers: String::new(), status: 200 })
}

#[tokio::test]
async fn a_stream_has_the_dialects_events_in_their_order() {
    let server = start().await;
    let answer = server.messages("thinks-and-calls", &format!("{STREAM}{THINKS}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    insta::assert_snapshot!(plain(&answer));
    assert!(!answer.body.contains("[DONE]"));
}

#[tokio::test]
async fn the_whole_message_has_the_same_blocks() {
    let server = start().await;
    let answer = server.messages("thinks-and-calls", THINKS).await;
    let mut body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    body["id"] = json!("ID");
    body["exo"]["request"] = json!("ID");
    insta::assert_snapshot!(serde_json::to_string_pretty(&body).unwrap());
    let stopped = server.messages("stops", "").await.json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    let counted = r#"{"model":"good","messages":[{"role":"user","content":"Hi"}]}"#;
    let counted = server.post("/v1/messages/count_tokens?beta=true", counted).await;
    assert_eq!(counted.json(), json!({"input_tokens": 5}));
}

#[tokio::test]
async fn whoever_waits_gets_pings_and_then_the_answer() {
    let server = start().await;
    let answer = server.messages("loading", STREAM).await;
    let (waiting, rest) = answer.body.split_once("event: message_start").unwrap();
    assert!(waiting.contains(": loading 37 %\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"), "{waiting}");
    assert!(rest.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), "{rest}");
}

#[tokio::test]
async fn errors_have_the_dialects_shape_on_every_way() {
    let server = start().await;
    assert_eq!(error(&server.messages("nothing", "").await), "404 not_found_error model_not_found");
    assert_eq!(error(&server.messages("nothing", STREAM).await), "404 not_found_error model_not_found");
    assert_eq!(error(&server.messages("breaks", "").await), "503 overloaded_error stage_lost");
    assert_eq!(error(&server.messages("panics", "").await), "500 api_error internal_error");
    assert_eq!(error(&server.get("/v1/messages").await), "405 invalid_request_error method_not_allowed");
    assert_eq!(error(&server.post("/v1/messages", "{").await), "400 invalid_request_error invalid_json");
    assert_eq!(error(&server.post("/v1/messages/batches", "{}").await), "404 not_found_error no_such_route");
    let long = server.messages("small", "").await;
    assert_eq!(error(&long), "400 invalid_request_error context_length_exceeded");
    assert!(long.body.contains("prompt is too long: 9000 tokens > 4095 maximum"), "{}", long.body);
    assert_eq!(long.json()["error"].get("details"), None);
    let thread = server.messages("good", r#","thread":{"type":"create"}"#).await;
    assert_eq!(error(&thread), "400 invalid_request_error unsupported_parameter");
    let details = json!({"error_code": "thread_unsupported_request"});
    assert_eq!(thread.json()["error"]["details"], details, "runners of tools go on without one");
    let late = server.messages("breaks", STREAM).await;
    let (_, failed) = late.body.split_once("event: error\ndata: ").unwrap();
    let failed: Value = serde_json::from_str(failed.trim()).unwrap();
    assert_eq!((&failed["type"], &failed["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
    let small = ServerOptions { body_bytes_max: 64, ..quick() };
    let server = start_with("127.0.0.1:0", small).await;
    assert_eq!(error(&server.messages("good", "").await), "413 request_too_large body_too_large");
}

#[tokio::test]
async fn who_names_the_dialects_version_is_told_in_its_shape_that_there_is_no_such_route() {
    let server = start().await;
    let headers = ["content-type: application/json", "anthropic-version: 2023-06-01"];
    for line in ["POST /v1/files", "GET /v1/skills", "POST /v1/complete", "POST /v1/chat/completions/"] {
        let answer = server.send(line, &headers, "{}").await;
        assert_eq!(error(&answer), "404 not_found_error no_such_route", "{line}");
    }
    assert_eq!(server.post("/v1/files", "{}").await.error(), "404 no_such_route");
    // What is another dialect's alone stays in its shape.
    for (path, param) in [("/v1/chat/completions", "model"), ("/v1/responses", "model")] {
        let answer = server.send(&format!("POST {path}"), &headers, "{}").await;
        assert_eq!(answer.error(), format!("400 missing_required_parameter {param}"), "{path}");
    }
    let kept = server.send("GET /v1/responses/resp_0", &headers, "").await;
    assert_eq!(kept.error(), "404 response_not_found response_id");
}

#[tokio::test]
async fn the_key_may_come_in_the_dialects_header() {
    let options = ServerOptions { api_keys: vec![ApiKey::from_key("k1")].into(), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let body = messages_body("good", "");
    let with = async |key: &str| {
        server.send("POST /v1/messages", &["content-type: application/json", key], &body).await
    };
    assert_eq!(error(&with("x-none: 1").await), "401 authentication_error missing_api_key");
    assert_eq!(error(&with("x-api-key: k2").await), "401 authentication_error invalid_api_key");
    assert_eq!(with("x-api-key: k1").await.status, 200);
    assert_eq!(with("authorization: Bearer k1").await.status, 200);
    assert_eq!(with("authorization: Bearer other\r\nx-api-key: k1").await.status, 200, "each is tried");
    assert_eq!(server.send("GET /v1/models", &["x-api-key: k1"], "").await.json()["object"], "list");
}

#[tokio::test]
async fn models_have_the_dialects_shape_for_who_names_its_version() {
    let server = start().await;
    let version = ["anthropic-version: 2023-06-01"];
    let get = async |path: &str| server.send(&format!("GET {path}"), &version, "").await;
    insta::assert_snapshot!(get("/v1/models").await.body, @r#"{"data":[{"type":"model","id":"good","display_name":"good","created_at":"1970-01-01T00:00:05Z","lifecycle":"active","max_input_tokens":4096,"max_tokens":4096},{"type":"model","id":"org/good","display_name":"org/good","created_at":"1970-01-01T00:00:05Z","lifecycle":"active","max_input_tokens":4096,"max_tokens":4096}],"has_more":false,"first_id":"good","last_id":"org/good"}"#);
    let page = get("/v1/models?limit=1").await.json();
    assert_eq!((&page["has_more"], &page["last_id"]), (&json!(true), &json!("good")));
    let next = get("/v1/models?limit=1&after_id=good").await.json();
    assert_eq!((&next["has_more"], &next["first_id"]), (&json!(false), &json!("org/good")));
    assert_eq!(get("/v1/models/org/good").await.json()["type"], "model");
    assert_eq!(error(&get("/v1/models/none").await), "404 not_found_error model_not_found");
    assert_eq!(error(&get("/v1/models?limit=0").await), "400 invalid_request_error invalid_value");
}

#[tokio::test]
async fn what_is_asked_for_reaches_the_node() {
    let options = ServerOptions { queue_wait_max: Duration::from_secs(3), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let extra = r#","system":"Be brief.","stop_sequences":["END"],"temperature":0.5,"thinking":{"type":"disabled"},
        "tools":[{"name":"now","input_schema":{"type":"object"}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true}"#;
    assert_eq!(server.messages("good", extra).await.status, 200);
    let request = server.fake.last.lock().unwrap().clone().unwrap();
    let [Prompt::Chat { messages }] = request.prompts.as_slice() else { panic!("{request:?}") };
    let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user"]);
    assert_eq!((request.max_tokens, request.stop.as_slice()), (Some(9), ["END".to_owned()].as_slice()));
    assert_eq!((request.reasoning, request.sampling.temperature), (Reasoning::Off, 0.5));
    let tools = request.tools.unwrap();
    assert!(tools.is_required && !tools.is_parallel, "{tools:?}");
    assert_eq!(request.queue_wait_max, Duration::from_secs(3));
}

#[tokio::test]
async fn the_older_name_of_the_format_is_honoured_and_not_both() {
    let server = start().await;
    let schema = json!({"type": "integer"});
    let format = json!({"type": "json_schema", "schema": schema});
    let answer = server.messages("good", &format!(r#","output_format":{format}"#)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let request = server.fake.last.lock().unwrap().clone().unwrap();
    assert_eq!(request.format, AnswerFormat::JsonSchema(schema));
    let both = format!(r#","output_format":{format},"output_config":{{"format":{format}}}"#);
    let bare = r#","output_format":{"type":"json_schema"}"#;
    for (extra, names) in [(both.as_str(), "older name"), (bare, "`output_format.schema`")] {
        let refused = server.messages("good", extra).await;
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(refused.status == 400 && message.contains(names), "{message}");
    }
}
