//! The table of fields against the official clients' types, against the parsers, and against the page that is
//! made of it.

use std::time::Duration;

use exo_api::anthropic::MessagesRequest;
use exo_api::ollama::{NamedModel, OllamaEmbed, OllamaRequest};
use exo_api::openai::{ChatRequest, CompletionRequest, EmbeddingsRequest, TokensBody};
use exo_api::responses::ResponsesRequest;
use exo_api::table::{
    self, APPLY_TEMPLATE, CHAT, COMPLETION, DETOKENIZE, EMBEDDINGS, Field, MESSAGES, MESSAGES_COUNT,
    OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, OLLAMA_NAMED, RESPONSES, TABLES, TOKENIZE,
    Table, Treatment,
};
use exo_api::{BadParam, BadParamKind, RequestContext};
use exo_types::{Principal, RequestId};
use serde_json::{Value, json};

/// Every field of the parameter types of the Python clients of these versions: endpoint and path. Where a
/// value is one of several kinds, `path.type=kind` names each, and only those that are taken are gone into.
const CLIENTS: [&str; 3] = [
    include_str!("data/openai-3.57.0-fields.txt"),
    include_str!("data/anthropic-2.14.0-fields.txt"),
    include_str!("data/ollama-0.6.3-fields.txt"),
];

/// Endpoint and path of each line.
fn lines() -> impl Iterator<Item = (Table, &'static str)> {
    CLIENTS.into_iter().flat_map(str::lines).map(|line| {
        let (endpoint, path) = line.split_once(' ').expect("endpoint and path");
        let table = match endpoint {
            "chat" => CHAT,
            "completion" => COMPLETION,
            "responses" => RESPONSES,
            "messages" => MESSAGES,
            "count_tokens" => MESSAGES_COUNT,
            "embeddings" => EMBEDDINGS,
            "ollama_embed" => OLLAMA_EMBED,
            "ollama_embeddings" => OLLAMA_EMBEDDINGS,
            "ollama_chat" => OLLAMA_CHAT,
            "ollama_generate" => OLLAMA_GENERATE,
            "ollama_named" => OLLAMA_NAMED,
            other => panic!("no table of {other}"),
        };
        (table, path)
    })
}

#[test]
fn every_field_of_the_official_clients_stands_in_the_table() {
    for (table, path) in lines().filter(|(_, path)| !path.contains('=')) {
        // What is below a field that is refused whole, or asks for nothing, needs no word of its own.
        let stands = |field: &Field| {
            let below = path.strip_prefix(field.path).is_some_and(|rest| rest.starts_with(['.', '[']));
            field.path == path || below && field.treatment != Treatment::Honoured
        };
        assert!(table.all().any(stands), "`{path}` of {} is not in the table", table.endpoint);
    }
}

#[test]
fn every_kind_of_the_official_clients_is_taken_or_refused_by_name() {
    for (table, path, kind) in lines().filter_map(|(table, line)| {
        let (path, kind) = line.split_once(".type=")?;
        Some((table, path, kind))
    }) {
        let mut body = base(table);
        if path == "input[].output[]" {
            body["input"][0] = json!({"type": "function_call_output", "call_id": "x"});
        }
        if path == "messages[].content[].content[]" {
            body["messages"][0]["content"][0] = json!({"type": "tool_result", "tool_use_id": "x"});
        }
        *place(&mut body, path) = json!({"type": kind});
        if let Err(error) = parse(table, body) {
            let is_named = error.kind == BadParamKind::Unsupported && error.message.contains(kind);
            // One that is taken has no more than its kind here.
            let is_taken = error.kind == BadParamKind::Missing || error.kind == BadParamKind::Invalid;
            assert!(is_named || is_taken, "{path} of type {kind}: {error:?}");
            let place = path.replace("[]", "[0]");
            assert!(error.param.starts_with(&place) || is_taken, "{path} of type {kind}: {error:?}");
        }
    }
}

