//! `exo perplexity` as a user types it, on the built-in model and its held-out text.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{self, exo, finish, json_of, stderr, stdout};
use serde_json::Value;

/// Loading and a few chunks in a debug build on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(120);

fn heldout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/heldout.txt")
}

fn perplexity(args: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    finish(exo(&["perplexity"]).args(args).arg("--data-dir").arg(folder.path().join("none")), RUN_MAX)
}

fn measured(args: &[&str]) -> Value {
    let text = heldout();
    json_of(perplexity(&[&["demo", "--text", text.to_str().unwrap(), "--special", "--json"], args].concat()))
}

/// The values are llama.cpp's on the same file, text and chunks, F32 cache, computed as `llama-perplexity`
/// does.
#[test]
fn the_number_is_that_of_llama_cpp() {
    let m = measured(&["--context", "128", "--chunks", "12", "--kv", "f32"]);
    assert_eq!((&m["chunks"], &m["tokens_scored"]), (&Value::from(12), &Value::from(12 * 63)));
    let (value, error) = (m["perplexity"].as_f64().unwrap(), m["error"].as_f64().unwrap());
    assert!((value / LLAMA_PERPLEXITY - 1.0).abs() < 0.005, "{value}");
    assert!((error / LLAMA_ERROR - 1.0).abs() < 0.05, "{error}");
}

const LLAMA_PERPLEXITY: f64 = 3.09180;
const LLAMA_ERROR: f64 = 0.53802;

#[test]
fn types_of_the_cache_and_threads_hardly_change_it() {
    let with = |args: &[&str]| {
        let m = measured(&[&["--context", "128", "--chunks", "6"], args].concat());
        m["perplexity"].as_f64().unwrap()
    };
    let exact = with(&["--kv", "f32"]);
    assert_eq!(exact, with(&["--kv", "f32", "--threads", "1"]));
    for kv in ["f16", "q8"] {
        let rounded = with(&["--kv", kv]);
        assert!(rounded != exact && (rounded / exact - 1.0).abs() < 0.005, "{kv}: {rounded} and {exact}");
    }
}

#[test]
fn a_graphics_processor_gives_nearly_the_same_number() {
    let text = heldout();
    let args =
        ["demo", "--text", text.to_str().unwrap(), "--special", "--json", "--context", "64", "--chunks", "2"];
    let on = |backend| perplexity(&[&args[..], &["--kv", "f32", "--backend", backend]].concat());
    let vulkan = on("vulkan");
    if !vulkan.status.success() && stderr(&vulkan).contains("exo devices") {
        return support::skip("a_graphics_processor_gives", "no Vulkan device (Debian: mesa-vulkan-drivers)");
    }
    let number = |output: &std::process::Output| {
        assert!(output.status.success(), "{}", stderr(output));
        let all: Value = serde_json::from_str(&stdout(output)).unwrap();
        (all["perplexity"].as_f64().unwrap(), all["backend"].as_str().unwrap().to_owned())
    };
    let ((value, backend), (processor, _)) = (number(&vulkan), number(&on("cpu")));
    assert!(backend.starts_with("vulkan"), "{backend}");
    // The processor rounds activations to eight bits, the graphics processor does not.
    assert!((value / processor - 1.0).abs() < 0.02, "{value} and {processor}");
}

#[test]
fn what_is_printed_names_everything_the_number_depends_on() {
    let text = heldout();
    let output = perplexity(&["demo", "--text", text.to_str().unwrap(), "--context", "64", "--chunks", "2"]);
    let printed = stdout(&output);
    for part in ["perplexity ", " ± ", "2 chunks of 64 tokens, 62 scored", "kv f16", "tokens/s", "cpu/"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn what_cannot_be_scored_is_refused_with_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (short, binary) = (file("short", b"A few words.\n"), file("binary", b"abc\xff\xfe"));
    let text = heldout();
    let text = text.to_str().unwrap();
    for (args, part) in [
        (&["demo", "--text", "./no-such-file"][..], "cannot read the text ./no-such-file"),
        (&["demo", "--text", &short], "less than one chunk of 512"),
        (&["demo", "--text", &binary], "is not UTF-8 from its byte 3 on"),
        (&["demo", "--text", text, "--context", "4096"], "the model was made for 512 tokens"),
        (&["demo", "--text", text, "--context", "1"], "a chunk needs at least 4 tokens"),
        (&["demo", "--text", text, "--kv", "q1"], "`kv`"),
        (&["no-such-model", "--text", text], "no model `no-such-model` is known"),
    ] {
        let output = perplexity(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
}
