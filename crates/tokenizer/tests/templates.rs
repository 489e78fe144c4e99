//! Chat templates against transformers, on fixtures written by `make_template_fixtures.py`; and hostile ones.

use std::time::{Duration, Instant};

use chrono::NaiveDate;
use exo_tokenizer::{ChatTemplate, RenderOptions, TemplateError};
use serde_json::{Map, Value, json};

#[test]
fn prompts_are_those_of_transformers() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("fixtures/templates.json")).expect("fixtures are JSON");
    let mut wrong = Vec::new();
    for case in &cases {
        let (name, rendered) = (&case["name"], render_case(case));
        match (&rendered, case["text"].as_str()) {
            (Ok(text), Some(expected)) if text == expected => {}
            (Err(TemplateError::Raised { message }), None) if *message == case["message"] => {}
            _ => wrong.push(format!("{name}\n  got      {rendered:?}\n  expected {:?}", case["text"])),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() > 40);
}

fn render_case(case: &Value) -> Result<String, TemplateError> {
    let mut context: Map<String, Value> = case["context"].as_object().expect("a context").clone();
    let messages = context.remove("messages").expect("messages");
    let take = |context: &mut Map<String, Value>, key: &str| context.remove(key);
    let options = RenderOptions {
        add_generation_prompt: take(&mut context, "add_generation_prompt") == Some(Value::Bool(true)),
        tools: take(&mut context, "tools").filter(|t| !t.is_null()),
        now: None,
        vars: context,
    };
    let template =
        ChatTemplate::new(case["template"].as_str().expect("a template"), Some("<s>"), Some("</s>"))?;
    template.render(messages.as_array().expect("a list"), &options)
}

fn render(template: &str) -> Result<String, TemplateError> {
    let messages = [json!({"role": "user", "content": "hello"})];
    let now = NaiveDate::from_ymd_opt(2026, 11, 5).and_then(|d| d.and_hms_opt(9, 8, 7));
    let options = RenderOptions { now, ..RenderOptions::default() };
    ChatTemplate::new(template, Some("<s>"), None)?.render(&messages, &options)
}

#[test]
fn the_date_comes_from_the_caller() {
    assert_eq!(render("{{ strftime_now('%d %b %Y %H:%M') }}"), Ok("05 Nov 2026 09:08".to_owned()));
    assert!(matches!(render("{{ strftime_now('%Q') }}"), Err(TemplateError::Failed { .. })));
    let undated = ChatTemplate::new("{{ strftime_now('%d') }}", None, None).expect("compiles");
    assert!(matches!(undated.render(&[], &RenderOptions::default()), Err(TemplateError::Failed { .. })));
}

#[test]
fn tools_are_text_for_a_template_that_knows_of_no_tools() {
    let source = "{{ functions + ' on ' + datetime }}";
    let day = NaiveDate::from_ymd_opt(2026, 11, 5).and_then(|day| day.and_hms_opt(9, 8, 7));
    let tools = Some(json!([{"type": "function", "function": {"name": "f"}}]));
    let rendered = |source: &str, tools: Option<Value>| {
        let options = RenderOptions { tools, now: day, ..RenderOptions::default() };
        ChatTemplate::new(source, None, None).expect("compiles").render(&[], &options)
    };
    assert_eq!(rendered(source, tools.clone()), Ok("[{\"name\":\"f\"}] on 2026-11-05".to_owned()));
    assert!(rendered(source, None).is_err());
    let knows = "{% if functions %}again{% endif %}{{ tools | length }}";
    assert_eq!(rendered(knows, tools), Ok("1".to_owned()));
}

#[test]
fn no_tools_are_no_list() {
    let asks = "{% if x is iterable and x | length > 0 %}some{% else %}none{% endif %}";
    assert_eq!(render(&asks.replace('x', "tools")), Ok("none".to_owned()));
    assert_eq!(render(&asks.replace('x', "messages")), Ok("some".to_owned()));
}

#[test]
fn an_object_behind_a_text_is_json() {
    // As templates print a call's arguments that expect the text which clients send.
    assert_eq!(
        render("{{ 'f\n' + messages[0] }}"),
        Ok("f\n{\"role\": \"user\", \"content\": \"hello\"}".to_owned())
    );
    assert!(matches!(render("{{ 'f' + messages }}"), Err(TemplateError::Failed { .. })));
}

