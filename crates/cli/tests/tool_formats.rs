//! Tools through the door of a node, with templates that print calls otherwise than as JSON: the same
//! promises hold.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use crate::support::{Node, stdout, tool_template, tools_node_with, with};
use serde_json::{Value, json};

/// As Qwen3-Coder's: a function in a tag, each parameter in one of its own.
const IN_TAGS: &str = tool_template!(
    r#"<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
</parameter>
{% endfor %}</function>"#
);

/// As gpt-oss's: thoughts, answers and calls in messages of their own, each behind its channel.
const IN_CHANNELS: &str = r#"{%- if tools %}<|im_start|>system
Effort: {{ reasoning_effort or 'medium' }}
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% else %}<|im_start|>system
Effort: {{ reasoning_effort or 'medium' }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|im_end|>
{%- elif m.role == 'assistant' %}
{%- if m.thinking and (m.tool_calls or loop.last) %}<|im_start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{%- if m.tool_calls %}<|im_start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}<|im_end|>
{%- else %}<|im_start|>assistant<|channel|>final<|message|>{{ m.content }}<|im_end|>{% endif %}
{%- else %}<|im_start|>{{ m.role }}<|message|>{{ m.content }}<|im_end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant{% endif %}"#;

/// Schemas of few parameters each: the model reads and writes 512 tokens in all.
fn schema(which: u64) -> Value {
    let properties = match which % 4 {
        0 => json!({"city": {"enum": ["Rome", "Oslo"]}, "text": {"type": "string", "maxLength": 8}}),
        1 => json!({"on": {"type": "boolean"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}),
        2 => json!({"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}}),
        _ => json!({"more": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}}),
    };
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn body(which: u64, more: Value) -> Value {
    let body = json!({
        "model": "tools", "max_tokens": 200, "temperature": 1, "seed": which, "parallel_tool_calls": false, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "note", "strict": true, "parameters": schema(which)}}],
        "messages": [{"role": "user", "content": "What is the weather?"}],
    });
    with(body, more)
}

fn check(which: u64, name: &str, arguments: &str) {
    assert_eq!(name, "note");
    let value: Value = serde_json::from_str(arguments).unwrap();
    let is_right = match which % 4 {
        0 => {
            (value["city"] == "Rome" || value["city"] == "Oslo")
                && value["text"].as_str().unwrap().chars().count() <= 8
        }
        1 => value["on"].is_boolean() && (1..=9).contains(&value["days"].as_u64().unwrap()),
        2 => {
            let tags = value["tags"].as_array().unwrap();
            (1..=3).contains(&tags.len()) && tags.iter().all(|tag| tag == "a" || tag == "b")
        }
        _ => value["more"].is_null() || value["more"].as_str().is_some_and(|text| text.chars().count() <= 3),
    };
    let known = schema(which)["required"].as_array().unwrap().len();
    assert!(is_right && value.as_object().unwrap().len() == known, "{arguments}");
}

/// Name and arguments of the only call of a streamed answer: the name comes first, then what adds up to its
/// arguments.
fn streamed(node: &Node, mut body: Value) -> (String, String) {
    body["stream"] = json!(true);
    let stream = node.send("POST", "/v1/chat/completions", Some(body.to_string()));
    let mut calls = BTreeMap::<u64, (String, String)>::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(chunk) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
        let chunk: Value = serde_json::from_str(chunk).unwrap();
        for call in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap();
            let arguments = call["function"]["arguments"].as_str().unwrap();
            match call["function"]["name"].as_str() {
                Some(name) => {
                    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
                    assert!(calls.insert(index, (name.to_owned(), arguments.to_owned())).is_none(), "{call}");
                }
                None => calls.get_mut(&index).expect("the name comes first").1.push_str(arguments),
            }
        }
    }
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(&0).unwrap()
}

#[test]
fn calls_with_parameters_in_tags_are_of_their_schema_and_come_back_as_they_were() {
    let (node, _folder) = tools_node_with(IN_TAGS);
    let shown = stdout(&node.exo(&["models", "--json"]));
    assert!(shown.contains("parameters in tags behind <tool_call>"), "{shown}");
    for which in 0..8 {
        two_rounds(&node, which, json!({}), true);
    }
}

/// A call, streamed and not, and then its result.
fn two_rounds(node: &Node, which: u64, more: Value, comes_back_alike: bool) {
    let mut first = body(which, more.clone());
    first["logprobs"] = json!(true);
    let answer = node.post("/v1/chat/completions", &first).good();
    let answer = answer.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    let call = &message["tool_calls"][0]["function"];
    let (name, arguments) = (call["name"].as_str().unwrap(), call["arguments"].as_str().unwrap());
    check(which, name, arguments);
    assert_eq!(streamed(node, body(which, more)), (name.to_owned(), arguments.to_owned()));
    let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sun."});
    let messages = json!([{"role": "user", "content": "What is the weather?"}, message, result]);
    let second = json!({"messages": messages, "tool_choice": "auto", "temperature": 0, "max_tokens": 4});
    let second = node.post("/v1/chat/completions", &body(which, second)).good();
    // What was read before is not computed again.
    let second = second.json();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let known = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached + 32 > known, "pages have 32 tokens: {cached} of {known} of {answer}");
    // The call renders to the text that the model wrote.
    let pieces = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes = pieces.iter().flat_map(|piece| piece["bytes"].as_array().unwrap());
    let bytes = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    let written = String::from_utf8(bytes).unwrap().replace("<|im_end|>", "");
    assert!(written.contains("note"), "{answer}");
    let tools = body(which, json!({}))["tools"].clone();
    let shown = json!({"model": "tools", "messages": messages, "tools": tools});
    let shown = node.post("/apply-template", &shown).json()["prompt"].as_str().unwrap().to_owned();
    assert!(!comes_back_alike || shown.contains(&written), "{written}\nis not in\n{shown}");
}

