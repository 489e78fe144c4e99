//! Schemas that refer to each other, as agents send them, and as nobody should.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

mod common;

use exo_constraint::{Body, Compiler, Schema, Strictness, TokenKind};
use serde_json::{Map, Value, json};

const END: u32 = 256;

fn compiler() -> Compiler {
    common::compiler(&[], vec![TokenKind::Control], END)
}

fn read(schema: &Value) -> Result<Schema, String> {
    Schema::read(schema, Strictness::Whole).map_err(|error| error.to_string())
}

/// Whether each of the values is an answer of the schema, as it stands and closed.
fn check(schema: &Value, cases: &[(Value, bool)]) {
    let compiler = compiler();
    let read = read(schema).unwrap();
    for schema in [read.value.clone(), read.closed().value] {
        let layout = common::layout(Body::Json(schema));
        let constraint = compiler.constrain(layout.grammar()).unwrap();
        for (value, is_taken) in cases {
            let fold = compiler.start(&constraint).unwrap();
            assert_eq!(common::takes(fold, &spaced(value)), *is_taken, "{value}");
        }
    }
}

/// A value as answers are spaced.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(name, field): (&String, &Value)| format!("{}: {}", json!(name), spaced(field));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

fn to(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// An object with a tag; it has to have all that it names.
fn node(kind: &str, fields: Value) -> Value {
    let mut properties = json!({"kind": {"type": "string", "const": kind}});
    let named = properties.as_object_mut().unwrap();
    named.extend(fields.as_object().unwrap().clone());
    let required: Vec<String> = named.keys().cloned().collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// Expressions of ten kinds, each of which may hold any other.
#[test]
fn an_expression_of_ten_kinds_of_nodes_is_followed() {
    let kinds = ["Number", "Text", "Truth", "Name", "Unary", "Binary", "Call", "Lambda", "If", "Let"];
    let any = || to("Expression");
    let defs = json!({
        "Expression": {"anyOf": kinds.map(to)},
        "Number": node("number", json!({"value": {"type": "number"}})),
        "Text": node("text", json!({"value": {"type": "string"}})),
        "Truth": node("truth", json!({"value": {"type": "boolean"}})),
        "Name": node("name", json!({"name": {"type": "string", "pattern": "^[a-z]+$"}})),
        "Unary": node("unary", json!({"operator": {"enum": ["-", "!"]}, "operand": any()})),
        "Binary": node("binary", json!({"operator": {"enum": ["+", "*"]}, "left": any(), "right": any()})),
        "Call": node("call", json!({"callee": any(), "arguments": {"type": "array", "items": any()}})),
        "Lambda": node("lambda", json!({"parameters": {"type": "array", "items": to("Name")}, "body": any()})),
        "If": node("if", json!({"test": any(), "then": any(), "else": {"anyOf": [any(), {"type": "null"}]}})),
        "Let": node("let", json!({"name": to("Name"), "value": any(), "body": any()})),
    });
    let schema = json!({"type": "object", "properties": {"root": any()}, "required": ["root"],
        "additionalProperties": false, "$defs": defs});
    let one = json!({"kind": "number", "value": 1});
    let name = json!({"kind": "name", "name": "x"});
    let sum = json!({"kind": "binary", "operator": "+", "left": one, "right": name});
    let call = json!({"kind": "call", "callee": {"kind": "lambda", "parameters": [name], "body": sum}, "arguments": [one, sum]});
    let choice = json!({"kind": "if", "test": {"kind": "truth", "value": true}, "then": call, "else": null});
    let wrong = json!({"kind": "binary", "operator": "-", "left": one, "right": name});
    check(
        &schema,
        &[(json!({"root": choice}), true), (json!({"root": wrong}), false), (json!({"root": null}), false)],
    );
}

/// Unions whose alternatives are unions, seven deep: each of a level refers to all of the next.
fn unions(width: usize) -> Value {
    let mut defs = Map::new();
    for level in 0..7 {
        for i in 0..width {
            let next = (0..width).filter(|_| level < 6).map(|j| to(&format!("u{}_{j}", level + 1)));
            let own = format!("n{level}_{i}");
            let options: Vec<Value> = next.chain([to(&own), json!({"type": "null"})]).collect();
            defs.insert(format!("u{level}_{i}"), json!({"anyOf": options}));
            let fields = json!({"next": {"type": "array", "items": to("u0_0")}});
            defs.insert(own.clone(), node(&own, fields));
        }
    }
    Value::Object(defs)
}

#[test]
fn unions_of_unions_by_reference_are_followed_however_many_ways_there_are() {
    let schema = |width: usize| json!({"type": "object", "properties": {"a": to("u0_0")}, "required": ["a"], "$defs": unions(width)});
    let last = json!({"kind": "n6_3", "next": [null]});
    let cases = [
        (json!({"a": {"kind": "n0_0", "next": [last, {"kind": "n3_1", "next": []}]}}), true),
        (json!({"a": {"kind": "n0_1", "next": []}}), false),
        (json!({"a": {"kind": "n7_0", "next": []}}), false),
    ];
    check(&schema(5), &cases);
    read(&schema(12)).unwrap();
}

/// Records of twelve kinds whose fields are of twelve types, one of which may hold any record; types and
/// records have fields that others have, too.
#[test]
fn records_that_hold_each_other_are_followed() {
    let list = |name: &str| json!({"type": "array", "items": to(name)});
    let id = json!({"type": "string", "pattern": r"^[A-Za-z0-9\-\.]{1,64}$"});
    let mut defs = Map::new();
    let object = |tag: Option<&str>, fields: Map<String, Value>| {
        let mut properties = Map::new();
        properties.extend(tag.map(|tag| ("resourceType".to_owned(), json!({"const": tag}))));
        properties.extend([("id".to_owned(), id.clone()), ("extension".to_owned(), list("Extension"))]);
        properties.extend(fields);
        let required: Vec<&str> = tag.map(|_| "resourceType").into_iter().collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let values = (0..12).map(|i| (format!("valueT{i}"), to(&format!("T{i}"))));
    defs.insert(
        "Extension".to_owned(),
        object(None, [("url".to_owned(), json!({"type": "string"}))].into_iter().chain(values).collect()),
    );
    for i in 0..12 {
        let other = |j: usize| (format!("f{j}"), to(&format!("T{}", (i + j) % 12)));
        let fields = (1..6).map(other).chain([("text".to_owned(), json!({"type": "string"}))]);
        defs.insert(format!("T{i}"), object(None, fields.collect()));
        let fields = (1..9).map(|j| (format!("r{j}"), list(&format!("T{}", (7 * i + j) % 12))));
        let fields = fields.chain([("contained".to_owned(), list("ResourceList"))]).collect();
        let name = format!("R{i}");
        let record = object(Some(name.as_str()), fields);
        defs.insert(name, record);
    }
    defs.insert(
        "ResourceList".to_owned(),
        json!({"oneOf": (0..12).map(|i| to(&format!("R{i}"))).collect::<Vec<_>>()}),
    );
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/$defs/ResourceList", "$defs": defs});
    let part = json!({"id": "b", "extension": [{"url": "u", "valueT3": {"text": "x"}}], "f1": {"text": "y"}});
    let inner = json!({"resourceType": "R7", "id": "c"});
    let record = json!({"resourceType": "R0", "id": "a-1", "r1": [part], "contained": [inner]});
    let untagged = json!({"id": "a", "r1": [part]});
    check(&schema, &[(record, true), (untagged, false), (json!({"resourceType": "R12"}), false)]);
}

/// Most of the words of JSON Schema, as a schema.
#[test]
fn a_schema_of_schemas_is_followed() {
    let strings = json!({"type": "array", "items": {"type": "string"}});
    let named = json!({"type": "object", "additionalProperties": {"$ref": "#"}});
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "http://json-schema.org/draft-07/schema#",
        "definitions": {
            "schemaArray": {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
            "nonNegativeInteger": {"type": "integer", "minimum": 0},
            "nonNegativeIntegerDefault0": {"allOf": [{"$ref": "#/definitions/nonNegativeInteger"}, {"default": 0}]},
            "simpleTypes": {"enum": ["array", "boolean", "integer", "null", "number", "object", "string"]},
        },
        "type": ["object", "boolean"],
        "properties": {
            "$ref": {"type": "string"},
            "title": {"type": "string"},
            "default": true,
            "minLength": {"$ref": "#/definitions/nonNegativeIntegerDefault0"},
            "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/definitions/schemaArray"}], "default": true},
            "required": strings,
            "properties": named,
            "dependencies": {"type": "object", "additionalProperties": {"anyOf": [{"$ref": "#"}, strings]}},
            "enum": {"type": "array", "items": true},
            "type": {"anyOf": [
                {"$ref": "#/definitions/simpleTypes"},
                {"type": "array", "items": {"$ref": "#/definitions/simpleTypes"}, "minItems": 1},
            ]},
            "anyOf": {"$ref": "#/definitions/schemaArray"},
            "not": {"$ref": "#"},
        },
        "additionalProperties": false,
        "default": true,
    });
    let person = json!({"properties": {"name": {"minLength": 1, "type": "string"}, "of": {"items": [{"$ref": "#"}, true]}},
        "type": "object"});
    check(
        &schema,
        &[
            (person, true),
            (json!(true), true),
            (json!({"minLength": -1}), false),
            (json!({"type": "text"}), false),
            (json!({"anyOf": []}), false),
        ],
    );
}

