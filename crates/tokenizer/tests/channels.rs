//! Answers in channels, as harmony has them: a thought, an answer and calls each behind signs of their own.

use exo_tokenizer::ChatTemplate;
use exo_tokenizer::calls::{AnswerFormat, AnswerPart, CallFormat, CallPart, ThoughtFormat};
use proptest::prelude::*;

use crate::calls::parts;

/// As gpt-oss's: the one who is called stands where the speaker is named, one call in a message, thoughts in
/// the last turn alone.
const HARMONY: &str = "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>\
    {% for m in messages %}{% if m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>\
    {% elif m.role == 'assistant' %}{% if m.thinking and (m.tool_calls or loop.last) %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
    {% if m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
    {{ m.tool_calls[0].function.arguments | tojson }}<|call|>\
    {% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}{% endif %}\
    {% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";

/// The one who is called in the channel, and nothing else.
const IN_CHANNEL: [&str; 2] = [
    "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>",
    "<|start|>assistant<|channel|>commentary to=functions.{{ m.tool_calls[0].function.name }} <|constrain|>json<|message|>",
];

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, None, None).expect("compiles")
}

fn calls(source: &str) -> CallFormat {
    let ends = ["<|return|>", "<|call|>"].map(str::to_owned);
    CallFormat::find(&template(source), &ends).expect("found")
}

#[test]
fn channels_are_found_by_what_templates_print() {
    let thought = ThoughtFormat::find(&template(HARMONY)).expect("there are thoughts");
    assert_eq!(thought.open, "<|channel|>analysis<|message|>");
    assert_eq!(thought.close, "<|end|><|start|>assistant");
    assert_eq!((thought.answer_open.as_str(), thought.field), ("<|channel|>final<|message|>", "thinking"));
    assert!(thought.has_efforts && !thought.is_opened && !thought.can_be_off);
    let text = |text: &str| CallPart::Text(text.to_owned());
    let found = calls(HARMONY);
    assert_eq!((found.begin.as_str(), found.end.as_str(), &found.between), (" to=functions.", "", &None));
    assert_eq!(found.head, [CallPart::Name, text("<|channel|>commentary json<|message|>")]);
    assert!(found.other.is_some_and(|other| other.begin == "<|channel|>commentary to=functions."));
    let found = calls(&HARMONY.replace(IN_CHANNEL[0], IN_CHANNEL[1]));
    assert_eq!((found.begin.as_str(), found.other), ("<|channel|>commentary to=functions.", None));
    assert_eq!(found.head, [CallPart::Name, text(" <|constrain|>json<|message|>")]);
    let without = HARMONY.replace("reasoning_effort or 'medium'", "'medium'");
    assert!(!ThoughtFormat::find(&template(&without)).expect("there are thoughts").has_efforts);
}

#[test]
fn a_name_in_front_of_json_is_a_call_in_other_templates_too() {
    let source = "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}<|calls|>{% for c in m.tool_calls %}\
        <|call|>{{ c.function.name }}<|sep|>{{ c.function.arguments | tojson }}<|done|>{% endfor %}<|over|>{% endif %}<|eot|>{% endfor %}\
        {% if add_generation_prompt %}<|assistant|>{% endif %}";
    let found = CallFormat::find(&template(source), &["<|eot|>".to_owned()]).expect("found");
    assert_eq!((found.begin.as_str(), found.end.as_str()), ("<|calls|><|call|>", "<|done|><|over|>"));
    assert_eq!((found.between.as_deref(), found.other), (Some("<|done|><|call|>"), None));
    assert_eq!(ThoughtFormat::find(&template(source)), None);
}

