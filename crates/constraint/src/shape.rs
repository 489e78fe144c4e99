//! What one parameter between tags may be, by its schema: words, texts, numbers, arrays and objects.

use std::cell::Cell;
use std::fmt::Write;

use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use crate::SchemaError;
use crate::formats;
use crate::literals::{escaped, quoted, spaced};
use crate::signs::{branches, has_anchor, is_balanced};
use crate::texts::{OF_TEXTS, laid_over, lists_only_texts};

/// What a template writes around parameters, and words that it spells in its own way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tags {
    /// In front of a parameter's name: `<parameter=`
    pub open: String,
    /// Between name and value: `>` and a line's end.
    pub behind_name: String,
    /// Between name and a value that is no text, where the template has another sign there.
    pub before_json: Option<String>,
    /// Behind a value. It has a sign that is no white space.
    pub close: String,
    /// `true` as a value: `True` where the template writes it as Python does.
    pub true_word: String,
    /// `false` as a value.
    pub false_word: String,
    /// `null` as a value, where the template writes it.
    pub null_word: Option<String>,
}

impl Tags {
    /// White space in front of the sign that closes a value, the sign, white space behind it.
    pub(crate) fn closing(&self) -> (&str, &str, &str) {
        let sign = self.close.trim();
        let at = self.close.find(sign).unwrap_or(0);
        (&self.close[..at], sign, &self.close[at + sign.len()..])
    }

    pub(crate) fn boolean(&self, is_true: bool) -> &str {
        if is_true { &self.true_word } else { &self.false_word }
    }

    pub(crate) fn is_word(&self, text: &str) -> bool {
        text == self.true_word || text == self.false_word || self.null_word.as_deref() == Some(text)
    }
}

/// What a parameter's value may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueKinds {
    /// A text as it is.
    pub text: bool,
    /// `null`
    pub null: bool,
    /// `true` and `false`
    pub boolean: bool,
    /// Whole numbers.
    pub integer: bool,
    /// Any numbers.
    pub number: bool,
    /// Arrays and objects.
    pub structure: bool,
}

/// References and alternatives followed one inside the other.
const DEPTH_MAX: usize = 16;
/// Schemas looked at for one tool, along all references.
const VISITS_MAX: usize = 20_000;
/// Bytes of schemas that are copied for one tool, so that each parameter has what it refers to.
const COPIED_BYTES_MAX: usize = 1 << 20;
/// Alternatives of one parameter.
const CHOICES_MAX: usize = 4_096;
const TYPES: [&str; 7] = ["string", "null", "boolean", "integer", "number", "array", "object"];
/// Words that assert nothing of texts, beside those of texts.
const OF_STRUCTURES: [&str; 13] = [
    "additionalProperties",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxProperties",
    "maximum",
    "minItems",
    "minProperties",
    "minimum",
    "multipleOf",
    "patternProperties",
    "prefixItems",
];

/// What a value may be; any one of all that is listed.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Shape {
    null: bool,
    booleans: Vec<bool>,
    texts: Vec<Text>,
    /// Schemas of numbers.
    numbers: Vec<Value>,
    /// Schemas of arrays and objects.
    structures: Vec<Value>,
}

#[derive(Clone, PartialEq, Debug)]
enum Text {
    /// This one.
    Literal(String),
    /// Of so many characters, and of each of these expressions, in the engine's dialect.
    Free { chars_min: u64, chars_max: Option<u64>, patterns: Vec<String> },
}

impl Shape {
    pub(crate) fn any(tags: &Tags) -> Self {
        Self {
            null: tags.null_word.is_some(),
            booleans: vec![true, false],
            texts: vec![Text::Free { chars_min: 0, chars_max: None, patterns: Vec::new() }],
            numbers: vec![json!({"type": "number"})],
            structures: vec![json!({"type": ["array", "object"]})],
        }
    }

    pub(crate) fn kinds(&self) -> ValueKinds {
        ValueKinds {
            text: !self.texts.is_empty(),
            null: self.null,
            boolean: !self.booleans.is_empty(),
            integer: !self.numbers.is_empty(),
            number: self.numbers.iter().any(|schema| schema["type"] != "integer"),
            structure: !self.structures.is_empty(),
        }
    }

    /// The texts of it, and all else.
    pub(crate) fn split(&self) -> (Self, Self) {
        let texts = Self { texts: self.texts.clone(), ..Self::default() };
        (texts, Self { texts: Vec::new(), ..self.clone() })
    }

