//! The store as `node` uses it: add, find, serve, fetch, remove, restart.
#![allow(clippy::unwrap_used)] // helpers are outside of what `allow-unwrap-in-tests` sees

mod commits;
#[path = "../../formats/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use exo_store::{
    ChunkError, ChunkRef, FindError, ModelRecord, RecordProblem, Source, Store, StoreError, StoreWarning,
};
use exo_types::{DType, ModelId, Shard};

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> Store {
        let (store, warnings) = Store::open(&self.folder.path().join("data")).unwrap();
        assert_eq!(warnings, []);
        store
    }

    /// A model file of the user's own.
    fn model(&self, name: &str, matrix: DType) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, common::sample(matrix, true, |_| {})).unwrap();
        path
    }
}

fn add(store: &Store, path: &Path) -> ModelRecord {
    store.add_path(path, &mut |_, _| {}).unwrap()
}

#[test]
fn a_model_is_hashed_once_and_survives_a_restart() {
    let home = Home::new();
    let path = home.model("a.gguf", DType::F16);
    let mut calls = Vec::new();
    let record = home.store().add_path(&path, &mut |done, total| calls.push((done, total))).unwrap();
    assert_eq!(
        (calls.first(), calls.last()),
        (Some(&(0, record.bytes)), Some(&(record.bytes, record.bytes)))
    );
    assert!(calls.len() > 1);
    let store = home.store();
    calls.clear();
    let again = store.add_path(&path, &mut |done, total| calls.push((done, total))).unwrap();
    assert_eq!(calls, [(record.bytes, record.bytes)], "nothing was hashed again");
    assert_eq!(again, record);
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&record));
    assert_eq!((record.complete, record.source, record.problem), (true, Source::Local, None));
    assert_eq!(store.manifest(record.id).unwrap().root(), record.id);
    assert_eq!(store.open_model(record.id).unwrap().config.layers, 3);
}

#[test]
fn a_second_copy_takes_nothing_from_the_first_unless_it_is_named_or_the_first_is_gone() {
    let home = Home::new();
    let store = home.store();
    let [first, second] = ["first.gguf", "second.gguf"].map(|name| home.model(name, DType::F16));
    let known = add(&store, &first);
    assert_eq!(add(&store, &second), known, "whoever asks for `first` still finds it");
    let named = store.add_path_as(&second, "other", &mut |_, _| {}).unwrap();
    assert_eq!((named.id, named.name.as_str(), named.path.as_path()), (known.id, "other", second.as_path()));
    fs::remove_file(&second).unwrap();
    let moved = add(&store, &first);
    assert_eq!((moved.id, moved.name.as_str(), moved.path.as_path()), (known.id, "first", first.as_path()));
    let builtin = store.add_builtin("demo.gguf", &fs::read(&first).unwrap()).unwrap();
    assert_eq!((builtin.id, builtin.name.as_str()), (known.id, "demo"), "this name is exo's promise");
}

#[test]
fn a_second_copy_is_hashed_once_and_again_only_after_it_changed() {
    let home = Home::new();
    let store = home.store();
    let [first, second] = ["first.gguf", "second.gguf"].map(|name| home.model(name, DType::F32));
    let known = add(&store, &first);
    // Two or more chunks: progress is told of each that is hashed, and of a known file once.
    let is_hashed = |store: &Store, path: &Path| {
        let mut calls = 0;
        let record = store.add_path(path, &mut |_, _| calls += 1).unwrap();
        assert_eq!(record.id, known.id);
        calls > 2
    };
    assert!(is_hashed(&store, &second));
    assert!(!is_hashed(&store, &second) && !is_hashed(&home.store(), &second), "nor after a restart");
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&known), "whoever asks for `first` finds it");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    fs::File::options().append(true).open(&second).unwrap().set_modified(later).unwrap();
    assert!(is_hashed(&store, &second) && !is_hashed(&store, &second));
    fs::remove_file(&first).unwrap();
    assert!(!is_hashed(&store, &second), "the one that is left is the one that was hashed");
    assert_eq!(store.find("second").unwrap().path.file_name(), second.file_name());
}

