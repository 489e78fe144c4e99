//! Messages and Responses through the door of a node, whole and streamed, and by the vendors' own packages.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::Read;
use std::process::Command;
use std::time::Duration;

use crate::support::{self, Answer, Node, Start, Zeros, finish, must_refuse, skip, stdout, tools_node, with};
use serde_json::{Value, json};

fn weather() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false})
}

fn message(more: Value) -> Value {
    let body = json!({"model": "tools", "max_tokens": 120, "seed": 5,
        "messages": [{"role": "user", "content": "What is the weather in Rome?"}]});
    with(body, more)
}

fn response(more: Value) -> Value {
    let body = json!({"model": "tools", "max_output_tokens": 120, "seed": 5, "input": "What is the weather in Rome?"});
    with(body, more)
}

/// The events of a streamed answer.
fn events(node: &Node, path: &str, body: Value) -> Vec<Value> {
    let body = with(body, json!({"stream": true}));
    let mut text = String::new();
    node.send("POST", path, Some(body.to_string())).read_to_string(&mut text).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    assert!(!events.is_empty(), "{text}");
    events
}

fn check_call(name: &Value, input: &Value) {
    assert_eq!(name, "get_weather");
    assert!(["Rome", "Oslo"].contains(&input["city"].as_str().unwrap()), "{input}");
    assert!((1..=9).contains(&input["days"].as_u64().unwrap()), "{input}");
}

fn ok(answer: Answer) -> Value {
    answer.good().json()
}

#[test]
fn messages_call_a_tool_and_take_its_result_back() {
    let (node, _folder) = tools_node();
    let tools = json!({"tools": [{"name": "get_weather", "strict": true, "input_schema": weather()}],
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": true}});
    let first = ok(node.post("/v1/messages", &message(tools.clone())));
    let call = &first["content"][0];
    check_call(&call["name"], &call["input"]);
    assert_eq!((&call["type"], &first["stop_reason"]), (&json!("tool_use"), &json!("tool_use")));
    let streamed = events(&node, "/v1/messages", message(tools.clone()));
    let pieces = streamed.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    let input: Value = serde_json::from_str(&pieces.collect::<String>()).unwrap();
    assert_eq!(&input, &call["input"], "the same seed, the same call");
    assert_eq!(streamed.last().unwrap()["type"], "message_stop");

    let messages = json!([
        {"role": "user", "content": "What is the weather in Rome?"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "Sun.", "is_error": false}]},
    ]);
    let mut again = with(message(tools), json!({"messages": messages, "max_tokens": 8, "temperature": 0}));
    again.as_object_mut().unwrap().remove("tool_choice");
    let second = ok(node.post("/v1/messages", &again));
    let usage = &second["usage"];
    assert!(
        usage["cache_read_input_tokens"].as_u64().unwrap() > 0,
        "what was read is not read again: {usage}"
    );
    for own in ["max_tokens", "seed", "temperature"] {
        again.as_object_mut().unwrap().remove(own);
    }
    let counted = ok(node.post("/v1/messages/count_tokens", &again))["input_tokens"].as_u64().unwrap();
    let taken = ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert_eq!(counted, taken.iter().sum::<u64>(), "{usage}");
}

