//! Whole files: the demo model in every type, and the golden models from folder to GGUF.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use exo_formats::gguf::Gguf;
use exo_formats::{Model, OpenError, RopeStyle};
use exo_quant::{Conversion, Options, QuantError, Report, Target};
use exo_types::DType;

const OPTIONS: Options = Options { threads: 2, replace: false };

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo() -> Model {
    exo_formats::open(&repository("demo-model/exo-demo-Q8_0.gguf")).unwrap()
}

fn run(model: Model, target: Target, path: &Path, options: Options) -> Result<Report, QuantError> {
    Conversion::new(model, target, true)?.run(path, options, &mut |_| {}, &AtomicBool::new(false))
}

/// Type and bytes of every tensor.
fn tensors(path: &Path) -> BTreeMap<String, (DType, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    let one = |t: exo_formats::gguf::GgufTensor| {
        (t.name, (t.dtype, bytes[t.range.start as usize..t.range.end as usize].to_vec()))
    };
    gguf.tensors.into_iter().map(one).collect()
}

#[test]
fn every_target_opens_again_with_the_types_it_should_have() {
    let folder = tempfile::tempdir().unwrap();
    for target in Target::ALL {
        let path = folder.path().join(format!("{target}.gguf"));
        let report = run(demo(), target, &path, OPTIONS).unwrap();
        assert_eq!(report.file_bytes, path.metadata().unwrap().len(), "{target}");
        let opened = exo_formats::open(&path).unwrap();
        assert_eq!((&opened.config, &opened.tokenizer), (&demo().config, &demo().tokenizer), "{target}");
        assert_eq!(opened.chat_template, demo().chat_template);
        let bytes = std::fs::read(&path).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        assert_eq!(gguf.tensor("blk.3.attn_q.weight").unwrap().dtype, target.dtype());
        assert_eq!(gguf.tensor("blk.3.attn_norm.weight").unwrap().dtype, DType::F32);
        let head = gguf.tensor("token_embd.weight").unwrap().dtype;
        let small = target.dtype().is_quantised() && target != Target::Q8_0;
        assert_eq!(
            head,
            if small { DType::Q6_K } else { target.dtype() },
            "{target}: a tied table is the head"
        );
        assert_eq!(report.elements(), 4_985_088);
        assert_eq!(gguf.metadata.u32("general.quantization_version"), Ok(Some(2)));
    }
}

#[test]
fn smaller_types_cost_more_and_the_report_says_how_much() {
    let folder = tempfile::tempdir().unwrap();
    let cost = |target: Target| {
        let report = run(demo(), target, &folder.path().join(format!("{target}.gguf")), OPTIONS).unwrap();
        (report.bits_per_weight(), report.types[&target.dtype()].relative_rmse())
    };
    let costs: Vec<_> = [Target::F16, Target::Q6_K, Target::Q5_K_M, Target::Q4_K_M].map(cost).to_vec();
    for pair in costs.windows(2) {
        assert!(pair[1].0 < pair[0].0 && pair[1].1 > 1.5 * pair[0].1, "{costs:?}");
    }
    // The demo is Q8_0: its own blocks are copied.
    let (bits, loss) = cost(Target::Q8_0);
    assert!((8.5..8.6).contains(&bits) && loss == 0.0, "{bits} {loss}");
}

#[test]
fn the_file_does_not_depend_on_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let file = |threads: usize| {
        let path = folder.path().join(threads.to_string());
        run(demo(), Target::Q4_K_M, &path, Options { threads, ..OPTIONS }).unwrap();
        std::fs::read(path).unwrap()
    };
    assert_eq!(file(1), file(3));
}

/// A copy of a golden folder with a tokenizer of two tokens: theirs is not looked at by the tests it is made
/// for.
fn folder_of(golden: &str, to: &Path) -> Result<Model, OpenError> {
    for entry in std::fs::read_dir(repository("crates/golden/fixtures").join(golden)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json" || e == "safetensors") {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    let split = |regex: &str| serde_json::json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    let tokenizer = serde_json::json!({
        "added_tokens": [{"id": 1, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(qwen2), bytes]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []},
    });
    std::fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    exo_formats::open(to)
}

/// The golden folders and GGUF files hold the same weights, the latter as llama.cpp's converter arranges
/// them.
#[test]
fn a_folder_becomes_the_gguf_file_that_llama_cpp_would_make_of_it() {
    for (golden, target) in [
        ("llama-f32", Target::F32),
        ("llama-bf16-tied", Target::BF16),
        ("mistral-f16-window", Target::F16),
        ("qwen2-bf16", Target::BF16),
        ("qwen3-f16", Target::F16),
        ("qwen3-bf16-untied", Target::BF16),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = folder_of(golden, folder.path()).unwrap();
        let path = folder.path().join("new.gguf");
        run(model, target, &path, OPTIONS).unwrap();
        let (expected, made) =
            (repository("crates/golden/fixtures").join(golden).join("model.gguf"), tensors(&path));
        for (name, (dtype, bytes)) in tensors(&expected) {
            let (made_dtype, made_bytes) = &made[&name];
            assert_eq!(*made_dtype, dtype, "{golden} {name}");
            if name == "rope_freqs.weight" {
                let floats =
                    |bytes: &[u8]| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                let (a, b): (Vec<f32>, Vec<f32>) = (floats(&bytes), floats(made_bytes));
                assert!(a.iter().zip(&b).all(|(a, b)| (a / b - 1.0).abs() < 1e-6), "{golden}: {a:?} {b:?}");
            } else {
                assert!(*made_bytes == bytes, "{golden} {name}");
            }
        }
        let (expected, opened) =
            (exo_formats::open(&expected).unwrap().config, exo_formats::open(&path).unwrap().config);
        assert_eq!(
            made.len(),
            tensors(&repository("crates/golden/fixtures").join(golden).join("model.gguf")).len()
        );
        assert_eq!(opened.rope.style, expected.rope.style, "{golden}");
        assert_eq!(opened.sliding_window, expected.sliding_window, "{golden}");
        assert_eq!(
            (opened.tied, opened.head_dim, opened.vocab),
            (expected.tied, expected.head_dim, expected.vocab)
        );
        let same = |(a, b): (&f32, &f32)| (a / b - 1.0).abs() < 1e-6;
        assert!(opened.rope.frequencies.iter().zip(&expected.rope.frequencies).all(same), "{golden}");
        let interleaved = golden.starts_with("llama") || golden.starts_with("mistral");
        assert_eq!(opened.rope.style == RopeStyle::Interleaved, interleaved);
    }
}

