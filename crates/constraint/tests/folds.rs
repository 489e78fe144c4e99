//! Answers against grammars, over small vocabularies made here.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

mod common;

use common::{json_layout, layout, start};
use exo_constraint::{
    Arguments, Body, CallShape, Calls, Compiler, ENGINE, Layout, Part, Schema, Strictness, TemplatePiece,
    Thought, TokenKind, check_lark,
};
use exo_sampler::{ConstraintError, Sampler, TokenConstraint};
use exo_types::SamplingParams;
use serde_json::{Value, json};

/// Ids: 0..256 the bytes, then some longer words, control tokens, an end.
const WORDS: [&str; 8] = ["{\"", "\": ", "\", \"", "true", "<tool_call>", "</tool_call>\n", "name", "}}"];
const CONTROL: u32 = 264;
const END: u32 = 265;

fn compiler() -> Compiler {
    let rest = vec![TokenKind::Control, TokenKind::Control, TokenKind::Bytes(Vec::new())];
    common::compiler(&WORDS, rest, END)
}

fn takes(compiler: &Compiler, layout: &Layout, text: &str) -> bool {
    common::takes(start(compiler, layout), text)
}

fn record() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": false,
    })
}

#[test]
fn json_is_taken_as_it_is_spaced_and_no_other() {
    let (compiler, layout) = (compiler(), json_layout(&record()));
    assert!(takes(&compiler, &layout, r#"{"name": "Ada", "ok": true}"#));
    for wrong in [
        r#"{"name": "Ada"}"#,
        r#"{"name":"Ada", "ok": true}"#,
        r#"{"ok": true, "name": "Ada"}"#,
        r#"{"name": "Ada", "ok": 1}"#,
        r#"{"name": "a name too long", "ok": true}"#,
        r#"{"name": "Ada", "ok": true} "#,
        "",
    ] {
        assert!(!takes(&compiler, &layout, wrong), "{wrong}");
    }
}

/// Draws at a high temperature from logits that know nothing, until the end.
fn draw(compiler: &Compiler, layout: &Layout, seed: u64, temperature: f32) -> Option<String> {
    let constraint = compiler.constrain(layout.grammar()).unwrap();
    let params = SamplingParams { temperature, seed, ..SamplingParams::greedy() };
    let fold = compiler.start(&constraint).unwrap();
    let mut sampler = Sampler::constrained(params.clone(), &[], 0, Some(Box::new(fold)));
    let logits: Vec<f32> = (0..300u64).map(|i| ((i * 7919 + seed * 104_729) % 97) as f32 / 30.0).collect();
    let mut tokens = Vec::new();
    for position in 0..400 {
        let token = sampler.sample(&logits, position).unwrap().token;
        // Whoever takes over gives the same token.
        if position % 17 == 3 {
            let fold = Box::new(compiler.start(&constraint).unwrap());
            let mut other = Sampler::constrained(params.clone(), &tokens, 0, Some(fold));
            assert_eq!(other.sample(&logits, position).unwrap().token, token);
        }
        if token == END {
            let bytes = tokens.iter().flat_map(|t| match WORDS.get((*t as usize).wrapping_sub(256)) {
                Some(word) => word.as_bytes().to_vec(),
                None => vec![*t as u8],
            });
            return Some(String::from_utf8(bytes.collect()).expect("what a grammar takes is UTF-8"));
        }
        assert!(token < CONTROL, "a control token or padding in JSON: {token}");
        tokens.push(token);
        sampler.accept(token);
    }
    None
}

#[test]
fn whatever_the_logits_say_the_answer_is_of_the_schema() {
    let (compiler, layout) = (compiler(), json_layout(&record()));
    let answers: Vec<String> = (0..40).filter_map(|seed| draw(&compiler, &layout, seed, 1.0)).collect();
    assert!(answers.len() >= 36, "{} of 40 answers ended", answers.len());
    for answer in answers {
        let value: Value = serde_json::from_str(&answer).unwrap();
        assert!(value["name"].as_str().is_some_and(|n| n.chars().count() <= 12), "{answer}");
        assert!(value["ok"].is_boolean() && value.as_object().unwrap().len() == 2, "{answer}");
    }
    assert!(draw(&compiler, &layout, 1, 0.0).is_some(), "greedy, too");
}

#[test]
fn an_end_comes_only_where_the_answer_may_end() {
    let (compiler, layout) = (compiler(), json_layout(&json!({"type": "boolean"})));
    let mut fold = start(&compiler, &layout);
    assert!(!fold.allows(END).unwrap());
    assert_eq!(fold.mask().unwrap()[END as usize / 32] >> (END % 32) & 1, 0);
    fold.accept(259);
    assert!(fold.allows(END).unwrap() && fold.may_end().unwrap());
    let bits: u32 = fold.mask().unwrap().iter().map(|w| w.count_ones()).sum();
    assert_eq!(bits, 1, "nothing but the end can follow");
    fold.accept(END);
    assert!(!fold.allows(END).unwrap(), "an answer ends once");
}

#[test]
fn a_token_outside_of_the_grammar_is_remembered() {
    let compiler = compiler();
    let mut fold = start(&compiler, &json_layout(&record()));
    fold.accept(b'['.into());
    assert_eq!(fold.allows(b'{'.into()), Err(ConstraintError::NotAllowed { token: b'['.into() }));
    assert_eq!(fold.why_stuck(), Some(ConstraintError::NotAllowed { token: b'['.into() }));
}

#[test]
fn a_sampler_that_cannot_go_on_ends_the_answer() {
    let compiler = compiler();
    let constraint = compiler.constrain(layout(Body::Regex("[a-c]+".to_owned())).grammar()).unwrap();
    let logits = vec![0.0; 300];
    for wrong in [
        exo_types::Constraint { engine: "another 2.0".to_owned(), ..constraint.clone() },
        exo_types::Constraint { vocabulary: [7; 32], ..constraint.clone() },
        exo_types::Constraint { grammar: "start: /a".to_owned(), ..constraint.clone() },
    ] {
        assert!(compiler.start(&wrong).is_err());
        let fold = compiler.start_or_end(&wrong);
        let mut sampler = Sampler::constrained(SamplingParams::greedy(), &[], 0, Some(Box::new(fold)));
        assert_eq!(sampler.sample(&logits, 0).unwrap().token, END);
        assert_eq!(sampler.take_best(b'a'.into()).map(|t| t.token), Some(END));
    }
}

#[test]
fn plain_greedy_asks_for_logits_only_where_its_token_is_refused() {
    let compiler = compiler();
    let fold = start(&compiler, &layout(Body::Regex("ab".to_owned())));
    let mut sampler = Sampler::constrained(SamplingParams::greedy(), &[], 0, Some(Box::new(fold)));
    assert!(sampler.is_plain_greedy());
    assert_eq!(sampler.take_best(b'a'.into()).map(|t| t.token), Some(b'a'.into()));
    sampler.accept(b'a'.into());
    assert_eq!(sampler.take_best(b'a'.into()), None);
    let mut logits = vec![0.0; 300];
    (logits[b'a' as usize], logits[b'b' as usize]) = (5.0, 1.0);
    assert_eq!(sampler.sample(&logits, 1).unwrap().token, u32::from(b'b'));
}

fn tools(begin: Vec<TemplatePiece>, is_required: bool, is_parallel: bool) -> Layout {
    let tool = |name: &str, schema: Value| CallShape {
        head: vec![Part::Text(format!("{{\"name\": \"{name}\", \"arguments\": "))],
        other_head: Vec::new(),
        arguments: Arguments::Json(schema),
        tail: vec![Part::Text("}".to_owned())],
    };
    let add = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    layout(Body::Calls(Calls {
        begin,
        other_begin: None,
        between: vec![TemplatePiece::Text("\n</tool_call>\n<tool_call>\n".to_owned())],
        end: vec![TemplatePiece::Text("\n</tool_call>".to_owned())],
        tools: vec![tool("add", add), tool("now", json!({"type": "object", "additionalProperties": false}))],
        is_parallel,
        is_required,
        answer: None,
    }))
}

#[test]
fn a_call_that_is_opened_is_of_a_tool_there_is() {
    let compiler = compiler();
    let tag = || vec![TemplatePiece::Text("<tool_call>\n".to_owned())];
    let auto = tools(tag(), false, true);
    let add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for right in
        ["", "Hello, <tool> {x}", "<tool_cal", add, &format!("Let me see.\n{add}"), &format!("{add}\n{now}")]
    {
        assert!(takes(&compiler, &auto, right), "{right}");
    }
    for wrong in [
        "<tool_call>\nhm",
        "so: <tool_call>",
        &add.replace("add", "sub"),
        &add.replace('1', "\"1\""),
        &format!("{add}!"),
        &format!("{add}\n"),
    ] {
        assert!(!takes(&compiler, &auto, wrong), "{wrong}");
    }
    let required = tools(tag(), true, false);
    assert!(takes(&compiler, &required, add) && takes(&compiler, &required, now));
    for wrong in ["", "Hello", &format!("x{add}"), &format!("{add}\n{now}")] {
        assert!(!takes(&compiler, &required, wrong), "{wrong}");
    }
}

#[test]
fn the_number_of_a_call_is_some_digits() {
    let compiler = compiler();
    let mut numbered = tools(vec![TemplatePiece::Text("<tool_call>".to_owned())], true, false);
    let Body::Calls(calls) = &mut numbered.body else { panic!("there are calls") };
    calls.tools.iter_mut().for_each(|tool| tool.head.insert(0, Part::Number));
    let call =
        |number: &str| format!("<tool_call>{number}{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>");
    assert!(["0", "7", "1234"].iter().all(|number| takes(&compiler, &numbered, &call(number))));
    assert!(["", "x", "-1", "12345"].iter().all(|number| !takes(&compiler, &numbered, &call(number))));
}

#[test]
fn a_call_that_is_the_whole_answer_is_told_from_text_by_its_start() {
    let (compiler, auto) = (compiler(), tools(Vec::new(), false, false));
    let auto = match auto.body {
        Body::Calls(calls) => layout(Body::Calls(Calls { end: Vec::new(), ..calls })),
        _ => unreachable!("made above"),
    };
    for right in ["Hello", "{\"a\": 1}", "{\"name\": \"add\", \"arguments\": {\"a\": -3}}"] {
        assert!(takes(&compiler, &auto, right), "{right}");
    }
    for wrong in ["{\"name\": \"sub\"}", "{\"name\": \"add\", \"arguments\": {}}", "{\"name\": \"add\""] {
        assert!(!takes(&compiler, &auto, wrong), "{wrong}");
    }
}

#[test]
fn a_control_token_comes_only_where_the_grammar_names_it() {
    let compiler = compiler();
    let auto =
        tools(vec![TemplatePiece::Control(CONTROL), TemplatePiece::Text(" ".to_owned())], false, false);
    let mut fold = start(&compiler, &auto);
    assert!(fold.allows(CONTROL).unwrap() && fold.allows(b'H'.into()).unwrap());
    for byte in "Hm".bytes() {
        fold.accept(byte.into());
    }
    assert!(fold.allows(CONTROL).unwrap());
    fold.accept(CONTROL);
    assert!(
        !fold.allows(b'x'.into()).unwrap()
            && !fold.allows(CONTROL).unwrap()
            && fold.allows(b' '.into()).unwrap()
    );
}

#[test]
fn a_schema_begins_behind_the_thought() {
    let compiler = compiler();
    let text = |t: &str| vec![TemplatePiece::Text(t.to_owned())];
    let body = || json_layout(&json!({"type": "boolean"})).body;
    let opened = Layout {
        thought: Thought::Opened { close: text("</think>"), tokens_max: None },
        answer_open: Vec::new(),
        spelled: Vec::new(),
        body: body(),
    };
    assert!(takes(&compiler, &opened, "it is [true]\nso</think>\n\ntrue"));
    assert!(!takes(&compiler, &opened, "true"));
    let possible = Layout {
        thought: Thought::Possible { open: text("<think>"), close: text("</think>"), tokens_max: None },
        answer_open: Vec::new(),
        spelled: Vec::new(),
        body: body(),
    };
    for right in ["true", "<think>hm</think>\n\nfalse", "<think></think>false"] {
        assert!(takes(&compiler, &possible, right), "{right}");
    }
    assert!(!takes(&compiler, &possible, "<think>hm</think> and false"));
}

#[test]
fn the_29th_of_february_comes_in_leap_years_alone() {
    let compiler = compiler();
    let date = json_layout(&json!({"type": "string", "format": "date"}));
    for (text, is_date) in [
        ("2024-02-29", true),
        ("2000-02-29", true),
        ("2023-02-29", false),
        ("1900-02-29", false),
        ("2023-02-28", true),
        ("2023-04-31", false),
        ("2023-12-31", true),
        ("2023-00-10", false),
    ] {
        assert_eq!(takes(&compiler, &date, &format!("\"{text}\"")), is_date, "{text}");
    }
    let time = json_layout(&json!({"type": "string", "format": "date-time"}));
    assert!(takes(&compiler, &time, "\"2024-02-29T23:59:59.5+01:00\""));
    assert!(!takes(&compiler, &time, "\"2023-02-29T23:59:59Z\""));
}

#[test]
fn a_second_60_is_the_last_of_a_day_of_utc() {
    let compiler = compiler();
    let time = json_layout(&json!({"type": "string", "format": "time"}));
    for (text, is_time) in [
        ("23:59:60Z", true),
        ("23:59:60.5-00:00", true),
        ("00:59:60+01:00", true),
        ("05:29:60+05:30", true),
        ("15:59:60-08:00", true),
        ("20:29:60-03:30", true),
        ("00:29:60-23:30", true),
        ("22:59:60Z", false),
        ("23:58:60Z", false),
        ("23:59:60+01:00", false),
        ("23:59:60-00:30", false),
        ("05:29:60-05:30", false),
        ("23:58:59+01:07", true),
    ] {
        assert_eq!(takes(&compiler, &time, &format!("\"{text}\"")), is_time, "{text}");
    }
}

#[test]
fn addresses_are_taken_in_all_their_forms() {
    let compiler = compiler();
    for (format, text, is_taken) in [
        ("ipv6", "::", true),
        ("ipv6", "1:2:3:4:5:6:7:8", true),
        ("ipv6", "::ffff:192.168.0.1", true),
        ("ipv6", "1:2::192.168.0.1", true),
        ("ipv6", "1::8", true),
        ("ipv6", "1:2:3:4:5:6:7::", true),
        ("ipv6", "1:2:3:4:5:6:7", false),
        ("ipv6", "1::2::3", false),
        ("ipv6", "1:2:3:4:5:6:7:1.2.3.4", false),
        ("ipv6", "::1.2.3.256", false),
        ("email", "joe.bloggs@example.com", true),
        ("email", r#"\"joe @ bloggs\"@example.com"#, true),
        ("email", "joe@[127.0.0.1]", true),
        ("email", "joe@[IPv6:::1]", true),
        ("email", ".joe@example.com", false),
        ("email", "joe..bloggs@example.com", false),
        ("email", "joe@-example.com", false),
    ] {
        let layout = json_layout(&json!({"type": "string", "format": format}));
        assert_eq!(takes(&compiler, &layout, &format!("\"{text}\"")), is_taken, "{format} {text}");
    }
}

#[test]
fn a_thought_behind_white_space_is_one_beside_text_and_tools() {
    let compiler = compiler();
    let text = |t: &str| vec![TemplatePiece::Text(t.to_owned())];
    let Layout { body, .. } = tools(text("<tool_call>\n"), false, false);
    let thought = || Thought::Possible { open: text("<think>"), close: text("</think>"), tokens_max: None };
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for (layout, answer) in [
        (Layout { thought: thought(), answer_open: Vec::new(), spelled: Vec::new(), body }, call),
        (Layout { thought: thought(), answer_open: Vec::new(), spelled: Vec::new(), body: Body::Text }, "so"),
    ] {
        for right in [
            &format!("<think>hm</think>\n\n{answer}"),
            &format!("\n<think>hm</think>{answer}"),
            "\n a text",
            "",
        ] {
            assert!(takes(&compiler, &layout, right), "{right}");
        }
        // The parser would read all of it as a part of the thought.
        for wrong in [&format!("\n<think>hm {answer}"), " <think>hm", "        <think>hm</think>so"] {
            assert!(!takes(&compiler, &layout, wrong), "{wrong}");
        }
    }
}

#[test]
fn a_thought_that_has_spent_its_tokens_is_closed() {
    let compiler = compiler();
    let text = |t: &str| vec![TemplatePiece::Text(t.to_owned())];
    let body = || json_layout(&json!({"type": "boolean"})).body;
    let opened = |tokens_max| Layout {
        thought: Thought::Opened { close: text("</think>"), tokens_max: Some(tokens_max) },
        answer_open: Vec::new(),
        spelled: Vec::new(),
        body: body(),
    };
    // A byte is a token here.
    for right in ["a</think>true", "abcdefghijkl</think>\ntrue", "</think>true"] {
        assert!(takes(&compiler, &opened(12), right), "{right}");
    }
    for wrong in ["abcdefghijklm</think>true", "abcdefghijkl true", "abcdefghijkl", "abcdefghijkltrue"] {
        assert!(!takes(&compiler, &opened(12), wrong), "{wrong}");
    }
    // Inside a character, too.
    let mut fold = start(&compiler, &opened(12));
    "abcdefghijké".bytes().take(12).for_each(|byte| fold.accept(byte.into()));
    assert!(fold.allows(b'<'.into()).unwrap() && !fold.allows(0xa9).unwrap());
    assert!(takes(&compiler, &opened(0), "</think>true") && !takes(&compiler, &opened(0), "a</think>true"));
    let possible = Layout {
        thought: Thought::Possible { open: text("<think>"), close: text("</think>"), tokens_max: Some(12) },
        answer_open: Vec::new(),
        spelled: Vec::new(),
        body: Body::Text,
    };
    for right in ["no thought", "<think>abcdefghijkl</think>so", "<think>a</think>and so on and on and on"] {
        assert!(takes(&compiler, &possible, right), "{right}");
    }
    assert!(!takes(&compiler, &possible, "<think>abcdefghijklm</think>so"));

    for body in [Body::Text, body()] {
        let is_text = body == Body::Text;
        let open = vec![TemplatePiece::Control(CONTROL)];
        let thought = Thought::Possible { open, close: text("</think>"), tokens_max: None };
        let mut fold =
            start(&compiler, &Layout { thought, answer_open: Vec::new(), spelled: Vec::new(), body });
        if is_text {
            fold.accept(b'\n'.into());
        }
        assert!(fold.allows(CONTROL).unwrap());
        fold.accept(CONTROL);
        assert!(!fold.allows(CONTROL).unwrap());
        for byte in "x</think>".bytes() {
            assert!(!fold.may_end().unwrap());
            fold.accept(byte.into());
        }
        assert!(fold.allows(b't'.into()).unwrap() && fold.may_end().unwrap() == is_text);
    }
    let thought = Thought::Opened { close: vec![TemplatePiece::Control(CONTROL)], tokens_max: Some(3) };
    let mut fold =
        start(&compiler, &Layout { thought, answer_open: Vec::new(), spelled: Vec::new(), body: Body::Text });
    for byte in "abc".bytes() {
        assert!(fold.allows(byte.into()).unwrap() && fold.allows(CONTROL).unwrap());
        fold.accept(byte.into());
    }
    assert!(!fold.allows(b'd'.into()).unwrap() && fold.allows(CONTROL).unwrap());
    fold.accept(CONTROL);
    assert!(fold.allows(b'd'.into()).unwrap() && fold.may_end().unwrap());
}

#[test]
fn beside_a_schema_an_answer_is_of_it_or_a_call() {
    let compiler = compiler();
    for begin in ["<tool_call>\n", "\n<tool_call>\n"] {
        let Body::Calls(calls) = tools(vec![TemplatePiece::Text(begin.to_owned())], false, false).body else {
            unreachable!("made so")
        };
        let answer = Some(Schema::read(&record(), Strictness::Whole).unwrap().value);
        let layout = layout(Body::Calls(Calls { answer, ..calls }));
        let add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        for right in [add, r#"{"name": "<tool_call>", "ok": true}"#] {
            assert!(takes(&compiler, &layout, right), "{right}");
        }
        for wrong in [
            "",
            "Hello",
            &format!("so {add}"),
            r#"{"name": "add", "arguments": {"a": 1}}"#,
            r#"{"name": "x"}"#,
        ] {
            assert!(!takes(&compiler, &layout, wrong), "{wrong}");
        }
    }
}

/// As libraries write a union that a property tells apart.
#[test]
fn a_union_with_a_tag_is_enforced_and_closed() {
    let shape = |kind: &str, name: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind, "type": "string"}, name: {"type": "integer"}},
            "required": ["kind", name]})
    };
    let schema = json!({
        "$defs": {"Circle": shape("circle", "r"), "Square": shape("square", "a")},
        "type": "object", "required": ["shape"],
        "properties": {"shape": {
            "discriminator": {"propertyName": "kind", "mapping": {"circle": "#/$defs/Circle", "square": "#/$defs/Square"}},
            "oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}],
        }},
    });
    let (compiler, read) = (compiler(), Schema::read(&schema, Strictness::Whole).unwrap().closed());
    let layout = layout(Body::Json(read.value));
    assert!(takes(&compiler, &layout, r#"{"shape": {"kind": "square", "a": 3}}"#));
    for wrong in [
        r#"{"shape": {"kind": "square", "r": 3}}"#,
        r#"{"shape": {"kind": "square", "a": 3, "b": 4}}"#,
        r#"{"shape": {"kind": "oval", "a": 3}}"#,
    ] {
        assert!(!takes(&compiler, &layout, wrong), "{wrong}");
    }
}

#[test]
fn what_the_engine_does_not_take_is_an_error_in_short() {
    let compiler = compiler();
    let schema = |schema: Value| compiler.constrain(layout(Body::Json(schema)).grammar());
    let unsatisfiable = json!({"type": "object", "required": ["a"], "additionalProperties": false});
    for refused in [
        unsatisfiable,
        json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"not": {}}),
        json!({"$ref": "#"}),
        json!(false),
        // What contradicts itself.
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"allOf": [{"type": "string"}, {"type": "boolean"}]}),
    ] {
        let error = schema(refused.clone()).expect_err(&refused.to_string()).to_string();
        assert!(error.len() < 400 && !error.contains('\n'), "{error}");
    }
    let both = json!({"oneOf": [{"type": "object", "required": ["a"], "properties": {"a": {}}}, {"type": "object"}]});
    let overlap = schema(both).map(|_| ()).expect_err("a value of the first is one of the second");
    assert!(overlap.to_string().starts_with("`oneOf` is enforced only where"), "{overlap}");
    let endless = schema(json!({"$ref": "#"})).map(|_| ()).expect_err("it refers to itself alone");
    assert_eq!(endless.to_string(), "no answer is of this grammar");
    assert!(compiler.constrain("x".repeat(2 << 20)).is_err());
    assert!(ENGINE.ends_with("1.9.1"));
}