/// A page of parts in parts, as OpenAI's guide to structured outputs has it, with a list that refers to
/// itself by name.
#[test]
fn a_page_of_parts_in_parts_is_followed() {
    let attribute = json!({"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
        "required": ["name", "value"], "additionalProperties": false});
    let schema = json!({
        "type": "object",
        "properties": {
            "type": {"type": "string", "description": "The part", "enum": ["div", "button", "header", "section", "field", "form"]},
            "label": {"type": "string"},
            "children": {"type": "array", "description": "Parts in it", "items": {"$ref": "#"}},
            "attributes": {"type": "array", "items": attribute},
            "next": {"anyOf": [{"$ref": "#/$defs/list_node"}, {"type": "null"}]},
        },
        "required": ["type", "label", "children", "attributes", "next"],
        "additionalProperties": false,
        "$defs": {"list_node": {
            "type": "object",
            "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/list_node"}, {"type": "null"}]}},
            "required": ["value", "next"],
            "additionalProperties": false,
        }},
    });
    let part = |kind: &str, children: Value| json!({"type": kind, "label": "l", "children": children, "attributes": [{"name": "n", "value": "v"}], "next": {"value": 1, "next": null}});
    let form =
        part("form", json!([part("field", json!([])), part("div", json!([part("button", json!([]))]))]));
    check(&schema, &[(form, true), (part("page", json!([])), false)]);
}

