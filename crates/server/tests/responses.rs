//! `/v1/responses` over the wire, and what is kept of it.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::common::{Answer, Server, quick, start, start_with};
use exo_api::{Prompt, TokensQuestion};
use exo_server::{ApiKey, ServerOptions};
use serde_json::{Value, json};

async fn ask(server: &Server, model: &str, more: Value) -> Answer {
    let mut body = json!({"model": model, "input": "Hi"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/responses", &body.to_string()).await
}

/// The events of a streamed answer.
fn events(answer: &Answer) -> Vec<Value> {
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Roles and contents of the conversation that reached the node.
fn conversation(server: &Server) -> Vec<(String, String)> {
    let request = server.fake.last.lock().unwrap().clone().unwrap();
    let [Prompt::Chat { messages }] = request.prompts.as_slice() else { panic!("no conversation") };
    messages.iter().map(|message| (message.role.clone(), message.content.clone())).collect()
}

#[tokio::test]
async fn a_stream_and_the_whole_answer_have_the_same_items() {
    let server = start().await;
    let whole = ask(&server, "thinks-and-calls", json!({})).await.json();
    let kinds: Vec<&str> =
        whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let streamed = events(&ask(&server, "thinks-and-calls", json!({"stream": true})).await);
    let (first, last) = (&streamed[0], streamed.last().unwrap());
    assert_eq!((&first["type"], &last["type"]), (&json!("response.created"), &json!("response.completed")));
    assert_eq!(last["response"]["output"][2]["arguments"], whole["output"][2]["arguments"]);
    for (i, event) in streamed.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }
    let scored =
        ask(&server, "good", json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1})).await;
    assert_eq!(scored.json()["output"][0]["content"][0]["logprobs"][0]["token"], "The");
}

#[tokio::test]
async fn what_a_client_may_ask_to_include_passes_where_it_is_of_what_does_not_run_here() {
    let server = start().await;
    // All that OpenAI's package names.
    let include = json!([
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
    ]);
    let answer = ask(&server, "good", json!({"include": include})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test]
async fn a_response_goes_on_from_one_that_is_kept() {
    let server = start().await;
    let first =
        ask(&server, "good", json!({"instructions": "Be brief.", "metadata": {"a": "b"}})).await.json();
    assert_eq!((&first["metadata"], &first["store"]), (&json!({"a": "b"}), &json!(true)));
    let more = json!({"previous_response_id": first["id"], "input": "And?", "stream": true});
    let second = events(&ask(&server, "good", more).await);
    let said = |role: &str, content: &str| (role.to_owned(), content.to_owned());
    let expected = [said("user", "Hi"), said("assistant", "The answer."), said("user", "And?")];
    assert_eq!(conversation(&server), expected, "instructions are not those of before");
    let second = second.last().unwrap()["response"].clone();
    let more = json!({"previous_response_id": second["id"], "input": "So?", "store": false});
    let third = ask(&server, "good", more).await.json();
    assert_eq!(conversation(&server).len(), 5);
    let path = |id: &Value| format!("/v1/responses/{}", id.as_str().unwrap());
    assert_eq!(server.get(&path(&first["id"])).await.json(), first);
    assert_eq!(server.get(&path(&third["id"])).await.error(), "404 response_not_found response_id");
    let odd = server.get(&(path(&first["id"]) + "?starting_after=1")).await;
    assert_eq!(odd.error(), "400 unsupported_parameter starting_after");
    let unkept = server.get(&(path(&third["id"]) + "?stream=true")).await;
    assert_eq!(unkept.error(), "404 response_not_found response_id");
    assert_eq!(server.send(&format!("DELETE {}", path(&first["id"])), &[], "").await.json()["deleted"], true);
    let gone = ask(&server, "good", json!({"previous_response_id": first["id"]})).await;
    assert_eq!(gone.error(), "404 response_not_found previous_response_id");
    assert!(gone.body.contains("send the whole conversation as `input`"), "{}", gone.body);
}

#[tokio::test]
async fn a_response_that_was_not_streamed_has_its_events_as_well() {
    let server = start().await;
    let scored = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1});
    let kept = ask(&server, "good", scored).await.json();
    let path = format!("/v1/responses/{}?stream=true", kept["id"].as_str().unwrap());
    let told = events(&server.get(&path).await);
    for (i, event) in told.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }
    assert_eq!(told.last().unwrap()["response"], kept);
    let deltas: Vec<&Value> = told.iter().filter(|event| event["delta"].is_string()).collect();
    let texts: Vec<&str> = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(texts, ["The", " answer."]);
    assert_eq!(deltas[1]["logprobs"][0]["token"], " answer.");
}

