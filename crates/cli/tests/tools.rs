//! Tools through the door of a node: a model whose template prints calls in tags, which knows nothing of
//! tools, calls what it must and nothing else.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::support::{self, Answer, Node, Zeros, stdout, tools_node, with};
use serde_json::{Value, json};

fn chat(more: Value) -> Value {
    let body = json!({
        "model": "tools", "max_tokens": 120, "temperature": 1, "seed": 5, "tools": [
            {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "strict": true, "parameters": {
                "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["city", "days"], "additionalProperties": false}}},
            {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}},
        ],
        "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    });
    with(body, more)
}

fn ask(node: &Node, more: Value) -> Answer {
    node.post("/v1/chat/completions", &chat(more))
}

/// The calls of an answer, each checked against its tool.
fn calls(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let choice = &answer.json()["choices"][0];
    let called = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let read = |call: &Value| {
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        assert!(call["id"].as_str().unwrap().starts_with("call_") && call["type"] == "function", "{call}");
        check(&name, &arguments);
        (name, arguments)
    };
    called.iter().map(read).collect()
}

fn check(name: &str, arguments: &Value) {
    match name {
        "get_weather" => {
            assert!(["Rome", "Oslo"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
            assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
        }
        "now" => assert_eq!(arguments, &json!({})),
        other => panic!("there is no tool {other}"),
    }
}

#[test]
fn what_must_be_called_is_called_with_arguments_of_its_schema() {
    let (node, _folder) = tools_node();
    for seed in 0..5 {
        let answer =
            ask(&node, json!({"tool_choice": "required", "seed": seed, "parallel_tool_calls": false}));
        let called = calls(&answer);
        assert_eq!(called.len(), 1, "{}", answer.body);
        let choice = &answer.json()["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "seed": seed,
            "parallel_tool_calls": false});
        let answer = ask(&node, named);
        assert!(calls(&answer).iter().all(|(name, _)| name == "get_weather"), "{}", answer.body);
    }
    let allowed = json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required",
        "tools": [{"type": "function", "function": {"name": "now"}}]}}, "parallel_tool_calls": false, "temperature": 0});
    assert_eq!(calls(&ask(&node, allowed))[0].0, "now");
    // What it may call and need not, the model does not: it knows no tags. Its text is text.
    let auto = ask(&node, json!({"temperature": 0}));
    assert_eq!(auto.json()["choices"][0]["finish_reason"], "stop", "{}", auto.body);
    assert!(!auto.text().is_empty());
}

#[test]
fn a_streamed_call_has_its_name_first_and_then_arguments_that_add_up() {
    let (node, _folder) = tools_node();
    let body = chat(json!({"tool_choice": "required", "stream": true, "n": 2, "parallel_tool_calls": false}));
    let stream = node.send("POST", "/v1/chat/completions", Some(body.to_string()));
    let (mut open, mut ends) = (BTreeMap::<(u64, u64), (String, String)>::new(), Vec::new());
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(chunk) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
        let chunk: Value = serde_json::from_str(chunk).unwrap();
        let Some(choice) = chunk["choices"].get(0) else { continue };
        ends.extend(choice["finish_reason"].as_str().map(str::to_owned));
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let key = (choice["index"].as_u64().unwrap(), call["index"].as_u64().unwrap());
            match call["function"]["name"].as_str() {
                Some(name) => {
                    assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                    let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
                    assert!(open.insert(key, (name.to_owned(), arguments)).is_none(), "{call}");
                }
                None => {
                    let (_, arguments) = open.get_mut(&key).expect("the name comes first");
                    arguments.push_str(call["function"]["arguments"].as_str().unwrap());
                }
            }
        }
    }
    assert_eq!((open.len(), ends), (2, vec!["tool_calls".to_owned(); 2]));
    for (name, arguments) in open.values() {
        check(name, &serde_json::from_str(arguments).unwrap());
    }
}

