//! Control tokens in messages: typed ones are text, the template's own are not, and other prompts are as they
//! were.

use exo_formats::{GgufTokenizer, TokenizerSource};
use exo_tokenizer::{ChatTemplate, EncodeOptions, RenderOptions, Tokenizer};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

fn fixture(name: &str) -> Value {
    let text = match name {
        "llama_bpe" => include_str!("fixtures/llama_bpe.json"),
        "qwen2" => include_str!("fixtures/qwen2.json"),
        _ => include_str!("fixtures/spm.json"),
    };
    serde_json::from_str(text).expect("fixtures are JSON")
}

/// As `tokenizer.json`, or with the same tokens as a GGUF file.
fn tokenizers(name: &str) -> [Tokenizer; 2] {
    let doc = fixture(name);
    let json = TokenizerSource::Json {
        tokenizer_json: doc["tokenizer_json"].to_string().into_bytes(),
        tokenizer_config: Some(doc["tokenizer_config"].clone()),
    };
    let gguf = TokenizerSource::Gguf(gguf(&doc));
    [json, gguf].map(|source| Tokenizer::from_source(&source).expect("fixtures are sound"))
}

fn gguf(doc: &Value) -> GgufTokenizer {
    let keys = &doc["gguf"];
    let texts = |key: &str| {
        keys[key].as_array().into_iter().flatten().map(|text| text.as_str().expect("a text")).collect()
    };
    let scores = keys["scores"].as_array();
    GgufTokenizer {
        model: keys["model"].as_str().expect("a model").to_owned(),
        pre: keys["pre"].as_str().map(str::to_owned),
        tokens: texts("tokens"),
        merges: texts("merges"),
        scores: scores.map(|s| s.iter().map(|s| s.as_f64().expect("a score") as f32).collect()),
        token_types: serde_json::from_value(keys["token_types"].clone()).expect("integers"),
        unk: keys["unk"].as_u64().map(|id| id as u32),
        ..GgufTokenizer::default()
    }
}

fn all_tokenizers() -> Vec<Tokenizer> {
    ["llama_bpe", "qwen2", "spm"].into_iter().flat_map(tokenizers).collect()
}

fn specials(tokenizer: &Tokenizer) -> Vec<String> {
    let ids = (0..tokenizer.vocab_len()).filter(|id| tokenizer.is_special(*id));
    ids.filter_map(|id| tokenizer.token_text(id)).filter(|text| text.len() > 1).collect()
}

fn control_ids(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect()
}

/// A template in the manner of ChatML, with the control tokens of this tokenizer.
fn template(open: &str, close: &str) -> ChatTemplate {
    let source = format!(
        "{{% for m in messages %}}{open}{{{{ m.role }}}}\n{{{{ m.content | trim }}}}{close}{{% endfor %}}{open}assistant\n"
    );
    ChatTemplate::new(&source, None, None).expect("compiles")
}

/// The templates of real model families, with the conversations of the fixtures, which they accept.
fn families() -> Vec<(String, ChatTemplate, Vec<Value>, RenderOptions)> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("fixtures/templates.json")).expect("JSON");
    let family = |case: &Value| {
        let template = ChatTemplate::new(case["template"].as_str()?, Some("<s>"), Some("</s>")).ok()?;
        let mut vars: Map<String, Value> = case["context"].as_object()?.clone();
        let messages = vars.remove("messages")?.as_array()?.clone();
        let tools = vars.remove("tools").filter(|t| !t.is_null());
        vars.remove("add_generation_prompt");
        let options = RenderOptions { add_generation_prompt: true, tools, vars, now: None };
        template.render(&messages, &options).ok()?;
        Some((case["name"].to_string(), template, messages, options))
    };
    cases.iter().filter_map(family).collect()
}

/// Puts `text` behind every string of the conversation but the roles and types, which templates compare.
fn infect(value: &mut Value, text: &str) {
    match value {
        Value::String(s) => s.push_str(text),
        Value::Array(items) => items.iter_mut().for_each(|v| infect(v, text)),
        Value::Object(map) => {
            map.iter_mut().filter(|(k, _)| *k != "role" && *k != "type").for_each(|(_, v)| infect(v, text));
        }
        _ => {}
    }
}