#[tokio::test]
async fn the_prompt_that_is_counted_is_the_one_that_would_be_answered() {
    let server = start().await;
    let first = ask(&server, "thinks-and-calls", json!({})).await.json();
    let result = json!({"type": "function_call_output", "call_id": "call_1", "output": "Sun."});
    let more = json!({
        "model": "good",
        "instructions": "Be brief.",
        "previous_response_id": first["id"],
        "input": [result, {"type": "item_reference", "id": first["output"][1]["id"]}],
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
        "reasoning": {"effort": "none"},
    });
    let counted = server.post("/v1/responses/input_tokens", &more.to_string()).await;
    assert_eq!(counted.json(), json!({"object": "response.input_tokens", "input_tokens": 5}));
    assert_eq!(ask(&server, "good", more).await.status, 200);
    let request = server.fake.last.lock().unwrap().clone().unwrap();
    let question = server.fake.asked.lock().unwrap().clone().unwrap().question;
    let TokensQuestion::EncodeChat(chat) = question else { panic!("no conversation") };
    let [Prompt::Chat { messages }] = request.prompts.as_slice() else { panic!("no conversation") };
    assert_eq!(messages.len(), 5, "{messages:?}");
    assert_eq!((&chat.messages, &chat.tools), (messages, &request.tools));
    assert_eq!((chat.reasoning, chat.opens_answer), (request.reasoning, true));
}

