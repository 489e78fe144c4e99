//! A JSON schema before the engine sees it: what it can enforce exactly, and the place of what it cannot.
//!
//! The engine says that a keyword is not implemented and not where; it takes unknown words for annotations,
//! and options out of `x-guidance`. Here every word of every place is known: kept, left out because it asks
//! for nothing, or refused by its JSON Pointer.

use std::collections::HashSet;

use exo_types::GRAMMAR_BYTES_MAX;
use serde_json::{Map, Value};

use crate::SchemaError;
use crate::exclusive::exclude_each_other;
use crate::formats::{self, FORMATS};
use crate::lookaround;
use crate::merge::Merge;
use crate::texts::{laid_over, lay_over};

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
/// Most places of a schema, and values that it lists.
const PLACES_MAX: usize = 20_000;
/// Levels of everything that is referred to, added up. The engine recurses into a target where it first meets
/// a reference to it: in whatever order it does, it comes no deeper than this and the schema itself.
const LEVELS_MAX: usize = 2_048;
/// Largest plain value, as text; of a list of values, each.
const PLAIN_BYTES_MAX: usize = 64 << 10;
/// Of patterns that formats become: half of what a grammar may have.
const FORMAT_BYTES_MAX: usize = GRAMMAR_BYTES_MAX / 2;
/// Largest integer that is told from its neighbours: the engine reads numbers as doubles.
const INTEGER_MAX: u64 = 1 << 53;
/// Most places that are named as left out.
const LEFT_OUT_MAX: usize = 200;

/// Words that say something and ask for nothing.
const ANNOTATIONS: &str = "\
    $anchor $comment $id contentEncoding contentMediaType contentSchema default deprecated description \
    discriminator example examples externalDocs readOnly title writeOnly xml";
/// Words with a plain value, which the engine enforces.
const PLAIN: &str = "\
    $schema const enum exclusiveMaximum exclusiveMinimum maxItems maxLength maxProperties maximum \
    minItems minLength minProperties minimum multipleOf pattern required type";
/// Words whose value is a schema, a list of schemas, or schemas by name.
const ONE: [&str; 2] = ["additionalProperties", "items"];
const MANY: [&str; 3] = ["allOf", "anyOf", "prefixItems"];
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

impl Schema {
    /// Reads a schema that stands at `#`.
    pub fn read(schema: &Value, strictness: Strictness) -> Result<Self, SchemaError> {
        let mut walk = Walk {
            root: schema,
            is_referred_into: refers_into_alternatives(schema),
            strictness,
            places: 0,
            depth: 0,
            targets: HashSet::new(),
            levels: 0,
            format_bytes: 0,
            left_out: Vec::new(),
            never: None,
        };
        let value = walk.schema(schema, &mut Vec::new())?;
        if walk.never.is_none()
            && let Some(reason) = Merge::of(&value).refusal()
        {
            walk.refuse(error(&[], reason));
        }
        walk.never.map_or(Ok(Self { value, left_out: walk.left_out }), Err)
    }

    /// Any object.
    pub fn object() -> Self {
        Self { value: serde_json::json!({"type": "object"}), left_out: Vec::new() }
    }
}

struct Walk<'a> {
    root: &'a Value,
    /// A reference leads into alternatives: these stay as they are written.
    is_referred_into: bool,
    strictness: Strictness,
    places: usize,
    depth: usize,
    /// What is referred to.
    targets: HashSet<String>,
    levels: usize,
    /// What formats become.
    format_bytes: usize,
    left_out: Vec<SchemaError>,
    /// What is refused however the schema is meant.
    never: Option<SchemaError>,
}

type Path = Vec<String>;

/// The schema that is all there is in an `allOf`: some libraries write a reference so that has a title or a
/// default beside it.
fn alone(kept: &mut Map<String, Value>) -> Option<Value> {
    let is_alone =
        kept.len() == 1 && kept.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() == 1);
    kept.get_mut("allOf").filter(|_| is_alone)?.as_array_mut()?.pop()
}

/// Whether any reference goes through an `allOf` or `oneOf`.
fn refers_into_alternatives(schema: &Value) -> bool {
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(words) => {
                let reference = words.get("$ref").and_then(Value::as_str).unwrap_or_default();
                if reference.contains("/allOf/") || reference.contains("/oneOf/") {
                    return true;
                }
                left.extend(words.values());
            }
            Value::Array(items) => left.extend(items),
            _ => {}
        }
    }
    false
}

