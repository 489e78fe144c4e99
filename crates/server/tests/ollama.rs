//! `/api/*` over the wire.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::common::{Answer, start};
use exo_api::{AnswerFormat, Prompt, Reasoning, StageView};
use serde_json::{Value, json};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn chat_body(model: &str, extra: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"Hi"}}]{extra}}}"#)
}

/// The lines of a streamed answer.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/x-ndjson")),
        "{}",
        answer.body
    );
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Status and code of an error in this dialect's shape.
fn error(answer: &Answer) -> String {
    let body = answer.json();
    assert!(body["error"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    let param = body["param"].as_str().unwrap_or_default();
    format!("{} {} {param}", answer.status, body["code"].as_str().unwrap()).trim_end().to_owned()
}

#[tokio::test]
async fn a_stream_is_lines_and_the_last_one_counts() {
    let server = start().await;
    let streamed = lines(&server.post(CHAT, &chat_body("good", "")).await);
    let (last, said) = streamed.split_last().unwrap();
    let text: String = said.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "The answer.");
    assert!(said.iter().all(|line| line["done"] == false && line["message"]["role"] == "assistant"));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(5), &json!(2)));
    // 1 ms waiting, 1 ms reading, one more token at 50 a second.
    assert_eq!(
        (&last["load_duration"], &last["prompt_eval_duration"]),
        (&json!(1_000_000), &json!(1_000_000))
    );
    assert_eq!((&last["eval_duration"], &last["total_duration"]), (&json!(20_000_000), &json!(22_000_000)));
    let whole = server.post(CHAT, &chat_body("good", r#","stream":false"#)).await.json();
    assert_eq!((&whole["message"]["content"], &whole["done"]), (&json!("The answer."), &json!(true)));
    let generated = server.post(GENERATE, r#"{"model":"good","prompt":"Hi","stream":false}"#).await.json();
    assert_eq!((&generated["response"], &generated["message"]), (&json!("The answer."), &Value::Null));
}

#[tokio::test]
async fn thoughts_and_calls_have_their_places() {
    let server = start().await;
    let whole = server.post(CHAT, &chat_body("thinks-and-calls", r#","stream":false"#)).await.json();
    let message = &whole["message"];
    assert_eq!((&message["thinking"], &message["content"]), (&json!("Rome?"), &json!("I look.")));
    let call =
        json!({"id": "call_1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}});
    assert_eq!(message["tool_calls"], json!([call]));
    let streamed = lines(&server.post(CHAT, &chat_body("thinks-and-calls", "")).await);
    let calls: Vec<_> = streamed.iter().filter(|line| line["message"]["tool_calls"].is_array()).collect();
    assert_eq!(calls.len(), 1, "a call comes whole");
    assert_eq!(calls[0]["message"]["tool_calls"][0], call);
    let hidden = server.post(CHAT, &chat_body("thinks-and-calls", r#","stream":false,"think":false"#)).await;
    assert_eq!(hidden.json()["message"]["thinking"], Value::Null);
}

#[tokio::test]
async fn what_is_asked_for_reaches_the_node() {
    let server = start().await;
    let body = r#"{"model":"good","prompt":"Hi","raw":true,"stream":false,"format":"json","think":"high",
        "options":{"seed":-1,"num_predict":7,"num_ctx":2048,"stop":"x","repeat_penalty":1.5,"temperature":0,
        "num_gpu":1,"num_keep":5,"top_k":20}}"#;
    assert_eq!(server.post(GENERATE, body).await.status, 200);
    let asked = server.fake.last.lock().unwrap().clone().unwrap();
    assert_eq!(asked.prompts, [Prompt::Text("Hi".to_owned())]);
    assert_eq!((asked.max_tokens, asked.context_tokens_min), (Some(7), Some(2048)));
    assert_eq!((asked.format, asked.reasoning), (AnswerFormat::JsonObject, Reasoning::effort("high")));
    assert_eq!((asked.sampling.repetition_penalty, asked.sampling.top_k), (1.5, 20));
    assert_eq!(
        (asked.sampling.penalty_window, asked.sampling.typical_p),
        (64, 1.0),
        "as this dialect has it"
    );
    for (last_n, window, penalty) in [("33", 33, 1.2), ("-1", 0, 1.2), ("0", 0, 1.0)] {
        let options =
            format!(r#","options":{{"repeat_penalty":1.2,"typical_p":0.7,"repeat_last_n":{last_n}}}"#);
        server.post(CHAT, &chat_body("good", &options)).await;
        let asked = server.fake.last.lock().unwrap().clone().unwrap().sampling;
        let got = (asked.penalty_window, asked.repetition_penalty, asked.typical_p);
        assert_eq!(got, (window, penalty, 0.7), "{last_n}");
    }
    server.post(CHAT, &chat_body("good", r#","think":true"#)).await;
    assert_eq!(server.fake.last.lock().unwrap().clone().unwrap().reasoning, Reasoning::Required);
    let filled = r#"{"model":"good","prompt":"a","suffix":"b","stream":false}"#;
    assert_eq!(server.post(GENERATE, filled).await.status, 200);
    let asked = server.fake.last.lock().unwrap().clone().unwrap();
    assert_eq!(asked.prompts, [Prompt::Infill { prefix: "a".to_owned(), suffix: "b".into() }]);
    assert_eq!(asked.sampling.temperature, 0.8);
    let ready = lines(&server.post(GENERATE, r#"{"model":"good"}"#).await);
    assert_eq!(
        (ready.len(), &ready[0]["done_reason"], &ready[0]["response"]),
        (1, &json!("load"), &json!(""))
    );
    assert_eq!(server.fake.last.lock().unwrap().clone().unwrap().max_tokens, Some(1));
}

#[tokio::test]
async fn what_is_not_honoured_is_refused_by_name() {
    let server = start().await;
    for (path, extra, expected) in [
        (CHAT, r#","tempo":1"#, "400 unknown_parameter tempo"),
        (CHAT, r#","options":{"tempo":1}"#, "400 unknown_parameter options.tempo"),
        (CHAT, r#","options":{"typical_p":1.7}"#, "400 invalid_value options.typical_p"),
        (CHAT, r#","options":{"mirostat":1}"#, "400 unsupported_parameter options.mirostat"),
        (CHAT, r#","options":{"repeat_penalty":9000}"#, "400 invalid_value options.repeat_penalty"),
        (
            CHAT,
            r#","options":{"repeat_penalty":1.2,"repeat_last_n":-2}"#,
            "400 invalid_value options.repeat_last_n",
        ),
        (CHAT, r#","truncate":"some""#, "400 invalid_value truncate"),
        (CHAT, r#","think":"much""#, "400 invalid_value think"),
        (CHAT, r#","format":"xml""#, "400 invalid_value format"),
        (CHAT, r#","top_logprobs":2"#, "400 invalid_value top_logprobs"),
        (CHAT, r#","messages":[{"role":"tool","content":"Sun."}]"#, "400 invalid_value messages[0]"),
        (
            CHAT,
            r#","messages":[{"role":"user","content":"x","images":["aa"]}]"#,
            "400 unsupported_parameter messages[0].images",
        ),
        (GENERATE, r#","prompt":"x","template":"y""#, "400 unsupported_parameter template"),
        (GENERATE, r#","prompt":"x","raw":true,"system":"y""#, "400 invalid_value system"),
        (GENERATE, r#","keep_alive":0"#, "400 unsupported_parameter keep_alive"),
        (GENERATE, r#","keep_alive":"0s""#, "400 unsupported_parameter keep_alive"),
    ] {
        let answer = server.post(path, &format!(r#"{{"model":"good"{extra}}}"#)).await;
        assert_eq!(error(&answer), expected, "{path} {extra}");
    }
    assert_eq!(error(&server.post(CHAT, &chat_body("nothing", "")).await), "404 model_not_found model");
    assert_eq!(
        error(&server.post(CHAT, &chat_body("small", "")).await),
        "400 context_length_exceeded messages"
    );
    assert_eq!(error(&server.post(CHAT, "{").await), "400 invalid_json");
    let broken = lines(&server.post(CHAT, &chat_body("breaks", "")).await);
    assert_eq!(broken.last().unwrap()["code"], "stage_lost", "an error within a stream is its last line");
}

#[tokio::test]
async fn a_result_answers_the_call_of_its_tool() {
    let server = start().await;
    let body = r#"{"model":"good","stream":false,"messages":[
        {"role":"user","content":"Hi"},
        {"role":"assistant","content":"","tool_calls":[{"function":{"name":"a","arguments":{}}},{"function":{"name":"b","arguments":{"x":1}}}]},
        {"role":"tool",NAMED,"content":"2"},{"role":"tool","content":"1"}]}"#;
    // The older field, and both.
    for named in [r#""tool_name":"b""#, r#""name":"b""#, r#""name":"a","tool_name":"b""#] {
        let answer = server.post(CHAT, &body.replace("NAMED", named)).await;
        assert_eq!(answer.status, 200, "{named}: {}", answer.body);
        let asked = server.fake.last.lock().unwrap().clone().unwrap();
        let [Prompt::Chat { messages }] = asked.prompts.as_slice() else { panic!("no conversation") };
        let ids: Vec<_> = messages[1].tool_calls.iter().map(|call| Some(call.id.clone())).collect();
        assert_eq!([&messages[3].tool_call_id, &messages[2].tool_call_id], [&ids[0], &ids[1]], "{named}");
        assert_eq!(messages[3].name.as_deref(), Some("a"), "{named}");
    }
    let other = server.post(CHAT, &body.replace("NAMED", r#""name":"c""#)).await;
    assert_eq!(error(&other), "400 invalid_value messages[2]");
    let persons = chat_body("good", "").replace(r#""role":"user""#, r#""role":"user","name":"Ann""#);
    assert_eq!(error(&server.post(CHAT, &persons).await), "400 unknown_parameter messages[0].name");
}

#[tokio::test]
async fn calls_and_tools_that_were_openais_pass() {
    let server = start().await;
    // As Open WebUI sends a call back, and LiteLLM a tool on.
    let body = r#"{"model":"good","stream":false,"messages":[
        {"role":"user","content":"Hi"},
        {"role":"assistant","content":"","tool_calls":[{"index":0,"id":"call_1","function":{"name":"a","arguments":{}}}]},
        {"role":"tool","tool_call_id":"call_1","content":"1"}],
        "tools":[{"type":"function","cache_control":{"type":"ephemeral"},"function":{"name":"a","strict":true}}]}"#;
    let answer = server.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let asked = server.fake.last.lock().unwrap().clone().unwrap();
    let tools = asked.tools.unwrap();
    assert!(tools.definitions[0].is_strict);
    let shown = json!({"type": "function", "function": {"name": "a"}});
    assert_eq!(tools.definitions[0].definition, shown, "the model is not shown what is for us");
}

#[tokio::test]
async fn models_are_told_of_and_not_changed() {
    let server = start().await;
    let tags = server.get("/api/tags").await.json();
    assert_eq!(
        (&tags["models"][0]["name"], &tags["models"][1]["model"]),
        (&json!("good"), &json!("org/good"))
    );
    let placed = server.get("/api/ps").await.json();
    assert_eq!(
        (&placed["models"][0]["name"], &placed["models"][0]["context_length"]),
        (&json!("good"), &json!(4096))
    );
    let shown = server.post("/api/show", r#"{"model":"good"}"#).await.json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "insert"]));
    assert_eq!(shown["model_info"]["llama.context_length"], 4096);
    assert_eq!(shown["model_info"]["general.basename"], "good", "the name that editors display");
    assert_eq!(server.get("/api/version").await.json(), json!({"version": "0.12.11", "exo": "0"}));
    let pulled = lines(&server.post("/api/pull", r#"{"model":"good"}"#).await);
    assert_eq!(pulled, [json!({"status": "success"})]);
    let unknown = server.post("/api/pull", r#"{"model":"nothing"}"#).await;
    assert_eq!(error(&unknown), "404 model_not_found");
    assert!(unknown.body.contains("`exo pull`"), "{}", unknown.body);
    for (path, command) in
        [("/api/create", "exo models add"), ("/api/copy", "exo models add"), ("/api/push", "no registry")]
    {
        let answer = server.post(path, "{}").await;
        assert_eq!(error(&answer), "403 unsupported_operation", "{path}");
        assert!(answer.body.contains(command), "{}", answer.body);
    }
    let deleted = server.send("DELETE /api/delete", &[], "").await;
    assert!(deleted.status == 403 && deleted.body.contains("exo models remove"), "{}", deleted.body);
}

#[tokio::test]
async fn what_of_a_model_is_on_cards_is_said_and_never_more_than_all() {
    let server = start().await;
    // The model has ten bytes; its ends may both hold its embedding, and where only its file's size is known,
    // stages have less.
    for (devices, on_cards) in [
        ([("cpu", 4), ("cpu", 6)], 0),
        ([("cpu", 4), ("gpu0", 6)], 6),
        ([("gpu0", 8), ("gpu1", 8)], 10),
        ([("gpu0", 4), ("gpu1", 5)], 10),
    ] {
        let stage = |(device, weight_bytes): (&str, u64)| {
            let stage = json!({
                "node": "n", "node_name": "n", "device": device, "layers": {"start": 0, "end": 4},
                "embedding": true, "head": true, "weight_bytes": weight_bytes, "weight_bytes_held": 0,
                "kv_bytes": 0,
            });
            serde_json::from_value::<StageView>(stage).unwrap()
        };
        let stages = Vec::from(devices.map(stage));
        server.fake.view.send_modify(|view| view.instances[0].stages = stages);
        let placed = server.get("/api/ps").await.json();
        let placed = &placed["models"][0];
        assert_eq!((&placed["size"], &placed["size_vram"]), (&json!(10), &json!(on_cards)), "{devices:?}");
    }
    server.fake.view.send_modify(|view| view.instances[0].stages = Vec::new());
    let unplaced = server.get("/api/ps").await.json();
    assert_eq!(unplaced["models"][0]["size_vram"], 0, "nothing is held yet");
    let known = server.get("/api/tags").await.json();
    assert_eq!(known["models"][0].get("size_vram"), None);
}