#[tokio::test]
async fn a_count_is_refused_for_what_a_response_is_refused_for() {
    let server = start().await;
    for (more, expected) in [
        (json!({"input": []}), "400 invalid_value input"),
        (json!({"tempo": 1}), "400 unknown_parameter tempo"),
        (json!({"temperature": 9}), "400 invalid_value temperature"),
        (json!({"background": true}), "400 unsupported_parameter background"),
        (json!({"tools": [{"type": "web_search"}]}), "400 unsupported_parameter tools[0].type"),
        (json!({"previous_response_id": "resp_0"}), "404 response_not_found previous_response_id"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "404 response_not_found input[0].id"),
        (json!({"model": "nothing"}), "404 model_not_found model"),
    ] {
        assert_eq!(ask(&server, "good", more.clone()).await.error(), expected, "a response to {more}");
        let mut body = json!({"model": "good", "input": "Hi"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let counted = server.post("/v1/responses/input_tokens", &body.to_string()).await;
        assert_eq!(counted.error(), expected, "a count of {body}");
    }
    let unread = server.post("/v1/responses/input_tokens", "{").await;
    assert_eq!(unread.error(), "400 invalid_json");
}

#[tokio::test]
async fn items_of_a_response_that_is_kept_may_be_named_by_their_ids() {
    let server = start().await;
    let first = ask(&server, "thinks-and-calls", json!({})).await.json();
    let ids: Vec<&Value> = first["output"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    let mut input = vec![json!({"role": "user", "content": "Hi"})];
    input.extend(ids.iter().map(|id| json!({"type": "item_reference", "id": id})));
    input.push(json!({"type": "function_call_output", "call_id": "call_1", "output": "Sun."}));
    let second = ask(&server, "good", json!({"input": input})).await;
    assert_eq!(second.status, 200, "{}", second.body);
    let said = |role: &str, content: &str| (role.to_owned(), content.to_owned());
    assert_eq!(
        conversation(&server),
        [said("user", "Hi"), said("assistant", "I look."), said("tool", "Sun.")]
    );
    for id in ["msg_0a_0", "rs_5", "nonsense", ""] {
        let unknown = json!({"input": [{"type": "item_reference", "id": id}]});
        assert_eq!(ask(&server, "good", unknown).await.error(), "404 response_not_found input[0].id", "{id}");
    }
    let unnamed = ask(&server, "good", json!({"input": [{"type": "item_reference"}]})).await;
    assert_eq!(unnamed.error(), "400 missing_required_parameter input[0].id");
}

#[tokio::test]
async fn a_result_may_answer_a_call_that_is_kept() {
    let server = start().await;
    let first = ask(&server, "thinks-and-calls", json!({})).await.json();
    let result = |id: &str| json!([{"type": "function_call_output", "call_id": id, "output": "Sun."}]);
    let more = |id: &str| json!({"previous_response_id": first["id"], "input": result(id)});
    assert_eq!(ask(&server, "good", more("call_1")).await.status, 200);
    assert_eq!(ask(&server, "good", more("call_2")).await.error(), "400 invalid_value input[0].call_id");
}

#[tokio::test]
async fn what_is_kept_is_for_who_asked() {
    let keys = vec![ApiKey::from_key("k1"), ApiKey::from_key("k2")];
    let server = start_with("127.0.0.1:0", ServerOptions { api_keys: keys.into(), ..quick() }).await;
    let with = async |line: &str, key: &str, body: &str| {
        let key = format!("authorization: Bearer {key}");
        server.send(line, &["content-type: application/json", &key], body).await
    };
    let first = with("POST /v1/responses", "k1", r#"{"model":"good","input":"Hi"}"#).await.json();
    let line = format!("GET /v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(with(&line, "k2", "").await.error(), "404 response_not_found response_id");
    assert_eq!(with(&line, "k1", "").await.status, 200);
}

#[tokio::test]
async fn errors_say_what_this_dialect_calls_things() {
    let server = start().await;
    assert_eq!(ask(&server, "nothing", json!({})).await.error(), "404 model_not_found model");
    assert_eq!(ask(&server, "small", json!({})).await.error(), "400 context_length_exceeded input");
    let refused = [
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"include": ["everything"]}), "include"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
    ];
    for (more, param) in refused {
        assert_eq!(ask(&server, "good", more).await.error(), format!("400 unsupported_parameter {param}"));
    }
    let odd = ask(&server, "good", json!({"truncation": "some"})).await;
    assert_eq!(odd.error(), "400 invalid_value truncation");
    let broken = events(&ask(&server, "breaks", json!({"stream": true})).await);
    let last = broken.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("stage_lost"))
    );
    assert_eq!(last["response"]["output"], json!([]));
    assert_eq!(server.get("/v1/responses/%FF").await.json()["error"]["code"], "bad_path");
    let never = events(&ask(&server, "never-loads", json!({"stream": true})).await);
    let last = never.last().unwrap();
    assert_eq!(
        (&never[0]["type"], &last["type"], &last["response"]["error"]["code"]),
        (&json!("response.created"), &json!("response.failed"), &json!("unavailable"))
    );
    assert_eq!(
        server.get(&format!("/v1/responses/{}", last["response"]["id"].as_str().unwrap())).await.status,
        404
    );
}

#[tokio::test]
async fn tools_that_run_at_their_vendor_are_refused_or_left_out_and_named() {
    let function = r#"{"type":"function","name":"f","parameters":{"type":"object"}}"#;
    let tools = format!(r#""tools":[{{"type":"web_search"}},{function}]"#);
    let responses = format!(r#"{{"model":"good","input":"Hi",{tools}}}"#);
    let server = start().await;
    let refused = server.post("/v1/responses", &responses).await;
    assert_eq!(refused.error(), "400 unsupported_parameter tools[0].type");
    assert!(refused.body.contains("leave_out_hosted_tools"), "{}", refused.body);

    let server = start_with("127.0.0.1:0", ServerOptions { leave_out_hosted_tools: true, ..quick() }).await;
    assert_eq!(server.post("/v1/responses", &responses).await.status, 200);
    let asked = server.fake.last.lock().unwrap().clone().unwrap();
    assert_eq!(
        (asked.left_out_tools, asked.tools.unwrap().definitions.len()),
        (vec!["web_search".to_owned()], 1)
    );
    let messages = r#"{"model":"good","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],
        "tools":[{"type":"web_search_20250305","name":"web_search"}]}"#;
    assert_eq!(server.post("/v1/messages", messages).await.status, 200);
    let asked = server.fake.last.lock().unwrap().clone().unwrap();
    assert_eq!(
        (asked.left_out_tools.as_slice(), asked.tools),
        (&["web_search_20250305".to_owned()][..], None)
    );
}
