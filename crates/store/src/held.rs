//! Which chunks of a model are on disk: one bit each, with the model's id in front.

use exo_types::ModelId;

use crate::{ChunkRef, Manifest};

const MAGIC: &[u8; 8] = b"exoheld1";
pub(crate) const HEAD_BYTES: usize = MAGIC.len() + 32;

/// One bit per chunk, per file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldMap {
    files: Vec<Vec<u8>>,
    bytes: u64,
}

impl HeldMap {
    /// Nothing held.
    pub(crate) fn empty(manifest: &Manifest) -> Self {
        let files = (0..manifest.files.len()).map(|f| vec![0; bytes_of(manifest, f)]).collect();
        Self { files, bytes: 0 }
    }

    /// Length of the encoding of any map for this model.
    pub fn encoded_len(manifest: &Manifest) -> u64 {
        let bits = (0..manifest.files.len()).map(|f| bytes_of(manifest, f)).sum::<usize>();
        (HEAD_BYTES + bits) as u64
    }

    pub(crate) fn encode(&self, id: ModelId) -> Vec<u8> {
        let mut out = [MAGIC.as_slice(), &id.0].concat();
        self.files.iter().for_each(|bits| out.extend(bits));
        out
    }

    /// `None` if the bytes are not a map for this model: everything is then fetched again.
    pub fn decode(bytes: &[u8], id: ModelId, manifest: &Manifest) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC.as_slice())?.strip_prefix(id.0.as_slice())?;
        let mut map = Self::empty(manifest);
        for file in 0..manifest.files.len() {
            let (bits, after) = rest.split_at_checked(bytes_of(manifest, file))?;
            rest = after;
            let file = file as u32;
            let held =
                (0..manifest.chunk_count(file)).filter(|i| bits[*i as usize / 8] & (1 << (i % 8)) != 0);
            for chunk in held.map(|index| ChunkRef { file, index }) {
                map.add(chunk, manifest.chunk_len(chunk)?);
            }
        }
        rest.is_empty().then_some(map)
    }

    /// Whether the chunk is held.
    pub fn has(&self, chunk: ChunkRef) -> bool {
        let bits = self.files.get(chunk.file as usize).and_then(|bits| bits.get(chunk.index as usize / 8));
        bits.is_some_and(|bits| bits & (1 << (chunk.index % 8)) != 0)
    }

    /// Notes a chunk of the manifest as held; false if it was already.
    pub(crate) fn add(&mut self, chunk: ChunkRef, len: u64) -> bool {
        if self.has(chunk) {
            return false;
        }
        self.files[chunk.file as usize][chunk.index as usize / 8] |= 1 << (chunk.index % 8);
        self.bytes += len;
        true
    }

    /// Takes a note back.
    pub(crate) fn remove(&mut self, chunk: ChunkRef, len: u64) {
        if self.has(chunk) {
            self.files[chunk.file as usize][chunk.index as usize / 8] &= !(1 << (chunk.index % 8));
            self.bytes -= len;
        }
    }

    /// Takes every note about one file back.
    pub(crate) fn forget_file(&mut self, file: u32, manifest: &Manifest) {
        for index in 0..manifest.chunk_count(file) {
            let chunk = ChunkRef { file, index };
            self.remove(chunk, manifest.chunk_len(chunk).unwrap_or(0));
        }
    }

    /// Bytes of the chunks held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes of the bits of one file.
fn bytes_of(manifest: &Manifest, file: usize) -> usize {
    manifest.chunk_count(file as u32).div_ceil(8) as usize
}