#[test]
fn calls_have_numbers_behind_their_names() {
    // As Kimi K2 prints them.
    let source = "{{ tools | tojson }}{% set ids = namespace(all=[]) %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}<|calls|>\
        {% for c in m.tool_calls %}{% set id = 'functions.' + c.function.name + ':' + (ids.all | length | string) %}{% set _ = ids.all.append(id) %}\
        <|call|>{{ id }}<|sep|>{{ c.function.arguments | tojson }}<|done|>{% endfor %}<|over|>{% endif %}<|eot|>{% endfor %}\
        {% if add_generation_prompt %}<|assistant|>{% endif %}";
    let found = CallFormat::find(&template(source), &["<|eot|>".to_owned()]).expect("found");
    let text = |text: &str| CallPart::Text(text.to_owned());
    assert_eq!(
        (found.begin.as_str(), found.end.as_str()),
        ("<|calls|><|call|>functions.", "<|done|><|over|>")
    );
    assert_eq!(found.between.as_deref(), Some("<|done|><|call|>functions."));
    assert_eq!(found.head, [CallPart::Name, text(":"), CallPart::Number, text("<|sep|>")]);
    assert_eq!(found.opening("f"), "<|calls|><|call|>functions.f:");
    let format = AnswerFormat { calls: Some(found), ..AnswerFormat::default() };
    let answer = "<|calls|><|call|>functions.f:9<|sep|>{\"a\": 1}<|done|><|call|>functions.g:10<|sep|>{}<|done|><|over|>";
    let call =
        |name: &str, json: &str| [AnswerPart::Call(name.to_owned()), AnswerPart::Arguments(json.to_owned())];
    assert_eq!(parts(&format, answer, &[1]), [call("f", "{\"a\": 1}"), call("g", "{}")].concat());
    // What is counted otherwise is no number: such calls come one at a time.
    let twos = source.replace("ids.all | length | string", "((ids.all | length) * 2) | string");
    let found = CallFormat::find(&template(&twos), &["<|eot|>".to_owned()]).expect("found");
    assert_eq!((found.between, found.head), (None, vec![CallPart::Name, text(":0<|sep|>")]));
}

#[test]
fn a_call_that_begins_with_its_name_is_told_from_an_answer() {
    // As Functionary prints them.
    let source = "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}\
        {% if m.content %}>>>all\n{{ m.content }}{% endif %}\
        {% for c in m.tool_calls or [] %}{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor %}\
        {% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}{% if add_generation_prompt %}<|assistant|>>>>{% endif %}";
    let ends = ["<|eot|>".to_owned()];
    let found = CallFormat::find(&template(source), &ends).expect("found");
    assert_eq!((found.begin.as_str(), found.end.as_str(), found.answer_open.as_str()), ("", "", "all\n"));
    assert_eq!((found.between.as_deref(), found.opening("all").as_str()), (Some(">>>"), "all\n"));
    assert_eq!(ThoughtFormat::find(&template(source)), None);
    let format = AnswerFormat {
        answer_open: found.answer_open.clone(),
        calls: Some(found),
        ..AnswerFormat::default()
    };
    let call =
        |name: &str, json: &str| [AnswerPart::Call(name.to_owned()), AnswerPart::Arguments(json.to_owned())];
    for (text, expected) in [
        ("all\nSo {\"a\": 1}", vec![AnswerPart::Text("So {\"a\": 1}".to_owned())]),
        ("alarm\n{\"a\": 1}>>>f\n{}", [call("alarm", "{\"a\": 1}"), call("f", "{}")].concat()),
    ] {
        assert_eq!(parts(&format, text, &[1]), expected);
        assert_eq!(parts(&format, text, &[100]), expected);
    }
    // Without a sign in front of answers, such calls could not be told from them.
    let alike = source.replace(">>>all\n", ">>>");
    assert!(CallFormat::find(&template(&alike), &ends).is_err());
    // Behind a thought between tags they would be read as text.
    let thinks = format!("{source}{{# <think> #}}");
    assert!(ThoughtFormat::find(&template(&thinks)).is_some());
    assert!(CallFormat::find(&template(&thinks), &ends).is_err());
}

