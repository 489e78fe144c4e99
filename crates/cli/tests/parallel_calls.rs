//! Two calls in one answer, and both of their results back: in every dialect, over three nodes. All tokens
//! that may come are as likely, so that among some seeds there is one that calls twice.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::support::{Node, TOOL_TEMPLATE, Zeros, cluster, with};
use serde_json::{Value, json};

/// Of answers that call something, about one in five calls exactly twice.
const SEEDS: u64 = 160;
const QUESTION: &str = "What is the weather in Rome?";

const EQUALS: Zeros = Zeros { context: 4096, layers: 3, template: Some(TOOL_TEMPLATE), ..Zeros::SMALL };

/// Makes the model known as `equals`, and places it over three nodes.
pub fn place_equals(node: &Node, folder: &Path) {
    node.add_zeros(folder, "equals", &EQUALS);
    node.place("equals", 3);
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false})
}

fn function() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "strict": true, "parameters": schema()}})
}

fn post(node: &Node, path: &str, body: &Value) -> Value {
    node.post(path, body).good().json()
}

/// The body, and the answer, of the first seed that calls twice. `seeded` makes the body, `calls` finds the
/// calls of an answer.
fn two_calls(
    node: &Node,
    path: &str,
    seeded: impl Fn(u64) -> Value,
    calls: impl Fn(&Value) -> Vec<Call>,
) -> (Value, Value) {
    let mut answers = (0..SEEDS).map(|seed| {
        let body = seeded(seed);
        let answer = post(node, path, &body);
        (body, answer)
    });
    answers.find(|(_, answer)| calls(answer).len() == 2).expect("one seed that calls twice")
}

/// Id, name and arguments.
type Call = (String, String, Value);

/// Two calls of the tool, of its schema, that can be told apart.
fn check(calls: &[Call]) {
    let [first, second] = calls else { panic!("not two calls: {calls:?}") };
    assert_ne!(first.0, second.0);
    for (_, name, arguments) in calls {
        assert_eq!(name, "get_weather");
        assert!(["Rome", "Oslo"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
        assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
    }
}

fn call(id: &Value, name: &Value, arguments: Value) -> Call {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(id), text(name), arguments)
}

/// Arguments that are a text of JSON.
fn parsed(arguments: &Value) -> Value {
    serde_json::from_str(arguments.as_str().unwrap()).unwrap()
}

/// The data of a stream, event by event or line by line.
fn stream(node: &Node, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body.clone(), json!({"stream": true}));
    let mut text = String::new();
    node.send("POST", path, Some(body.to_string())).read_to_string(&mut text).unwrap();
    let lines = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Calls of a stream, by their place in the answer.
#[derive(Default)]
struct Growing(BTreeMap<u64, (String, String, String)>);

impl Growing {
    fn begin(&mut self, at: &Value, id: &Value, name: &Value) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let before = self.0.insert(at.as_u64().unwrap(), (text(id), text(name), String::new()));
        assert!(before.is_none(), "{at} begins twice");
    }

    fn add(&mut self, at: &Value, arguments: &Value) {
        let (_, _, all) = self.0.get_mut(&at.as_u64().unwrap()).expect("its name came first");
        all.push_str(arguments.as_str().unwrap());
    }

    fn calls(self) -> Vec<Call> {
        self.0.into_values().map(|(id, name, all)| (id, name, serde_json::from_str(&all).unwrap())).collect()
    }
}

#[test]
fn two_calls_and_their_results_go_through_every_dialect() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cluster("parallel", &["one", "two", "three"]);
    place_equals(&nodes[0], folder.path());
    chat(&nodes[0]);
    responses(&nodes[1]);
    messages(&nodes[2]);
    ollama(&nodes[1]);
}