#[test]
fn a_list_that_begins_empty_grows() {
    let grown = "{% set ns = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = ns.ids.append('n' ~ i) %}{% endfor %}";
    let rendered = |rest: &str| render(&format!("{grown}{rest}"));
    let is = |rest: &str, text: &str| assert_eq!(rendered(rest), Ok(text.to_owned()), "{rest}");
    is("{{ ns.ids }}{{ ns.ids | length }}{{ 'n1' in ns.ids }}", "['n0', 'n1', 'n2']3True");
    is(
        "{{ ns.ids.pop(0) }}{{ ns.ids.pop() }}{{ ns.ids | tojson }}{{ ns.ids == ['n1'] }}",
        "n0n2[\"n1\"]True",
    );
    is("{% set all = ns.ids + ['x'] %}{{ ns.ids.append(1) }}{{ all[1:] | join(',') }}", "Nonen1,n2,x");
    // A macro's default, and what is written twice, are new each time.
    is("{% macro f(l=[]) %}{% set _ = l.append(1) %}{{ l }}{% endmacro %}{{ f() }}{{ f() }}", "[1][1]");
    is("{% set t = () %}{{ t }}{{ t + (1, 2) }}{{ t == [] }}", "()(1, 2)False");
    is("{% set ns.ids = [] %}{% if ns.ids %}some{% endif %}{{ ns.ids | default('x') }}", "[]");
    for wrong in ["{{ [].pop() }}", "{{ ns.ids.pop(3) }}", "{{ ns.ids.pop(-4) }}", "{{ ns.ids.clear() }}"] {
        assert!(matches!(rendered(wrong), Err(TemplateError::Failed { .. })), "{wrong}");
    }
    // None grows inside of another: that could become too deep to be dropped.
    for item in ["ns.ids", "[]", "[ns.ids]", "{'a': ns.ids}"] {
        let error = rendered(&format!("{{{{ ns.ids.append({item}) }}}}"));
        assert!(matches!(error, Err(TemplateError::Failed { .. })), "{item}");
    }
}

#[test]
fn what_does_not_compile_says_where() {
    for source in ["{{ x", "{% if %}", "{% for x in y %}", "{{ x | }}", "{% nonsense %}", "{{ a b }}"] {
        let error = ChatTemplate::new(source, None, None).expect_err("refused");
        assert!(matches!(&error, TemplateError::Syntax { .. }), "{source}: {error}");
    }
    let error = ChatTemplate::new("a\nb\n{% if %}", None, None).expect_err("refused");
    assert!(error.to_string().contains(":3"), "{error}");
    let long = "x".repeat(200_000);
    assert!(matches!(
        ChatTemplate::new(&long, None, None),
        Err(TemplateError::TooLarge { bytes: 200_000, .. })
    ));
}

#[test]
fn standard_variables_cannot_be_overridden() {
    let vars = Map::from_iter([("messages".to_owned(), json!([])), ("bos_token".to_owned(), json!("evil"))]);
    let options = RenderOptions { vars, ..RenderOptions::default() };
    let template =
        ChatTemplate::new("{{ bos_token }}{{ messages|length }}", Some("<s>"), None).expect("compiles");
    assert_eq!(template.render(&[json!({})], &options), Ok("<s>1".to_owned()));
}

/// Renders on a thread with the stack of a server's worker, and within a bound.
fn stopped(name: &str, template: String) -> TemplateError {
    let start = Instant::now();
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || render(&template));
    let result = thread.expect("a thread").join().expect("no panic");
    assert!(start.elapsed() < Duration::from_secs(30), "{name} took {:?}", start.elapsed());
    match result {
        Ok(text) => panic!("{name} rendered {} bytes", text.len()),
        Err(error) => error,
    }
}

