//! What is printed for people where there is no terminal: lines of at most 100 columns. `--json` is for
//! scripts.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::process::Command;
use std::time::Duration;

use crate::support::{Node, SOON, Start, another_model, exo, finish, stderr, stdout, stream_until, wait_for};
use exo_mock_hub::{MockHub, Repository};
use serde_json::{Value, json};

const COLUMNS: usize = 100;
/// For a command that measures or converts the demo model, on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// From the end of a node to the alert.
const ALERT_MAX: Duration = Duration::from_secs(60);
/// Tokens of answers that are there to be listed.
const TOKENS: u32 = 400;

const LAB: &str = "[[device]]\nnode = \"desktop\"\ndevice = \"gpu0\"\nkind = \"discrete_gpu\"\nmemory_gib = 24\nread_gb_s = 800\n\n\
                   [[device]]\nnode = \"the-machine-under-the-stairs\"\nmemory_gib = 48\nread_gb_s = 270\n";

/// Runs a command into a pipe: it shows this, and no line is wider than it has to be.
fn check(command: &mut Command, shows: &str) {
    let output = finish(command, LONG);
    let text = stdout(&output);
    assert!(output.status.success() && text.contains(shows), "{command:?}: {text}{}", stderr(&output));
    // A path is one word, and is not broken.
    let is_too_wide = |line: &&str| line.chars().count() > COLUMNS && line.trim().contains(' ');
    let wide: Vec<&str> = text.lines().filter(is_too_wide).collect();
    assert!(wide.is_empty(), "{command:?}: {wide:#?}");
}

#[test]
fn commands_without_a_node_print_no_line_beyond_100_columns_into_a_pipe() {
    let (hub, folder) = (MockHub::start().unwrap(), tempfile::tempdir().unwrap());
    let files = ["Q8_0", "Q4_K_M"].map(|label| format!("a-model-that-has-a-rather-long-name-{label}.gguf"));
    let files = files.each_ref().map(|name| (name.as_str(), exo_node::DEMO_MODEL.to_vec()));
    hub.put("org/a-repository-that-has-a-rather-long-name", Repository::new(&files));
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (lab, quantized) = (path("lab.toml"), path("demo-Q4_0.gguf"));
    std::fs::write(&lab, LAB).unwrap();
    let commands: [(&[&str], &str); 8] = [
        (&["config"], "leave_out_hosted_tools"),
        (&["devices"], "weights in"),
        (
            &["plan", "--shape", "llama-70b", "--cluster", &lab, "--slots", "1"],
            "the-machine-under-the-stairs",
        ),
        (&["fits", "--cluster", &lab], "too large"),
        (&["bench", "demo", "-p", "16", "-n", "2", "-r", "1", "--threads", "1"], "pp16"),
        (&["quantize", "demo", "q4_0", "--requantize", "-o", &quantized], "Q4_0"),
        (&["search", "repository"], "hf.co/org/a-repository-that-has-a-rather-long-name"),
        (&["show", "hf.co/org/a-repository-that-has-a-rather-long-name"], "Q4_K_M"),
    ];
    for (args, shows) in commands {
        let mut command = exo(args);
        command.args(["--data-dir", &path("data")]).env("HOME", folder.path());
        check(command.env("HF_ENDPOINT", hub.endpoint()), shows);
    }
}

#[test]
fn commands_print_no_line_of_a_cluster_beyond_100_columns_into_a_pipe() {
    let hub = MockHub::start().unwrap();
    let start = |name| {
        let env = vec![("HF_ENDPOINT", hub.endpoint().into())];
        Node::start(Start { name, group: "widths", env, ..Start::default() })
    };
    let (own, mut other) = (start("attic"), start("the-machine-under-the-stairs"));
    wait_for("one cluster", SOON, || (own.sees().len() == 2 && other.sees().len() == 2).then_some(()));
    let model = own.data_dir.with_file_name("a-model-that-has-a-rather-long-name-Q8_0.gguf");
    another_model(&model);
    assert!(own.exo(&["models", "add", model.to_str().unwrap()]).status.success());
    own.place("demo", 2);
    assert_eq!(own.post("/exo/v1/pulls", &json!({"reference": "hf.co/org/none"})).status, 200);
    wait_for("the download to fail", SOON, || {
        (own.get("/exo/v1/pulls")[0]["state"] == "failed").then_some(())
    });
    let run = |args: &[&str], shows: &str| check(exo(args).arg("--data-dir").arg(&own.data_dir), shows);
    // One is at work, and so many wait behind it that some do whatever the machine.
    let streams: Vec<_> = (0..48).map(|at| stream_until(&own, TOKENS, usize::from(at == 0))).collect();
    run(&["status", "--requests"], "demo");
    drop(streams);
    let commands: [(&[&str], &str); 12] = [
        (&["status"], "predicted for one stream"),
        (&["status", "--links"], "the-machine-under-the-stairs"),
        (&["models"], "a-model-that-has-a-rather-long-name-Q8_0"),
        (&["models", "--found"], " "),
        (&["pulls"], "hf.co/org/none"),
        (&["plan", "demo"], "attic"),
        (&["replan", "demo", "--dry-run"], "keep: "),
        (&["place", "demo", "--nodes", "2", "--slots", "3", "--replace"], "ready"),
        (&["fits"], "good for"),
        (&["fits", "demo"], "`exo run demo` runs it"),
        (&["doctor"], "demo model"),
        (&["admit"], "nobody asks"),
    ];
    for (args, shows) in commands {
        run(args, shows);
    }
    let report = own.data_dir.with_file_name("report.tar.gz");
    run(&["doctor", "--report", report.to_str().unwrap()], "settings.json");
    other.kill();
    wait_for("the alert", ALERT_MAX, || {
        let alerts = own.get("/exo/v1/alerts");
        alerts.as_array()?.iter().any(|alert: &Value| alert["rule"] == "node_lost").then_some(())
    });
    run(&["alerts"], "critical the-machine-under-the-stairs");
    run(&["status"], "lost");
}
