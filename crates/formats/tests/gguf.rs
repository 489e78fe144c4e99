//! GGUF files: what a good one gives, and what each kind of bad one says.

#![allow(clippy::unwrap_used)] // helpers are outside of what `allow-unwrap-in-tests` sees

mod common;

use common::{bytes, chain, sample, tensor_bytes};
use exo_formats::write::GgufWriter;
use exo_formats::{
    Architecture, LayerTensor, Model, RopeStyle, TensorName, TokenizerSource, open, open_gguf_bytes,
};
use exo_types::{DType, KvDType, LayerRange, Shard};

fn opened(file: Vec<u8>) -> Model {
    open_gguf_bytes("sample.gguf", file).unwrap_or_else(|e| panic!("{}", chain(&e)))
}

fn error(file: Vec<u8>) -> String {
    chain(&open_gguf_bytes("sample.gguf", file).expect_err("the file is bad"))
}

#[test]
fn a_file_says_what_the_model_is() {
    let model = opened(sample(DType::Q8_0, false, |_| {}));
    let c = &model.config;
    assert_eq!(model.name, "sample");
    assert_eq!((c.architecture, c.layers, c.hidden, c.ffn), (Architecture::Llama, 3, 64, 96));
    assert_eq!((c.heads, c.kv_heads, c.head_dim, c.vocab), (4, 2, 16, 80));
    assert_eq!((c.rope.style, c.rope.frequencies.len()), (RopeStyle::Interleaved, 8));
    assert_eq!((c.tied, c.qkv_bias, c.qk_norm, c.sliding_window), (false, false, false, None));
    assert_eq!((c.bos, c.eos.as_slice()), (Some(78), [79].as_slice()));
    assert_eq!(model.chat_template.as_deref(), Some("{{ bos_token }}{{ messages[0].content }}"));
    let TokenizerSource::Gguf(t) = &model.tokenizer else { panic!("a GGUF file has a GGUF tokenizer") };
    assert_eq!((t.model.as_str(), t.pre.as_deref(), t.tokens.len()), ("gpt2", Some("llama-bpe"), 80));
    assert_eq!((t.merges.len(), t.add_bos, t.add_space_prefix), (2, Some(true), None));
}

#[test]
fn every_type_gives_its_own_bytes_back() {
    for dtype in DType::ALL.into_iter().filter(|d| d.block_elements() <= 32) {
        let model = opened(sample(dtype, false, |_| {}));
        for (i, (name, dtype, dims)) in common::tensors(dtype, false).into_iter().enumerate() {
            let view = model
                .tensors_of(&Shard::whole(3))
                .into_iter()
                .map(|n| model.tensor(n).unwrap())
                .find(|v| v.name == name)
                .unwrap();
            assert_eq!(view.dtype, dtype);
            assert_eq!((view.cols, view.rows), (dims[0], dims.get(1).copied().unwrap_or(1)), "{name}");
            assert_eq!(view.bytes(), bytes(i as u64 + 1, tensor_bytes(dtype, &dims)), "{name}");
        }
    }
}

#[test]
fn a_shard_needs_its_own_tensors_and_no_other() {
    let model = opened(sample(DType::F16, true, |_| {}));
    let whole = model.tensors_of(&Shard::whole(3));
    assert_eq!(whole.len(), 1 + 3 * 9 + 1, "a tied table is named once");
    let middle = model.tensors_of(&Shard::pipeline(LayerRange::new(1, 2), 3));
    assert!(middle.iter().all(|n| matches!(n, TensorName::Layer(1, _))) && middle.len() == 9);
    let last = model.tensors_of(&Shard::pipeline(LayerRange::new(2, 3), 3));
    assert!(last.ends_with(&[TensorName::OutputNorm, TensorName::Embedding]), "the tied head is the table");
    let beyond = Shard { embedding: false, head: false, ..Shard::pipeline(LayerRange::new(2, u32::MAX), 3) };
    assert_eq!(model.tensors_of(&beyond).len(), 9);
}

