use exo_types::DType;

use super::*;
use crate::{HubFile, HubSource, common};

/// A store, and a model in small chunks that it fetches.
struct Scene {
    folder: tempfile::TempDir,
    store: Store,
    manifest: Manifest,
    bytes: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.gguf");
        fs::write(&path, common::sample(DType::F32, true, |_| {})).unwrap();
        let whole = exo_formats::open(&path).unwrap();
        let manifest = Manifest::with_chunks(&whole, 4096, (0, &|_, _| None), &mut |_, _| {}).unwrap();
        let (store, warnings) = Store::open(&folder.path().join("data")).unwrap();
        assert_eq!(warnings, []);
        Self { folder, store, manifest, bytes: fs::read(&path).unwrap() }
    }

    fn id(&self) -> ModelId {
        self.manifest.root()
    }

    fn copy(&self) -> Arc<PartialModel> {
        self.store.prepare(&self.manifest).unwrap()
    }

    fn copy_folder(&self) -> PathBuf {
        self.store.layout.fetched_model(self.id())
    }

    fn send(&self, chunk: ChunkRef) -> &[u8] {
        let start = self.manifest.chunk_start(chunk) as usize;
        &self.bytes[start..start + self.manifest.chunk_len(chunk).unwrap() as usize]
    }

    /// All but a few chunks in the middle.
    fn fetch(&self, copy: &PartialModel) {
        let all = self.manifest.chunk_count(0);
        let head = copy.missing_head();
        let layers = (0..all).filter(|index| !(all / 2..all / 2 + 4).contains(index));
        let layers = layers.map(|index| ChunkRef { file: 0, index });
        head.into_iter().chain(layers).for_each(|c| copy.write_chunk(c, self.send(c)).unwrap());
        copy.flush().unwrap();
    }

    fn pruned(&self) -> usize {
        self.store.prune(&|_| false).unwrap().0
    }
}

#[test]
fn a_model_that_is_being_removed_is_not_made_anew_by_who_looks_at_the_list() {
    let scene = Scene::new();
    scene.fetch(&scene.copy());
    let removal = Removal::begin(&scene.store.partials, scene.id());
    scene.store.delete_fetched(scene.id()).unwrap();
    // The list still has it.
    assert_eq!(scene.store.list().unwrap()[0].held_bytes, 0);
    assert!(scene.store.partial(scene.id()).unwrap().is_none());
    assert!(!scene.store.has_chunk(scene.id(), ChunkRef { file: 0, index: 0 }));
    assert!(matches!(scene.store.prepare(&scene.manifest), Err(StoreError::Removed { .. })));
    assert!(!scene.copy_folder().exists());
    drop(removal);
    assert_eq!(scene.copy().held_bytes(), 0);
    assert_eq!(scene.store.list().unwrap().len(), 1);
}

#[test]
fn a_model_that_was_removed_while_others_looked_is_listed_when_it_is_fetched_again() {
    let scene = Scene::new();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = scene.store.list();
                    let _ = scene.store.partial(scene.id());
                    std::thread::yield_now();
                }
            });
        }
        let rounds = || -> Result<(), String> {
            for round in 0..20 {
                let copy = scene.store.prepare(&scene.manifest).map_err(|e| format!("{round}: {e}"))?;
                let listed = scene.store.record(scene.id()).map_err(|e| format!("{round}: {e}"))?;
                let chunk = copy.missing_head()[0];
                copy.write_chunk(chunk, scene.send(chunk)).map_err(|e| format!("{round}: {e}"))?;
                scene.store.remove(listed.id).map_err(|e| format!("{round}: {e}"))?;
                if scene.copy_folder().exists() {
                    return Err(format!("{round}: its folder is there"));
                }
            }
            Ok(())
        };
        let done = rounds();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(done, Ok(()));
    });
}

