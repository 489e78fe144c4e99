//! Regular expressions in a schema that was read: each is tried alone, so that one that cannot be enforced
//! takes nothing else with it.

use serde_json::{Map, Value};

use crate::{Schema, SchemaError};

/// Most patterns that are tried: each is compiled.
const TRIED_MAX: usize = 64;

/// Whether one can be enforced, or why not.
type Try<'a> = dyn FnMut(&str) -> Result<(), String> + 'a;

impl Schema {
    /// Leaves out every `pattern`, and every entry of `patternProperties`, that `takes` refuses, and names
    /// its place. `value` is what a [`Schema`] holds. Of very many patterns only the first ones are tried.
    pub fn drop_patterns(value: &mut Value, takes: &mut Try<'_>) -> Vec<SchemaError> {
        let mut walk = Walk { takes, tried: 0, path: Vec::new(), left_out: Vec::new() };
        walk.schema(value);
        walk.left_out
    }
}

struct Walk<'a, 'b> {
    takes: &'a mut Try<'b>,
    tried: usize,
    path: Vec<String>,
    left_out: Vec<SchemaError>,
}

impl Walk<'_, '_> {
    fn schema(&mut self, schema: &mut Value) {
        let Some(words) = schema.as_object_mut() else { return };
        let pattern = words.get("pattern").and_then(Value::as_str).map(str::to_owned);
        if pattern.is_some_and(|pattern| self.is_refused("pattern", None, &pattern)) {
            words.shift_remove("pattern");
        }
        if let Some(named) = words.get_mut("patternProperties").and_then(Value::as_object_mut) {
            named.retain(|pattern, _| !self.is_refused("patternProperties", Some(pattern), pattern));
        }
        for (word, value) in words {
            self.path.push(word.clone());
            match (word.as_str(), value) {
                ("additionalProperties" | "items", value) => self.schema(value),
                ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                    for (i, schema) in schemas.iter_mut().enumerate() {
                        self.entry(i.to_string(), schema);
                    }
                }
                ("$defs" | "definitions" | "patternProperties" | "properties", Value::Object(schemas)) => {
                    self.named(schemas);
                }
                // Values, not schemas.
                _ => {}
            }
            self.path.pop();
        }
    }

    fn named(&mut self, schemas: &mut Map<String, Value>) {
        for (name, schema) in schemas {
            self.entry(name.clone(), schema);
        }
    }

    fn entry(&mut self, name: String, schema: &mut Value) {
        self.path.push(name);
        self.schema(schema);
        self.path.pop();
    }

    fn is_refused(&mut self, word: &str, entry: Option<&str>, pattern: &str) -> bool {
        self.tried += 1;
        if self.tried > TRIED_MAX {
            return false;
        }
        let Err(reason) = (self.takes)(pattern) else { return false };
        let path: Vec<String> =
            self.path.iter().map(String::as_str).chain([word]).chain(entry).map(str::to_owned).collect();
        self.left_out.push(SchemaError::at(&path, format!("this pattern cannot be enforced: {reason}")));
        true
    }
}