fn error(path: &[String], reason: impl Into<String>) -> SchemaError {
    SchemaError::at(path, reason)
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
        self.check_places(path)?;
        let words = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(words) => words,
            _ => return Err(error(path, "a schema is an object, true or false")),
        };
        let (mut kept, mut patterns) = (Map::new(), Vec::new());
        for (word, value) in words {
            let len = path.len();
            path.push(word.clone());
            let read = match word.as_str() {
                "format" => self.format(value, words, &mut patterns, path),
                "pattern" => self.pattern(value, &mut patterns, path),
                "oneOf" => self.one_of(value, words.contains_key("anyOf"), path),
                "minProperties" => self.min_properties(value, words.get("required"), path),
                word => self.word(word, value, path),
            };
            match read {
                Ok(Some((word, value))) => drop(kept.insert(word, value)),
                Ok(None) => {}
                Err(e) if self.strictness == Strictness::Whole => return Err(e),
                Err(e) => self.leave_out(e)?,
            }
            // An error leaves the path where it happened.
            path.truncate(len);
        }
        lay_over(&mut kept, patterns);
        let lone = if self.is_referred_into { None } else { alone(&mut kept) };
        Ok(lone.unwrap_or(Value::Object(kept)))
    }

    /// What becomes of a format: a pattern, of which only so many fit into a grammar, beside one that the
    /// schema has, or the engine's own.
    fn format(
        &mut self,
        value: &Value,
        words: &Map<String, Value>,
        patterns: &mut Vec<String>,
        path: &Path,
    ) -> Result<Option<(String, Value)>, SchemaError> {
        let has_pattern = words.contains_key("pattern");
        let format = value.as_str().unwrap_or_default();
        let may_be_of_pattern = || has_pattern || laid_over(words).any(|also| also.contains_key("pattern"));
        if formats::is_of_a_pattern(format) && may_be_of_pattern() {
            return Ok(None);
        }
        if !FORMATS.contains(&format) {
            let reason = format!("this `format` is not asserted; {} are", FORMATS.join(", "));
            return Err(error(path, reason));
        }
        let Some(pattern) = formats::pattern(format) else {
            return Ok(Some(("format".to_owned(), value.clone())));
        };
        self.format_bytes += pattern.len();
        if self.format_bytes > FORMAT_BYTES_MAX {
            let reason =
                "dates, times and addresses before it fill the grammar; leave out some of their `format`";
            return Err(error(path, reason));
        }
        if has_pattern {
            patterns.push(pattern);
            return Ok(None);
        }
        Ok(Some(("pattern".to_owned(), pattern.into())))
    }

    /// What becomes of a pattern: itself, or several that say the same and look at nothing ahead.
    fn pattern(
        &mut self,
        value: &Value,
        patterns: &mut Vec<String>,
        path: &mut Path,
    ) -> Result<Option<(String, Value)>, SchemaError> {
        const WORD: &str = "pattern";
        self.plain(WORD, value, path)?;
        let Some((whole, more)) = lookaround::written_out(value.as_str().unwrap_or_default()) else {
            let reason = "a pattern that looks ahead or behind (`(?=`, `(?!`, `(?<`) cannot be kept to while the answer is made, except \
                          right behind its `^`, where `(?=…)` can, and `(?!…)` of one sign; write what is allowed instead, or several \
                          patterns in `allOf`";
            return Err(error(path, reason));
        };
        // Each becomes a schema of its own.
        self.places += more.len();
        self.check_places(path)?;
        patterns.extend(more);
        Ok(Some((WORD.to_owned(), whole.into())))
    }

    fn check_places(&mut self, path: &Path) -> Result<(), SchemaError> {
        match self.places > PLACES_MAX {
            true => {
                Err(self
                    .refuse(error(path, format!("the schema has more than {PLACES_MAX} places and values"))))
            }
            false => Ok(()),
        }
    }

    fn leave_out(&mut self, left: SchemaError) -> Result<(), SchemaError> {
        if let Some(never) = &self.never {
            return Err(never.clone());
        }
        if self.left_out.len() >= LEFT_OUT_MAX {
            let reason = format!("more than {LEFT_OUT_MAX} places of the schema cannot be enforced");
            return Err(self.refuse(SchemaError { reason, ..left }));
        }
        self.left_out.push(left);
        Ok(())
    }

    fn refuse(&mut self, error: SchemaError) -> SchemaError {
        self.never.get_or_insert(error).clone()
    }

    /// Checks a plain value: its type, its size, and that its numbers are what the engine takes them for.
    fn plain(&mut self, word: &str, value: &Value, path: &mut Path) -> Result<(), SchemaError> {
        if let Some(expected) = expected(word, value) {
            return Err(error(path, format!("`{word}` must be {expected}")));
        }
        if word == "$schema" {
            let is_known = value.as_str().is_some_and(is_dialect);
            let reason = "this `$schema` may mean other words than these; leave it out, or name one of json-schema.org";
            return if is_known { Ok(()) } else { Err(error(path, reason)) };
        }
        // The value itself belongs to the place that it stands in.
        self.places += match (word, value) {
            ("enum" | "required", Value::Array(items)) => {
                let mut values = 0;
                for (i, item) in items.iter().enumerate() {
                    path.push(i.to_string());
                    values += checked(item, path)?;
                    path.pop();
                }
                values
            }
            _ => checked(value, path)? - 1,
        };
        self.check_places(path)
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
                Err(self.refuse(error(path, reason)))
            }
            _ if is_one_of(ANNOTATIONS, word) || word.starts_with("x-") => Ok(None),
            "uniqueItems" | "nullable" if value == &Value::Bool(false) => Ok(None),
            "propertyNames" if is_any_name(value) => Ok(None),
            _ if is_one_of(PLAIN, word) => {
                self.plain(word, value, path)?;
                kept(value.clone())
            }
            _ if ONE.contains(&word) => Ok(Some((word.to_owned(), self.schema(value, path)?))),
            _ if MANY.contains(&word) => Ok(Some((word.to_owned(), self.list(value, path)?))),
            _ if NAMED.contains(&word) => Ok(Some((word.to_owned(), self.named(value, path)?))),
            "$ref" => self.reference(value, path).map(|()| Some((word.to_owned(), value.clone()))),
            _ => Err(error(path, unsupported(word))),
        }
    }

    /// What becomes of alternatives of which one alone may hold: `anyOf` where no value can be of two, else
    /// the engine's word on them, or `anyOf` where that is enough.
    fn one_of(
        &mut self,
        value: &Value,
        has_any_of: bool,
        path: &mut Path,
    ) -> Result<Option<(String, Value)>, SchemaError> {
        let list = self.list(value, path)?;
        let excludes = || exclude_each_other(self.root, value.as_array().map_or(&[][..], Vec::as_slice));
        if !has_any_of && !self.is_referred_into && excludes() {
            return Ok(Some(("anyOf".to_owned(), list)));
        }
        match (self.strictness, has_any_of) {
            (Strictness::Whole, _) => Ok(Some(("oneOf".to_owned(), list))),
            (Strictness::Possible, true) => Err(error(path, "`oneOf` beside `anyOf` is not enforced")),
            (Strictness::Possible, false) => {
                self.leave_out(error(path, "`oneOf` is enforced as `anyOf`"))?;
                Ok(Some(("anyOf".to_owned(), list)))
            }
        }
    }

    /// What becomes of a least number of properties. A name of the model's own may come twice, which no
    /// grammar sees, and counts once for whoever reads the answer: one such name is enforced beside those
    /// that are required.
    fn min_properties(
        &mut self,
        value: &Value,
        required: Option<&Value>,
        path: &mut Path,
    ) -> Result<Option<(String, Value)>, SchemaError> {
        const WORD: &str = "minProperties";
        self.plain(WORD, value, path)?;
        let names = required.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let required = names.collect::<HashSet<_>>().len() as u64;
        if value.as_u64().is_some_and(|least| least > required + 1) {
            let reason = "more than one property beside the required ones is not enforced, as a name may come twice; list names in \
                          `required`, or ask for an array with `minItems`";
            let error = error(path, reason);
            match self.strictness {
                Strictness::Whole => return Err(error),
                Strictness::Possible => self.leave_out(error)?,
            }
        }
        Ok(Some((WORD.to_owned(), value.clone())))
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
    fn reference(&mut self, value: &Value, path: &Path) -> Result<(), SchemaError> {
        let target = value.as_str().unwrap_or_default();
        if target == "#" {
            return self.refer(target, self.root, path);
        }
        let plain = target.strip_prefix('#').filter(|p| p.len() > 1 && p.starts_with('/'));
        let Some(pointer) = plain.filter(|p| !p.contains(['~', '%'])) else {
            let reason =
                "only references into this schema are followed: `#` or `#/$defs/name` without `~` and `%`";
            return Err(error(path, reason));
        };
        let found = self.root.pointer(pointer).filter(|_| is_place_of_schemas(pointer));
        let Some(schema) = found else {
            return Err(error(path, format!("there is no schema at `{target:.80}`")));
        };
        self.refer(target, schema, path)
    }

    fn refer(&mut self, target: &str, schema: &Value, path: &Path) -> Result<(), SchemaError> {
        if !self.targets.contains(target) {
            self.targets.insert(target.to_owned());
            self.levels += levels(schema);
        }
        if self.levels > LEVELS_MAX {
            let reason =
                format!("the schemas that references lead to have more than {LEVELS_MAX} levels in all");
            return Err(self.refuse(error(path, reason)));
        }
        Ok(())
    }
}