/// Country codes, and tools with hundreds of values in several of their properties.
#[test]
fn long_lists_of_values_in_many_properties_are_followed() {
    let compiler = compiler();
    let codes = |of: usize| (0..300).map(|i| format!("value {of}/{i:03}")).collect::<Vec<_>>();
    let name = |of: usize| format!("p{of}");
    let field = |of: usize| (name(of), json!({"type": "string", "description": "one", "enum": codes(of)}));
    let layout = json_layout(&json!({
        "type": "object", "properties": (0..12).map(field).collect::<serde_json::Map<_, _>>(),
        "required": (0..12).map(name).collect::<Vec<_>>(), "additionalProperties": false,
    }));
    let answer = |last: &str| {
        let fields: Vec<String> = (0..11).map(|of| format!("\"p{of}\": \"value {of}/{of:03}\"")).collect();
        format!("{{{}, \"p11\": \"{last}\"}}", fields.join(", "))
    };
    assert!(takes(&compiler, &layout, &answer("value 11/299")));
    assert!(
        !takes(&compiler, &layout, &answer("value 11/300"))
            && !takes(&compiler, &layout, &answer("value 10/299"))
    );
    let many: Vec<String> = (0..2_000).map(|i| format!("{i:05} {}", "long ".repeat(8))).collect();
    let long = json_layout(&json!({"enum": many}));
    assert!(
        takes(&compiler, &long, &format!("\"{}\"", many[1_999])) && !takes(&compiler, &long, "\"02000\"")
    );
}

