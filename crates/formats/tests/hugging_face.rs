//! Hugging Face folders: single and sharded, good and bad.

#![allow(clippy::unwrap_used)] // helpers are outside of what `allow-unwrap-in-tests` sees

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, bytes, chain};
use exo_formats::{Architecture, LayerTensor, Model, RopeStyle, TensorName, TokenizerSource, open};
use exo_types::{DType, LayerRange, Pooling, Shard};
use serde_json::{Value, json};

/// Name and shape, outputs first, of each tensor.
type Tensors = Vec<(String, Vec<u64>)>;

fn tensors(tied: bool) -> Tensors {
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for i in 0..LAYERS {
        let mut layer =
            |name: &str, shape: &[u64]| all.push((format!("model.layers.{i}.{name}.weight"), shape.to_vec()));
        layer("input_layernorm", &[HIDDEN]);
        layer("self_attn.q_proj", &[q, HIDDEN]);
        layer("self_attn.k_proj", &[kv, HIDDEN]);
        layer("self_attn.v_proj", &[kv, HIDDEN]);
        layer("self_attn.o_proj", &[HIDDEN, q]);
        layer("post_attention_layernorm", &[HIDDEN]);
        layer("mlp.gate_proj", &[FFN, HIDDEN]);
        layer("mlp.up_proj", &[FFN, HIDDEN]);
        layer("mlp.down_proj", &[HIDDEN, FFN]);
    }
    all.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    if !tied {
        all.push(("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]));
    }
    all
}

/// The BF16 bytes of the tensor with this name.
fn data(name: &str, shape: &[u64]) -> Vec<u8> {
    let seed = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(b));
    bytes(seed, 2 * shape.iter().product::<u64>())
}

fn write_safetensors(path: &Path, tensors: &[(String, Vec<u64>)]) {
    let (mut header, mut body) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    for (name, shape) in tensors {
        let start = body.len();
        body.extend(data(name, shape));
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, body.len()]}),
        );
    }
    let mut text = Value::Object(header).to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &body].concat();
    fs::write(path, file).unwrap();
}

fn put(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

/// A folder with everything but weights.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": 128, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2,
    });
    put(folder.path(), "config.json", &config);
    put(folder.path(), "tokenizer.json", &json!({"model": {}}));
    folder
}

/// Three files with an index, cut where real ones are cut: anywhere.
fn write_sharded(folder: &Path, tensors: &[(String, Vec<u64>)]) {
    let mut map = BTreeMap::new();
    for (i, part) in tensors.chunks(tensors.len().div_ceil(3)).enumerate() {
        let name = format!("model-{:05}-of-00003.safetensors", i + 1);
        write_safetensors(&folder.join(&name), part);
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
    }
    put(folder, "model.safetensors.index.json", &json!({"metadata": {}, "weight_map": map}));
}

#[test]
fn a_single_file_and_a_sharded_folder_give_the_same_model() {
    let (single, sharded) = (folder(), folder());
    write_safetensors(&single.path().join("model.safetensors"), &tensors(false));
    write_sharded(sharded.path(), &tensors(false));
    let (a, b) = (open(single.path()).unwrap(), open(sharded.path()).unwrap());
    assert_eq!(a.config, b.config);
    assert_eq!(a.config.architecture, Architecture::Llama);
    assert_eq!(a.config.rope.style, RopeStyle::Halves);
    assert_eq!((a.config.bos, a.config.eos.as_slice(), a.config.tied), (Some(1), [2].as_slice(), false));
    let whole = Shard::whole(LAYERS);
    assert_eq!(a.tensors_of(&whole), b.tensors_of(&whole));
    for name in a.tensors_of(&whole) {
        let (a, b) = (a.tensor(name).unwrap(), b.tensor(name).unwrap());
        assert_eq!((a.dtype, a.rows, a.cols, a.bytes()), (DType::BF16, b.rows, b.cols, b.bytes()));
        let shape = if a.rows == 1 { vec![a.cols] } else { vec![a.rows, a.cols] };
        assert_eq!(a.bytes(), data(&a.name, &shape));
    }
    let names: Vec<_> = b.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names[..3], ["config.json", "tokenizer.json", "model.safetensors.index.json"]);
    for (start, end) in [(0, 1), (1, 2), (2, 3)] {
        let shard = Shard::pipeline(LayerRange::new(start, end), LAYERS);
        let bytes: u64 = b.byte_ranges(&shard).iter().map(|r| r.len()).sum();
        assert_eq!(bytes, b.shape().shard_weight_bytes(&shard));
        assert!(b.byte_ranges(&shard).iter().all(|r| b.files[r.file].name.ends_with(".safetensors")));
    }
}

#[test]
fn the_folder_its_config_and_its_weights_all_name_the_model() {
    let f = folder();
    write_safetensors(&f.path().join("model.safetensors"), &tensors(true));
    for name in ["", "config.json", "model.safetensors"] {
        assert!(open(&f.path().join(name)).unwrap().config.tied, "{name}");
    }
}