#[test]
fn rows_that_fill_no_block_stay_wider() {
    let folder = tempfile::tempdir().unwrap();
    // Rows of 36 and 40 elements fill no block at all.
    let model = folder_of("llama-f32", folder.path()).unwrap();
    let path = folder.path().join("new.gguf");
    run(model, Target::Q4_K_M, &path, OPTIONS).unwrap();
    assert!(tensors(&path).values().all(|(dtype, _)| matches!(dtype, DType::F16 | DType::F32)));
    // Rows of 32, 64 and 96 fill blocks of 32.
    let model = exo_formats::open(&repository("crates/golden/fixtures/qwen3-f16/model.gguf")).unwrap();
    let path = folder.path().join("other.gguf");
    run(model, Target::Q4_K_M, &path, OPTIONS).unwrap();
    let made = tensors(&path);
    assert_eq!(made["blk.0.attn_q.weight"].0, DType::Q5_0);
    assert_eq!(made["token_embd.weight"].0, DType::Q8_0);
}

#[test]
fn a_quantised_source_is_taken_only_when_asked() {
    let error = Conversion::new(demo(), Target::Q4_0, false).err().unwrap().to_string();
    assert!(error.contains("is Q8_0 already; rounding it again to Q4_0 loses twice"), "{error}");
}

#[test]
fn what_is_there_stays_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "precious").unwrap();
    let error = run(demo(), Target::Q8_0, &path, OPTIONS).unwrap_err();
    assert!(matches!(error, QuantError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let source = folder.path().join("source.gguf");
    std::fs::copy(repository("demo-model/exo-demo-Q8_0.gguf"), &source).unwrap();
    let replace = Options { replace: true, ..OPTIONS };
    let error = run(exo_formats::open(&source).unwrap(), Target::F16, &source, replace).unwrap_err();
    assert!(matches!(error, QuantError::IsSource { .. }), "{error}");
    let error = run(demo(), Target::Q8_0, folder.path(), replace).unwrap_err();
    assert!(matches!(error, QuantError::NotAFile { .. }), "{error}");
    run(demo(), Target::Q8_0, &path, replace).unwrap();
    assert!(exo_formats::open(&path).is_ok());
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "nothing but the two files");
}

#[test]
fn a_stopped_or_failed_run_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let job = Conversion::new(demo(), Target::Q4_K_M, true).unwrap();
    let stop = AtomicBool::new(false);
    let mut calls = 0;
    let mut progress = |p: exo_quant::Progress<'_>| {
        assert!(p.elements_done <= p.elements_total);
        calls += 1;
        stop.store(calls == 5, std::sync::atomic::Ordering::Relaxed);
    };
    let error = job.run(&path, OPTIONS, &mut progress, &stop).unwrap_err();
    assert!(matches!(error, QuantError::Cancelled), "{error}");
    assert_eq!((calls, std::fs::read_dir(folder.path()).unwrap().count()), (5, 0));
    let nowhere = folder.path().join("no-such-folder/model.gguf");
    let error = run(demo(), Target::Q8_0, &nowhere, OPTIONS).unwrap_err().to_string();
    assert!(error.contains("cannot create a file in"), "{error}");
}

/// The damaged copy of a file: the first element of `tensor` is `value`.
fn damaged(value: f32, tensor: &str, to: &Path) -> Model {
    run(demo(), Target::F32, to, Options { replace: true, ..OPTIONS }).unwrap();
    let mut bytes = std::fs::read(to).unwrap();
    let at = Gguf::parse(&bytes).unwrap().tensor(tensor).unwrap().range.start as usize;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(to, bytes).unwrap();
    exo_formats::open(to).unwrap()
}

#[test]
fn elements_that_cannot_be_stored_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (source, path) = (folder.path().join("source.gguf"), folder.path().join("new.gguf"));
    let name = "blk.2.ffn_up.weight";
    let error = |value: f32, target: Target| {
        run(damaged(value, name, &source), target, &path, OPTIONS).unwrap_err().to_string()
    };
    let text = error(f32::NAN, Target::Q8_0);
    assert!(text.contains(name) && text.contains("NaN in row 0") && text.contains("damaged"), "{text}");
    let text = error(1e9, Target::F16);
    assert!(text.contains(name) && text.contains("more than F16 can hold"), "{text}");
    assert!(error(1e9, Target::Q4_0).contains("more than Q4_0 can hold"));
    run(damaged(1e9, name, &source), Target::BF16, &path, OPTIONS).unwrap();
}

#[test]
fn the_new_file_is_named_after_model_and_type() {
    let job = Conversion::new(demo(), Target::Q4_K_M, true).unwrap();
    assert_eq!(job.file_name(), "exo-demo-Q4_K_M.gguf");
}
