use std::sync::Arc;

use exo_types::{DType, LayerRange, Shard};

use super::*;
use crate::{HubFile, HubSource, common};

/// A whole model on disk with its manifest in small chunks, and a folder for a copy.
struct Scene {
    folder: tempfile::TempDir,
    whole: Model,
    manifest: Arc<Manifest>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.gguf");
        let factors: Vec<u8> = (0..8).flat_map(|_| 2f32.to_le_bytes()).collect();
        let file = common::sample(DType::F32, true, |w| {
            _ = w.tensor("rope_freqs.weight", DType::F32, &[8], factors)
        });
        fs::write(&path, file).unwrap();
        let whole = exo_formats::open(&path).unwrap();
        let manifest = Manifest::with_chunks(&whole, 4096, (0, &|_, _| None), &mut |_, _| {}).unwrap();
        Self { folder, whole, manifest: Arc::new(manifest) }
    }

    fn copy(&self) -> PartialModel {
        PartialModel::open(&self.folder.path().join("copy"), self.manifest.root(), self.manifest.clone())
            .unwrap()
    }

    /// What a peer that has the whole model would send.
    fn send(&self, chunk: ChunkRef) -> Vec<u8> {
        let bytes = fs::read(&self.whole.files[chunk.file as usize].path).unwrap();
        let start = self.manifest.chunk_start(chunk) as usize;
        bytes[start..start + self.manifest.chunk_len(chunk).unwrap() as usize].to_vec()
    }

    fn fetch(&self, copy: &PartialModel, chunks: &[ChunkRef]) {
        chunks.iter().for_each(|c| copy.write_chunk(*c, &self.send(*c)).unwrap());
    }
}

#[test]
fn a_partial_copy_holds_its_share_and_gives_the_same_bytes() {
    let scene = Scene::new();
    let copy = scene.copy();
    assert!(matches!(copy.open_model(), Err(StoreError::HeadMissing { missing, .. }) if missing > 0));
    scene.fetch(&copy, &copy.missing_head());
    let model = copy.open_model().unwrap();
    assert_eq!(
        model.config, scene.whole.config,
        "the RoPE factors at the end of the file came with the head"
    );
    let shard = Shard::pipeline(LayerRange::new(1, 2), 3);
    let ranges = model.byte_ranges(&shard);
    scene.fetch(&copy, &copy.missing(&ranges));
    assert_eq!(copy.missing(&ranges), []);
    for name in model.tensors_of(&shard) {
        assert_eq!(model.tensor(name).unwrap().bytes(), scene.whole.tensor(name).unwrap().bytes(), "{name}");
    }
    let other = exo_formats::TensorName::Layer(0, exo_formats::LayerTensor::Up);
    assert_ne!(model.tensor(other).unwrap().bytes(), scene.whole.tensor(other).unwrap().bytes());
    assert!(copy.held_bytes() < scene.manifest.total_bytes() / 2, "{} bytes", copy.held_bytes());
}

#[test]
fn of_several_that_write_a_chunk_at_once_it_is_new_for_one() {
    let scene = Scene::new();
    let copy = scene.copy();
    for chunk in (0..4).map(|index| ChunkRef { file: 0, index }) {
        let bytes = scene.send(chunk);
        let start = std::sync::Barrier::new(4);
        let write = || {
            start.wait();
            copy.write_new_chunk(chunk, &bytes).unwrap()
        };
        let new = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4).map(|_| scope.spawn(write)).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).filter(|new| *new).count()
        });
        assert_eq!(new, 1, "{chunk}");
        assert!(!copy.write_new_chunk(chunk, &bytes).unwrap());
    }
}

#[test]
fn a_wrong_chunk_is_refused_by_name_and_nothing_is_written() {
    let scene = Scene::new();
    let copy = scene.copy();
    let chunk = ChunkRef { file: 0, index: 3 };
    let mut bytes = scene.send(chunk);
    bytes[100] ^= 1;
    let error = copy.write_chunk(chunk, &bytes).unwrap_err();
    assert!(error.to_string().starts_with("chunk 3 of file 0 of model"), "{error}");
    assert!(error.to_string().ends_with("does not match its hash"), "{error}");
    assert!(matches!(
        copy.write_chunk(chunk, &bytes[1..]),
        Err(ChunkError::Length { found_bytes: 4095, .. })
    ));
    let beyond = ChunkRef { file: 0, index: 9999 };
    assert!(matches!(copy.write_chunk(beyond, &bytes), Err(ChunkError::OutOfRange { .. })));
    assert!(matches!(copy.read_chunk(chunk), Err(ChunkError::NotHeld { .. })));
    assert_eq!((copy.held_bytes(), copy.has_chunk(chunk)), (0, false));
    assert!(fs::read(copy.path()).unwrap().iter().all(|b| *b == 0));
}