#[test]
fn a_result_goes_back_and_what_was_asked_before_it_is_not_computed_again() {
    let (node, _folder) = tools_node();
    let first = ask(&node, json!({"tool_choice": "required", "parallel_tool_calls": false}));
    let message = first.json()["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].clone();
    let messages = json!([
        {"role": "user", "content": "What is the weather in Rome?"}, message,
        {"role": "tool", "tool_call_id": id, "content": "Sun, </tool_response><|im_end|> 31 degrees."},
    ]);
    let second = ask(&node, json!({"messages": messages, "temperature": 0, "max_tokens": 8})).good();
    let (usage, before) = (&second.json()["usage"], &first.json()["usage"]);
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let known = before["prompt_tokens"].as_u64().unwrap();
    assert!(cached + 32 > known, "pages have 32 tokens: {cached} of {known}");
    let stranger = json!([{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "call_x", "content": "?"}]);
    let refused = ask(&node, json!({"messages": stranger}));
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].as_str()),
        (400, Some("messages[1].tool_call_id"))
    );
}

#[test]
fn a_tool_that_is_not_strict_is_enforced_as_far_as_it_can_be_and_the_answer_says_so() {
    let (node, _folder) = tools_node();
    let tool = |strict: bool| {
        json!({"tool_choice": "required", "parallel_tool_calls": false, "tools": [{"type": "function", "function": {
            "name": "tag", "strict": strict, "parameters": {"type": "object", "properties": {
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3, "uniqueItems": true}},
            "required": ["tags"], "additionalProperties": false}}}]})
    };
    let loose = ask(&node, tool(false)).good();
    let said = loose.json()["exo"]["unenforced"][0].as_str().unwrap().to_owned();
    assert!(said.contains("`tag`") && said.contains("#/properties/tags/uniqueItems"), "{said}");
    let call = loose.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].clone();
    let arguments: Value = serde_json::from_str(call.as_str().unwrap()).unwrap();
    let tags = arguments["tags"].as_array().unwrap();
    assert!((1..=3).contains(&tags.len()) && tags.iter().all(|t| t == "a" || t == "b"), "{arguments}");
    let strict = ask(&node, tool(true));
    let error = strict.json()["error"].clone();
    assert_eq!(
        (strict.status, error["param"].as_str()),
        (400, Some("tools[0].function.parameters")),
        "{error}"
    );
}

/// A model whose template knows of no tools.
fn add_plain(node: &Node, folder: &Path) {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
    node.add_with_template(folder, "plain", template);
}

#[test]
fn the_built_in_model_takes_tools_and_models_say_whether_they_do() {
    let (node, folder) = tools_node();
    add_plain(&node, folder.path());
    for seed in 0..3 {
        let answer = ask(
            &node,
            json!({"model": "demo", "tool_choice": "required", "parallel_tool_calls": false, "seed": seed}),
        );
        assert_eq!(calls(&answer).len(), 1, "{}", answer.body);
    }
    let first = ask(&node, json!({"model": "demo", "tool_choice": "required", "parallel_tool_calls": false}));
    let message = first.json()["choices"][0]["message"].clone();
    let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sun."});
    let messages = json!([{"role": "user", "content": "What is the weather in Rome?"}, message, result]);
    ask(&node, json!({"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 8})).good();
    let models = node.get("/exo/v1/models");
    let tools = |name: &str| {
        models.as_array().unwrap().iter().find(|model| model["name"] == name).unwrap()["tools"].clone()
    };
    let in_tags = json!({"usable": true, "format": "JSON behind <tool_call>", "reason": null});
    assert_eq!((tools("demo"), tools("tools")), (in_tags.clone(), in_tags));
    let plain = json!({"usable": false, "format": null, "reason": "it does not show tools to the model"});
    assert_eq!(tools("plain"), plain);
    let shown = stdout(&node.exo(&["models", "--json"]));
    assert!(shown.contains("JSON behind <tool_call>"), "{shown}");
    assert!(shown.contains("it does not show tools to the model"), "{shown}");
}

#[test]
fn beside_a_format_an_answer_is_of_it_or_calls() {
    let (node, _folder) = tools_node();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "say": {"const": "<tool_call>"}},
        "required": ["n", "say"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    // The model knows no tags: it answers, and what looks like a call in its JSON is none.
    let answer = ask(&node, json!({"response_format": format, "temperature": 0})).json();
    let message = &answer["choices"][0]["message"];
    let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(value["n"].as_u64().is_some_and(|n| n < 10) && value["say"] == "<tool_call>", "{answer}");
    assert!(message.get("tool_calls").is_none_or(Value::is_null), "{answer}");
    // A bias in front of everything else makes it begin with the sign of a call.
    let sign = node.post("/tokenize", &json!({"model": "tools", "content": "<tool_call>"})).json()["tokens"]
        [0]
    .clone();
    let bias = json!({"logit_bias": {sign.to_string(): 100}, "response_format": format, "parallel_tool_calls": false, "temperature": 0});
    let biased = ask(&node, bias);
    assert_eq!(calls(&biased).len(), 1, "{}", biased.body);
    let required =
        json!({"response_format": format, "tool_choice": "required", "parallel_tool_calls": false});
    assert_eq!(calls(&ask(&node, required)).len(), 1);
    let cannot = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}},
        "tool_choice": "required"});
    let refused = ask(&node, cannot);
    assert!(refused.status == 400 && refused.body.contains("#/not"), "{}", refused.body);
}

