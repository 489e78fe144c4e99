//! Calls with parameters between tags against their grammar, over a small vocabulary made here.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

mod common;

use exo_constraint::{
    Arguments, Body, CallShape, Calls, Compiler, Fold, Layout, Part, Schema, Strictness, TaggedArguments,
    Tags, TemplatePiece, TokenKind, ToolSearch,
};
use exo_sampler::Sampler;
use exo_types::SamplingParams;
use serde_json::{Map, Value, json};

const WORDS: [&str; 8] = [
    "<parameter=",
    ">\n",
    "\n</parameter>\n",
    "</parameter>",
    "</function>\n</tool_call>",
    "True",
    "\n</param",
    "eter>\n",
];
const END: u32 = 264;

fn compiler() -> Compiler {
    common::compiler(&WORDS, vec![TokenKind::Control], END)
}

fn tags() -> Tags {
    Tags {
        open: "<parameter=".to_owned(),
        behind_name: ">\n".to_owned(),
        before_json: None,
        close: "\n</parameter>\n".to_owned(),
        true_word: "True".to_owned(),
        false_word: "False".to_owned(),
        null_word: Some("None".to_owned()),
    }
}

fn read(schema: &Value, strictness: Strictness) -> Result<TaggedArguments, String> {
    let schema = Schema::read(schema, strictness).map_err(|e| e.to_string())?.value;
    let read = TaggedArguments::read(&schema, &tags(), strictness);
    read.map(|(arguments, _)| arguments).map_err(|e| e.to_string())
}

fn layout(arguments: TaggedArguments) -> Layout {
    let text = |text: &str| vec![TemplatePiece::Text(text.to_owned())];
    let tool = CallShape {
        head: vec![Part::Text("<function=f>\n".to_owned())],
        other_head: Vec::new(),
        arguments: Arguments::Tagged(arguments.into()),
        tail: Vec::new(),
    };
    common::layout(Body::Calls(Calls {
        begin: text("<tool_call>\n"),
        other_begin: None,
        between: text("</function>\n</tool_call>\n<tool_call>\n"),
        end: text("</function>\n</tool_call>"),
        tools: vec![tool],
        is_parallel: true,
        is_required: false,
        answer: None,
    }))
}

fn start(compiler: &Compiler, schema: &Value) -> Fold {
    common::start(compiler, &layout(read(schema, Strictness::Whole).unwrap()))
}

fn takes(compiler: &Compiler, schema: &Value, text: &str) -> bool {
    common::takes(start(compiler, schema), text)
}

fn call(parameters: &[(&str, &str)]) -> String {
    let each = |(name, value): &(&str, &str)| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let parameters: String = parameters.iter().map(each).collect();
    format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
}

