//! A JSON schema before the engine sees it: what it can enforce exactly, and the place of what it cannot.
//!
//! The engine says that a keyword is not implemented and not where; it takes unknown words for annotations, and options out of
//! `x-guidance`. Here every word of every place is known: kept, left out because it asks for nothing, or refused by its JSON Pointer.

use serde_json::{Map, Value};

use crate::SchemaError;

/// How a schema is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// Every word of it, or it is refused.
    Whole,
    /// As much of it as can be enforced; the rest is named.
    Possible,
}

/// A schema that holds nothing but what the engine enforces.
#[derive(Clone, PartialEq, Debug)]
pub struct Schema {
    /// The schema, without annotations.
    pub value: Value,
    /// What was left out, where less than the whole is enough.
    pub left_out: Vec<SchemaError>,
}

/// Deepest nesting, well above what people write and below what any parser's stack bears.
const DEPTH_MAX: usize = 64;
/// Most places of a schema.
const PLACES_MAX: usize = 20_000;
/// Most places that are named as left out.
const LEFT_OUT_MAX: usize = 200;

/// Words that say something and ask for nothing.
const ANNOTATIONS: [&str; 17] = [
    "$anchor",
    "$comment",
    "$id",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
];
/// Words with a plain value, which the engine enforces.
const PLAIN: [&str; 17] = [
    "$schema",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "type",
];
/// Words whose value is a schema, a list of schemas, or schemas by name.
const ONE: [&str; 2] = ["additionalProperties", "items"];
const MANY: [&str; 3] = ["allOf", "anyOf", "prefixItems"];
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];
/// Formats that are asserted.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

impl Schema {
    /// Reads a schema that stands at `#`.
    pub fn read(schema: &Value, strictness: Strictness) -> Result<Self, SchemaError> {
        let mut walk =
            Walk { root: schema, strictness, places: 0, depth: 0, left_out: Vec::new(), never: None };
        let value = walk.schema(schema, &mut Vec::new())?;
        walk.never.map_or(Ok(Self { value, left_out: walk.left_out }), Err)
    }

    /// Any object.
    pub fn object() -> Self {
        Self { value: serde_json::json!({"type": "object"}), left_out: Vec::new() }
    }
}

struct Walk<'a> {
    root: &'a Value,
    strictness: Strictness,
    places: usize,
    depth: usize,
    left_out: Vec<SchemaError>,
    /// What is refused however the schema is meant.
    never: Option<SchemaError>,
}

type Path = Vec<String>;

fn error(path: &[String], reason: impl Into<String>) -> SchemaError {
    let escaped = path.iter().map(|part| part.replace('~', "~0").replace('/', "~1"));
    let pointer = escaped.fold("#".to_owned(), |at, part| format!("{at}/{part}"));
    SchemaError { pointer: pointer.chars().take(200).collect(), reason: reason.into() }
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Value, path: &mut Path) -> Result<Value, SchemaError> {
        self.depth += 1;
        let read = self.words(schema, path);
        self.depth -= 1;
        read
    }

    fn words(&mut self, schema: &Value, path: &mut Path) -> Result<Value, SchemaError> {
        self.places += 1;
        if self.depth > DEPTH_MAX {
            return Err(error(path, format!("the schema is nested deeper than {DEPTH_MAX} levels")));
        }
        if self.places > PLACES_MAX || self.left_out.len() > LEFT_OUT_MAX {
            let reason = format!(
                "the schema has more than {PLACES_MAX} places, or {LEFT_OUT_MAX} that cannot be enforced"
            );
            return Err(self.never.insert(error(path, reason)).clone());
        }
        let words = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(words) => words,
            _ => return Err(error(path, "a schema is an object, true or false")),
        };
        let mut kept = Map::new();
        for (word, value) in words {
            path.push(word.clone());
            match self.word(word, value, path) {
                Ok(Some((word, value))) => drop(kept.insert(word, value)),
                Ok(None) => {}
                Err(e) if self.strictness == Strictness::Whole => return Err(e),
                Err(e) => self.left_out.push(e),
            }
            path.pop();
        }
        Ok(Value::Object(kept))
    }

    /// What becomes of one word: kept, left out, or an error where it cannot be enforced.
    fn word(
        &mut self,
        word: &str,
        value: &Value,
        path: &mut Path,
    ) -> Result<Option<(String, Value)>, SchemaError> {
        let kept = |value| Ok(Some((word.to_owned(), value)));
        match word {
            "x-guidance" => {
                let reason = "`x-guidance` would switch options of the grammar's engine; leave it out";
                Err(self.never.insert(error(path, reason)).clone())
            }
            _ if ANNOTATIONS.contains(&word) || word.starts_with("x-") => Ok(None),
            "uniqueItems" | "nullable" if value == &Value::Bool(false) => Ok(None),
            _ if PLAIN.contains(&word) => kept(value.clone()),
            _ if ONE.contains(&word) => Ok(Some((word.to_owned(), self.schema(value, path)?))),
            _ if MANY.contains(&word) => Ok(Some((word.to_owned(), self.list(value, path)?))),
            _ if NAMED.contains(&word) => Ok(Some((word.to_owned(), self.named(value, path)?))),
            "oneOf" if self.strictness == Strictness::Whole => {
                Ok(Some((word.to_owned(), self.list(value, path)?)))
            }
            "oneOf" => {
                let any = self.list(value, path)?;
                self.left_out.push(error(path, "`oneOf` is enforced as `anyOf`"));
                Ok(Some(("anyOf".to_owned(), any)))
            }
            "format" => match value.as_str() {
                Some(format) if FORMATS.contains(&format) => kept(value.clone()),
                _ => Err(error(path, format!("this `format` is not asserted; {} are", FORMATS.join(", ")))),
            },
            "$ref" => self.reference(value, path).map(|()| Some((word.to_owned(), value.clone()))),
            _ => Err(error(path, unsupported(word))),
        }
    }

    fn list(&mut self, value: &Value, path: &mut Path) -> Result<Value, SchemaError> {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
            return Err(error(path, "must be an array with at least one schema"));
        };
        let mut read = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            path.push(i.to_string());
            read.push(self.schema(item, path)?);
            path.pop();
        }
        Ok(Value::Array(read))
    }

    fn named(&mut self, value: &Value, path: &mut Path) -> Result<Value, SchemaError> {
        let Some(schemas) = value.as_object() else {
            return Err(error(path, "must be an object of schemas"));
        };
        let mut read = Map::new();
        for (name, schema) in schemas {
            path.push(name.clone());
            read.insert(name.clone(), self.schema(schema, path)?);
            path.pop();
        }
        Ok(Value::Object(read))
    }

    /// A reference into the schema itself, by a path that the engine reads as it is written.
    fn reference(&self, value: &Value, path: &Path) -> Result<(), SchemaError> {
        let target = value.as_str().unwrap_or_default();
        if target == "#" {
            return Ok(());
        }
        let plain = target.strip_prefix('#').filter(|p| p.len() > 1 && p.starts_with('/'));
        let Some(pointer) = plain.filter(|p| !p.contains(['~', '%'])) else {
            let reason =
                "only references into this schema are followed: `#` or `#/$defs/name` without `~` and `%`";
            return Err(error(path, reason));
        };
        if !is_place_of_schemas(pointer) || self.root.pointer(pointer).is_none() {
            return Err(error(path, format!("there is no schema at `{target:.80}`")));
        }
        Ok(())
    }
}