fn chat(node: &Node) {
    const PATH: &str = "/v1/chat/completions";
    let question = json!({"role": "user", "content": QUESTION});
    let asked = json!({"model": "equals", "max_tokens": 400, "messages": [question], "tools": [function()], "tool_choice": "required"});
    let calls = |answer: &Value| -> Vec<Call> {
        let called = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
        let of = |c: &Value| call(&c["id"], &c["function"]["name"], parsed(&c["function"]["arguments"]));
        match answer["choices"][0]["finish_reason"] == "tool_calls" {
            true => called.iter().map(of).collect(),
            false => Vec::new(),
        }
    };
    let (body, answer) = two_calls(node, PATH, |seed| with(asked.clone(), json!({"seed": seed})), calls);
    let whole = calls(&answer);
    check(&whole);
    let mut growing = Growing::default();
    for chunk in stream(node, PATH, &body) {
        for call in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let (at, function) = (&call["index"], &call["function"]);
            if call["id"].is_string() {
                growing.begin(at, &call["id"], &function["name"]);
            }
            growing.add(at, &function["arguments"]);
        }
    }
    let streamed = growing.calls();
    check(&streamed);
    let without_ids =
        |calls: &[Call]| calls.iter().map(|(_, name, a)| (name.clone(), a.clone())).collect::<Vec<_>>();
    assert_eq!(without_ids(&streamed), without_ids(&whole), "the same seed, the same calls");

    // The results come back in the other order.
    let result =
        |at: usize, says: &str| json!({"role": "tool", "tool_call_id": whole[at].0, "content": says});
    let turns = json!([question, answer["choices"][0]["message"], result(1, "Rain."), result(0, "Sun.")]);
    let again = with(asked, json!({"messages": turns, "tool_choice": "none", "max_tokens": 4}));
    let second = post(node, PATH, &again);
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let known = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached + 32 > known, "pages have 32 tokens: {cached} of {known}");
    let shown = json!({"model": "equals", "messages": turns, "tools": [function()]});
    let shown = post(node, "/apply-template", &shown)["prompt"].as_str().unwrap().to_owned();
    let written = |(_, name, arguments): &Call| {
        let (city, days) = (&arguments["city"], &arguments["days"]);
        format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"city\": {city}, \"days\": {days}}}}}\n</tool_call>"
        )
    };
    let both = whole.iter().map(written).collect::<Vec<_>>().join("\n");
    assert!(shown.contains(&both), "{both}\nis not in\n{shown}");
    assert!(shown.contains("Sun.") && shown.contains("Rain."), "{shown}");
}

fn responses(node: &Node) {
    const PATH: &str = "/v1/responses";
    let tool = json!({"type": "function", "name": "get_weather", "strict": true, "parameters": schema()});
    let asked = json!({"model": "equals", "max_output_tokens": 400, "input": QUESTION, "tools": [tool], "tool_choice": "required"});
    let calls = |answer: &Value| -> Vec<Call> {
        let items = answer["output"].as_array().unwrap().iter();
        let called = items.filter(|item| item["type"] == "function_call" && item["status"] == "completed");
        called.map(|c| call(&c["call_id"], &c["name"], parsed(&c["arguments"]))).collect()
    };
    let whole = |answer: &Value| if answer["status"] == "completed" { calls(answer) } else { Vec::new() };
    let (body, answer) = two_calls(node, PATH, |seed| with(asked.clone(), json!({"seed": seed})), whole);
    check(&calls(&answer));
    let mut growing = Growing::default();
    let events = stream(node, PATH, &body);
    for event in &events {
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                growing.begin(&event["output_index"], &event["item"]["call_id"], &event["item"]["name"]);
            }
            "response.function_call_arguments.delta" => growing.add(&event["output_index"], &event["delta"]),
            _ => {}
        }
    }
    let streamed = growing.calls();
    check(&streamed);
    assert_eq!(calls(&events.last().unwrap()["response"]), streamed, "the last event has what came before");

    let result =
        |call: &Call, says: &str| json!({"type": "function_call_output", "call_id": call.0, "output": says});
    let [first, second] = [0, 1].map(|at| calls(&answer)[at].clone());
    let results = json!([result(&first, "Sun."), result(&second, "Rain.")]);
    let more = json!({"previous_response_id": answer["id"], "input": results, "tool_choice": "none", "max_output_tokens": 16});
    let again = post(node, PATH, &with(asked, more));
    assert!(again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{again}");
    assert!(calls(&again).is_empty(), "{again}");
}

