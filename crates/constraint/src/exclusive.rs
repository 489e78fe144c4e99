//! Whether alternatives exclude each other: `oneOf` of such is `anyOf`, which the engine enforces.
//!
//! The engine looks for this itself, and not behind references, where the alternatives of a union with a tag
//! stand.

use serde_json::Value;

/// Schemas and values that are compared in all: objects of objects would be without end.
const COMPARED_MAX: usize = 20_000;
/// References that are followed, and objects that are gone into, one in another.
const DEPTH_MAX: usize = 8;

/// Whether no value can be of two of these schemas. `false` where that is not plain, or too much to compare.
pub(crate) fn exclude_each_other(root: &Value, schemas: &[Value]) -> bool {
    let mut comparison = Comparison { root, left: COMPARED_MAX };
    let mut pairs =
        schemas.iter().enumerate().flat_map(|(i, a)| schemas.iter().skip(i + 1).map(move |b| (a, b)));
    pairs.all(|(a, b)| comparison.are_apart(a, b, 0))
}

struct Comparison<'a> {
    root: &'a Value,
    /// So much more is compared.
    left: usize,
}

impl<'a> Comparison<'a> {
    /// Takes what comparing so much costs; whether it is there.
    fn spend(&mut self, count: usize) -> bool {
        let left = self.left.checked_sub(count);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    fn are_apart(&mut self, a: &'a Value, b: &'a Value, depth: usize) -> bool {
        if depth > DEPTH_MAX || !self.spend(1) {
            return false;
        }
        let (Some(a), Some(b)) = (target(self.root, a), target(self.root, b)) else { return false };
        if std::ptr::eq(a, b) {
            return false;
        }
        if let (Some(values), Some(others)) = (listed(a), listed(b)) {
            return self.spend(values.len().saturating_mul(others.len()))
                && !values.iter().any(|value| others.iter().any(|other| is_same(value, other)));
        }
        let (types, others) = (types(a), types(b));
        let can_meet = || types.iter().any(|t| others.iter().any(|o| meet(t, o)));
        if !types.is_empty() && !others.is_empty() {
            if !self.spend(types.len().saturating_mul(others.len())) {
                return false;
            }
            if !can_meet() {
                return true;
            }
        }
        // Where one of them is an object and must have a property, the other's value has it, too.
        let is_object = types == ["object"] || others == ["object"];
        let asked = [a, b].into_iter().filter_map(|schema| schema.get("required")?.as_array()).flatten();
        let property = |schema: &'a Value, name: &str| schema.get("properties")?.get(name);
        is_object
            && asked.filter_map(Value::as_str).any(|name| {
                let both = property(a, name).zip(property(b, name));
                both.is_some_and(|(a, b)| self.are_apart(a, b, depth + 1))
            })
    }
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

    /// Each of these is compared with each of the other's, and none is ever apart.
    #[test]
    fn objects_of_objects_are_compared_within_a_bound() {
        let names: Vec<String> = (0..8).map(|i| format!("p{i}")).collect();
        let of = |own: &str| {
            let own = json!({"$ref": format!("#/$defs/{own}")});
            let properties: serde_json::Map<_, _> = names.iter().map(|n| (n.clone(), own.clone())).collect();
            json!({"type": "object", "required": names, "properties": properties})
        };
        let root = json!({"$defs": {"a": of("a"), "b": of("b")}});
        let mut comparison = Comparison { root: &root, left: COMPARED_MAX };
        assert!(!comparison.are_apart(&root["$defs"]["a"], &root["$defs"]["b"], 0));
        assert_eq!(comparison.left, 0);
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