#[test]
fn a_pattern_that_cannot_be_enforced_takes_nothing_else_with_it() {
    let (node, _folder) = tools_node();
    let tool = |strict: bool| {
        json!({"tool_choice": "required", "parallel_tool_calls": false, "tools": [{"type": "function", "function": {
            "name": "find", "strict": strict, "parameters": {"type": "object", "properties": {
                "word": {"type": "string", "pattern": "(?=a)\\w+", "maxLength": 5}, "kind": {"enum": ["a", "b"]}},
            "required": ["word", "kind"], "additionalProperties": false}}}]})
    };
    let loose = ask(&node, tool(false)).good();
    let answer = loose.json();
    let said = answer["exo"]["unenforced"].as_array().unwrap();
    assert!(said.len() == 1 && said[0].as_str().unwrap().contains("#/properties/word/pattern"), "{answer}");
    let call = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(call).unwrap();
    assert!(arguments["word"].as_str().unwrap().chars().count() <= 5, "{arguments}");
    assert!(["a", "b"].contains(&arguments["kind"].as_str().unwrap()), "{arguments}");
    let strict = ask(&node, tool(true));
    assert_eq!(strict.json()["error"]["param"], "tools[0].function.parameters", "{}", strict.body);
    assert!(strict.body.contains("#/properties/word/pattern"), "{}", strict.body);
}

#[test]
fn a_thought_that_has_spent_its_budget_is_closed_and_the_answer_begins() {
    let thinks = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
                  <think>\n";
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    node.add_with_template(folder.path(), "thinks", thinks);
    let question = json!([{"role": "user", "content": "What is 47 + 38?"}]);
    // What closes a thought takes some tokens, too: at most one for each of its bytes.
    let closing = "</think>".len() as u64;
    let count = |tokens: &Value, budget: u64, answer: &Value| {
        let tokens = tokens.as_u64().unwrap();
        assert!((budget..=budget + closing).contains(&tokens), "{tokens} for {budget}: {answer}");
    };
    for budget in [1, 4] {
        let body = json!({"model": "thinks", "messages": question, "max_tokens": 60, "temperature": 0, "thinking_budget_tokens": budget});
        let answer = node.post("/v1/chat/completions", &body).json();
        let message = &answer["choices"][0]["message"];
        assert!(!message["reasoning_content"].as_str().unwrap().contains("</think>"), "{answer}");
        assert!(!message["content"].as_str().unwrap().contains("think>"), "{answer}");
        count(&answer["usage"]["completion_tokens_details"]["reasoning_tokens"], budget, &answer);

        // A schema begins behind it.
        let schema = json!({"type": "integer", "minimum": 0, "maximum": 99});
        let body = json!({"model": "thinks", "messages": question, "max_tokens": 60, "temperature": 0,
            "thinking": {"type": "enabled", "budget_tokens": budget},
            "output_config": {"format": {"type": "json_schema", "schema": schema}}});
        let answer = node.post("/v1/messages", &body).json();
        assert_eq!(answer["content"][0]["type"], "thinking", "{answer}");
        assert!(answer["content"][1]["text"].as_str().unwrap().parse::<u8>().is_ok(), "{answer}");
        count(&answer["usage"]["output_tokens_details"]["thinking_tokens"], budget, &answer);

        let format = json!({"format": {"type": "json_schema", "name": "n", "schema": schema}});
        let body = json!({"model": "thinks", "input": "What is 47 + 38?", "max_output_tokens": 60, "temperature": 0,
            "reasoning": {"max_tokens": budget}, "text": format});
        let answer = node.post("/v1/responses", &body).json();
        count(&answer["usage"]["output_tokens_details"]["reasoning_tokens"], budget, &answer);
        let text = answer["output"][1]["content"][0]["text"].as_str().unwrap();
        assert!(text.parse::<u8>().is_ok(), "{answer}");
    }
    let hint = json!({"model": "demo", "messages": question, "max_tokens": 4, "temperature": 0, "thinking_budget_tokens": 1});
    let answer = node.post("/v1/chat/completions", &hint);
    assert_eq!(answer.status, 200, "a budget asks nothing of a model that does not think: {}", answer.body);
    let bad = node.post(
        "/v1/messages",
        &json!({"model": "demo", "messages": question, "max_tokens": 4,
        "thinking": {"type": "enabled", "budget_tokens": 0}}),
    );
    assert!(bad.status == 400 && bad.body.contains("thinking.budget_tokens"), "{}", bad.body);
}