#[test]
fn a_sign_that_begins_another_is_waited_for() {
    // A call goes to its tool, an answer to the user, a thought to nobody else: all three begin alike.
    let source = "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'assistant' %}\
        {% if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|next|>{% endif %}\
        {% for c in m.tool_calls or [] %}<|start|>assistant to={{ c.function.name }}<|message|>{{ c.function.arguments | tojson }}\
        {{ '<|eot|>' if loop.last else '<|next|>' }}{% else %}<|start|>assistant to=user<|message|>{{ m.content }}<|eot|>{% endfor %}\
        {% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|eot|>{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant{% endif %}";
    let thought = ThoughtFormat::find(&template(source)).expect("there are thoughts");
    assert_eq!(
        (thought.open.as_str(), thought.answer_open.as_str()),
        (" to=self<|message|>", " to=user<|message|>")
    );
    let calls = CallFormat::find(&template(source), &["<|eot|>".to_owned()]).expect("found");
    assert_eq!(
        (calls.begin.as_str(), calls.between.as_deref()),
        (" to=", Some("<|next|><|start|>assistant to="))
    );
    // A tool of that name could not be told from an answer.
    assert!(calls.opening("user").starts_with(&thought.answer_open));
    assert!(!calls.opening("users").starts_with(&thought.answer_open));
    let format = AnswerFormat {
        thought: Some((thought.open, thought.close)),
        answer_open: thought.answer_open,
        calls: Some(calls),
        ..AnswerFormat::default()
    };
    let call =
        |name: &str| vec![AnswerPart::Call(name.to_owned()), AnswerPart::Arguments("{\"a\": 1}".to_owned())];
    let said = vec![AnswerPart::Text("So".to_owned())];
    let thought = vec![AnswerPart::Thought("hm".to_owned())];
    for (text, expected) in [
        (" to=user<|message|>So", said.clone()),
        (" to=users<|message|>{\"a\": 1}", call("users")),
        (" to=self<|message|>hm<|next|><|start|>assistant to=user<|message|>So", [thought, said].concat()),
        (
            " to=use<|message|>{\"a\": 1}<|next|><|start|>assistant to=f<|message|>{\"a\": 1}",
            [call("use"), call("f")].concat(),
        ),
    ] {
        for size in [1, 3, usize::MAX] {
            assert_eq!(parts(&format, text, &[size]), expected, "{text} by {size}");
        }
    }
}

pub fn format() -> AnswerFormat {
    let thought = ThoughtFormat::find(&template(HARMONY)).expect("there are thoughts");
    AnswerFormat {
        thought: Some((thought.open, thought.close)),
        answer_open: thought.answer_open,
        calls: Some(calls(HARMONY)),
        ..AnswerFormat::default()
    }
}

fn cases() -> Vec<(&'static str, Vec<AnswerPart>)> {
    let thought = |text: &str| AnswerPart::Thought(text.to_owned());
    let said = |text: &str| AnswerPart::Text(text.to_owned());
    let call = |name: &str, json: &str| {
        vec![AnswerPart::Call(name.to_owned()), AnswerPart::Arguments(json.to_owned())]
    };
    vec![
        ("<|channel|>final<|message|>So é to=functions.x", vec![said("So é to=functions.x")]),
        (
            "<|channel|>analysis<|message|>hm <|end|> ?<|end|><|start|>assistant<|channel|>final<|message|> So",
            vec![thought("hm <|end|> ?"), said(" So")],
        ),
        (" to=functions.f<|channel|>commentary json<|message|>{\"a\": \"}\"}", call("f", "{\"a\": \"}\"}")),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f_1 <|constrain|>json<|message|>{\"a\": [1",
            [vec![thought("hm")], call("f_1", "{\"a\": [1")].concat(),
        ),
        ("<|channel|>analysis<|message|>it never ends", vec![thought("it never ends")]),
        ("free text", vec![said("free text")]),
        (" too", vec![said(" too")]),
    ]
}

#[test]
fn answers_are_read_into_their_parts() {
    for (text, expected) in cases() {
        assert_eq!(parts(&format(), text, &[usize::MAX]), expected, "{text}");
    }
}

proptest! {
    /// However the text is cut, its parts are the same.
    #[test]
    fn the_pieces_of_a_text_do_not_matter(sizes in prop::collection::vec(1usize..9, 1..12), case in 0usize..7) {
        let (text, expected) = cases().swap_remove(case);
        prop_assert_eq!(parts(&format(), text, &sizes), expected);
    }
}