/// How many values a plain value has in it. It has its bound, and its numbers are what the engine takes them
/// for.
fn checked(value: &Value, path: &mut Path) -> Result<usize, SchemaError> {
    let (mut bytes, mut values) = (0, 0);
    measure(value, path, &mut bytes, &mut values)?;
    match bytes > PLAIN_BYTES_MAX {
        true => Err(error(path, format!("a value has at most {PLAIN_BYTES_MAX} bytes, this has {bytes}"))),
        false => Ok(values),
    }
}

/// How deep a value is nested, at least one.
fn levels(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(levels).max().unwrap_or(0),
        Value::Object(words) => words.values().map(levels).max().unwrap_or(0),
        _ => 0,
    }
}

/// What a plain value has to be, where it is not.
fn expected(word: &str, value: &Value) -> Option<&'static str> {
    const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let (is_right, expected) = match word {
        "$schema" | "pattern" => (value.is_string(), "a string"),
        "enum" => {
            (value.as_array().is_some_and(|items| !items.is_empty()), "an array with at least one value")
        }
        "required" => {
            (value.as_array().is_some_and(|names| names.iter().all(Value::is_string)), "an array of strings")
        }
        "type" => (
            is_type(value) || value.as_array().is_some_and(|n| !n.is_empty() && n.iter().all(is_type)),
            "null, boolean, integer, number, string, array or object, or a list of these",
        ),
        "minimum" | "maximum" => (value.is_number(), "a number"),
        "exclusiveMinimum" | "exclusiveMaximum" => (value.is_number() || value.is_boolean(), "a number"),
        "multipleOf" => (value.as_f64().is_some_and(|number| number > 0.0), "a number above zero"),
        "const" => (true, ""),
        _ => (value.is_u64(), "an integer, zero or above"),
    };
    (!is_right).then_some(expected)
}

