//! How templates print calls, and how calls are read back from text in pieces of any size.

use exo_tokenizer::calls::{AnswerFormat, AnswerParser, AnswerPart, CallFormat, CallPart, ThoughtFormat};
use exo_tokenizer::{CallFormatError, ChatTemplate, RenderOptions, TemplateError};
use proptest::prelude::*;
use serde_json::Value;

/// Calls as Llama 3.x prints them: a JSON object is the whole turn, and there is one.
const ONE_OBJECT: &str = "{{ tools | tojson }}{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n\
    {% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}\
    {% set c = m.tool_calls[0].function %}{{ '{\"name\": \"' + c.name + '\", \"parameters\": ' }}{{ c.arguments | tojson }}{{ '}' }}\
    {% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}";

/// As Mistral prints them: a list behind a control token, each with an id of nine signs.
const LIST: &str = "[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% for m in messages %}\
    {% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}\
    {% if c.id | length != 9 %}{{ raise_exception('nine signs') }}{% endif %}{{ ', ' if not loop.first else '' }}\
    {{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}{{ c.function.arguments | tojson }}{{ ', \"id\": \"' + c.id + '\"}' }}\
    {% endfor %}]</s>{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}";

/// A template of these, or of the fixtures, by the beginning of its name.
fn template(name: &str) -> ChatTemplate {
    let compiled = |source: &str| ChatTemplate::new(source, Some("<s>"), Some("</s>")).expect("compiles");
    match name {
        "llama" => return compiled(ONE_OBJECT),
        "mistral" => return compiled(LIST),
        _ => {}
    }
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("fixtures/templates.json")).expect("fixtures are JSON");
    let case =
        cases.iter().find(|c| c["name"].as_str().is_some_and(|n| n.starts_with(name))).expect("a fixture");
    compiled(case["template"].as_str().expect("text"))
}

fn ends() -> Vec<String> {
    ["<|im_end|>", "<|eot_id|>", "</s>", "<|eom_id|>"].map(str::to_owned).into()
}

fn text(text: &str) -> CallPart {
    CallPart::Text(text.to_owned())
}

fn hermes() -> CallFormat {
    CallFormat {
        begin: "<tool_call>\n".to_owned(),
        between: Some("\n</tool_call>\n<tool_call>\n".to_owned()),
        end: "\n</tool_call>".to_owned(),
        head: vec![text("{\"name\": \""), CallPart::Name, text("\", \"arguments\": ")],
        tail: vec![text("}")],
        other: None,
        parameters: None,
        answer_open: String::new(),
    }
}

#[test]
fn formats_are_found_by_what_templates_print() {
    assert_eq!(CallFormat::find(&template("qwen"), &ends()), Ok(hermes()));
    let llama = CallFormat::find(&template("llama"), &ends()).expect("found");
    assert_eq!((llama.begin.as_str(), llama.between, llama.end.as_str()), ("", None, ""));
    assert_eq!(llama.head[..2], [text("{\"name\": \""), CallPart::Name]);
    let mistral = CallFormat::find(&template("mistral"), &ends()).expect("found");
    assert!(
        mistral.begin.starts_with("[TOOL_CALLS]") && mistral.between.as_deref() == Some(", "),
        "{mistral:?}"
    );
    assert!(mistral.has_ids() && mistral.end == "]", "{mistral:?}");
}