#[test]
fn templates_and_end_tokens_are_found_where_either_version_puts_them() {
    let f = folder();
    write_safetensors(&f.path().join("model.safetensors"), &tensors(true));
    assert_eq!(open(f.path()).unwrap().chat_template, None);
    let named = json!([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]);
    let added = json!({"6": {"content": "<|im_end|>"}, "7": {"content": "<|x|>"}});
    let config = json!({"chat_template": named, "eos_token": {"content": "<|im_end|>"}, "added_tokens_decoder": added});
    put(f.path(), "tokenizer_config.json", &config);
    put(f.path(), "generation_config.json", &json!({"eos_token_id": [4, 2]}));
    let model = open(f.path()).unwrap();
    assert_eq!(
        (model.chat_template.as_deref(), model.config.eos.as_slice()),
        (Some("D"), [2, 4, 6].as_slice())
    );
    let TokenizerSource::Json { tokenizer_json, tokenizer_config } = &model.tokenizer else {
        panic!("not JSON")
    };
    assert_eq!(
        (tokenizer_json.as_slice(), tokenizer_config.as_ref()),
        (br#"{"model":{}}"#.as_slice(), Some(&config))
    );
    fs::write(f.path().join("chat_template.jinja"), "J").unwrap();
    assert_eq!(open(f.path()).unwrap().chat_template.as_deref(), Some("J"));
}

#[test]
fn pooling_is_that_of_sentence_transformers_also_in_a_copy_without_folders() {
    let folder = folder();
    write_safetensors(&folder.path().join("model.safetensors"), &tensors(false));
    let plain = open(folder.path()).unwrap();
    assert_eq!(plain.embedding.pooling, None);
    let step = |kind: &str, path: &str| json!({"path": path, "type": format!("sentence_transformers.models.{kind}")});
    let steps = [step("Transformer", ""), step("Pooling", "1_Pooling"), step("Normalize", "2_Normalize")];
    put(folder.path(), "modules.json", &json!(steps));
    assert_eq!(open(folder.path()).unwrap().embedding.pooling, None, "its own file is not there");
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    put(
        &folder.path().join("1_Pooling"),
        "config.json",
        &json!({"pooling_mode_lasttoken": true, "pooling_mode_cls_token": false}),
    );
    let model = open(folder.path()).unwrap();
    assert_eq!(model.embedding.pooling, Some(Pooling::Last));
    assert_eq!(model.files.len(), plain.files.len() + 2);
    let names = |model: &Model| model.files.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        names(&model)[..plain.files.len()],
        names(&plain),
        "the files that were there keep their numbers"
    );
    let copy = tempfile::tempdir().unwrap();
    for file in &model.files {
        fs::copy(&file.path, copy.path().join(&file.name)).unwrap();
    }
    let copied = open(copy.path()).unwrap();
    assert_eq!((&copied.embedding, names(&copied)), (&model.embedding, names(&model)));
}

#[test]
fn a_folder_that_contradicts_itself_says_where() {
    let say = |change: &dyn Fn(&Path, &mut Tensors)| {
        let f = folder();
        let mut all = tensors(false);
        change(f.path(), &mut all);
        write_sharded(f.path(), &all);
        chain(&open(f.path()).unwrap_err())
    };
    let missing = say(&|_, all| _ = all.remove(3));
    assert!(missing.contains("`model.layers.0.self_attn.k_proj.weight` is missing"), "{missing}");
    let shape = say(&|_, all| all[2].1 = vec![32, 64]);
    assert!(shape.contains("q_proj.weight` has shape [32, 64], expected [64, 64]"), "{shape}");
    let extra = say(&|_, all| all.push(("model.layers.0.self_attn.o_proj.bias".to_owned(), vec![64])));
    assert!(extra.contains("o_proj.bias` is not part of a llama model"), "{extra}");
    let no_tokenizer = say(&|path, _| fs::remove_file(path.join("tokenizer.json")).unwrap());
    assert!(no_tokenizer.contains("there is no tokenizer.json"), "{no_tokenizer}");
    let bad_json = say(&|path, _| fs::write(path.join("config.json"), "{").unwrap());
    assert!(bad_json.contains("not the JSON it should be"), "{bad_json}");
    let endless = say(&|path, _| fs::write(path.join("config.json"), vec![b' '; 5 << 20]).unwrap());
    assert!(endless.contains("it has 5242880 bytes, more than the 4194304"), "{endless}");
    let deep = say(&|path, _| fs::write(path.join("config.json"), "[".repeat(100_000)).unwrap());
    assert!(deep.contains("recursion limit"), "{deep}");
}

#[test]
fn an_index_cannot_reach_outside_of_its_folder_or_lie() {
    let f = folder();
    write_sharded(f.path(), &tensors(false));
    let index = f.path().join("model.safetensors.index.json");
    let good = fs::read_to_string(&index).unwrap();
    for name in ["../model.safetensors", "/etc/x.safetensors", "..\\x.safetensors", "config.json"] {
        fs::write(&index, json!({"weight_map": {"a": name}}).to_string()).unwrap();
        let said = chain(&open(f.path()).unwrap_err());
        assert!(said.contains("`weight_map`"), "{name}: {said}");
    }
    fs::write(&index, good.replace("00001-of", "00002-of")).unwrap();
    assert!(chain(&open(f.path()).unwrap_err()).contains("the header does not list it"));
}