#[test]
fn a_copy_that_a_check_found_damaged_is_read_again() {
    let home = Home::new();
    let store = home.store();
    let [first, second] = ["first.gguf", "second.gguf"].map(|name| home.model(name, DType::F32));
    let is_hashed = |path: &Path, name: &str| {
        let mut calls = 0;
        store.add_path_as(path, name, &mut |_, _| calls += 1).unwrap();
        calls > 2
    };
    let id = add(&store, &first).id;
    assert!(is_hashed(&second, "second") && !is_hashed(&first, "first"));
    store.note_check(id, false).unwrap();
    assert!(!is_hashed(&second, "second"));
    assert!(is_hashed(&first, "first"), "its hashes are not those of the bytes that lie there");
    store.note_check(id, false).unwrap();
    assert!(is_hashed(&first, "third"), "nor are they while it is the one in use");
}

#[test]
fn a_second_copy_takes_the_path_of_what_stood_there_before() {
    let home = Home::new();
    let store = home.store();
    let files = [("first.gguf", DType::F32), ("second.gguf", DType::F16)];
    let [first, second] = files.map(|(name, matrix)| home.model(name, matrix));
    let known = add(&store, &first);
    let before = add(&store, &second);
    assert_ne!(before.id, known.id);
    fs::copy(&first, &second).unwrap();
    assert_eq!(add(&store, &second), known);
    assert_eq!(store.list().unwrap(), [known], "what stood there is not there any more");
    // What comes there next takes it from the copy, too.
    assert_eq!(add(&store, &home.model("second.gguf", DType::F16)).id, before.id);
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn where_a_model_stood_may_come_another_while_a_copy_of_it_is_elsewhere() {
    let home = Home::new();
    let store = home.store();
    let [first, second, third] =
        ["first.gguf", "second.gguf", "third.gguf"].map(|name| home.model(name, DType::F32));
    let known = add(&store, &first);
    assert_eq!((add(&store, &second).id, add(&store, &third).id), (known.id, known.id));
    store.note_check(known.id, false).unwrap();
    fs::remove_file(&third).unwrap();
    let other = add(&store, &home.model("first.gguf", DType::F16));
    assert_ne!(other.id, known.id);
    assert_eq!(store.find("first").unwrap(), other);
    let left = store.find("second").unwrap();
    assert_eq!((left.id, left.checked, left.problem), (known.id, None, None), "the copy that is still there");
    assert_eq!(left.path.file_name(), second.file_name());
    // Nothing is left of it once something else stands there, too.
    add(&store, &home.model("second.gguf", DType::F16));
    assert!(store.find(&known.id.to_full()).is_err());
}

#[test]
fn a_file_whose_hashes_are_known_is_not_read_for_them() {
    let (home, other) = (Home::new(), Home::new());
    let path = home.model("a.gguf", DType::F16);
    let bytes = fs::read(&path).unwrap();
    let hashes = |of: &Path, chunk_bytes: u32| {
        assert_eq!(fs::canonicalize(of).unwrap(), fs::canonicalize(&path).unwrap());
        bytes.chunks(chunk_bytes as usize).map(|chunk| *blake3::hash(chunk).as_bytes()).collect::<Vec<_>>()
    };
    let (store, mut calls) = (home.store(), Vec::new());
    let known = |of: &Path, chunk_bytes| Some(hashes(of, chunk_bytes));
    let record = store.add_fetched(&path, &known, &mut |done, total| calls.push((done, total))).unwrap();
    assert_eq!(calls, [(0, record.bytes), (record.bytes, record.bytes)]);
    assert_eq!(record.id, add(&other.store(), &path).id);
    // Whatever is said of it is believed; but for too few hashes.
    let claims = |store: &Store, hashes: Vec<[u8; 32]>| {
        store.add_fetched(&path, &|_, _| Some(hashes.clone()), &mut |_, _| {}).unwrap().id
    };
    let count = hashes(&path, 64 << 10).len();
    assert_ne!(claims(&Home::new().store(), vec![[7; 32]; count]), record.id);
    assert_eq!(claims(&Home::new().store(), vec![[7; 32]; count - 1]), record.id);
}

#[test]
fn the_same_bytes_are_the_same_model_wherever_they_are() {
    let home = Home::new();
    let store = home.store();
    let a = add(&store, &home.model("a.gguf", DType::F16));
    let b = add(&store, &home.model("b.gguf", DType::F16));
    assert_eq!(a.id, b.id);
    assert_ne!(a.id, add(&store, &home.model("c.gguf", DType::F32)).id);
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn a_model_is_found_by_name_path_id_and_prefix() {
    let home = Home::new();
    let store = home.store();
    let path = home.model("Tiny.gguf", DType::F16);
    let record = add(&store, &path);
    let id = record.id.to_full();
    for text in ["Tiny", "tiny", path.to_str().unwrap(), id.as_str(), &id[..12]] {
        assert_eq!(store.find(text).unwrap().id, record.id, "{text}");
    }
    let error = store.find("other").unwrap_err();
    assert_eq!(error.to_string(), "no model `other` is known here; there are: Tiny");
    assert!(store.find(&id[..5]).is_err(), "too short to be an id");
    fs::create_dir(home.folder.path().join("x")).unwrap();
    add(&store, &home.model("x/Tiny.gguf", DType::F32));
    assert!(
        matches!(store.find("tiny"), Err(FindError::Ambiguous { candidates, .. }) if candidates.len() == 2)
    );
}

#[test]
fn a_file_that_changed_or_vanished_is_reported_and_not_served() {
    let home = Home::new();
    let store = home.store();
    let path = home.model("a.gguf", DType::F16);
    let record = add(&store, &path);
    let chunk = ChunkRef { file: 0, index: 0 };
    let whole = fs::read(&path).unwrap();
    assert_eq!(store.read_chunk(record.id, chunk).unwrap(), whole[..64 << 10]);
    fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    let problem = store.record(record.id).unwrap().problem;
    assert_eq!(problem, Some(RecordProblem::Changed { path: path.clone() }));
    assert!(store.read_chunk(record.id, chunk).is_err() && !store.has_chunk(record.id, chunk));
    assert!(matches!(store.open_model(record.id), Err(StoreError::Unusable { .. })));
    fs::remove_file(&path).unwrap();
    let listed = store.list().unwrap().remove(0);
    assert_eq!(
        (listed.complete, listed.problem),
        (false, Some(RecordProblem::Vanished { path: path.clone() }))
    );
    let other = add(&store, &home.model("a.gguf", DType::F32));
    assert_eq!(store.list().unwrap(), [other], "what stood at that path before is forgotten");
}

#[test]
fn a_model_travels_in_chunks_from_one_store_to_another() {
    let (from, to) = (Home::new(), Home::new());
    let (sender, receiver) = (from.store(), to.store());
    let id = add(&sender, &from.model("a.gguf", DType::F32)).id;
    let bytes = sender.manifest(id).unwrap().to_bytes();
    let manifest = exo_store::Manifest::from_bytes(&bytes).unwrap();
    assert_eq!(manifest.root(), id);
    let copy = receiver.prepare(&manifest).unwrap();
    let fetch = |chunks: Vec<ChunkRef>| {
        for chunk in chunks {
            copy.write_chunk(chunk, &sender.read_chunk(id, chunk).unwrap()).unwrap();
        }
    };
    fetch(copy.missing_head());
    let record = receiver.record(id).unwrap();
    assert_eq!(
        (record.source, record.complete, record.held_bytes),
        (Source::Fetched, false, copy.held_bytes())
    );
    let model = receiver.open_model(id).unwrap();
    assert_eq!(model.name, "a");
    fetch(copy.missing(&model.byte_ranges(&Shard::whole(3))));
    assert!(receiver.record(id).unwrap().complete);
    // A third node may fetch from the copy.
    let last = ChunkRef { file: 0, index: 1 };
    assert_eq!(receiver.read_chunk(id, last).unwrap(), sender.read_chunk(id, last).unwrap());
    assert!(matches!(
        receiver.read_chunk(id, ChunkRef { file: 0, index: 99 }),
        Err(ChunkError::OutOfRange { .. })
    ));
    assert!(matches!(receiver.read_chunk(ModelId([1; 32]), last), Err(ChunkError::Store(_))));
    drop((copy, receiver));
    let receiver = to.store();
    assert!(receiver.record(id).unwrap().complete, "after a restart too");
    let freed = receiver.remove(id).unwrap();
    assert!(freed >= manifest.total_bytes(), "{freed}");
    assert_eq!(fs::read_dir(to.folder.path().join("data/models")).unwrap().count(), 0);
}

#[test]
fn removing_a_model_never_deletes_the_users_file() {
    let home = Home::new();
    let store = home.store();
    let path = home.model("a.gguf", DType::F16);
    let id = add(&store, &path).id;
    assert_eq!(store.remove(id).unwrap(), 0);
    assert!(path.exists() && store.list().unwrap().is_empty());
    assert!(matches!(store.remove(id), Err(StoreError::UnknownModel { .. })));
}

#[test]
fn a_removal_that_ended_half_way_is_finished_by_the_next_one() {
    let (from, to) = (Home::new(), Home::new());
    let sender = from.store();
    let id = add(&sender, &from.model("a.gguf", DType::F16)).id;
    let receiver = to.store();
    let copy = receiver.prepare(&sender.manifest(id).unwrap()).unwrap();
    for chunk in copy.missing_head() {
        copy.write_chunk(chunk, &sender.read_chunk(id, chunk).unwrap()).unwrap();
    }
    drop((copy, receiver));
    // Files go first: what is left to do is in the list.
    fs::remove_dir_all(to.folder.path().join("data/models").join(id.to_full())).unwrap();
    let receiver = to.store();
    assert_eq!(receiver.record(id).unwrap().held_bytes, 0, "nothing is promised that is not there");
    receiver.remove(id).unwrap();
    assert!(receiver.list().unwrap().is_empty());
    let builtin = receiver.add_builtin("demo.gguf", &common::sample(DType::Q8_0, true, |_| {})).unwrap();
    fs::remove_file(&builtin.path).unwrap();
    receiver.remove(builtin.id).unwrap();
    assert!(receiver.list().unwrap().is_empty());
}

#[test]
fn a_builtin_model_is_written_once_and_served_like_any_other() {
    let home = Home::new();
    let store = home.store();
    let bytes = common::sample(DType::Q8_0, true, |_| {});
    let record = store.add_builtin("demo.gguf", &bytes).unwrap();
    assert_eq!((record.source, record.complete, record.name.as_str()), (Source::Builtin, true, "demo"));
    let before = fs::metadata(&record.path).unwrap().modified().unwrap();
    assert_eq!(home.store().add_builtin("demo.gguf", &bytes).unwrap(), record);
    assert_eq!(fs::metadata(&record.path).unwrap().modified().unwrap(), before);
    assert!(store.has_chunk(record.id, ChunkRef { file: 0, index: 0 }));
    assert!(matches!(store.add_builtin("../demo.gguf", &bytes), Err(StoreError::Name { .. })));
}

#[test]
fn a_damaged_list_is_moved_aside_and_fetched_models_are_found_again() {
    let (from, to) = (Home::new(), Home::new());
    let sender = from.store();
    let id = add(&sender, &from.model("a.gguf", DType::F16)).id;
    to.store().prepare(&sender.manifest(id).unwrap()).unwrap();
    add(&to.store(), &to.model("own.gguf", DType::F32));
    let data = to.folder.path().join("data");
    fs::write(data.join("models.json"), b"{\"version\":1,\"models\":[{").unwrap();
    fs::create_dir(data.join("models/strange")).unwrap();
    let (store, warnings) = Store::open(&data).unwrap();
    let moved_to = data.join("models.json.damaged-0");
    assert_eq!(warnings[0], StoreWarning::RegistryRebuilt { moved_to: moved_to.clone(), recovered: 1 });
    assert!(matches!(&warnings[1], StoreWarning::DamagedCopy { path, .. } if path.ends_with("strange")));
    assert!(moved_to.exists());
    assert_eq!(store.list().unwrap().iter().map(|r| r.id).collect::<Vec<_>>(), [id]);
    let (_, warnings) = Store::open(&data).unwrap();
    assert_eq!(warnings, [], "the second time all is well");
}

#[test]
fn a_list_of_another_version_keeps_its_models_and_names_those_it_cannot_read() {
    let (from, to) = (Home::new(), Home::new());
    let sender = from.store();
    let fetched = add(&sender, &from.model("a.gguf", DType::F16)).id;
    to.store().prepare(&sender.manifest(fetched).unwrap()).unwrap();
    let own = add(&to.store(), &to.model("own.gguf", DType::F32)).id;
    let data = to.folder.path().join("data");
    let mut list: serde_json::Value =
        serde_json::from_slice(&fs::read(data.join("models.json")).unwrap()).unwrap();
    list["version"] = 7.into();
    list["models"][0]["of_the_future"] = true.into();
    let models = list["models"].as_array_mut().unwrap();
    models.push(serde_json::json!({"name": "moved\u{1b}", "where": "elsewhere"}));
    fs::write(data.join("models.json"), list.to_string()).unwrap();
    let (store, warnings) = Store::open(&data).unwrap();
    let moved_to = data.join("models.json.version-7-0");
    let told = warnings[0].to_string();
    assert!(told.contains("format 7") && told.contains("2 models are taken over"), "{told}");
    assert!(told.contains("add these again: moved") && !told.contains('\u{1b}'), "{told}");
    assert_eq!(fs::read(&moved_to).unwrap(), list.to_string().into_bytes(), "nothing of it is lost");
    let mut ids: Vec<_> = store.list().unwrap().iter().map(|r| r.id).collect();
    ids.sort_unstable();
    let mut expected = [fetched, own];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert!(store.record(own).unwrap().complete);
    let (_, warnings) = Store::open(&data).unwrap();
    assert_eq!(warnings, [], "it is of this version now");
}

#[test]
fn what_a_check_found_is_kept_as_long_as_the_files_are_the_same() {
    let home = Home::new();
    let path = home.model("a.gguf", DType::F16);
    let id = add(&home.store(), &path).id;
    home.store().note_check(id, false).unwrap();
    let store = home.store();
    assert_eq!(store.record(id).unwrap().checked, Some(false), "it survives a restart");
    assert_eq!(add(&store, &path).checked, Some(false), "it is the same file");
    let renamed = store.add_path_as(&path, "other", &mut |_, _| {}).unwrap();
    assert_eq!((renamed.id, renamed.checked), (id, Some(false)), "under any name");
    store.note_check(id, true).unwrap();
    assert_eq!(store.record(id).unwrap().checked, Some(true));
    store.note_check(id, false).unwrap();
    // Somebody has put a file there whose bytes are right.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!(store.record(id).unwrap().checked, None);
    let again = add(&store, &path);
    assert_eq!((again.id, again.complete, again.checked), (id, true, None));
}

#[test]
fn what_is_no_model_is_not_added() {
    let home = Home::new();
    let store = home.store();
    let path = home.folder.path().join("a.gguf");
    fs::write(&path, b"GGUF but no more").unwrap();
    assert!(matches!(store.add_path(&path, &mut |_, _| {}), Err(StoreError::Open(_))));
    assert!(matches!(
        store.add_path(Path::new("/nowhere/a.gguf"), &mut |_, _| {}),
        Err(StoreError::Io { .. })
    ));
    assert_eq!(store.list().unwrap(), []);
}

#[test]
fn two_stores_on_one_folder_lose_nothing() {
    const EACH: u8 = 12;
    let home = Home::new();
    let (a, b) = (home.store(), home.store());
    let id = add(&a, &home.model("a.gguf", DType::F16)).id;
    let template = a.manifest(id).unwrap();
    std::thread::scope(|s| {
        for (store, first) in [(&a, 1), (&b, 1 + EACH)] {
            let mut manifest = (*template).clone();
            s.spawn(move || {
                for i in first..first + EACH {
                    manifest.files[0].chunks[0] = [i; 32]; // another hash, another model
                    store.prepare(&manifest).unwrap();
                }
            });
        }
    });
    assert_eq!(a.list().unwrap().len(), 1 + 2 * usize::from(EACH));
}
