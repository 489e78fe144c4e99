//! Texts and schemas as they stand in a grammar.

use serde_json::{Value, json};

/// A text as a literal of a grammar.
pub(crate) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// A text as it stands in a regular expression of a grammar.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            // Not every sign: an escaped `<` is the start of a word.
            c if r"\.+*?()|[]{}^$#&-~/".contains(c) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// A schema with the spacing of all our JSON.
pub(crate) fn spaced(schema: &Value) -> Value {
    let spacing = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    let mut words = match schema {
        Value::Object(words) => words.clone(),
        // The only other schemas are true and false.
        Value::Bool(false) => return json!({"anyOf": [false], "x-guidance": spacing}),
        _ => serde_json::Map::new(),
    };
    words.insert("x-guidance".to_owned(), spacing);
    Value::Object(words)
}