/// Whether a pointer leads through words that hold schemas. Others were left out, or are plain values.
fn is_place_of_schemas(pointer: &str) -> bool {
    let mut parts = pointer.split('/').skip(1);
    while let Some(word) = parts.next() {
        let takes_name = MANY.contains(&word) || NAMED.contains(&word) || word == "oneOf";
        if !(ONE.contains(&word) || takes_name && parts.next().is_some()) {
            return false;
        }
    }
    true
}

fn unsupported(word: &str) -> String {
    let instead = match word {
        "additionalItems" => "; use `prefixItems` and `items`",
        "nullable" => "; list `null` among the types",
        "if" | "then" | "else" | "dependentSchemas" | "dependentRequired" | "dependencies" => {
            "; list the alternatives with `anyOf`"
        }
        "not" => "; say what is allowed",
        "uniqueItems" | "contains" | "minContains" | "maxContains" => {
            "; bound the array with `minItems` and `maxItems`"
        }
        "propertyNames" => "; use `patternProperties` with `additionalProperties`: false",
        _ => "",
    };
    format!("`{word:.60}` cannot be enforced while the answer is made{instead}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: Value) -> String {
        Schema::read(&schema, Strictness::Whole).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_by_its_place() {
        for (schema, says) in [
            (
                json!({"properties": {"a/b": {"not": {}}}}),
                "at `#/properties/a~1b/not`: `not` cannot be enforced",
            ),
            (json!({"items": {"uniqueItems": true}}), "at `#/items/uniqueItems`"),
            (
                json!({"anyOf": [{}, {"format": "phone"}]}),
                "at `#/anyOf/1/format`: this `format` is not asserted; date, ",
            ),
            (json!({"$ref": "http://x/y"}), "only references into this schema"),
            (json!({"$ref": "#/$defs/b", "$defs": {"a": {}}}), "there is no schema at `#/$defs/b`"),
            (json!({"$ref": "#/default", "default": {"type": "string"}}), "there is no schema"),
            (json!({"x-guidance": {"lenient": true}}), "would switch options"),
            (json!({"propertyNames": {}}), "use `patternProperties`"),
            (json!({"items": [{}]}), "at `#/items`: a schema is an object"),
            (json!({"anyOf": []}), "at least one schema"),
            (json!("string"), "at `#`: a schema is an object"),
        ] {
            let error = refusal(schema);
            assert!(error.contains(says), "{error}");
        }
        let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
        assert!(refusal(deep).contains("nested deeper"));
    }

    #[test]
    fn annotations_go_and_names_stay() {
        let schema = json!({
            "title": "T", "description": "d", "uniqueItems": false, "type": "object",
            "properties": {"title": {"type": "string", "default": "x"}, "not": {"const": {"not": 1}}},
        });
        let read = Schema::read(&schema, Strictness::Whole).unwrap();
        let expected = json!({
            "type": "object",
            "properties": {"title": {"type": "string"}, "not": {"const": {"not": 1}}},
        });
        assert_eq!((read.value, read.left_out), (expected, Vec::new()));
    }

    #[test]
    fn of_a_schema_that_is_not_strict_only_the_rest_is_left_out() {
        let schema = json!({"type": "array", "items": {"type": "string", "not": {"const": ""}}, "uniqueItems": true,
            "oneOf": [{"minItems": 1}]});
        let read = Schema::read(&schema, Strictness::Possible).unwrap();
        let expected = json!({"type": "array", "items": {"type": "string"}, "anyOf": [{"minItems": 1}]});
        assert_eq!(read.value, expected);
        let places: Vec<_> = read.left_out.iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(places, ["#/items/not", "#/uniqueItems", "#/oneOf"]);
        let switches = json!({"items": {"x-guidance": {}}});
        assert!(Schema::read(&switches, Strictness::Possible).is_err());
    }
}
