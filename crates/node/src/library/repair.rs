//! Chunks that a disk has damaged since they came: found before they are loaded, given to others or counted
//! in a check, and fetched again from whoever has them.

use std::sync::Arc;

use exo_accelerators::chain;
use exo_hub::Origin;
use exo_machine::Holder;
use exo_store::{ChunkRef, Manifest, PartialModel, StoreError};
use exo_types::ModelId;
use tokio::sync::mpsc;

use super::Library;
use crate::bulk::{AskedOf, FetchError, Fetcher, RefusedChunks, SharedChunks};
use crate::hub_bytes::HubBytesError;
use crate::library_error::LibraryError;

/// A whole copy of which more chunks are damaged is to be pulled anew: with ranges at once, and resumed.
const REPAIRED_MAX: usize = 64;

impl Library {
    /// Compares chunks with what they were when they came; the damaged ones come back. `found` hears the
    /// bytes of those that are good.
    pub(super) async fn verify(
        &self,
        partial: &Arc<PartialModel>,
        chunks: Vec<ChunkRef>,
        found: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Vec<ChunkRef>, LibraryError> {
        if chunks.is_empty() {
            return Ok(chunks);
        }
        let (told, mut heard) = mpsc::unbounded_channel();
        let partial = partial.clone();
        let work =
            tokio::task::spawn_blocking(move || partial.verify(&chunks, &|bytes| told.send(bytes).is_ok()));
        while let Some(bytes) = heard.recv().await {
            found(bytes);
        }
        Ok(work.await??)
    }

    /// Reads all that is here of a model that came in chunks, and fetches again what is damaged. `lost` was
    /// found before, and is held no more. Does nothing while another call does it.
    pub async fn repair(&self, id: ModelId, lost: ChunkRef, holders: &[Holder]) -> Result<(), LibraryError> {
        let Some(_turn) = RepairGuard::begin(self, id) else { return Ok(()) };
        let store = self.store().clone();
        let partial = tokio::task::spawn_blocking(move || store.partial(id)).await??;
        let Some(partial) = partial else { return Ok(()) };
        let mut damaged = self.verify(&partial, partial.held_chunks(), &mut |_| {}).await?;
        damaged.push(lost);
        let fetched = self.fetch_into_room(&partial, &damaged, holders, &mut |_| {}, &|_, _| {}).await;
        end(&partial, &damaged, fetched)?;
        Ok(tokio::task::spawn_blocking(move || partial.flush()).await??)
    }

    /// Fetches again what a disk has damaged of a model that a download brought whole: from members that have
    /// it, else from its hub. True if all of that came; what the files are then, a comparison says.
    pub async fn repair_whole(
        &self,
        id: ModelId,
        origin: &Origin,
        holders: &[Holder],
    ) -> Result<bool, LibraryError> {
        let Some(_turn) = RepairGuard::begin(self, id) else { return Ok(false) };
        let store = self.store().clone();
        let look = move || Ok::<_, StoreError>((store.damaged_chunks(id)?, store.manifest(id)?));
        let (mut missing, manifest) = tokio::task::spawn_blocking(look).await??;
        let (name, chunks) = (&manifest.name, missing.len());
        if chunks == 0 || chunks > REPAIRED_MAX {
            tracing::info!(model = %id, name, chunks, max = REPAIRED_MAX, "what is damaged is not fetched again alone");
            return Ok(false);
        }
        tracing::warn!(target: "events::model", model = %id, name, chunks, "damaged on this disk: it is to be fetched again");
        for holder in holders {
            if missing.is_empty() {
                break;
            }
            match self.repair_from_member(holder, id, &manifest, &mut missing).await {
                Err(error @ FetchError::Disk { .. }) => return Err(LibraryError::Kept(Box::new(error))),
                Err(error) => error.report(),
                Ok(()) => {}
            }
        }
        if let Err(error) = self.repair_from_hub(id, &manifest, origin, missing).await {
            let reasons = chain(&error);
            tracing::error!(target: "events::model", model = %id, name, chunks, reasons, "what was damaged on this disk was not fetched again");
            return Ok(false);
        }
        tracing::info!(target: "events::model", model = %id, name, chunks, "what was damaged on this disk was fetched again");
        Ok(true)
    }

    /// Takes from `missing` what a member gave.
    async fn repair_from_member(
        &self,
        holder: &Holder,
        id: ModelId,
        manifest: &Manifest,
        missing: &mut Vec<ChunkRef>,
    ) -> Result<(), FetchError> {
        let mut fetcher = Fetcher::dial(self.endpoint(), holder.node, &holder.addresses).await?;
        let mut refused = RefusedChunks::default();
        for chunk in missing.clone() {
            let (asked, mut given) = (SharedChunks::new(&[chunk]), None);
            let mut keep = |_: ChunkRef, came: bytes::Bytes| given.replace(came).is_none();
            fetcher.read((AskedOf::Model(id), manifest), &asked.whole(), &mut refused, &mut keep).await?;
            let Some(bytes) = given else { continue };
            let store = self.store().clone();
            let written = tokio::task::spawn_blocking(move || store.repair_chunk(id, chunk, &bytes)).await;
            let written = written.map_err(LibraryError::from).and_then(|written| Ok(written?));
            written.map_err(|error| FetchError::Disk { reason: chain(&error) })?;
            missing.retain(|other| *other != chunk);
        }
        Ok(())
    }

    async fn repair_from_hub(
        &self,
        id: ModelId,
        manifest: &Arc<Manifest>,
        origin: &Origin,
        missing: Vec<ChunkRef>,
    ) -> Result<(), LibraryError> {
        let (hub, store, manifest, origin) =
            (self.hub().clone(), self.store().clone(), manifest.clone(), origin.clone());
        let work = move || {
            missing.into_iter().try_for_each(|chunk| {
                let not_fetched = |error: HubBytesError| {
                    let model = manifest.name.clone();
                    LibraryError::NotFetched { model, reasons: chain(&error) }
                };
                let bytes = hub.chunk_at(&origin, id, &manifest, chunk).map_err(not_fetched)?;
                Ok::<(), LibraryError>(store.repair_chunk(id, chunk, &bytes)?)
            })
        };
        tokio::task::spawn_blocking(work).await?
    }
}

/// Says what came of fetching what was damaged, if anything was.
pub(super) fn end(
    partial: &PartialModel,
    damaged: &[ChunkRef],
    fetched: Result<(), LibraryError>,
) -> Result<(), LibraryError> {
    if damaged.is_empty() {
        return fetched;
    }
    let (name, bytes) = (partial.manifest().name.clone(), partial.bytes_of(damaged));
    match fetched {
        Ok(()) => {
            tracing::info!(target: "events::model", model = %partial.id(), name, bytes, "what was damaged on this disk was fetched again");
            Ok(())
        }
        Err(error @ LibraryError::NotFetched { .. }) => {
            let reasons = chain(&error);
            tracing::error!(target: "events::model", model = %partial.id(), name, bytes, reasons, "what was damaged on this disk was not fetched again");
            Err(LibraryError::Damaged { model: name, bytes, reasons })
        }
        error => error,
    }
}

/// A model is repaired once at a time.
struct RepairGuard<'a> {
    library: &'a Library,
    id: ModelId,
}

impl<'a> RepairGuard<'a> {
    fn begin(library: &'a Library, id: ModelId) -> Option<Self> {
        let mut repairing = library.repairing.lock();
        repairing.insert(id).then_some(Self { library, id })
    }
}

impl Drop for RepairGuard<'_> {
    fn drop(&mut self) {
        self.library.repairing.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_and_does_not_come_again_is_said_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let (_, partial) = crate::bulk::testing::demo_and_copy(folder.path());
        let failed = || {
            let (model, reasons) = ("demo".to_owned(), "the hub does not answer".to_owned());
            Err(LibraryError::NotFetched { model, reasons })
        };
        let damaged = [ChunkRef { file: 0, index: 3 }];
        let error = end(&partial, &damaged, failed()).unwrap_err().to_string();
        let bytes = partial.bytes_of(&damaged);
        assert!(
            error.starts_with(&format!("{bytes} bytes of demo on this disk are damaged"))
                && error.ends_with("the hub does not answer"),
            "{error}"
        );
        assert!(matches!(end(&partial, &[], failed()), Err(LibraryError::NotFetched { .. })));
        end(&partial, &damaged, Ok(())).unwrap();
    }
}
