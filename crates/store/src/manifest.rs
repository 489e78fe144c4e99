//! The manifest: a model's files as hashed chunks.

use exo_types::ModelId;
use serde::{Deserialize, Serialize};

use crate::{ChunkRef, ManifestError};

/// How a model is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ModelKind {
    /// One GGUF file.
    Gguf,
    /// A Hugging Face folder.
    HuggingFace,
}

/// A model's files as hashed chunks. Enough to fetch any part of the model from anyone and to trust it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this encoding.
    pub version: u16,
    /// The model's name, for people. Not part of its identity.
    pub name: String,
    /// How it is stored.
    pub kind: ModelKind,
    /// Size of a chunk; the last one of a file may be shorter.
    pub chunk_bytes: u32,
    /// The files, in the order of `exo_formats::Model::files`.
    pub files: Vec<FileEntry>,
}

/// One file of a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// A single path component.
    pub name: String,
    /// Its length.
    pub size: u64,
    /// The prefix every node needs: a header, or all of a small file.
    pub head_bytes: u64,
    /// Further ranges `start, end` every node needs.
    pub shared: Vec<(u64, u64)>,
    /// BLAKE3 of each chunk.
    pub chunks: Vec<[u8; 32]>,
}

impl Manifest {
    /// The model's identity: a hash over everything that decides its bytes.
    pub fn root(&self) -> ModelId {
        ModelId([0; 32])
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// Length of one chunk; `None` if there is no such chunk.
    pub fn chunk_len(&self, chunk: ChunkRef) -> Option<u64> {
        let file = self.files.get(chunk.file as usize)?;
        let start = u64::from(chunk.index) * u64::from(self.chunk_bytes);
        (start < file.size).then(|| (file.size - start).min(u64::from(self.chunk_bytes)))
    }

    /// The bytes that travel between nodes.
    pub fn to_bytes(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Decodes and checks what [`Manifest::to_bytes`] wrote. Bounded: a hostile manifest costs its own length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        Err(ManifestError::Decode { reason: bytes.len().to_string() })
    }
}
