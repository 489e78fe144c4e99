//! The manifest: a model's files as hashed chunks.

mod hub_source;

use std::collections::BTreeSet;
use std::path::Path;

use exo_formats::Model;
use exo_types::ModelId;
use serde::{Deserialize, Serialize};

pub use hub_source::{HubFile, HubSource};

use crate::hashing::hash_chunks;
use crate::{ChunkRef, ManifestError, StoreError};

const VERSION: u16 = 1;
/// Of the manifest of a model that was known before it was fetched: [`HubSource`] follows it.
const HUB_VERSION: u16 = 2;
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
/// Chunks of a model that was known before it was fetched: 16 TiB of the usual size.
const HUB_CHUNKS_MAX: u64 = 1 << 24;
/// Keeps a model id apart from every other use of BLAKE3.
const ROOT_CONTEXT: &str = "exo model manifest root 1";
const HUB_CONTEXT: &str = "exo model of a hub 1";

/// BLAKE3 of each so many bytes of a file, where somebody has read it and it has not changed since.
pub type KnownHashes<'a> = &'a dyn Fn(&Path, u32) -> Option<Vec<[u8; 32]>>;

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
    /// The model's name, to be displayed. Not part of its identity.
    pub name: String,
    /// How it is stored.
    pub kind: ModelKind,
    /// Size of a chunk; the last one of a file may be shorter.
    pub chunk_bytes: u32,
    /// The files, in the order of `exo_formats::Model::files`.
    pub files: Vec<FileEntry>,
    /// Where its chunks are to be had that no node has, if it was known before it was fetched.
    #[serde(skip)]
    pub hub: Option<HubSource>,
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
    /// BLAKE3 of each chunk; of a model that was known before it was fetched, of those at the head.
    pub chunks: Vec<[u8; 32]>,
}

