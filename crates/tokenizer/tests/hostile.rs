//! Tokenizer files that are broken or mean harm end in an error that names the part.

use std::time::{Duration, Instant};

use exo_formats::{GgufTokenizer, TokenizerSource};
use exo_tokenizer::{EncodeError, EncodeOptions, Tokenizer, TokenizerError};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A tokenizer of bytes `a` to `e`, changed by `change`.
fn build(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let mut doc = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "ab": 5}, "merges": [["a", "b"]]},
    });
    change(&mut doc);
    from_json(doc.to_string().into_bytes())
}

fn from_json(tokenizer_json: Vec<u8>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_source(&TokenizerSource::Json { tokenizer_json, tokenizer_config: None })
}

fn refused(change: impl FnOnce(&mut Value)) -> String {
    build(change).expect_err("refused").to_string()
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn added(content: &str) -> Value {
    json!([{"id": 6, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": false}])
}

#[test]
fn the_unchanged_file_works() {
    let tokenizer = build(|_| {}).expect("builds");
    assert_eq!(tokenizer.encode("abc", EncodeOptions::default()), Ok(vec![5, 2]));
}

#[test]
fn a_pattern_that_explodes_is_an_error_within_the_bound() {
    let start = Instant::now();
    let text = "a".repeat(30_000);
    for pattern in [r"(?=(a+)+$)(a|b|ab)*(?=c)\1", r"(?:(?=.*c)a|a|aa)+(?!.)b", r"(a|aa)+(?=b)\1"] {
        let changes: [&dyn Fn(&mut Value); 2] = [&|doc| doc["pre_tokenizer"] = split(pattern), &|doc| {
            doc["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"})
        }];
        for change in changes {
            let tokenizer = build(change).expect("the pattern itself is fine");
            let error = tokenizer.encode(&text, EncodeOptions::default()).expect_err("gives up");
            assert!(matches!(error, EncodeError::PatternExploded { .. }), "{pattern}: {error}");
            assert_eq!(tokenizer.encode("b", EncodeOptions::default()), Ok(vec![1]), "still usable");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn patterns_too_large_or_wrong_are_named() {
    let too_large = refused(|doc| doc["pre_tokenizer"] = split(r"(\p{L}{900}){900}"));
    assert!(too_large.contains(r"(\p{L}{900}){900}"), "{too_large}");
    assert!(refused(|doc| doc["pre_tokenizer"] = split("(")).contains("pattern"));
    let many = json!({"type": "Sequence", "pretokenizers": vec![split("a"); 100]});
    assert!(refused(|doc| doc["pre_tokenizer"] = many).contains("number of steps"));
}

#[test]
fn models_that_contradict_themselves_are_errors_and_no_panics() {
    // The crate copies the merged text into a buffer as long as the longest token, and panics.
    refused(|doc| doc["model"]["merges"] = json!([["ab", "ab"]]));
    refused(|doc| doc["model"]["merges"] = json!([["a", "x"]]));
    // It subtracts the prefix from the second half, and panics.
    refused(|doc| {
        doc["model"]["continuing_subword_prefix"] = json!("######");
        doc["model"]["merges"] = json!([["a", "b"]]);
    });
    assert!(refused(|doc| doc["model"]["vocab"]["e"] = json!(4_000_000_000u32)).contains("vocabulary"));
    refused(|doc| doc["model"]["vocab"] = json!({}));
    refused(|doc| doc["model"]["vocab"] = json!({}));
    assert!(refused(|doc| doc["decoder"] = json!({"type": "CTC"})).contains("CTC"));
    assert!(refused(|doc| doc["model"]["type"] = json!("Magic")).contains("tokenizer.json"));
    assert!(refused(|doc| doc["added_tokens"] = json!([{"id": 1}])).contains("missing field"));
    assert!(from_json(b"{".to_vec()).is_err());
    assert!(from_json(vec![0xFF; 64]).is_err());
    assert!(from_json(format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes()).is_err());
}

#[test]
fn normalisers_that_multiply_the_text_are_stopped() {
    let long = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "x".repeat(10_000)});
    assert!(refused(|doc| doc["normalizer"] = long).contains("inserted text"));
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"});
    let sequence = json!({"type": "Sequence", "normalizers": vec![double; 20]});
    let tokenizer = build(|doc| doc["normalizer"] = sequence.clone()).expect("each step is fine");
    let error = tokenizer.encode("aaaa", EncodeOptions::default()).expect_err("too long");
    assert!(matches!(error, EncodeError::TooLong { .. }), "{error}");
    // The same while building: added tokens are normalised too.
    build(|doc| {
        doc["normalizer"] = sequence;
        doc["added_tokens"] = added("aaaa");
    })
    .expect_err("too long");
}

#[test]
fn texts_beyond_the_limit_are_refused() {
    let tokenizer = build(|_| {}).expect("builds");
    let error = tokenizer.encode(&"a".repeat(3 << 20), EncodeOptions::default()).expect_err("too long");
    assert!(matches!(error, EncodeError::TooLong { bytes: 3_145_728, .. }), "{error}");
}

#[test]
fn long_texts_take_time_in_proportion() {
    let start = Instant::now();
    let added = json!([{"id": 6, "content": "<m>", "single_word": false, "lstrip": true, "rstrip": true,
                        "normalized": false, "special": true}]);
    let looking_back = build(|doc| doc["added_tokens"] = added).expect("builds");
    let options = EncodeOptions { parse_special: true, ..EncodeOptions::default() };
    assert_eq!(looking_back.encode(&"<m>".repeat(40_000), options).map(|ids| ids.len()), Ok(40_000));
    let plain = build(|doc| doc["pre_tokenizer"] = split(r"\s+(?!\S)|\s+|[^\s]+")).expect("builds");
    for text in [" ".repeat(1 << 19), "a".repeat(1 << 20), "ab ".repeat(1 << 18)] {
        plain.encode(&text, EncodeOptions::default()).expect("encodes");
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

fn gguf(change: impl FnOnce(&mut GgufTokenizer)) -> String {
    let mut keys = GgufTokenizer {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: ["a", "b", "ab", "</s>"].into_iter().collect(),
        token_types: Some(vec![1, 1, 1, 3]),
        merges: ["a b"].into_iter().collect(),
        eos: Some(3),
        ..GgufTokenizer::default()
    };
    change(&mut keys);
    Tokenizer::from_source(&TokenizerSource::Gguf(keys)).map_or_else(|e| e.to_string(), |t| format!("{t:?}"))
}

#[test]
fn gguf_keys_that_contradict_each_other_are_named() {
    assert_eq!(gguf(|_| {}), "Tokenizer(4 tokens)");
    assert_eq!(gguf(|k| k.pre = Some("brand-new".into())), "the pre-tokenizer `brand-new` is not supported");
    assert_eq!(gguf(|k| k.model = "rwkv".into()), "the tokenizer model `rwkv` is not supported");
    assert_eq!(gguf(|k| k.eos = Some(9)), "tokenizer.ggml.eos_token_id: it is 9, there are 4 tokens");
    let types = gguf(|k| k.token_types = Some(vec![1]));
    assert_eq!(types, "tokenizer.ggml.token_type: there are 1 entries for 4 tokens");
    assert_eq!(
        gguf(|k| k.merges = ["ab"].into_iter().collect()),
        "tokenizer.ggml.merges: entry 0 is not two pieces"
    );
    let unknown = gguf(|k| k.merges = ["a b", "a x"].into_iter().collect());
    assert_eq!(unknown, "tokenizer.ggml.merges: entry 1: `x` is not a token");
    assert_eq!(gguf(|k| k.model = "llama".into()), "tokenizer.ggml.scores: SentencePiece needs them");
    let long = gguf(|k| {
        k.model = "llama".into();
        k.scores = Some(vec![0.0; 4]);
        k.tokens = [&"x".repeat(100_000), "b", "ab", "</s>"].into_iter().collect();
    });
    assert!(long.starts_with("tokenizer.ggml.tokens: token 0 has 100000 bytes"), "{long}");
    assert!(
        gguf(|k| *k = GgufTokenizer { model: "gpt2".into(), ..GgufTokenizer::default() }).contains("empty")
    );
    assert!(
        gguf(|k| {
            k.scores = Some(vec![f32::NAN; 4]);
            k.model = "llama".into()
        })
        .contains("4 tokens")
    );
}

#[test]
fn a_gguf_without_a_pre_tokenizer_means_the_default_one() {
    assert_eq!(gguf(|k| k.pre = None), "Tokenizer(4 tokens)");
    let names = [
        "llama-bpe",
        "qwen2",
        "gpt-2",
        "default",
        "smollm",
        "tekken",
        "gpt-4o",
        "deepseek-v3",
        "qwen35",
        "falcon",
        "starcoder",
        "llama4",
    ];
    for name in names {
        assert_eq!(gguf(|k| k.pre = Some(name.into())), "Tokenizer(4 tokens)", "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A damaged file builds or is refused; what it builds encodes or refuses. Nothing panics or hangs.
    #[test]
    fn damaged_files_never_panic(at in any::<prop::sample::Index>(), byte: u8, cut in any::<Option<prop::sample::Index>>()) {
        const GOOD: &str = include_str!("fixtures/spm.json");
        let doc: Value = serde_json::from_str(GOOD).expect("JSON");
        let mut text = doc["tokenizer_json"].to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if let Some(cut) = cut {
            text.truncate(cut.index(text.len()));
        }
        if let Ok(tokenizer) = from_json(text) {
            let options = EncodeOptions { add_special: true, parse_special: true };
            if let Ok(ids) = tokenizer.encode("the river <s>\u{1F980} stone", options) {
                tokenizer.decode(&ids, false).expect("its own ids");
            }
        }
    }
}
