//! Which requests pass, and what is said of those that do not.

mod common;

use common::{context, table};
use exo_api::openai::{ChatRequest, CompletionRequest};
use exo_api::{BadParam, GenerateRequest, Prompt};
use serde_json::{Value, json};

fn chat(body: Value) -> Result<GenerateRequest, BadParam> {
    ChatRequest::parse(body)?.into_generate(context())
}

fn completion(body: Value) -> Result<GenerateRequest, BadParam> {
    CompletionRequest::parse(body)?.into_generate(context())
}

/// A minimal request with the fields of `extra` over it.
fn with(base: Value, extra: &str) -> Value {
    common::with(base, &serde_json::from_str(extra).expect("the case is JSON"))
}

fn base_chat(extra: &str) -> Value {
    with(json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}), extra)
}

fn base_completion(extra: &str) -> Value {
    with(json!({"model": "m", "prompt": "hi"}), extra)
}

#[test]
fn a_chat_parameter_is_honoured_or_refused_by_name() {
    let cases = [
        r#"{}"#,
        r#"{"temperature": 2.1}"#,
        r#"{"temperature": "hot"}"#,
        r#"{"temperature": 1e60}"#,
        r#"{"top_p": -0.1}"#,
        r#"{"top_k": -2}"#,
        r#"{"min_p": 2}"#,
        r#"{"repetition_penalty": 0}"#,
        r#"{"presence_penalty": 3}"#,
        r#"{"logit_bias": {"12": 101}}"#,
        r#"{"logit_bias": {"the": 1}}"#,
        r#"{"seed": 1.5}"#,
        r#"{"n": 0}"#,
        r#"{"n": 17}"#,
        r#"{"n": 70000}"#,
        r#"{"stop": ""}"#,
        r#"{"stop": 3}"#,
        r#"{"stop": ["a", "b"]}"#,
        r#"{"stream": "true"}"#,
        r#"{"stream_options": {"include_usage": true}}"#,
        r#"{"stream_options": {"include_usage": true, "x": 1}}"#,
        r#"{"stream_options": {"include_obfuscation": true}}"#,
        r#"{"max_tokens": 0}"#,
        r#"{"max_completion_tokens": -1}"#,
        r#"{"max_tokens": 99999999999999999999}"#,
        r#"{"max_tokens": 18446744073709551615}"#,
        r#"{"max_tokens": 5, "max_completion_tokens": 6}"#,
        r#"{"logprobs": 3}"#,
        r#"{"top_logprobs": 3}"#,
        r#"{"logprobs": true, "top_logprobs": 21}"#,
        r#"{"logprobs": true, "top_logprobs": 300}"#,
        r#"{"tools": [{"type": "function"}]}"#,
        r#"{"tool_choice": "required"}"#,
        r#"{"response_format": {"type": "json_object"}}"#,
        r#"{"reasoning_effort": "high"}"#,
        r#"{"store": true}"#,
        r#"{"modalities": ["audio"]}"#,
        r#"{"audio": {"voice": "x"}}"#,
        r#"{"temprature": 1}"#,
        r#"{"unknown": null}"#,
        r#"{"prompt": "hi"}"#,
        r#"{"model": 5}"#,
        r#"{"model": null}"#,
    ];
    insta::assert_snapshot!(table(&cases, |case| chat(base_chat(case))));
}

#[test]
fn values_that_ask_for_nothing_and_hints_pass() {
    let body = base_chat(
        r#"{"tools": [], "tool_choice": "none", "parallel_tool_calls": true, "functions": [],
            "function_call": "none", "response_format": {"type": "text"}, "store": false, "n": 1,
            "service_tier": "auto", "modalities": ["text"], "stream_options": {"include_usage": false},
            "user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k",
            "audio": null, "stop": null, "logit_bias": {}, "verbosity": "medium", "seed": -1, "top_k": -1}"#,
    );
    let request = chat(body).unwrap();
    assert_eq!(request.sampling.seed, u64::MAX);
    assert_eq!(request.sampling.top_k, 0);
    let body = base_completion(r#"{"suffix": "", "best_of": 1, "echo": false, "user": "u"}"#);
    assert_eq!(completion(body).unwrap().max_tokens, Some(16), "OpenAI's default on this endpoint");
}