#[test]
fn rotary_tables_of_old_checkpoints_are_ignored_and_biases_are_noticed() {
    let f = folder();
    let mut all = tensors(true);
    all.push(("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), vec![8]));
    for i in 0..LAYERS {
        for (name, len) in [("q", 64), ("k", 32), ("v", 32)] {
            all.push((format!("model.layers.{i}.self_attn.{name}_proj.bias"), vec![len]));
        }
    }
    write_safetensors(&f.path().join("model.safetensors"), &all);
    let model = open(f.path()).unwrap();
    assert!(model.config.qkv_bias);
    let bias = model.tensor(TensorName::Layer(1, LayerTensor::KBias)).unwrap();
    assert_eq!((bias.rows, bias.cols), (1, 32));
}

/// A folder that opens, and beside it, in the second, the file that nobody may get at.
#[cfg(unix)]
fn folder_and_secret() -> (tempfile::TempDir, tempfile::TempDir) {
    let (f, elsewhere) = (folder(), tempfile::tempdir().unwrap());
    write_safetensors(&f.path().join("model.safetensors"), &tensors(true));
    let secret = json!({"chat_template": "secret", "weight_map": {}}).to_string();
    fs::write(elsewhere.path().join("secret"), secret).unwrap();
    (f, elsewhere)
}

#[cfg(unix)]
#[test]
fn no_link_leads_out_of_a_folder_and_the_error_names_link_and_target() {
    use std::os::unix::fs::symlink;
    let small = [
        "generation_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "tokenizer.json",
        "config.json",
    ];
    for name in small.into_iter().chain(["model.safetensors", "model.safetensors.index.json"]) {
        let (f, elsewhere) = folder_and_secret();
        let (link, secret) = (f.path().join(name), elsewhere.path().canonicalize().unwrap().join("secret"));
        // A chain: to a link inside, through a linked folder, to the file outside.
        symlink(elsewhere.path(), f.path().join("aside")).unwrap();
        symlink("aside/secret", f.path().join("first")).unwrap();
        let _ = fs::remove_file(&link);
        symlink("first", &link).unwrap();
        let opened = open(f.path());
        let said = chain(&opened.unwrap_err());
        let both = said.contains(&link.display().to_string()) && said.contains(&secret.display().to_string());
        assert!(both, "{name}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn links_inside_a_folder_and_to_it_are_followed_and_a_loop_is_an_error() {
    use std::os::unix::fs::symlink;
    let (f, elsewhere) = folder_and_secret();
    fs::rename(f.path().join("model.safetensors"), f.path().join("weights")).unwrap();
    symlink("weights", f.path().join("model.safetensors")).unwrap();
    let by_link = elsewhere.path().join("model");
    symlink(f.path(), &by_link).unwrap();
    for path in [f.path(), by_link.as_path()] {
        assert!(open(path).unwrap().config.tied);
    }
    symlink("chat_template.jinja", f.path().join("chat_template.jinja")).unwrap();
    assert!(chain(&open(f.path()).unwrap_err()).contains("chat_template.jinja"));
}

#[cfg(unix)]
#[test]
fn a_snapshot_of_a_cache_is_made_of_its_own_blobs_only() {
    use std::os::unix::fs::symlink;
    let (f, elsewhere) = folder_and_secret();
    let hub = tempfile::tempdir().unwrap();
    let repository = |name: &str| {
        let repository = hub.path().join(name);
        let snapshot = repository.join("snapshots/0123abcd");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir(repository.join("blobs")).unwrap();
        for (i, name) in ["config.json", "tokenizer.json", "model.safetensors"].into_iter().enumerate() {
            fs::copy(f.path().join(name), repository.join(format!("blobs/{i}"))).unwrap();
            symlink(format!("../../blobs/{i}"), snapshot.join(name)).unwrap();
        }
        snapshot
    };
    let (own, other) = (repository("models--a--b"), repository("models--c--d"));
    assert_eq!(open(&own).unwrap().name, "b");
    let template = own.join("chat_template.jinja");
    // Another model's blob; a blob that is itself a link out; something beside the blobs.
    symlink(elsewhere.path().join("secret"), own.join("../../blobs/9")).unwrap();
    fs::write(own.join("../../refs"), "x").unwrap();
    for target in ["../../../models--c--d/blobs/0", "../../blobs/9", "../../refs"] {
        symlink(target, &template).unwrap();
        assert!(chain(&open(&own).unwrap_err()).contains("chat_template.jinja leads to"), "{target}");
        fs::remove_file(&template).unwrap();
    }
    // A blob store that is a link to somewhere else.
    let blobs = other.join("../../blobs");
    fs::rename(&blobs, elsewhere.path().join("blobs")).unwrap();
    symlink(elsewhere.path().join("blobs"), &blobs).unwrap();
    assert!(chain(&open(&other).unwrap_err()).contains("config.json leads to"));
}
