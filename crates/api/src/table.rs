//! The table of fields: what becomes of every field that a client of these endpoints may send. `docs/api.md`
//! is made of it, and requests are checked against it: a field that is not honoured passes only as it stands
//! here.

use std::fmt::Write;

use serde_json::Value;

use crate::fields::{BadParam, Fields, whole_number};

/// What becomes of each field, and what there is to say about it: `PATH: TREATMENT, NOTE`.
macro_rules! fields {
    ($($path:literal: $treatment:expr, $note:expr;)+) => {
        &[$($crate::table::Field { path: $path, treatment: $treatment, note: $note }),+]
    };
}

mod embeddings;
mod messages;
mod ollama;
mod responses;
mod tokens;

pub use embeddings::EMBEDDINGS;
pub use messages::{MESSAGES, MESSAGES_COUNT};
pub use ollama::{
    OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, OLLAMA_NAMED, OLLAMA_VERSION,
};
pub use responses::RESPONSES;
pub use tokens::{APPLY_TEMPLATE, DETOKENIZE, TOKENIZE};

/// What becomes of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// It does what it says, or the request is refused.
    Honoured,
    /// Any value passes: it tells us something and asks for nothing.
    Hint,
    /// Refused by name, but for these values, given as JSON, which ask for nothing.
    Refused(&'static [&'static str]),
}

use Treatment::{Hint, Honoured, Refused};

/// One field of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The field's path: `messages[].content`.
    pub path: &'static str,
    /// What becomes of the field.
    pub treatment: Treatment,
    /// What there is to say about the field.
    pub note: &'static str,
}

/// Fields of one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Method and path of the endpoint.
    pub endpoint: &'static str,
    /// Those of this endpoint, and those that it shares.
    pub fields: [&'static [Field]; 2],
}

impl Table {
    /// All fields.
    pub fn all(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.fields.into_iter().flatten()
    }
}

/// The tables of all endpoints.
pub const TABLES: [Table; 14] = [
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    RESPONSES,
    MESSAGES,
    MESSAGES_COUNT,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_NAMED,
    TOKENIZE,
    DETOKENIZE,
    APPLY_TEMPLATE,
];

/// `POST /v1/chat/completions`
pub const CHAT: Table = Table { endpoint: "POST /v1/chat/completions", fields: [CHAT_FIELDS, COMMON_FIELDS] };
/// `POST /v1/completions`
pub const COMPLETION: Table =
    Table { endpoint: "POST /v1/completions", fields: [COMPLETION_FIELDS, COMMON_FIELDS] };

/// What bounds penalties.
const WINDOW: &str =
    "extension: the penalties count so many tokens before the next, prompt included; 0, the default, is all";

