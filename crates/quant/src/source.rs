//! What is read: the tensors of an opened model under the names and in the order that GGUF files have.

use std::ops::Range;
use std::sync::Arc;

use exo_formats::gguf::Gguf;
use exo_formats::{LayerTensor, Model, ModelConfig, ModelKind, RopeStyle, TensorError, TensorName};
use exo_types::{ByteSource, DType};

/// One tensor of the source.
pub(crate) struct Tensor {
    /// Its name in a GGUF file.
    pub(crate) name: String,
    /// What it is, if a forward pass knows it.
    pub(crate) role: Option<TensorName>,
    pub(crate) dtype: DType,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    /// Dimensions as GGUF has them, the contiguous one first.
    pub(crate) dims: Vec<u64>,
    pub(crate) bytes: Arc<dyn ByteSource>,
    /// Which of `bytes`.
    pub(crate) range: Range<usize>,
    /// Rows of a head that are stored in another order than GGUF's; see [`Tensor::row`].
    pub(crate) reordered_head: Option<u64>,
}

impl Tensor {
    /// Whether it is a matrix that may be quantised.
    pub(crate) fn is_matrix(&self) -> bool {
        self.role.is_some() && self.rows > 1
    }

    pub(crate) fn elements(&self) -> u64 {
        self.rows * self.cols
    }

    /// Gives the memory of rows that were read back to the system. Rows of a reordered head lie within its
    /// own.
    pub(crate) fn release(&self, rows: Range<u64>) {
        let row_bytes = self.range.len() / self.rows as usize;
        let [start, end] = [rows.start, rows.end].map(|row| self.range.start + row as usize * row_bytes);
        self.bytes.release(start..end);
    }

    /// The stored bytes of the row that is number `index` in a GGUF file.
    ///
    /// Hugging Face's Llama rotates element i of a head with i + D/2, GGUF's with its neighbour: there the
    /// rows of Q and K that make up a head come in the order 0, D/2, 1, D/2 + 1, …
    pub(crate) fn row(&self, index: u64) -> &[u8] {
        let stored = match self.reordered_head {
            None => index,
            Some(head_dim) => {
                let (head, within) = (index / head_dim, index % head_dim);
                head * head_dim + within / 2 + (within % 2) * (head_dim / 2)
            }
        };
        let row_bytes = self.range.len() / self.rows as usize;
        let start = self.range.start + stored as usize * row_bytes;
        self.bytes.bytes().get(start..start + row_bytes).unwrap_or_default()
    }
}

/// Every tensor of `model`, in the order it is written.
pub(crate) fn tensors(model: &Model) -> Result<Vec<Tensor>, TensorError> {
    match model.kind {
        ModelKind::Gguf => of_gguf(model),
        ModelKind::HuggingFace => of_folder(model),
    }
}

/// The bytes of the one file a GGUF model has.
pub(crate) fn gguf_file(model: &Model) -> Result<Arc<dyn ByteSource>, TensorError> {
    Ok(model.tensor(TensorName::Embedding)?.source)
}

fn of_gguf(model: &Model) -> Result<Vec<Tensor>, TensorError> {
    let file = gguf_file(model)?;
    // It was parsed when it was opened; one that changed since is reported as lost after the run.
    let tensors = Gguf::parse(file.bytes()).map(|gguf| gguf.tensors).unwrap_or_default();
    let tensor = |t: exo_formats::gguf::GgufTensor| Tensor {
        role: TensorName::from_gguf(&t.name),
        name: t.name,
        dtype: t.dtype,
        rows: t.dims[1..].iter().product(),
        cols: t.dims[0],
        dims: t.dims,
        bytes: file.clone(),
        range: t.range.start as usize..t.range.end as usize,
        reordered_head: None,
    };
    Ok(tensors.into_iter().map(tensor).collect())
}

fn of_folder(model: &Model) -> Result<Vec<Tensor>, TensorError> {
    let config = &model.config;
    let mut names = vec![TensorName::Embedding];
    names.extend((0..config.layers).flat_map(|i| LayerTensor::ALL.map(|t| TensorName::Layer(i, t))));
    names.push(TensorName::OutputNorm);
    if !config.tied {
        names.push(TensorName::Head);
    }
    let mut tensors = Vec::new();
    for name in names {
        let Some(view) = model.optional_tensor(name)? else { continue };
        tensors.push(Tensor {
            name: name.to_gguf(),
            role: Some(name),
            dtype: view.dtype,
            rows: view.rows,
            cols: view.cols,
            dims: if view.rows == 1 { vec![view.cols] } else { vec![view.cols, view.rows] },
            bytes: view.source,
            range: view.range,
            reordered_head: reordered_head(config, name),
        });
    }
    let factors = crate::rope::rope_divisors(config);
    tensors.extend(factors.map(rope_tensor));
    Ok(tensors)
}

/// How GGUF carries a scaling that differs from frequency to frequency.
fn rope_tensor(divisors: Vec<f32>) -> Tensor {
    let bytes: Vec<u8> = divisors.iter().flat_map(|d| d.to_le_bytes()).collect();
    Tensor {
        name: "rope_freqs.weight".to_owned(),
        role: None,
        dtype: DType::F32,
        rows: 1,
        cols: divisors.len() as u64,
        dims: vec![divisors.len() as u64],
        range: 0..bytes.len(),
        bytes: Arc::new(bytes),
        reordered_head: None,
    }
}

fn reordered_head(config: &ModelConfig, name: TensorName) -> Option<u64> {
    let is_rotated = matches!(name, TensorName::Layer(_, LayerTensor::Q | LayerTensor::K));
    let differs = config.rope.style == RopeStyle::Halves && crate::rope::is_interleaved(config.architecture);
    (is_rotated && differs).then_some(config.head_dim.into())
}
