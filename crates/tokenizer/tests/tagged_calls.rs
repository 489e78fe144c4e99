//! Calls whose parameters stand between tags: how templates print them, and how they are read back from text
//! in pieces of any size.

use std::collections::BTreeMap;

use exo_tokenizer::calls::{
    AnswerFormat, AnswerParser, AnswerPart, CallFormat, CallPart, ToolParameters, ValueKinds,
};
use exo_tokenizer::{ChatTemplate, RenderOptions};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A function in a tag, a tag for each parameter; values as Python prints them. Thoughts are printed in every
/// turn.
pub const FUNCTION: &str = "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}\
    {% if not loop.first or m.content %}{{ '\n' }}{% endif %}<tool_call>\n<function={{ c.function.name }}>\n\
    {% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n\
    {{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}\n</parameter>\n{% endfor %}\
    </function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

/// The name alone, then names and values in tags of their own; JSON but for texts.
const PAIRS: &str = "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
    {% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}\n\
    {% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n\
    {% endfor %}</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// One tag around all calls, names in quotes.
const INVOKE: &str = "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}<x:calls>{{ '\n' }}\
    {% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">{{ '\n' }}{% for k, v in c.function.arguments | items %}\
    <parameter name=\"{{ k }}\">{{ v if v is string else v | tojson }}</parameter>{{ '\n' }}{% endfor %}</invoke>{{ '\n' }}{% endfor %}\
    </x:calls>{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Each tag says whether its value is a text, and lines end between parameters, not behind them.
const TOLD: &str = "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}<x:calls>{{ '\n' }}\
    {% for c in m.tool_calls %}<x:invoke name=\"{{ c.function.name }}\">{{ '\n' }}{% for k, v in c.function.arguments | items %}\
    {{ '\n' if not loop.first }}<x:parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">\
    {{ v if v is string else v | tojson }}</x:parameter>{% endfor %}{{ '\n' }}</x:invoke>{{ '\n' }}{% endfor %}\
    </x:calls>{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// The same with arrays and objects as Python prints them, as Seed does.
fn python() -> String {
    FUNCTION.replace("v | tojson if v is mapping or (v is sequence and v is not string) else ", "")
}

fn ends() -> Vec<String> {
    ["<|im_end|>", "<|end|>"].map(str::to_owned).into()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, None, None).expect("compiles")
}

fn format(source: &str) -> CallFormat {
    CallFormat::find(&template(source), &ends()).expect("found")
}

#[test]
fn formats_are_found_by_what_templates_print() {
    let found = format(FUNCTION);
    let text = |text: &str| CallPart::Text(text.to_owned());
    assert_eq!((found.begin.as_str(), found.end.as_str()), ("<tool_call>\n", "</function>\n</tool_call>"));
    assert_eq!(found.between.as_deref(), Some("</function>\n</tool_call>\n<tool_call>\n"));
    assert_eq!(found.head, [text("<function="), CallPart::Name, text(">\n")]);
    let parameters = found.parameters.clone().expect("there are tags");
    assert_eq!(
        [&parameters.open, &parameters.behind_name, &parameters.close],
        ["<parameter=", ">\n", "\n</parameter>\n"]
    );
    assert_eq!([&parameters.true_word, &parameters.false_word], ["True", "False"]);
    assert_eq!((parameters.null_word.as_deref(), parameters.before_json), (Some("None"), None));
    assert_eq!(found.label(), "parameters in tags behind <tool_call>");

    let found = format(PAIRS);
    let parameters = found.parameters.expect("there are tags");
    assert_eq!((found.begin.trim(), &found.head[..]), ("<tool_call>", &[CallPart::Name, text("\n")][..]));
    assert_eq!(
        [&parameters.open, &parameters.behind_name, &parameters.close],
        ["<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"]
    );
    assert_eq!((parameters.true_word.as_str(), parameters.null_word.as_deref()), ("true", Some("null")));
    assert!(found.between.is_some_and(|between| between.contains("<tool_call>")));

    let found = format(INVOKE);
    assert_eq!(found.begin, "<x:calls>\n");
    assert_eq!(
        (found.end.as_str(), found.between.as_deref()),
        ("</invoke>\n</x:calls>", Some("</invoke>\n"))
    );

    let found = format(TOLD);
    let parameters = found.parameters.expect("there are tags");
    assert_eq!(found.head, [text("<x:invoke name=\""), CallPart::Name, text("\">")]);
    assert_eq!(
        [&parameters.open, &parameters.behind_name, &parameters.close],
        ["\n<x:parameter name=\"", "\" string=\"true\">", "</x:parameter>"]
    );
    assert_eq!(parameters.before_json.as_deref(), Some("\" string=\"false\">"));
    assert_eq!((found.begin.as_str(), found.end.as_str()), ("<x:calls>\n", "\n</x:invoke>\n</x:calls>"));
}

#[test]
fn templates_that_change_what_they_print_say_why() {
    let find =
        |source: &str| CallFormat::find(&template(source), &ends()).expect_err("not found").to_string();
    let trims = FUNCTION.replace("else v | string", "else v | string | replace('<', '&lt;')");
    assert!(find(&trims).contains("changes the texts"), "{}", find(&trims));
    let spaced = FUNCTION.replace("v | tojson if", "v | tojson(indent=1) if");
    assert!(find(&spaced).contains("another way than JSON (probe_list)"), "{}", find(&spaced));
    assert!(format(&python()).parameters.is_some_and(|parameters| parameters.is_python));
    for close in [", \n", " end\n", "]\n"] {
        let json = FUNCTION.replace("\n</parameter>\n", close);
        assert!(find(&json).contains("begins as JSON goes on"), "{close:?}: {}", find(&json));
    }
}

fn kinds(words: &str) -> ValueKinds {
    let has = |word: &str| words.contains(word);
    ValueKinds {
        text: has("text"),
        null: has("null"),
        boolean: has("boolean"),
        integer: has("integer") || has("number"),
        number: has("number"),
        structure: has("structure"),
    }
}

pub fn reading(source: &str) -> AnswerFormat {
    let named = [
        ("text", "text"),
        ("n", "number"),
        ("yes", "boolean"),
        ("list", "structure"),
        ("any", "text null boolean number structure"),
        ("some", "text integer"),
    ];
    let named = named.map(|(name, may)| (name.to_owned(), kinds(may))).into();
    let tool = ToolParameters { named, others: kinds("text null boolean number structure") };
    AnswerFormat {
        calls: Some(format(source)),
        parameters: BTreeMap::from([("f".to_owned(), tool.clone()), ("g".to_owned(), tool)]),
        ..AnswerFormat::default()
    }
}

/// Text, and calls as names and arguments, of an answer that comes in pieces of these sizes.
fn read(format: &AnswerFormat, text: &str, sizes: &[usize]) -> (String, Vec<(String, String)>) {
    let (mut parser, mut parts) = (AnswerParser::new(format.clone()), Vec::new());
    let (mut rest, mut sizes) = (text, sizes.iter().cycle());
    while !rest.is_empty() {
        let mut at = (*sizes.next().unwrap_or(&1)).clamp(1, rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        parts.extend(parser.push(&rest[..at]));
        rest = &rest[at..];
    }
    parts.extend(parser.finish());
    let (mut said, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for part in parts {
        match part {
            AnswerPart::Text(text) => said.push_str(&text),
            AnswerPart::Call(name) => calls.push((name, String::new())),
            AnswerPart::Arguments(json) => calls.last_mut().expect("a call began").1.push_str(&json),
            AnswerPart::Thought(text) => panic!("no thought: {text}"),
        }
    }
    (said, calls)
}

/// What the template prints of an assistant's turn.
fn printed(source: &str, content: &str, calls: &[(&str, Value)]) -> String {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let render = |calls: &[(&str, Value)], prompt: bool| {
        let mut messages = vec![json!({"role": "user", "content": "Go."})];
        if !prompt {
            let calls: Vec<Value> = calls
                .iter()
                .map(|(name, arguments)| json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
                .collect();
            messages.push(json!({"role": "assistant", "content": content, "tool_calls": calls}));
        }
        let options = RenderOptions {
            add_generation_prompt: prompt,
            tools: Some(json!([tool])),
            vars: Map::new(),
            now: None,
        };
        template(source).render(&messages, &options).expect("renders")
    };
    let (prompt, whole) = (render(&[], true), render(calls, false));
    let turn = whole.strip_prefix(prompt.trim_end_matches("<think>\n")).expect("the turn goes on");
    let turn = turn.strip_prefix("<think>\n\n</think>\n\n").unwrap_or(turn);
    turn[..turn.find("<|im_end|>").or_else(|| turn.find("<|end|>")).expect("it ends")].to_owned()
}

/// Values of each kind that its parameter may have.
fn arguments() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[a-z <>/=\"'\\\\\n{}é]{0,12}",
        Just("</parameter>".to_owned()),
        Just("</function>\n</tool_call>".to_owned()),
        Just("\n".to_owned()),
    ];
    let list = prop::collection::vec(
        prop_oneof![any::<i32>().prop_map(Value::from), text.clone().prop_map(Value::from)],
        0..3,
    );
    let other = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z][a-z <>]{0,9}".prop_map(Value::from),
        list.clone().prop_map(Value::from),
    ];
    (text, (-1_000_000..1_000_000i32).prop_map(|n| f64::from(n) / 4.0), any::<bool>(), list, other).prop_map(|(text, n, yes, list, other)| {
        json!({"text": text, "n": n, "yes": yes, "list": list, "any": other, "some": 12, "more": "so"})
    })
}

/// Whether a text leaves its place: a grammar lets no such text through, and a caller's is read up to its
/// sign.
fn has_sign(source: &str, arguments: &Value) -> bool {
    let close = format(source).parameters.expect("tags").close;
    let text = arguments["text"].as_str().unwrap_or_default();
    format!("{text}{close}").find(&close) != Some(text.len())
}

proptest! {
    /// A call is printed, read in pieces, and printed again: the same text, whatever the pieces and the
    /// values.
    #[test]
    fn calls_come_back_as_they_were_printed(
        arguments in arguments(),
        which in 0usize..5,
        sizes in prop::collection::vec(1usize..9, 1..12),
    ) {
        let python = python();
        let source = [FUNCTION, PAIRS, INVOKE, TOLD, python.as_str()][which];
        prop_assume!(!has_sign(source, &arguments));
        // A call without arguments has a line more there than one that was read.
        let few = if source == TOLD { json!({"any": "7"}) } else { json!({}) };
        let calls = [("f", arguments), ("g", few), ("f", json!({"some": "12 of them"}))];
        let text = printed(source, "", &calls);
        let (said, found) = read(&reading(source), &text, &sizes);
        prop_assert_eq!(said.trim(), "");
        prop_assert_eq!(found.len(), 3, "{}", text);
        let again: Vec<(&str, Value)> = found
            .iter()
            .map(|(name, json)| (name.as_str(), serde_json::from_str(json).expect("arguments are JSON")))
            .collect();
        prop_assert_eq!(&again, &calls.to_vec());
        prop_assert_eq!(printed(source, "", &again), text);
    }

    /// Any text at all, cut anywhere, is read the same in any pieces; what it says of a call is JSON or its
    /// beginning.
    #[test]
    fn the_pieces_of_a_text_do_not_matter(
        parts in prop::collection::vec(0usize..14, 0..14),
        sizes in prop::collection::vec(1usize..9, 1..12),
    ) {
        const PARTS: [&str; 14] = ["<tool_call>", "\n", "<function=f>\n", "<parameter=text>\n", "<parameter=n>\n", "<parameter=any>\n", "7",
            "True", "{\"a\": [\"\\\"\n", "\n</parameter>\n", "</parameter>", "</function>\n", "</tool_call>", "so é"];
        let text: String = parts.iter().map(|part| PARTS[*part]).collect();
        let format = reading(FUNCTION);
        prop_assert_eq!(read(&format, &text, &sizes), read(&format, &text, &[usize::MAX]));
    }
}

#[test]
fn json_is_read_where_a_template_prints_values_as_python_does() {
    let text = |list: &str| {
        format!(
            "<tool_call>\n<function=f>\n<parameter=list>\n{list}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    for list in [r#"[1, "it's", {"a": [true, null]}]"#, r#"[1, "it's", {'a': [True, None]}]"#] {
        let (said, calls) = read(&reading(&python()), &text(list), &[1]);
        let expected = r#"{"list": [1, "it's", {"a": [true, null]}]}"#.to_owned();
        assert_eq!((said.as_str(), calls), ("", vec![("f".to_owned(), expected)]), "{list}");
    }
}

#[test]
fn what_looks_like_a_call_is_text() {
    let format = reading(FUNCTION);
    for text in ["<function=f>\n</function>", "a <tool_cal", "<parameter=text>\nx\n</parameter>\n"] {
        assert_eq!(read(&format, text, &[1]), (text.to_owned(), Vec::new()));
    }
    let inside = "So:\n<tool_call>\n<function=f>\n<parameter=text>\n</parameter> <tool_call>\n</function>\n\n</parameter>\n</function>\n</tool_call>";
    let (said, calls) = read(&format, inside, &[1]);
    assert_eq!(said, "So:\n");
    let expected =
        json!({"text": "</parameter> <tool_call>\n</function>\n"}).to_string().replace("\":\"", "\": \"");
    assert_eq!(calls, [("f".to_owned(), expected)]);
}

#[test]
fn a_call_that_was_cut_is_the_beginning_of_json() {
    let format = reading(FUNCTION);
    let text = "<tool_call>\n<function=f>\n<parameter=text>\na \"b\nc";
    assert_eq!(read(&format, text, &[3]).1, [("f".to_owned(), "{\"text\": \"a \\\"b\\nc".to_owned())]);
    let text = "<tool_call>\n<function=f>\n<parameter=list>\n[1, \"x";
    assert_eq!(read(&format, text, &[3]).1, [("f".to_owned(), "{\"list\": [1, \"x".to_owned())]);
}