#[test]
fn byte_ranges_are_exactly_the_tensors_of_the_shard() {
    for tied in [true, false] {
        let model = opened(sample(DType::Q8_0, tied, |_| {}));
        let shape = model.shape();
        for (start, end) in [(0, 3), (0, 1), (1, 3), (2, 3)] {
            let shard = Shard::pipeline(LayerRange::new(start, end), 3);
            let ranges = model.byte_ranges(&shard);
            assert_eq!(
                ranges.iter().map(|r| r.len()).sum::<u64>(),
                shape.shard_weight_bytes(&shard),
                "{shard}"
            );
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "{ranges:?}");
            assert!(ranges[0].start >= model.files[0].head_bytes);
        }
        assert_eq!(shape.tied, tied);
        assert_eq!(shape.layers[0].kv_bytes_per_token, 2 * 2 * 16 * 2, "keys and values in f16");
        let bytes = |kv| model.shape_with_kv(kv).layers[0].kv_bytes_per_token;
        assert_eq!([KvDType::F32, KvDType::Q8].map(bytes), [2 * 2 * 16 * 4, 2 * 2 * (16 + 2)]);
        let matrices = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 96;
        assert_eq!(shape.layers[0].flops_per_token, 2 * matrices);
    }
}

#[test]
fn a_tied_model_gives_its_table_as_the_head() {
    let model = opened(sample(DType::F16, true, |_| {}));
    assert!(model.config.tied);
    assert_eq!(model.tensor(TensorName::Head).unwrap().name, "token_embd.weight");
    let bias = TensorName::Layer(0, LayerTensor::QBias);
    assert!(model.optional_tensor(bias).unwrap().is_none());
    assert_eq!(model.tensor(bias).unwrap_err().to_string(), "the model has no layer 0 QBias");
}

