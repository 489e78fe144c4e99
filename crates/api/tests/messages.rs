//! Which requests to `/v1/messages` pass, what they come to, and what is said of those that do not.

mod common;

use common::{context, shown, table, with};
use exo_api::anthropic::MessagesRequest;
use exo_api::{BadParam, ChatMessage, GenerateRequest, Prompt, Reasoning};
use serde_json::{Value, json};

fn ask(extra: Value) -> Result<GenerateRequest, BadParam> {
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    MessagesRequest::parse(with(body, &extra))?.into_generate(context())
}

fn conversation(extra: Value) -> Vec<ChatMessage> {
    match ask(extra).expect("it passes").prompts.pop() {
        Some(Prompt::Chat { messages }) => messages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_become_a_neutral_conversation() {
    let messages = conversation(json!({
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": "What is"},
            {"role": "user", "content": [{"type": "text", "text": "the weather?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Rome.", "signature": "exo"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look.", "citations": null},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "b", "name": "now", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "noon"}]},
                {"type": "tool_result", "tool_use_id": "a", "content": "no such city", "is_error": true},
                {"type": "text", "text": "And?"},
            ]},
        ],
    }));
    insta::assert_snapshot!(shown(&messages), @r#"
    system: "Be brief.\nBe kind." ["", "", ""] []
    user: "What is\nthe weather?" ["", "", ""] []
    assistant: "I look." ["", "Rome.", ""] ["weather({\"city\":\"Rome\"})#a", "now({})#b"]
    tool: "noon" ["now", "", "b"] []
    tool: "Error: no such city" ["weather", "", "a"] []
    user: "And?" ["", "", ""] []
    "#);
}

#[test]
fn an_answer_without_a_block_comes_back() {
    let said = |role: &str, content: Value| json!({"role": role, "content": content});
    let turns = json!([said("user", json!("Go.")), said("assistant", json!([])), said("user", json!("On."))]);
    let messages = conversation(json!({"messages": turns}));
    let turns: Vec<_> = messages.iter().map(|turn| (turn.role.as_str(), turn.content.as_str())).collect();
    assert_eq!(turns, [("user", "Go."), ("assistant", ""), ("user", "On.")]);
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let tool = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let cases = [
        json!({"max_tokens": null}),
        json!({"max_tokens": 0}),
        json!({"messages": []}),
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]}),
        json!({"messages": [{"role": "wizard", "content": "hi"}]}),
        user(json!({"type": "image", "source": {}})),
        user(json!({"type": "document"})),
        user(json!({"type": "thinking", "thinking": "x"})),
        user(json!({"type": "text", "text": "x", "mood": 1})),
        user(json!({"type": "tool_result", "tool_use_id": "none"})),
        json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        json!({"tools": [{"name": "f"}]}),
        json!({"tools": [{"name": "f", "input_schema": "x"}]}),
        json!({"tools": [{"name": "a b", "input_schema": {}}]}),
        json!({"tools": [tool[0], tool[0]]}),
        json!({"tools": tool, "tool_choice": {"type": "tool", "name": "g"}}),
        json!({"tool_choice": {"type": "any"}}),
        json!({"tools": tool, "tool_choice": "any"}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
        json!({"output_config": {"format": {"type": "text"}}}),
        json!({"output_config": {"effort": "huge"}}),
        json!({"thinking": {"type": "between_tools"}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 2000, "display": "loud"}}),
        json!({"stop_sequences": [""]}),
        json!({"temperature": 3}),
        json!({"mcp_servers": [{}]}),
        json!({"n": 2}),
        json!({"messages": [{"role": "user", "content": []}]}),
        json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
        json!({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}]}}),
        json!({"diagnostics": {"previous_message_id": null}}),
        json!({"tools": [{"name": "x".repeat(129), "input_schema": {}}]}),
    ];
    insta::assert_snapshot!(table(&cases, |case| ask(case.clone())));
}

#[test]
fn thinking_and_effort_become_what_is_asked_of_the_model() {
    let reasoning = |extra| ask(extra).expect("it passes").reasoning;
    assert_eq!(reasoning(json!({})), Reasoning::Unasked);
    let budget = json!({"type": "enabled", "budget_tokens": 2048});
    assert_eq!(reasoning(json!({"thinking": budget})), Reasoning::On { tokens_max: Some(2048) });
    let both = json!({"thinking": budget, "output_config": {"effort": "low"}});
    let within = Reasoning::effort("low").within(Some(2048));
    assert_eq!((reasoning(both), within.tokens_max()), (within, Some(2048)));
    assert_eq!(
        reasoning(json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}})),
        Reasoning::Off
    );
    assert_eq!(reasoning(json!({"output_config": {"effort": "high"}})), Reasoning::Unasked);
    assert_eq!(reasoning(json!({"output_config": {"effort": "low"}})), Reasoning::effort_unasked("low"));
}

#[test]
fn what_coding_agents_send_by_default_passes() {
    let request = ask(json!({
        "stream": true, "temperature": 1, "metadata": {"user_id": "u"}, "stop_sequences": [],
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [{"name": "Bash", "description": "d", "input_schema": {"$schema": "x", "type": "object"},
            "eager_input_streaming": true, "cache_control": {"type": "ephemeral"}}],
    }));
    assert!(request.is_ok_and(|request| request.tools.is_some_and(|tools| !tools.is_required)));
}

#[test]
fn thoughts_of_old_turns_are_left_out_where_that_is_asked() {
    let thinks = |thought: &str| json!({"type": "thinking", "thinking": thought, "signature": "exo"});
    let call = json!({"type": "tool_use", "id": "a", "name": "mcp__a_server_of_some_name__and_a_tool_whose_name_is_long_as_well", "input": {}});
    let messages = json!([
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": [thinks("A"), {"type": "text", "text": "x"}]},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": [thinks("B"), call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": []}, {"type": "text", "text": "y"}]},
        {"role": "assistant", "content": [thinks("C"), {"type": "text", "text": "z"}]},
        {"role": "user", "content": "3"},
    ]);
    let thoughts = |keep: Value| -> String {
        let edits = json!({"edits": [{"type": "clear_thinking_20251015", "keep": keep}]});
        let messages = conversation(json!({"messages": messages, "context_management": edits}));
        messages.into_iter().filter_map(|message| message.reasoning_content).collect()
    };
    assert_eq!(thoughts(json!({"type": "thinking_turns", "value": 1})), "BC");
    assert_eq!(thoughts(json!({"type": "thinking_turns", "value": 2})), "ABC");
    assert_eq!(thoughts(json!({"type": "all"})), "ABC");
    assert_eq!(thoughts(json!("all")), "ABC");
    assert_eq!(thoughts(json!(null)), "BC");
}