fn messages(node: &Node) {
    const PATH: &str = "/v1/messages";
    let tool = json!({"name": "get_weather", "strict": true, "input_schema": schema()});
    let question = json!({"role": "user", "content": QUESTION});
    let asked = json!({"model": "equals", "max_tokens": 400, "messages": [question], "tools": [tool], "tool_choice": {"type": "any"}});
    let calls = |answer: &Value| -> Vec<Call> {
        let blocks = answer["content"].as_array().unwrap().iter();
        match answer["stop_reason"] == "tool_use" {
            true => blocks.map(|b| call(&b["id"], &b["name"], b["input"].clone())).collect(),
            false => Vec::new(),
        }
    };
    let (body, answer) = two_calls(node, PATH, |seed| with(asked.clone(), json!({"seed": seed})), calls);
    check(&calls(&answer));
    let mut growing = Growing::default();
    for event in stream(node, PATH, &body) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let block = &event["content_block"];
                growing.begin(&event["index"], &block["id"], &block["name"]);
            }
            "content_block_delta" => growing.add(&event["index"], &event["delta"]["partial_json"]),
            _ => {}
        }
    }
    check(&growing.calls());

    let result =
        |call: &Call, says: &str| json!({"type": "tool_result", "tool_use_id": call.0, "content": says});
    let [first, second] = [0, 1].map(|at| calls(&answer)[at].clone());
    let turns = json!([question, {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result(&first, "Sun."), result(&second, "Rain.")]}]);
    let more = json!({"messages": turns, "tool_choice": {"type": "none"}, "max_tokens": 4});
    let again = post(node, PATH, &with(asked, more));
    assert!(again["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 0, "{again}");
}

fn ollama(node: &Node) {
    const PATH: &str = "/api/chat";
    let question = json!({"role": "user", "content": QUESTION});
    // No one can require a call here. Beside a format, an answer is of it or calls.
    let function = json!({"name": "get_weather", "parameters": schema()});
    let tool = json!({"type": "function", "function": function});
    let asked = |seed: u64| {
        json!({"model": "equals", "stream": false, "messages": [question], "tools": [tool], "format": {"const": 7},
            "options": {"seed": seed, "temperature": 1, "top_p": 1, "top_k": 0, "num_predict": 400}})
    };
    let calls = |answer: &Value| -> Vec<Call> {
        let called = answer["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        let of = |c: &Value| call(&c["id"], &c["function"]["name"], c["function"]["arguments"].clone());
        if called.is_empty() && answer["done_reason"] == "stop" {
            assert_eq!(answer["message"]["content"], "7", "of the format");
        }
        if answer["done_reason"] == "stop" { called.iter().map(of).collect() } else { Vec::new() }
    };
    let (body, answer) = two_calls(node, PATH, asked, calls);
    let whole = calls(&answer);
    check(&whole);
    let lines = stream(node, PATH, &body);
    let called: Vec<&Value> = lines
        .iter()
        .flat_map(|line| line["message"]["tool_calls"].as_array().into_iter().flatten())
        .collect();
    let places: Vec<&Value> = called.iter().map(|call| &call["function"]["index"]).collect();
    assert_eq!(places, [&json!(0), &json!(1)], "{lines:?}");
    let arguments: Vec<&Value> = called.iter().map(|call| &call["function"]["arguments"]).collect();
    assert_eq!(arguments, [&whole[0].2, &whole[1].2]);

    let result = |says: &str| json!({"role": "tool", "tool_name": "get_weather", "content": says});
    let turns = json!([question, answer["message"], result("Sun."), result("Rain.")]);
    let again = json!({"model": "equals", "stream": false, "messages": turns, "options": {"num_predict": 4}});
    assert_eq!(post(node, PATH, &again)["done"], true);
}
