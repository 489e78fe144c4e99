//! What is asked in every dialect, and how answers to it are shown.

// Each test file uses its part.
#![allow(dead_code)]

use std::time::Duration;

use exo_api::{BadParam, ChatMessage, GenerateRequest, RequestContext, ToolCall};
use exo_types::{Principal, RequestId};
use serde_json::Value;

pub fn context() -> RequestContext {
    RequestContext {
        request: RequestId(1),
        principal: Principal::LOCAL,
        seed: 99,
        queue_wait_max: Duration::from_secs(120),
        leaves_out_hosted_tools: false,
    }
}

/// A minimal request with the fields of `extra` over it.
pub fn with(mut base: Value, extra: &Value) -> Value {
    for (name, value) in extra.as_object().expect("the case is an object") {
        base[name] = value.clone();
    }
    base
}

/// One line per case: the extra fields and what becomes of them.
pub fn table<C: std::fmt::Display>(
    cases: &[C],
    run: impl Fn(&C) -> Result<GenerateRequest, BadParam>,
) -> String {
    let line = |case: &C| match run(case) {
        Ok(_) => format!("{case}\n    ok\n"),
        Err(e) => format!("{case}\n    {} | {} | {e}\n", e.kind.code(), e.param),
    };
    cases.iter().map(line).collect()
}

/// One line per message: role, content, and what else it has.
pub fn shown(messages: &[ChatMessage]) -> String {
    let call = |call: &ToolCall| format!("{}({})#{}", call.function.name, call.function.arguments, call.id);
    let line = |m: &ChatMessage| {
        let calls: Vec<String> = m.tool_calls.iter().map(call).collect();
        let parts = [m.name.clone(), m.reasoning_content.clone(), m.tool_call_id.clone()];
        format!("{}: {:?} {:?} {calls:?}\n", m.role, m.content, parts.map(Option::unwrap_or_default))
    };
    messages.iter().map(line).collect()
}
