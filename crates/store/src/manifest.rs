//! The manifest: a model's files as hashed chunks.

use std::collections::BTreeSet;

use exo_formats::Model;
use exo_types::ModelId;
use serde::{Deserialize, Serialize};

use crate::hashing::hash_chunks;
use crate::{ChunkRef, ManifestError, StoreError, names};

const VERSION: u16 = 1;
const CHUNK_BYTES: u32 = 1 << 20;
/// Small models have small chunks, so that a third of one is not mostly rounding.
const SMALL_CHUNK_BYTES: u32 = 64 << 10;
const SMALL_MODEL_BYTES: u64 = 64 << 20;
const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// Hashes of a model of 2 TiB.
const ENCODED_BYTES_MAX: usize = 64 << 20;
const FILES_MAX: usize = 2100;
const SHARED_MAX: usize = 64;
const NAME_CHARS_MAX: usize = 128;
const TOTAL_BYTES_MAX: u64 = 1 << 50;
/// Keeps a model id apart from every other use of BLAKE3.
const ROOT_CONTEXT: &str = "exo model manifest root 1";

/// How a model is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Reads and hashes every file of an opened model. `progress` is told (bytes done, bytes in all).
    pub fn of(model: &Model, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, StoreError> {
        let total: u64 = model.files.iter().map(|f| f.len).sum();
        let chunk_bytes = if total < SMALL_MODEL_BYTES { SMALL_CHUNK_BYTES } else { CHUNK_BYTES };
        Self::with_chunks(model, chunk_bytes, total, progress)
    }

    /// [`Manifest::of`] with chunks of a given size.
    pub(crate) fn with_chunks(
        model: &Model,
        chunk_bytes: u32,
        total: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StoreError> {
        let mut done = 0;
        progress(done, total);
        let mut files = Vec::with_capacity(model.files.len());
        for file in &model.files {
            let chunks = hash_chunks(&file.path, file.len, chunk_bytes, &mut |bytes| {
                done += bytes;
                progress(done, total);
            })?;
            let shared = file.shared.iter().map(|r| (r.start, r.end)).collect();
            let (name, size, head_bytes) = (file.name.clone(), file.len, file.head_bytes);
            files.push(FileEntry { name, size, head_bytes, shared, chunks });
        }
        let kind = match model.kind {
            exo_formats::ModelKind::Gguf => ModelKind::Gguf,
            exo_formats::ModelKind::HuggingFace => ModelKind::HuggingFace,
        };
        let manifest = Self { version: VERSION, name: model.name.clone(), kind, chunk_bytes, files };
        manifest.check().map_err(StoreError::Manifest)?;
        Ok(manifest)
    }

    /// The model's identity: a hash over everything that decides its bytes. Names that decide nothing are left
    /// out, so the same GGUF file is the same model whatever it is called.
    pub fn root(&self) -> ModelId {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
        let number = |hasher: &mut blake3::Hasher, n: u64| _ = hasher.update(&n.to_le_bytes());
        number(&mut hasher, self.kind as u64);
        number(&mut hasher, self.chunk_bytes.into());
        number(&mut hasher, self.files.len() as u64);
        for file in &self.files {
            // Of several files the names say which part each is.
            let is_nameless = self.kind == ModelKind::Gguf && self.files.len() == 1;
            let name = if is_nameless { "" } else { &file.name };
            number(&mut hasher, name.len() as u64);
            hasher.update(name.as_bytes());
            number(&mut hasher, file.size);
            number(&mut hasher, file.head_bytes);
            number(&mut hasher, file.shared.len() as u64);
            for (start, end) in &file.shared {
                number(&mut hasher, *start);
                number(&mut hasher, *end);
            }
            number(&mut hasher, file.chunks.len() as u64);
            file.chunks.iter().for_each(|hash| _ = hasher.update(hash));
        }
        ModelId(*hasher.finalize().as_bytes())
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// Length of one chunk; `None` if there is no such chunk.
    pub fn chunk_len(&self, chunk: ChunkRef) -> Option<u64> {
        let file = self.files.get(chunk.file as usize)?;
        let start = self.chunk_start(chunk);
        (start < file.size).then(|| (file.size - start).min(self.chunk_bytes.into()))
    }

    /// Hash of one chunk; `None` if there is no such chunk.
    pub fn chunk_hash(&self, chunk: ChunkRef) -> Option<&[u8; 32]> {
        self.files.get(chunk.file as usize)?.chunks.get(chunk.index as usize)
    }

    /// Where in its file a chunk starts.
    pub(crate) fn chunk_start(&self, chunk: ChunkRef) -> u64 {
        u64::from(chunk.index) * u64::from(self.chunk_bytes)
    }

    /// The bytes that travel between nodes.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a manifest is plain data; only memory could fail")
    }

    /// Decodes and checks what [`Manifest::to_bytes`] wrote. Bounded: a hostile manifest costs its own length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(ManifestError::TooLong { found_bytes: bytes.len(), max_bytes: ENCODED_BYTES_MAX });
        }
        let decoded = postcard::take_from_bytes::<Self>(bytes);
        let (manifest, rest) = decoded.map_err(|e| ManifestError::Decode { reason: e.to_string() })?;
        if !rest.is_empty() {
            return Err(ManifestError::Decode { reason: format!("{} bytes are left over", rest.len()) });
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Whether the manifest describes files that can be.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.version != VERSION {
            return Err(ManifestError::Version { found: self.version, known: VERSION });
        }
        let name_len = self.name.chars().count();
        ensure(
            (1..=NAME_CHARS_MAX).contains(&name_len),
            "length of the name",
            name_len,
            "1 to 128 characters",
        )?;
        ensure(
            !self.name.contains(exo_types::is_terminal_control),
            "name",
            "with control characters",
            "printable",
        )?;
        let is_chunk_size =
            self.chunk_bytes.is_power_of_two() && (4096..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes);
        ensure(is_chunk_size, "chunk_bytes", self.chunk_bytes, "a power of two from 4096 to 16777216")?;
        ensure(
            (1..=FILES_MAX).contains(&self.files.len()),
            "number of files",
            self.files.len(),
            "1 to 2100",
        )?;
        let mut seen = BTreeSet::new();
        let mut total = 0u64;
        for (i, file) in self.files.iter().enumerate() {
            file.check(i, self.chunk_bytes)?;
            // Without case: two such names are one file on many systems.
            ensure(
                seen.insert(file.name.to_lowercase()),
                &format!("name of file {i}"),
                &file.name,
                "used once",
            )?;
            total = total.saturating_add(file.size);
        }
        ensure(total <= TOTAL_BYTES_MAX, "size of all files", total, "at most 2^50 bytes")
    }
}

