//! `exo bench` as a user types it, on the built-in model.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a signal at a chosen moment")]

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use crate::support::{self, Killed, demo_gguf, exo, finish, json_of, run, stderr, stdout, wait_for};
use serde_json::Value;

/// Probes and a debug build included.
const BENCH_MAX: Duration = Duration::from_secs(120);

fn bench(args: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    finish(exo(&["bench"]).args(args).arg("--data-dir").arg(folder.path().join("none")), BENCH_MAX)
}

#[test]
fn every_test_gives_its_samples_beside_what_the_machine_could_do() {
    let path = demo_gguf();
    let args = [
        path.to_str().unwrap(),
        "-p",
        "16",
        "-n",
        "4",
        "-b",
        "1,2",
        "-d",
        "0,8",
        "-r",
        "3",
        "--threads",
        "1",
    ];
    let all = json_of(bench(&[&args[..], &["--json"]].concat()));
    let tests = all["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|t| t["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp16", "tg4", "tg4 x2", "pp16 @ d8", "tg4 @ d8", "tg4 x2 @ d8"]);
    for test in tests {
        let (seconds, rates) =
            (test["samples_s"].as_array().unwrap(), test["samples_ts"].as_array().unwrap());
        assert_eq!((seconds.len(), rates.len()), (3, 3));
        let tokens = (test["n_prompt"].as_f64().unwrap() + test["n_gen"].as_f64().unwrap())
            * test["n_streams"].as_f64().unwrap();
        for (seconds, rate) in seconds.iter().zip(rates) {
            let product = seconds.as_f64().unwrap() * rate.as_f64().unwrap();
            assert!((product - tokens).abs() < 1e-6, "{test}");
        }
        if test["n_gen"] != 0 {
            assert!(test["bandwidth_share"]["median"].as_f64().unwrap() > 0.0, "{test}");
        }
    }
    // Two streams share the weights.
    let per_token = |i: usize| tests[i]["bytes_per_token"].as_f64().unwrap();
    let weights = all["model"]["weight_bytes_per_step"].as_f64().unwrap();
    assert!((per_token(1) - per_token(2) - weights / 2.0).abs() < 1e-6 * weights);
    assert!(per_token(4) > per_token(1), "a deeper context reads more keys and values");
    let load = &all["loads"][0];
    assert!(
        load["first_token_s"].as_f64() > load["load_s"].as_f64()
            && load["settled_s"].as_f64() >= load["first_token_s"].as_f64()
            && load["weight_bytes"].as_u64().unwrap() > 0
    );
    assert!(all["memory"][0]["read_4k_bytes_per_s"].as_f64().unwrap() > 1e8);
    if TELLS_PEAK {
        // The probes' 256 MiB are not the engine's.
        let peak = load["peak_rss_bytes"].as_u64().unwrap();
        assert!((4 << 20..200 << 20).contains(&peak), "{peak}");
    }
}

/// Whether the system tells the most memory that a process has had.
#[cfg(target_os = "linux")]
const TELLS_PEAK: bool = true;
#[cfg(not(target_os = "linux"))]
const TELLS_PEAK: bool = false;

#[test]
fn the_table_has_the_columns_of_llama_bench() {
    // A prompt longer than one step takes.
    let output = bench(&["demo", "-p", "300", "-n", "2", "-r", "1", "--threads", "1", "--markdown"]);
    let text = stdout(&output);
    assert!(text.contains("| model | size | params | backend | threads | kv | test | t/s |"), "{text}");
    assert!(text.contains("| pp300 |") && text.contains("| tg2 |"), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_numbers() {
    for (args, part) in [
        (&["no-such-model"][..], "no model `no-such-model` is known"),
        (&["./none.gguf"], "cannot find ./none.gguf"),
        (&["demo", "-d", "1000000"], "needs a context of 1000512 tokens, the model was made for"),
        (&["demo", "-p", "many"], "-p is `many`"),
        (&["demo", "--threads", "some"], "--threads is `some`"),
        (&["demo", "--kv", "q1"], "--kv is `q1`"),
    ] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
    assert_eq!(run(&["bench", "demo", "-r", "0"]).status.code(), Some(2));
}

#[test]
fn more_threads_than_processors_is_a_warning() {
    let output = bench(&["demo", "-p", "8", "-n", "0", "-r", "1", "--threads", "200"]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("warning: 200 threads on"), "{}", stderr(&output));
}

#[test]
#[cfg(unix)]
fn an_interrupt_prints_what_was_measured_until_then() {
    let args =
        ["bench", "demo", "-p", "8", "-n", "0", "-r", "1000", "--threads", "1", "--json", "--log", "debug"];
    let child = exo(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Killed(child);
    let mut log = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("loaded")), "the model was not loaded");
    // The load is measured; the thousand samples that follow take minutes.
    std::thread::sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = wait_for("the end of the benchmark", BENCH_MAX, || child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
    let mut text = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    assert!(all["loads"][0]["first_token_s"].as_f64().unwrap() > 0.0);
    let taken = all["tests"][0]["samples_s"].as_array().unwrap().len();
    assert!((1..1000).contains(&taken), "{taken} samples");
}

/// A small shape, for one sample of each test.
fn of_shape(args: &[&str]) -> std::process::Output {
    bench(&[&["--shape", "tiny-qwen3", "-p", "16", "-n", "4", "-r", "1", "--threads", "1"], args].concat())
}

#[test]
fn a_shape_is_measured_without_any_file() {
    for (stored, bits) in [("q8_0", 8.5), ("q4_k_m", 4.5), ("f16", 16.0)] {
        let all = json_of(of_shape(&["--type", stored, "--json"]));
        let number = |name: &str| all["model"][name].as_f64().unwrap();
        assert_eq!(all["model"]["name"], "tiny-qwen3 (random)");
        // The table is the head, too; in the mixes it has more bits than the rest.
        let ratio = number("size") * 8.0 / number("n_params") / bits;
        assert!((1.0..1.3).contains(&ratio), "{stored}: {ratio}");
        let tests = all["tests"].as_array().unwrap();
        assert_eq!(tests.len(), 2);
        assert!(tests[1]["bandwidth_share"]["median"].as_f64().unwrap() > 0.0, "{}", tests[1]);
    }
}

#[test]
fn a_shape_without_room_is_refused_before_it_is_made() {
    let began = std::time::Instant::now();
    let output = bench(&["--shape", "llama-70b", "--type", "f32"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("llama-70b (random) needs") && told.contains("GiB of weights"), "{told}");
    assert!(told.contains("free: give a smaller --shape or --type"), "{told}");
    assert!(began.elapsed() < Duration::from_secs(20));
    // A model and a shape at once are a slip, and so is neither.
    for args in [&["bench", "demo", "--shape", "llama-8b"][..], &["bench"], &["bench", "--shape", "gpt"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_graphics_processor_is_measured_beside_what_a_copy_in_its_memory_reaches() {
    for source in [&["--shape", "tiny-qwen3"][..], &["demo"]] {
        let args = ["-p", "16", "-n", "4", "-r", "1", "--backend", "vulkan"];
        let output = bench(&[source, &args, &["--json"]].concat());
        if !output.status.success() && stderr(&output).contains("exo devices") {
            return support::skip(
                "a_graphics_processor_is_measured",
                "no Vulkan device (Debian: mesa-vulkan-drivers)",
            );
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let all: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(all["machine"]["device"].is_string(), "{all}");
        let test = &all["tests"][1];
        assert!(
            test["backend"].as_str().unwrap().starts_with("vulkan") && test["n_threads"].is_null(),
            "{test}"
        );
        assert!(test["copy_bytes_per_s"][0].as_f64().unwrap() > 1e7, "{test}");
        assert!(test["bandwidth_share"]["median"].as_f64().unwrap() > 0.0, "{test}");
    }
}
