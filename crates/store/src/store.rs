//! The models of one data folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use exo_formats::Model;
use exo_types::ModelId;

use crate::{ChunkError, ChunkRef, FindError, Manifest, ModelRecord, PartialModel, StoreError, StoreWarning};

/// The models of one data folder. Share it behind an `Arc`; every method takes `&self` and blocks.
#[derive(Debug)]
pub struct Store {
    data_dir: PathBuf,
}

impl Store {
    /// Opens the store in `data_dir`, creating it if need be. Warnings are for the user and stop nothing.
    pub fn open(data_dir: &Path) -> Result<(Self, Vec<StoreWarning>), StoreError> {
        Ok((Self { data_dir: data_dir.to_owned() }, Vec::new()))
    }

    /// Adds the user's own file or folder: opens it, hashes it (unless the same path, size and time were hashed
    /// before) and remembers it. `progress` is told (bytes done, bytes in all).
    pub fn add_path(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ModelRecord, StoreError> {
        let _ = (&self.data_dir, path, progress);
        Err(StoreError::UnknownModel { id: ModelId([0; 32]) })
    }

    /// Adds a GGUF file the binary carries: writes it under the data folder if it is not there yet.
    pub fn add_builtin(&self, file_name: &str, bytes: &[u8]) -> Result<ModelRecord, StoreError> {
        let _ = (file_name, bytes);
        Err(StoreError::UnknownModel { id: ModelId([0; 32]) })
    }

    /// Every model known, by name.
    pub fn list(&self) -> Result<Vec<ModelRecord>, StoreError> {
        Ok(Vec::new())
    }

    /// One model by id.
    pub fn record(&self, id: ModelId) -> Result<ModelRecord, StoreError> {
        Err(StoreError::UnknownModel { id })
    }

    /// The one model that `text` means: an id, the first characters of one (at least 6), a name, or a path.
    pub fn find(&self, text: &str) -> Result<ModelRecord, FindError> {
        Err(FindError::Nothing { text: text.to_owned(), known: String::new() })
    }

    /// Forgets a model. Deletes fetched bytes, never the user's own file. Returns the bytes freed.
    pub fn remove(&self, id: ModelId) -> Result<u64, StoreError> {
        Err(StoreError::UnknownModel { id })
    }

    /// Opens a model for reading, whole or partial.
    pub fn open_model(&self, id: ModelId) -> Result<Model, StoreError> {
        Err(StoreError::UnknownModel { id })
    }

    /// The model's manifest.
    pub fn manifest(&self, id: ModelId) -> Result<Arc<Manifest>, StoreError> {
        Err(StoreError::UnknownModel { id })
    }

    /// The partial copy of `manifest`'s model: the one on disk, or a new empty one. Everyone shares one.
    pub fn prepare(&self, manifest: &Manifest) -> Result<Arc<PartialModel>, StoreError> {
        Err(StoreError::UnknownModel { id: manifest.root() })
    }

    /// Whether [`Store::read_chunk`] would give this chunk.
    pub fn has_chunk(&self, id: ModelId, chunk: ChunkRef) -> bool {
        let _ = (id, chunk);
        false
    }

    /// A chunk to send to a peer: from the local model, or from what was fetched.
    pub fn read_chunk(&self, id: ModelId, chunk: ChunkRef) -> Result<Vec<u8>, ChunkError> {
        Err(ChunkError::NotHeld { model: id, chunk })
    }

    /// Bytes of the model on this disk: all of a local one, the chunks held of a fetched one.
    pub fn held_bytes(&self, id: ModelId) -> Result<u64, StoreError> {
        Err(StoreError::UnknownModel { id })
    }
}