/// A schema of one parameter `p`.
fn one(schema: Value) -> Value {
    json!({"type": "object", "properties": {"p": schema}, "required": ["p"], "additionalProperties": false,
        "$defs": {"t": {"type": "string", "maxLength": 2}, "list": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})
}

#[test]
fn values_are_of_their_schema() {
    let compiler = compiler();
    let long = "x".repeat(300);
    let cases: [(Value, &[&str], &[&str]); 18] = [
        (
            json!({"type": "string"}),
            &["", "a\nb", "12", "{\"a", "</p", "\n\n", &long],
            &["</parameter>", "a</parameter>b"],
        ),
        (json!({"type": "string", "maxLength": 3, "minLength": 1}), &["a", "é\n<"], &["", "abcd"]),
        (json!({"enum": ["a b", "c"]}), &["a b", "c"], &["a", "\"c\"", "d"]),
        (json!({"type": "string", "pattern": "^a\\d/?$"}), &["a1", "a1/"], &["a", "xa1", "a1x"]),
        (json!({"type": "string", "pattern": "a\\d"}), &["a1", "x a1\ny"], &["a", "1a"]),
        (
            json!({"type": "string", "format": "uuid"}),
            &["01234567-89ab-cdef-0123-456789abcdef"],
            &["0123", "x"],
        ),
        (json!({"type": "string", "format": "date"}), &["2024-02-29"], &["2023-02-29", "x"]),
        (json!({"type": "boolean"}), &["True", "False"], &["true", "", "\"True\""]),
        (json!({"type": "null"}), &["None"], &["null", ""]),
        (json!({"type": "integer", "minimum": 3, "maximum": 12}), &["3", "12"], &["2", "13", "3.5", "\"3\""]),
        (json!({"type": ["integer", "null"]}), &["-4", "None"], &["x", "4.5"]),
        (
            json!({"type": "array", "items": {"type": "boolean"}}),
            &["[]", "[true, false]"],
            &["[True]", "[true,false]", "x"],
        ),
        (json!({"$ref": "#/$defs/list"}), &["[\"ab\", \"c\"]"], &["[\"abc\"]"]),
        (json!({"$ref": "#/$defs/t"}), &["ab"], &["abc"]),
        (json!({"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}), &["ab", "None"], &["abc"]),
        (json!({"type": ["string", "integer"], "maxLength": 3}), &["abc", "12345", "4x"], &["abcd", "1234x"]),
        (json!({}), &["so [1]", "[1, \"x\"]", "{\"a\": {}}", "12", "True", "None"], &["[1", "{so}", "[1,2]"]),
        (
            json!({"enum": ["a", 3, true, null, [1]]}),
            &["a", "3", "True", "None", "[1]"],
            &["4", "b", "False", "[2]"],
        ),
    ];
    for (schema, right, wrong) in cases {
        let schema = one(schema);
        for value in right {
            assert!(takes(&compiler, &schema, &call(&[("p", value)])), "{value} is of {schema}");
        }
        for value in wrong {
            assert!(!takes(&compiler, &schema, &call(&[("p", value)])), "{value} is not of {schema}");
        }
    }
}

#[test]
fn a_value_is_what_the_sign_in_front_of_it_says() {
    let compiler = compiler();
    let told =
        Tags { behind_name: " text>\n".to_owned(), before_json: Some(" json>\n".to_owned()), ..tags() };
    let takes = |schema: &Value, sign: &str, value: &str| {
        let schema = Schema::read(schema, Strictness::Whole).unwrap().value;
        let (arguments, _) = TaggedArguments::read(&schema, &told, Strictness::Whole).unwrap();
        let constraint = compiler.constrain(layout(arguments).grammar()).unwrap();
        let parameter = call(&[("p", value)]).replace("=p>", &format!("=p {sign}>"));
        common::takes(compiler.start(&constraint).unwrap(), &parameter)
    };
    let either = one(json!({"type": ["string", "integer", "null"], "maxLength": 3}));
    let (number, any) = (one(json!({"type": "integer"})), json!({"type": "object"}));
    for (schema, sign, value) in [
        (&either, "text", "12"),
        (&either, "text", "ab"),
        (&either, "json", "12345"),
        (&either, "json", "None"),
        (&number, "json", "3"),
        (&any, "text", "[1"),
        (&any, "json", "[1]"),
    ] {
        assert!(takes(schema, sign, value), "{value} as {sign} is of {schema}");
    }
    for (schema, sign, value) in [
        (&either, "text", "12345"),
        (&either, "json", "ab"),
        (&either, "json", "\"ab\""),
        (&number, "text", "3"),
        (&any, "json", "[1"),
        (&any, "json", "so"),
        (&any, "other", "so"),
    ] {
        assert!(!takes(schema, sign, value), "{value} as {sign} is not of {schema}");
    }
}

#[test]
fn only_parameters_there_are_come_and_those_that_must() {
    let compiler = compiler();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]});
    for right in [
        call(&[("b", "x")]),
        call(&[("a", "1"), ("b", "")]),
        "a <tool> <parameter=x>".to_owned(),
        format!("so\n{}", call(&[("b", "x")])),
        format!("{}\n{}", call(&[("b", "x")]), call(&[("b", "y")])),
    ] {
        assert!(takes(&compiler, &schema, &right), "{right}");
    }
    for wrong in [
        call(&[]),
        call(&[("a", "1")]),
        call(&[("b", "x"), ("c", "1")]),
        call(&[("b", "x"), ("b", "y")]),
        call(&[("b", "x</parameter>\n</function>\n</tool_call>")]),
        call(&[("b", "x")]).replace("=f>", "=g>"),
        format!("{} ", call(&[("b", "x")])),
    ] {
        assert!(!takes(&compiler, &schema, &wrong), "{wrong}");
    }
    let open = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"],
        "additionalProperties": {"type": "boolean"}});
    assert!(takes(&compiler, &open, &call(&[("a", "1"), ("z", "True"), ("other", "False"), ("ab", "True")])));
    for wrong in [
        call(&[("z", "True"), ("a", "True")]),
        call(&[("z", "x")]),
        call(&[("z", "True"), ("o", "1")]),
        call(&[]),
    ] {
        assert!(!takes(&compiler, &open, &wrong), "{wrong}");
    }
    let none = json!({"type": "object", "properties": {}});
    assert!(takes(&compiler, &none, &call(&[])) && !takes(&compiler, &none, &call(&[("a", "1")])));
    let any = json!({"type": "object"});
    assert!(takes(&compiler, &any, &call(&[])) && takes(&compiler, &any, &call(&[("a", "1"), ("b", "[1]")])));
}