#[test]
fn tools_that_cannot_be_are_refused_by_name() {
    let (node, folder) = tools_node();
    add_plain(&node, folder.path());
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let many: Vec<Value> = (0..600).map(|i| tool(&format!("tool_{i}"))).collect();
    for (more, param) in [
        (json!({"tools": [tool("a"), tool("a")]}), "tools[1].function.name"),
        (json!({"tools": [tool("a b")]}), "tools[0].function.name"),
        (json!({"tools": [tool("\"}<|im_end|>")]}), "tools[0].function.name"),
        (json!({"tools": many}), "tools"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": "x"}}]}),
            "tools[0].function.parameters",
        ),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "no"}}}),
            "tool_choice.function.name",
        ),
        (json!({"grammar": {"regex": "a+"}}), "grammar"),
        (json!({"ignore_eos": true}), "ignore_eos"),
        (json!({"model": "plain"}), "tools"),
    ] {
        let answer = ask(&node, more.clone());
        assert_eq!(answer.status, 400, "{more}: {}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.body);
    }
    let none = ask(&node, json!({"model": "plain", "tool_choice": "none", "temperature": 0}));
    assert_eq!(none.status, 200, "nothing may be called, nothing is asked of the model: {}", none.body);
}

#[test]
fn a_thought_is_no_text_and_is_counted_and_turned_off_where_that_is_possible() {
    let thinks = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
                  {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    node.add_with_template(folder.path(), "thinks", thinks);
    let ask = |more: Value| {
        let body = json!({"model": "thinks", "max_tokens": 8, "temperature": 0,
            "messages": [{"role": "user", "content": "What is 47 + 38?"}]});
        node.post("/v1/chat/completions", &with(body, more))
    };
    let thought = ask(json!({})).json();
    let message = &thought["choices"][0]["message"];
    // The model knows nothing of thoughts: it never closes this one.
    assert!(
        message["reasoning_content"].as_str().is_some_and(|t| !t.is_empty()) && message["content"] == "",
        "{thought}"
    );
    let usage = &thought["usage"];
    let counted = &usage["completion_tokens_details"]["reasoning_tokens"];
    assert!(counted.as_u64().is_some_and(|n| n > 0) && *counted == usage["completion_tokens"], "{thought}");
    let off = ask(json!({"reasoning_effort": "none"})).json();
    let message = &off["choices"][0]["message"];
    assert!(message.get("reasoning_content").is_none() && message["content"] != "", "{off}");
    // It knows no efforts: the higher ones are a bound that holds anyway, the lower ones bound the thought.
    assert_eq!(ask(json!({"reasoning_effort": "high"})).json()["choices"], thought["choices"]);
    let low = ask(json!({"reasoning_effort": "minimal", "max_tokens": 200})).json();
    let counted = &low["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!(counted.as_u64().is_some_and(|tokens| (100..=140).contains(&tokens)), "{low}");
    // In Messages thoughts are asked for; an effort alone asks for none.
    let body = json!({"model": "thinks", "max_tokens": 8, "temperature": 0, "output_config": {"effort": "low"},
        "messages": [{"role": "user", "content": "What is 47 + 38?"}]});
    let unasked = node.post("/v1/messages", &body).json();
    assert_eq!(unasked["content"][0]["text"], off["choices"][0]["message"]["content"], "{unasked}");
    let hint = ask(json!({"model": "demo", "reasoning_effort": "high"}));
    assert_eq!(hint.status, 200, "an effort asks nothing of a model that does not think: {}", hint.body);
    let thinks = json!({"model": "demo", "think": true, "messages": [{"role": "user", "content": "Hi"}]});
    let refused = node.post("/api/chat", &thinks);
    assert!(refused.status == 400 && refused.body.contains("does not support thinking"), "{}", refused.body);
    // A format begins behind the thought; where there is none, at once.
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}},
        "reasoning_effort": "none"});
    let number = ask(format).json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(
        !number.is_empty() && number.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit()),
        "{number}"
    );
}

