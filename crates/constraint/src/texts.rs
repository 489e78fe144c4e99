//! Schemas of texts that are laid over one another: what else a text has to match, beside its `pattern`.

use serde_json::{Map, Value};

/// Words that assert something of texts alone.
pub(crate) const OF_TEXTS: [&str; 4] = ["format", "maxLength", "minLength", "pattern"];

/// Adds patterns that a text has to match as well.
pub(crate) fn lay_over(words: &mut Map<String, Value>, patterns: Vec<String>) {
    let kind = words.get("type").cloned();
    let schema = |pattern: String| {
        let kind = kind.iter().map(|kind| ("type".to_owned(), kind.clone()));
        Value::Object(kind.chain([("pattern".to_owned(), pattern.into())]).collect())
    };
    let mut schemas: Vec<Value> = patterns.into_iter().map(schema).collect();
    match words.get_mut("allOf") {
        Some(Value::Array(all)) => all.append(&mut schemas),
        _ if schemas.is_empty() => {}
        _ => drop(words.insert("allOf".to_owned(), Value::Array(schemas))),
    }
}

/// What is laid over a schema by its `allOf`.
pub(crate) fn laid_over(words: &Map<String, Value>) -> impl Iterator<Item = &Map<String, Value>> {
    words.get("allOf").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// Whether its `allOf` asks for nothing but what texts are: each of its schemas, of the types that it has
/// itself.
pub(crate) fn lists_only_texts(words: &Map<String, Value>) -> bool {
    let schemas = words.get("allOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is_of_texts = |schema: &Value| {
        let asks = |(word, value): (&String, &Value)| {
            OF_TEXTS.contains(&word.as_str()) || word == "type" && words.get("type") == Some(value)
        };
        schema.as_object().is_some_and(|own| own.iter().all(asks))
    };
    !schemas.is_empty() && schemas.iter().all(is_of_texts)
}
