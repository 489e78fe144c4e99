//! Ids and texts against Hugging Face's `tokenizers`, on fixtures written by `make_fixtures.py`.

use exo_formats::{GgufTokenizer, Texts, TokenizerSource};
use exo_tokenizer::{EncodeOptions, Tokenizer, to_gguf};
use proptest::prelude::*;
use serde_json::Value;

const FIXTURES: [(&str, &str); 3] = [
    ("llama_bpe", include_str!("fixtures/llama_bpe.json")),
    ("qwen2", include_str!("fixtures/qwen2.json")),
    ("spm", include_str!("fixtures/spm.json")),
];

struct Fixture {
    name: &'static str,
    doc: Value,
    source: TokenizerSource,
    json: Tokenizer,
    gguf: Tokenizer,
}

fn fixtures() -> Vec<Fixture> {
    FIXTURES.iter().map(|(name, text)| fixture(name, text)).collect()
}

fn fixture(name: &'static str, text: &str) -> Fixture {
    let doc: Value = serde_json::from_str(text).expect("fixtures are JSON");
    let json = TokenizerSource::Json {
        tokenizer_json: doc["tokenizer_json"].to_string().into_bytes(),
        tokenizer_config: Some(doc["tokenizer_config"].clone()),
    };
    let gguf = TokenizerSource::Gguf(gguf_keys(&doc["gguf"]));
    let build = |source| Tokenizer::from_source(&source).expect("fixtures are sound");
    Fixture { name, json: build(json.clone()), source: json, gguf: build(gguf), doc }
}

fn gguf_keys(json: &Value) -> GgufTokenizer {
    let read = |key: &str| json.get(key).cloned().unwrap_or_default();
    let id = |key: &str| json[key].as_u64().map(|id| id as u32);
    let scores: Option<Vec<f64>> = serde_json::from_value(read("scores")).expect("numbers");
    GgufTokenizer {
        model: json["model"].as_str().expect("a model").to_owned(),
        pre: json["pre"].as_str().map(str::to_owned),
        tokens: texts(read("tokens")),
        scores: scores.map(|s| s.into_iter().map(|s| s as f32).collect()),
        token_types: serde_json::from_value(read("token_types")).expect("integers"),
        merges: texts(read("merges")),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        unk: id("unk"),
        ..GgufTokenizer::default()
    }
}

fn texts(list: Value) -> Texts {
    list.as_array().into_iter().flatten().map(|text| text.as_str().expect("texts")).collect()
}

const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const FRAMED: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn ids(json: &Value) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("ids")
}

#[test]
fn ids_are_those_of_the_reference() {
    for f in fixtures() {
        for case in f.doc["cases"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("text");
            let unchanged = f.name != "qwen2" || case["decoded"] == case["text"];
            let tokenizers = [("json", &f.json, true), ("gguf", &f.gguf, unchanged)];
            for (kind, tokenizer, comparable) in tokenizers {
                if !comparable {
                    continue; // normalised by tokenizer.json only: GGUF has no place for it
                }
                let encode = |options| tokenizer.encode(text, options).expect("encodes");
                assert_eq!(encode(SPECIAL), ids(&case["ids"]), "{} {kind} {text:?}", f.name);
                assert_eq!(encode(PLAIN), ids(&case["ids_plain"]), "{} {kind} plain {text:?}", f.name);
                assert_eq!(encode(FRAMED), ids(&case["ids_framed"]), "{} {kind} framed {text:?}", f.name);
            }
        }
    }
}

#[test]
fn texts_are_those_of_the_reference() {
    for f in fixtures() {
        for case in f.doc["cases"].as_array().expect("cases") {
            for tokenizer in [&f.json, &f.gguf] {
                let decode = |skip| tokenizer.decode(&ids(&case["ids"]), skip).expect("known ids");
                assert_eq!(decode(false), case["decoded"], "{}", f.name);
                assert_eq!(decode(true), case["decoded_skip"], "{}", f.name);
            }
        }
    }
}

#[test]
fn qwen2_fixture_has_cases_that_only_the_json_normalises() {
    let f = fixture("qwen2", FIXTURES[1].1);
    let cases = f.doc["cases"].as_array().expect("cases");
    let normalised = cases.iter().filter(|c| c["decoded"] != c["text"]).count();
    assert!((1..5).contains(&normalised), "{normalised}");
}

#[test]
fn both_sources_agree_on_the_ends_of_a_sequence() {
    for f in fixtures() {
        assert_eq!(f.json.bos(), f.gguf.bos(), "{}", f.name);
        assert_eq!(f.json.eos(), f.gguf.eos(), "{}", f.name);
        assert_eq!(f.json.end_ids(), f.gguf.end_ids(), "{}", f.name);
        assert_eq!(f.json.vocab_len(), f.gguf.vocab_len(), "{}", f.name);
        let eos = f.json.eos().expect("an end");
        assert!(f.json.is_special(eos) && f.json.end_ids().contains(&eos));
    }
    let llama = fixture("llama_bpe", FIXTURES[0].1).json;
    assert_eq!(llama.end_ids().len(), 2, "end of text and end of turn");
    assert_eq!(llama.token_text(llama.end_ids()[0]), Some("<|end_of_text|>".to_owned()));
}

