//! Parameters OpenAI has and we do not: which values ask for nothing, and which are mere hints.

use serde_json::Value;

use super::fields::{BadParam, Fields};

/// What passes.
#[derive(Clone, Copy)]
enum Pass {
    /// Any value: it tells us something and asks for nothing.
    Hint,
    /// Any of these, given as JSON; else the message says which.
    Only(&'static [&'static str]),
}

use Pass::{Hint, Only};

/// For both endpoints.
const COMMON: &[(&str, Pass)] = &[
    ("user", Hint),
    ("metadata", Hint),
    ("safety_identifier", Hint),
    ("prompt_cache_key", Hint),
    ("store", Only(&["false"])),
    ("service_tier", Only(&[r#""auto""#, r#""default""#])),
];

/// For `/v1/chat/completions`.
const CHAT: &[(&str, Pass)] = &[
    ("tools", Only(&["[]"])),
    // With no tools there is nothing to choose from: both mean "answer".
    ("tool_choice", Only(&[r#""none""#, r#""auto""#])),
    ("parallel_tool_calls", Only(&["true", "false"])),
    ("functions", Only(&["[]"])),
    ("function_call", Only(&[r#""none""#, r#""auto""#])),
    ("response_format", Only(&[r#"{"type":"text"}"#])),
    ("modalities", Only(&[r#"["text"]"#])),
    ("verbosity", Only(&[r#""medium""#])),
    ("audio", Only(&[])),
    ("prediction", Only(&[])),
    ("reasoning_effort", Only(&[r#""none""#])),
    ("web_search_options", Only(&[])),
];

/// For `/v1/completions`.
const COMPLETION: &[(&str, Pass)] = &[("suffix", Only(&[r#""""#])), ("best_of", Only(&["1"]))];

/// Takes out of a chat request what passes and refuses the rest that we know of.
pub fn check_chat(fields: &mut Fields) -> Result<(), BadParam> {
    check(fields, COMMON)?;
    check(fields, CHAT)
}

/// Takes out of a completion request what passes and refuses the rest that we know of.
pub fn check_completion(fields: &mut Fields) -> Result<(), BadParam> {
    check(fields, COMMON)?;
    check(fields, COMPLETION)
}

fn check(fields: &mut Fields, table: &[(&str, Pass)]) -> Result<(), BadParam> {
    for (name, pass) in table {
        let (Some(value), Only(allowed)) = (fields.take_value(name), pass) else { continue };
        if !allowed.iter().any(|json| serde_json::from_str::<Value>(json).is_ok_and(|v| v == value)) {
            return Err(refusal(name, allowed));
        }
    }
    Ok(())
}

fn refusal(name: &str, allowed: &[&str]) -> BadParam {
    let rest = match allowed {
        [] => "leave it out".to_owned(),
        some => format!("leave it out or send {}", some.join(" or ")),
    };
    BadParam::unsupported(name, format!("`{name}` is not supported: {rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_neutral_value_in_the_tables_is_json() {
        for (name, pass) in COMMON.iter().chain(CHAT).chain(COMPLETION) {
            if let Only(allowed) = pass {
                for json in *allowed {
                    assert!(serde_json::from_str::<Value>(json).is_ok(), "{name}: {json}");
                }
            }
        }
    }
}