#[test]
fn a_sign_is_whole_where_the_prompt_ends_in_one_that_begins_like_it() {
    let source = "{%- if tools %}{{ tools | tojson }}{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
        {%- for call in m.tool_calls %}<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
        {%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    let template = ChatTemplate::new(source, None, None).expect("compiles");
    assert_eq!(CallFormat::find(&template, &ends()).expect("calls").begin, "<tool_call>\n");
}

#[test]
fn ids_beside_a_name_in_front_of_the_arguments_are_read_over() {
    // As Mistral Small 3.2 and Solar print calls.
    for (form, begin) in [
        (
            "[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]{{ call.function.arguments | tojson }}",
            "[TOOL_CALLS]",
        ),
        (
            "<|call|>{{ call.id }}<|name|>{{ call.function.name }}<|args|>{{ call.function.arguments | tojson }}",
            "<|call|>",
        ),
    ] {
        let source = format!(
            "{{%- if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{{%- for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}\
             {{%- for call in m.tool_calls %}}{form}{{% endfor %}}<|im_end|>\n{{% endfor %}}\
             {{%- if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
        );
        let template = ChatTemplate::new(&source, None, None).expect("compiles");
        let found = CallFormat::find(&template, &ends()).expect("calls");
        assert!(
            found.begin == begin && found.has_ids() && found.between.as_deref() == Some(begin),
            "{found:?}"
        );
    }
}

#[test]
fn calls_that_are_numbered_in_their_text_come_one_at_a_time() {
    let source = "{%- if tools %}{{ tools | tojson }}{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
        {%- if m.tool_calls %}<|ACTION|>[{%- for call in m.tool_calls %}{{ ', ' if not loop.first }}{\"id\": \"{{ loop.index0 }}\", \"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}{% endfor %}]{% endif %}<|im_end|>\n{% endfor %}\
        {%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let template = ChatTemplate::new(source, None, None).expect("compiles");
    assert_eq!(CallFormat::find(&template, &ends()).expect("calls").between, None);
}

#[test]
fn calls_that_a_template_only_speaks_of_are_printed_as_its_words_say() {
    // As Granite 3.3 and LFM2 show tools; what a message says stays in front of its calls.
    for (words, [begin, end]) in [
        ("respond only with <|tool_call|> followed by a JSON list of tools used.", ["<|tool_call|>[", "]"]),
        ("List of tools: ", ["<|tool_call_start|>[", "]<|tool_call_end|>"]),
    ] {
        let source = format!(
            "{{%- if tools %}}{{{{ \"{words}\" + tools | tojson }}}}{{% endif %}}{{%- for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}<|im_end|>{{% endfor %}}\
             {{%- if add_generation_prompt %}}<|assistant|>{{% endif %}}"
        );
        let template = ChatTemplate::new(&source, None, None).expect("compiles");
        let found = CallFormat::find(&template, &ends()).expect("calls");
        let expected = CallFormat {
            begin: begin.to_owned(),
            between: Some(", ".to_owned()),
            end: end.to_owned(),
            ..hermes()
        };
        assert_eq!(found, expected);
        let call = serde_json::json!({"function": {"name": "f", "arguments": "{\"a\": 1e5}"}});
        let messages = [serde_json::json!({"role": "assistant", "content": "So.", "tool_calls": [call]})];
        let text = template.render(&messages, &RenderOptions::default()).expect("renders");
        let printed = format!("{begin}{{\"name\": \"f\", \"arguments\": {{\"a\": 1e5}}}}{end}");
        assert_eq!(text, format!("<|assistant|>So.{printed}<|im_end|>"));
    }
}

#[test]
fn a_template_without_calls_says_why() {
    let find = |source: &str| {
        let template = ChatTemplate::new(source, None, None).expect("compiles");
        CallFormat::find(&template, &ends()).expect_err("not found")
    };
    let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}";
    assert_eq!(find(plain), CallFormatError::ShowsNoTools);
    let refuses = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}";
    assert!(
        matches!(find(refuses), CallFormatError::Render(TemplateError::Raised { message }) if message == "no tools")
    );
    let xml = "{{ tools }}{% for m in messages %}{{ m.role }}{% if m.tool_calls %}{% for c in m.tool_calls %}<f={{ c.function.name }}>\
               {% endfor %}{% endif %}<|im_end|>{% endfor %}";
    assert_eq!(find(xml), CallFormatError::UnknownForm);
}

#[test]
fn thoughts_are_found_and_whether_they_can_be_off() {
    let thinks =
        |source: &str| ThoughtFormat::find(&ChatTemplate::new(source, None, None).expect("compiles"));
    let found = thinks(
        "{{ messages[0].content }}<|a|>\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    );
    let found = found.expect("there are thoughts");
    assert!(!found.is_opened && found.can_be_off && found.close == "</think>");
    assert!(!found.must_be_asked && found.told(false)["enable_thinking"] == false);
    let opened = thinks("{{ messages[0].content }}<think>\n").expect("there are thoughts");
    assert!(opened.is_opened && !opened.can_be_off && !opened.must_be_asked);
    // As DeepSeek's and Granite's: they think when they are told to.
    let asked = thinks(
        "{{ messages[0].content }}<|a|>{% if thinking is defined and thinking %}<think>{% else %}</think>{% endif %}",
    );
    let asked = asked.expect("there are thoughts");
    assert!(
        asked.is_opened && asked.can_be_off && asked.must_be_asked && asked.told(true)["thinking"] == true
    );
    assert_eq!(thinks("{{ messages[0].content }}"), None);
}

/// The parts of a text in pieces of these sizes, again and again; neighbours of one kind joined.
pub fn parts(format: &AnswerFormat, text: &str, sizes: &[usize]) -> Vec<AnswerPart> {
    let (mut parser, mut all) = (AnswerParser::new(format.clone()), Vec::new());
    let (mut rest, mut sizes) = (text, sizes.iter().cycle());
    while !rest.is_empty() {
        let mut at = (*sizes.next().unwrap_or(&1)).clamp(1, rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        all.extend(parser.push(&rest[..at]));
        rest = &rest[at..];
    }
    all.extend(parser.finish());
    all.into_iter().fold(Vec::new(), |mut joined, part| {
        use AnswerPart::{Arguments, Text, Thought};
        match (joined.last_mut(), part) {
            (Some(Text(a)), Text(b))
            | (Some(Thought(a)), Thought(b))
            | (Some(Arguments(a)), Arguments(b)) => a.push_str(&b),
            (_, part) => joined.push(part),
        }
        joined
    })
}

fn call(name: &str, arguments: &str) -> [AnswerPart; 2] {
    [AnswerPart::Call(name.to_owned()), AnswerPart::Arguments(arguments.to_owned())]
}

fn said(text: &str) -> AnswerPart {
    AnswerPart::Text(text.to_owned())
}

fn thought(text: &str) -> AnswerPart {
    AnswerPart::Thought(text.to_owned())
}

pub fn cases() -> Vec<(AnswerFormat, &'static str, Vec<AnswerPart>)> {
    let tags = Some(("<think>".to_owned(), "</think>".to_owned()));
    let with = |calls: Option<CallFormat>, is_opened| AnswerFormat {
        thought: tags.clone(),
        is_opened,
        calls,
        ..AnswerFormat::default()
    };
    let hermes = || with(Some(hermes()), false);
    let llama = || with(CallFormat::find(&template("llama"), &ends()).ok(), false);
    let mistral = || with(CallFormat::find(&template("mistral"), &ends()).ok(), false);
    let first = || AnswerFormat { calls_come_first: true, ..hermes() };
    let two = [call("a", r#"{"x": "}\"{"}"#), call("b", "{}")].concat();
    vec![
        (hermes(), "Hello <tool> é", vec![said("Hello <tool> é")]),
        (hermes(), "  <thin air", vec![said("  <thin air")]),
        (
            hermes(),
            "<think>\nhm <tool_call>?\n</think>\n\nSo:\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": \"}\\\"{\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>",
            [vec![thought("\nhm <tool_call>?\n"), said("So:\n")], two].concat(),
        ),
        (with(None, true), "I think</think>\n\n so", vec![thought("I think"), said("so")]),
        (with(None, true), "I never close", vec![thought("I never close")]),
        (
            hermes(),
            "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": [1, ",
            call("a", "{\"x\": [1, ").to_vec(),
        ),
        (llama(), "{\"name\": \"f\", \"parameters\": {\"k\": 1}}", call("f", "{\"k\": 1}").to_vec()),
        (llama(), "{\"nam\": 3}", vec![said("{\"nam\": 3}")]),
        (first(), "{\"x\": \"<tool_call>\\n{}\"}", vec![said("{\"x\": \"<tool_call>\\n{}\"}")]),
        (
            first(),
            "<think>hm</think>\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"k\": 1}}\n</tool_call>",
            [vec![thought("hm")], call("a", "{\"k\": 1}").to_vec()].concat(),
        ),
        (
            mistral(),
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"k\": 1}, \"id\": \"abcdefghi\"}]",
            call("f", "{\"k\": 1}").to_vec(),
        ),
    ]
}

#[test]
fn answers_are_read_into_their_parts() {
    for (format, text, expected) in cases() {
        assert_eq!(parts(&format, text, &[usize::MAX]), expected, "{text}");
    }
}

proptest! {
    /// However the text is cut, its parts are the same.
    #[test]
    fn the_pieces_of_a_text_do_not_matter(sizes in prop::collection::vec(1usize..9, 1..12), case in 0usize..11) {
        let (format, text, expected) = cases().swap_remove(case);
        prop_assert_eq!(parts(&format, text, &sizes), expected);
    }
}

#[test]
fn numbers_of_a_call_that_comes_back_are_printed_as_they_are_spelled() {
    let arguments = r#"{"a": 1e5, "b": [0.1234567890123456789, 1.50, -0.0, 7, 0.5], "c\"": {"d": 123456789012345678901234567890}, "e": "1e5 \"1.50\"", "f": 1e400}"#;
    let calls = serde_json::json!([{"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]}]);
    let rendered = |source: &str| {
        let template = ChatTemplate::new(source, None, None).expect("compiles");
        template.render(calls.as_array().expect("a list"), &RenderOptions::default()).expect("renders")
    };
    let of_call = |expression: &str| {
        rendered(&format!(
            "{{% set a = messages[0].tool_calls[0].function.arguments %}}{{{{ {expression} }}}}"
        ))
    };
    assert_eq!(of_call("a | tojson"), arguments);
    assert_eq!(of_call("a.a ~ ' ' ~ (a.b[1] | string) ~ ' ' ~ a.c"), "1e5 1.50 ");
    assert_eq!(of_call("a.b"), "[0.1234567890123456789, 1.50, -0.0, 7, 0.5]");
    assert_eq!(
        of_call("[a.a is number, a.a is string, a.a is mapping, a.a is sequence]"),
        "[True, False, False, False]"
    );
    assert_eq!(
        of_call("[a.a == 100000.0, a.b[1] > 1, a.a | int, a.b[1] * 2, not a.b[2]]"),
        "[True, True, 100000, 3.0, True]"
    );
    assert_eq!(
        of_call("[a.a - 1, a.b[1] / 2, 7 // a.b[1], a.a % 7, a.b[1] ** 2, -a.b[1], 2 - a.b[1]]"),
        "[99999.0, 0.75, 4.0, 5.0, 2.25, -1.5, 0.5]"
    );
    assert_eq!(of_call("[-7, 7 - 2, 7 / 2, 7 // 2, 7 % 2, 2 ** 3]"), "[-7, 5, 3.5, 3, 1, 8]");
}

#[test]
fn no_text_of_a_request_is_taken_for_a_number() {
    // What marks numbers inside is drawn from these: a text that has one of them stays a text.
    for sign in ['\u{FFFFD}', '\u{FFFFC}', '\u{F0000}'] {
        let escaped: String =
            sign.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
        let arguments = format!("{{\"a\": 1e5, \"b\": \"{sign}2\", \"c\": \"{escaped}3\"}}");
        let messages = serde_json::json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}]);
        let template =
            ChatTemplate::new("{{ messages[0].tool_calls[0].function.arguments | tojson }}", None, None);
        let messages = messages.as_array().expect("a list");
        let text = template.expect("compiles").render(messages, &RenderOptions::default()).expect("renders");
        assert_eq!(text, arguments.replace(&escaped, &sign.to_string()));
    }
}
