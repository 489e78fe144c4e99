//! Which requests to `/v1/responses` pass, what they come to, and what is said of those that do not.

mod common;

use common::{context, shown, table, with};
use exo_api::responses::ResponsesRequest;
use exo_api::{BadParam, GenerateRequest, Prompt, Reasoning};
use serde_json::{Value, json};

fn ask(extra: Value) -> Result<GenerateRequest, BadParam> {
    let mut asked = ResponsesRequest::parse(with(json!({"model": "m", "input": "hi"}), &extra))?;
    let conversation = asked.conversation(Vec::new())?;
    asked.into_generate(conversation, context())
}

#[test]
fn items_become_a_neutral_conversation() {
    let items = json!({"instructions": "Be brief.", "input": [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The "}, {"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Rome."}], "status": "completed"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "weather", "arguments": "{\"city\": \"Rome\"}", "status": "completed"},
        {"type": "function_call", "call_id": "b", "name": "now", "arguments": ""},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "function_call_output", "call_id": "a", "output": "Sun."},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "In short."}], "encrypted_content": "x"},
        {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "Sun."},
        {"role": "user", "content": "And?"},
    ]});
    let mut prompts = ask(items).expect("it passes").prompts;
    let Some(Prompt::Chat { messages }) = prompts.pop() else { panic!("no conversation") };
    insta::assert_snapshot!(shown(&messages), @r#"
    system: "Be brief." ["", "", ""] []
    system: "Be kind." ["", "", ""] []
    user: "The \nweather?" ["", "", ""] []
    assistant: "I look." ["", "Rome.", ""] ["weather({\"city\": \"Rome\"})#a", "now({})#b"]
    tool: "noon" ["now", "", "b"] []
    tool: "Sun." ["weather", "", "a"] []
    assistant: "Sun." ["", "In short.", ""] []
    user: "And?" ["", "", ""] []
    "#);
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let tool = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}]);
    let cases = [
        json!({"input": null}),
        json!({"input": []}),
        json!({"input": 5}),
        json!({"input": [{"id": "x"}]}),
        json!({"input": [{"type": "web_search_call"}]}),
        json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        json!({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}),
        json!({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "[]"}]}),
        json!({"tools": [{"type": "custom", "name": "f"}]}),
        json!({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}),
        json!({"tools": [tool[0], tool[0]]}),
        json!({"tool_choice": "required"}),
        json!({"tools": tool, "tool_choice": {"type": "function", "name": "g"}}),
        json!({"tools": tool, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
        json!({"tools": tool, "tool_choice": {"type": "mcp"}}),
        json!({"reasoning": {"max_tokens": 0}}),
        json!({"text": {"format": {"type": "grammar"}}}),
        json!({"text": {"verbosity": "low"}}),
        json!({"reasoning": {"effort": "huge"}}),
        json!({"reasoning": {"context": "all_turns"}}),
        json!({"max_output_tokens": 0}),
        json!({"top_logprobs": 21}),
        json!({"truncation": "auto"}),
        json!({"stream_options": {"include_obfuscation": true}}),
        json!({"stop": "x"}),
        json!({"metadata": {"a": 1}}),
        json!({"metadata": {"a": "x".repeat(513)}}),
        json!({"metadata": (0..17).map(|i| (i.to_string(), "x".into())).collect::<serde_json::Map<_, _>>()}),
        json!({"input": [{"role": "user", "content": []}]}),
        json!({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}),
    ];
    insta::assert_snapshot!(table(&cases, |case| ask(case.clone())));
}

#[test]
fn what_coding_agents_send_by_default_passes() {
    let request = ask(json!({
        "instructions": "x", "store": false, "stream": true, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "medium", "summary": "auto"}, "prompt_cache_key": "k", "tool_choice": "auto",
        "parallel_tool_calls": false, "text": {"verbosity": "medium"}, "service_tier": "auto", "client_metadata": {"x": "y"}, "truncation": "disabled",
        "tools": [{"type": "function", "name": "shell", "description": "d", "strict": false, "parameters": {"type": "object"}}],
    }));
    let request = request.expect("it passes");
    assert_eq!(request.reasoning, Reasoning::Default, "the dialect's usual effort asks for nothing");
    assert!(request.tools.is_some_and(|tools| !tools.is_required && !tools.is_parallel));
    let budget =
        ask(json!({"reasoning": {"effort": "medium", "max_tokens": 9}})).expect("it passes").reasoning;
    assert_eq!(budget, Reasoning::Budget(9));
    let both = ask(json!({"reasoning": {"effort": "low", "max_tokens": 9}})).expect("it passes").reasoning;
    assert_eq!(both, Reasoning::effort("low").within(Some(9)));
    let effort = ask(json!({"reasoning": {"effort": "none"}})).expect("it passes").reasoning;
    assert_eq!(effort, Reasoning::Off);
}

#[test]
fn an_answer_names_its_format_whatever_was_asked_for() {
    let format = |text: Value| {
        let asked =
            ResponsesRequest::parse(json!({"model": "m", "input": "hi", "text": text})).expect("it passes");
        asked.head("1", 0).text
    };
    let plain = json!({"format": {"type": "text"}});
    assert_eq!(
        (format(Value::Null), format(json!({})), format(json!({"format": null}))),
        (plain.clone(), plain.clone(), plain)
    );
    let beside = json!({"verbosity": "medium", "format": {"type": "text"}});
    assert_eq!(format(json!({"verbosity": "medium"})), beside);
    let object = json!({"format": {"type": "json_object"}});
    assert_eq!(format(object.clone()), object);
}