#[test]
fn messages_are_checked_one_by_one() {
    let cases = [
        r#"[]"#,
        r#""hi""#,
        r#"["hi"]"#,
        r#"[{"content": "hi"}]"#,
        r#"[{"role": "user"}]"#,
        r#"[{"role": "user", "content": null}]"#,
        r#"[{"role": "user", "content": 5}]"#,
        r#"[{"role": "wizard", "content": "hi"}]"#,
        r#"[{"role": "tool", "content": "hi", "tool_call_id": "x"}]"#,
        r#"[{"role": "user", "content": "hi", "mood": "good"}]"#,
        r#"[{"role": "user", "content": "hi", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}]"#,
        r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[]"}}]}]"#,
        r#"[{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]}]"#,
        r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "1", "tool_call_id": "b"}]"#,
        r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}]}, {"role": "tool", "content": "1", "tool_call_id": "a"}]"#,
        r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x", "tool_calls": [{}]}]"#,
        r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#,
        r#"[{"role": "user", "content": [{"type": "text"}]}]"#,
        r#"[{"role": "assistant", "content": "x", "refusal": null, "audio": null, "tool_calls": null, "annotations": []}]"#,
    ];
    insta::assert_snapshot!(table(&cases, |case| chat(base_chat(&format!(r#"{{"messages": {case}}}"#)))));
}

#[test]
fn a_thought_comes_back_under_either_of_its_names() {
    let thought = |fields: &str| {
        let said = format!(r#"{{"messages": [{{"role": "assistant", "content": "x", {fields}}}]}}"#);
        let request = chat(base_chat(&said)).unwrap();
        let [Prompt::Chat { messages }] = request.prompts.as_slice() else { panic!("no conversation") };
        messages[0].reasoning_content.clone()
    };
    assert_eq!(thought(r#""reasoning": "a""#).as_deref(), Some("a"));
    assert_eq!(thought(r#""reasoning_content": "b", "reasoning": "a""#).as_deref(), Some("b"));
    assert_eq!(thought(r#""reasoning": null"#), None);
    let users = r#"{"messages": [{"role": "user", "content": "x", "reasoning": "a"}]}"#;
    assert_eq!(chat(base_chat(users)).unwrap_err().param, "messages[0].reasoning");
}

#[test]
fn text_parts_are_joined_and_developer_means_system() {
    let body = base_chat(
        r#"{"messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "name": "ada", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        ]}"#,
    );
    insta::assert_debug_snapshot!(chat(body).unwrap().prompts[0], @r#"
    Chat {
        messages: [
            ChatMessage {
                role: "system",
                content: "be brief",
                name: None,
                reasoning_content: None,
                tool_calls: [],
                tool_call_id: None,
            },
            ChatMessage {
                role: "user",
                content: "a\nb",
                name: Some(
                    "ada",
                ),
                reasoning_content: None,
                tool_calls: [],
                tool_call_id: None,
            },
        ],
    }
    "#);
}

#[test]
fn a_completion_parameter_is_honoured_or_refused_by_name() {
    let cases = [
        r#"{}"#,
        r#"{"prompt": null}"#,
        r#"{"prompt": []}"#,
        r#"{"prompt": [[]]}"#,
        r#"{"prompt": ["one"]}"#,
        r#"{"prompt": ["one", "two"]}"#,
        r#"{"prompt": ["one", [1, 2]]}"#,
        r#"{"prompt": ["one", "two"], "n": 16}"#,
        r#"{"prompt": ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "n": 16}"#,
        r#"{"prompt": ["one"], "suffix": "three"}"#,
        r#"{"prompt": "one", "suffix": ""}"#,
        r#"{"prompt": [1, 2], "suffix": "three"}"#,
        r#"{"prompt": [1, 2]}"#,
        r#"{"prompt": [[1, 2]]}"#,
        r#"{"prompt": [[[1]]]}"#,
        r#"{"prompt": [1, -2]}"#,
        r#"{"prompt": [1, "a"]}"#,
        r#"{"prompt": 7}"#,
        r#"{"suffix": "end"}"#,
        r#"{"best_of": 2}"#,
        r#"{"logprobs": 21}"#,
        r#"{"logprobs": true}"#,
        r#"{"logprobs": 0, "echo": true}"#,
        r#"{"echo": true, "ignore_eos": true, "max_tokens": 4294967296}"#,
        r#"{"max_tokens": 0}"#,
        r#"{"messages": []}"#,
        r#"{"response_format": {"type": "text"}}"#,
    ];
    insta::assert_snapshot!(table(&cases, |case| completion(base_completion(case))));
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    for body in [json!([]), json!("hi"), json!(null)] {
        assert!(chat(body.clone()).is_err());
        assert!(completion(body).is_err());
    }
}

#[test]
fn what_is_asked_for_reaches_the_node() {
    let body = base_chat(
        r#"{"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
            "presence_penalty": 0.2, "frequency_penalty": -0.3, "logit_bias": {"5": -100}, "seed": 42, "n": 3,
            "stop": ["x"], "max_tokens": 9, "logprobs": true, "top_logprobs": 2, "ignore_eos": true}"#,
    );
    insta::assert_debug_snapshot!(chat(body).unwrap());
    assert_eq!(chat(base_chat("{}")).unwrap().sampling.seed, 99, "without a seed the server's is used");
    assert_eq!(chat(base_chat("{}")).unwrap().sampling.temperature, 1.0);
}
