//! Objects whose schema names properties and says nothing of others hold none but these.
//!
//! JSON Schema allows any others there. A model that is held to the schema alone then goes on with keys of
//! its own until no token is left; who writes such a schema means the names that it has. What comes is valid
//! either way.

use serde_json::{Map, Value};

use crate::Schema;
use crate::texts::lists_only_texts;

/// Words beside `properties` that may ask for more than these.
const MORE: [&str; 8] =
    ["$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "oneOf", "patternProperties"];

impl Schema {
    /// The same with its objects closed. A schema whose parts are laid over one another stays as it is: what
    /// one part leaves open, another may name. So does one of which something was left out.
    pub fn closed(mut self) -> Self {
        if self.left_out.is_empty() && !is_overlaid(&self.value) {
            close(&mut self.value);
        }
        self
    }
}

/// Whether somewhere several schemas hold for one value.
fn is_overlaid(schema: &Value) -> bool {
    let Value::Object(words) = schema else { return false };
    let is_beside = |word: &str| words.contains_key(word);
    let has_own = ["properties", "patternProperties", "additionalProperties"].into_iter().any(is_beside);
    let overlays = ["$ref", "allOf", "anyOf", "oneOf"].into_iter().filter(|word| is_beside(word)).count();
    let lists_others = is_beside("allOf") && !lists_only_texts(words);
    lists_others || overlays > 1 || (overlays == 1 && has_own) || places(words).any(is_overlaid)
}

fn close(schema: &mut Value) {
    let Value::Object(words) = schema else { return };
    let is_open = words.get("properties").and_then(Value::as_object).is_some_and(|named| {
        let asked = words.get("required").and_then(Value::as_array).into_iter().flatten();
        let names_all = asked.filter_map(Value::as_str).all(|name| named.contains_key(name));
        let least = words.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        let is_enough = usize::try_from(least).is_ok_and(|least| least <= named.len());
        names_all && is_enough && !MORE.iter().any(|word| words.contains_key(*word))
    });
    if is_open {
        words.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for (word, value) in words {
        match (word.as_str(), value) {
            ("additionalProperties" | "items", value) => close(value),
            ("anyOf" | "prefixItems", Value::Array(list)) => list.iter_mut().for_each(close),
            ("$defs" | "definitions" | "patternProperties" | "properties", Value::Object(named)) => {
                named.values_mut().for_each(close);
            }
            _ => {}
        }
    }
}

/// The schemas in a schema.
fn places(words: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    words.iter().flat_map(|(word, value)| -> Box<dyn Iterator<Item = &Value>> {
        match (word.as_str(), value) {
            ("additionalProperties" | "items", value) => Box::new(std::iter::once(value)),
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => Box::new(list.iter()),
            ("$defs" | "definitions" | "patternProperties" | "properties", Value::Object(named)) => {
                Box::new(named.values())
            }
            _ => Box::new(std::iter::empty()),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Schema, Strictness};

    fn closed(schema: &Value) -> Value {
        Schema::read(schema, Strictness::Whole).unwrap().closed().value
    }

    #[test]
    fn objects_that_name_properties_hold_no_others() {
        let person =
            json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let read = closed(&json!({
            "type": "object",
            "properties": {"who": {"$ref": "#/$defs/person"}, "all": {"type": "array", "items": person},
                "any": {"type": "object"}},
            "$defs": {"person": {"anyOf": [person, {"type": "null"}]}}
        }));
        for place in ["", "/properties/all/items", "/$defs/person/anyOf/0"] {
            let object = read.pointer(place).unwrap();
            assert_eq!(object.get("additionalProperties"), Some(&json!(false)), "{place}: {object}");
        }
        assert_eq!(
            read.pointer("/properties/any"),
            Some(&json!({"type": "object"})),
            "it says nothing of names"
        );
        let none = json!({"type": "object", "properties": {}});
        assert_eq!(closed(&none).get("additionalProperties"), Some(&json!(false)), "it names none");
    }

    #[test]
    fn patterns_that_a_text_has_to_match_at_once_lay_no_object_over_another() {
        let at = json!({"type": "string", "format": "date-time", "pattern": "Z$"});
        let listed =
            json!({"type": "string", "allOf": [{"pattern": "a"}, {"type": "string", "minLength": 2}]});
        let read = closed(&json!({"type": "object", "properties": {"at": at, "name": listed}}));
        assert_eq!(read.get("additionalProperties"), Some(&json!(false)));
        let other =
            json!({"type": "object", "properties": {"a": {"allOf": [{"type": "object"}, {"pattern": "a"}]}}});
        assert_eq!(closed(&other).get("additionalProperties"), None, "types are laid over one another");
    }

    #[test]
    fn what_a_schema_says_of_others_holds() {
        let properties = json!({"a": {"type": "integer"}});
        for schema in [
            json!({"properties": properties, "additionalProperties": true}),
            json!({"properties": properties, "additionalProperties": {"type": "integer"}}),
            json!({"properties": properties, "patternProperties": {"^b": {"type": "integer"}}}),
            json!({"properties": properties, "required": ["a", "b"]}),
            json!({"properties": properties, "minProperties": 2, "required": ["a"]}),
            json!({"allOf": [{"properties": properties}, {"properties": {"b": {"type": "integer"}}}]}),
            json!({"properties": properties, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}),
            json!({"properties": properties, "oneOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}),
            json!({"properties": {"x": {"$ref": "#/$defs/x", "properties": properties}},
                "$defs": {"x": {"properties": properties}}}),
        ] {
            let read = Schema::read(&schema, Strictness::Whole).unwrap();
            assert_eq!(read.clone().closed(), read, "{schema}");
        }
    }
}
