//! Patterns that an engine does not take are left out of a schema by themselves.

use exo_constraint::Schema;
use serde_json::{Map, json};

#[test]
fn only_patterns_that_are_refused_go_and_each_is_named() {
    let mut schema = json!({
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": "bad"}, "b": {"anyOf": [{"pattern": "good"}, {"pattern": "bad"}]}},
        "patternProperties": {"bad": true, "good": {"items": {"pattern": "bad", "minLength": 1}}},
        "const": {"pattern": "bad"},
    });
    let mut takes = |pattern: &str| if pattern == "bad" { Err("no".to_owned()) } else { Ok(()) };
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
fn what_is_tried_is_bounded() {
    let patterns = (0..1_000).map(|i| (format!("p{i}"), json!({"pattern": "x"}))).collect::<Map<_, _>>();
    let mut tried = 0;
    let left_out = Schema::drop_patterns(&mut json!({ "properties": patterns }), &mut |_| {
        tried += 1;
        Err(String::new())
    });
    assert_eq!((tried, left_out.len()), (64, 64));
}