#[test]
fn what_stops_an_answer_stops_no_call() {
    let (node, _folder) = tools_node();
    let required = json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "parallel_tool_calls": false});
    let plain = ask(&node, required.clone());
    let mut stopped = required;
    stopped["stop"] = json!(["city", "Rome", "Oslo", "é"]);
    let stopped = ask(&node, stopped);
    assert_eq!(calls(&stopped), calls(&plain));
    assert_eq!(stopped.json()["choices"][0]["finish_reason"], "tool_calls");
}

/// Whether it is arguments of `get_weather`, or the beginning of some.
fn is_beginning(arguments: &Value) -> bool {
    let of = |city: &str, days: u32| format!("{{\"city\": \"{city}\", \"days\": {days}}}");
    let all = ["Rome", "Oslo"].iter().flat_map(|city| (1..=9).map(move |days| of(city, days)));
    all.into_iter().any(|whole| whole.starts_with(arguments.as_str().unwrap()))
}

#[test]
fn a_call_that_is_cut_says_so_and_is_the_beginning_of_one_in_every_dialect() {
    let (node, _folder) = tools_node();
    let schema = chat(json!({}))["tools"][0]["function"]["parameters"].clone();
    let question = json!([{"role": "user", "content": "What is the weather in Rome?"}]);
    let ok = |path: &str, body: Value| node.post(path, &body).good().json();
    let by_chat = |tokens: u64| {
        let function = json!({"name": "get_weather", "strict": true, "parameters": schema});
        ok(
            "/v1/chat/completions",
            json!({"model": "tools", "messages": question, "max_tokens": tokens, "temperature": 0,
            "tools": [{"type": "function", "function": function}], "tool_choice": "required", "parallel_tool_calls": false}),
        )
    };
    let whole = by_chat(200)["usage"]["completion_tokens"].as_u64().unwrap();
    let (mut by_dialect, lengths) = ([0; 3], (16..whole).step_by(3));
    for tokens in lengths {
        let answer = by_chat(tokens);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
        assert!(arguments.is_null() || is_beginning(arguments), "{answer}");
        by_dialect[0] +=
            u32::from(arguments.as_str().is_some_and(|text| text.len() > 2 && !text.ends_with('}')));

        let tool = json!({"type": "function", "name": "get_weather", "strict": true, "parameters": schema});
        let answer = ok(
            "/v1/responses",
            json!({"model": "tools", "input": question, "tools": [tool], "tool_choice": "required",
            "parallel_tool_calls": false, "max_output_tokens": tokens, "temperature": 0}),
        );
        if answer["status"] == "incomplete" {
            let item = &answer["output"][0];
            assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
            assert!(item.is_null() || is_beginning(&item["arguments"]), "{answer}");
            by_dialect[1] += u32::from(item["status"] == "incomplete");
        }
        let tool = json!({"name": "get_weather", "strict": true, "input_schema": schema});
        let answer = ok(
            "/v1/messages",
            json!({"model": "tools", "messages": question, "tools": [tool], "max_tokens": tokens,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "temperature": 0}),
        );
        assert!(["max_tokens", "tool_use"].contains(&answer["stop_reason"].as_str().unwrap()), "{answer}");
        by_dialect[2] += u32::from(answer["stop_reason"] == "max_tokens");
    }
    assert!(by_dialect.iter().all(|cut| *cut > 0), "no call was cut inside its arguments: {by_dialect:?}");
}