#[test]
fn what_a_call_in_tags_cannot_be_held_to_is_refused_or_named() {
    let (node, _folder) = tools_node_with(IN_TAGS);
    let tool = |strict: bool| {
        json!({"tools": [{"type": "function", "function": {"name": "find", "strict": strict, "parameters": {
            "type": "object", "properties": {"who": {"type": ["string", "integer"], "minimum": 3, "maxLength": 6},
                "kind": {"enum": ["a", "b"]}, "word": {"type": "string", "pattern": "(?=a)\\w+", "maxLength": 5}},
            "required": ["kind"], "additionalProperties": false}}}]})
    };
    let word = "/tools/0/function/parameters/properties/word/pattern";
    let mut followed = tool(true);
    *followed.pointer_mut(word).unwrap() = json!("^(?=a)\\w+");
    for (tool, place) in [(tool(true), "#/properties/word/pattern"), (followed, "#/properties/who")] {
        let strict = node.post("/v1/chat/completions", &body(0, tool));
        assert_eq!(strict.status, 400, "{}", strict.body);
        assert_eq!(strict.json()["error"]["param"], "tools[0].function.parameters");
        assert!(strict.body.contains(place), "{}", strict.body);
    }
    let loose = node.post("/v1/chat/completions", &body(0, tool(false))).good();
    let said = loose.json()["exo"]["unenforced"].to_string();
    assert!(said.contains("#/properties/who") && said.contains("#/properties/word/pattern"), "{said}");
    let call = loose.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].clone();
    let Ok(arguments) = serde_json::from_str::<Value>(call.as_str().unwrap()) else {
        // `who` may be any text now, and this model need not end it.
        return assert_eq!(loose.json()["choices"][0]["finish_reason"], "length", "{}", loose.body);
    };
    assert!(arguments["kind"] == "a" || arguments["kind"] == "b", "{arguments}");
}

#[test]
fn calls_in_channels_are_of_their_schema_and_come_back_as_they_were() {
    let (node, _folder) = tools_node_with(IN_CHANNELS);
    let shown = stdout(&node.exo(&["models", "--json"]));
    assert!(shown.contains("JSON behind to=functions."), "{shown}");
    for which in 0..8 {
        // A thought that was closed by its budget is cut anywhere, and may not come back as the same tokens.
        two_rounds(&node, which, json!({"thinking_budget_tokens": 5}), false);
    }
}

#[test]
fn thoughts_and_answers_in_channels_are_told_apart() {
    let (node, _folder) = tools_node_with(IN_CHANNELS);
    let ask = |more: Value| {
        let body = json!({"model": "tools", "max_tokens": 160, "temperature": 0, "thinking_budget_tokens": 4,
            "messages": [{"role": "user", "content": "What is 47 + 38?"}]});
        node.post("/v1/chat/completions", &with(body, more))
    };
    // The first sign of an analysis that is not one of an answer: a bias makes the model think.
    let tokens = |text: &str| {
        let tokens =
            node.post("/tokenize", &json!({"model": "tools", "content": text})).json()["tokens"].clone();
        tokens.as_array().unwrap().clone()
    };
    let (thinks, answers) = (tokens("<|channel|>analysis"), tokens("<|channel|>final"));
    let at = thinks.iter().zip(&answers).take_while(|(a, b)| a == b).count();
    let bias = |token: &Value| json!({"logit_bias": {token.to_string(): 100}});
    let plain = ask(bias(&answers[at])).json();
    let message = &plain["choices"][0]["message"];
    assert!(message.get("reasoning_content").is_none(), "{plain}");
    assert!(!message["content"].as_str().unwrap().contains("<|channel|>"), "{plain}");
    let thought = ask(bias(&thinks[at])).json();
    let message = &thought["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.contains("<|")), "{thought}");
    assert!(!message["content"].as_str().unwrap().contains("<|"), "{thought}");
    let counted = thought["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(counted >= 4, "{thought}");
    // An effort beside the budget takes nothing from it: without one the thought would not end.
    let effort = {
        let mut asked = bias(&thinks[at]);
        asked["reasoning_effort"] = json!("high");
        ask(asked).json()
    };
    let of_effort = effort["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((4..2 * counted).contains(&of_effort), "{effort}");
    let schema = json!({"type": "integer", "minimum": 0, "maximum": 99});
    let format =
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let number = ask(format).json();
    let content = number["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.parse::<u8>().is_ok_and(|n| n < 100), "{number}");
    // An effort is told to the template; none at all it cannot be told.
    assert_eq!(ask(json!({"reasoning_effort": "high", "thinking_budget_tokens": null})).status, 200);
    let none = ask(json!({"reasoning_effort": "none", "thinking_budget_tokens": null}));
    assert_eq!(
        (none.status, none.json()["error"]["param"].as_str()),
        (400, Some("reasoning_effort")),
        "{}",
        none.body
    );
    let shown = |effort: &str| {
        let question = json!([{"role": "user", "content": "What is 47 + 38?"}]);
        let body = json!({"model": "tools", "messages": question, "reasoning_effort": effort});
        node.post("/apply-template", &body).body
    };
    assert!(shown("low").contains("Effort: low"), "{}", shown("low"));
}
