//! The table of fields against the official client's types, against the parsers, and against the page that is made of it.

use std::time::Duration;

use exo_api::openai::table::{self, CHAT, COMPLETION, Field, Table, Treatment};
use exo_api::openai::{BadParam, BadParamKind, ChatRequest, CompletionRequest, RequestContext};
use exo_types::{Principal, RequestId};
use serde_json::{Value, json};

/// Every field of the parameter types of the Python client of this version: endpoint and path.
const CLIENT: &str = include_str!("data/openai-3.54.0-fields.txt");

#[test]
fn every_field_of_the_official_client_stands_in_the_table() {
    for line in CLIENT.lines() {
        let (endpoint, path) = line.split_once(' ').expect("endpoint and path");
        let table = if endpoint == "chat" { CHAT } else { COMPLETION };
        // What is below a field that is refused whole needs no word of its own.
        let stands = |field: &Field| {
            let below = path.strip_prefix(field.path).is_some_and(|rest| rest.starts_with(['.', '[']));
            field.path == path || below && matches!(field.treatment, Treatment::Refused(_))
        };
        assert!(table.all().any(stands), "`{path}` of {endpoint} is not in the table");
    }
}

fn parse(table: Table, body: Value) -> Result<(), BadParam> {
    let context = RequestContext {
        request: RequestId(1),
        principal: Principal::LOCAL,
        seed: 1,
        queue_wait_max: Duration::from_secs(1),
    };
    match table.endpoint.ends_with("chat/completions") {
        true => ChatRequest::parse(body)?.into_generate(context).map(drop),
        false => CompletionRequest::parse(body)?.into_generate(context).map(drop),
    }
}

/// A small request with `value` at `path`; `None` for paths below fields that ask for other things of their own.
fn with(path: &str, value: Value) -> Option<Value> {
    let mut body =
        json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
    let place = match path.rsplit_once('.') {
        None => &mut body,
        Some(("messages[]", _)) => &mut body["messages"][0],
        Some(("messages[].content[]", _)) => &mut body["messages"][0]["content"][0],
        _ => return None,
    };
    let name = path.rsplit('.').next()?;
    place[name] = value;
    Some(body)
}

#[test]
fn the_parsers_do_what_the_table_says() {
    let odd = json!({"odd": ["value"]});
    for (table, Field { path, treatment, .. }) in
        [CHAT, COMPLETION].into_iter().flat_map(|table| table.all().map(move |field| (table, field)))
    {
        let body = |value: Value| {
            let mut body = with(path, value)?;
            if table.endpoint == COMPLETION.endpoint {
                body.as_object_mut()?.remove("messages");
                if *path != "prompt" {
                    body["prompt"] = json!("hi");
                }
            }
            Some(body)
        };
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
