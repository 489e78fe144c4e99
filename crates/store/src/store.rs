//! The models of one data folder.

mod damage;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use exo_formats::Model;
use exo_types::ModelId;

use crate::disk::{create_folder, deleted, failed, write_atomic};
use crate::local::{absolute, fingerprints, insert_copy, insert_local, read_local, root_of, usable_local};
use crate::registry::{self, Entry, Layout, Local};
use crate::{
    ChunkError, ChunkRef, FindError, KnownHashes, Manifest, ModelRecord, PartialModel, Replaced, Source,
    StoreError, StoreWarning, commits, partial,
};

/// Shorter prefixes of an id are too easily somebody's name.
const ID_PREFIX_CHARS_MIN: usize = 6;

/// The models of one data folder. Share it behind an `Arc`; every method takes `&self` and blocks.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    manifests: Mutex<BTreeMap<ModelId, Arc<Manifest>>>,
    partials: Mutex<Partials>,
}

#[derive(Debug, Default)]
struct Partials {
    open: BTreeMap<ModelId, Arc<PartialModel>>,
    /// Those that are being deleted, until the list does not have them any more: whoever looks at the list
    /// meanwhile must not make them anew. As often as they are being deleted.
    removing: Vec<ModelId>,
}

/// No partial copy of a model is opened as long as this is there.
struct Removal<'a> {
    partials: &'a Mutex<Partials>,
    id: ModelId,
}

impl<'a> Removal<'a> {
    fn begin(partials: &'a Mutex<Partials>, id: ModelId) -> Self {
        lock(partials).removing.push(id);
        Self { partials, id }
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let removing = &mut lock(self.partials).removing;
        let at = removing.iter().position(|id| *id == self.id);
        at.map(|at| removing.swap_remove(at));
    }
}

impl Store {
    /// Opens the store in `data_dir`, creating it if need be. Warnings are for the user and stop nothing.
    pub fn open(data_dir: &Path) -> Result<(Self, Vec<StoreWarning>), StoreError> {
        let layout = Layout { data_dir: data_dir.to_owned() };
        for folder in [&layout.manifests(), &layout.fetched()] {
            create_folder(folder)?;
        }
        let (_, warnings) = registry::load(&layout)?;
        Ok((Self { layout, manifests: Mutex::default(), partials: Mutex::default() }, warnings))
    }

