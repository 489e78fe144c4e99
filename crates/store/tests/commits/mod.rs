//! Commits of models from a hub: their names, which of them go, and folders that two of them share.

use std::fs;
use std::path::{Path, PathBuf};

use exo_store::{HubFile, HubSource, Manifest, ModelRecord, Replaced, Store};
use exo_types::DType;

use crate::{Home, add, common};

const OLD: &str = "0123456789abcdef0123456789abcdef01234567";
const NEW: &str = "89abcdef89abcdef89abcdef89abcdef89abcdef";

/// A file in the folder of a commit, as a pull leaves it.
fn fetched(home: &Home, commit: &str, name: &str, matrix: DType) -> PathBuf {
    let folder = home.folder.path().join("data/hub/org/repo").join(commit).join("Q8_0");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.with_file_name("Q8_0.origin.json"), "{}").unwrap();
    let path = folder.join(name);
    fs::write(&path, common::sample(matrix, true, |_| {})).unwrap();
    path
}

/// What a pull does with a model that opens.
fn pull(store: &Store, path: &Path) -> ModelRecord {
    let id = add(store, path).id;
    store.takes_name(id).unwrap()
}

fn names(store: &Store) -> Vec<String> {
    store.list().unwrap().into_iter().map(|record| record.name).collect()
}

#[test]
fn of_two_files_in_one_folder_only_that_of_the_model_is_deleted() {
    let home = Home::new();
    let store = home.store();
    let [a, b] = [("a.gguf", DType::F16), ("b.gguf", DType::F32)].map(|(n, m)| fetched(&home, OLD, n, m));
    let [of_a, of_b] = [&a, &b].map(|path| pull(&store, path));
    // The bytes of one come again with a newer commit.
    let newer = fetched(&home, NEW, "a.gguf", DType::F16);
    assert_eq!(pull(&store, &newer).id, of_a.id);
    assert!(!a.exists() && b.exists() && newer.exists());
    assert_eq!(store.record(of_b.id).unwrap().problem, None);
    let a = fetched(&home, OLD, "a.gguf", DType::Q8_0);
    let of_a = pull(&store, &a);
    assert_eq!(store.remove(of_a.id).unwrap(), of_a.bytes);
    assert!(!a.exists() && b.exists());
    assert!(store.open_model(of_b.id).is_ok());
    fs::remove_file(&b).unwrap();
    assert_eq!(store.remove(of_b.id).unwrap(), 0, "nothing of it was there any more");
    assert!(!b.parent().unwrap().exists(), "nobody's folder any more");
}

#[test]
fn the_name_is_taken_last_and_goes_back_to_an_older_commit_that_is_asked_for() {
    let home = Home::new();
    let store = home.store();
    let [old, new] = [(OLD, DType::F16), (NEW, DType::F32)].map(|(c, m)| fetched(&home, c, "m.gguf", m));
    let first = pull(&store, &old);
    let second = add(&store, &new);
    assert_eq!(names(&store), ["m", "m@89abcde"]);
    // It does not open: the one that works has never been without its name.
    store.forget(second.id).unwrap();
    assert_eq!(store.find("m").unwrap().id, first.id);
    assert_eq!(pull(&store, &new).name, "m");
    assert_eq!(names(&store), ["m", "m@0123456"]);
    assert_eq!(pull(&store, &old).id, first.id);
    assert_eq!(
        (store.find("m").unwrap().id, names(&store)),
        (first.id, vec!["m".into(), "m@89abcde".into()])
    );
}

#[test]
fn what_is_replaced_goes_unless_it_is_kept_by_its_commit_or_asked_for_again() {
    let home = Home::new();
    let store = home.store();
    let [old, new] = [(OLD, DType::F16), (NEW, DType::F32)].map(|(c, m)| fetched(&home, c, "m.gguf", m));
    let [old, new] = [pull(&store, &old).id, add(&store, &new).id];
    let about = |id| store.record(id).map(|record| (record.is_replaced, record.is_kept)).unwrap();
    store.keep(old, true).unwrap();
    assert_eq!(store.replace(old, new).unwrap(), Replaced::Goes { name: "m@0123456".to_owned() });
    assert_eq!((about(old), about(new)), ((true, false), (false, true)), "kept is what the name means");
    assert_eq!(store.replace(old, new).unwrap(), Replaced::Gone);
    // A hub that goes back.
    store.asked_for(old, "hf.co/org/repo").unwrap();
    store.replace(new, old).unwrap();
    assert_eq!((about(old), about(new)), ((false, true), (true, false)));
    assert_eq!(store.find("m").unwrap().id, old);
    store.takes_name(new).unwrap();
    assert_eq!(about(new), (false, false));
    // By its commit it is kept for itself.
    store.keep(old, true).unwrap();
    assert_eq!(store.replace(old, new).unwrap(), Replaced::Stays);
    assert_eq!((about(old), about(new)), ((false, true), (false, false)));
}

#[test]
fn what_comes_from_a_peer_takes_no_name_from_a_model_of_this_machine() {
    let (home, other) = (Home::new(), Home::new());
    let store = home.store();
    let of_peer = |commit: &str| {
        let model = exo_formats::open(&other.model("m.gguf", DType::F32)).unwrap();
        let whole = Manifest::of(&model, &mut |_, _| {}).unwrap();
        let hub = HubSource {
            repo: "org/repo".to_owned(),
            commit: commit.to_owned(),
            label: "Q8_0".to_owned(),
            licence: String::new(),
            files: vec![HubFile { path: "m.gguf".to_owned(), sha256: Some([1; 32]) }],
        };
        let head = whole.files[0].head_bytes.div_ceil(whole.chunk_bytes.into());
        Manifest::of_hub(&model, hub, vec![whole.files[0].chunks[..head as usize].to_vec()]).unwrap()
    };
    store.prepare(&of_peer(NEW)).unwrap();
    store.prepare(&of_peer(OLD)).unwrap();
    assert_eq!(names(&store), ["m", "m@89abcde"], "of two that nobody here asked for, it is the last one's");
    let own = pull(&store, &fetched(&home, &"a".repeat(40), "m.gguf", DType::F16)).id;
    assert_eq!(names(&store), ["m", "m@0123456", "m@89abcde"]);
    let id = store.prepare(&of_peer(&"b".repeat(40))).unwrap().id();
    assert_eq!(store.find("m").unwrap().id, own);
    assert_eq!(store.record(id).unwrap().name, "m@bbbbbbb");
}

#[test]
fn a_copy_of_the_hub_beside_the_user_s_own_file_counts_as_never_finished() {
    let home = Home::new();
    let store = home.store();
    let copy = fetched(&home, OLD, "m.gguf", DType::F16);
    let record = copy.parent().unwrap().with_file_name("Q8_0.origin.json");
    let id = pull(&store, &copy).id;
    let own = home.folder.path().join("own.gguf");
    fs::copy(&copy, &own).unwrap();
    assert_eq!(pull(&store, &own).id, id);
    assert!(copy.exists() && !record.exists(), "whoever looks for what is in no list finds it");
    assert_eq!(store.record(id).unwrap().path.file_name(), own.file_name());
}