/// As Mistral's: turns of user and assistant alternate, and ids of calls have nine signs.
const STRICT_TEMPLATE: &str = r#"{%- if messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% set messages = messages[1:] %}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for m in messages %}
{%- if not (m.role == 'tool' or m.tool_calls) %}
{%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate user/assistant') }}{% endif %}
{%- set ns.index = ns.index + 1 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
{{ m.content }}<|im_end|>
{% elif m.tool_calls %}<|im_start|>assistant
<tool_call>
{%- for call in m.tool_calls %}{%- if call.id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}{% endfor %}
</tool_call><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{%- if loop.last and tools %}
{{ tools | tojson }}{% endif %}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

#[test]
fn turns_as_agents_send_them_pass_on_a_template_that_is_strict_about_them() {
    let (node, _folder) = support::tools_node_with(STRICT_TEMPLATE);
    let function = json!({"name": "get_weather", "parameters": weather()});
    let call = json!({"id": "call_3f5b2e1c9d8a", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\", \"days\": 1}"}});
    // Two of the system, two of the user, a call of another server, its result, and text behind it.
    let turns = json!([
        {"role": "system", "content": "Be kind."}, {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Here is"}, {"type": "text", "text": "a file."}]},
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_3f5b2e1c9d8a", "content": "Sun."},
        {"role": "user", "content": "Mind the time."},
    ]);
    let tools = json!([{"type": "function", "function": function}]);
    let chat = json!({"model": "tools", "messages": turns, "tools": tools, "max_tokens": 4});
    ok(node.post("/v1/chat/completions", &chat));
    let shown = ok(node.post("/apply-template", &json!({"model": "tools", "messages": turns})));
    let shown = shown["prompt"].as_str().unwrap();
    for said in ["Be kind.\n\nBe brief.", "Here is\na file.\n\nRead it.", "Sun.\n\nMind the time."] {
        assert!(shown.contains(said), "{shown}");
    }
    let input = json!([
        {"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Here is a file."},
        {"role": "user", "content": "Read it."},
        {"type": "function_call", "call_id": "call_3f5b2e1c9d8a", "name": "get_weather", "arguments": "{\"city\": \"Rome\"}"},
        {"type": "function_call_output", "call_id": "call_3f5b2e1c9d8a", "output": "Sun."},
        {"role": "user", "content": "Mind the time."},
    ]);
    ok(node.post(
        "/v1/responses",
        &json!({"model": "tools", "instructions": "Be brief.", "input": input, "max_output_tokens": 16}),
    ));
    let messages = json!([
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "get_weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01A09q90qw90lq917835lq9", "content": "Sun."},
            {"type": "text", "text": "Mind the time."}]},
    ]);
    ok(node.post(
        "/v1/messages",
        &json!({"model": "tools", "system": "Be brief.", "messages": messages, "max_tokens": 4}),
    ));
    // Its own client keeps no ids of calls.
    let named = json!({"function": {"name": "get_weather", "arguments": {"city": "Rome"}}});
    let messages = json!([{"role": "user", "content": "Go."}, {"role": "assistant", "content": "", "tool_calls": [named]},
        {"role": "tool", "tool_name": "get_weather", "content": "Sun."}]);
    ok(node.post(
        "/api/chat",
        &json!({"model": "tools", "messages": messages, "stream": false, "options": {"num_predict": 4}}),
    ));
}

#[test]
fn a_call_that_was_cut_comes_back_as_the_text_that_it_is() {
    let (node, _folder) = tools_node();
    let cut = |id: &str| {
        json!({"role": "assistant", "content": "I look.", "tool_calls": [{"id": id, "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\": \"Ro"}}]})
    };
    let (go, on) = (json!({"role": "user", "content": "Go."}), json!({"role": "user", "content": "Go on."}));
    let shown =
        ok(node.post("/apply-template", &json!({"model": "tools", "messages": [go, cut("call_1"), on]})));
    let shown = shown["prompt"].as_str().unwrap();
    assert!(shown.contains("I look.\nget_weather {\"city\": \"Ro<|im_end|>"), "{shown}");
    // A client that said what was wrong with it goes on as well.
    let result = json!({"role": "tool", "tool_call_id": "call_1", "content": "No JSON."});
    let body = json!({"model": "tools", "messages": [go, cut("call_1"), result]});
    let shown = ok(node.post("/apply-template", &body));
    let shown = shown["prompt"].as_str().unwrap();
    assert!(shown.contains("get_weather {\"city\": \"Ro") && shown.contains("No JSON."), "{shown}");
    let garbage = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "Rome"}}]});
    let refused =
        node.post("/v1/chat/completions", &json!({"model": "tools", "messages": [go, garbage, on]}));
    assert!(refused.status == 400 && refused.body.contains("is not a JSON object"), "{}", refused.body);
}

