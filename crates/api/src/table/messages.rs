//! Fields of `/v1/messages`.

use super::Treatment::{Hint, Honoured, Refused};
use super::{Field, Table};

/// `POST /v1/messages`
pub const MESSAGES: Table = Table { endpoint: "POST /v1/messages", fields: [MESSAGES_FIELDS, PROMPT_FIELDS] };
/// `POST /v1/messages/count_tokens`
pub const MESSAGES_COUNT: Table =
    Table { endpoint: "POST /v1/messages/count_tokens", fields: [PROMPT_FIELDS, &[]] };

const CACHED: &str = "what was read before is found by itself";

const MESSAGES_FIELDS: &[Field] = fields! {
    "max_tokens": Honoured, "must be there, at least 1; the context bounds it anyway";
    "stop_sequences": Honoured, "up to 16";
    "stream": Honoured, "";
    "temperature": Honoured, "0 to 2, default 1; 0 is greedy";
    "top_p": Honoured, "0 to 1";
    "top_k": Honoured, "0 and -1 keep all";
    "min_p": Honoured, "extension; 0 to 1";
    "typical_p": Honoured, "extension; 0 to 1";
    "repetition_penalty_window": Honoured, super::WINDOW;
    "repetition_penalty": Honoured, "extension; 0.01 to 10";
    "presence_penalty": Honoured, "extension; -2 to 2";
    "frequency_penalty": Honoured, "extension; -2 to 2";
    "logit_bias": Honoured, "extension; token ids of the vocabulary to -100 to 100, at most 1024";
    "seed": Honoured, "extension; the same seed, prompt and parameters give the same text";
    "metadata": Hint, "";
    "service_tier": Refused(&[r#""auto""#, r#""standard_only""#]), "there is one";
    "container": Refused(&[]), "no code runs here";
    "diagnostics": Hint, "what was read before is counted in `usage`";
    "inference_geo": Refused(&[]), "the cluster is where it is";
    "thread": Refused(&[]), "send the whole conversation; the vendor's packages do so by themselves";
};

const PROMPT_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "messages": Honoured, "at most 16,384; the last is not the assistant's";
    "messages[].role": Honoured, "user, assistant, system; turns of one role that follow each other are one";
    "messages[].content": Honoured, "a string or blocks; texts of a turn stand on lines of their own";
    "messages[].content[].type": Honoured, "text, tool_use, tool_result, thinking, redacted_thinking";
    "messages[].content[].text": Honoured, "";
    "messages[].content[].thinking": Honoured, "goes to the model where its template has a place for it";
    "messages[].content[].signature": Hint, "proves nothing here";
    "messages[].content[].data": Hint, "thoughts that another server encrypted are left out";
    "messages[].content[].id": Honoured, "of a call";
    "messages[].content[].name": Honoured, "of a call: the tool";
    "messages[].content[].input": Honoured, "of a call: an object";
    "messages[].content[].tool_use_id": Honoured, "of a result: a call before it";
    "messages[].content[].content": Honoured, "of a result: a string or text blocks";
    "messages[].content[].content[].type": Honoured, "only `text`";
    "messages[].content[].content[].text": Honoured, "";
    "messages[].content[].content[].cache_control": Hint, CACHED;
    "messages[].content[].content[].citations": Refused(&["[]"]), "send them as text";
    "messages[].content[].is_error": Honoured, "the model sees `Error: ` before the result";
    "messages[].content[].cache_control": Hint, CACHED;
    "messages[].content[].citations": Refused(&["[]"]), "send them as text";
    "messages[].content[].caller": Refused(&[r#"{"type": "direct"}"#]), "no code runs here";
    "messages[].content[].toolset_name": Refused(&[]), "there are no toolsets";
    "messages[].content[].source": Refused(&[]), "models here read text";
    "system": Honoured, "a string or text blocks";
    "system[].type": Honoured, "only `text`";
    "system[].text": Honoured, "";
    "system[].cache_control": Hint, CACHED;
    "system[].citations": Refused(&["[]"]), "send them as text";
    "tools": Honoured, "at most 512; where the model's template has a form for calls that is recognised";
    "tools[].type": Honoured,
        "`custom`; tools that run at their vendor are refused, or left out and named with the setting `leave_out_hosted_tools`";
    "tools[].name": Honoured, "1 to 128 letters, digits and `_-.`";
    "tools[].description": Honoured, "for the model";
    "tools[].input_schema": Honoured, "arguments keep to it token by token, as far as it can be enforced";
    "tools[].strict": Honoured, "true: wholly, or the request is refused";
    "tools[].cache_control": Hint, CACHED;
    "tools[].eager_input_streaming": Hint, "arguments always stream as they are made";
    "tools[].defer_loading": Refused(&["false"]), "every tool is shown to the model";
    "tools[].allowed_callers": Refused(&[r#"["direct"]"#]), "no code runs here";
    "tools[].input_examples": Refused(&["[]"]), "say them in `description`";
    "tool_choice": Honoured, "";
    "tool_choice.type": Honoured, "auto, any, tool, none";
    "tool_choice.name": Honoured, "of `tool`";
    "tool_choice.disable_parallel_tool_use": Honoured, "true: one call at most";
    "thinking": Honoured,
        "left out: none where the model can be told so; else it thinks, `usage` counts it, and the answer shows nothing of it";
    "thinking.type": Honoured,
        "`enabled` and `adaptive`: thoughts, also of a model that has them only when it is told to; `disabled`: none, or refused where the model always thinks";
    "thinking.budget_tokens": Honoured,
        "most tokens of a thought, which is closed then; asks nothing of a model that does not reason";
    "thinking.display": Honoured, "`summarized`: the whole thought is shown; `omitted`";
    "output_config": Honoured, "";
    "output_config.effort": Honoured,
        "`high` is what the model does by itself; others as `reasoning_effort` in chat; alone it asks for no thoughts";
    "output_config.format": Honoured, "kept to while the answer is made, never checked after it";
    "output_config.format.type": Honoured, "only `json_schema`";
    "output_config.format.schema": Honoured, "whole, or refused by the place of what is not enforced";
    "output_config.task_budget": Refused(&[]), "`max_tokens` bounds the answer";
    "output_format": Honoured, "the older name of `output_config.format`";
    "cache_control": Hint, CACHED;
    "context_management": Honoured, "";
    "context_management.edits": Honoured, "";
    "context_management.edits[].type": Honoured, "only `clear_thinking_20251015`";
    "context_management.edits[].keep": Honoured,
        "`all`, or `thinking_turns` and how many of the last; of these the model's template may leave out more";
    "mcp_servers": Refused(&["[]"]), "no model here reaches the network";
    "speed": Refused(&[r#""standard""#]), "there is one";
    "user_profile_id": Hint, "";
    "workspace_id": Hint, "";
};
