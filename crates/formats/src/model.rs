//! An opened model: its description, its files and its table of tensors.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exo_types::{ByteSource, DType, KvDType, LayerShape, ModelShape, Shard, SourceLost, TensorView};

use crate::{
    EmbeddingInfo, GgufTokenizer, LayerTensor, ModelConfig, TensorError, TensorName, TokenizerSource,
};

/// Longest name of a model, in characters.
const NAME_CHARS_MAX: usize = 128;

/// How a model is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ModelKind {
    /// One GGUF file.
    Gguf,
    /// A folder as Hugging Face's libraries write it.
    HuggingFace,
}

/// One file of a model. Everything a copy needs is listed, small JSON files included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its name within the model: a single path component.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// The prefix every node needs before it can open the model: a header, or the whole of a small file.
    pub head_bytes: u64,
    /// Further ranges every node needs, for example RoPE factors stored as a tensor. Usually empty.
    pub shared: Vec<Range<u64>>,
}

/// A range of bytes in one of a model's files.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileRange {
    /// Which file: an index into [`Model::files`].
    pub file: usize,
    /// Start of the range.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
}

impl FileRange {
    /// Bytes in the range.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where one tensor is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TensorLocation {
    pub(crate) checkpoint_name: String,
    pub(crate) file: usize,
    pub(crate) dtype: DType,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    /// Bytes of the file; inside it, checked when the header was read.
    pub(crate) range: Range<u64>,
}

impl TensorLocation {
    /// In the file, and in a processor's memory.
    fn bytes(&self, packed: &Packed<'_>) -> (u64, u64) {
        (self.range.end - self.range.start, packed(self.dtype, self.rows, self.cols))
    }
}

/// Bytes of a tensor of a type, with so many rows and columns, in a processor's memory.
pub type Packed<'a> = dyn Fn(DType, u64, u64) -> u64 + 'a;

/// An opened model. Holds its files mapped; tensor bytes are read when looked at.
pub struct Model {
    /// A name, to be displayed and for the API: the file's stem or the folder's name.
    pub name: String,
    /// How it is stored.
    pub kind: ModelKind,
    /// What it is.
    pub config: ModelConfig,
    /// What its tokenizer is built from.
    pub tokenizer: TokenizerSource,
    /// The Jinja template that turns messages into a prompt.
    pub chat_template: Option<String>,
    /// What is said of vectors of texts.
    pub embedding: EmbeddingInfo,
    /// Its files, in the order every copy lists them.
    pub files: Vec<ModelFile>,
    /// One per file; `None` for files without tensors.
    pub(crate) sources: Vec<Option<Arc<dyn ByteSource>>>,
    pub(crate) tensors: BTreeMap<TensorName, TensorLocation>,
}

impl Model {
    /// A model that no file holds, of tensors in memory: for measurements. It has no tokenizer and no files.
    ///
    /// Panics if a tensor's range is not as long as its type and shape say, or not within its source.
    pub fn in_memory(name: &str, config: ModelConfig, tensors: Vec<(TensorName, TensorView)>) -> Self {
        let (mut sources, mut table) = (Vec::new(), BTreeMap::new());
        for (name, view) in tensors {
            let stored = view.row_bytes() as u64 * view.rows;
            assert_eq!(view.range.len() as u64, stored, "bytes of {view:?}");
            assert!(view.range.end <= view.source.bytes().len(), "{view:?} ends beyond its source");
            let range = view.range.start as u64..view.range.end as u64;
            let TensorView { name: checkpoint_name, dtype, rows, cols, .. } = view;
            table.insert(
                name,
                TensorLocation { checkpoint_name, file: sources.len(), dtype, rows, cols, range },
            );
            sources.push(Some(view.source));
        }
        Self {
            name: name.to_owned(),
            kind: ModelKind::Gguf,
            config,
            tokenizer: TokenizerSource::Gguf(GgufTokenizer::default()),
            chat_template: None,
            embedding: EmbeddingInfo::default(),
            files: Vec::new(),
            sources,
            tensors: table,
        }
    }

    /// Hands over what its tokenizer is built from, and holds it no longer: megabytes that whoever computes
    /// does not need, and nobody once the tokenizer is built.
    pub fn take_tokenizer(&mut self) -> TokenizerSource {
        std::mem::replace(&mut self.tokenizer, TokenizerSource::Gguf(GgufTokenizer::default()))
    }

    /// What opens it again: its file, or its folder. Empty for a model that was never a file.
    pub fn path(&self) -> PathBuf {
        let first = self.files.first().map(|file| file.path.as_path());
        let path = match self.kind {
            ModelKind::Gguf => first,
            ModelKind::HuggingFace => first.and_then(Path::parent),
        };
        path.map(Path::to_owned).unwrap_or_default()
    }

    /// The model in numbers, for planning, with keys and values stored as usual.
    pub fn shape(&self) -> ModelShape {
        self.shape_with_kv(KvDType::default())
    }

    /// The model in numbers, with keys and values stored as `kv` and weights that are packed by nobody.
    pub fn shape_with_kv(&self, kv: KvDType) -> ModelShape {
        let as_stored = |dtype: DType, rows: u64, cols: u64| {
            dtype.bytes_of(cols).map_or(u64::MAX, |row_bytes| row_bytes.saturating_mul(rows))
        };
        self.shape_packed(kv, &as_stored)
    }