#[test]
fn what_an_answer_said_can_be_counted() {
    let (node, _folder) = tools_node();
    let turns = json!([{"role": "user", "content": "Go."}, {"role": "assistant", "content": "I went."}]);
    let count = |turns: &Value| {
        let counted =
            ok(node.post("/v1/messages/count_tokens", &json!({"model": "tools", "messages": turns})));
        counted["input_tokens"].as_u64().unwrap()
    };
    assert!(count(&turns) > count(&json!([{"role": "user", "content": "Go."}])));
    let refused = node.post("/v1/messages", &message(json!({"messages": turns})));
    assert!(refused.status == 400 && refused.body.contains("prefill"), "{}", refused.body);
}

#[test]
fn numbers_of_a_call_that_comes_back_keep_their_spelling_in_every_dialect() {
    let (node, _folder) = tools_node();
    let odd = r#"{"x": 1e5, "y": [0.1234567890123456789, 1.50], "z": 123456789012345678901234567890}"#;
    let plain = r#"{"x": 100000.0, "y": [0.12345678901234568, 1.5], "z": 1.2345678901234568e+29}"#;
    let post = |path: &str, body: String| {
        let mut text = String::new();
        node.send("POST", path, Some(body)).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{text}");
        serde_json::from_str::<Value>(body).unwrap()
    };
    let tokens = |arguments: &str| {
        let call =
            json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = json!([{"role": "user", "content": "Go."}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Gone."}]);
        let shown = ok(node.post("/apply-template", &json!({"model": "tools", "messages": messages})));
        assert!(shown["prompt"].as_str().unwrap().contains(arguments), "{shown}");
        let chat = ok(node
            .post("/v1/chat/completions", &json!({"model": "tools", "max_tokens": 1, "messages": messages})));
        let input = [("call_id", json!("call_1")), ("name", json!("f")), ("arguments", json!(arguments))];
        let mut call = json!({"type": "function_call"});
        call.as_object_mut().unwrap().extend(input.map(|(name, value)| (name.to_owned(), value)));
        let input = json!([{"role": "user", "content": "Go."}, call,
            {"type": "function_call_output", "call_id": "call_1", "output": "Gone."}]);
        let response =
            ok(node
                .post("/v1/responses", &json!({"model": "tools", "max_output_tokens": 16, "input": input})));
        let blocks = r#"{"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "f", "input": ARGUMENTS}]}"#;
        let result = r#"{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "Gone."}]}"#;
        let messages = format!(
            r#"{{"model": "tools", "messages": [{{"role": "user", "content": "Go."}}, {blocks}, {result}]}}"#
        );
        let messages = post("/v1/messages/count_tokens", messages.replace("ARGUMENTS", arguments));
        let calls = r#"{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": ARGUMENTS}}]}"#;
        let result = r#"{"role": "tool", "tool_name": "f", "content": "Gone."}"#;
        let head = r#""model": "tools", "stream": false, "options": {"num_predict": 1}"#;
        let ollama =
            format!(r#"{{{head}, "messages": [{{"role": "user", "content": "Go."}}, {calls}, {result}]}}"#);
        let ollama = post("/api/chat", ollama.replace("ARGUMENTS", arguments));
        [
            &chat["usage"]["prompt_tokens"],
            &response["usage"]["input_tokens"],
            &messages["input_tokens"],
            &ollama["prompt_eval_count"],
        ]
        .map(|count| count.as_u64().unwrap())
    };
    let (odd, plain) = (tokens(odd), tokens(plain));
    assert_eq!(odd, [odd[0]; 4]);
    assert_eq!(plain, [plain[0]; 4]);
    assert_ne!(odd, plain, "the two have as many tokens, which shows nothing");
}

#[test]
fn messages_stop_where_they_are_told_and_say_what_is_too_long() {
    let (node, _folder) = tools_node();
    let greedy = ok(node.post("/v1/messages", &message(json!({"temperature": 0, "max_tokens": 12}))));
    let text = greedy["content"][0]["text"].as_str().unwrap();
    let stop = text.chars().rev().find(|c| c.is_alphanumeric()).unwrap().to_string();
    let body = message(json!({"temperature": 0, "max_tokens": 12, "stop_sequences": [stop]}));
    let stopped = ok(node.post("/v1/messages", &body));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let long = json!([{"role": "user", "content": "word ".repeat(20_000)}]);
    let refused = node.post("/v1/messages", &message(json!({"messages": long})));
    let error = refused.json();
    assert_eq!((refused.status, &error["error"]["type"]), (400, &json!("invalid_request_error")));
    assert!(error["error"]["message"].as_str().unwrap().starts_with("prompt is too long: "), "{error}");
    let format = json!({"format": {"type": "json_schema", "schema": {"type": "array", "items": {"not": {"type": "null"}}}}});
    let refused = node.post("/v1/messages", &message(json!({"output_config": format})));
    assert!(
        refused.body.contains("output_config.format.schema") && refused.body.contains("#/items/not"),
        "{}",
        refused.body
    );
}

#[test]
fn responses_call_a_tool_and_go_on_from_what_is_kept() {
    let (node, _folder) = tools_node();
    let tools = json!({"tools": [{"type": "function", "name": "get_weather", "strict": true, "parameters": weather()}],
        "parallel_tool_calls": false});
    let required = with(tools.clone(), json!({"tool_choice": "required"}));
    let first = ok(node.post("/v1/responses", &response(required.clone())));
    let call = &first["output"][0];
    let input = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    check_call(&call["name"], &input);
    let streamed = events(&node, "/v1/responses", response(required));
    let (created, completed) = (&streamed[0], streamed.last().unwrap());
    assert_eq!(
        (&created["type"], &completed["type"]),
        (&json!("response.created"), &json!("response.completed"))
    );
    assert_eq!(
        completed["response"]["output"][0]["arguments"], call["arguments"],
        "the same seed, the same call"
    );
    for (i, event) in streamed.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }

    let output = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "Sun."}]);
    let more = json!({"previous_response_id": first["id"], "input": output, "max_output_tokens": 8, "temperature": 0});
    let second = ok(node.post("/v1/responses", &with(response(tools), more)));
    assert_eq!(
        (&second["status"], &second["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let cached = &second["usage"]["input_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().unwrap() > 0, "{second}");
    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(node.get(&path)["output"], second["output"]);
    assert_eq!(ok(node.call("DELETE", &path, None))["deleted"], true);
    let gone = node.call("GET", &path, None);
    assert_eq!((gone.status, gone.code().as_str()), (404, "response_not_found"));
    let stranger = response(json!({"previous_response_id": "resp_none"}));
    assert_eq!(node.post("/v1/responses", &stranger).status, 404);
}

#[test]
fn responses_keep_to_a_schema() {
    let (node, _folder) = tools_node();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
        "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true}});
    let body =
        response(json!({"text": format, "include": ["message.output_text.logprobs"], "top_logprobs": 2}));
    let answer = ok(node.post("/v1/responses", &body));
    let part = &answer["output"][0]["content"][0];
    let value: Value = serde_json::from_str(part["text"].as_str().unwrap()).unwrap();
    assert!(value["n"].as_u64().is_some_and(|n| n < 10), "{value}");
    assert_eq!(part["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 2, "{part}");
}

#[test]
fn tokens_are_those_that_a_request_has() {
    let (node, _folder) = tools_node();
    let chat = json!({"messages": [{"role": "user", "content": "What is <|im_end|>?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": weather()}}]});
    let unnamed = node.post("/tokenize", &chat);
    assert_eq!(
        (unnamed.status, unnamed.code().as_str()),
        (400, "missing_required_parameter"),
        "{}",
        unnamed.body
    );
    let named = with(chat.clone(), json!({"model": "tools"}));
    let counted = ok(node.post("/tokenize", &named));
    let asked = with(named.clone(), json!({"max_tokens": 1, "tool_choice": "auto"}));
    let usage = ok(node.post("/v1/chat/completions", &asked))["usage"]["prompt_tokens"].clone();
    assert_eq!(
        (&counted["count"], counted["tokens"].as_array().unwrap().len()),
        (&usage, usage.as_u64().unwrap() as usize)
    );
    assert!(counted["max_model_len"].as_u64().unwrap() >= 64, "{counted}");

    // The model is placed now, and the only one.
    let rendered = ok(node.post("/apply-template", &chat))["prompt"].clone();
    let text = rendered.as_str().unwrap();
    assert!(text.contains("get_weather") && text.ends_with("<|im_start|>assistant\n"), "{text}");
    let back = ok(node.post("/detokenize", &json!({"tokens": counted["tokens"]})));
    assert_eq!((&back["content"], &back["prompt"]), (&rendered, &rendered));
    let closed = ok(node.post("/apply-template", &with(chat, json!({"add_generation_prompt": false}))));
    assert!(!closed["prompt"].as_str().unwrap().ends_with("assistant\n"), "{closed}");

    let plain = ok(node.post("/tokenize", &json!({"content": "Once <|im_end|>", "with_pieces": true})));
    let pieces = plain["tokens"].as_array().unwrap().iter().map(|token| token["piece"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), "Once <|im_end|>");
    assert_eq!(
        plain["tokens"].as_array().unwrap().last().unwrap()["piece"],
        "<|im_end|>",
        "a token of its own"
    );
    let as_text = json!({"content": "Once <|im_end|>", "parse_special": false});
    let as_text = ok(node.post("/tokenize", &as_text));
    assert!(as_text["tokens"].as_array().unwrap().len() > plain["tokens"].as_array().unwrap().len());
    let outside = node.post("/detokenize", &json!({"tokens": [4_000_000_000_u32]}));
    assert_eq!(
        (outside.status, outside.json()["error"]["param"].as_str()),
        (400, Some("tokens")),
        "{}",
        outside.body
    );
}

#[test]
fn several_prompts_are_answered_as_each_alone() {
    let node = Node::alone();
    let ask = |more: Value| {
        let body = json!({"model": "demo", "max_tokens": 6, "temperature": 0});
        node.post("/v1/completions", &with(body, more))
    };
    let prompts = ["The fox", "A banana is", "Once"];
    let alone = prompts.map(|prompt| ok(ask(json!({"prompt": prompt}))));
    let together = ok(ask(json!({"prompt": prompts, "n": 2})));
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let expected: Vec<String> =
        alone.iter().flat_map(|answer| [texts(answer), texts(answer)].concat()).collect();
    assert_eq!(texts(&together), expected);
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens(&together), alone.iter().map(tokens).sum::<u64>());
    let refused = ask(json!({"prompt": "The fox", "suffix": "end."}));
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].as_str()),
        (400, Some("suffix")),
        "{}",
        refused.body
    );
}