#[test]
fn keys_of_any_signs_come_as_json_spells_them() {
    let compiler = compiler();
    for key in ["ключ", "日本", "a\nb\t", "q\"\\/", "\u{1}\u{1b}[2J", "a b"] {
        let layout = json_layout(&json!({
            "type": "object", "properties": {key: {"type": "boolean"}}, "required": [key], "additionalProperties": false,
        }));
        let spelled = serde_json::to_string(key).unwrap();
        assert!(takes(&compiler, &layout, &format!("{{{spelled}: true}}")), "{spelled}");
        assert!(!takes(&compiler, &layout, "{\"key\": true}"), "{spelled}");
    }
}

#[test]
fn a_regular_expression_cannot_leave_its_place() {
    let compiler = compiler();
    let regex = |r: &str| layout(Body::Regex(r.to_owned()));
    assert!(takes(&compiler, &regex("a/b|c\\/d"), "a/b") && takes(&compiler, &regex("a/b|c\\/d"), "c/d"));
    assert!(
        compiler.constrain(regex("a/\nstart: /b").grammar()).is_err_and(|e| !e.to_string().is_empty())
            || !takes(&compiler, &regex("a/\nstart: /b"), "b")
    );
    let lark = layout(Body::Lark(
        "start: greeting NAME\ngreeting: \"hi \" | \"yo \"\nNAME: /[A-Z][a-z]+/".to_owned(),
    ));
    assert!(takes(&compiler, &lark, "hi Ada") && !takes(&compiler, &lark, "hi ada"));
}