/// What shares no name with what it extends is not merged inside, whatever it refers to there.
#[test]
fn what_extends_another_is_counted_by_the_names_that_both_have() {
    let base = json!({"type": "object", "properties": {"id": {"type": "string"}, "of": to("u0_0")}});
    let schema = |own: &str| {
        let mut defs = unions(5);
        defs["base"] = base.clone();
        let own = json!({"type": "object", "properties": {own: {"type": "object", "properties": {"x": {"type": "string"}}}}});
        json!({"allOf": [to("base"), own], "$defs": defs})
    };
    read(&schema("more")).unwrap();
    assert!(read(&schema("of")).unwrap_err().contains("would take too much memory"));
}

/// The engine would go through every way there is.
#[test]
fn unions_that_are_merged_are_counted_with_every_way_through_them() {
    let any = || to("u0_0");
    let object = json!({"type": "object"});
    let listed: Vec<Value> = (0..1_000).map(|i| json!({"a": {"kind": i}})).collect();
    for mut schema in [
        json!({"allOf": [{"properties": {"a": any()}}, {"properties": {"a": object}}]}),
        json!({"allOf": [{"items": any()}, {"items": object}]}),
        json!({"allOf": [{"items": any()}, {"prefixItems": [object]}]}),
        json!({"allOf": [{"properties": {"a": any()}}, {"additionalProperties": object}]}),
        json!({"properties": {"a": any()}, "patternProperties": {"^a": object}}),
        json!({"properties": {"a": any()}, "enum": listed}),
        json!({"properties": {"a": any()}, "const": {"a": {"kind": "n0_0"}}}),
    ] {
        schema["$defs"] = unions(5);
        let error = read(&schema).unwrap_err();
        assert!(error.contains("would take too much memory"), "{error}");
    }
    let beside = json!({"$ref": "#/$defs/u0_0", "type": "object", "$defs": unions(5)});
    assert!(read(&beside).unwrap_err().contains("make more than 250000 places"));
    let twice = json!({"allOf": [any(), any()], "$defs": unions(5)});
    assert!(read(&twice).unwrap_err().contains("make more than 250000 places"));
}