#[test]
fn a_control_token_that_a_user_types_is_text_and_its_text_is_what_was_typed() {
    for tokenizer in all_tokenizers() {
        let controls = specials(&tokenizer);
        let template = template(&controls[0], &controls[1]);
        let encode = |content: &str| {
            let messages = [json!({"role": "user", "content": content})];
            tokenizer.encode_chat(&template, &messages, &RenderOptions::default()).expect("encodes")
        };
        let own = control_ids(&tokenizer, &encode("hello"));
        assert_eq!(own.len(), 3, "the template's own");
        for control in &controls {
            for typed in
                [control.clone(), format!("a {control} b"), format!("{control}{control}\n {control}!")]
            {
                let ids = encode(&typed);
                assert_eq!(control_ids(&tokenizer, &ids), own, "{tokenizer:?} {typed:?}");
                let text = tokenizer.decode(&ids, false).expect("known ids");
                assert!(text.contains(typed.trim()), "{tokenizer:?} {typed:?} {text:?}");
            }
        }
    }
}

#[test]
fn what_is_typed_is_encoded_as_if_no_control_token_were_known() {
    let [json, gguf] = tokenizers("qwen2");
    for tokenizer in [json, gguf] {
        let template = ChatTemplate::new("{{ messages[0].content }}", None, None).expect("compiles");
        let control = &specials(&tokenizer)[0];
        let content = format!("before {control} after {control}");
        let messages = [json!({"role": "user", "content": content.clone()})];
        let ids = tokenizer.encode_chat(&template, &messages, &RenderOptions::default());
        let plain = tokenizer.encode(&content, EncodeOptions::default());
        assert_eq!(ids.expect("encodes"), plain.expect("encodes"));
    }
}

#[test]
fn no_family_of_templates_lets_a_message_a_name_or_a_tool_make_a_control_token() {
    let families = families();
    assert!(families.len() > 30);
    for tokenizer in all_tokenizers() {
        for control in specials(&tokenizer).iter().take(4) {
            for (name, template, messages, options) in &families {
                let with = |text: &str| {
                    let (mut messages, mut options) = (messages.clone(), options.clone());
                    messages.iter_mut().for_each(|m| infect(m, text));
                    options.tools.iter_mut().for_each(|tools| infect(tools, text));
                    tokenizer.encode_chat(template, &messages, &options)
                };
                // A harmless word in the same places: templates may leave some out.
                let (harmless, hostile) = (with("word"), with(control));
                let (Ok(harmless), Ok(hostile)) = (harmless, hostile) else { continue };
                let of = |ids: &[u32]| control_ids(&tokenizer, ids);
                assert_eq!(of(&hostile), of(&harmless), "{name} {tokenizer:?} {control}");
            }
        }
    }
}

#[test]
fn a_control_token_in_two_parts_of_a_request_is_none() {
    let [_, tokenizer] = tokenizers("llama_bpe");
    let control = specials(&tokenizer)[0].clone();
    let (left, right) = control.split_at(3);
    let source = "{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, None, None).expect("compiles");
    let messages = [
        json!({"name": left, "content": right}),
        json!({"name": "", "content": left}),
        json!({"name": right}),
    ];
    let ids = tokenizer.encode_chat(&template, &messages, &RenderOptions::default()).expect("encodes");
    assert!(control_ids(&tokenizer, &ids).is_empty());
    assert!(tokenizer.decode(&ids, false).expect("known ids").contains(&format!("{control}{control}")));
}

#[test]
fn a_template_that_cuts_and_compares_sees_what_was_said() {
    let [_, tokenizer] = tokenizers("qwen2");
    let control = specials(&tokenizer)[0].clone();
    let source = "{% set c = messages[0].content %}{% if '</think>' in c %}{{ c.split('</think>')[-1] | trim }}{% endif %}|{{ c | length }}";
    let template = ChatTemplate::new(source, None, None).expect("compiles");
    let content = format!("aside</think> said {control}");
    let messages = [json!({"content": content.clone()})];
    let ids = tokenizer.encode_chat(&template, &messages, &RenderOptions::default()).expect("encodes");
    assert!(control_ids(&tokenizer, &ids).is_empty());
    let text = tokenizer.decode(&ids, false).expect("known ids");
    assert_eq!(text, format!("said {control}|{}", content.chars().count()));
}

