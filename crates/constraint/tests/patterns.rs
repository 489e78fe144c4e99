//! Patterns that an engine does not take are left out of a schema by themselves.

use exo_constraint::Schema;
use serde_json::{Map, Value, json};

#[test]
fn only_patterns_that_are_refused_go_and_each_is_named() {
    let mut schema = json!({
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": "bad"}, "b": {"anyOf": [{"pattern": "good"}, {"pattern": "bad"}]}},
        "patternProperties": {"bad": true, "good": {"items": {"pattern": "bad", "minLength": 1}}},
        "const": {"pattern": "bad"},
    });
    let mut takes = |text: &Value| if text["pattern"] == "bad" { Err("no".to_owned()) } else { Ok(()) };
    let left_out = Schema::drop_patterns(&mut schema, &mut takes);
    let expected = json!({
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "b": {"anyOf": [{"pattern": "good"}, {}]}},
        "patternProperties": {"good": {"items": {"minLength": 1}}},
        "const": {"pattern": "bad"},
    });
    assert_eq!(schema, expected);
    let places: Vec<_> = left_out.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!(
        places,
        [
            "#/patternProperties/bad",
            "#/properties/pattern/pattern",
            "#/properties/b/anyOf/1/pattern",
            "#/patternProperties/good/items/pattern"
        ]
    );
}

#[test]
fn what_stands_beside_a_pattern_goes_where_no_text_is_of_all() {
    let also = json!([{"type": ["string", "null"], "pattern": "c"}]);
    let mut schema = json!({"properties": {
        "alone": {"type": "string", "pattern": "a"},
        "short": {"type": "string", "pattern": "a", "maxLength": 3},
        "date": {"type": ["string", "null"], "pattern": "b", "allOf": also, "minLength": 1, "format": "uuid"},
        "listed": {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "c"}]},
        "object": {"pattern": "b", "allOf": [{"properties": {}}]},
    }});
    let mut tried = Vec::new();
    let left_out = Schema::drop_patterns(&mut schema, &mut |text| {
        tried.push(text.clone());
        let is_refused = text["pattern"] == "b" && text.get("allOf").is_some();
        if is_refused { Err("never".to_owned()) } else { Ok(()) }
    });
    assert_eq!(schema["properties"]["date"], json!({"type": ["string", "null"], "pattern": "b"}));
    assert_eq!(schema["properties"]["short"]["maxLength"], 3);
    assert!(schema["properties"]["object"].get("allOf").is_some(), "it is not of texts alone");
    let left_out: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    let expected =
        "at `#/properties/date`: a text cannot be held to a `pattern` and to what stands beside it: never";
    assert_eq!(left_out, [expected]);
    let whole = json!({"type": "string", "pattern": "b", "format": "uuid", "minLength": 1,
        "allOf": [{"type": "string", "pattern": "c"}]});
    assert!(tried.contains(&whole), "{tried:?}");
    assert!(tried.contains(&json!({"type": "string", "allOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "c"}]})));
}

#[test]
fn what_is_tried_is_bounded() {
    let patterns = (0..1_000).map(|i| (format!("p{i}"), json!({"pattern": "x"}))).collect::<Map<_, _>>();
    let mut tried = 0;
    let left_out = Schema::drop_patterns(&mut json!({ "properties": patterns }), &mut |_| {
        tried += 1;
        Err(String::new())
    });
    assert_eq!((tried, left_out.len()), (64, 64));
}