    /// Adds the user's own file or folder: opens it, hashes it (unless the same path, size and time were
    /// hashed before) and remembers it. `progress` is told (bytes done, bytes in all). A second copy of what
    /// the list has from another place of the user's changes neither its name nor its path.
    pub fn add_path(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ModelRecord, StoreError> {
        self.add(path, (None, &|_, _| None), false, progress)
    }

    /// [`Store::add_path`] of what was just fetched: files whose hashes are known are not read again.
    pub fn add_fetched(
        &self,
        path: &Path,
        known: KnownHashes<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ModelRecord, StoreError> {
        self.add(path, (None, known), false, progress)
    }

    /// [`Store::add_path`] under a name of the caller's choice, for files whose own names say nothing.
    pub fn add_path_as(
        &self,
        path: &Path,
        name: &str,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ModelRecord, StoreError> {
        self.add(path, (Some(name), &|_, _| None), false, progress)
    }

    /// Adds a GGUF file the binary carries: writes it under the data folder if it is not there yet.
    pub fn add_builtin(&self, file_name: &str, bytes: &[u8]) -> Result<ModelRecord, StoreError> {
        if let Some(reason) = exo_types::file_name_refusal(file_name) {
            return Err(StoreError::Name { name: file_name.chars().take(80).collect(), reason });
        }
        create_folder(&self.layout.builtin())?;
        let path = self.layout.builtin().join(file_name);
        if !fs::read(&path).is_ok_and(|there| there == bytes) {
            write_atomic(&path, bytes)?;
        }
        self.add(&path, (None, &|_, _| None), true, &mut |_, _| {})
    }

    /// Every model known, by name.
    pub fn list(&self) -> Result<Vec<ModelRecord>, StoreError> {
        let mut records: Vec<ModelRecord> = self.entries()?.iter().map(|e| self.record_of(e)).collect();
        records.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Ok(records)
    }

    /// The model of a hub that was made known for a reference before it was fetched.
    pub fn known_for(&self, reference: &str) -> Result<Option<ModelRecord>, StoreError> {
        let is_it =
            |r: &ModelRecord| r.is_of_hub && !r.is_replaced && r.reference.as_deref() == Some(reference);
        Ok(self.list()?.into_iter().find(is_it))
    }

    /// Every place that the list knows, also of a model that is used from another one now.
    pub fn places(&self) -> Result<Vec<PathBuf>, StoreError> {
        let local = |entry: Entry| entry.local.map(|local| local.path);
        Ok(self.entries()?.into_iter().filter_map(local).collect())
    }

    /// One model by id.
    pub fn record(&self, id: ModelId) -> Result<ModelRecord, StoreError> {
        Ok(self.record_of(&self.entry(id)?))
    }

    /// The one model that `text` means: an id, the first characters of one (at least 6), a name, or a path.
    pub fn find(&self, text: &str) -> Result<ModelRecord, FindError> {
        let records = self.list()?;
        let path = absolute(Path::new(text)).ok();
        let lower = text.to_lowercase();
        let is_prefix = lower.len() >= ID_PREFIX_CHARS_MIN && lower.bytes().all(|b| b.is_ascii_hexdigit());
        let rules: [&dyn Fn(&ModelRecord) -> bool; 4] = [
            &|r| r.name == text,
            &|r| r.name.to_lowercase() == lower,
            &|r| path.as_ref() == Some(&r.path),
            &|r| is_prefix && r.id.to_full().starts_with(&lower),
        ];
        for rule in rules {
            let mut matches = records.iter().filter(|r| rule(r));
            match (matches.next(), matches.next()) {
                (None, _) => {}
                (Some(only), None) => return Ok(only.clone()),
                (Some(_), Some(_)) => {
                    let all = records.iter().filter(|r| rule(r));
                    let candidates = all.map(|r| format!("{} ({})", r.name, r.id)).collect();
                    return Err(FindError::Ambiguous { text: text.to_owned(), candidates });
                }
            }
        }
        let names: Vec<&str> = records.iter().map(|r| r.name.as_str()).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(FindError::Nothing { text: text.chars().take(200).collect(), known })
    }

    /// Forgets a model. Deletes fetched bytes, from peers and from a hub, never the user's own file. Returns
    /// the bytes freed.
    ///
    /// Files go before the list is written, which a full disk takes only then. After an end in between, the
    /// model is listed as vanished or empty, and removing it again finishes.
    pub fn remove(&self, id: ModelId) -> Result<u64, StoreError> {
        let entry = self.entry(id)?;
        let hub = self.layout.hub();
        let copy = entry.local.as_ref().and_then(|l| Some((l, commits::hub_folder(&hub, &l.path)?)));
        let mut freed = 0;
        if let Some((local, folder)) = copy {
            freed += commits::delete_copy(&hub, &folder, local, &self.entries()?)
                .map_err(|e| failed("delete", &folder, entry.bytes, e))?;
        }
        Ok(freed + self.forget(id)?)
    }

    /// [`Store::remove`] for a model that turned out to be none we can run: what came from a hub stays on
    /// disk.
    pub fn forget(&self, id: ModelId) -> Result<u64, StoreError> {
        // Until the list is written.
        let _removal = Removal::begin(&self.partials, id);
        let entry = self.entry(id)?;
        let mut freed = if entry.fetched { self.delete_fetched(id)? } else { 0 };
        if let Some(local) =
            entry.local.as_ref().filter(|l| l.is_builtin && l.path.starts_with(self.layout.builtin()))
        {
            deleted(fs::remove_file(&local.path))
                .map_err(|e| failed("delete", &local.path, entry.bytes, e))?;
            freed += entry.bytes;
        }
        registry::update(&self.layout, |entries| entries.retain(|e| e.id != id))?;
        lock(&self.manifests).remove(&id);
        // Last, and harmless if it stays: a manifest without an entry is not listed.
        let _ = fs::remove_file(self.layout.manifest(id));
        Ok(freed)
    }

    /// Deletes what was fetched of a model in chunks; returns what it took of the disk.
    fn delete_fetched(&self, id: ModelId) -> Result<u64, StoreError> {
        let folder = self.layout.fetched_model(id);
        let _removal = Removal::begin(&self.partials, id);
        let open = lock(&self.partials).open.remove(&id);
        if let Some(open) = open {
            open.note_removed();
        }
        let bytes = partial::bytes_to_free(&folder);
        partial::delete(&folder).map_err(|e| failed("delete", &folder, bytes, e))?;
        Ok(bytes)
    }

    /// Whether what is here of a model that came in chunks is of a fetch that was never finished.
    fn is_unfinished(&self, entry: &Entry) -> bool {
        let folder = self.layout.fetched_model(entry.id);
        match self.partial(entry.id) {
            Ok(partial) => partial.is_some_and(|partial| partial.is_unfinished()),
            // On a full disk a file of it that is not there is not made again.
            Err(StoreError::DiskFull { .. }) => partial::has_begun(&folder),
            Err(error) => {
                let (model, folder) = (&entry.name, folder.display());
                tracing::warn!(%error, model, %folder, "cannot be opened, so it is not pruned; `exo models remove` deletes it");
                false
            }
        }
    }

    /// Deletes what was fetched in chunks and never finished, but for what `is_in_use` or kept. Only of what
    /// would go else it is asked whether it is in use. Returns how many models had some, and the bytes freed.
    /// A model that somebody asked for by a reference stays known.
    pub fn prune(&self, is_in_use: &dyn Fn(ModelId) -> bool) -> Result<(usize, u64), StoreError> {
        let (mut models, mut freed) = (0, 0);
        let entries = self.entries()?;
        for entry in entries.iter().filter(|entry| entry.fetched && !entry.kept) {
            let is_here = || partial::disk_bytes(&self.layout.fetched_model(entry.id)) > 0;
            if !self.is_unfinished(entry) || !is_here() || is_in_use(entry.id) {
                continue;
            }
            models += 1;
            tracing::info!(model = entry.name, "parts of a model whose fetch was never finished go");
            freed += match entry.local.is_some() || entry.reference.is_some() {
                true => self.delete_fetched(entry.id)?,
                false => self.forget(entry.id)?,
            };
        }
        Ok((models, freed))
    }

    /// Notes whether a model is to stay on the disk, however full that is.
    pub fn keep(&self, id: ModelId, kept: bool) -> Result<(), StoreError> {
        self.change(&[id], |entry| entry.kept = kept)
    }

    /// Notes whether the whole copy is what its hub promised. It counts until its files change or it goes.
    pub fn note_check(&self, id: ModelId, matches: bool) -> Result<(), StoreError> {
        self.change(&[id], |entry| entry.checked = Some(matches))
    }

    /// Notes that models are in use. Writes a file: not for each request.
    pub fn used(&self, ids: &[ModelId], unix_s: u64) -> Result<(), StoreError> {
        self.change(ids, |entry| entry.used_unix_s = entry.used_unix_s.max(unix_s))
    }

    /// Notes what a person asked for when a model became known before it was fetched. It is no older commit
    /// that goes any more.
    pub fn asked_for(&self, id: ModelId, reference: &str) -> Result<(), StoreError> {
        self.change(&[id], |entry| {
            entry.reference = Some(reference.to_owned());
            entry.replaced = false;
        })
    }

    /// Gives a model that a person asked for its name: from now on other commits of it are called
    /// `NAME@COMMIT`. For one that was opened.
    pub fn takes_name(&self, id: ModelId) -> Result<ModelRecord, StoreError> {
        registry::update(&self.layout, |entries| {
            entries.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.replaced = false);
            commits::take_name(&self.layout, entries, id);
        })?;
        self.record(id)
    }

    /// [`Store::takes_name`] for a newer commit that takes the place of a model, which goes once nothing uses
    /// it. That the name is kept goes over to the newer one; what is kept by its commit stays.
    pub fn replace(&self, older: ModelId, newer: ModelId) -> Result<Replaced, StoreError> {
        registry::update(&self.layout, |entries| {
            let Some(at) = entries.iter().position(|entry| entry.id == older && !entry.replaced) else {
                return Replaced::Gone;
            };
            let is_named = commits::plain_name(&entries[at].name) == entries[at].name;
            let is_kept = is_named && older != newer && std::mem::take(&mut entries[at].kept);
            entries[at].replaced = older != newer && !entries[at].kept;
            for entry in entries.iter_mut().filter(|entry| entry.id == newer) {
                entry.kept |= is_kept;
                entry.replaced = false;
            }
            commits::take_name(&self.layout, entries, newer);
            match entries[at].replaced {
                true => Replaced::Goes { name: entries[at].name.clone() },
                false => Replaced::Stays,
            }
        })
    }

    fn change(&self, ids: &[ModelId], change: impl Fn(&mut Entry)) -> Result<(), StoreError> {
        registry::update(&self.layout, |entries| {
            entries.iter_mut().filter(|entry| ids.contains(&entry.id)).for_each(change);
        })
    }

    /// Opens a model for reading, whole or partial.
    pub fn open_model(&self, id: ModelId) -> Result<Model, StoreError> {
        let entry = self.entry(id)?;
        match usable_local(&entry) {
            Some(Ok(local)) => {
                let mut model = exo_formats::open(&local.path).map_err(StoreError::Open)?;
                model.name = entry.name;
                Ok(model)
            }
            Some(Err(problem)) if !entry.fetched => Err(StoreError::Unusable { id, problem }),
            _ => self.partial(id)?.ok_or(StoreError::UnknownModel { id })?.open_model(),
        }
    }

    /// The model's manifest.
    pub fn manifest(&self, id: ModelId) -> Result<Arc<Manifest>, StoreError> {
        if let Some(known) = lock(&self.manifests).get(&id) {
            return Ok(known.clone());
        }
        let manifest = Arc::new(registry::read_manifest(&self.layout, id)?);
        lock(&self.manifests).insert(id, manifest.clone());
        Ok(manifest)
    }

    /// The partial copy of `manifest`'s model: the one on disk, or a new empty one. Everyone shares one. It
    /// takes no name from a model of this machine's own: that is for [`Store::takes_name`].
    pub fn prepare(&self, manifest: &Manifest) -> Result<Arc<PartialModel>, StoreError> {
        manifest.check().map_err(StoreError::Manifest)?;
        let id = manifest.root();
        let folder = self.layout.fetched_model(id);
        let other_commits = if folder.exists() { Vec::new() } else { self.other_commits(manifest)? };
        let mut partials = lock(&self.partials);
        if partials.removing.contains(&id) {
            return Err(StoreError::Removed { id });
        }
        if let Some(known) = partials.open.get(&id) {
            return Ok(known.clone());
        }
        write_atomic(&self.layout.manifest(id), &manifest.to_bytes())?;
        let shared = Arc::new(manifest.clone());
        crate::partial::take_unchanged(&folder, id, manifest, &other_commits)?;
        let partial = Arc::new(PartialModel::open(&folder, id, shared)?);
        registry::update(&self.layout, |entries| match entries.iter_mut().find(|e| e.id == id) {
            Some(entry) => entry.fetched = true,
            None => {
                entries.push(Entry::fetched(id, manifest));
                commits::name_new(&self.layout, entries, id);
            }
        })?;
        partials.open.insert(id, partial.clone());
        Ok(partial)
    }

    /// Partial copies of the same repository's other commits, but for those that are not what the hub
    /// promised.
    fn other_commits(&self, manifest: &Manifest) -> Result<Vec<Arc<PartialModel>>, StoreError> {
        let Some(hub) = &manifest.hub else { return Ok(Vec::new()) };
        let is_of_repo = |id: ModelId| {
            self.manifest(id).is_ok_and(|other| other.hub.as_ref().is_some_and(|of| of.repo == hub.repo))
        };
        let fetched = self.entries()?.into_iter().filter(|entry| entry.fetched && is_of_repo(entry.id));
        // Its bytes would be of use, and are not needed.
        let opened = fetched.filter_map(|entry| {
            let opened = self.partial(entry.id);
            let said = |error: &StoreError| {
                tracing::warn!(model = entry.name, %error, "another commit cannot be opened: what it has comes again");
            };
            opened.inspect_err(said).ok().flatten()
        });
        Ok(opened.filter(|partial| partial.checked() != Some(false)).collect())
    }

    /// The partial copy of a model, if there is one; none while it is being deleted.
    pub fn partial(&self, id: ModelId) -> Result<Option<Arc<PartialModel>>, StoreError> {
        // The list is read under the lock: a model that it still has is not gone in between.
        let mut partials = lock(&self.partials);
        if partials.removing.contains(&id) {
            return Ok(None);
        }
        if let Some(known) = partials.open.get(&id) {
            return Ok(Some(known.clone()));
        }
        if !self.entries()?.iter().any(|e| e.id == id && e.fetched) {
            return Ok(None);
        }
        let manifest = self.manifest(id)?;
        let partial = Arc::new(PartialModel::open(&self.layout.fetched_model(id), id, manifest)?);
        partials.open.insert(id, partial.clone());
        Ok(Some(partial))
    }

    /// Whether [`Store::read_chunk`] would give this chunk.
    pub fn has_chunk(&self, id: ModelId, chunk: ChunkRef) -> bool {
        let Ok(entry) = self.entry(id) else { return false };
        if let Some(Ok(_)) = usable_local(&entry) {
            return self.manifest(id).is_ok_and(|m| m.chunk_len(chunk).is_some());
        }
        matches!(self.partial(id), Ok(Some(partial)) if partial.has_chunk(chunk))
    }

    /// A chunk to send to a peer: from the local model, or from what was fetched.
    pub fn read_chunk(&self, id: ModelId, chunk: ChunkRef) -> Result<Vec<u8>, ChunkError> {
        let entry = self.entry(id)?;
        if let Some(Ok(local)) = usable_local(&entry) {
            let manifest = self.manifest(id)?;
            let len = manifest.chunk_len(chunk).ok_or(ChunkError::OutOfRange { model: id, chunk })?;
            let file = local.files.get(chunk.file as usize);
            let file = file.ok_or(ChunkError::OutOfRange { model: id, chunk })?;
            return Ok(read_local(file, id, manifest.chunk_start(chunk), len)?);
        }
        match self.partial(id)? {
            Some(partial) if partial.checked() == Some(false) => Err(ChunkError::Differs { model: id }),
            Some(partial) => partial.read_chunk(chunk),
            None => Err(ChunkError::NotHeld { model: id, chunk }),
        }
    }

    /// Which chunks of a partial copy are here, for [`crate::HeldMap::decode`] elsewhere.
    pub fn held(&self, id: ModelId) -> Result<Vec<u8>, StoreError> {
        Ok(self.partial(id)?.ok_or(StoreError::UnknownModel { id })?.held())
    }

    /// Bytes of the model on this disk: all of a local one, the chunks held of a fetched one.
    pub fn held_bytes(&self, id: ModelId) -> Result<u64, StoreError> {
        Ok(self.record(id)?.held_bytes)
    }

    fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let (entries, warnings) = registry::load(&self.layout)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(entries)
    }

    fn entry(&self, id: ModelId) -> Result<Entry, StoreError> {
        self.entries()?.into_iter().find(|e| e.id == id).ok_or(StoreError::UnknownModel { id })
    }

    fn add(
        &self,
        path: &Path,
        (name, known): (Option<&str>, KnownHashes<'_>),
        is_builtin: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ModelRecord, StoreError> {
        let path = absolute(path).map_err(|e| failed("find", path, 0, e))?;
        let mut model = exo_formats::open(&path).map_err(StoreError::Open)?;
        if let Some(name) = name {
            model.name = name.chars().filter(|c| !c.is_control()).take(128).collect();
        }
        let local = Local { path: root_of(&model, &path), is_builtin, files: fingerprints(&model)? };
        let is_named = |e: &Entry| commits::plain_name(&e.name) == model.name || e.name == model.name;
        let listed = self.entries()?.into_iter().find(|e| e.local.as_ref() == Some(&local) && is_named(e));
        if let Some(mut entry) = listed.filter(|e| self.manifest(e.id).is_ok()) {
            progress(entry.bytes, entry.bytes);
            if std::mem::take(&mut entry.replaced) {
                // Somebody asks for it again.
                self.change(&[entry.id], |entry| entry.replaced = false)?;
            }
            return Ok(self.record_of(&entry));
        }
        let hashed = self.hashed_before(&local)?;
        let known = |path: &Path, chunk_bytes: u32| {
            known(path, chunk_bytes).or_else(|| hashes_of(hashed.as_deref()?, &local, path, chunk_bytes))
        };
        let manifest = Manifest::of_known(&model, &known, progress)?;
        if fingerprints(&model)? != local.files || model.check().is_err() {
            return Err(StoreError::ChangedMeanwhile { path });
        }
        let id = manifest.root();
        if name.is_none() && !is_builtin && !self.is_of_hub(&local) {
            let listed = self.entries()?.into_iter().find(|e| e.id == id && self.has_other_copy(e, &local));
            if let Some(entry) = listed {
                // It stays noted as it is until it changes, or until something else stands at its path.
                if !entry.copies.contains(&local) {
                    registry::update(&self.layout, |entries| insert_copy(entries, id, &local))?;
                }
                return Ok(self.record_of(&entry));
            }
        }
        write_atomic(&self.layout.manifest(id), &manifest.to_bytes())?;
        let (before, entry) = registry::update(&self.layout, |entries| {
            let before = entries.iter().find(|e| e.id == id).and_then(|e| e.local.clone());
            let entry = insert_local(entries, id, &manifest, local);
            commits::name_new(&self.layout, entries, id);
            (before, entry)
        })?;
        lock(&self.manifests).insert(id, Arc::new(manifest));
        self.delete_other_copy(before, &entry)?;
        self.record(id)
    }

    /// The manifest of the model that these files were when they were hashed, if they are still the same.
    fn hashed_before(&self, local: &Local) -> Result<Option<Arc<Manifest>>, StoreError> {
        // What a check found damaged is not what was hashed; no damaged copy is among the others.
        let is_it = |e: &Entry| match e.local.as_ref() == Some(local) {
            true => e.checked != Some(false),
            false => e.copies.contains(local),
        };
        let entry = self.entries()?.into_iter().find(is_it);
        Ok(entry.and_then(|entry| self.manifest(entry.id).ok()))
    }

    fn is_of_hub(&self, local: &Local) -> bool {
        commits::hub_folder(&self.layout.hub(), &local.path).is_some()
    }

    /// Whether a model is listed from a place of the user's that is not this one, and is still there.
    fn has_other_copy(&self, entry: &Entry, than: &Local) -> bool {
        let usable = usable_local(entry).and_then(Result::ok);
        usable.is_some_and(|other| other.path != than.path && !self.is_of_hub(other))
            && self.manifest(entry.id).is_ok()
    }

    /// The same bytes came with another commit of a hub: the list does not know the older folder any more.
    fn delete_other_copy(&self, before: Option<Local>, now: &Entry) -> Result<(), StoreError> {
        let hub = self.layout.hub();
        let folder_of = |local: &Local| commits::hub_folder(&hub, &local.path);
        let Some(before) = before else { return Ok(()) };
        // A link of the user's to the hub's copy is that copy.
        let place = |local: &Local| fs::canonicalize(&local.path).ok();
        if now.local.as_ref().and_then(place).is_some_and(|now| place(&before) == Some(now)) {
            return Ok(());
        }
        let (folder, now) = (folder_of(&before), now.local.as_ref().map(|local| (local, folder_of(local))));
        let folder = match (folder, now) {
            (Some(folder), Some((_, Some(now)))) if now != folder => folder,
            (Some(folder), Some((own, None))) => {
                if !commits::is_shared(&hub, &folder, &before, &self.entries()?) {
                    // In no list any more: without its record it is what `exo prune` deletes.
                    let _ = fs::remove_file(commits::record_of(&folder));
                }
                let (own, folder) = (own.path.display(), folder.display());
                tracing::warn!(%own, %folder, "the same bytes are here twice: the user's own file counts, and `exo prune` deletes the copy of the hub");
                return Ok(());
            }
            (None, Some((copy, Some(_)))) => {
                let (own, copy) = (before.path.display(), copy.path.display());
                tracing::warn!(%own, %copy, "the same bytes are here twice: the copy of the hub counts, and the user's own file is not used any more");
                return Ok(());
            }
            _ => return Ok(()),
        };
        if let Err(error) = commits::delete_copy(&hub, &folder, &before, &self.entries()?) {
            tracing::warn!(path = %folder.display(), %error, "an older copy of the same bytes cannot be deleted");
        }
        Ok(())
    }

    fn record_of(&self, entry: &Entry) -> ModelRecord {
        let local = usable_local(entry);
        let partial = if entry.fetched { self.partial(entry.id).ok().flatten() } else { None };
        let is_local = matches!(local, Some(Ok(_)));
        let source = match &entry.local {
            Some(local) if is_local || partial.is_none() => {
                if local.is_builtin {
                    Source::Builtin
                } else {
                    Source::Local
                }
            }
            _ => Source::Fetched,
        };
        let fetched_path = || partial.as_ref().map_or_else(PathBuf::new, |p| p.path().to_owned());
        let path = match (&entry.local, source) {
            (Some(local), Source::Local | Source::Builtin) => local.path.clone(),
            _ => fetched_path(),
        };
        let held_bytes = if is_local { entry.bytes } else { partial.as_ref().map_or(0, |p| p.held_bytes()) };
        ModelRecord {
            id: entry.id,
            name: entry.name.clone(),
            path,
            bytes: entry.bytes,
            held_bytes,
            complete: held_bytes == entry.bytes,
            source,
            is_of_hub: partial.as_ref().is_some_and(|p| p.manifest().hub.is_some()),
            is_downloaded: match &entry.local {
                Some(local) => commits::hub_folder(&self.layout.hub(), &local.path).is_some(),
                None => entry.fetched,
            },
            is_kept: entry.kept,
            used_unix_s: entry.used_unix_s,
            is_replaced: entry.replaced,
            reference: entry.reference.clone(),
            checked: entry.checked.filter(|_| is_local).or_else(|| partial.and_then(|p| p.checked())),
            problem: local.and_then(Result::err),
        }
    }
}

/// The hashes that a manifest has of one of a copy's files.
fn hashes_of(manifest: &Manifest, copy: &Local, path: &Path, chunk_bytes: u32) -> Option<Vec<[u8; 32]>> {
    let at = copy.files.iter().position(|file| file.path == path)?;
    let is_same = manifest.chunk_bytes == chunk_bytes && manifest.files.len() == copy.files.len();
    is_same.then(|| manifest.files[at].chunks.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
