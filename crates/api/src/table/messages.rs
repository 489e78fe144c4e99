//! Fields of `/v1/messages`.

use super::Treatment::{Hint, Honoured, Refused};
use super::{Field, Table, field};

/// `POST /v1/messages`
pub const MESSAGES: Table = Table { endpoint: "POST /v1/messages", fields: [MESSAGES_FIELDS, PROMPT_FIELDS] };
/// `POST /v1/messages/count_tokens`
pub const MESSAGES_COUNT: Table =
    Table { endpoint: "POST /v1/messages/count_tokens", fields: [PROMPT_FIELDS, &[]] };

const CACHED: &str = "what was read before is found by itself";

const MESSAGES_FIELDS: &[Field] = &[
    field("max_tokens", Honoured, "must be there, at least 1; the context bounds it anyway"),
    field("stop_sequences", Honoured, "up to 16"),
    field("stream", Honoured, ""),
    field("temperature", Honoured, "0 to 2, default 1; 0 is greedy"),
    field("top_p", Honoured, "0 to 1"),
    field("top_k", Honoured, "0 and -1 keep all"),
    field("min_p", Honoured, "extension; 0 to 1"),
    field("typical_p", Honoured, "extension; 0 to 1"),
    field("repetition_penalty_window", Honoured, super::WINDOW),
    field("repetition_penalty", Honoured, "extension; 0.01 to 10"),
    field("presence_penalty", Honoured, "extension; -2 to 2"),
    field("frequency_penalty", Honoured, "extension; -2 to 2"),
    field("logit_bias", Honoured, "extension; token ids of the vocabulary to -100 to 100, at most 1024"),
    field("seed", Honoured, "extension; the same seed, prompt and parameters give the same text"),
    field("metadata", Hint, ""),
    field("service_tier", Refused(&[r#""auto""#, r#""standard_only""#]), "there is one"),
    field("container", Refused(&[]), "no code runs here"),
    field("diagnostics", Hint, "what was read before is counted in `usage`"),
    field("inference_geo", Refused(&[]), "the cluster is where it is"),
    field("thread", Refused(&[]), "send the whole conversation; the vendor's packages do so by themselves"),
];

const PROMPT_FIELDS: &[Field] = &[
    field("model", Honoured, "name or id of a model"),
    field("messages", Honoured, "at most 16,384; the last is not the assistant's"),
    field(
        "messages[].role",
        Honoured,
        "user, assistant, system; turns of one role that follow each other are one",
    ),
    field("messages[].content", Honoured, "a string or blocks; texts of a turn stand on lines of their own"),
    field("messages[].content[].type", Honoured, "text, tool_use, tool_result, thinking, redacted_thinking"),
    field("messages[].content[].text", Honoured, ""),
    field(
        "messages[].content[].thinking",
        Honoured,
        "goes to the model where its template has a place for it",
    ),
    field("messages[].content[].signature", Hint, "proves nothing here"),
    field("messages[].content[].data", Hint, "thoughts that another server encrypted are left out"),
    field("messages[].content[].id", Honoured, "of a call"),
    field("messages[].content[].name", Honoured, "of a call: the tool"),
    field("messages[].content[].input", Honoured, "of a call: an object"),
    field("messages[].content[].tool_use_id", Honoured, "of a result: a call before it"),
    field("messages[].content[].content", Honoured, "of a result: a string or text blocks"),
    field("messages[].content[].content[].type", Honoured, "only `text`"),
    field("messages[].content[].content[].text", Honoured, ""),
    field("messages[].content[].content[].cache_control", Hint, CACHED),
    field("messages[].content[].content[].citations", Refused(&["[]"]), "send them as text"),
    field("messages[].content[].is_error", Honoured, "the model sees `Error: ` before the result"),
    field("messages[].content[].cache_control", Hint, CACHED),
    field("messages[].content[].citations", Refused(&["[]"]), "send them as text"),
    field("messages[].content[].caller", Refused(&[r#"{"type": "direct"}"#]), "no code runs here"),
    field("messages[].content[].toolset_name", Refused(&[]), "there are no toolsets"),
    field("messages[].content[].source", Refused(&[]), "models here read text"),
    field("system", Honoured, "a string or text blocks"),
    field("system[].type", Honoured, "only `text`"),
    field("system[].text", Honoured, ""),
    field("system[].cache_control", Hint, CACHED),
    field("system[].citations", Refused(&["[]"]), "send them as text"),
    field(
        "tools",
        Honoured,
        "at most 512; where the model's template has a form for calls that is recognised",
    ),
    field(
        "tools[].type",
        Honoured,
        "`custom`; tools that run at their vendor are refused, or left out and named with the setting `leave_out_hosted_tools`",
    ),
    field("tools[].name", Honoured, "1 to 128 letters, digits and `_-.`"),
    field("tools[].description", Honoured, "for the model"),
    field(
        "tools[].input_schema",
        Honoured,
        "arguments keep to it token by token, as far as it can be enforced",
    ),
    field("tools[].strict", Honoured, "true: wholly, or the request is refused"),
    field("tools[].cache_control", Hint, CACHED),
    field("tools[].eager_input_streaming", Hint, "arguments always stream as they are made"),
    field("tools[].defer_loading", Refused(&["false"]), "every tool is shown to the model"),
    field("tools[].allowed_callers", Refused(&[r#"["direct"]"#]), "no code runs here"),
    field("tools[].input_examples", Refused(&["[]"]), "say them in `description`"),
    field("tool_choice", Honoured, ""),
    field("tool_choice.type", Honoured, "auto, any, tool, none"),
    field("tool_choice.name", Honoured, "of `tool`"),
    field("tool_choice.disable_parallel_tool_use", Honoured, "true: one call at most"),
    field(
        "thinking",
        Honoured,
        "left out: none where the model can be told so; else it thinks, `usage` counts it, and the answer shows nothing of it",
    ),
    field(
        "thinking.type",
        Honoured,
        "`enabled` and `adaptive`: thoughts, also of a model that has them only when it is told to; `disabled`: none, or refused where the model always thinks",
    ),
    field(
        "thinking.budget_tokens",
        Honoured,
        "most tokens of a thought, which is closed then; asks nothing of a model that does not reason",
    ),
    field("thinking.display", Honoured, "`summarized`: the whole thought is shown; `omitted`"),
    field("output_config", Honoured, ""),
    field(
        "output_config.effort",
        Honoured,
        "`high` is what the model does by itself; others as `reasoning_effort` in chat; alone it asks for no thoughts",
    ),
    field("output_config.format", Honoured, "kept to while the answer is made, never checked after it"),
    field("output_config.format.type", Honoured, "only `json_schema`"),
    field("output_config.format.schema", Honoured, "whole, or refused by the place of what is not enforced"),
    field("output_config.task_budget", Refused(&[]), "`max_tokens` bounds the answer"),
    field("cache_control", Hint, CACHED),
    field("context_management", Honoured, ""),
    field("context_management.edits", Honoured, ""),
    field("context_management.edits[].type", Honoured, "only `clear_thinking_20251015`"),
    field(
        "context_management.edits[].keep",
        Honoured,
        "`all`, or `thinking_turns` and how many of the last; of these the model's template may leave out more",
    ),
    field("mcp_servers", Refused(&["[]"]), "no model here reaches the network"),
    field("speed", Refused(&[r#""standard""#]), "there is one"),
    field("user_profile_id", Hint, ""),
    field("workspace_id", Hint, ""),
];