#[test]
fn what_cannot_stand_between_tags_is_named_by_its_place() {
    let refused = |schema: Value| read(&schema, Strictness::Whole).unwrap_err();
    for (schema, says) in [
        (
            one(json!({"type": ["string", "integer"], "minimum": 3})),
            "at `#/properties/p`: numbers with bounds beside texts",
        ),
        (one(json!({"anyOf": [{"const": true}, {"type": "string"}]})), "one of true and false"),
        (
            one(json!({"type": "string", "allOf": [{"minLength": 1}, {"items": {}}]})),
            "at `#/properties/p/allOf`",
        ),
        (one(json!({"type": "string", "pattern": "(^a|b)"})), "at `#/properties/p/pattern`"),
        (one(json!({"enum": ["a</parameter>"]})), "the sign that closes a parameter"),
        (one(json!({"enum": ["12", 12]})), "looks like another value"),
        (one(json!({"enum": ["[so", [1]]})), "looks like another value"),
        (one(json!({"allOf": [{"minLength": 1}, {"maxLength": 2}]})), "at `#/properties/p/allOf`"),
        (
            one(json!({"oneOf": [{"minLength": 1, "type": "string"}, {"type": "string"}]})),
            "at `#/properties/p/oneOf`",
        ),
        (one(json!({"type": "string", "enum": ["a"], "maxLength": 3})), "at `#/properties/p/enum`"),
        (one(json!(false)), "no value"),
        (json!({"type": "object", "properties": {"a>b": {}}, "required": ["a>b"]}), "at `#/properties/a>b`"),
        (json!({"type": "object", "minProperties": 2}), "at `#/minProperties`"),
        (
            json!({"type": "object", "properties": {}, "required": ["a"], "additionalProperties": false}),
            "at `#/required`",
        ),
    ] {
        let error = refused(schema.clone());
        assert!(error.contains(says), "{schema}: {error}");
    }
    // Of a tool that is not strict only that is left out.
    let compiler = compiler();
    let loose = one(json!({"type": ["string", "integer"], "minimum": 3}));
    let loose = Schema::read(&loose, Strictness::Possible).unwrap().value;
    let (arguments, left_out) = TaggedArguments::read(&loose, &tags(), Strictness::Possible).unwrap();
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    compiler.constrain(layout(arguments).grammar()).unwrap();
    let deep = (0..40).fold(json!({"type": "string"}), |inner, _| json!({"anyOf": [inner]}));
    assert!(refused(one(deep)).contains("nested too deep"));
    let cycle = json!({"type": "object", "properties": {"p": {"$ref": "#/properties/p"}}, "required": ["p"]});
    assert!(refused(cycle).contains("nested too deep"));
}