#[test]
fn a_copy_resumes_with_what_was_flushed_before_it_was_killed() {
    let scene = Scene::new();
    let copy = scene.copy();
    let all = copy.missing(&[FileRange { file: 0, start: 0, end: u64::MAX }]);
    scene.fetch(&copy, &all[..20]);
    std::mem::forget(copy); // no drop: as after kill -9
    let resumed = scene.copy();
    assert_eq!(resumed.held_bytes(), 16 * 4096, "every sixteenth chunk synchronises");
    assert_eq!(resumed.read_chunk(all[5]).unwrap(), scene.send(all[5]));
    scene.fetch(&resumed, &all);
    assert!(resumed.is_complete_in(&resumed.state()));
    drop(resumed);
    let complete = scene.copy();
    assert!(complete.is_complete_in(&complete.state()) && complete.missing_head().is_empty());
    assert_eq!(fs::read(complete.path()).unwrap(), fs::read(&scene.whole.files[0].path).unwrap());
}

#[test]
fn a_damaged_map_or_a_lost_file_costs_the_chunks_and_nothing_else() {
    let scene = Scene::new();
    let copy = scene.copy();
    scene.fetch(&copy, &copy.missing_head());
    let path = copy.path().to_owned();
    drop(copy);
    let map = scene.folder.path().join("copy").join(HELD);
    let good = fs::read(&map).unwrap();
    fs::write(&map, &good[..good.len() - 1]).unwrap();
    assert_eq!(scene.copy().held_bytes(), 0);
    fs::write(&map, &good).unwrap();
    assert!(scene.copy().held_bytes() > 0);
    fs::remove_file(&path).unwrap();
    assert_eq!(scene.copy().held_bytes(), 0, "the map cannot promise what is gone");
}

#[test]
fn a_folder_that_cannot_be_written_says_so() {
    let scene = Scene::new();
    fs::write(scene.folder.path().join("copy"), b"a file where the folder should be").unwrap();
    let error =
        PartialModel::open(&scene.folder.path().join("copy"), scene.manifest.root(), scene.manifest.clone());
    assert!(error.unwrap_err().to_string().starts_with("cannot create the folder"));
}

#[test]
fn who_asks_what_is_here_does_not_wait_for_the_disk_and_the_map_promises_only_what_is_safe() {
    let scene = Scene::new();
    let copy = scene.copy();
    let chunks: Vec<ChunkRef> =
        (0..scene.manifest.chunk_count(0)).map(|index| ChunkRef { file: 0, index }).collect();
    assert!(chunks.len() > UNSYNCED_MAX, "{}", chunks.len());
    std::thread::scope(|scope| {
        // Another thread synchronises, on a disk that stands.
        let turn = copy.flushing.lock().unwrap();
        let writer = scope.spawn(|| scene.fetch(&copy, &chunks[..UNSYNCED_MAX]));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !copy.has_chunk(chunks[UNSYNCED_MAX - 1]) && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(copy.has_chunk(chunks[0]), "they are here");
        assert!(!copy.folder.join(HELD).exists() && !writer.is_finished(), "and none is promised");
        drop(turn);
    });
    assert_eq!(copy.held_bytes(), copy.bytes_of(&chunks[..UNSYNCED_MAX]));
    let promised = fs::read(copy.folder.join(HELD)).unwrap();
    assert_eq!(promised, copy.held());
    // What came behind them stays unpromised while it is not synchronised.
    scene.fetch(&copy, &chunks[UNSYNCED_MAX..UNSYNCED_MAX + 1]);
    copy.write_map().unwrap();
    assert_eq!(fs::read(copy.folder.join(HELD)).unwrap(), promised);
    assert_ne!(copy.held(), promised);
}