impl Manifest {
    /// Reads and hashes every file of an opened model. `progress` is told (bytes done, bytes in all).
    pub fn of(model: &Model, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, StoreError> {
        Self::of_known(model, &|_, _| None, progress)
    }

    /// [`Manifest::of`], but for files whose hashes are known.
    pub fn of_known(
        model: &Model,
        known: KnownHashes<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StoreError> {
        let total: u64 = model.files.iter().map(|f| f.len).sum();
        Self::with_chunks(model, Self::usual_chunk_bytes(total), (total, known), progress)
    }

    /// Size of the chunks of a model of so many bytes.
    pub fn usual_chunk_bytes(total: u64) -> u32 {
        if total < SMALL_MODEL_BYTES { SMALL_CHUNK_BYTES } else { CHUNK_BYTES }
    }

    /// The manifest of a model of which only the heads were read: `heads` has the hashes of the chunks there,
    /// for each file.
    pub fn of_hub(model: &Model, hub: HubSource, heads: Vec<Vec<[u8; 32]>>) -> Result<Self, ManifestError> {
        let total: u64 = model.files.iter().fold(0, |sum, f| sum.saturating_add(f.len));
        let entry = |(file, chunks): (&exo_formats::ModelFile, _)| FileEntry {
            name: file.name.clone(),
            size: file.len,
            head_bytes: file.head_bytes,
            shared: file.shared.iter().map(|r| (r.start, r.end)).collect(),
            chunks,
        };
        let manifest = Self {
            version: HUB_VERSION,
            name: model.name.clone(),
            kind: kind_of(model),
            chunk_bytes: Self::usual_chunk_bytes(total),
            files: model.files.iter().zip(heads).map(entry).collect(),
            hub: Some(hub),
        };
        manifest.check()?;
        Ok(manifest)
    }

    /// [`Manifest::of`] with chunks of a given size.
    pub(crate) fn with_chunks(
        model: &Model,
        chunk_bytes: u32,
        (total, known): (u64, KnownHashes<'_>),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StoreError> {
        let mut done = 0;
        progress(done, total);
        let mut files = Vec::with_capacity(model.files.len());
        for file in &model.files {
            let mut hashed = |bytes| {
                done += bytes;
                progress(done, total);
            };
            let count = file.len.div_ceil(chunk_bytes.into());
            let chunks = match known(&file.path, chunk_bytes).filter(|chunks| chunks.len() as u64 == count) {
                Some(chunks) => {
                    hashed(file.len);
                    chunks
                }
                None => hash_chunks(&file.path, file.len, chunk_bytes, &mut hashed)?,
            };
            let shared = file.shared.iter().map(|r| (r.start, r.end)).collect();
            let (name, size, head_bytes) = (file.name.clone(), file.len, file.head_bytes);
            files.push(FileEntry { name, size, head_bytes, shared, chunks });
        }
        let (name, kind) = (model.name.clone(), kind_of(model));
        let manifest = Self { version: VERSION, name, kind, chunk_bytes, files, hub: None };
        manifest.check().map_err(StoreError::Manifest)?;
        Ok(manifest)
    }

    /// The model's identity: a hash over everything that decides its bytes. Names that decide nothing are
    /// left out, so the same GGUF file is the same model whatever it is called.
    pub fn root(&self) -> ModelId {
        let mut hasher = match &self.hub {
            None => blake3::Hasher::new_derive_key(ROOT_CONTEXT),
            Some(_) => blake3::Hasher::new_derive_key(HUB_CONTEXT),
        };
        self.hub.iter().for_each(|hub| hub.hash_into(&mut hasher));
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

    /// How many chunks a file has.
    pub fn chunk_count(&self, file: u32) -> u32 {
        let size = self.files.get(file as usize).map_or(0, |f| f.size);
        u32::try_from(size.div_ceil(self.chunk_bytes.into())).unwrap_or(u32::MAX)
    }

    /// Hash of one chunk; `None` if there is no such chunk, or nobody knows it yet.
    pub fn chunk_hash(&self, chunk: ChunkRef) -> Option<&[u8; 32]> {
        self.files.get(chunk.file as usize)?.chunks.get(chunk.index as usize)
    }

    /// Where in its file a chunk starts.
    pub fn chunk_start(&self, chunk: ChunkRef) -> u64 {
        u64::from(chunk.index) * u64::from(self.chunk_bytes)
    }

    /// The bytes that travel between nodes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let encoded = |bytes: postcard::Result<Vec<u8>>| {
            bytes.expect("a manifest is plain data; only memory could fail")
        };
        let mut bytes = encoded(postcard::to_stdvec(self));
        self.hub.iter().for_each(|hub| bytes.extend(encoded(postcard::to_stdvec(hub))));
        bytes
    }

    /// Decodes and checks what [`Manifest::to_bytes`] wrote. Bounded: a hostile manifest costs its own
    /// length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(ManifestError::TooLong { found_bytes: bytes.len(), max_bytes: ENCODED_BYTES_MAX });
        }
        let undecodable = |e: postcard::Error| ManifestError::Decode { reason: e.to_string() };
        let (mut manifest, mut rest) = postcard::take_from_bytes::<Self>(bytes).map_err(undecodable)?;
        if manifest.version == HUB_VERSION {
            let (hub, behind) = postcard::take_from_bytes(rest).map_err(undecodable)?;
            (manifest.hub, rest) = (Some(hub), behind);
        }
        if !rest.is_empty() {
            return Err(ManifestError::Decode { reason: format!("{} bytes are left over", rest.len()) });
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Whether the manifest describes files that can be.
    pub fn check(&self) -> Result<(), ManifestError> {
        let known = if self.hub.is_some() { HUB_VERSION } else { VERSION };
        if self.version != known {
            return Err(ManifestError::Version { found: self.version, known });
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
            file.check(i, self.chunk_bytes, self.hub.is_some())?;
            // Without case: two such names are one file on many systems.
            ensure(
                seen.insert(file.name.to_lowercase()),
                &format!("name of file {i}"),
                &file.name,
                "used once",
            )?;
            total = total.saturating_add(file.size);
        }
        ensure(total <= TOTAL_BYTES_MAX, "size of all files", total, "at most 2^50 bytes")?;
        let Some(hub) = &self.hub else { return Ok(()) };
        let chunks = total.div_ceil(self.chunk_bytes.into()) + self.files.len() as u64;
        ensure(chunks <= HUB_CHUNKS_MAX, "number of all chunks", chunks, "at most 2^24")?;
        hub.check(&self.files, self.chunk_bytes)
    }
}

fn kind_of(model: &Model) -> ModelKind {
    match model.kind {
        exo_formats::ModelKind::Gguf => ModelKind::Gguf,
        exo_formats::ModelKind::HuggingFace => ModelKind::HuggingFace,
    }
}

impl FileEntry {
    fn check(&self, index: usize, chunk_bytes: u32, is_of_hub: bool) -> Result<(), ManifestError> {
        let field = |what: &str| format!("{what} of file {index}");
        if let Some(reason) = exo_types::file_name_refusal(&self.name) {
            let found = exo_types::printable(&self.name, 80);
            let reason = match exo_types::refused_character(&self.name) {
                Some(character) => format!("its name has `{character}`, which no file name may have"),
                None => reason.to_owned(),
            };
            let expected = format!("a plain file name; {reason}: rename the file");
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
        // What every node reads before it has the rest is hashed in any case.
        let whole = self.size.div_ceil(chunk_bytes.into());
        let expected = if is_of_hub { self.head_bytes.div_ceil(chunk_bytes.into()) } else { whole };
        let found = self.chunks.len();
        ensure(found as u64 == expected, &field("number of chunks"), found, &expected.to_string())
    }
}

pub(crate) fn ensure(
    holds: bool,
    field: &str,
    found: impl ToString,
    expected: &str,
) -> Result<(), ManifestError> {
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
            hub: None,
        }
    }

    /// The same, known before it was fetched: only heads are hashed.
    fn of_hub() -> Manifest {
        let mut manifest = good();
        for file in &mut manifest.files {
            file.head_bytes = if file.size > 4096 { 5000 } else { file.size };
            file.chunks.truncate(file.head_bytes.div_ceil(4096) as usize);
        }
        let hub_file =
            |(path, sha256): (&str, Option<[u8; 32]>)| crate::HubFile { path: path.to_owned(), sha256 };
        manifest.version = HUB_VERSION;
        manifest.hub = Some(HubSource {
            repo: "org/repo".to_owned(),
            commit: "0123456789abcdef".to_owned(),
            label: "Q8_0".to_owned(),
            licence: "mit".to_owned(),
            files: [("config.json", None), ("model.safetensors", Some([7; 32]))].map(hub_file).into(),
        });
        manifest
    }

    #[test]
    fn a_model_that_is_known_before_it_is_fetched_is_named_by_what_the_hub_says() {
        let manifest = of_hub();
        let again = Manifest::from_bytes(&manifest.to_bytes()).unwrap();
        assert_eq!((&again, again.root()), (&manifest, manifest.root()));
        assert!(manifest.chunk_hash(ChunkRef { file: 1, index: 1 }).is_some());
        let behind = ChunkRef { file: 1, index: 2 };
        assert_eq!((manifest.chunk_hash(behind), manifest.chunk_len(behind)), (None, Some(10_000 - 8192)));
        assert_ne!(manifest.root(), good().root());
        type Change = fn(&mut HubSource);
        let changes: [(Change, bool); 5] = [
            (|h| h.commit.push('0'), true),
            (|h| h.repo.push('2'), true),
            (|h| h.files[1].sha256 = Some([8; 32]), true),
            (|h| h.licence = "other".to_owned(), false),
            (|h| h.label = "other".to_owned(), false),
        ];
        for (change, decides) in changes {
            let mut other = of_hub();
            change(other.hub.as_mut().unwrap());
            other.check().unwrap();
            assert_eq!(other.root() != manifest.root(), decides, "{:?}", other.hub);
        }
    }

    #[test]
    fn what_a_hub_cannot_have_said_is_refused_by_field() {
        type Change = fn(&mut Manifest);
        let cases: [(Change, &str); 7] = [
            (|m| m.version = VERSION, "version 1"),
            (|m| m.hub.as_mut().unwrap().files[1].sha256 = None, "digest of file 1 is none"),
            (|m| m.hub.as_mut().unwrap().files[1].path = "other".to_owned(), "path of file 1"),
            (|m| m.hub.as_mut().unwrap().files.truncate(1), "files of the hub is 1"),
            (|m| m.hub.as_mut().unwrap().commit = "main".to_owned(), "commit is something else"),
            (|m| m.hub.as_mut().unwrap().licence = "a\u{1b}[2J".to_owned(), "licence"),
            (|m| m.files[1].chunks.truncate(1), "number of chunks of file 1 is 1, expected 2"),
        ];
        for (change, text) in cases {
            let mut manifest = of_hub();
            change(&mut manifest);
            let error = manifest.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}: expected {text}");
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
        let cases: [(Change, &str); 13] = [
            (
                |m| m.files[0].name = "my \"best\" modèle.json".to_owned(),
                "is my \"best\" modèle.json, expected a plain file name; its name has `\"`, which no file name \
                 may have: rename the file",
            ),
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
