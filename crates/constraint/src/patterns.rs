//! Regular expressions in a schema that was read: each is tried alone, and then with what stands beside it,
//! so that one that cannot be enforced takes nothing else with it.

use serde_json::{Map, Value, json};

use crate::texts::{OF_TEXTS, lists_only_texts};
use crate::{Schema, SchemaError};

/// Most schemas of texts that are tried: each is compiled.
const TRIED_MAX: usize = 64;

/// Whether a schema of texts can be enforced, or why not.
type Try<'a> = dyn FnMut(&Value) -> Result<(), String> + 'a;

impl Schema {
    /// Leaves out every `pattern`, and every entry of `patternProperties`, that `takes` refuses, and what
    /// stands beside a pattern that it takes alone. Names their places. `value` is what a [`Schema`] holds.
    /// Of very many patterns only the first ones are tried.
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
        self.together(words);
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

    /// Leaves out what stands beside a pattern where no text can be held to all of it.
    fn together(&mut self, words: &mut Map<String, Value>) {
        let lists = lists_only_texts(words);
        let is_beside =
            |word: &str| word != "pattern" && OF_TEXTS.contains(&word) || word == "allOf" && lists;
        let beside: Vec<String> = words.keys().filter(|word| is_beside(word)).cloned().collect();
        let has_pattern = words.contains_key("pattern");
        if !lists && (!has_pattern || beside.is_empty()) {
            return;
        }
        let mut text = json!({"type": "string"});
        for word in beside.iter().map(String::as_str).chain(has_pattern.then_some("pattern")) {
            text[word] = words[word].clone();
        }
        // Their types are of more than texts.
        for also in text.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
            also["type"] = "string".into();
        }
        let Err(reason) = self.tried(&text) else { return };
        for word in beside {
            words.shift_remove(&word);
        }
        let reason = format!("a text cannot be held to a `pattern` and to what stands beside it: {reason}");
        self.left_out.push(SchemaError::at(&self.path, reason));
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
        let Err(reason) = self.tried(&json!({"type": "string", "pattern": pattern})) else { return false };
        let path: Vec<String> =
            self.path.iter().map(String::as_str).chain([word]).chain(entry).map(str::to_owned).collect();
        self.left_out.push(SchemaError::at(&path, format!("this pattern cannot be enforced: {reason}")));
        true
    }

    fn tried(&mut self, text: &Value) -> Result<(), String> {
        self.tried += 1;
        if self.tried > TRIED_MAX { Ok(()) } else { (self.takes)(text) }
    }
}
