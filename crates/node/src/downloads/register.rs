//! Makes a model of a hub known before it is fetched: the heads of its files are read, and an identity
//! follows from them and from what the hub says of the rest.

use std::path::Path;

use exo_hub::{FetchPlan, HubError, PlannedFile};
use exo_store::{ChunkRef, HubFile, HubSource, Manifest, ModelRecord};

use crate::heads::{HeadBounds, HeadReader};
use crate::library::Library;
use crate::reference_error::ReferenceError;

/// Bytes that are read of a hub for one model: vocabularies and headers of many files.
const BYTES_MAX: u64 = 512 << 20;
/// The first bytes of a GGUF file that are asked for, and the same as a part of it: what is read too much is
/// kept, but may be no layer of this node.
const FIRST_BYTES: (u64, u64) = (64 << 10, 1 << 20);
const FIRST_PART: u64 = 16;

/// The model of a plan, known to this node's store from now on, and whether it was not before. Blocks.
pub fn register(
    library: &Library,
    data_dir: &Path,
    heads: &mut HeadReader<'_>,
    plan: &FetchPlan,
) -> Result<(ModelRecord, bool), ReferenceError> {
    let commit = plan.commit.clone().ok_or_else(|| no_digest(plan, "the address"))?;
    let largest = plan.files.iter().map(|f| f.size).max().unwrap_or(0);
    let first_bytes = (largest / FIRST_PART).clamp(FIRST_BYTES.0, FIRST_BYTES.1);
    let model = heads.open(plan, HeadBounds { first_bytes, bytes_max: BYTES_MAX, is_shape_only: false })?;
    let chunk_bytes =
        Manifest::usual_chunk_bytes(model.files.iter().fold(0, |sum, f| sum.saturating_add(f.len)));
    let (mut files, mut hashes, mut read) = (Vec::new(), Vec::new(), Vec::new());
    let folder = heads.folder_of(plan)?;
    for file in &model.files {
        let planned = plan.files.iter().find(|p| folder.join(p.below()) == file.path);
        let planned = planned.ok_or_else(|| no_digest(plan, &file.name))?;
        let count = file.head_bytes.div_ceil(chunk_bytes.into());
        heads.read_to(plan, planned, count * u64::from(chunk_bytes), BYTES_MAX)?;
        // What was read of it beyond its head is kept, too.
        let bytes = read_head(&file.path, heads.read_bytes(plan, planned), plan)?;
        let is_whole = bytes.len() as u64 == file.len;
        let chunks: Vec<&[u8]> = bytes
            .chunks(chunk_bytes as usize)
            .filter(|chunk| is_whole || chunk.len() == chunk_bytes as usize)
            .collect();
        hashes
            .push(chunks.iter().take(count as usize).map(|chunk| *blake3::hash(chunk).as_bytes()).collect());
        read.push(chunks.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
        files.push(hub_file(plan, planned, file.head_bytes == file.len)?);
    }
    let (repo, label) = (plan.repo.clone(), plan.choice.variant.label.clone());
    let hub = HubSource { repo, commit, label, licence: plan.licence.label().to_owned(), files };
    let disk = |error: String| ReferenceError::Disk {
        folder: data_dir.display().to_string(),
        source: std::io::Error::other(error),
    };
    let manifest = Manifest::of_hub(&model, hub, hashes).map_err(|e| disk(e.to_string()))?;
    let is_new = library.store().record(manifest.root()).is_err();
    let partial = library.store().prepare(&manifest).map_err(|e| disk(e.to_string()))?;
    for (file, chunks) in read.into_iter().enumerate() {
        for (index, bytes) in chunks.into_iter().enumerate() {
            let chunk = ChunkRef { file: file as u32, index: index as u32 };
            partial.write_chunk(chunk, &bytes).map_err(|e| disk(e.to_string()))?;
        }
    }
    partial.flush().map_err(|e| disk(e.to_string()))?;
    let record = library.store().record(manifest.root()).map_err(|e| disk(e.to_string()))?;
    Ok((record, is_new))
}

/// What is smaller is fetched without a look at its heads, and the most that is read for that look.
const CHECKED_BYTES_MIN: u64 = 256 << 20;
const CHECK_BYTES_MAX: u64 = 128 << 20;

/// Whether exo opens the model of a plan, by the heads of its files: before tens of gigabytes come that
/// nothing runs. Where that cannot be found out it is not refused. Blocks.
pub fn check_opens(
    heads: &mut HeadReader<'_>,
    plan: &FetchPlan,
    missing_bytes: u64,
) -> Result<(), ReferenceError> {
    if missing_bytes < CHECKED_BYTES_MIN {
        return Ok(());
    }
    let bounds = HeadBounds { first_bytes: FIRST_BYTES.1, bytes_max: CHECK_BYTES_MAX, is_shape_only: false };
    match heads.open(plan, bounds) {
        Err(error @ (ReferenceError::Open { .. } | ReferenceError::Hub(HubError::Cancelled))) => Err(error),
        Err(error) => {
            let error = exo_accelerators::chain(&error);
            tracing::info!(reference = plan.reference, error, "the head says nothing; all is fetched");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

fn read_head(path: &Path, bytes: u64, plan: &FetchPlan) -> Result<Vec<u8>, ReferenceError> {
    use std::io::Read;
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(bytes).read_to_end(&mut head));
    read.map_err(|source| ReferenceError::Disk { folder: plan.repo.clone(), source })?;
    Ok(head)
}

/// A file as the hub names it. One of which only a head is read must have a digest, or nothing would say what
/// the rest is.
fn hub_file(plan: &FetchPlan, planned: &PlannedFile, is_read: bool) -> Result<HubFile, ReferenceError> {
    let sha256 = planned.digest();
    if sha256.is_none() && !is_read {
        return Err(no_digest(plan, &planned.name));
    }
    Ok(HubFile { path: planned.name.clone(), sha256 })
}

fn no_digest(plan: &FetchPlan, file: &str) -> ReferenceError {
    let problem =
        format!("it gives no digest of {}; `exo pull` fetches all of it", exo_types::printable(file, 100));
    let attempt = "fetch a model in layers".to_owned();
    ReferenceError::Hub(HubError::Lacks { host: plan.repo.clone(), attempt, problem })
}