#[test]
fn references_are_followed_so_often_and_copied_so_far() {
    let refused = |schema: Value| read(&schema, Strictness::Whole).unwrap_err();
    let link = |name: String| json!({"$ref": format!("#/$defs/{name}")});
    // Six ways through each of seven schemas: 280,000 in all.
    let mut branching = json!({"type": "object", "properties": {"p": link("s7".to_owned())}, "$defs": {"s0": {"type": "null"}}});
    for i in 1..=7 {
        branching["$defs"][format!("s{i}")] = json!({"anyOf": vec![link(format!("s{}", i - 1)); 6]});
    }
    assert!(refused(branching.clone()).contains("nested too deep, or too often"), "{}", refused(branching));
    // Each list of names has a copy of what it refers to: of a few parameters that is nothing, of hundreds it
    // is much.
    let names: Vec<String> = (0..400).map(|n| format!("a name of some length {n}")).collect();
    let copying = |parameters: usize| {
        let list = json!({"type": "array", "items": link("name".to_owned())});
        let properties: Map<String, Value> =
            (0..parameters).map(|n| (format!("p{n}"), list.clone())).collect();
        json!({"type": "object", "properties": properties, "$defs": {"name": {"enum": names}}})
    };
    assert!(read(&copying(3), Strictness::Whole).is_ok());
    assert!(refused(copying(300)).contains("too many parameters refer"), "{}", refused(copying(300)));
}

/// Draws at temperature 1 from logits that know nothing but that `\n</parameter>` is likely.
fn draw(compiler: &Compiler, schema: &Value, seed: u64) -> Option<String> {
    let grammar = layout(read(schema, Strictness::Whole).unwrap()).grammar();
    let constraint = compiler.constrain(grammar).unwrap();
    let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
    let mut sampler =
        Sampler::constrained(params, &[], 0, Some(Box::new(compiler.start(&constraint).unwrap())));
    let mut text = Vec::new();
    "<tool_call>\n".bytes().for_each(|byte| sampler.accept(byte.into()));
    for position in 0..600u64 {
        let noise = |i: u64| ((i * 7919 + seed * 104_729 + position * 31) % 97) as f32 / 30.0;
        let logits: Vec<f32> = (0..265u64).map(|i| noise(i) + if i >= 256 { 4.0 } else { 0.0 }).collect();
        let token = sampler.sample(&logits, 12 + position).unwrap().token;
        if token == END {
            return Some(String::from_utf8(text).expect("what a grammar takes is UTF-8"));
        }
        match WORDS.get((token as usize).wrapping_sub(256)) {
            Some(word) => text.extend_from_slice(word.as_bytes()),
            None => text.push(token as u8),
        }
        sampler.accept(token);
    }
    None
}

#[test]
fn whatever_the_logits_say_calls_are_of_their_schema() {
    let compiler = compiler();
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "n", "on"], "properties": {
        "name": {"type": "string", "maxLength": 9}, "n": {"type": "integer", "minimum": 0, "maximum": 99}, "on": {"type": "boolean"},
        "either": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}}});
    let answers: Vec<String> = (0..40).filter_map(|seed| draw(&compiler, &schema, seed)).collect();
    assert!(answers.len() >= 30, "{} of 40 ended", answers.len());
    for answer in answers {
        for call in answer.split("</tool_call>").filter(|call| !call.is_empty()) {
            let names: Vec<&str> =
                call.split("<parameter=").skip(1).filter_map(|rest| rest.split(">\n").next()).collect();
            assert!(names == ["name", "n", "on"] || names == ["name", "n", "on", "either"], "{answer}");
            let value = |name: &str| {
                let rest = call.split(&format!("<parameter={name}>\n")).nth(1)?;
                rest.split("\n</parameter>\n").next().map(str::to_owned)
            };
            assert!(value("name").is_some_and(|name| name.chars().count() <= 9), "{answer}");
            assert!(value("n").and_then(|n| n.parse::<u8>().ok()).is_some_and(|n| n < 100), "{answer}");
            assert!(value("on").is_some_and(|on| on == "True" || on == "False"), "{answer}");
            assert!(value("either").is_none_or(|text| text.chars().count() <= 4), "{answer}");
        }
    }
}

