//! Every endpoint is served, and errors have one shape.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{self, SECRET, start};
use exo_api::endpoints::{Access, ENDPOINTS, SuccessBody};
use exo_types::NodeId;
use serde_json::{Value, json};

/// A path of `endpoint` with something that exists in it.
fn path(template: &str) -> String {
    template
        .replace("{model}", "org/good")
        .replace("{instance}", "i1a")
        .replace("/exo/v1/series", "/exo/v1/series?instance=i1a")
        .replace("{pull}", "7")
        .replace("{device}", "cuda-0")
        .replace("{node}", &NodeId([1; 32]).to_full())
}

fn body(request: Option<&str>) -> String {
    match request {
        Some("ChatRequest") => common::chat_body("good", ""),
        Some("ResponsesRequest") => r#"{"model":"good","input":"Hi"}"#.to_owned(),
        Some("MessagesRequest") => common::messages_body("good", ""),
        Some("CountTokensRequest") => {
            r#"{"model":"good","messages":[{"role":"user","content":"Hi"}]}"#.to_owned()
        }
        Some("OllamaChatRequest") => {
            r#"{"model":"good","stream":false,"messages":[{"role":"user","content":"Hi"}]}"#.to_owned()
        }
        Some("OllamaGenerateRequest") => r#"{"model":"good","stream":false,"prompt":"Hi"}"#.to_owned(),
        Some("OllamaNamedRequest") => r#"{"model":"good","stream":false}"#.to_owned(),
        Some("EmbeddingsRequest" | "OllamaEmbedRequest") => r#"{"model":"good","input":"x"}"#.to_owned(),
        Some("OllamaEmbeddingsRequest") => r#"{"model":"good","prompt":"x"}"#.to_owned(),
        Some("TokenizeRequest") => r#"{"content":"Hi"}"#.to_owned(),
        Some("DetokenizeRequest") => r#"{"tokens":[1,2]}"#.to_owned(),
        Some("ApplyTemplateRequest") => r#"{"messages":[{"role":"user","content":"Hi"}]}"#.to_owned(),
        Some("CompletionRequest") => r#"{"model":"good","prompt":"x"}"#.to_owned(),
        Some("PlaceRequest") => r#"{"model":"good","slots":2}"#.to_owned(),
        Some("InviteRequest") => "{}".to_owned(),
        Some("JoinRequest") => r#"{"code":"123-456-789"}"#.to_owned(),
        Some("PlanQuery") => r#"{"model":"good","streams":4}"#.to_owned(),
        Some("ReplanRequest") => r#"{"dry_run":true}"#.to_owned(),
        Some("JoinWindowRequest") => r#"{"minutes":5}"#.to_owned(),
        Some("RoleRequest") => r#"{"role":"admin"}"#.to_owned(),
        Some("DrainRequest") => r#"{"drain":"lasting"}"#.to_owned(),
        Some("SessionRequest") => format!(r#"{{"secret":"{SECRET}"}}"#),
        Some("AdmitRequest") => format!(r#"{{"node":"{}"}}"#, NodeId([1; 32]).to_full()),
        Some("SilenceRequest") => r#"{"alert":"node_lost","for_s":60}"#.to_owned(),
        Some("LogLevelRequest") => r#"{"target":"exo_server","level":"trace"}"#.to_owned(),
        Some("FitsQuery") => r#"{"reference":"qwen3-8b"}"#.to_owned(),
        Some("PullRequest") => r#"{"reference":"hf.co/org/good","ranges_max":4}"#.to_owned(),
        Some("HubSearchRequest") => r#"{"text":"good"}"#.to_owned(),
        Some("UpdateQuery") => r#"{"models":["good"],"token":"hf_good"}"#.to_owned(),
        Some("HubShowRequest") => r#"{"reference":"hf.co/org/good"}"#.to_owned(),
        Some("AddModelRequest") => r#"{"path":"/models/good.gguf"}"#.to_owned(),
        Some("HubLoginRequest") => r#"{"token":"hf_good"}"#.to_owned(),
        Some("KeepModelRequest") => r#"{"model":"good","kept":true}"#.to_owned(),
        Some("ModelCheckRequest") => r#"{"model":"good"}"#.to_owned(),
        Some(other) => panic!("no example of {other}"),
        None => String::new(),
    }
}

#[tokio::test]
async fn every_described_endpoint_is_served_with_the_access_it_describes() {
    let server = start().await;
    *server.fake.telemetry.lock().unwrap() = common::telemetry();
    let kept = server.post("/v1/responses", &body(Some("ResponsesRequest"))).await.json();
    let kept = kept["id"].as_str().unwrap();
    let schemas: Value = serde_json::from_str(&exo_api::openapi::to_json()).unwrap();
    // Streams, and what needs something that this test does not have, have tests of their own.
    let elsewhere =
        ["events", "resume_request", "stop_request", "give_code", "end_session", "cancel_request"];
    for endpoint in ENDPOINTS.iter().filter(|e| !elsewhere.contains(&e.operation)) {
        let line =
            format!("{} {}", endpoint.method.as_str(), path(endpoint.path)).replace("{response}", kept);
        let body = body(endpoint.request);
        if matches!(endpoint.access, Access::Admin | Access::Viewer | Access::Known) {
            let open = server.send(&line, &["content-type: application/json"], &body).await;
            assert_eq!(open.error(), "401 missing_local_secret", "{line}");
        }
        let answer = server.admin(&line, &body).await;
        let expected = if endpoint.answer == SuccessBody::Nothing { 204 } else { 200 };
        assert_eq!(answer.status, expected, "{line}: {}", answer.body);
        let (all, schema) = match endpoint.answer {
            SuccessBody::One(schema)
            | SuccessBody::OneOrLines(schema)
            | SuccessBody::OneOrStream(schema, _) => (vec![answer.json()], schema),
            SuccessBody::Many(schema) => (answer.json().as_array().unwrap().clone(), schema),
            SuccessBody::Stream(_) | SuccessBody::Nothing | SuccessBody::Json | SuccessBody::Exposition => {
                continue;
            }
        };
        assert!(!all.is_empty(), "{line}: nothing to compare");
        // Field by field as described: generated clients rely on it.
        let whole = &schemas["components"]["schemas"][schema];
        for one in &all {
            for (name, value) in one.as_object().unwrap() {
                let described = whole["properties"].get(name);
                let described =
                    described.unwrap_or_else(|| panic!("{line}: {name} is not described in {schema}"));
                assert!(is_of(value, described, &schemas), "{line}: {name}: {value} is not {described}");
            }
            assert!(is_of(one, whole, &schemas), "{line}: a field that {schema} requires is not in {one}");
        }
    }
}

#[test]
fn what_is_not_as_described_is_noticed() {
    let document = json!({"Kind": {"type": "string", "enum": ["a", "b"]}});
    let kind = json!({"$ref": "#/Kind"});
    let described = json!({"type": "object", "required": ["kind"], "properties": {
        "kind": kind, "count": {"type": ["integer", "null"]}, "more": {"type": "array", "items": kind},
    }});
    for good in [json!({"kind": "a"}), json!({"kind": "b", "count": null, "more": ["a"]})] {
        assert!(is_of(&good, &described, &document), "{good}");
    }
    for bad in [
        json!({}),
        json!({"kind": "c"}),
        json!({"kind": null}),
        json!({"kind": "a", "count": "1"}),
        json!({"kind": "a", "count": 1.5}),
        json!({"kind": "a", "more": ["a", "c"]}),
        json!({"kind": "a", "more": {}}),
        json!([{"kind": "a"}]),
    ] {
        assert!(!is_of(&bad, &described, &document), "{bad}");
    }
}

/// Whether a value, with all that it holds, is of the type that is described.
fn is_of(value: &Value, described: &Value, document: &Value) -> bool {
    let part = |part: &Value| is_of(value, part, document);
    if let Some(path) = described["$ref"].as_str() {
        return part(
            document
                .pointer(path.trim_start_matches('#'))
                .expect("a reference leads to a schema of the document"),
        );
    }
    if let Some(choices) = described["oneOf"].as_array() {
        return choices.iter().any(part);
    }
    if let Some(parts) = described["allOf"].as_array() {
        return parts.iter().all(part);
    }
    if described["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return false;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |one: &Value| one == kind || (one == "number" && kind == "integer");
    let is_named = match &described["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is_kind),
        one => is_kind(one),
    };
    let holds = |value: &Value, described: Option<&Value>| {
        described.is_none_or(|described| is_of(value, described, document))
    };
    is_named
        && match value {
            Value::Array(items) => items.iter().all(|item| holds(item, described.get("items"))),
            Value::Object(fields) => {
                let mut required = described["required"].as_array().into_iter().flatten();
                required.all(|name| name.as_str().is_some_and(|name| fields.contains_key(name)))
                    && fields.iter().all(|(name, field)| holds(field, described["properties"].get(name)))
            }
            _ => true,
        }
}

#[tokio::test]
async fn other_methods_are_refused_by_name() {
    let server = start().await;
    for route in ENDPOINTS.iter().map(|endpoint| endpoint.path).collect::<BTreeSet<_>>() {
        let takes = |method: &str| ENDPOINTS.iter().any(|e| e.path == route && e.method.as_str() == method);
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"].into_iter().filter(|&method| !takes(method)) {
            let line = format!("{method} {}", path(route));
            let answer = server.admin(&line, "").await;
            let body = answer.json();
            // Ollama's shape has it beside the message.
            let code = if route.starts_with("/api/") { &body["code"] } else { &body["error"]["code"] };
            assert_eq!((answer.status, code.as_str()), (405, Some("method_not_allowed")), "{line}");
        }
    }
    assert_eq!(server.get("/v1/chat/completions").await.error(), "405 method_not_allowed");
    assert_eq!(server.get("/v1/embeddings").await.error(), "405 method_not_allowed");
    assert_eq!(server.post("/v1/nothing", "{}").await.error(), "404 no_such_route");
    let compact = server.post("/v1/responses/compact", "{}").await;
    assert_eq!(compact.error(), "405 method_not_allowed");
    assert!(compact.body.contains("truncation"), "{}", compact.body);
    for slip in ["/chat/completions", "/v1/v1/chat/completions"] {
        let answer = server.post(slip, "{}").await;
        assert_eq!(answer.error(), "404 no_such_route");
        assert!(answer.body.contains("did you mean /v1/chat/completions? The base URL"), "{}", answer.body);
    }
    for (slip, meant) in [
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/Chat", "/v1/chat/completions"),
        ("/v1/messages/", "/v1/messages"),
        ("/api/chat/", "/api/chat"),
        ("/tokenize/", "/tokenize"),
    ] {
        let answer = server.post(slip, "{}").await;
        assert_eq!(answer.status, 404, "{slip}");
        assert!(answer.body.contains(&format!("did you mean {meant}?\"")), "{slip}: {}", answer.body);
    }
}

#[tokio::test]
async fn a_whole_number_may_have_a_point_in_every_dialect() {
    let server = start().await;
    let chat = r#"{"model":"good","messages":[{"role":"user","content":"Hi"}]"#;
    for (path, body) in [
        (
            "/v1/chat/completions",
            format!(r#"{chat},"n":1.0,"top_k":40.0,"seed":7.0,"max_tokens":-1.0,"min_tokens":0.0}}"#),
        ),
        (
            "/v1/completions",
            r#"{"model":"good","prompt":[1.0,2.0],"n":2.0,"max_tokens":4.0,"best_of":1.0}"#.to_owned(),
        ),
        (
            "/v1/responses",
            r#"{"model":"good","input":"Hi","max_output_tokens":4.0,"top_logprobs":0.0}"#.to_owned(),
        ),
        ("/v1/messages", format!(r#"{chat},"max_tokens":4.0,"top_k":5.0}}"#)),
        (
            "/api/chat",
            format!(
                r#"{chat},"stream":false,"options":{{"num_predict":-1.0,"top_k":5.0,"seed":1.0,"mirostat":0.0}}}}"#
            ),
        ),
        ("/v1/embeddings", r#"{"model":"good","input":[1.0,2.0],"dimensions":2.0}"#.to_owned()),
        ("/detokenize", r#"{"tokens":[1.0,2.0]}"#.to_owned()),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let half = server.post("/v1/chat/completions", &format!(r#"{chat},"n":1.5}}"#)).await;
    assert_eq!(half.error(), "400 invalid_value n");
    assert!(half.body.contains("not 1.5"), "{}", half.body);
}

#[tokio::test]
async fn a_part_of_an_address_that_is_no_text_is_refused_like_all_else() {
    let server = start().await;
    let has_part = |path: &str| path.contains('{');
    for endpoint in ENDPOINTS.iter().filter(|e| has_part(e.path)) {
        let parts = endpoint.path.split('/').map(|part| if has_part(part) { "%FF" } else { part });
        let line = format!("{} {}", endpoint.method.as_str(), parts.collect::<Vec<_>>().join("/"));
        let answer = server.admin(&line, &body(endpoint.request)).await;
        assert_eq!(answer.error(), "400 bad_path", "{line}: {}", answer.body);
    }
}

#[tokio::test]
async fn a_model_that_is_read_for_long_is_added_though_nobody_waits_any_more() {
    let server = start().await;
    let said = async |what: &str| {
        for _ in 0..400 {
            if server.fake.calls.lock().unwrap().iter().any(|call| call == what) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{what}: {:?}", server.fake.calls.lock().unwrap());
    };
    tokio::select! {
        answer = server.admin("POST /exo/v1/models", r#"{"path":"/models/slow.gguf"}"#) => panic!("{}", answer.body),
        () = said("add /models/slow.gguf") => {}
    }
    // The client has gone.
    server.fake.slow.notify_one();
    said("added /models/slow.gguf").await;
}

#[tokio::test]
async fn administration_reaches_the_node() {
    let server = start().await;
    let node = NodeId([1; 32]).to_full();
    let place = r#"{"model":"good","context_tokens":512,"nodes_min":2}"#;
    assert_eq!(server.admin("POST /exo/v1/instances", place).await.json()["id"], "i1a");
    server.admin("DELETE /exo/v1/instances/i1a", "").await;
    let plan = server.admin("POST /exo/v1/plan", r#"{"model":"good","pins":["a/cpu=3"]}"#).await;
    assert_eq!(plan.json()["gap_percent"], 0.0);
    server.admin("POST /exo/v1/members", &format!(r#"{{"node":"{node}"}}"#)).await;
    server.admin(&format!("POST /exo/v1/members/{node}/devices/cuda-0/retry"), "").await;
    server.admin("POST /exo/v1/join_window", r#"{"minutes":5}"#).await;
    server.admin("DELETE /exo/v1/join_window", "").await;
    server.admin(&format!("DELETE /exo/v1/join_requests/{node}"), "").await;
    server.admin(&format!("DELETE /exo/v1/members/{node}"), "").await;
    server.admin("POST /exo/v1/models", r#"{"path":"/m.gguf"}"#).await;
    server.admin("DELETE /exo/v1/models/org/good", "").await;
    let pull = r#"{"reference":"hf.co/org/good","token":"hf_secret"}"#;
    assert_eq!(server.admin("POST /exo/v1/pulls", pull).await.json()["state"], "fetching");
    server.admin("POST /exo/v1/pulls/7/pause", "").await;
    server.admin("POST /exo/v1/pulls/7/resume", "{}").await;
    assert_eq!(server.admin("POST /exo/v1/pulls/8/pause", "").await.error(), "404 not_found download");
    server.admin("DELETE /exo/v1/pulls/7", "").await;
    server.admin("POST /exo/v1/shutdown", "{}").await;
    insta::assert_snapshot!(server.fake.calls.lock().unwrap().join("\n"), @r#"
    place PlaceRequest { model: "good", context_tokens: Some(512), slots: None, cache_tokens: None, kv: None, nodes_min: Some(2), objective: None, streams: None, pins: [], exclude: [], replace: false }
    unload i1a
    plan good ["a/cpu=3"]
    admit aeaqcaib
    retry cuda-0 of aeaqcaib
    open the window for Some(5)
    shut the window
    refuse aeaqcaib
    remove aeaqcaib
    add /m.gguf
    forget org/good
    pull PullRequest { reference: "hf.co/org/good", ranges_max: None, rate_max_bytes_per_s: None, endpoint: None, token: Some(HubToken(***)), layers_only: false, to_run: false, update_of: None, commit: None }
    pause 7
    resume 7
    pause 8
    cancel 7
    shutdown
    "#);
}

#[tokio::test]
async fn administration_errors_name_what_is_wrong() {
    let server = start().await;
    assert_eq!(server.admin("GET /exo/v1/instances/i2", "").await.error(), "404 not_found instance");
    assert_eq!(server.admin("DELETE /exo/v1/instances/i2", "").await.error(), "404 not_found instance");
    assert_eq!(server.admin("DELETE /exo/v1/instances/x", "").await.error(), "400 invalid_value instance");
    assert_eq!(server.admin("DELETE /exo/v1/members/x", "").await.error(), "400 invalid_value node");
    let huge = server.admin("POST /exo/v1/instances", r#"{"model":"huge"}"#).await;
    assert_eq!(huge.error(), "507 insufficient_memory model");
    assert!(huge.body.contains("a lacks 5 bytes, b lacks 3"), "{}", huge.body);
    let slip = server.admin("POST /exo/v1/instances", r#"{"model":"good","slot":1}"#).await;
    assert_eq!(slip.error(), "400 invalid_value");
    assert!(slip.body.contains("slot"), "{}", slip.body);
    assert_eq!(
        server.admin("POST /exo/v1/members", r#"{"node":"me"}"#).await.error(),
        "400 invalid_value node"
    );
}

/// Names of models have slashes and colons, which clients write as they are or as `%2F` and `%3A`.
#[tokio::test]
async fn a_model_is_found_by_every_name_it_may_have_and_shown_to_nobody_without_the_secret() {
    let server = start().await;
    for (path, name) in [("good", "good"), ("org/good", "org/good"), ("org%2Fgood", "org/good")] {
        let answer = server.admin(&format!("GET /exo/v1/models/{path}"), "").await;
        assert_eq!((answer.status, answer.json()["name"].as_str()), (200, Some(name)), "{path}");
    }
    for path in ["hf.co/org/other:Q8_0@main", "hf.co%2Forg%2Fother%3AQ8_0%40main"] {
        let answer = server.admin(&format!("GET /exo/v1/models/{path}"), "").await;
        assert_eq!(answer.error(), "404 model_not_found model", "{path}");
        assert!(answer.body.contains("hf.co/org/other:Q8_0@main"), "{}", answer.body);
    }
    let wrong = ["authorization: Bearer not-the-secret"];
    for path in ["good", "org%2Fgood", "other"] {
        let line = format!("GET /exo/v1/models/{path}");
        assert_eq!(server.send(&line, &[], "").await.error(), "401 missing_local_secret", "{path}");
        assert_eq!(server.send(&line, &wrong, "").await.error(), "401 invalid_local_secret", "{path}");
    }
}

#[tokio::test]
async fn requests_that_cannot_run_say_why() {
    let server = start().await;
    assert_eq!(server.chat("nothing", "").await.error(), "404 model_not_found model");
    assert_eq!(server.chat("nothing", r#","stream":true"#).await.error(), "404 model_not_found model");
    assert_eq!(server.get("/v1/models/nothing").await.error(), "404 model_not_found model");
    assert_eq!(server.chat("small", "").await.error(), "400 context_length_exceeded messages");
    assert_eq!(server.complete("small", "").await.error(), "400 context_length_exceeded prompt");
    let tools = server.chat("good", r#","tools":[{"type":"custom","custom":{"name":"x"}}]"#).await;
    assert_eq!(tools.error(), "400 unsupported_parameter tools[0].type");
    let search = server.chat("good", r#","web_search_options":{}"#).await;
    assert_eq!(search.error(), "400 unsupported_parameter web_search_options");
    assert_eq!(server.complete("good", r#","max_tokens":0"#).await.error(), "400 invalid_value max_tokens");
    assert_eq!(server.complete("good", r#","tempo":1"#).await.error(), "400 unknown_parameter tempo");
}

#[tokio::test]
async fn several_prompts_are_answered_in_their_order() {
    let server = start().await;
    let body = r#"{"model":"good","prompt":["Once","Twice"],"n":2,"echo":true}"#;
    let answer = server.post("/v1/completions", body).await.json();
    let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|c| c["text"].clone()).collect();
    let expected = ["Once", "Once", "Twice", "Twice"].map(|prompt| format!("{prompt}The answer."));
    assert_eq!(texts, expected);
    assert_eq!(answer["choices"][3]["index"], 3);
}

#[tokio::test]
async fn answers_carry_their_request_id_and_are_not_cached() {
    let server = start().await;
    let answer = server.chat("good", "").await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    assert_eq!(answer.json()["id"], format!("chatcmpl-{id}"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn the_doctor_is_asked_of_all_or_of_one_machine_and_of_nothing_else() {
    let server = start().await;
    let ask = async |query: &str| server.admin(&format!("GET /exo/v1/doctor{query}"), "").await;
    for query in ["", "?of=cluster", "?of=self"] {
        assert_eq!(ask(query).await.status, 200, "{query}");
    }
    let asked = server.fake.calls.lock().unwrap().clone();
    assert_eq!(asked, ["doctor Cluster", "doctor Cluster", "doctor OwnNode"]);
    let unknown = ask("?of=me").await;
    assert_eq!(unknown.error(), "400 invalid_value");
    assert!(unknown.body.contains("`cluster`") && unknown.body.contains("`self`"), "{}", unknown.body);
    assert_eq!(ask("?off=self").await.error(), "400 invalid_value");
}