impl FileEntry {
    fn check(&self, index: usize, chunk_bytes: u32) -> Result<(), ManifestError> {
        let field = |what: &str| format!("{what} of file {index}");
        if let Some(reason) = names::refusal(&self.name) {
            let found: String = self.name.chars().take(80).flat_map(char::escape_default).collect();
            let expected = format!("a plain file name; {reason}");
            return Err(ManifestError::Field { field: field("name"), found, expected });
        }
        ensure(self.size <= TOTAL_BYTES_MAX, &field("size"), self.size, "at most 2^50 bytes")?;
        ensure(self.head_bytes <= self.size, &field("head_bytes"), self.head_bytes, "at most its size")?;
        ensure(
            self.shared.len() <= SHARED_MAX,
            &field("number of shared ranges"),
            self.shared.len(),
            "at most 64",
        )?;
        for (start, end) in &self.shared {
            let is_inside = start <= end && *end <= self.size;
            ensure(is_inside, &field("shared range"), format!("{start}..{end}"), "inside of the file")?;
        }
        let expected = self.size.div_ceil(chunk_bytes.into());
        let found = self.chunks.len();
        ensure(found as u64 == expected, &field("number of chunks"), found, &expected.to_string())
    }
}

fn ensure(holds: bool, field: &str, found: impl ToString, expected: &str) -> Result<(), ManifestError> {
    if holds {
        return Ok(());
    }
    Err(ManifestError::Field {
        field: field.to_owned(),
        found: found.to_string(),
        expected: expected.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Manifest {
        let file = |name: &str, size: u64| FileEntry {
            name: name.to_owned(),
            size,
            head_bytes: size.min(8),
            shared: vec![(0, size.min(4))],
            chunks: (0..size.div_ceil(4096)).map(|i| [i as u8; 32]).collect(),
        };
        Manifest {
            version: VERSION,
            name: "sample".to_owned(),
            kind: ModelKind::HuggingFace,
            chunk_bytes: 4096,
            files: vec![file("config.json", 100), file("model.safetensors", 10_000)],
        }
    }

    #[test]
    fn a_manifest_survives_its_encoding_and_keeps_its_root() {
        let manifest = good();
        let again = Manifest::from_bytes(&manifest.to_bytes()).unwrap();
        assert_eq!(again, manifest);
        assert_eq!(again.root(), manifest.root());
        assert_eq!(manifest.chunk_len(ChunkRef { file: 1, index: 2 }), Some(10_000 - 8192));
        assert_eq!(manifest.chunk_len(ChunkRef { file: 1, index: 3 }), None);
        assert_eq!(manifest.chunk_len(ChunkRef { file: 1, index: u32::MAX }), None);
        assert_eq!(manifest.chunk_len(ChunkRef { file: 2, index: 0 }), None);
    }

    #[test]
    fn everything_that_decides_the_bytes_decides_the_root() {
        let root = good().root();
        let changed = |change: fn(&mut Manifest)| {
            let mut m = good();
            change(&mut m);
            m.root()
        };
        assert_ne!(changed(|m| m.files[1].chunks[0][0] ^= 1), root);
        assert_ne!(changed(|m| m.files[1].size += 1), root);
        assert_ne!(changed(|m| m.files[0].name = "other.json".to_owned()), root);
        assert_ne!(changed(|m| m.files.swap(0, 1)), root);
        assert_ne!(changed(|m| m.files[1].head_bytes += 1), root);
        assert_ne!(changed(|m| m.kind = ModelKind::Gguf), root);
        assert_eq!(changed(|m| m.name = "renamed".to_owned()), root);
    }

    #[test]
    fn impossible_manifests_are_refused_by_field() {
        type Change = fn(&mut Manifest);
        let cases: [(Change, &str); 12] = [
            (|m| m.name = "a\u{1b}[2J".to_owned(), "name is with control characters"),
            (|m| m.name = "a\u{202e}b".to_owned(), "name is with control characters"),
            (|m| m.version = 9, "version 9"),
            (|m| m.chunk_bytes = 0, "chunk_bytes is 0"),
            (|m| m.chunk_bytes = 5000, "chunk_bytes is 5000"),
            (|m| m.files.clear(), "number of files is 0"),
            (|m| m.files[0].name = "../config.json".to_owned(), "name of file 0 is ../config.json"),
            (|m| m.files[1].name = "CONFIG.JSON".to_owned(), "used once"),
            (|m| m.files[1].size = u64::MAX, "size of file 1 is 18446744073709551615"),
            (|m| m.files[1].head_bytes = 10_001, "head_bytes of file 1"),
            (|m| m.files[1].shared = vec![(9000, 10_001)], "shared range of file 1 is 9000..10001"),
            (|m| _ = m.files[1].chunks.pop(), "number of chunks of file 1 is 2, expected 3"),
        ];
        for (change, expected) in cases {
            let mut m = good();
            change(&mut m);
            let said = Manifest::from_bytes(&m.to_bytes()).unwrap_err().to_string();
            assert!(said.contains(expected), "expected `{expected}` in `{said}`");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_decoder(at in 0usize..300, byte: u8, cut in 0usize..400) {
            let mut bytes = good().to_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut % 50));
            if let Ok(manifest) = Manifest::from_bytes(&bytes) {
                manifest.check().unwrap();
            }
        }
    }
}
