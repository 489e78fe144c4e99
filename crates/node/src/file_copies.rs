//! Where this node has a file that a hub names by its SHA-256: whole, as a download brought it, or in layers.

use std::path::Path;

use exo_hub::{Origin, OriginFile};
use exo_store::{Manifest, ModelRecord, Store, StoreError};

use crate::bulk::FileCopy;

/// The fullest copy. Reads the list of models, and what lies beside each of where it came from.
pub fn find(store: &Store, sha256: &[u8; 32]) -> Result<Option<FileCopy>, StoreError> {
    let mut records = store.list()?;
    // What is damaged or gone is given to no one.
    records.retain(|record| record.problem.is_none() && record.checked != Some(false));
    records.sort_by_key(|record| std::cmp::Reverse((record.complete, record.held_bytes)));
    for record in records {
        let Ok(manifest) = store.manifest(record.id) else { continue };
        if let Some(file) = index_in(&manifest, &record, sha256) {
            return Ok(Some(FileCopy { model: record.id, file: u32::try_from(file).unwrap_or(u32::MAX) }));
        }
    }
    Ok(None)
}

/// Which file of a model it is.
fn index_in(manifest: &Manifest, record: &ModelRecord, sha256: &[u8; 32]) -> Option<usize> {
    if let Some(hub) = &manifest.hub {
        return hub.files.iter().position(|file| file.sha256.as_ref() == Some(sha256));
    }
    let hex = exo_types::hex(sha256);
    let origin = Origin::beside(&record.path)?;
    let is_it = |file: &&OriginFile| file.sha256.as_deref().is_some_and(|of| of.eq_ignore_ascii_case(&hex));
    let of_hub = origin.files.iter().find(is_it)?;
    let name = Path::new(&of_hub.path).file_name()?.to_str()?;
    manifest.files.iter().position(|file| file.name == name && file.size == of_hub.size)
}