#[test]
fn templates_that_loop_run_out_of_steps() {
    for (name, template) in [
        ("nested loops", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
        ("a huge range", "{% for a in range(1000000000) %}{% endfor %}"),
        (
            "a loop over slices",
            "{% set x = 'a' * 1000000 %}{% for a in range(9999) %}{% for b in range(9999) %}{% set y = x[1:] %}{% endfor %}{% endfor %}",
        ),
        (
            // Each is weighed while it is empty, and all go at once.
            "namespaces in namespaces, very deep",
            "{% set ns = namespace() %}{% for a in range(9999) %}{% for b in range(9999) %}{% set n = namespace() %}{% set m = [[[[n]]]] %}\
             {% set n.x = ns.x %}{% set ns.x = m %}{% endfor %}{% endfor %}",
        ),
    ] {
        let error = stopped(name, template.to_owned());
        assert!(matches!(error, TemplateError::TooSlow { .. }), "{name}: {error}");
    }
    for (name, template) in [
        ("a macro calling itself", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
        ("a recursive loop", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
        ("a block in itself", "{% block a %}{{ self.a() }}{% endblock %}"),
    ] {
        let error = stopped(name, template.to_owned());
        assert!(
            matches!(error, TemplateError::Failed { .. } | TemplateError::TooSlow { .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn templates_that_fill_memory_are_stopped_before_they_do() {
    let doubling = |step: &str| {
        format!(
            "{{% set ns = namespace(x='ab', l=[1]) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.l }}}}"
        )
    };
    for (name, template) in [
        ("concatenation", doubling("{% set ns.x = ns.x ~ ns.x %}")),
        ("addition", doubling("{% set ns.x = ns.x + ns.x %}")),
        ("repetition", doubling("{% set ns.x = ns.x * 7 %}")),
        ("lists added", doubling("{% set ns.l = ns.l + ns.l %}")),
        ("lists of lists", doubling("{% set ns.l = [ns.l, ns.l] %}")),
        ("maps of maps", doubling("{% set ns.l = {'a': ns.l, 'b': ns.l} %}")),
        ("tuples of tuples", doubling("{% set ns.l = (ns.l, ns.l) %}")),
        ("namespaces of namespaces", doubling("{% set ns.l = namespace(a=ns.l, b=ns.l) %}")),
        ("dicts of dicts", doubling("{% set ns.l = dict(a=ns.l, b=ns.l) %}")),
        ("replacing", doubling("{% set ns.x = ns.x.replace('a', ns.x) %}")),
        ("the replace filter", doubling("{% set ns.x = ns.x|replace('b', ns.x) %}")),
        ("joining", doubling("{% set ns.x = [ns.x, ns.x]|join(ns.x) %}")),
        ("the join method", doubling("{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}")),
        ("captured blocks", doubling("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}")),
        ("JSON in JSON", doubling("{% set ns.x = [ns.x, ns.x]|tojson %}")),
        ("a long repetition", "{% set n = 10000000000 %}{{ 'a' * n }}".to_owned()),
        ("a long list", "{% set n = 10000000000 %}{{ [0] * n }}".to_owned()),
        ("output without end", "{% for a in range(9999) %}{% for b in range(9999) %}{{ messages }}{% endfor %}{% endfor %}".to_owned()),
        ("a namespace in itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned()),
        ("a namespace in itself, compared", "{% set a = namespace() %}{% set a.x = a %}{% set b = namespace() %}{% set b.x = b %}{{ a == b }}".to_owned()),
        ("nested without end", doubling("{% for j in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}")),
        ("macro arguments", "{% macro f(x) %}{{ f(x ~ x ~ x ~ x ~ x ~ x ~ x ~ x) }}{% endmacro %}{{ f('a' * 1000) }}".to_owned()),
        ("text between tags", format!("{{% for a in range(9999) %}}{}{{% endfor %}}", "x".repeat(100_000))),
    ] {
        let error = stopped(name, template);
        let typed = matches!(error, TemplateError::TooMuchOutput { .. } | TemplateError::TooSlow { .. });
        assert!(typed, "{name}: {error}");
    }
}

#[test]
fn templates_that_would_break_the_compiler_are_refused() {
    for (name, template) in [
        ("a long sum", format!("{{{{ 1{} }}}}", "+1".repeat(20_000))),
        ("deep parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000))),
        ("deep lists", format!("{{{{ {}{} }}}}", "[".repeat(400), "]".repeat(400))),
        ("deep blocks", format!("{}{}", "{% if 1 %}".repeat(5000), "{% endif %}".repeat(5000))),
        ("many elif", format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(5000))),
        ("not not not", format!("{{{{ {} 1 }}}}", "not ".repeat(20_000))),
        ("a constant repetition", "{{ 'a' * 90000000 }}".to_owned()),
        ("constant repetitions", "{{ 'a' * 9000 * 9000 * 9000 }}".to_owned()),
        ("a filter chain", format!("{{{{ 1{} }}}}", "|abs".repeat(20_000))),
    ] {
        let error = stopped(name, template);
        assert!(matches!(error, TemplateError::Syntax { .. }), "{name}: {error}");
    }
}

#[test]
fn widths_are_bounded() {
    for template in [
        "{{ 'a'|indent(1000000000) }}",
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ messages|tojson(indent=1000000) }}",
    ] {
        let error = stopped(template, template.to_owned());
        assert!(matches!(error, TemplateError::Failed { .. }), "{template}: {error}");
    }
    assert_eq!(render("{{ 'a\nb'|indent(2) }}{{ '{}-{}'.format(1, 'x') }}"), Ok("a\n  b1-x".to_owned()));
}

#[test]
fn a_long_conversation_is_no_hostile_template() {
    let message = |i: usize| {
        let role = if i.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": "some words ".repeat(40)})
    };
    let messages: Vec<Value> = (0..2000).map(message).collect();
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("fixtures/templates.json")).expect("fixtures are JSON");
    for name in ["llama talk True", "qwen talk True", "mistral talk True"] {
        let case = cases.iter().find(|c| c["name"] == name).expect("a fixture");
        let template = ChatTemplate::new(case["template"].as_str().expect("text"), Some("<s>"), Some("</s>"));
        let text = template.expect("compiles").render(&messages, &RenderOptions::default());
        assert!(text.as_ref().is_ok_and(|t| t.len() > 2000 * 440), "{name}: {:?}", text.err());
    }
}