/// Adds up the text and the number of the values in a value.
fn measure(value: &Value, path: &mut Path, bytes: &mut usize, values: &mut usize) -> Result<(), SchemaError> {
    *values += 1;
    match value {
        Value::Null | Value::Bool(_) => *bytes += 5,
        Value::Number(number) => {
            *bytes += 8;
            let is_exact = match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => integer.unsigned_abs() <= INTEGER_MAX,
                // The text of a larger integer is a double already.
                (None, double) => double.is_some_and(|double| double.abs() < INTEGER_MAX as f64),
            };
            if !is_exact {
                return Err(error(path, "integers beyond 2^53 are not enforced exactly"));
            }
        }
        Value::String(text) => *bytes += text.len(),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                path.push(i.to_string());
                measure(item, path, bytes, values)?;
                path.pop();
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                *bytes += name.len();
                path.push(name.clone());
                measure(field, path, bytes, values)?;
                path.pop();
            }
        }
    }
    Ok(())
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

/// Whether it is a dialect of JSON Schema's own: another one may leave words out.
fn is_dialect(uri: &str) -> bool {
    let name = uri.strip_prefix("https://").or(uri.strip_prefix("http://"));
    name.is_some_and(|name| name.starts_with("json-schema.org/"))
}

/// Whether a schema of names asks for nothing, as some libraries write of a map: every name is a string.
fn is_any_name(schema: &Value) -> bool {
    let asks_nothing =
        |word: &str, value: &Value| is_one_of(ANNOTATIONS, word) || (word == "type" && value == "string");
    match schema {
        Value::Bool(is_any) => *is_any,
        Value::Object(words) => words.iter().all(|(word, value)| asks_nothing(word, value)),
        _ => false,
    }
}