/// As it is known before it is fetched: with the hashes of its head alone.
fn known_by_its_hub(scene: &Scene, commit: &str, sha256: u8) -> Manifest {
    let mut manifest = (*scene.manifest).clone();
    let heads = manifest.files[0].head_bytes.div_ceil(4096) as usize;
    manifest.files[0].chunks.truncate(heads);
    let files = vec![HubFile { path: "m.gguf".to_owned(), sha256: Some([sha256; 32]) }];
    let (repo, commit) = ("org/repo".to_owned(), commit.to_owned());
    let (label, licence) = ("F32".to_owned(), String::new());
    manifest.hub = Some(HubSource { repo, commit, label, licence, files });
    manifest
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the file system's clock is coarse")]
fn a_chunk_that_the_disk_has_damaged_is_held_no_more_and_only_that() {
    let scene = Scene::new();
    let manifest = Arc::new(known_by_its_hub(&scene, "0a", 7));
    let folder = scene.folder.path().join("of-hub");
    let open = || PartialModel::open(&folder, manifest.root(), manifest.clone()).unwrap();
    let (all, whole) = ([FileRange { file: 0, start: 0, end: u64::MAX }], manifest.chunk_count(0) as usize);
    let copy = open();
    scene.fetch(&copy, &copy.missing(&all));
    assert!(copy.unverified(&all).is_empty(), "it has just come");
    drop(copy);
    let copy = open();
    assert_eq!(copy.unverified(&all).len(), whole);
    assert_eq!(copy.verify(&copy.unverified(&all), &|_| true).unwrap(), []);
    assert!(copy.unverified(&all).is_empty(), "it was compared");
    // One behind the head, which no manifest has a hash of, and one of the head.
    let damaged = [ChunkRef { file: 0, index: 0 }, ChunkRef { file: 0, index: whole as u32 - 2 }];
    copy.note_check(true, copy.unseen()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20)); // the file system's clock is coarse
    let file = OpenOptions::new().write(true).open(copy.path()).unwrap();
    for chunk in damaged {
        let wrong = [!scene.send(chunk)[50]];
        exo_stdx::write_all_at(&file, &wrong, manifest.chunk_start(chunk) + 50).unwrap();
    }
    let mut found = copy.verify(&copy.unverified(&all), &|_| true).unwrap();
    found.sort();
    assert_eq!(found, damaged);
    assert_eq!((copy.missing(&all), copy.checked()), (damaged.to_vec(), None));
    drop(copy);
    let copy = open();
    assert_eq!(copy.missing(&all), damaged, "after a restart too");
    scene.fetch(&copy, &damaged);
    assert_eq!(copy.verify(&copy.held_chunks(), &|_| true).unwrap(), []);
    assert_eq!(copy.read_chunk(damaged[1]).unwrap(), scene.send(damaged[1]));
    // Who reads one that is damaged is not given it.
    exo_stdx::write_all_at(&file, &[!scene.send(damaged[1])[0]], manifest.chunk_start(damaged[1])).unwrap();
    assert!(matches!(copy.read_chunk(damaged[1]), Err(ChunkError::Damaged { .. })));
    assert!(matches!(copy.read_chunk(damaged[1]), Err(ChunkError::NotHeld { .. })));
    // Of what an earlier version of exo brought nobody knows what it was.
    drop(copy);
    fs::remove_file(folder.join(HASHES)).unwrap();
    assert!(open().unverified(&all).len() < whole - 1);
}

#[test]
fn what_another_commit_has_of_the_same_file_is_not_fetched_again() {
    let scene = Scene::new();
    let at = |commit: &str, sha256: u8| known_by_its_hub(&scene, commit, sha256);
    let folder = |manifest: &Manifest| scene.folder.path().join(manifest.root().to_full());
    let open = |manifest: &Manifest| {
        PartialModel::open(&folder(manifest), manifest.root(), Arc::new(manifest.clone())).unwrap()
    };
    let older = Arc::new(open(&at("0a", 7)));
    let chunks: Vec<ChunkRef> = (0..5).map(|index| ChunkRef { file: 0, index }).collect();
    scene.fetch(&older, &chunks);
    let newer = |sha256: u8| {
        let manifest = at(&format!("b{sha256}"), sha256);
        take_unchanged(&folder(&manifest), manifest.root(), &manifest, std::slice::from_ref(&older)).unwrap();
        open(&manifest)
    };
    let same = newer(7);
    assert_eq!(same.held_bytes(), 5 * 4096);
    let range = FileRange { file: 0, start: 0, end: 5 * 4096 };
    assert_eq!(same.unverified(&[range]), chunks, "what they were comes with them");
    assert_eq!(same.read_chunk(chunks[4]).unwrap(), scene.send(chunks[4]));
    assert_eq!(newer(8).held_bytes(), 0, "another file");
    // What comes for one changes nothing of the other.
    scene.fetch(&same, &[ChunkRef { file: 0, index: 5 }]);
    assert_eq!((same.held_bytes(), older.held_bytes()), (6 * 4096, 5 * 4096));
    let bytes = fs::read(older.file_path(0)).unwrap();
    assert!(bytes[5 * 4096..6 * 4096].iter().all(|byte| *byte == 0));
}

#[test]
fn what_a_removal_left_half_way_counts_as_never_finished() {
    let scene = Scene::new();
    let copy = scene.copy();
    scene.fetch(&copy, &copy.missing_head());
    copy.flush().unwrap();
    assert!(!has_begun(&copy.folder));
    let folder = copy.folder.clone();
    copy.note_removed();
    // Its files do not go: as if it had ended behind the map.
    let files = folder.join("files");
    fs::rename(&files, folder.join("aside")).unwrap();
    fs::write(&files, b"no folder").unwrap();
    assert!(delete(&folder).is_err());
    assert!(has_begun(&folder) && !folder.join(HELD).exists());
    fs::remove_file(&files).unwrap();
    fs::rename(folder.join("aside"), &files).unwrap();
    assert!(bytes_to_free(&folder) > 0);
    // Another name of it is another commit's.
    for file in fs::read_dir(&files).unwrap().flatten() {
        fs::hard_link(file.path(), scene.folder.path().join("another")).unwrap();
    }
    assert!(bytes_to_free(&folder) == 0 && disk_bytes(&folder) > 0);
    delete(&folder).unwrap();
    assert!(!folder.exists());
}
