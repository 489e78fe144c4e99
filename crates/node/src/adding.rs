//! Making a model on this disk known to the node.

use std::path::PathBuf;
use std::sync::Arc;

use exo_hub::Fetched;
use exo_store::{ModelRecord, Store, StoreError};
use exo_types::ModelId;

use crate::library::Library;
use crate::library_error::LibraryError;

/// Hashes a file or folder, opens it, so that a model that cannot run is refused here and not at its first
/// request, and gives it its name.
pub async fn add(
    library: &Arc<Library>,
    path: PathBuf,
    name: Option<String>,
) -> Result<ModelRecord, LibraryError> {
    let add = move |store: &Store| match &name {
        Some(name) => store.add_path_as(&path, name, &mut |_, _| {}),
        None => store.add_path(&path, &mut |_, _| {}),
    };
    let record = add_and_open(library, add).await?;
    takes_name(library, record.id).await
}

/// Gives a model that was opened its name, which another commit of it may have had.
pub async fn takes_name(library: &Library, id: ModelId) -> Result<ModelRecord, LibraryError> {
    let store = library.store().clone();
    Ok(tokio::task::spawn_blocking(move || store.takes_name(id)).await??)
}

/// The same for what was just fetched, without a name yet: what the fetch has hashed is not read again.
pub async fn add_fetched(library: &Arc<Library>, fetched: Fetched) -> Result<ModelRecord, LibraryError> {
    let add = move |store: &Store| {
        store.add_fetched(&fetched.path, &|path, bytes| fetched.hashes_of(path, bytes), &mut |_, _| {})
    };
    add_and_open(library, add).await
}

async fn add_and_open(
    library: &Arc<Library>,
    add: impl FnOnce(&Store) -> Result<ModelRecord, StoreError> + Send + 'static,
) -> Result<ModelRecord, LibraryError> {
    let store = library.store().clone();
    let added = tokio::task::spawn_blocking(move || {
        let listed = store.list()?;
        let record = add(&store)?;
        let is_new = listed.iter().all(|known| known.id != record.id);
        Ok::<_, LibraryError>((record, is_new))
    });
    let (record, is_new) = added.await??;
    open_once(library, record.id, is_new).await?;
    Ok(record)
}

/// Opens a model that has come, so that one that cannot run is refused.
pub async fn open_once(library: &Library, id: ModelId, is_new: bool) -> Result<(), LibraryError> {
    if let Err(error) = library.open(id, &[]).await {
        // One that was listed before stays: it may be the disk that fails.
        if is_new {
            let store = library.store().clone();
            let _ = tokio::task::spawn_blocking(move || store.forget(id)).await;
        }
        return Err(error);
    }
    // This node may never be asked for it: its vocabulary is read again when it is.
    library.release(id);
    Ok(())
}