fn is_one_of(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
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
            (json!({"propertyNames": {"type": "string", "maxLength": 3}}), "use `patternProperties`"),
            (json!({"propertyNames": false}), "use `patternProperties`"),
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

    /// References from one to the next, named so that they are read from either end.
    fn chain(len: usize, is_reversed: bool) -> Value {
        let name = |i: usize| format!("d{:05}", if is_reversed { len - i } else { i });
        let link = |i: usize| match i + 1 < len {
            true => json!({"$ref": format!("#/$defs/{}", name(i + 1))}),
            false => json!({}),
        };
        let defs: Map<String, Value> = (0..len).map(|i| (name(i), link(i))).collect();
        json!({"$ref": format!("#/$defs/{}", name(0)), "$defs": defs})
    }

    #[test]
    fn references_are_counted_however_they_are_ordered() {
        for is_reversed in [false, true] {
            let error = refusal(chain(10_000, is_reversed));
            assert!(error.starts_with("at `#/$defs/d") && error.contains("levels in all"), "{error}");
            assert!(Schema::read(&chain(10_000, is_reversed), Strictness::Possible).is_err());
            Schema::read(&chain(900, is_reversed), Strictness::Whole).unwrap();
        }
        let mut merged = chain(1_000, false);
        for link in merged["$defs"].as_object_mut().unwrap().values_mut() {
            link["type"] = json!("object");
        }
        merged["type"] = json!("object");
        let small = std::thread::Builder::new().stack_size(512 << 10);
        let read = small.spawn(move || Schema::read(&merged, Strictness::Whole).map(drop)).unwrap();
        read.join().unwrap().unwrap();
        let tree = json!({"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}});
        Schema::read(&tree, Strictness::Whole).unwrap();
    }

    #[test]
    fn what_the_engine_would_copy_without_measure_is_refused() {
        let options = |n: usize| vec![json!({"type": "string"}); n];
        let large = |bytes: usize, n: usize| json!({"const": "x".repeat(bytes), "anyOf": options(n)});
        let error = refusal(large(400_000, 10));
        assert!(error.contains("at `#/const`: a value has at most 65536 bytes"), "{error}");
        let error = refusal(large(60_000, 1_000));
        assert!(error.contains("would take too much memory"), "{error}");
        assert!(Schema::read(&large(60_000, 1_000), Strictness::Possible).is_err());
        Schema::read(&large(60_000, 100), Strictness::Whole).unwrap();
        let names = json!({"properties": {"x".repeat(60_000): {}}, "anyOf": options(1_000)});
        assert!(refusal(names).contains("would take too much memory"));
        let names: Map<String, Value> = (0..3_000).map(|i| (format!("name {i}"), json!(5))).collect();
        let read = Schema::read(&json!({ "properties": names }), Strictness::Possible).unwrap();
        assert_eq!((read.value, read.left_out.len()), (json!({}), 1), "fewer places than names");
        let zeros = json!({"anyOf": vec![json!({"const": vec![0; 3_000]}); 10]});
        assert!(refusal(zeros).contains("more than 20000 places"));
    }

    /// A list of values costs its text; what is multiplied is what stands beside alternatives.
    #[test]
    fn lists_of_values_count_once_unless_they_are_merged_with_alternatives() {
        let list = |n: usize| (0..n).map(|i| format!("name {i:08}")).collect::<Vec<_>>();
        let code = |n: usize| json!({"type": "string", "enum": list(n)});
        let fields: Map<String, Value> = (0..40).map(|i| (format!("code {i}"), code(400))).collect();
        let record = json!({"type": "object", "properties": fields, "required": ["code 0"]});
        Schema::read(&json!({"type": "array", "items": record}), Strictness::Whole).unwrap();
        let long =
            json!({"type": "string", "enum": (0..5_000).map(|i| format!("{i:040}")).collect::<Vec<_>>()});
        let shared = json!({"type": "object", "$defs": {"code": long},
            "properties": {"from": {"$ref": "#/$defs/code"}, "to": {"anyOf": [{"$ref": "#/$defs/code"}, {"type": "null"}]}}});
        Schema::read(&shared, Strictness::Whole).unwrap();
        let tagged = |n: usize| {
            let each =
                |i: usize| json!({"properties": {"kind": {"const": format!("k{i}")}}, "required": ["kind"]});
            let options: Vec<Value> = (0..n).map(each).collect();
            json!({"type": "object", "properties": {"code": code(500)}, "anyOf": options})
        };
        Schema::read(&tagged(50), Strictness::Whole).unwrap();

        assert!(refusal(json!({"enum": list(20_001)})).contains("more than 20000 places and values"));
        let merged = |beside: Value| json!({"$ref": "#/$defs/codes", "enum": beside, "$defs": {"codes": {"enum": list(3_000)}}});
        assert!(refusal(merged(json!(list(1_000)))).contains("make more than 250000 places"));
        Schema::read(&merged(json!(list(10))), Strictness::Whole).unwrap();
        let many = json!({"required": list(3_000), "anyOf": [{"enum": list(3_000)}]});
        assert!(refusal(many).contains("would take too much memory"));
        let refers = |n: usize| {
            let copy = |i: usize| (format!("p{i}"), json!({"$ref": "#/$defs/text", "type": "string"}));
            json!({"type": "object", "properties": (0..n).map(copy).collect::<Map<_, _>>(),
                "$defs": {"text": {"const": "x".repeat(60_000)}}})
        };
        assert!(refusal(refers(1_000)).contains("would take too much memory"));
        Schema::read(&refers(100), Strictness::Whole).unwrap();
        let wide =
            json!({"enum": ["x".repeat(60_000), "y"], "anyOf": vec![json!({"type": "string"}); 1_000]});
        assert!(refusal(wide).contains("would take too much memory"));
    }

    #[test]
    fn what_stands_beside_alternatives_is_counted_for_each() {
        let names = |n: usize| (0..n).map(|i| (format!("p{i}"), json!({}))).collect::<Map<_, _>>();
        let shared = |n: usize| json!({"type": "object", "properties": names(n)});
        let options = |n: usize| vec![json!({"type": "array", "minItems": 1}); n];
        let ten = |to: &str| json!({"type": "array", "anyOf": vec![json!({"$ref": to}); 10]});
        let hidden = json!({
            "a": ten("#/$defs/b"), "b": ten("#/$defs/c"), "c": ten("#/$defs/d"), "d": {"minItems": 1}, "big": {"items": shared(1_000)},
        });
        for schema in [
            json!({"items": shared(1_000), "anyOf": options(1_000)}),
            json!({"allOf": [{"items": shared(1_000)}, {"anyOf": options(1_000)}]}),
            json!({"$ref": "#/$defs/big", "anyOf": options(1_000), "$defs": hidden}),
            json!({"items": shared(1_000), "anyOf": [{"$ref": "#/$defs/a"}], "$defs": hidden}),
        ] {
            assert!(refusal(schema).contains("make more than 250000 places"));
        }
        for schema in [
            json!({"items": shared(1_000), "anyOf": options(10)}),
            json!({"properties": {"a": shared(1_000), "b": {"anyOf": options(1_000)}}}),
            json!({"allOf": [{"$ref": "#/$defs/big"}, shared(100)], "$defs": hidden}),
            json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}),
        ] {
            Schema::read(&schema, Strictness::Whole).unwrap();
        }
    }

    #[test]
    fn plain_values_are_of_their_type() {
        let text = "é".repeat(200);
        for (word, says) in [
            ("minimum", "a number"),
            ("multipleOf", "a number above zero"),
            ("exclusiveMaximum", "a number"),
            ("minItems", "an integer, zero or above"),
            ("maxLength", "an integer, zero or above"),
            ("required", "an array of strings"),
            ("enum", "an array with at least one value"),
            ("type", "null, boolean, integer"),
        ] {
            let error = refusal(json!({ word: &text }));
            assert!(error.starts_with(&format!("at `#/{word}`: `{word}` must be {says}")), "{error}");
        }
        assert!(refusal(json!({"pattern": [1]})).contains("must be a string"));
        assert!(refusal(json!({"required": ["a", 1]})).contains("an array of strings"));
        let read = Schema::read(&json!({"minLength": -1, "type": "string"}), Strictness::Possible).unwrap();
        assert_eq!((read.value, read.left_out.len()), (json!({"type": "string"}), 1));
    }

    #[test]
    fn a_least_number_of_properties_counts_each_name_once() {
        let least =
            |n: u32, required: &[&str]| json!({"type": "object", "minProperties": n, "required": required});
        for schema in [least(1, &[]), least(2, &["a"]), least(2, &["a", "b"]), least(0, &[])] {
            Schema::read(&schema, Strictness::Whole).unwrap();
        }
        for schema in [least(2, &[]), least(3, &["a"]), least(3, &["a", "a"])] {
            assert!(refusal(schema.clone()).starts_with("at `#/minProperties`: more than one property"));
            let read = Schema::read(&schema, Strictness::Possible).unwrap();
            assert_eq!((read.left_out.len(), read.value), (1, schema), "entries are still counted");
        }
    }

    /// The engine merges what two schemas have in the same place, and copies the one for each name or
    /// alternative of the other.
    #[test]
    fn what_is_merged_inside_of_values_is_counted_too() {
        let list = |n: usize| (0..n).map(|i| format!("name {i:08}")).collect::<Vec<_>>();
        let names = |n: usize, schema: Value| -> Value {
            Value::Object((0..n).map(|i| (format!("n{i}"), schema.clone())).collect())
        };
        let large = || json!({"properties": {"b": {"enum": list(5_000)}}});
        let both = |one: Value, other: Value| json!({"allOf": [one, other], "$defs": {"x": large()}});
        let options = json!({"anyOf": vec![json!({"required": ["x"]}); 3_000]});
        for (one, other) in [
            (json!({"properties": names(5_000, json!(true))}), json!({"additionalProperties": large()})),
            (json!({"prefixItems": vec![json!(true); 5_000]}), json!({"items": large()})),
            (json!({"properties": {"a": options}}), json!({"properties": {"a": large()}})),
            (
                json!({"properties": names(5_000, json!({"$ref": "#/$defs/x"}))}),
                json!({"additionalProperties": {"type": "object"}}),
            ),
        ] {
            let error = refusal(both(one.clone(), other.clone()));
            assert!(error.contains("would take too much memory"), "{error}");
            assert!(refusal(both(other, one)).contains("would take too much memory"));
        }
        let alone = json!({"type": "object", "properties": names(5_000, json!(true)), "additionalProperties": large()});
        Schema::read(&alone, Strictness::Whole).unwrap();
        let codes = json!({"properties": names(12, json!({"type": "string", "enum": list(300)}))});
        let more = json!({"properties": names(50, json!({"type": "string"})), "required": ["n40"]});
        Schema::read(&both(codes, more), Strictness::Whole).unwrap();
    }

    /// Whichever of two that lead to each other is counted first.
    #[test]
    fn what_leads_back_to_itself_counts_whole_for_whoever_refers_to_it() {
        let list: Vec<String> = (0..5_000).map(|i| format!("name {i:08}")).collect();
        let options = vec![json!({"minItems": 1}); 1_000];
        for (large, alias) in [("a", "b"), ("b", "a")] {
            let [to_large, to_alias] = [large, alias].map(|name| json!({"$ref": format!("#/$defs/{name}")}));
            let items = json!({"anyOf": [{"enum": list}, to_alias]});
            let defs = json!({large: {"type": "array", "items": items}, alias: to_large});
            let alone = json!({"type": "object", "properties": {"x": to_alias}, "$defs": defs});
            Schema::read(&alone, Strictness::Whole).unwrap();
            let merged = json!({"$ref": to_alias["$ref"], "anyOf": options, "$defs": defs});
            assert!(refusal(merged).contains("make more than 250000 places"));
        }
    }

    /// Each of so many refers to thirty others.
    #[test]
    fn many_that_lead_back_to_each_other_take_no_longer_than_any_schema() {
        let mesh = |n: usize| {
            let others = |own: usize| (1..=30).map(move |i| (own + i * i) % n);
            let refers = |i: usize| (format!("p{i}"), json!({"$ref": format!("#/$defs/d{i}")}));
            let each = |i: usize| json!({"type": "object", "properties": others(i).map(refers).collect::<Map<_, _>>()});
            let defs: Map<String, Value> = (0..n).map(|i| (format!("d{i}"), each(i))).collect();
            json!({"$ref": "#/$defs/d0", "$defs": defs})
        };
        Schema::read(&mesh(50), Strictness::Whole).unwrap();
        assert!(refusal(mesh(500)).contains("lead back to each other"));
    }

    #[test]
    fn integers_that_are_not_exact_are_refused() {
        let beyond = 9_007_199_254_740_993_u64;
        for (schema, at) in [
            (json!({"const": beyond}), "#/const"),
            (json!({"const": {"a": [1, beyond]}}), "#/const/a/1"),
            (json!({"enum": [1, -9_007_199_254_740_993_i64]}), "#/enum/1"),
            (json!({"maximum": u64::MAX}), "#/maximum"),
            (json!({"properties": {"a": {"exclusiveMinimum": beyond}}}), "#/properties/a/exclusiveMinimum"),
            (json!({"multipleOf": beyond}), "#/multipleOf"),
            (json!({"minimum": 1e17}), "#/minimum"),
        ] {
            let error = refusal(schema);
            assert!(error.starts_with(&format!("at `{at}`: integers beyond 2^53")), "{error}");
        }
        let exact = json!({"minimum": -9_007_199_254_740_992_i64, "const": 9_007_199_254_740_992_u64});
        Schema::read(&exact, Strictness::Whole).unwrap();
    }

    #[test]
    fn what_is_left_out_is_bounded_and_named_by_its_place() {
        let words = |n: usize| (0..n).map(|i| (format!("w{i}"), json!(1))).collect::<Map<_, _>>();
        let read = Schema::read(&Value::Object(words(LEFT_OUT_MAX)), Strictness::Possible).unwrap();
        assert_eq!(read.left_out.len(), LEFT_OUT_MAX);
        let error = Schema::read(&Value::Object(words(LEFT_OUT_MAX + 1)), Strictness::Possible);
        assert!(error.unwrap_err().reason.contains("more than 200 places"));
        let schema = json!({"allOf": [{"items": 3}, 4], "properties": {"a": {"anyOf": [{}, 5]}, "b": {"not": {}}},
            "uniqueItems": true});
        let read = Schema::read(&schema, Strictness::Possible).unwrap();
        let places: Vec<_> = read.left_out.iter().map(|e| e.pointer.as_str()).collect();
        let mut expected =
            vec!["#/allOf/0/items", "#/allOf/1", "#/properties/a/anyOf/1", "#/properties/b/not"];
        expected.push("#/uniqueItems");
        assert_eq!(places, expected);
    }

    #[test]
    fn a_format_and_what_a_pattern_looks_at_ahead_become_patterns_beside_it() {
        let read = |schema: Value| Schema::read(&schema, Strictness::Whole).unwrap().value;
        let date = formats::pattern("date").unwrap();
        let both = json!({"format": "date", "type": "string", "pattern": "^20", "maxLength": 10});
        let expected = json!({"type": "string", "pattern": "^20", "maxLength": 10,
            "allOf": [{"type": "string", "pattern": date}]});
        assert_eq!(read(both), expected);
        let listed = json!({"pattern": "^(?=.{3}$)a", "format": "date", "allOf": [{"minLength": 3}]});
        let expected =
            json!({"pattern": "^a", "allOf": [{"minLength": 3}, {"pattern": "^.{3}$"}, {"pattern": date}]});
        assert_eq!(read(listed), expected);
        let through = json!({"properties": {"a": {"allOf": [{"minLength": 1}], "pattern": "b", "format": "time"},
            "b": {"$ref": "#/properties/a/allOf/0"}}});
        assert_eq!(
            read(through).pointer("/properties/a/allOf/0"),
            Some(&json!({"minLength": 1})),
            "it stays there"
        );
        let uuid = json!({"type": "string", "format": "uuid", "pattern": "^0"});
        assert_eq!(read(uuid.clone()), uuid, "the engine has both itself");
        let nanoid = json!({"type": "string", "format": "nanoid", "pattern": "^[a-z]{21}$"});
        assert_eq!(read(nanoid), json!({"type": "string", "pattern": "^[a-z]{21}$"}));
        assert!(refusal(json!({"type": "string", "format": "nanoid"})).contains("is not asserted"));
    }

    /// Each is a schema of its own, which takes a hundred times as much memory as `(?=)`.
    #[test]
    fn what_patterns_look_at_ahead_counts_as_places() {
        let text = json!({"type": "string", "pattern": format!("^{}a", "(?=)".repeat(15_000))});
        let one = json!({"properties": {"a": text}});
        Schema::read(&one, Strictness::Whole).unwrap();
        let both = json!({"properties": {"a": text, "b": text}});
        let expected = "at `#/properties/b/pattern`: the schema has more than 20000 places and values";
        assert_eq!(refusal(both.clone()), expected);
        assert!(Schema::read(&both, Strictness::Possible).is_err());
    }

    #[test]
    fn a_pattern_that_looks_around_is_refused_by_its_place_and_left_out_by_itself() {
        let field = json!({"type": "string", "pattern": "^a(?!b)", "format": "date", "maxLength": 9});
        let schema = json!({"properties": {"a": field}});
        let error = refusal(schema.clone());
        assert!(error.starts_with("at `#/properties/a/pattern`: a pattern that looks ahead"), "{error}");
        let read = Schema::read(&schema, Strictness::Possible).unwrap();
        let places: Vec<_> = read.left_out.iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(places, ["#/properties/a/pattern"]);
        let date = formats::pattern("date").unwrap();
        let rest = json!({"type": "string", "maxLength": 9, "allOf": [{"type": "string", "pattern": date}]});
        assert_eq!(read.value["properties"]["a"], rest, "all else of the text is enforced");
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
    fn names_of_a_map_that_may_be_any_ask_for_nothing() {
        for names in
            [json!({"type": "string"}), json!({}), json!(true), json!({"title": "Key", "type": "string"})]
        {
            let map = json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
            let read = Schema::read(&map, Strictness::Whole).unwrap();
            assert_eq!(read.value, json!({"type": "object", "additionalProperties": {"type": "integer"}}));
        }
    }

    #[test]
    fn a_reference_that_is_written_as_a_list_of_one_is_a_reference() {
        let schema = json!({
            "type": "object", "properties": {"who": {"title": "Who", "allOf": [{"$ref": "#/$defs/who"}]}},
            "$defs": {"who": {"type": "object", "properties": {"name": {"type": "string"}}}},
        });
        let read = Schema::read(&schema, Strictness::Whole).unwrap().closed().value;
        assert_eq!(read.pointer("/properties/who"), Some(&json!({"$ref": "#/$defs/who"})));
        assert_eq!(read.pointer("/$defs/who/additionalProperties"), Some(&json!(false)));
        let through = json!({"properties": {"a": {"allOf": [{"type": "string"}]}, "b": {"$ref": "#/properties/a/allOf/0"}}});
        assert_eq!(Schema::read(&through, Strictness::Whole).unwrap().value, through, "it is referred to");
        let two = json!({"allOf": [{"type": "string"}, {"minLength": 1}]});
        assert_eq!(Schema::read(&two, Strictness::Whole).unwrap().value, two);
    }

    #[test]
    fn of_a_schema_that_is_not_strict_only_the_rest_is_left_out() {
        let schema = json!({"type": "array", "items": {"type": "string", "not": {"const": ""}}, "uniqueItems": true,
            "oneOf": [{"minItems": 1}, {"maxItems": 9}]});
        let read = Schema::read(&schema, Strictness::Possible).unwrap();
        let expected = json!({"type": "array", "items": {"type": "string"},
            "anyOf": [{"minItems": 1}, {"maxItems": 9}]});
        assert_eq!(read.value, expected);
        let places: Vec<_> = read.left_out.iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(places, ["#/items/not", "#/uniqueItems", "#/oneOf"]);
        let switches = json!({"items": {"x-guidance": {}}});
        assert!(Schema::read(&switches, Strictness::Possible).is_err());
    }
}