#[test]
fn a_text_is_of_its_format_its_patterns_and_its_length_at_once() {
    let compiler = compiler();
    let cases: [(Value, &[&str], &[&str]); 6] = [
        (
            json!({"type": "string", "format": "date", "pattern": "^20"}),
            &["2024-02-29"],
            &["1999-01-01", "2023-02-29", "20"],
        ),
        (
            json!({"type": ["string", "null"], "allOf": [{"pattern": "a"}, {"pattern": "b", "maxLength": 3}]}),
            &["ab", "bxa", "None"],
            &["a", "abxx"],
        ),
        (
            json!({"type": "string", "format": "hostname", "pattern": r"^(?=.{1,9}$)[a-z.]+$"}),
            &["a.example"],
            &["ab.example", "a..b", "a.1"],
        ),
        (
            json!({"type": "string", "format": "uri", "minLength": 1, "maxLength": 12}),
            &["http://a.b/c", "a:", "http://[::1]"],
            &["a b:", "//a", "http://a.b/cd", "http://[1]"],
        ),
        (json!({"type": "string", "format": "duration"}), &["P1DT2H", "P3W"], &["P", "PT", "P1Y2D"]),
        (
            json!({"type": ["string", "integer"], "format": "date", "pattern": "1$"}),
            &["2024-05-01", "42"],
            &["2024-05-02"],
        ),
    ];
    for (schema, taken, refused) in cases {
        for (texts, is_taken) in [(taken, true), (refused, false)] {
            for text in texts {
                let is_this = takes(&compiler, &one(schema.clone()), &call(&[("p", text)]));
                assert_eq!(is_this, is_taken, "{schema}: {text:?}");
            }
        }
    }
}

#[test]
fn bad_tools_are_found_among_many_with_few_compilations() {
    let compiler = compiler();
    let call = |pattern: &str| CallShape {
        head: vec![Part::Text("f ".to_owned())],
        other_head: Vec::new(),
        arguments: Arguments::Json(
            json!({"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}}),
        ),
        tail: Vec::new(),
    };
    let (good, bad) = (call("a+"), call("(?=a)b"));
    let mut calls = vec![&good; 120];
    calls[37] = &bad;
    calls[99] = &bad;
    let mut search = ToolSearch::new(&compiler);
    assert_eq!(search.suspects(&calls), [37, 99]);
    assert!(search.refusal(&bad).is_some() && search.refusal(&good).is_none());
    let texts = |pattern: &str| json!({"type": "string", "pattern": pattern});
    assert!(search.try_texts(&texts("(?=a)b")).is_err() && search.try_texts(&texts("a+")).is_ok());
    // Where all are bad, most are suspected without being tried; those that are tried say when it was too
    // much.
    let mut search = ToolSearch::new(&compiler);
    assert_eq!(search.suspects(&vec![&bad; 500]).len(), 500);
    let refusals: Vec<Option<String>> = (0..500).map(|_| search.refusal(&good)).collect();
    assert!(refusals.iter().filter(|refusal| refusal.is_none()).count() < 96);
    assert!(refusals[499].as_ref().is_some_and(|reason| reason.contains("grammars were tried")));
}