    fn has_free_text(&self) -> bool {
        self.texts.iter().any(|text| matches!(text, Text::Free { .. }))
    }

    /// Writes the rule `name`: a value and the sign that closes it, without the white space behind.
    ///
    /// Where a text may come, all else is written as texts are, in one lexeme up to the sign: the engine goes
    /// on with the longest lexeme that fits, and a text fits everything.
    pub(crate) fn write(&self, name: &str, tags: &Tags, rules: &mut String) {
        let (lead, sign, _) = tags.closing();
        let close = format!("{lead}{sign}");
        let end = escaped(&close);
        let upper = name.to_uppercase();
        let (mut choices, mut more) = (Vec::new(), String::new());
        let null = tags.null_word.as_deref().filter(|_| self.null);
        let booleans = self.booleans.iter().map(|&is_true| tags.boolean(is_true));
        let literal = |text: &Text| match text {
            Text::Literal(text) => Some(quoted(&format!("{text}{close}"))),
            Text::Free { .. } => None,
        };
        choices.extend(null.into_iter().chain(booleans).map(|word| quoted(&format!("{word}{close}"))));
        choices.extend(self.texts.iter().filter_map(literal));
        for (i, text) in self.texts.iter().enumerate() {
            let Text::Free { chars_min, chars_max, patterns } = text else { continue };
            let lexeme = format!("{upper}_TEXT_{i}");
            let count = match (chars_min, chars_max) {
                (0, None) => "*".to_owned(),
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            };
            let patterns: String = patterns.iter().map(|pattern| format!(" & /({pattern}){end}/")).collect();
            // What begins like JSON is JSON where that may come.
            let json = if self.structures.is_empty() { "" } else { " & ~/[\\[\\{](.|\\n)*/" };
            let sign = escaped(sign);
            let _ =
                writeln!(more, "{lexeme}: /(.|\\n){count}{end}/{patterns} & ~/(.|\\n)*{sign}(.|\\n)+/{json}");
            choices.push(lexeme);
        }
        for (i, schema) in self.numbers.iter().enumerate() {
            let fraction = if schema["type"] == "integer" { "" } else { "(\\.[0-9]+)?([eE][+\\-]?[0-9]+)?" };
            if self.has_free_text() {
                let lexeme = format!("{upper}_NUMBER_{i}");
                let _ = writeln!(more, "{lexeme}: /-?(0|[1-9][0-9]*){fraction}{end}/");
                choices.push(lexeme);
            } else {
                let _ = writeln!(more, "{name}_number_{i}: %json {}", spaced(schema));
                choices.push(format!("{name}_number_{i} {}", quoted(&close)));
            }
        }
        for (i, schema) in self.structures.iter().enumerate() {
            let _ = writeln!(more, "{name}_structure_{i}: %json {}", spaced(schema));
            choices.push(format!("{name}_structure_{i} {}", quoted(&close)));
        }
        let _ = write!(rules, "{name}: {}\n{more}", choices.join(" | "));
    }

    fn add(&mut self, other: Self) {
        self.null |= other.null;
        self.booleans.extend(other.booleans);
        self.texts.extend(other.texts);
        self.numbers.extend(other.numbers);
        self.structures.extend(other.structures);
    }

    /// Refuses what could not be told apart, or was too much.
    fn check(mut self, tags: &Tags, path: &[String]) -> Result<Self, SchemaError> {
        self.booleans.sort_unstable();
        self.booleans.dedup();
        let refused = |reason: &str| Err(SchemaError::at(path, reason));
        let choices = self.texts.len() + self.numbers.len() + self.structures.len();
        if choices > CHOICES_MAX {
            return refused("more alternatives than are followed between tags");
        }
        if choices == 0 && !self.null && self.booleans.is_empty() {
            return refused("no value that the model's template can write between tags is of this schema");
        }
        let is_bounded =
            |schema: &Value| schema.get("type").is_none() || schema.as_object().is_none_or(|s| s.len() > 1);
        if self.has_free_text() && self.numbers.iter().any(is_bounded) {
            return refused("numbers with bounds beside texts cannot be told apart between tags");
        }
        if self.has_free_text() && self.booleans.len() == 1 {
            return refused("one of true and false beside texts cannot be told from the other between tags");
        }
        let kinds = self.kinds();
        let is_text_alone = kinds == ValueKinds { text: true, ..ValueKinds::default() };
        for text in &self.texts {
            let Text::Literal(text) = text else { continue };
            if text.contains(tags.closing().1) {
                return refused(
                    "a text with the sign that closes a parameter cannot be written between tags",
                );
            }
            let is_other = || {
                tags.is_word(text)
                    || !self.structures.is_empty() && text.starts_with(['[', '{'])
                    || serde_json::from_str::<Value>(text).is_ok_and(|value| !value.is_string())
            };
            if !is_text_alone && is_other() {
                return refused("a text that looks like another value cannot be told from it between tags");
            }
        }
        Ok(self)
    }
}