fn parse(table: Table, body: Value) -> Result<(), BadParam> {
    let context = RequestContext {
        request: RequestId(1),
        principal: Principal::LOCAL,
        seed: 1,
        queue_wait_max: Duration::from_secs(1),
        leaves_out_hosted_tools: false,
    };
    match table.endpoint {
        e if e == CHAT.endpoint => ChatRequest::parse(body)?.into_generate(context).map(drop),
        e if e == COMPLETION.endpoint => CompletionRequest::parse(body)?.into_generate(context).map(drop),
        e if e == RESPONSES.endpoint => {
            let mut asked = ResponsesRequest::parse(body)?;
            let conversation = asked.conversation(Vec::new())?;
            asked.into_generate(conversation, context).map(drop)
        }
        e if e == MESSAGES.endpoint => MessagesRequest::parse(body)?.into_generate(context).map(drop),
        e if e == OLLAMA_CHAT.endpoint => OllamaRequest::parse_chat(body)?.into_generate(context).map(drop),
        e if e == OLLAMA_GENERATE.endpoint => {
            OllamaRequest::parse_generate(body)?.into_generate(context).map(drop)
        }
        e if e == EMBEDDINGS.endpoint => EmbeddingsRequest::parse(body).map(drop),
        e if e == OLLAMA_EMBED.endpoint => OllamaEmbed::parse_embed(body).map(drop),
        e if e == OLLAMA_EMBEDDINGS.endpoint => OllamaEmbed::parse_embeddings(body).map(drop),
        e if e == OLLAMA_NAMED.endpoint => NamedModel::parse(body).map(drop),
        e if e == TOKENIZE.endpoint => TokensBody::parse_tokenize(body).map(drop),
        e if e == DETOKENIZE.endpoint => TokensBody::parse_detokenize(body).map(drop),
        e if e == APPLY_TEMPLATE.endpoint => TokensBody::parse_apply_template(body).map(drop),
        _ => MessagesRequest::parse_count(body)?.into_generate(context).map(drop),
    }
}

/// A small request to the endpoint.
fn base(table: Table) -> Value {
    let text = json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
    match table.endpoint {
        e if e == COMPLETION.endpoint => json!({"model": "m", "prompt": "hi"}),
        e if e == RESPONSES.endpoint => {
            json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]})
        }
        e if e == OLLAMA_CHAT.endpoint => {
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        }
        e if e == OLLAMA_GENERATE.endpoint => json!({"model": "m", "prompt": "hi"}),
        e if e == EMBEDDINGS.endpoint || e == OLLAMA_EMBED.endpoint => json!({"model": "m", "input": "hi"}),
        e if e == OLLAMA_EMBEDDINGS.endpoint => json!({"model": "m", "prompt": "hi"}),
        e if e == OLLAMA_NAMED.endpoint => json!({"model": "m"}),
        e if e == DETOKENIZE.endpoint => json!({"tokens": [1]}),
        e if e == MESSAGES.endpoint => json!({"model": "m", "max_tokens": 9, "messages": text}),
        _ => json!({"model": "m", "messages": text}),
    }
}

/// The place of `path` in a request; what is missing on the way is made.
fn place<'a>(body: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(body, |place, name| {
        let (name, depth) = (name.trim_end_matches("[]"), name.matches("[]").count());
        if depth > 0 && !place[name].is_array() {
            place[name] = json!([{}]);
        }
        (0..depth).fold(&mut place[name], |place, _| &mut place[0])
    })
}

/// A small request with `value` at `path`; `None` for paths below fields that ask for other things of their
/// own.
fn with(table: Table, path: &str, value: Value) -> Option<Value> {
    let above = path.rsplit_once('.').map_or("", |(above, _)| above);
    let mut body = base(table);
    if !["", "options", "messages[]", "messages[].content[]", "input[]", "input[].content[]"].contains(&above)
    {
        return None;
    }
    *place(&mut body, path) = value;
    Some(body)
}

#[test]
fn the_parsers_do_what_the_table_says() {
    let odd = json!({"odd": ["value"]});
    for (table, Field { path, treatment, .. }) in
        TABLES.into_iter().flat_map(|table| table.all().map(move |field| (table, field)))
    {
        let body = |value: Value| with(table, path, value);
        let Some(strange) = body(odd.clone()) else { continue };
        let verdict = parse(table, strange);
        match treatment {
            Treatment::Hint => assert_eq!(verdict, Ok(()), "{path}"),
            Treatment::Honoured => {
                if let Err(error) = verdict {
                    let is_unknown = error.kind == BadParamKind::Unknown && error.param == *path;
                    assert!(!is_unknown, "{path}: {error}");
                }
            }
            Treatment::Refused(passes) => {
                let error = verdict.expect_err(path);
                let name = path.replace("[]", "[0]");
                assert_eq!(
                    (error.kind, error.param.as_str()),
                    (BadParamKind::Unsupported, name.as_str()),
                    "{error}"
                );
                for json in *passes {
                    let value = serde_json::from_str(json).expect("JSON");
                    assert_eq!(parse(table, body(value).expect("the same place")), Ok(()), "{path}: {json}");
                }
            }
        }
    }
}

#[test]
fn the_page_of_fields_is_up_to_date() {
    let page = include_str!("../../../docs/api.md");
    assert!(page == table::to_markdown(), "run `cargo run -p exo-api --example openapi`");
}
