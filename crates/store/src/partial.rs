//! A copy that holds only some chunks.

use std::path::Path;

use exo_formats::{FileRange, Model};
use exo_types::ModelId;

use crate::{ChunkError, ChunkRef, Manifest, StoreError};

/// Sparse files and a map of the chunks they hold. Shared by everyone who fetches or serves the model.
#[derive(Debug)]
pub struct PartialModel {
    manifest: Manifest,
}

impl PartialModel {
    /// The model.
    pub fn id(&self) -> ModelId {
        self.manifest.root()
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The file or folder that `exo_formats::open` takes once nothing of the head is missing.
    pub fn path(&self) -> &Path {
        Path::new("")
    }

    /// Chunks that must come before the model opens.
    pub fn missing_head(&self) -> Vec<ChunkRef> {
        Vec::new()
    }

    /// Chunks that `ranges` touch and that are not held, ascending.
    pub fn missing(&self, ranges: &[FileRange]) -> Vec<ChunkRef> {
        let _ = ranges;
        Vec::new()
    }

    /// Whether the chunk is held.
    pub fn has_chunk(&self, chunk: ChunkRef) -> bool {
        let _ = chunk;
        false
    }

    /// Verifies the bytes and writes them. Writing a chunk that is held does nothing.
    pub fn write_chunk(&self, chunk: ChunkRef, bytes: &[u8]) -> Result<(), ChunkError> {
        let _ = bytes;
        Err(ChunkError::OutOfRange { model: self.id(), chunk })
    }

    /// The bytes of a chunk that is held.
    pub fn read_chunk(&self, chunk: ChunkRef) -> Result<Vec<u8>, ChunkError> {
        Err(ChunkError::NotHeld { model: self.id(), chunk })
    }

    /// Bytes of the chunks held.
    pub fn held_bytes(&self) -> u64 {
        0
    }

    /// Whether every chunk is held.
    pub fn is_complete(&self) -> bool {
        false
    }

    /// Makes what was written durable. Also happens every few chunks and on drop.
    pub fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Opens the model. Tensors whose chunks are missing read as zeros.
    pub fn open_model(&self) -> Result<Model, StoreError> {
        Err(StoreError::UnknownModel { id: self.id() })
    }
}