/// Follows the schemas of parameters inside the schema of all arguments.
pub(crate) struct ShapeReader<'a> {
    root: &'a Value,
    tags: &'a Tags,
    visits: Cell<usize>,
    copied_bytes: Cell<usize>,
}

impl<'a> ShapeReader<'a> {
    pub(crate) fn new(root: &'a Value, tags: &'a Tags) -> Self {
        Self { root, tags, visits: Cell::new(0), copied_bytes: Cell::new(0) }
    }

    /// The words of the schema of all arguments, behind references.
    pub(crate) fn arguments(&self) -> Result<&'a Map<String, Value>, SchemaError> {
        let mut schema = self.root;
        for _ in 0..DEPTH_MAX {
            let Some(words) = schema.as_object() else { break };
            match words.get("$ref").filter(|_| words.get("properties").is_none()) {
                Some(target) => schema = self.target(target),
                None => return Ok(words),
            }
        }
        Err(SchemaError::at(&[], "this leads to no schema of an object that names parameters"))
    }

    /// What a value of this schema may be.
    pub(crate) fn shape(&self, schema: &'a Value, path: &mut Vec<String>) -> Result<Shape, SchemaError> {
        self.follow(schema, path, 0)?.check(self.tags, path)
    }

    fn target(&self, target: &Value) -> &'a Value {
        let pointer = target.as_str().and_then(|t| t.strip_prefix('#')).unwrap_or_default();
        self.root.pointer(pointer).unwrap_or(&Value::Null)
    }

    fn follow(&self, schema: &'a Value, path: &mut Vec<String>, depth: usize) -> Result<Shape, SchemaError> {
        self.visits.set(self.visits.get() + 1);
        if depth > DEPTH_MAX || self.visits.get() > VISITS_MAX {
            return Err(SchemaError::at(
                path,
                "alternatives and references are nested too deep, or too often, to be followed between tags",
            ));
        }
        let words = match schema {
            Value::Object(words) => words,
            Value::Bool(false) => return Ok(Shape::default()),
            _ => return Ok(Shape::any(self.tags)),
        };
        let asserts = |word: &&str| !["$schema", "$defs", "definitions"].contains(word);
        let asserted: Vec<&str> = words.keys().map(String::as_str).filter(asserts).collect();
        let beside = |path: &[String], word: &str| {
            let path: Vec<String> = path.iter().cloned().chain([word.to_owned()]).collect();
            let reason = format!(
                "`{word}` beside other words is not followed where a parameter is no JSON; leave them out"
            );
            Err(SchemaError::at(&path, reason))
        };
        let types = types(words);
        let is_json = types.iter().all(|kind| !["string", "null", "boolean"].contains(kind));
        let only_texts = lists_only_texts(words);
        match asserted.as_slice() {
            [] => return Ok(Shape::any(self.tags)),
            ["$ref"] => return self.follow(self.target(&words["$ref"]), path, depth + 1),
            [word @ ("anyOf" | "oneOf" | "allOf")] => {
                return self.alternatives(word, &words[*word], path, depth);
            }
            _ if is_json => {}
            words => {
                let is_beside =
                    |word: &str| ["$ref", "anyOf", "oneOf"].contains(&word) || word == "allOf" && !only_texts;
                if let Some(word) = words.iter().find(|word| is_beside(word)) {
                    return beside(path, word);
                }
            }
        }
        if !is_json && let Some(word) = asserted.iter().find(|word| ["const", "enum"].contains(word)) {
            if asserted.iter().any(|other| other != word && *other != "type") {
                return beside(path, word);
            }
            let values = match &words[*word] {
                Value::Array(values) if *word == "enum" => values.as_slice(),
                value => std::slice::from_ref(value),
            };
            return Ok(self.values(values, &types));
        }
        let mut shape = Shape::default();
        for kind in &types {
            match *kind {
                "string" => shape.texts.push(text(words, path)?),
                "null" => shape.null = self.tags.null_word.is_some(),
                "boolean" => shape.booleans.extend([true, false]),
                "integer" | "number" => shape.numbers.push(self.json(words, &[kind], path)?),
                _ => {}
            }
        }
        let structures: Vec<&str> =
            types.iter().copied().filter(|kind| ["array", "object"].contains(kind)).collect();
        if !structures.is_empty() {
            shape.structures.push(self.json(words, &structures, path)?);
        }
        Ok(shape)
    }

    fn alternatives(
        &self,
        word: &str,
        list: &'a Value,
        path: &mut Vec<String>,
        depth: usize,
    ) -> Result<Shape, SchemaError> {
        let schemas = list.as_array().map(Vec::as_slice).unwrap_or_default();
        path.push(word.to_owned());
        if word == "allOf" && schemas.len() != 1 {
            return Err(SchemaError::at(
                path,
                "`allOf` of several is not followed where a parameter is no JSON",
            ));
        }
        let mut shape = Shape::default();
        for (i, schema) in schemas.iter().enumerate() {
            path.push(i.to_string());
            shape.add(self.follow(schema, path, depth + 1)?);
            path.pop();
            if shape.texts.len() + shape.numbers.len() + shape.structures.len() > CHOICES_MAX {
                return Err(SchemaError::at(path, "more alternatives than are followed between tags"));
            }
        }
        let count = |n: usize| n > 1;
        if word == "oneOf"
            && (count(shape.texts.len()) || count(shape.numbers.len()) || count(shape.structures.len()))
        {
            return Err(SchemaError::at(
                path,
                "`oneOf` of several of one type is not followed between tags; send `anyOf`",
            ));
        }
        path.pop();
        Ok(shape)
    }

    fn values(&self, values: &[Value], types: &[&str]) -> Shape {
        let mut shape = Shape::default();
        let (mut numbers, mut structures) = (Vec::new(), Vec::new());
        for value in values {
            match value {
                Value::String(text) if types.contains(&"string") => {
                    shape.texts.push(Text::Literal(text.clone()))
                }
                Value::Null if types.contains(&"null") => shape.null = self.tags.null_word.is_some(),
                Value::Bool(is_true) if types.contains(&"boolean") => shape.booleans.push(*is_true),
                Value::Number(_) if types.iter().any(|kind| ["integer", "number"].contains(kind)) => {
                    numbers.push(value.clone())
                }
                Value::Array(_) if types.contains(&"array") => structures.push(value.clone()),
                Value::Object(_) if types.contains(&"object") => structures.push(value.clone()),
                _ => {}
            }
        }
        let listed = |values: Vec<Value>| (!values.is_empty()).then(|| json!({ "enum": values }));
        shape.numbers.extend(listed(numbers));
        shape.structures.extend(listed(structures));
        shape
    }

    /// The same schema of fewer types, for itself: what it refers to goes with it.
    fn json(
        &self,
        words: &Map<String, Value>,
        types: &[&str],
        path: &[String],
    ) -> Result<Value, SchemaError> {
        let only_texts = lists_only_texts(words);
        let mut words: Map<String, Value> = words
            .iter()
            .filter(|(word, _)| {
                let word = word.as_str();
                word != "$schema" && !OF_TEXTS.contains(&word) && !(word == "allOf" && only_texts)
            })
            .map(|(word, value)| (word.clone(), value.clone()))
            .collect();
        let names: Vec<Value> = types.iter().map(|kind| Value::from(*kind)).collect();
        let kind = if let [one] = names.as_slice() { one.clone() } else { Value::Array(names) };
        words.insert("type".to_owned(), kind);
        let mut schema = Value::Object(words);
        if has_reference(&schema) {
            if self.copied_bytes.get() <= COPIED_BYTES_MAX {
                self.copied_bytes.set(self.copied_bytes.get().saturating_add(self.root_bytes()));
            }
            if self.copied_bytes.get() > COPIED_BYTES_MAX {
                let reason =
                    "too many parameters refer into this schema to be followed between tags; write them out";
                return Err(SchemaError::at(path, reason));
            }
            let mut root = self.root.clone();
            lead_to_root(&mut root);
            lead_to_root(&mut schema);
            schema["$defs"] = json!({ "root": root });
        }
        Ok(schema)
    }

    /// Of the whole schema as text.
    fn root_bytes(&self) -> usize {
        serde_json::to_vec(self.root).map_or(usize::MAX, |text| text.len())
    }
}

