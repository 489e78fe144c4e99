//! Chunks that a disk has damaged since they came: found before they are loaded, given to others or counted
//! in a check, and fetched again from whoever has them.

use std::sync::{Arc, PoisonError};

use exo_accelerators::chain;
use exo_machine::Holder;
use exo_store::{ChunkRef, PartialModel};
use exo_types::ModelId;
use tokio::sync::mpsc;

use super::Library;
use crate::library_error::LibraryError;

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
        let mut repairing = library.repairing.lock().unwrap_or_else(PoisonError::into_inner);
        repairing.insert(id).then_some(Self { library, id })
    }
}

impl Drop for RepairGuard<'_> {
    fn drop(&mut self) {
        self.library.repairing.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_and_does_not_come_again_is_said_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let (from, _) = exo_store::Store::open(&folder.path().join("from")).unwrap();
        let (to, _) = exo_store::Store::open(&folder.path().join("to")).unwrap();
        let id = from.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
        let partial = to.prepare(&from.manifest(id).unwrap()).unwrap();
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
