use serde_json::json;

use super::*;
use crate::ConfigError;

/// A configuration with the fields every file has, and `more` on top.
fn config(model_type: &str, more: Value) -> Value {
    let mut whole = json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 128,
    });
    let fields = whole.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    whole
}

fn check(model_type: &str, more: Value) -> Result<ModelConfig, String> {
    read(&config(model_type, more), None).map_err(|problem| match problem {
        Problem::Json(e) => e.to_string(),
        Problem::Config(e) => e.to_string(),
    })
}

#[test]
fn transformers_4_and_5_write_the_same_model_differently() {
    let scaling = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    });
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(500000.0);
    let four = json!({"rope_theta": 500000.0, "rope_scaling": scaling, "torch_dtype": "bfloat16"});
    let five = json!({"rope_parameters": parameters, "dtype": "bfloat16"});
    let four = check("llama", four).unwrap();
    assert_eq!(four, check("llama", five).unwrap());
    assert_eq!(four.rope.theta, 500000.0);
    assert_ne!(
        four.rope.frequencies,
        check("llama", json!({"rope_theta": 500000.0})).unwrap().rope.frequencies
    );
}

#[test]
fn scaling_we_do_not_have_is_refused_by_name() {
    for field in ["rope_parameters", "rope_scaling"] {
        for kind in ["yarn", "dynamic", "longrope", "su"] {
            let said = check("qwen3", json!({field: {"rope_type": kind, "factor": 4.0}})).unwrap_err();
            assert!(said.contains(kind) && said.contains(field), "{said}");
        }
    }
    let old_spelling = check("llama", json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).unwrap();
    assert_eq!(old_spelling.rope.frequencies[0], 0.5);
    let per_kind = json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}});
    assert!(check("qwen3", per_kind).is_err());
}

#[test]
fn absent_fields_have_the_defaults_of_their_class() {
    assert_eq!(check("llama", json!({})).unwrap().head_dim, 16);
    assert_eq!(check("qwen3", json!({})).unwrap().head_dim, 128);
    assert_eq!(check("qwen3", json!({"head_dim": 32})).unwrap().head_dim, 32);
    assert_eq!(check("mistral", json!({})).unwrap().sliding_window, Some(4096));
    assert_eq!(check("mistral", json!({"sliding_window": null})).unwrap().sliding_window, None);
    assert_eq!(check("llama", json!({"num_key_value_heads": null})).unwrap().kv_heads, 4);
    let qwen2 = check("qwen2", json!({})).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.qk_norm && qwen2.rope.theta == 10000.0 && qwen2.rms_eps == 1e-6);
}

#[test]
fn qwen_windows_count_only_when_switched_on_and_alike_in_all_layers() {
    let window = |more: Value| {
        let mut all = json!({"sliding_window": 32});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check("qwen2", all).map(|c| c.sliding_window)
    };
    assert_eq!(window(json!({"use_sliding_window": false, "max_window_layers": 0})), Ok(None));
    assert_eq!(window(json!({"use_sliding_window": true, "max_window_layers": 0})), Ok(Some(32)));
    assert_eq!(window(json!({"use_sliding_window": true, "max_window_layers": 3})), Ok(None));
    let mixed = window(json!({"use_sliding_window": true, "max_window_layers": 1})).unwrap_err();
    assert!(mixed.contains("2 of 3 layers"), "{mixed}");
    let listed = |kinds: [&str; 3]| window(json!({"use_sliding_window": true, "layer_types": kinds}));
    assert_eq!(listed(["sliding_attention"; 3]), Ok(Some(32)));
    assert!(listed(["sliding_attention", "full_attention", "sliding_attention"]).is_err());
}

#[test]
fn every_end_token_is_gathered() {
    let generation = json!({"eos_token_id": [7, 3, 3, 99999, -1]});
    let own = config("llama", json!({"eos_token_id": 5, "bos_token_id": 1}));
    let Ok(read) = read(&own, Some(&generation)) else { panic!("the configuration is good") };
    assert_eq!((read.bos, read.eos.as_slice()), (Some(1), [3, 5, 7].as_slice()));
}

#[test]
fn what_we_would_silently_leave_out_is_refused() {
    let cases = [
        (json!({"quantization_config": {"quant_method": "gptq"}}), "gptq"),
        (json!({"hidden_act": "gelu"}), "`hidden_act` is `gelu`"),
        (json!({"attention_bias": true}), "`attention_bias` is true"),
        (json!({"partial_rotary_factor": 0.5}), "whole heads"),
        (json!({"num_attention_heads": 0}), "heads"),
        (json!({"num_key_value_heads": 3}), "multiple of the 3"),
        (json!({"head_dim": 15}), "even"),
        (json!({"hidden_size": -1}), "`hidden_size` is -1, expected an integer"),
        (json!({"hidden_size": 1e300}), "`hidden_size`"),
        (json!({"vocab_size": null}), "`vocab_size` is missing"),
        (json!({"rms_norm_eps": "x"}), "`rms_norm_eps` is `x`"),
        (json!({"rope_theta": 0}), "rope_theta"),
        (json!({"eos_token_id": "x"}), "a token id or a list"),
    ];
    for (more, expected) in cases {
        let said = check("llama", more.clone()).unwrap_err();
        assert!(said.contains(expected), "{more}: {said}");
    }
    let unknown = check("gpt_neox", json!({})).unwrap_err();
    let listed = ConfigError::UnknownArchitecture { field: "model_type", found: "gpt_neox".to_owned() };
    assert_eq!(unknown, listed.to_string());
}

#[test]
fn vectors_may_be_cut_where_the_configuration_says_so() {
    let lengths = |config: Value| read_embedding(&config).lengths;
    assert_eq!(lengths(json!({})), EmbeddingLengths::Whole);
    assert_eq!(lengths(json!({"is_matryoshka": true})), EmbeddingLengths::Any);
    assert_eq!(lengths(json!({"matryoshka_dimensions": [2, 4]})), EmbeddingLengths::Some(vec![2, 4]));
    let odd = json!({"is_matryoshka": "yes", "matryoshka_dimensions": 4});
    assert_eq!(lengths(odd), EmbeddingLengths::Whole, "nothing is guessed");
}