/// The types that a schema allows.
fn types(words: &Map<String, Value>) -> Vec<&str> {
    let mut types: Vec<&str> = match words.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => TYPES.into_iter().filter(|kind| *kind != "integer").collect(),
    };
    if types.contains(&"number") {
        types.retain(|kind| *kind != "integer");
    }
    types
}

fn text(words: &Map<String, Value>, path: &mut [String]) -> Result<Text, SchemaError> {
    let (mut chars_min, mut chars_max, mut patterns) = (0, None, Vec::new());
    for (word, value) in std::iter::once(words).chain(laid_over(words)).flatten() {
        let refused = |reason: String| {
            let path: Vec<String> = path.iter().cloned().chain([word.clone()]).collect();
            Err(SchemaError::at(&path, reason))
        };
        match word.as_str() {
            "minLength" => chars_min = value.as_u64().unwrap_or(0).max(chars_min),
            "maxLength" => chars_max = value.as_u64().into_iter().chain(chars_max).min(),
            "pattern" => match anywhere(value.as_str().unwrap_or_default()) {
                Some(pattern) => patterns.push(pattern),
                None => {
                    return refused(
                        "a `^` or `$` inside of this pattern, or a bracket without its other one, is not followed between tags".to_owned(),
                    );
                }
            },
            // Dates, times and more are patterns already.
            "format" => match formats::outside_json(value.as_str().unwrap_or_default()) {
                Some(pattern) => patterns.push(pattern),
                None => {
                    return refused(
                        "this `format` is not asserted between tags; send a `pattern`".to_owned(),
                    );
                }
            },
            "$defs" | "$schema" | "allOf" | "definitions" | "properties" | "required" | "type" => {}
            word if OF_STRUCTURES.contains(&word) => {}
            word => return refused(format!("`{word:.60}` is not followed where a parameter is no JSON")),
        }
    }
    if chars_max.is_some_and(|most| most < chars_min) {
        return Err(SchemaError::at(path, "no text is so long and so short"));
    }
    Ok(Text::Free { chars_min, chars_max, patterns })
}