const COMMON_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "max_tokens": Honoured,
        "an upper bound; the context bounds it anyway; 0 only in completions with `echo`, -1 (no bound) only in chat";
    "temperature": Honoured, "0 to 2, default 1; 0 is greedy";
    "top_p": Honoured, "0 to 1";
    "top_k": Honoured, "extension; 0 and -1 keep all";
    "min_p": Honoured, "extension; 0 to 1";
    "typical_p": Honoured, "extension; 0 to 1";
    "repetition_penalty": Honoured, "extension; 0.01 to 10";
    "repetition_penalty_window": Honoured, WINDOW;
    "presence_penalty": Honoured, "-2 to 2";
    "frequency_penalty": Honoured, "-2 to 2";
    "logit_bias": Honoured, "token ids of the vocabulary to -100 to 100, at most 1024";
    "seed": Honoured, "the same seed, prompt and parameters give the same text";
    "n": Honoured, "1 to 16";
    "stop": Honoured, "a string or up to 16";
    "stream": Honoured, "";
    "stream_options": Honoured, "";
    "stream_options.include_usage": Honoured, "with `stream: true`";
    "stream_options.include_obfuscation": Refused(&["false"]), "nothing is padded";
    "ignore_eos": Honoured, "extension, for benchmarks; not together with a format or tools";
    "repeat_penalty": Refused(&["1"]), "send `repetition_penalty`";
    "stop_token_ids": Refused(&["[]"]), "send their texts in `stop`";
    "min_tokens": Refused(&["0"]), "send `ignore_eos` or a format";
    "skip_special_tokens": Refused(&["true"]), "control tokens are never in the text";
    "cache_prompt": Hint, "what was read before is found by itself";
    "user": Hint, "";
    "metadata": Hint, "";
    "safety_identifier": Hint, "";
    "prompt_cache_key": Hint, "what was read before is found by itself";
    "prompt_cache_options": Hint, "the same";
    "prompt_cache_retention": Hint, "the same";
    "store": Refused(&["false"]), "answers are not kept";
    "service_tier": Refused(&[r#""auto""#, r#""default""#]), "there is one";
};

const CHAT_FIELDS: &[Field] = fields! {
    "messages": Honoured, "at most 16,384";
    "messages[].role": Honoured, "system, developer, user, assistant, tool";
    "messages[].content": Honoured, "a string or text parts";
    "messages[].content[].type": Honoured, "only `text`";
    "messages[].content[].text": Honoured, "";
    "messages[].content[].image_url": Refused(&[]), "models here read text";
    "messages[].content[].input_audio": Refused(&[]), "models here read text";
    "messages[].content[].file": Refused(&[]), "models here read text";
    "messages[].content[].refusal": Refused(&[]), "send it as text";
    "messages[].content[].cache_control": Hint, "what was read before is found by itself";
    "messages[].content[].prompt_cache_breakpoint": Hint, "what was read before is found by itself";
    "messages[].name": Honoured, "where the model's template has a place for it";
    "messages[].refusal": Refused(&["[]"]), "send it as content";
    "messages[].annotations": Refused(&["[]"]), "";
    "messages[].audio": Refused(&["[]"]), "models here read text";
    "messages[].function_call": Refused(&["[]"]), "the older form of `tool_calls`";
    "messages[].tool_calls": Honoured, "of the assistant";
    "messages[].tool_calls[].id": Honoured, "";
    "messages[].tool_calls[].type": Honoured, "only `function`";
    "messages[].tool_calls[].index": Hint, "streamed deltas have it";
    "messages[].tool_calls[].function": Honoured, "";
    "messages[].tool_calls[].function.name": Honoured, "";
    "messages[].tool_calls[].function.arguments": Honoured, "a JSON object as text";
    "messages[].tool_calls[].function.parsed_arguments": Hint, "the client's own reading of `arguments`";
    "messages[].parsed": Hint, "the client's own reading of `content`";
    "messages[].tool_calls[].custom": Refused(&[]), "tools are functions with a JSON schema";
    "messages[].tool_call_id": Honoured, "of a tool's result: a call before it";
    "messages[].reasoning_content": Honoured,
        "extension; goes to the model where its template has a place for it";
    "messages[].reasoning": Honoured, "another name of `reasoning_content`, which counts where both are sent";
    "max_completion_tokens": Honoured, "the newer name of `max_tokens`";
    "logprobs": Honoured, "of the raw logits; thoughts and calls have theirs among them";
    "top_logprobs": Honoured, "0 to 20";
    "response_format": Honoured,
        "kept to while the answer is made, never checked after it; with `tools`, an answer that calls none is of it";
    "response_format.type": Honoured, "`text`, `json_object`, `json_schema`";
    "response_format.json_schema": Honoured, "";
    "response_format.json_schema.name": Hint, "";
    "response_format.json_schema.description": Hint, "";
    "response_format.json_schema.schema": Honoured, "whole, or refused by the place of what is not enforced";
    "response_format.json_schema.strict": Hint, "every schema is enforced as if it were true";
    "grammar": Honoured, "extension: `{\"regex\": \"…\"}` or `{\"lark\": \"…\"}`";
    "tools": Honoured, "at most 512; where the model's template has a form for calls that is recognised";
    "tools[].type": Honoured, "only `function`";
    "tools[].function": Honoured, "";
    "tools[].function.name": Honoured, "1 to 64 letters, digits and `_-.`";
    "tools[].function.description": Honoured, "for the model";
    "tools[].function.parameters": Honoured,
        "arguments keep to it token by token, as far as it can be enforced";
    "tools[].function.strict": Honoured, "true: wholly, or the request is refused";
    "tools[].custom": Refused(&[]), "tools are functions with a JSON schema";
    "tools[].cache_control": Hint, "what was read before is found by itself";
    "tools[].function.cache_control": Hint, "the same";
    "tool_choice": Honoured, "none, auto, required, a function, allowed_tools";
    "tool_choice.type": Honoured, "";
    "tool_choice.function": Honoured, "";
    "tool_choice.allowed_tools": Honoured, "";
    "tool_choice.allowed_tools.mode": Honoured, "";
    "tool_choice.allowed_tools.tools": Honoured, "";
    "tool_choice.custom": Refused(&[]), "tools are functions with a JSON schema";
    "parallel_tool_calls": Honoured, "default true; false: one call at most";
    "functions": Refused(&["[]"]), "the older form of `tools`";
    "function_call": Refused(&[r#""none""#, r#""auto""#]), "the older form of `tool_choice`";
    "modalities": Refused(&[r#"["text"]"#]), "models here write text";
    "audio": Refused(&[]), "models here write text";
    "verbosity": Refused(&[r#""medium""#]), "say it in the prompt";
    "prediction": Refused(&[]), "tokens are guessed ahead by themselves";
    "reasoning_effort": Honoured,
        "`none`, `medium`, which is what the model does by itself, and efforts where it has them; where it has none, `minimal` and `low` bound a thought to 128 and 1,024 tokens, and higher ones are a bound that holds anyway; an effort asks nothing of a model that does not reason";
    "thinking_budget_tokens": Honoured,
        "extension; most tokens of a thought, which is closed then; asks nothing of a model that does not reason";
    "chat_template_kwargs": Honoured,
        "extension, as vLLM, SGLang and llama.cpp have it: `enable_thinking` alone";
    "chat_template_kwargs.enable_thinking": Honoured,
        "false is as `reasoning_effort`: `none`; true asks a model to think that does so only when it is told to";
    "guided_json": Refused(&[]), "send `response_format`";
    "guided_regex": Refused(&[]), "send `grammar`: `{\"regex\": …}`";
    "guided_choice": Refused(&[]), "send a `response_format` with an `enum`";
    "guided_grammar": Refused(&[]), "send `grammar`: `{\"lark\": …}`";
    "structured_outputs": Refused(&[]), "send `response_format` or `grammar`";
    "json_schema": Refused(&[]), "send `response_format`";
    "add_generation_prompt": Refused(&["true"]), "answers are new messages";
    "continue_final_message": Refused(&["false"]), "answers are new messages";
    "moderation": Refused(&[]), "nothing is moderated";
    "web_search_options": Refused(&[]), "no model here reaches the web";
};

const COMPLETION_FIELDS: &[Field] = fields! {
    "prompt": Honoured, "a string, token ids, or an array of these; times `n` at most 64 answers";
    "logprobs": Honoured, "0 to 20; of the raw logits, with `echo` of the prompt's tokens too";
    "echo": Honoured, "begin with the prompt; with `logprobs` nothing of it is taken from kept pages";
    "suffix": Honoured,
        "where the model has fill-in-the-middle tokens; control tokens in `prompt` are text then";
    "best_of": Refused(&["1"]), "ask for `n`";
};

impl Table {
    /// Takes out of an object of a request what passes and refuses the rest that is known. `place` is where
    /// it stands: empty for the body, `messages[].` for a message.
    pub fn check(&self, fields: &mut Fields, place: &str) -> Result<(), BadParam> {
        let of_place = |field: &&'static Field| {
            field.path.strip_prefix(place).is_some_and(|name| !name.contains(['.', '[']) && !name.is_empty())
        };
        for field in self.all().filter(of_place) {
            let name = &field.path[place.len()..];
            let passes = match field.treatment {
                Honoured => continue,
                Hint => None,
                Refused(passes) => Some(passes),
            };
            let (Some(value), Some(passes)) = (fields.take_value(name), passes) else { continue };
            let whole = whole_number(&value);
            let is_it = |v: Value| v == value || (whole.is_some() && whole_number(&v) == whole);
            if !passes.iter().any(|json| serde_json::from_str(json).is_ok_and(is_it)) {
                return Err(refusal(fields.name(name), passes, field.note));
            }
        }
        Ok(())
    }
}

fn refusal(name: String, passes: &[&str], note: &str) -> BadParam {
    let rest = match passes {
        [] => "leave it out".to_owned(),
        some => format!("leave it out or send {}", some.join(" or ")),
    };
    let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
    let message = format!("`{name}` is not supported: {rest}{note}");
    BadParam::unsupported(name, message)
}

/// The page of the documentation that lists all fields.
pub fn to_markdown() -> String {
    let mut page = String::from(
        "# The API's fields\n\nWritten by `cargo run -p exo-api --example openapi` from the table that requests are checked \
         against (`crates/api/src/table.rs`).\n\n*Honoured*: it does what it says, or the request is refused with a 400 \
         before the first token. *Hint*: any value passes, it asks for\nnothing. *Refused*: a 400 that names it, but for the \
         values given. What is not listed is refused as unknown.\nShapes are in `openapi.json`.\n",
    );
    let _ = write!(
        page,
        "\nOllama's API is spoken as of its version {OLLAMA_VERSION}: `/api/version` says so, because clients refuse servers that name an \
         older one,\nand has the version of exo in `exo`.\n"
    );
    for table in TABLES {
        let _ = write!(page, "\n## `{}`\n\n| field | | |\n|---|---|---|\n", table.endpoint);
        for Field { path, treatment, note } in table.all() {
            let treatment = match treatment {
                Honoured => "honoured".to_owned(),
                Hint => "hint".to_owned(),
                Refused([]) => "refused".to_owned(),
                Refused(passes) => format!("refused, but for `{}`", passes.join("`, `")),
            };
            let _ = writeln!(page, "| `{path}` | {treatment} | {} |", note.replace('|', "\\|"));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_field_stands_once_and_what_passes_is_json() {
        for table in TABLES {
            let mut seen = BTreeSet::new();
            for field in table.all() {
                assert!(seen.insert(field.path), "{} twice", field.path);
                if let Refused(passes) = field.treatment {
                    for json in passes {
                        assert!(serde_json::from_str::<Value>(json).is_ok(), "{}: {json}", field.path);
                    }
                }
            }
        }
    }
}