#[test]
fn ollamas_chat_calls_a_tool_and_takes_its_result_back() {
    let (node, _folder) = tools_node();
    let question = json!({"role": "user", "content": "What is the weather in Rome?"});
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": weather()}}]);
    let body = json!({"model": "tools", "stream": false, "messages": [question], "format": weather(),
        "options": {"seed": 5, "num_predict": 60}});
    let first = ok(node.post("/api/chat", &body));
    let value: Value = serde_json::from_str(first["message"]["content"].as_str().unwrap()).unwrap();
    check_call(&json!("get_weather"), &value);
    assert!(
        first["eval_count"].as_u64().unwrap() > 0 && first["total_duration"].as_u64().unwrap() > 0,
        "{first}"
    );
    let call = json!({"function": {"name": "get_weather", "arguments": value}});
    let messages = json!([question, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "Sun."}]);
    let again = json!({"model": "tools", "stream": false, "messages": messages, "tools": tools,
        "options": {"temperature": 0, "num_predict": 8}});
    assert_eq!(ok(node.post("/api/chat", &again))["done_reason"], "length");

    let shown = ok(node.post("/api/show", &json!({"model": "tools"})));
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(node.get("/api/ps")["models"][0]["name"], "tools", "the requests placed it");
    let larger = json!({"model": "tools", "prompt": "Hi", "options": {"num_ctx": 1_000_000}});
    let refused = node.post("/api/generate", &larger);
    assert_eq!(
        (refused.status, refused.json()["param"].as_str()),
        (400, Some("options.num_ctx")),
        "{}",
        refused.body
    );
}

