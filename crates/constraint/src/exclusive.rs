//! Whether alternatives exclude each other: `oneOf` of such is `anyOf`, which the engine enforces.
//!
//! The engine looks for this itself, and not behind references, where the alternatives of a union with a tag
//! stand.

use serde_json::Value;

/// Most alternatives that are compared with each other.
const ALTERNATIVES_MAX: usize = 200;
/// References that are followed, and objects that are gone into, one in another.
const DEPTH_MAX: usize = 8;

/// Whether no value can be of two of these schemas. `false` where that is not plain.
pub(crate) fn exclude_each_other(root: &Value, schemas: &[Value]) -> bool {
    let others = |i: usize| &schemas[i + 1..];
    schemas.len() <= ALTERNATIVES_MAX
        && schemas.iter().enumerate().all(|(i, a)| others(i).iter().all(|b| are_apart(root, a, b, 0)))
}

fn are_apart<'a>(root: &'a Value, a: &'a Value, b: &'a Value, depth: usize) -> bool {
    let (Some(a), Some(b)) = (target(root, a), target(root, b)) else { return false };
    if depth > DEPTH_MAX {
        return false;
    }
    if let (Some(values), Some(others)) = (listed(a), listed(b)) {
        return !values.iter().any(|value| others.iter().any(|other| is_same(value, other)));
    }
    let (types, others) = (types(a), types(b));
    if !types.is_empty() && !others.is_empty() && !types.iter().any(|t| others.iter().any(|o| meet(t, o))) {
        return true;
    }
    // Where one of them is an object and must have a property, the other's value has it, too.
    let is_object = types == ["object"] || others == ["object"];
    let asked = [a, b].into_iter().filter_map(|schema| schema.get("required")?.as_array()).flatten();
    let property = |schema: &'a Value, name: &str| schema.get("properties")?.get(name);
    is_object
        && asked.filter_map(Value::as_str).any(|name| {
            let both = property(a, name).zip(property(b, name));
            both.is_some_and(|(a, b)| are_apart(root, a, b, depth + 1))
        })
}

/// What a schema that is nothing but a reference leads to. Beside a reference the other words hold as well,
/// and each of both can be enough.
fn target<'a>(root: &'a Value, mut schema: &'a Value) -> Option<&'a Value> {
    for _ in 0..DEPTH_MAX {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return Some(schema) };
        schema = root.pointer(reference.strip_prefix('#')?)?;
    }
    None
}

/// All values that a schema takes, where it lists them.
fn listed(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.iter().collect()),
        (None, None) => None,
    }
}

/// Numbers are the same however they are written.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b || (!is_plain(a) && !is_plain(b)),
    }
}

/// Whether two of these can be compared as they are written: lists and objects hold numbers.
fn is_plain(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

/// The types that a schema takes; none where it does not say.
fn types(schema: &Value) -> Vec<&str> {
    let of = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if let Some(values) = listed(schema) {
        return values.into_iter().map(of).collect();
    }
    match schema.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Whether a value can be of both types.
fn meet(a: &str, b: &str) -> bool {
    let is_number = |name: &str| matches!(name, "integer" | "number");
    a == b || (is_number(a) && is_number(b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn alternatives_with_a_tag_of_their_own_exclude_each_other_behind_references_too() {
        let root = json!({"$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "puppy"]}}, "required": ["kind"]},
            "pet": {"$ref": "#/$defs/cat"},
            "open": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
            "silent": {"type": "object", "properties": {"kind": {"const": "dog"}}},
            "self": {"$ref": "#/$defs/self"},
        }});
        let of = |names: &[&str]| {
            let schemas: Vec<Value> =
                names.iter().map(|name| json!({"$ref": format!("#/$defs/{name}")})).collect();
            exclude_each_other(&root, &schemas)
        };
        assert!(of(&["cat", "dog"]) && of(&["pet", "dog"]));
        assert!(of(&["cat", "silent"]), "the property is asked for by one, and would be the other's");
        for overlap in [
            &["cat", "pet"][..],
            &["cat", "dog", "open"],
            &["silent", "dog"],
            &["cat", "self"],
            &["cat", "gone"],
        ] {
            assert!(!of(overlap), "{overlap:?}");
        }
    }

    #[test]
    fn types_and_values_that_differ_exclude_each_other() {
        let apart = |a: Value, b: Value| exclude_each_other(&Value::Null, &[a, b]);
        assert!(apart(json!({"type": "string"}), json!({"type": ["integer", "null"]})));
        assert!(apart(json!({"const": 1}), json!({"enum": [2, "1"]})));
        assert!(apart(json!({"const": "a"}), json!({"type": "object"})));
        for (a, b) in [
            (json!({"type": "integer"}), json!({"type": "number"})),
            (json!({"const": 1}), json!({"const": 1.0})),
            (json!({"const": [1]}), json!({"const": [1.0]})),
            (json!({"const": "a"}), json!({"type": "string"})),
            (json!({}), json!({"type": "string"})),
            (json!(true), json!({"type": "string"})),
            (json!({"required": ["a"]}), json!({"required": ["b"]})),
            // Nothing says that it is an object.
            (
                json!({"properties": {"k": {"const": 1}}, "required": ["k"]}),
                json!({"properties": {"k": {"const": 2}}, "required": ["k"]}),
            ),
        ] {
            assert!(!apart(a.clone(), b.clone()), "{a} {b}");
        }
    }
}