#[test]
fn who_still_has_a_copy_that_was_pruned_changes_nothing_of_the_next_one() {
    let scene = Scene::new();
    let before = scene.copy();
    before.note_finished(false);
    scene.fetch(&before);
    // Not synchronised: its map would be written when it is dropped.
    let last = ChunkRef { file: 0, index: scene.manifest.chunk_count(0) / 2 };
    before.write_chunk(last, scene.send(last)).unwrap();
    scene.store.asked_for(scene.id(), "hf.co/org/repo").unwrap();
    assert_eq!(scene.pruned(), 1);
    let now = scene.copy();
    let first = ChunkRef { file: 0, index: 0 };
    assert_eq!((before.held_bytes(), now.held_bytes()), (0, 0));
    assert!(matches!(
        before.write_chunk(first, scene.send(first)),
        Err(ChunkError::Store(StoreError::Removed { .. }))
    ));
    assert!(before.read_chunk(first).is_err());
    assert!(matches!(before.flush(), Err(StoreError::Removed { .. })));
    assert!(matches!(before.note_check(true, before.unseen()), Err(StoreError::Removed { .. })));
    before.note_finished(false);
    drop(before);
    let names =
        |folder: &Path| fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(&scene.copy_folder()), ["files"], "no map promises what is not there");
    drop(now);
    let (after, _) = Store::open(&scene.folder.path().join("data")).unwrap();
    assert_eq!(after.record(scene.id()).unwrap().held_bytes, 0);
}

#[test]
fn only_what_a_fetch_is_known_to_have_left_unfinished_is_pruned() {
    let scene = Scene::new();
    let copy = scene.copy();
    scene.fetch(&copy);
    assert!(copy.has_finished() && !copy.is_unfinished());
    assert_eq!(scene.pruned(), 0, "of another version of exo, or before its fetch has stored a byte");
    copy.note_finished(false);
    assert!(copy.is_unfinished() && !copy.has_finished());
    copy.note_finished(true);
    assert_eq!(scene.pruned(), 0, "a shard");
    copy.note_finished(false);
    scene.store.keep(scene.id(), true).unwrap();
    assert_eq!(scene.pruned(), 0, "kept");
    scene.store.keep(scene.id(), false).unwrap();
    assert_eq!(scene.store.prune(&|id| id == scene.id()).unwrap(), (0, 0), "in use");
    let held = copy.held_bytes();
    let (models, freed) = scene.store.prune(&|_| false).unwrap();
    assert!(models == 1 && freed >= held, "{models} {freed} {held}");
    assert!(scene.store.list().unwrap().is_empty() && !scene.copy_folder().exists());
}

#[test]
fn what_cannot_be_opened_for_a_moment_is_not_pruned() {
    let scene = Scene::new();
    let copy = scene.copy();
    copy.note_finished(false);
    scene.fetch(&copy);
    let held = copy.held_bytes();
    drop(copy);
    let (store, _) = Store::open(&scene.folder.path().join("data")).unwrap();
    // A folder in the place of the map is an error to read it, as a failing disk gives.
    let (map, aside) = (scene.copy_folder().join("held"), scene.copy_folder().join("aside"));
    fs::rename(&map, &aside).unwrap();
    fs::create_dir(&map).unwrap();
    assert!(store.partial(scene.id()).is_err());
    assert_eq!(store.prune(&|_| false).unwrap(), (0, 0));
    fs::remove_dir(&map).unwrap();
    fs::rename(&aside, &map).unwrap();
    assert_eq!(store.record(scene.id()).unwrap().held_bytes, held);
    assert_eq!(store.prune(&|_| false).unwrap().0, 1);
}

#[test]
fn another_commit_that_cannot_be_opened_stops_nothing() {
    let scene = Scene::new();
    let at = |commit: &str| {
        let mut manifest = scene.manifest.clone();
        let heads = manifest.files[0].head_bytes.div_ceil(4096) as usize;
        manifest.files[0].chunks.truncate(heads);
        let files = vec![HubFile { path: manifest.files[0].name.clone(), sha256: Some([7; 32]) }];
        let (repo, commit) = ("org/repo".to_owned(), commit.repeat(20));
        manifest.hub =
            Some(HubSource { repo, commit, label: "F32".to_owned(), licence: String::new(), files });
        manifest.version = 2;
        manifest
    };
    let older = at("0a");
    scene.store.prepare(&older).unwrap();
    let held = scene.store.layout.fetched_model(older.root()).join("held");
    let _ = fs::remove_file(&held);
    fs::create_dir(&held).unwrap();
    // Another run, which has nothing open.
    let (store, _) = Store::open(&scene.folder.path().join("data")).unwrap();
    assert!(store.partial(older.root()).is_err());
    assert_eq!(store.prepare(&at("0b")).unwrap().held_bytes(), 0);
}
