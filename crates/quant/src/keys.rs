//! The metadata of the new file: copied from a GGUF source, made from what a Hugging Face folder says.

use exo_formats::gguf::Gguf;
use exo_formats::write::GgufWriter;
use exo_formats::{Architecture, Model, ModelKind, TokenizerSource};
use exo_types::Pooling;

use crate::rope::{Scaling, is_interleaved, scaling};
use crate::{QuantError, Target, source};

/// Of the block layouts; ggml's second.
const QUANTISATION_VERSION: u32 = 2;
/// Keys of a source that do not hold for the new file: its own types, and where a split or an alignment was.
const NOT_COPIED: [&str; 6] = [
    "general.file_type",
    "general.quantization_version",
    "general.alignment",
    "split.no",
    "split.count",
    "split.tensors.count",
];

/// A header without tensors.
pub(crate) fn header(model: &Model, target: Target) -> Result<GgufWriter<'static>, QuantError> {
    let mut header = GgufWriter::new();
    match &model.tokenizer {
        TokenizerSource::Gguf(_) if model.kind == ModelKind::Gguf => copy(&mut header, model)?,
        source => {
            describe(&mut header, model);
            tokenizer(&mut header, model, source)?;
        }
    }
    header.u32("general.file_type", target.file_type());
    header.u32("general.quantization_version", QUANTISATION_VERSION);
    Ok(header)
}

fn copy(header: &mut GgufWriter<'static>, model: &Model) -> Result<(), QuantError> {
    let unreadable = |source| QuantError::Tensor { model: model.name.clone(), source };
    let file = source::gguf_file(model).map_err(unreadable)?;
    let gguf = Gguf::parse(file.bytes())
        .map_err(|e| QuantError::NotConvertible { model: model.name.clone(), reason: e.to_string() })?;
    for (key, value) in gguf.metadata.iter().filter(|(key, _)| !NOT_COPIED.contains(key)) {
        header.value(key, value, file.bytes());
    }
    Ok(())
}

fn describe(header: &mut GgufWriter<'static>, model: &Model) {
    let c = &model.config;
    // llama.cpp files Mistral under Llama.
    let architecture = if is_interleaved(c.architecture) { Architecture::Llama } else { c.architecture };
    let key = |name: &str| format!("{architecture}.{name}");
    header.text("general.architecture", architecture.key()).text("general.type", "model");
    header.text("general.name", &model.name);
    header.u32(&key("vocab_size"), c.vocab).u32(&key("context_length"), c.context_tokens_max);
    header.u32(&key("embedding_length"), c.hidden).u32(&key("block_count"), c.layers);
    header.u32(&key("feed_forward_length"), c.ffn);
    header.u32(&key("attention.head_count"), c.heads).u32(&key("attention.head_count_kv"), c.kv_heads);
    header.u32(&key("attention.key_length"), c.head_dim).u32(&key("attention.value_length"), c.head_dim);
    header.f32(&key("attention.layer_norm_rms_epsilon"), c.rms_eps);
    header.u32(&key("rope.dimension_count"), c.head_dim).f32(&key("rope.freq_base"), c.rope.theta as f32);
    if let Some(window) = c.sliding_window {
        header.u32(&key("attention.sliding_window"), window);
    }
    if let Scaling::Linear(factor) = scaling(c) {
        header.text(&key("rope.scaling.type"), "linear").f32(&key("rope.scaling.factor"), factor);
    }
    if let Some(pooling) = model.embedding.pooling {
        header.u32(&key("pooling_type"), pooling_type(pooling));
    }
    if let Some(template) = &model.chat_template {
        header.text("tokenizer.chat_template", template);
    }
}

/// As llama.cpp numbers them.
fn pooling_type(pooling: Pooling) -> u32 {
    match pooling {
        Pooling::Mean => 1,
        Pooling::First => 2,
        Pooling::Last => 3,
    }
}

fn tokenizer(
    header: &mut GgufWriter<'static>,
    model: &Model,
    source: &TokenizerSource,
) -> Result<(), QuantError> {
    let failed = |source| QuantError::Tokenizer { model: model.name.clone(), source };
    let mut t = exo_tokenizer::to_gguf(source, model.config.vocab).map_err(failed)?;
    t.bos = t.bos.or(model.config.bos);
    t.eos = t.eos.or(model.config.eos.first().copied());
    header.text("tokenizer.ggml.model", &t.model).texts("tokenizer.ggml.tokens", t.tokens.iter());
    if let Some(pre) = &t.pre {
        header.text("tokenizer.ggml.pre", pre);
    }
    if let Some(scores) = &t.scores {
        header.f32s("tokenizer.ggml.scores", scores);
    }
    if let Some(types) = &t.token_types {
        header.i32s("tokenizer.ggml.token_type", types);
    }
    if !t.merges.is_empty() {
        header.texts("tokenizer.ggml.merges", t.merges.iter());
    }
    let ids = [("bos", t.bos), ("eos", t.eos), ("eot", t.eot), ("unknown", t.unk), ("padding", t.pad)];
    for (name, id) in ids.into_iter().filter_map(|(name, id)| Some((name, id?))) {
        header.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    let flags = [
        ("add_bos_token", t.add_bos),
        ("add_eos_token", t.add_eos),
        ("add_space_prefix", t.add_space_prefix),
    ];
    for (name, flag) in flags.into_iter().filter_map(|(name, flag)| Some((name, flag?))) {
        header.flag(&format!("tokenizer.ggml.{name}"), flag);
    }
    Ok(())
}