    /// The model in numbers, with keys and values stored as `kv`. `packed` tells the bytes of a tensor of
    /// this type with so many rows and columns in a processor's memory.
    pub fn shape_packed(&self, kv: KvDType, packed: &Packed<'_>) -> ModelShape {
        let c = &self.config;
        let head = if c.tied { TensorName::Embedding } else { TensorName::Head };
        let [embedding, norm, head] = [TensorName::Embedding, TensorName::OutputNorm, head]
            .map(|name| self.tensors.get(&name).map_or((0, 0), |stored| stored.bytes(packed)));
        ModelShape {
            layers: (0..c.layers).map(|i| self.layer_shape(i, kv, packed)).collect(),
            embedding_bytes: embedding.0,
            head_bytes: norm.0.saturating_add(head.0),
            embedding_packed_bytes: embedding.1,
            head_packed_bytes: norm.1.saturating_add(head.1),
            tied: c.tied,
            hidden: c.hidden,
            attention: c.heads * c.head_dim,
            vocab: c.vocab,
            context_tokens_max: c.context_tokens_max,
        }
    }

    /// The tensor, as a view into the mapped file. The head of a tied model is its embedding table.
    pub fn tensor(&self, name: TensorName) -> Result<TensorView, TensorError> {
        self.optional_tensor(name)?.ok_or(TensorError::Absent { name })
    }

    /// The tensor, or `None` if this model has none of that name.
    pub fn optional_tensor(&self, name: TensorName) -> Result<Option<TensorView>, TensorError> {
        Ok(self.tensors.get(&self.resolve(name)).and_then(|stored| self.view(stored)))
    }

    /// Exactly the tensors `shard` needs, in the order of use. A tied last stage needs the embedding table.
    /// Layers beyond the model name nothing.
    pub fn tensors_of(&self, shard: &Shard) -> Vec<TensorName> {
        let mut names = Vec::new();
        if shard.embedding {
            names.push(TensorName::Embedding);
        }
        let layers = shard.layers.start..shard.layers.end.min(self.config.layers);
        names.extend(layers.flat_map(|i| LayerTensor::ALL.map(|t| TensorName::Layer(i, t))));
        if shard.head {
            names.push(TensorName::OutputNorm);
            names.push(self.resolve(TensorName::Head));
        }
        let mut seen_embedding = false;
        names.retain(|name| {
            let again = *name == TensorName::Embedding && std::mem::replace(&mut seen_embedding, true);
            !again && self.tensors.contains_key(name)
        });
        names
    }

    /// The tensor bytes `shard` needs: sorted, with touching ranges merged.
    pub fn byte_ranges(&self, shard: &Shard) -> Vec<FileRange> {
        let stored = self.tensors_of(shard).into_iter().filter_map(|name| self.tensors.get(&name));
        merged(stored.map(|s| FileRange { file: s.file, start: s.range.start, end: s.range.end }).collect())
    }

    /// Whether every mapped file still is what it was when it was opened.
    pub fn check(&self) -> Result<(), SourceLost> {
        self.sources.iter().flatten().try_for_each(|source| source.check())
    }

    fn resolve(&self, name: TensorName) -> TensorName {
        if self.config.tied && name == TensorName::Head { TensorName::Embedding } else { name }
    }

    fn view(&self, stored: &TensorLocation) -> Option<TensorView> {
        let source = self.sources.get(stored.file)?.clone()?;
        let (start, end) =
            (usize::try_from(stored.range.start).ok()?, usize::try_from(stored.range.end).ok()?);
        Some(TensorView {
            name: stored.checkpoint_name.clone(),
            dtype: stored.dtype,
            rows: stored.rows,
            cols: stored.cols,
            source,
            range: start..end,
        })
    }

    fn layer_shape(&self, layer: u32, kv: KvDType, packed: &Packed<'_>) -> LayerShape {
        let stored =
            LayerTensor::ALL.into_iter().filter_map(|t| self.tensors.get(&TensorName::Layer(layer, t)));
        let (mut weight_bytes, mut packed_bytes, mut flops_per_token) = (0u64, 0u64, 0u64);
        for s in stored {
            let (stored, packed) = s.bytes(packed);
            weight_bytes = weight_bytes.saturating_add(stored);
            packed_bytes = packed_bytes.saturating_add(packed);
            if s.rows > 1 {
                flops_per_token = flops_per_token.saturating_add(2 * s.rows * s.cols);
            }
        }
        let c = &self.config;
        let row_bytes = kv.row_bytes(c.head_dim as usize) as u64;
        LayerShape {
            weight_bytes,
            packed_bytes,
            flops_per_token,
            kv_bytes_per_token: 2 * u64::from(c.kv_heads) * row_bytes,
        }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = &self.config;
        write!(f, "Model({} {} layers, {} tensors)", self.name, c.layers, self.tensors.len())
    }
}

/// `ranges` sorted, with those that touch or overlap joined.
fn merged(mut ranges: Vec<FileRange>) -> Vec<FileRange> {
    ranges.sort_unstable();
    let mut out: Vec<FileRange> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if last.file == range.file && range.start <= last.end => {
                last.end = last.end.max(range.end)
            }
            _ => out.push(range),
        }
    }
    out
}

/// A name fit to be shown and to be typed, not endless, not empty.
pub(crate) fn model_name(name: &str) -> String {
    let kept = exo_types::clean_name(name, NAME_CHARS_MAX);
    if kept.is_empty() { "model".to_owned() } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_nothing_a_terminal_obeys() {
        assert_eq!(model_name("a\n\u{202E}\x1bb\u{200B}"), "ab");
        assert_eq!(model_name("\n"), "model");
    }

    #[test]
    fn touching_ranges_of_one_file_merge_and_others_do_not() {
        let range = |file, start, end| FileRange { file, start, end };
        let given = vec![range(1, 0, 4), range(0, 8, 12), range(0, 0, 8), range(0, 13, 14), range(0, 2, 5)];
        assert_eq!(merged(given), [range(0, 0, 12), range(0, 13, 14), range(1, 0, 4)]);
    }
}
