//! `exo quantize` as a user types it: on the built-in model, on a Hugging Face folder of it, on what cannot
//! be.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use crate::support::{
    Killed, Node, Zeros, demo_gguf, exo, finish, good, known, stderr, stdout, wait_for, zeros,
};
use exo_formats::gguf::Gguf;
use exo_formats::{LayerTensor, TensorName, TokenizerSource};
use serde_json::{Value, json};

const RUN_MAX: Duration = Duration::from_secs(120);

fn in_folder(folder: &Path, args: &[&str]) -> Output {
    let data = folder.join("data");
    finish(exo(args).current_dir(folder).arg("--data-dir").arg(data), RUN_MAX)
}

fn done(folder: &Path, args: &[&str]) -> String {
    let output = in_folder(folder, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// Names of what lies in a folder, hidden files too.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn perplexity(folder: &Path, model: &str) -> f64 {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/heldout.txt");
    let args = [
        "perplexity",
        model,
        "--text",
        text.to_str().unwrap(),
        "--special",
        "--context",
        "128",
        "--chunks",
        "12",
        "--json",
    ];
    let value: Value = serde_json::from_str(&done(folder, &args)).unwrap();
    value["perplexity"].as_f64().unwrap()
}

#[test]
fn a_chain_of_types_is_written_summed_up_and_hardly_worse() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = done(folder, &["quantize", "demo", "f16", "--requantize", "-o", "demo-F16.gguf"]);
    assert!(text.contains("demo-F16.gguf · ") && text.contains("16.0"), "{text}");
    let text = done(folder, &["quantize", "demo-F16.gguf", "q4_k_m", "--threads", "1"]);
    for part in ["Q4_K", "Q6_K", "F32", "RMSE", "demo-Q4_K_M.gguf · ", "bits per weight"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = done(folder, &["quantize", "demo-F16.gguf", "q6_k", "--json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    let file = folder.join("demo-Q6_K.gguf");
    assert_eq!(report["bytes"], file.metadata().unwrap().len());
    assert!(
        report["types"]
            .as_array()
            .unwrap()
            .iter()
            .any(|t| t["type"] == "Q6_K" && t["relative_rmse"].as_f64() > Some(0.0))
    );
    let [exact, six, four] =
        ["demo-F16.gguf", "demo-Q6_K.gguf", "demo-Q4_K_M.gguf"].map(|m| perplexity(folder, m));
    assert!((six / exact - 1.0).abs() < 0.01 && (four / exact - 1.0).abs() < 0.1, "{exact} {six} {four}");
}

#[test]
fn what_cannot_be_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::copy(demo_gguf(), folder.join("there.gguf")).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/fixtures/llama-f32");
    let (golden, before) = (golden.to_str().unwrap(), names(folder));
    for (args, parts) in [
        (&["demo", "q4_0"][..], ["rounding it again to Q4_0 loses twice", "--requantize"]),
        (&["./none.gguf", "q4_0"], ["cannot find ./none.gguf", "check"]),
        (&["demo", "q8_0", "--requantize", "-o", "there.gguf"], ["there.gguf is already there", "--force"]),
        (
            &["there.gguf", "f16", "--requantize", "--force", "-o", "there.gguf"],
            ["is the source itself", "-o"],
        ),
        (
            &["demo", "q8_0", "--requantize", "-o", "no/such.gguf"],
            ["cannot create a file in no", "check the path"],
        ),
        (&[golden, "q8_0"], ["the tokenizer of llama-f32 cannot be written", "tokenizer"]),
        (&["demo", "q8_0", "--requantize", "--threads", "0"], ["threads", ""]),
    ] {
        let output = in_folder(folder, &[&["quantize"], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stdout(&output).is_empty());
        if args[0] != "./none.gguf" {
            parts
                .iter()
                .for_each(|part| assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output)));
        } else {
            assert!(stderr(&output).contains(parts[0]), "{}", stderr(&output));
        }
        assert_eq!(names(folder), before, "{args:?}");
    }
    let output = in_folder(folder, &["quantize", "demo", "q3_k"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Q4_K_M, Q4_0"), "{}", stderr(&output));
}

/// A model of one huge layer of zeros: a file that hardly takes space, and takes its time to quantise.
fn slow_source(path: &Path) {
    zeros(path, &Zeros { context: 64, hidden: 2048, ffn: 1 << 19, ..Zeros::SMALL });
}

/// Files in `folder` that are being written, or were.
#[cfg(unix)]
fn partials(folder: &Path) -> Vec<String> {
    names(folder).into_iter().filter(|name| name.ends_with(".partial")).collect()
}

/// A run on [`slow_source`] that has begun its file, by a megabyte.
#[cfg(unix)]
fn slow_run(folder: &Path) -> Killed {
    slow_source(&folder.join("slow.gguf"));
    let mut command = exo(&["quantize", "slow.gguf", "q4_k_m", "--threads", "1"]);
    let child = command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut child = Killed(child);
    wait_for("the new file's beginning", RUN_MAX, || {
        assert_eq!(child.0.try_wait().unwrap(), None, "it should take longer");
        let path = folder.join(partials(folder).first()?);
        (path.metadata().ok()?.len() > 1 << 20).then_some(())
    });
    child
}

#[test]
#[cfg(unix)]
fn an_interrupt_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut child = slow_run(folder);
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = wait_for("the end", RUN_MAX, || child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
    assert_eq!(names(folder), ["slow.gguf"]);
}

#[test]
#[cfg(unix)]
fn what_a_killed_run_left_goes_with_the_next_and_a_running_one_keeps_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut child = slow_run(folder);
    let partials = || partials(folder);
    let other = |name: &str| done(folder, &["quantize", "demo", "q8_0", "--requantize", "-o", name]);
    other("first.gguf");
    assert_eq!(child.0.try_wait().unwrap(), None, "it should take longer");
    assert_eq!(partials().len(), 1, "it is being written");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    assert_eq!(partials().len(), 1, "nobody could take it away");
    other("second.gguf");
    assert_eq!(partials(), [""; 0]);
}

#[test]
fn a_hugging_face_folder_becomes_the_same_file_and_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["quantize", "demo", "f16", "--requantize", "-o", "gguf.gguf"]);
    let hf = folder.join("hf");
    write_folder(&folder.join("gguf.gguf"), &hf);
    let steps = json!([{"path": "", "type": "m.Transformer"}, {"path": "1_Pooling", "type": "m.Pooling"}]);
    std::fs::write(hf.join("modules.json"), steps.to_string()).unwrap();
    std::fs::create_dir(hf.join("1_Pooling")).unwrap();
    std::fs::write(hf.join("1_Pooling/config.json"), r#"{"pooling_mode_lasttoken": true}"#).unwrap();
    done(folder, &["quantize", "hf", "f16", "-o", "new.gguf"]);
    let [old, new] = ["gguf.gguf", "new.gguf"].map(|name| std::fs::read(folder.join(name)).unwrap());
    let [old_gguf, new_gguf] = [&old, &new].map(|bytes| Gguf::parse(bytes).unwrap());
    for t in &old_gguf.tensors {
        let made = new_gguf.tensor(&t.name).unwrap();
        let bytes = |file: &[u8], range: &std::ops::Range<u64>| {
            file[range.start as usize..range.end as usize].to_vec()
        };
        assert_eq!((made.dtype, &made.dims), (t.dtype, &t.dims), "{}", t.name);
        assert!(bytes(&new, &made.range) == bytes(&old, &t.range), "{}", t.name);
    }
    let [old, new] = ["gguf.gguf", "new.gguf"].map(|name| exo_formats::open(&folder.join(name)).unwrap());
    let (TokenizerSource::Gguf(old_keys), TokenizerSource::Gguf(new_keys)) = (&old.tokenizer, &new.tokenizer)
    else {
        panic!("both are GGUF files")
    };
    assert_eq!(
        (&new_keys.tokens, &new_keys.merges, &new_keys.pre),
        (&old_keys.tokens, &old_keys.merges, &old_keys.pre)
    );
    assert_eq!((new_keys.bos, new_keys.eos, new_keys.add_bos), (old_keys.bos, old_keys.eos, Some(false)));
    assert_eq!((&new.chat_template, &new.config.rope), (&old.chat_template, &old.config.rope));
    assert_eq!(new.embedding.pooling, Some(exo_types::Pooling::Last));
    let (prompt, answer) = known().swap_remove(0);
    let said = |model: &str| done(folder, &["run", model, &prompt, "--temperature", "0"]).trim().to_owned();
    let (from_folder, from_file) = (said("hf"), said("new.gguf"));
    assert!(from_file.contains(&answer), "{from_file}");
    assert_eq!(from_folder, from_file);
}

#[test]
fn a_token_that_the_model_has_no_row_for_is_refused_before_it_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, hf) = (folder.path(), folder.path().join("hf"));
    done(folder, &["quantize", "demo", "f16", "--requantize", "-o", "gguf.gguf"]);
    write_folder(&folder.join("gguf.gguf"), &hf);
    let path = hf.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap().len();
    let mut beyond = tokenizer["added_tokens"][0].clone();
    (beyond["id"], beyond["content"]) = (vocab.into(), "<|beyond|>".into());
    tokenizer["added_tokens"].as_array_mut().unwrap().push(beyond);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let node = Node::alone();
    good(node.exo(&["models", "add", hf.to_str().unwrap()]));
    let models = node.get("/v1/models")["data"].clone();
    let model = models.as_array().unwrap().iter().find(|model| model["id"] != "demo").unwrap()["id"].clone();
    let ask = |prompt: &str| {
        node.post(
            "/v1/completions",
            &json!({"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}),
        )
    };
    let refused = ask("one <|beyond|> two");
    assert!(
        refused.body.contains(&format!("token {vocab} is not below the vocabulary's {vocab}")),
        "{}",
        refused.body
    );
    assert_eq!(ask("one two").json()["usage"]["completion_tokens"], 4, "the model goes on");
}

/// The model of a GGUF file as a Hugging Face folder.
fn write_folder(gguf: &Path, folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let model = exo_formats::open(gguf).unwrap();
    let c = &model.config;
    let config = json!({
        "model_type": "llama", "hidden_size": c.hidden, "intermediate_size": c.ffn, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim,
        "vocab_size": c.vocab, "max_position_embeddings": c.context_tokens_max, "rms_norm_eps": c.rms_eps,
        "rope_theta": c.rope.theta, "tie_word_embeddings": c.tied, "bos_token_id": c.bos, "eos_token_id": c.eos,
    });
    let TokenizerSource::Gguf(keys) = &model.tokenizer else { panic!("a GGUF file") };
    let text_of = |id: Option<u32>| id.map(|id| keys.tokens[id as usize].to_owned());
    let tokenizer_config = json!({"bos_token": text_of(keys.bos), "eos_token": text_of(keys.eos), "chat_template": model.chat_template});
    let put = |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    put("config.json", &config);
    put("tokenizer_config.json", &tokenizer_config);
    put("tokenizer.json", &tokenizer_json(keys));
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for i in 0..c.layers {
        for (tensor, name) in LAYER_NAMES {
            let heads = if tensor == LayerTensor::Q { c.heads } else { c.kv_heads };
            let rotated = matches!(tensor, LayerTensor::Q | LayerTensor::K).then_some(heads as usize);
            put_tensor(
                &model,
                TensorName::Layer(i, tensor),
                &format!("model.layers.{i}.{name}"),
                rotated,
                &mut header,
                &mut data,
            );
        }
    }
    put_tensor(&model, TensorName::Embedding, "model.embed_tokens.weight", None, &mut header, &mut data);
    put_tensor(&model, TensorName::OutputNorm, "model.norm.weight", None, &mut header, &mut data);
    let mut text = Value::Object(header).to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let length = (text.len() as u64).to_le_bytes();
    std::fs::write(folder.join("model.safetensors"), [&length[..], text.as_bytes(), &data].concat()).unwrap();
}

const LAYER_NAMES: [(LayerTensor, &str); 9] = [
    (LayerTensor::AttnNorm, "input_layernorm.weight"),
    (LayerTensor::Q, "self_attn.q_proj.weight"),
    (LayerTensor::K, "self_attn.k_proj.weight"),
    (LayerTensor::V, "self_attn.v_proj.weight"),
    (LayerTensor::O, "self_attn.o_proj.weight"),
    (LayerTensor::FfnNorm, "post_attention_layernorm.weight"),
    (LayerTensor::Gate, "mlp.gate_proj.weight"),
    (LayerTensor::Up, "mlp.up_proj.weight"),
    (LayerTensor::Down, "mlp.down_proj.weight"),
];

/// Appends a tensor. Rows of rotated heads go from neighbours (GGUF) to halves (Hugging Face).
fn put_tensor(
    model: &exo_formats::Model,
    name: TensorName,
    text: &str,
    rotated_heads: Option<usize>,
    header: &mut serde_json::Map<String, Value>,
    data: &mut Vec<u8>,
) {
    let view = model.tensor(name).unwrap();
    let start = data.len();
    let rows: Vec<&[u8]> = view.bytes().chunks(view.row_bytes()).collect();
    for index in 0..rows.len() {
        let from = rotated_heads.map_or(index, |heads| {
            let size = rows.len() / heads;
            let (head, within) = (index / size, index % size);
            head * size + (within % (size / 2)) * 2 + within / (size / 2)
        });
        data.extend(rows[from]);
    }
    let shape = if view.rows == 1 { vec![view.cols] } else { vec![view.rows, view.cols] };
    let entry = json!({"dtype": view.dtype.to_string(), "shape": shape, "data_offsets": [start, data.len()]});
    header.insert(text.to_owned(), entry);
}

fn tokenizer_json(keys: &exo_formats::GgufTokenizer) -> Value {
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let vocab: serde_json::Map<String, Value> =
        keys.tokens.iter().enumerate().map(|(id, text)| (text.to_owned(), id.into())).collect();
    let types = keys.token_types.as_ref().unwrap();
    let special = keys.tokens.iter().enumerate().filter(|(id, _)| types[*id] == 3);
    let added = special.map(|(id, text)| {
        json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false})
    });
    json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": llama3}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": keys.merges.iter().collect::<Vec<_>>(), "ignore_merges": true},
    })
}