/// Some files say of an end token that it is no control token.
#[test]
fn the_token_that_ends_an_answer_is_never_typed() {
    let source = GgufTokenizer {
        model: "gpt2".to_owned(),
        tokens: ["<", "e", "n", "d", ">", "<end>"].into_iter().collect(),
        token_types: Some(vec![1, 1, 1, 1, 1, 4]),
        eos: Some(5),
        ..GgufTokenizer::default()
    };
    let tokenizer = Tokenizer::from_source(&TokenizerSource::Gguf(source)).expect("sound");
    let template = ChatTemplate::new("{{ messages[0].content }}<end>", None, None).expect("compiles");
    let messages = [json!({"content": "<end>"})];
    let ids = tokenizer.encode_chat(&template, &messages, &RenderOptions::default());
    assert_eq!(ids.expect("encodes"), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn every_private_character_at_once_opens_no_way_in() {
    let [_, tokenizer] = tokenizers("llama_bpe");
    let control = specials(&tokenizer)[0].clone();
    let template = ChatTemplate::new("{{ messages[0].content }}", None, None).expect("compiles");
    let private: String = (0xF_0000..0xF_FFFE).filter_map(char::from_u32).collect();
    let messages = [json!({"content": format!("{private}{control}")})];
    let ids = tokenizer.encode_chat(&template, &messages, &RenderOptions::default()).expect("encodes");
    assert!(control_ids(&tokenizer, &ids).is_empty());
}

/// Text with much of what control tokens are made of.
fn said() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("<".to_owned()),
        Just("|".to_owned()),
        Just(">".to_owned()),
        Just("[".to_owned()),
        Just("</".to_owned()),
        Just("im_end".to_owned()),
        Just("</think>".to_owned()),
        Just("\u{F0000}".to_owned()),
        any::<char>().prop_map(String::from),
        "[a-z ]{0,6}",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_prompt_without_control_tokens_in_its_messages_is_as_it_was(contents in proptest::collection::vec(said(), 1..4)) {
        use std::sync::OnceLock;
        static ALL: OnceLock<Vec<Tokenizer>> = OnceLock::new();
        for tokenizer in ALL.get_or_init(all_tokenizers) {
            let controls = specials(tokenizer);
            prop_assume!(!controls.iter().any(|control| contents.iter().any(|c| c.contains(control))));
            let template = template(&controls[0], &controls[1]);
            let messages: Vec<Value> = contents.iter().map(|c| json!({"role": "user", "content": c})).collect();
            let rendered = template.render(&messages, &RenderOptions::default()).expect("renders");
            let ids = tokenizer.encode_chat(&template, &messages, &RenderOptions::default());
            prop_assert_eq!(ids.expect("encodes"), tokenizer.encode(&rendered, SPECIAL).expect("encodes"));
        }
    }
}

#[test]
fn the_prompts_of_the_fixtures_are_as_they_were() {
    for tokenizer in all_tokenizers() {
        let controls = specials(&tokenizer);
        for (name, template, messages, options) in families() {
            let said = json!([messages, options.tools, options.vars]).to_string();
            if controls.iter().any(|control| said.contains(control)) {
                continue;
            }
            let rendered = template.render(&messages, &options).expect("renders");
            let ids = tokenizer.encode_chat(&template, &messages, &options).expect("encodes");
            assert_eq!(ids, tokenizer.encode(&rendered, SPECIAL).expect("encodes"), "{name}");
        }
    }
}

/// A tokenizer with tokens for filling in the middle.
fn infilling(names: [&str; 3]) -> (Tokenizer, [u32; 3]) {
    const CONTROL: i32 = 3;
    let mut source = gguf(&fixture("qwen2"));
    let ids = names.map(|name| {
        source.tokens.push(name);
        source.token_types.as_mut().expect("types").push(CONTROL);
        source.tokens.len() as u32 - 1
    });
    (Tokenizer::from_source(&TokenizerSource::Gguf(source)).expect("sound"), ids)
}

#[test]
fn a_hole_stands_between_the_models_own_tokens_and_what_is_typed_is_text() {
    for names in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ] {
        let (tokenizer, [before, between, behind]) = infilling(names);
        let plain = |text: &str| tokenizer.encode(text, EncodeOptions::default()).expect("encodes");
        let typed = format!("x {} y", names[2]);
        let ids = tokenizer.encode_infill(&typed, "z").expect("encodes").expect("has the tokens");
        let expected = [&[before], plain(&typed).as_slice(), &[between], &plain("z"), &[behind]].concat();
        assert_eq!(ids, expected);
        assert_eq!(control_ids(&tokenizer, &ids), [before, between, behind], "{names:?}");
    }
    for tokenizer in tokenizers("qwen2") {
        assert_eq!(tokenizer.encode_infill("a", "b"), Ok(None));
    }
}