#[test]
fn tokens_show_their_bytes_and_text() {
    let f = fixture("llama_bpe", FIXTURES[0].1);
    let space = f.json.token_id("Ġthe").expect("a word of the training text");
    assert_eq!(f.json.token_text(space).as_deref(), Some(" the"));
    let byte = f.json.token_id("Ã").expect("a byte");
    assert_eq!(f.json.token_bytes(byte), Some(vec![0xC3]));
    assert_eq!(f.json.token_text(byte).as_deref(), Some("\u{FFFD}"));
    assert_eq!(f.json.token_bytes(f.json.vocab_len()), None);
    assert!(f.json.decode(&[f.json.vocab_len()], false).is_err());
}

#[test]
fn a_continuation_keeps_the_space_a_text_loses() {
    let f = fixture("spm", FIXTURES[2].1);
    let the = f.gguf.token_id("▁the").expect("a word of the training text");
    assert_eq!(f.gguf.stream(true).push(the), "the");
    assert_eq!(f.gguf.stream_continuing(true).push(the), " the");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Streamed text is decoded text, whatever the ids; no part ends inside a character (it is a `String`).
    #[test]
    fn a_stream_joined_is_the_decoded_text(seeds in prop::collection::vec(any::<u32>(), 0..80), skip: bool) {
        for f in fixtures() {
            let ids: Vec<u32> = seeds.iter().map(|s| s % f.json.vocab_len()).collect();
            let mut stream = f.json.stream(skip);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text.push_str(&stream.finish());
            prop_assert_eq!(text, f.json.decode(&ids, skip).expect("known ids"));
        }
    }

    /// Byte-level tokenizers lose nothing.
    #[test]
    fn any_text_survives_the_round_trip(text in "(\\PC|[ \\t\\r\\n]|<\\|eot_id\\|>){0,60}") {
        let f = fixture("llama_bpe", FIXTURES[0].1);
        for options in [SPECIAL, PLAIN] {
            let ids = f.gguf.encode(&text, options).expect("encodes");
            prop_assert_eq!(&f.gguf.decode(&ids, false).expect("known ids"), &text);
        }
    }
}

#[test]
fn keys_written_from_a_tokenizer_json_are_those_of_the_converters() {
    for f in fixtures() {
        let expected = gguf_keys(&f.doc["gguf"]);
        let written = to_gguf(&f.source, expected.tokens.len() as u32 + 2).expect(f.name);
        assert_eq!(written.model, expected.model, "{}", f.name);
        // SentencePiece has no other way to cut: converters write `default` or nothing.
        let pre = expected.pre.or_else(|| Some("default".to_owned()));
        assert_eq!(written.pre, pre, "{}", f.name);
        let real = expected.tokens.len();
        assert!(written.tokens.iter().take(real).eq(expected.tokens.iter()), "{}", f.name);
        assert_eq!(&written.tokens[real], format!("[PAD{real}]"));
        assert_eq!(written.merges, expected.merges, "{}", f.name);
        assert_eq!((written.bos, written.eos, written.unk), (expected.bos, expected.eos, expected.unk));
        let types = written.token_types.as_ref().expect("types");
        assert_eq!(types[..real], expected.token_types.expect("types"), "{}", f.name);
        assert_eq!(types[real..], [5, 5]);
        let rebuilt = Tokenizer::from_source(&TokenizerSource::Gguf(written)).expect(f.name);
        for case in f.doc["cases"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("text");
            if f.name == "qwen2" && case["decoded"] != case["text"] {
                continue; // normalised by tokenizer.json only: GGUF has no place for it
            }
            for (options, key) in [(PLAIN, "ids_plain"), (SPECIAL, "ids"), (FRAMED, "ids_framed")] {
                assert_eq!(
                    rebuilt.encode(text, options).expect("encodes"),
                    ids(&case[key]),
                    "{} {text:?}",
                    f.name
                );
            }
        }
    }
}

#[test]
fn a_tokenizer_that_keys_cannot_express_is_refused_with_the_part_that_cannot() {
    let fixture = &fixtures()[0];
    let with = |change: &dyn Fn(&mut Value)| {
        let mut json = fixture.doc["tokenizer_json"].clone();
        change(&mut json);
        let tokenizer_json = json.to_string().into_bytes();
        let config = Some(fixture.doc["tokenizer_config"].clone());
        let source = TokenizerSource::Json { tokenizer_json, tokenizer_config: config };
        to_gguf(&source, 1 << 17).unwrap_err().to_string()
    };
    let error = with(&|json| json["normalizer"] = serde_json::json!({"type": "Lowercase"}));
    assert!(error.contains("it normalises text (Lowercase)"), "{error}");
    let error = with(&|json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\d+".into());
    assert!(error.contains("no GGUF name stands for its way to cut text"), "{error}");
    let rows = fixture.doc["gguf"]["tokens"].as_array().expect("tokens").len() as u32;
    let error = to_gguf(&fixture.source, rows - 1).unwrap_err().to_string();
    assert!(error.contains(&format!("the model's table has {} rows", rows - 1)), "{error}");
}
