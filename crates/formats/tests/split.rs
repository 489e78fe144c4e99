//! Models over several GGUF files: what opens, and what each kind of wrong part says.

#![allow(clippy::unwrap_used)] // helpers are outside of what `allow-unwrap-in-tests` sees

mod common;

use std::path::{Path, PathBuf};

use common::{bytes, chain, metadata, tensor_bytes, tensors};
use exo_formats::write::GgufWriter;
use exo_formats::{Model, open};
use exo_types::{DType, Shard};

/// Tensors of the parts of the sample: the vocabulary and a layer, two layers, the end.
const CUTS: [std::ops::Range<usize>; 3] = [0..10, 10..28, 28..30];

/// A part as `llama-gguf-split` writes it.
fn part(index: usize, count: u32, total: u32, change: impl FnOnce(&mut GgufWriter<'_>)) -> Vec<u8> {
    let mut w = GgufWriter::new();
    if index == 0 {
        metadata(&mut w, "llama");
    }
    w.u32("split.no", index as u32).u32("split.count", count).u32("split.tensors.count", total);
    for (i, (name, dtype, dims)) in tensors(DType::Q8_0, false).into_iter().enumerate() {
        if CUTS[index].contains(&i) {
            w.tensor(&name, dtype, &dims, bytes(i as u64 + 1, tensor_bytes(dtype, &dims)));
        }
    }
    change(&mut w);
    w.to_bytes()
}

fn path(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("big-Q8_0-{part:05}-of-00003.gguf"))
}

/// A folder with the three parts of the sample.
fn parts() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for index in 0..3 {
        std::fs::write(path(folder.path(), index + 1), part(index, 3, 30, |_| {})).unwrap();
    }
    folder
}

fn refused(folder: &tempfile::TempDir) -> String {
    chain(&open(&path(folder.path(), 1)).expect_err("a part is wrong"))
}

fn contents(model: &Model) -> Vec<Vec<u8>> {
    let names = model.tensors_of(&Shard::whole(3));
    names.into_iter().map(|name| model.tensor(name).unwrap().bytes().to_vec()).collect()
}

#[test]
fn a_model_over_three_files_is_the_one_of_a_single_file_whichever_part_is_named() {
    let (folder, single) = (parts(), tempfile::tempdir().unwrap());
    let whole = single.path().join("whole.gguf");
    std::fs::write(&whole, common::sample(DType::Q8_0, false, |_| {})).unwrap();
    let whole = open(&whole).unwrap();
    for named in 1..=3 {
        let model = open(&path(folder.path(), named)).unwrap();
        assert_eq!((model.name.as_str(), model.files.len()), ("big-Q8_0", 3));
        assert_eq!(model.config, whole.config);
        assert_eq!(contents(&model), contents(&whole));
    }
    let model = open(&path(folder.path(), 1)).unwrap();
    let last = Shard::pipeline(exo_types::LayerRange::new(2, 3), 3);
    let files: Vec<usize> = model.byte_ranges(&last).iter().map(|range| range.file).collect();
    assert!(files.contains(&1) && files.contains(&2) && !files.contains(&0), "{files:?}");
}

#[test]
fn a_part_that_is_missing_is_named() {
    let folder = parts();
    std::fs::remove_file(path(folder.path(), 2)).unwrap();
    let text = refused(&folder);
    assert!(
        text.contains("part 2 of 3 is not there") && text.contains("big-Q8_0-00002-of-00003.gguf"),
        "{text}"
    );
}

#[test]
fn a_part_that_is_there_twice_or_of_another_model_is_named() {
    let folder = parts();
    std::fs::copy(path(folder.path(), 3), path(folder.path(), 2)).unwrap();
    let text = refused(&folder);
    assert!(text.contains("it is part 2 by its name and 3 by its key split.no"), "{text}");
    let cases: [(Vec<u8>, &str); 5] = [
        (part(1, 4, 30, |_| {}), "it is of a model of 4 files, the first part says 3"),
        (part(1, 3, 31, |_| {}), "it is of a model of 31 tensors, the first part says 30"),
        (
            part(1, 3, 30, |w| _ = w.tensor("output_norm.weight", DType::F32, &[64], vec![0; 256])),
            "it has the tensor `output_norm.weight`",
        ),
        (
            part(1, 3, 30, |w| _ = w.tensor("blk.9.attn_norm.weight", DType::F32, &[64], vec![0; 256])),
            "says 30 tensors, the 3 parts have 31",
        ),
        (common::sample(DType::Q8_0, false, |_| {}), "and none by its key split.no"),
    ];
    for (bytes, expected) in cases {
        let folder = parts();
        std::fs::write(path(folder.path(), 2), bytes).unwrap();
        let text = refused(&folder);
        assert!(text.contains(expected), "expected `{expected}` in `{text}`");
    }
}

#[test]
fn a_part_whose_name_says_nothing_is_refused_with_the_name_that_is_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("renamed.gguf");
    std::fs::write(&alone, part(0, 3, 30, |_| {})).unwrap();
    let text = chain(&open(&alone).expect_err("the others cannot be found"));
    assert!(text.contains("NAME-00001-of-00003.gguf"), "{text}");
    std::fs::write(&alone, part(0, 9_999_999, 30, |_| {})).unwrap();
    let text = chain(&open(&alone).expect_err("so many are not opened"));
    assert!(text.contains("at most 2000 parts"), "{text}");
}