#[test]
fn what_is_deep_compiles_on_a_stack_that_bears_it() {
    let compiler = compiler();
    for (len, merged) in [(100, "$comment"), (1_000, "$comment"), (1_000, "type")] {
        let link = |i: usize| match i < len {
            true => json!({"$ref": format!("#/$defs/d{}", i + 1), merged: "boolean"}),
            false => json!({"type": "boolean"}),
        };
        let defs: serde_json::Map<_, _> = (0..=len).map(|i| (format!("d{i}"), link(i))).collect();
        let chain = json!({"$ref": "#/$defs/d0", "$defs": defs});
        match Schema::read(&chain, Strictness::Whole) {
            Ok(read) => assert!(takes(&compiler, &layout(Body::Json(read.value)), "true")),
            Err(error) => panic!("{error}"),
        }
    }
    let (open, close) = ("(".repeat(24), ")".repeat(24));
    let rules = (0..255).map(|i| format!("r{i}: {open} \"a\" r{} {close}\n", i + 1));
    let lark = format!("start: r0\n{}", rules.take(254).collect::<String>()) + "r254: \"b\"";
    check_lark(&lark).unwrap();
    assert!(takes(&compiler, &layout(Body::Lark(lark)), &format!("{}b", "a".repeat(254))));
}

#[test]
fn a_grammar_that_would_run_over_the_stack_is_refused_by_name() {
    let rules: String = (0..3_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    for (lark, says) in [
        (format!("start: r0\n{rules}r3000: \"a\""), "3002 rules and terminals"),
        (format!("start: {}\"a\"{}", "(".repeat(1_000), ")".repeat(1_000)), "nested deeper than 24"),
        (format!("start: {}A\nA: \"a\"", "~".repeat(500_000)), "`~~` in a grammar"),
        ("start: %json {\"x-guid\\u0061nce\": {}}".to_owned(), "`%json` is not taken"),
    ] {
        let error = check_lark(&lark).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Calls of `f` that begin in two ways.
fn channel_calls(is_required: bool, answer: Option<Value>) -> Body {
    let text = |text: &str| TemplatePiece::Text(text.to_owned());
    let head =
        |text: &str| vec![Part::Text("f".to_owned()), Part::Control(CONTROL), Part::Text(text.to_owned())];
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    Body::Calls(Calls {
        begin: vec![text(" to=")],
        other_begin: Some(vec![TemplatePiece::Control(CONTROL), text("commentary to=")]),
        between: Vec::new(),
        end: Vec::new(),
        tools: vec![CallShape {
            head: head("json|"),
            other_head: head("only json|"),
            arguments: Arguments::Json(schema),
            tail: Vec::new(),
        }],
        is_parallel: false,
        is_required,
        answer,
    })
}

/// Whether this is an answer behind channels; a control token stands for `¤`.
fn takes_in_channels(compiler: &Compiler, body: Body, answer: &str) -> bool {
    let text = |text: &str| TemplatePiece::Text(text.to_owned());
    let layout = Layout {
        thought: Thought::Possible {
            open: vec![TemplatePiece::Control(CONTROL), text("analysis|")],
            close: vec![text("<|end|>assistant")],
            tokens_max: None,
        },
        answer_open: vec![TemplatePiece::Control(CONTROL), text("final|")],
        spelled: Vec::new(),
        body,
    };
    let mut fold = start(compiler, &layout);
    let sign = '¤'.to_string();
    let bytes = |part: &str| part.bytes().map(u32::from).collect::<Vec<u32>>();
    let parts: Vec<Vec<u32>> = answer.split(&sign).map(bytes).collect();
    for token in parts.join(&CONTROL) {
        if !fold.allows(token).unwrap() {
            return false;
        }
        fold.accept(token);
    }
    fold.may_end().unwrap()
}

#[test]
fn answers_and_calls_behind_channels_begin_with_their_signs() {
    let compiler = compiler();
    let takes = |body: Body, answer: &str| takes_in_channels(&compiler, body, answer);
    let think = "¤analysis|hm final| to=f<|end|>assistant";
    for call in [" to=f¤json|{\"a\": 1}", "¤commentary to=f¤only json|{\"a\": 1}"] {
        for (is_required, answer) in [(true, None), (false, None), (false, Some(json!({"type": "boolean"})))]
        {
            let body = || channel_calls(is_required, answer.clone());
            assert!(takes(body(), call) && takes(body(), &format!("{think}{call}")), "{call}");
            assert!(
                !takes(body(), &call.replace('1', "\"1\"")) && !takes(body(), &format!("{call}x")),
                "{call}"
            );
            assert!(!takes(body(), &call.replace("=f", "=g")), "{call}");
            assert_eq!(takes(body(), "¤final|so to=f"), !is_required && answer.is_none());
            assert_eq!(takes(body(), &format!("{think}¤final|true")), !is_required);
            assert!(!takes(body(), "so") && !takes(body(), &format!("{think}\n{call}")));
        }
    }
    for (body, right) in [(Body::Text, "so"), (Body::Json(json!({"type": "integer"})), "12")] {
        assert!(takes(body.clone(), &format!("¤final|{right}")));
        assert!(takes(body.clone(), &format!("{think}¤final|{right}")));
        assert!(!takes(body.clone(), right) && !takes(body, &format!("¤final|{right}¤")));
    }
}

/// The reader of an answer tells a control token from letters by its text: letters that spell one are of no
/// text and no thought.
#[test]
fn letters_do_not_spell_a_control_token_that_means_something() {
    let compiler = compiler();
    let thought = Thought::Opened { close: vec![TemplatePiece::Control(CONTROL)], tokens_max: None };
    let spelled = vec!["<|end|>".to_owned(), "[CALL]".to_owned()];
    let thinks = Layout { thought, answer_open: Vec::new(), spelled: spelled.clone(), body: Body::Text };
    let calls = Layout { spelled, ..tools(vec![TemplatePiece::Control(CONTROL)], false, false) };
    for (layout, begin) in [(&thinks, "so"), (&thinks, "so\n"), (&calls, ""), (&calls, "so")] {
        for sign in ["<|end|>", "[CALL]"] {
            let mut fold = start(&compiler, layout);
            let (last, before) = sign.as_bytes().split_last().unwrap();
            for byte in begin.bytes().chain(before.iter().copied()) {
                assert!(fold.allows(byte.into()).unwrap(), "{begin:?} {sign}");
                fold.accept(byte.into());
            }
            assert!(!fold.allows((*last).into()).unwrap(), "{begin:?} {sign}");
            assert!(fold.allows(b'x'.into()).unwrap() && fold.allows(CONTROL).unwrap(), "{begin:?} {sign}");
        }
    }
}

#[test]
fn formats_beyond_what_a_grammar_holds_are_refused_by_their_place_and_left_out_of_tools() {
    let fields = |count: usize| {
        let field = |n| (format!("at_{n}"), json!({"type": "string", "format": "date-time"}));
        json!({"type": "object", "properties": (0..count).map(field).collect::<serde_json::Map<_, _>>()})
    };
    assert!(Schema::read(&fields(200), Strictness::Whole).is_ok(), "no tool has so many");
    let refused = Schema::read(&fields(2_000), Strictness::Whole).err().unwrap();
    assert!(
        refused.to_string().contains("fill the grammar") && refused.to_string().contains("/format"),
        "{refused}"
    );
    let read = Schema::read(&fields(300), Strictness::Possible).unwrap();
    assert!(!read.left_out.is_empty() && read.left_out.len() < 300);
    let many = json!({"anyOf": vec![json!({"format": "time"}); 19_990]});
    assert!(Schema::read(&many, Strictness::Possible).is_err(), "too many are left out");
}