/// A pattern, which may stand anywhere in a text unless it says where, as an expression of the whole text.
fn anywhere(pattern: &str) -> Option<String> {
    if !is_balanced(pattern) {
        return None;
    }
    let whole = |branch: &str| {
        let (is_first, rest) = branch.strip_prefix('^').map_or((false, branch), |rest| (true, rest));
        let slashes =
            rest.strip_suffix('$').map_or(1, |rest| rest.bytes().rev().take_while(|b| *b == b'\\').count());
        let is_last = rest.ends_with('$') && slashes % 2 == 0;
        let rest = if is_last { &rest[..rest.len() - 1] } else { rest };
        let any = |is_at_end: bool| if is_at_end { "" } else { "(.|\\n)*" };
        let inner = regex_to_lark(rest, "dw");
        (!has_anchor(rest)).then(|| format!("{}({inner}){}", any(is_first), any(is_last)))
    };
    let branches: Option<Vec<String>> = branches(pattern).into_iter().map(whole).collect();
    Some(branches?.join("|"))
}

fn has_reference(schema: &Value) -> bool {
    let mut schema = schema.clone();
    let mut found = false;
    each_reference(&mut schema, &mut |_| found = true);
    found
}

/// Makes references into a schema ones into where it goes: below `#/$defs/root`.
fn lead_to_root(schema: &mut Value) {
    each_reference(schema, &mut |target| *target = format!("#/$defs/root{}", &target[1..]));
}

/// Every reference in places of schemas; what looks like one in a value is none. A schema that was read has
/// no others than into itself.
fn each_reference(schema: &mut Value, change: &mut impl FnMut(&mut String)) {
    for (word, value) in schema.as_object_mut().into_iter().flatten() {
        match (word.as_str(), value) {
            ("$ref", Value::String(target)) if target.starts_with('#') => change(target),
            ("additionalProperties" | "items", value) => each_reference(value, change),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| each_reference(schema, change));
            }
            ("$defs" | "definitions" | "patternProperties" | "properties", Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| each_reference(schema, change));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_may_stand_anywhere_unless_it_says_where() {
        for (pattern, expected) in [
            ("^a$", Some("(a)")),
            ("a", Some("(.|\\n)*(a)(.|\\n)*")),
            ("^a|b$", Some("(a)(.|\\n)*|(.|\\n)*(b)")),
            ("^(a|b)$", Some("((a|b))")),
            ("^[$^|]\\$", Some("([$^|]\\$)(.|\\n)*")),
            ("^\\d/$", Some("([0-9]\\/)")),
            ("(^a|b)", None),
            ("a)|(b", None),
            ("(a", None),
        ] {
            assert_eq!(anywhere(pattern).as_deref(), expected, "{pattern}");
        }
    }
}