#[test]
fn a_model_is_placed_with_the_context_that_is_asked_for_and_a_larger_one_is_an_error_with_the_command() {
    let env = vec![("EXO_CONTEXT_TOKENS", "64".into())];
    let node = Node::start(Start { env, ..Start::alone("contexts", &[]) });
    let ask = |tokens: u64| {
        let options = json!({"num_ctx": tokens, "num_predict": 1});
        let body = json!({"model": "demo", "prompt": "Hi", "stream": false, "options": options});
        node.post("/api/generate", &body)
    };
    let made_for = node.get("/exo/v1/models")[0]["context_tokens_max"].as_u64().unwrap();
    let refused = ask(made_for + 1);
    assert!(refused.status == 400 && refused.body.contains("is made for"), "{}", refused.body);
    ok(ask(128));
    assert_eq!(node.get("/exo/v1/instances")[0]["context_tokens"], 128);
    ok(ask(32));
    let refused = ask(129);
    let command = "`exo place demo --context 129 --replace`";
    assert!(refused.status == 400 && refused.body.contains(command), "{}", refused.body);
    assert_eq!(refused.json()["param"], "options.num_ctx");
}

#[test]
fn a_second_address_of_this_machine_serves_the_same() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let start = |address: &str| Start {
        env: vec![("EXO_OLLAMA_LISTEN", address.into())],
        ..Start::alone("second", &[])
    };
    let mut node = Node::start(start(&free.to_string()));
    let version = node.get("/api/version");
    node.address = free.to_string();
    assert_eq!(node.get("/api/version"), version);
    let folder = tempfile::tempdir().unwrap();
    let mut far =
        support::exo(&["start", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--data-dir"]);
    must_refuse(
        finish(far.arg(folder.path()).env("EXO_OLLAMA_LISTEN", "0.0.0.0:0"), Duration::from_secs(20)),
        "loopback",
    );
}

/// A line as the dialect's documentation prints it, but for the port and the model.
#[test]
fn curl_lines_work_as_they_are_printed() {
    let test = "curl_lines_work_as_they_are_printed";
    if Command::new("curl").arg("--version").output().is_err() {
        return skip(test, "there is no curl");
    }
    let node = Node::alone();
    let curl = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*"]).args(args);
        stdout(&finish(&mut command, Duration::from_secs(60)))
    };
    let url = |path: &str| format!("http://{}{path}", node.address);
    let streamed = curl(&[&url("/api/generate"), "-d", r#"{"model": "demo", "prompt": "Hello!"}"#]);
    assert!(streamed.trim_end().lines().last().unwrap().contains(r#""done":true"#), "{streamed}");
    let every_option = r#"{"model": "demo:latest", "prompt": "Why is the sky blue?", "stream": false, "options": {
        "num_keep": 5, "seed": 42, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 0.7,
        "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5,
        "frequency_penalty": 1.0, "penalize_newline": true, "stop": ["\n", "user:"], "numa": false, "num_ctx": 256,
        "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "use_mmap": true, "num_thread": 8}}"#;
    let answered = curl(&[&url("/api/generate"), "-d", every_option]);
    assert!(answered.contains(r#""done":true"#), "{answered}");
    let embed = r#"{"model": "demo", "input": ["Why is the sky blue?", "Why is the grass green?"], "pooling": "mean"}"#;
    assert!(curl(&[&url("/api/embed"), "-d", embed]).contains(r#""embeddings":[["#));
    let chat = r#"{"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "stream": false}"#;
    assert!(curl(&[&url("/api/chat"), "-d", chat]).contains(r#""role":"assistant""#));
    assert!(curl(&[&url("/api/show"), "-d", r#"{"model": "demo"}"#]).contains("model_info"));
    for path in ["/api/tags", "/api/ps"] {
        assert!(curl(&[&url(path)]).contains(r#""name":"demo""#), "{path}");
    }
    let whole = |path: &str, body: &str| {
        let answer = curl(&[&url(path), "-d", body]);
        assert!(answer.contains(r#""done":true"#), "{path} {body}: {answer}");
        serde_json::from_str::<Value>(answer.lines().last().unwrap()).unwrap()
    };
    let history = r#"{"model": "demo", "messages": [{"role": "user", "content": "why is the sky blue?"},
        {"role": "assistant", "content": "due to rayleigh scattering."}, {"role": "user", "content": "how is that different?"}]}"#;
    whole("/api/chat", history);
    let tools = r#"{"model": "demo", "messages": [{"role": "user", "content": "What is the weather today in Paris?"}], "stream": false,
        "tools": [{"type": "function", "function": {"name": "get_current_weather", "description": "Get the current weather",
        "parameters": {"type": "object", "properties": {"location": {"type": "string", "description": "The location"},
        "format": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["location", "format"]}}}]}"#;
    whole("/api/chat", tools);
    let schema = r#"{"model": "demo", "prompt": "Ollama is 22 years old and is busy. Respond using JSON", "stream": false,
        "format": {"type": "object", "properties": {"age": {"type": "integer"}, "available": {"type": "boolean"}},
        "required": ["age", "available"]}, "options": {"temperature": 0, "num_predict": 200}}"#;
    whole("/api/generate", schema);
    let json_mode = r#"{"model": "demo", "prompt": "What color is the sky? Respond using JSON", "format": "json", "stream": false,
        "options": {"num_predict": 50}}"#;
    whole("/api/generate", json_mode);
    let raw =
        r#"{"model": "demo", "prompt": "[INST] why is the sky blue? [/INST]", "raw": true, "stream": false}"#;
    whole("/api/generate", raw);
    let seeded =
        r#"{"model": "demo", "prompt": "Why is the sky blue?", "stream": false, "options": {"seed": 123}}"#;
    assert_eq!(whole("/api/generate", seeded)["response"], whole("/api/generate", seeded)["response"]);
    assert_eq!(whole("/api/generate", r#"{"model": "demo"}"#)["done_reason"], "load");
    assert_eq!(whole("/api/chat", r#"{"model": "demo", "messages": []}"#)["done_reason"], "load");
    assert!(curl(&[&url("/api/pull"), "-d", r#"{"model": "demo"}"#]).contains(r#""status":"success""#));
    assert!(curl(&[&url("/api/version")]).contains(r#""version":"#));
    refuses_what_changes_models(&|method, path, body| curl(&["-X", method, &url(path), "-d", body]));
}

/// With our command, and so is what asks for one to be unloaded.
fn refuses_what_changes_models(curl: &dyn Fn(&str, &str, &str) -> String) {
    for (method, path, body, command) in [
        ("DELETE", "/api/delete", r#"{"model": "demo"}"#, "exo models remove"),
        ("POST", "/api/copy", r#"{"source": "demo", "destination": "demo-backup"}"#, "exo models add"),
        (
            "POST",
            "/api/create",
            r#"{"model": "mario", "from": "demo", "system": "You are Mario."}"#,
            "exo models add",
        ),
        ("POST", "/api/generate", r#"{"model": "demo", "keep_alive": 0}"#, "exo unload"),
        ("POST", "/api/chat", r#"{"model": "demo", "messages": [], "keep_alive": 0}"#, "exo unload"),
    ] {
        let refused = curl(method, path, body);
        assert!(refused.contains(command), "{path}: {refused}");
    }
}

#[test]
fn whole_oldest_turns_go_where_that_is_asked_for_and_the_answer_says_how_many() {
    let (node, _folder) = tools_node();
    // Each turn has some 60 tokens, more than the model's 512 together; the second has a call and its result.
    let filler = "word ".repeat(40);
    let user = |text: String| json!({"role": "user", "content": text});
    let said = |text: String| json!({"role": "assistant", "content": text});
    let named = json!({"function": {"name": "f", "arguments": {"x": 1}}});
    let mut turns = vec![
        json!({"role": "system", "content": "Be brief."}),
        user(format!("first {filler}")),
        said("one".to_owned()),
    ];
    turns.extend([
        user(format!("second {filler}")),
        json!({"role": "assistant", "content": "", "tool_calls": [named]}),
        json!({"role": "tool", "tool_name": "f", "content": filler}),
        said("two".to_owned()),
    ]);
    let mut input = vec![
        json!({"role": "system", "content": "Be brief."}),
        user(format!("first {filler}")),
        said("one".to_owned()),
    ];
    input.extend([
        user(format!("second {filler}")),
        json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"}),
        json!({"type": "function_call_output", "call_id": "c1", "output": filler}),
        said("two".to_owned()),
    ]);
    for number in 3..12 {
        for all in [&mut turns, &mut input] {
            all.extend([user(format!("{number} {filler}")), said("more".to_owned())]);
        }
    }
    turns.push(user("last".to_owned()));
    input.push(user("last".to_owned()));

    let ollama = json!({"model": "tools", "messages": turns, "stream": false, "options": {"num_predict": 4}});
    let response = json!({"model": "tools", "input": input, "max_output_tokens": 16});
    for (path, body, asks) in [
        ("/api/chat", ollama, json!({"truncate": true})),
        ("/v1/responses", response, json!({"truncation": "auto"})),
    ] {
        let refused = node.post(path, &body);
        assert!(
            refused.status == 400 && refused.body.contains("context_length_exceeded"),
            "{path}: {}",
            refused.body
        );
        let answer = ok(node.post(path, &with(body, asks)));
        let left_out = answer["exo"]["left_out_messages"].as_u64().unwrap();
        // The first turn has two messages, the second four: whole turns are gone, behind these two by twos.
        assert!(left_out >= 6 && left_out.is_multiple_of(2) && left_out < 24, "{path}: {answer}");
        let tokens = [&answer["prompt_eval_count"], &answer["usage"]["input_tokens"]];
        let tokens = tokens.into_iter().find_map(Value::as_u64).unwrap();
        assert!((300..512).contains(&tokens), "no more goes than must: {path}: {answer}");
    }
    let short = json!({"model": "tools", "messages": [user("Hi".to_owned())], "stream": false, "truncate": true,
        "options": {"num_predict": 1}});
    let whole = ok(node.post("/api/chat", &short));
    assert!(whole["exo"].get("left_out_messages").is_none(), "{whole}");
}

#[test]
fn a_hole_is_filled_by_a_model_that_has_tokens_for_it() {
    let more_tokens = &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    node.add_zeros(folder.path(), "fills", &Zeros { more_tokens, ..Zeros::SMALL });
    let shown = ok(node.post("/api/show", &json!({"model": "fills"})));
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("insert")), "{shown}");
    let count = |text: &str| {
        let counted =
            ok(node.post("/tokenize", &json!({"model": "fills", "content": text, "add_special": false})));
        counted["tokens"].as_array().unwrap().len() as u64
    };
    let (prefix, suffix) = ("fn add(a, b) {", "}");
    let body = json!({"model": "fills", "prompt": prefix, "suffix": suffix, "max_tokens": 5, "seed": 1});
    let answer = ok(node.post("/v1/completions", &body));
    assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
    // The two texts and the three tokens around them, and whatever the model begins with.
    let own = answer["usage"]["prompt_tokens"].as_u64().unwrap() - count(prefix) - count(suffix) - 3;
    assert!(own <= 1, "{answer}");
    let ollama = json!({"model": "fills", "prompt": prefix, "suffix": suffix, "stream": false, "options": {"num_predict": 5}});
    let filled = ok(node.post("/api/generate", &ollama));
    assert_eq!(filled["prompt_eval_count"], answer["usage"]["prompt_tokens"], "{filled}");
}