#[test]
fn rope_factors_divide_the_frequencies_and_every_node_needs_them() {
    let factors: Vec<u8> = (1..=8u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let plain = opened(sample(DType::F16, true, |_| {}));
    let scaled = opened(sample(DType::F16, true, |w| {
        w.tensor("rope_freqs.weight", DType::F32, &[8], factors.clone());
    }));
    for (i, (a, b)) in plain.config.rope.frequencies.iter().zip(&scaled.config.rope.frequencies).enumerate() {
        assert!((a / b - (i + 1) as f32).abs() < 1e-5);
    }
    let shared = &scaled.files[0].shared;
    assert_eq!(shared.iter().map(|r| r.end - r.start).collect::<Vec<_>>(), [32]);
    let zeros = sample(DType::F16, true, |w| {
        w.tensor("rope_freqs.weight", DType::F32, &[8], vec![0; 32]);
    });
    assert!(error(zeros).contains("element 0, expected a positive number"));
}

#[test]
fn linear_scaling_divides_and_yarn_is_refused() {
    let linear = opened(sample(DType::F16, true, |w| {
        w.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0);
    }));
    assert_eq!(linear.config.rope.frequencies[0], 0.25);
    let yarn = sample(DType::F16, true, |w| {
        w.text("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0);
    });
    assert!(error(yarn).contains("`llama.rope.scaling.type` is `yarn`"));
}

#[test]
fn qwen_files_rotate_halves_and_need_their_extra_tensors() {
    let mut w = GgufWriter::new();
    common::metadata(&mut w, "qwen2");
    for (name, dtype, dims) in common::tensors(DType::F16, true) {
        let len = tensor_bytes(dtype, &dims);
        w.tensor(&name, dtype, &dims, vec![0; len as usize]);
    }
    assert!(error(w.to_bytes()).contains("`blk.0.attn_q.bias` is missing"));
    for i in 0..3 {
        for (name, len) in [("q", 64u64), ("k", 32), ("v", 32)] {
            w.tensor(&format!("blk.{i}.attn_{name}.bias"), DType::F32, &[len], vec![0; 4 * len as usize]);
        }
    }
    let model = opened(w.to_bytes());
    assert_eq!((model.config.rope.style, model.config.qkv_bias), (RopeStyle::Halves, true));
    assert_eq!(model.tensors_of(&Shard::pipeline(LayerRange::new(1, 2), 3)).len(), 12);
}

type Change = dyn Fn(&mut GgufWriter<'_>);

/// One metadata key or tensor more than the good file has.
#[test]
fn contradictions_are_named() {
    let with = |change: &Change| error(sample(DType::F16, false, change));
    fn f16(n: u64) -> Vec<u8> {
        vec![0; 2 * n as usize]
    }
    let cases: [(&Change, &str); 9] = [
        (&|w| _ = w.u32("llama.block_count", 3), "metadata `llama.block_count` at byte"),
        (&|w| _ = w.u32("llama.expert_count", 8), "mixtures of experts"),
        (&|w| _ = w.u32("split.count", 2), "NAME-00001-of-00002.gguf"),
        (&|w| _ = w.u32("general.alignment", 24), "power of two"),
        (
            &|w| _ = w.u32("llama.attention.key_length", 32),
            "`blk.0.attn_q.weight` has shape [64, 64], expected [128, 64]",
        ),
        (&|w| _ = w.u32("llama.rope.dimension_count", 8), "`llama.rope.dimension_count` is 8"),
        (&|w| _ = w.u32("llama.vocab_size", 81), "`llama.vocab_size` is 81"),
        (
            &|w| _ = w.tensor("blk.3.attn_q.weight", DType::F16, &[64, 64], f16(64 * 64)),
            "not part of a llama model of 3 layers",
        ),
        (
            &|w| _ = w.tensor("blk.0.attn_q_norm.weight", DType::F16, &[16], f16(16)),
            "`blk.0.attn_q_norm.weight` is not part",
        ),
    ];
    for (change, expected) in cases {
        let said = with(change);
        assert!(said.contains(expected), "expected `{expected}` in `{said}`");
    }
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let mut w = GgufWriter::new();
    common::metadata(&mut w, "mamba");
    assert!(error(w.to_bytes()).contains("`mamba`; supported are llama, qwen2, qwen3, mistral"));
}

#[test]
fn an_unsupported_type_is_named() {
    let mut file = sample(DType::F16, false, |_| {});
    // The type of `token_embd.weight` follows its name, its dimension count and two dimensions.
    let name = b"token_embd.weight";
    let at = file.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    file[at] = 23;
    let said = error(file);
    assert!(said.contains(&format!("type of tensor `token_embd.weight` at byte {at}: is IQ4_XS")), "{said}");
}

/// Each hostile number is refused before memory is asked for: the file says 2^60, the process has less.
#[test]
fn counts_larger_than_the_file_are_refused() {
    let good = sample(DType::F16, false, |_| {});
    let mut tensors = good.clone();
    tensors[8..16].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert!(error(tensors).contains("number of tensors at byte 8: is 1152921504606846976"));
    let mut entries = good.clone();
    entries[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert!(error(entries).contains("number of metadata entries at byte 16"));
    let mut key = good.clone();
    key[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(error(key).contains("key of metadata entry 0 at byte 24: has 18446744073709551615 bytes"));
    let mut array = good;
    let name = b"tokenizer.ggml.token_type";
    let at = array.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 8;
    array[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(error(array).contains(&format!("length of metadata `tokenizer.ggml.token_type` at byte {at}")));
}

/// A good file with bytes replaced from `skip` bytes after the end of `name` on.
fn patched(name: &str, skip: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = sample(DType::F16, false, |_| {});
    let at = file.windows(name.len()).position(|w| w == name.as_bytes()).unwrap() + name.len() + skip;
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

#[test]
fn impossible_lines_of_the_tensor_table_are_refused() {
    // After a matrix's name: number of dimensions (4 bytes), two dimensions (8 each), type (4), offset (8).
    let (count, first, second, offset) = (0, 4, 12, 24);
    let name = "blk.1.attn_q.weight";
    let cases: [(usize, u64, &str); 8] = [
        (first, 0, "dimension of tensor `blk.1.attn_q.weight` at byte"),
        (second, 1 << 60, "rows must fill blocks"),
        (second, 1 << 40, "truncated or damaged"),
        (offset, 0, "offset of tensor `blk.1.attn_q.weight`"),
        (offset, 33, "is 33, not a multiple of 32"),
        (offset, u64::MAX - 31, "truncated or damaged"),
        (offset, 1 << 40, "truncated or damaged"),
        (count, 7 | 64 << 32, "number of dimensions of tensor `blk.1.attn_q.weight`"),
    ];
    for (skip, number, expected) in cases {
        let said = error(patched(name, skip, &number.to_le_bytes()));
        assert!(said.contains(expected), "{number} at {skip}: expected `{expected}` in `{said}`");
    }
    let overlap = error(patched(name, offset, &0u64.to_le_bytes()));
    assert!(overlap.contains("lies within tensor"), "{overlap}");
    let twice =
        error(sample(DType::F16, false, |w| _ = w.tensor(name, DType::F16, &[64, 64], vec![0; 64 * 64 * 2])));
    assert!(
        twice.contains("name of tensor `blk.1.attn_q.weight` at byte") && twice.contains("appears twice"),
        "{twice}"
    );
}

#[test]
fn impossible_values_of_metadata_are_refused() {
    let nested = error(patched("tokenizer.ggml.tokens", 4, &9u32.to_le_bytes()));
    assert!(nested.contains("`tokenizer.ggml.tokens`") && nested.contains("array of arrays"), "{nested}");
    let unknown = error(patched("llama.block_count", 0, &13u32.to_le_bytes()));
    assert!(unknown.contains("type of metadata `llama.block_count` at byte"), "{unknown}");
    let float = error(patched("llama.block_count", 0, &6u32.to_le_bytes()));
    assert!(float.contains("is a f32, expected an integer"), "{float}");
    let layers = error(patched("llama.block_count", 4, &u32::MAX.to_le_bytes()));
    assert!(layers.contains("`layers` is 4294967295"), "{layers}");
    let heads = error(patched("llama.attention.head_count", 4, &0u32.to_le_bytes()));
    assert!(heads.contains("`heads` is 0"), "{heads}");
    let eps = error(patched("llama.attention.layer_norm_rms_epsilon", 4, &f32::NAN.to_le_bytes()));
    assert!(eps.contains("RMSNorm epsilon"), "{eps}");
    let theta = error(patched("llama.rope.freq_base", 4, &f32::INFINITY.to_le_bytes()));
    assert!(theta.contains("rope_theta"), "{theta}");
    let utf8 = error(patched("tokenizer.ggml.model", 12, b"\xff"));
    assert!(utf8.contains("not UTF-8"), "{utf8}");
}

#[test]
fn wrong_magic_version_and_truncation_are_told_apart() {
    let good = sample(DType::F16, false, |_| {});
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        error(bad)
    };
    assert!(with(0, b'g').contains("magic at byte 0"));
    assert!(with(4, 1).contains("version at byte 4: is 1, supported are 2 and 3"));
    assert!(error(good[..good.len() - 1000].to_vec()).contains("truncated or damaged"));
    assert!(error(Vec::new()).contains("magic at byte 0"));
    let mut version_2 = good.clone();
    version_2[4] = 2;
    opened(version_2);
}

#[test]
fn a_sparse_copy_opens_as_long_as_its_header_is_there() {
    use std::io::Write;
    let whole = sample(DType::Q8_0, false, |_| {});
    let head = opened(whole.clone()).files[0].head_bytes as usize;
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(&whole[..head]).unwrap();
    file.as_file().set_len(whole.len() as u64).unwrap();
    let model = open(file.path()).unwrap();
    let table = model.tensor(TensorName::Embedding).unwrap();
    assert!(table.bytes().iter().all(|b| *b == 0) && !table.bytes().is_empty());
    model.check().unwrap();
}

#[test]
fn a_model_truncated_while_open_reads_zeros_and_says_so() {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::fs::write(file.path(), sample(DType::F32, false, |_| {})).unwrap();
    let model = open(file.path()).unwrap();
    file.as_file().set_len(4096).unwrap();
    let head = model.tensor(TensorName::Head).unwrap();
    assert!(head.bytes().iter().all(|b| *b == 0));
    assert!(model.check().is_err() && head.source.check().is_err());
}

#[test]
fn what_is_no_model_says_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let say = |p: &std::path::Path| chain(&open(p).unwrap_err());
    assert!(say(folder.path()).contains("there is no config.json in it"));
    std::fs::write(folder.path().join("a.gguf"), b"GGUX").unwrap();
    assert!(say(&folder.path().join("a.gguf")).contains("does not start with the letters GGUF"));
    assert!(say(folder.path()).contains("perhaps you mean the file a.gguf"));
    assert!(say(&folder.path().join("none")).contains("cannot find"));
}
