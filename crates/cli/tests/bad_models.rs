//! Files that are not what they say: an error that names the place, and the node goes on.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;

use crate::support::{self, Node, demo_gguf, good, known, stderr, stdout};

/// Adds the file, expects a refusal with these words, and an answer from the node afterwards.
fn refused(node: &Node, path: &Path, words: &[&str]) {
    let output = node.exo(&["models", "add", path.to_str().unwrap()]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{}\n{text}", stdout(&output));
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    support::answers(node);
}

#[test]
fn broken_gguf_files_are_refused_with_the_place_and_the_node_goes_on() {
    let node = Node::alone();
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(demo_gguf()).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    refused(&node, &write("half.gguf", &good[..good.len() / 2]), &["half.gguf"]);
    refused(&node, &write("head.gguf", &good[..100]), &["head.gguf"]);
    refused(&node, &write("empty.gguf", b""), &["empty.gguf"]);
    refused(&node, &write("text.gguf", b"this is not a model at all, but some words"), &["text.gguf"]);
    let mut counts = good.clone();
    counts[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&node, &write("counts.gguf", &counts), &["counts.gguf"]);
    let mut unknown = good.clone();
    let at = unknown.windows(5).position(|w| w == b"llama").unwrap();
    unknown[at..at + 5].copy_from_slice(b"lxama");
    refused(&node, &write("unknown.gguf", &unknown), &["lxama"]);
    refused(&node, folder.path(), &["config.json"]);
    refused(&node, &folder.path().join("absent.gguf"), &["absent.gguf"]);
}

#[cfg(unix)]
#[test]
fn a_folder_with_a_link_out_of_it_is_refused_by_the_node_with_link_and_target() {
    let node = Node::alone();
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = elsewhere.path().canonicalize().unwrap().join("secret.json");
    std::fs::write(&secret, "{}").unwrap();
    std::os::unix::fs::symlink(&secret, folder.path().join("config.json")).unwrap();
    refused(&node, folder.path(), &["config.json leads to", secret.to_str().unwrap()]);
}

#[test]
fn a_flipped_bit_anywhere_in_the_header_never_ends_the_node() {
    let node = Node::alone();
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(demo_gguf()).unwrap();
    let mut refusals = 0;
    for i in 0..24 {
        let mut bytes = good.clone();
        let at = i * 37 + 4; // over the counts, the metadata and the start of the vocabulary
        bytes[at] ^= 1 << (i % 8);
        let path = folder.path().join(format!("flip-{i}.gguf"));
        std::fs::write(&path, &bytes).unwrap();
        let answer = node.post("/exo/v1/models", &serde_json::json!({"path": path}));
        assert!([200, 400].contains(&answer.status), "byte {at}: {} {}", answer.status, answer.body);
        refusals += usize::from(answer.status == 400);
    }
    assert!(refusals > 0, "some of these bits matter");
    support::answers(&node);
}

#[test]
#[cfg(unix)]
fn a_file_that_shrinks_while_it_is_used_fails_its_requests_and_not_the_node() {
    let node = Node::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shrinks.gguf");
    let mut bytes = std::fs::read(demo_gguf()).unwrap();
    let at = bytes.windows(8).position(|w| w == b"exo demo").unwrap();
    bytes[at..at + 8].copy_from_slice(b"exo tiny");
    std::fs::write(&path, bytes).unwrap();
    good(node.exo(&["models", "add", path.to_str().unwrap()]));
    let (prompt, answer) = &known()[0];
    assert_eq!(&node.ask("shrinks", prompt).text(), answer);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(200_000).unwrap();
    let after = node.ask("shrinks", prompt);
    assert!(after.status >= 400, "weights that are gone give no answer: {}", after.body);
    assert_eq!(&node.ask("demo", prompt).text(), answer, "the node goes on");
}