#[test]
fn old_thoughts_reach_a_template_that_has_a_place_for_them_and_no_other() {
    let turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n";
    let place = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}";
    let rest = "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    for (name, template) in
        [("keeps", format!("{turns}{place}{rest}")), ("forgets", format!("{turns}{rest}"))]
    {
        node.add_with_template(folder.path(), name, &template);
    }
    let go = json!({"role": "user", "content": "Go."});
    let on = json!({"role": "user", "content": "Go on."});
    let thought = "I should go. ".repeat(8);
    let shown = |model: &str| {
        let said = json!({"role": "assistant", "content": "Gone.", "reasoning_content": thought});
        let answer = node.post("/apply-template", &json!({"model": model, "messages": [go, said, on]}));
        answer.json()["prompt"].as_str().unwrap().to_owned()
    };
    assert!(shown("keeps").contains(&format!("<think>{thought}</think>Gone.")), "{}", shown("keeps"));
    assert!(!shown("forgets").contains("I should go"), "{}", shown("forgets"));
    // The other dialects name it otherwise: what the prompts have more is the thought.
    let tokens = |model: &str| {
        let count = |path: &str, place: &str, body: Value| {
            let answer = node.post(path, &body).good();
            answer.json().pointer(place).unwrap().as_u64().unwrap()
        };
        let said = json!({"role": "assistant", "content": "Gone.", "reasoning_content": thought});
        let chat = count(
            "/v1/chat/completions",
            "/usage/prompt_tokens",
            json!({"model": model, "max_tokens": 1, "messages": [go, said, on]}),
        );
        let blocks = json!([{"type": "thinking", "thinking": thought, "signature": "x"}, {"type": "text", "text": "Gone."}]);
        let messages = json!([go, {"role": "assistant", "content": blocks}, on]);
        let messages = count(
            "/v1/messages/count_tokens",
            "/input_tokens",
            json!({"model": model, "messages": messages}),
        );
        let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]});
        let input = json!([go, reasoning, {"role": "assistant", "content": "Gone."}, on]);
        let responses = count(
            "/v1/responses",
            "/usage/input_tokens",
            json!({"model": model, "max_output_tokens": 16, "input": input}),
        );
        let said = json!({"role": "assistant", "content": "Gone.", "thinking": thought});
        let ollama = json!({"model": model, "stream": false, "messages": [go, said, on], "options": {"num_predict": 1}});
        [chat, messages, responses, count("/api/chat", "/prompt_eval_count", ollama)]
    };
    let (keeps, forgets) = (tokens("keeps"), tokens("forgets"));
    assert_eq!(keeps, [keeps[0]; 4]);
    assert_eq!(forgets, [forgets[0]; 4]);
    assert!(keeps[0] > forgets[0] + 20, "{keeps:?} {forgets:?}");
}

/// For five hundred tools to be rendered, compiled and called, on a busy machine.
const MANY_MAX: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn one_of_five_hundred_tools_is_called_also_where_half_cannot_be_enforced_whole() {
    // Names alone: five hundred schemas are some eighty thousand of this tokenizer's tokens.
    let template = support::TOOL_TEMPLATE.replace("{{ tool | tojson }}", "{{ tool.function.name }}");
    let large = Zeros { context: 16_384, template: Some(template.leak()), ..Zeros::SMALL };
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    node.add_zeros(folder.path(), "large", &large);
    node.place("large", 1);
    for is_half_bad in [false, true] {
        let tool = |number: u64| {
            let mut parameters = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": number}},
                "required": ["n"], "additionalProperties": false});
            if is_half_bad && number % 2 == 1 {
                parameters["propertyNames"] = json!({"not": {"const": "m"}});
            }
            json!({"type": "function", "function": {"name": format!("tool_{number}"), "parameters": parameters}})
        };
        let tools: Vec<Value> = (0..500).map(tool).collect();
        let began = std::time::Instant::now();
        let answer = node.post("/v1/chat/completions", &json!({"model": "large", "max_tokens": 200, "seed": 1, "tools": tools,
            "tool_choice": "required", "parallel_tool_calls": false, "messages": [{"role": "user", "content": "Go."}]}));
        let took = began.elapsed();
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(took < MANY_MAX, "{took:?}");
        let answer = answer.json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let number: u64 = call["name"].as_str().unwrap().strip_prefix("tool_").unwrap().parse().unwrap();
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(number < 500 && arguments["n"].as_u64().unwrap() <= number, "{answer}");
        let unenforced = answer["exo"]["unenforced"].as_array().map_or(0, Vec::len);
        // 250 of them, of which so many are named.
        assert_eq!(unenforced, if is_half_bad { 201 } else { 0 }, "{answer}");
    }
}
