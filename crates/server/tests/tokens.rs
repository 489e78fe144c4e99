//! `/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info` over the wire.

use crate::common::{quick, start, start_with};
use exo_server::{ApiKey, ServerOptions};
use serde_json::json;

#[tokio::test]
async fn each_body_is_answered_in_the_shape_of_its_server() {
    let server = start().await;
    let llama = server.post("/tokenize", r#"{"content":"Hi"}"#).await.json();
    assert_eq!(llama, json!({"tokens": [1, 2, 3, 4, 5]}));
    let pieces = server.post("/tokenize", r#"{"content":"Hi","with_pieces":true}"#).await.json();
    assert_eq!(pieces["tokens"][0], json!({"id": 1, "piece": "a"}));
    assert_eq!(pieces["tokens"][4], json!({"id": 5, "piece": [0xe2]}), "bytes that are no text alone");
    let vllm = r#"{"model":"good","prompt":"Hi","return_token_strs":true}"#;
    let vllm = server.post("/tokenize", vllm).await.json();
    assert_eq!((&vllm["count"], &vllm["max_model_len"]), (&json!(5), &json!(4096)));
    assert_eq!(vllm["token_strs"], json!(["a", "b", "c", "d", "\u{fffd}"]));
    let text = server.post("/detokenize", r#"{"tokens":[1]}"#).await.json();
    assert_eq!(text, json!({"content": "text", "prompt": "text"}));
    let chat = r#"{"messages":[{"role":"user","content":"Hi"}]}"#;
    assert_eq!(server.post("/apply-template", chat).await.json(), json!({"prompt": "text"}));
    for path in ["/tokenizer_info", "/tokenizer_info?model=good"] {
        assert_eq!(server.get(path).await.json(), json!({"eos_token": "<end>"}), "{path}");
    }
    assert_eq!(server.get("/tokenizer_info?model=nothing").await.error(), "404 model_not_found model");
    assert_eq!(server.get("/tokenizer_info?modle=good").await.error(), "400 invalid_value");
}

#[tokio::test]
async fn what_does_not_go_together_is_refused_by_name() {
    let server = start().await;
    for (path, body, error) in [
        ("/tokenize", r#"{}"#, "400 missing_required_parameter content"),
        ("/tokenize", r#"{"content":"a","prompt":"b"}"#, "400 invalid_value content"),
        ("/tokenize", r#"{"content":"a","add_special_tokens":true}"#, "400 invalid_value add_special_tokens"),
        ("/tokenize", r#"{"prompt":"a","tools":[]}"#, "400 invalid_value tools"),
        ("/tokenize", r#"{"prompt":"a","tempo":1}"#, "400 unknown_parameter tempo"),
        ("/tokenize", r#"{"prompt":"a","model":"nothing"}"#, "404 model_not_found model"),
        ("/tokenize", r#"{"messages":[]}"#, "400 invalid_value messages"),
        ("/detokenize", r#"{"tokens":[1,-1]}"#, "400 invalid_value tokens[1]"),
        ("/apply-template", r#"{"messages":"Hi"}"#, "400 invalid_value messages"),
        (
            "/apply-template",
            r#"{"messages":[{"role":"user","content":"Hi"}],"chat_template":"x"}"#,
            "400 unsupported_parameter chat_template",
        ),
    ] {
        assert_eq!(server.post(path, body).await.error(), error, "{path} {body}");
    }
}

#[tokio::test]
async fn questions_to_a_tokenizer_need_the_key_as_well() {
    let options = ServerOptions { api_keys: vec![ApiKey::from_key("k")].into(), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        assert_eq!(server.post(path, "{}").await.error(), "401 missing_api_key", "{path}");
    }
    assert_eq!(server.get("/tokenizer_info").await.error(), "401 missing_api_key");
}

#[tokio::test]
async fn who_asks_a_tokenizer_takes_turns_under_its_own_name() {
    let api_keys = vec![ApiKey::from_key("anna"), ApiKey::from_key("ben")].into();
    let options = ServerOptions { api_keys, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let count = r#"{"model":"good","messages":[{"role":"user","content":"Hi"}]}"#;
    let asks = [
        ("POST /tokenize", r#"{"content":"Hi"}"#),
        ("POST /detokenize", r#"{"tokens":[1]}"#),
        ("POST /apply-template", r#"{"messages":[{"role":"user","content":"Hi"}]}"#),
        ("GET /tokenizer_info", ""),
        ("POST /api/show", r#"{"model":"good"}"#),
        ("POST /v1/messages/count_tokens", count),
        ("POST /v1/responses/input_tokens", r#"{"model":"good","input":"Hi"}"#),
    ];
    for (line, body) in asks {
        for key in ["anna", "ben"] {
            let key = format!("authorization: Bearer {key}");
            let answer = server.send(line, &["content-type: application/json", &key], body).await;
            assert_eq!(answer.status, 200, "{line}: {}", answer.body);
        }
    }
    let askers = server.fake.askers.lock().unwrap().clone();
    let [anna, ben] = [askers[0], askers[1]];
    assert_ne!(anna, ben);
    assert_eq!(askers, [anna, ben].repeat(asks.len()));
}
