//! `exo plan` on a described cluster and on a running node, what stands beside a placement, and placing anew.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use serde_json::Value;
use support::{Node, run, stderr, stdout};

const LAB: &str = r#"
[[device]]
node = "desktop"
device = "gpu0"
kind = "discrete_gpu"
memory_gib = 24
read_gb_s = 800

[[device]]
node = "mac"
device = "gpu0"
kind = "integrated_gpu"
memory_gib = 48
read_gb_s = 270

[[device]]
node = "phone"
memory_gib = 6
read_gb_s = 20

[[link]]
from = "desktop"
to = "mac"
rtt_ms = 0.6
mbit_s = 1000
"#;

/// `exo plan` of a 70B model on the cluster above, with these flags.
fn lab(flags: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lab.toml");
    std::fs::write(&file, LAB).unwrap();
    let cluster = ["plan", "--shape", "llama-70b", "--cluster", file.to_str().unwrap(), "--slots", "1"];
    run(&[&cluster, flags].concat())
}

fn stages(plan: &Value) -> Vec<String> {
    let text = |s: &Value| {
        format!("{} {}..{}", s["node_name"].as_str().unwrap(), s["layers"]["start"], s["layers"]["end"])
    };
    plan["stages"].as_array().unwrap().iter().map(text).collect()
}

#[test]
fn a_described_cluster_is_planned_without_a_node_or_a_file() {
    let planned = |flags: &[&str]| -> Value {
        let output = lab(&[flags, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let plan = planned(&[]);
    assert_eq!(plan["stages"].as_array().unwrap().len(), 2, "{plan}");
    assert_eq!(plan["gap_percent"], 0.0);
    let rate = &plan["predicted"]["tokens_per_s"];
    let [low, expected, high] = ["low", "expected", "high"].map(|key| rate[key].as_f64().unwrap());
    // 22.7 GiB at 800 GB/s and 16.9 GiB at 270 GB/s, a hop and back: about 98 ms a token.
    assert!((8.0..12.0).contains(&expected) && low < expected && expected < high, "{rate}");
    assert_eq!(plan, planned(&[]), "the same question has the same answer");
    assert_eq!(stages(&planned(&["--pin", "phone=0..3"]))[0], "phone 0..3");
    assert_eq!(stages(&planned(&["--exclude", "desktop"])), ["mac 0..80"]);
    let text = stdout(&lab(&[]));
    assert!(text.contains("phone cpu") && text.contains("no layer: adding it costs"), "{text}");
    assert!(text.contains("no plan is faster"), "{text}");
}

#[test]
fn what_cannot_be_planned_is_said_with_its_reason() {
    let refused = |flags: &[&str]| {
        let output = lab(flags);
        assert!(!output.status.success(), "{}", stdout(&output));
        stderr(&output)
    };
    assert!(refused(&["--pin", "laptop"]).contains("there is no device `laptop`"));
    assert!(refused(&["--pin", "phone=x"]).contains("names no layers"));
    assert!(refused(&["--pin", "phone=60"]).contains("the pin of phone cpu cannot be met"));
    let everything = refused(&["--exclude", "phone", "--exclude", "mac", "--exclude", "desktop"]);
    assert!(everything.contains("no device can be used"), "{everything}");
    assert!(refused(&["--streams", "0"]).contains("streams must not be 0"));
    // Each change that is named is one that helps.
    let q8 = refused(&["--type", "q8_0", "--context", "30000"]);
    assert!(
        q8.contains("it fits as Q6_K") && lab(&["--type", "q6_k", "--context", "30000"]).status.success(),
        "{q8}"
    );
    let long = refused(&["--context", "131072"]);
    assert!(
        long.contains("--kv q8") && lab(&["--context", "131072", "--kv", "q8"]).status.success(),
        "{long}"
    );
    let type_f32 = refused(&["--type", "f32"]);
    assert!(type_f32.contains("bytes are missing") && type_f32.contains("it fits with"), "{type_f32}");
}

#[test]
fn a_running_node_plans_without_loading_and_shows_predicted_beside_measured() {
    let node = Node::alone();
    let output = node.exo(&["plan", "demo", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(plan["stages"].as_array().unwrap().len(), 1, "{plan}");
    assert_eq!(node.get("/exo/v1/instances"), serde_json::json!([]), "nothing is placed");

    let id = node.place("demo", 1)["id"].as_str().unwrap().to_owned();
    let instance = node.instance(&id).unwrap();
    assert_eq!(instance["predicted"]["tokens_per_s"], plan["predicted"]["tokens_per_s"], "{instance}");
    assert_eq!(node.ask("demo", "one two three").status, 200);
    let status = stdout(&node.exo(&["status"]));
    assert!(status.contains("predicted for one stream"), "{status}");

    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("here.toml");
    let saved = node.exo(&["plan", "--save-cluster", file.to_str().unwrap()]);
    assert!(saved.status.success(), "{}", stderr(&saved));
    let again = node.exo(&["plan", "demo", "--cluster", file.to_str().unwrap(), "--json"]);
    assert!(again.status.success(), "{}", stderr(&again));
}

#[test]
fn a_second_placement_with_other_numbers_is_an_error_with_the_difference_or_replaces() {
    let node = Node::alone();
    let id = node.place("demo", 1)["id"].as_str().unwrap().to_owned();
    let same = node.exo(&["place", "demo"]);
    assert!(same.status.success() && stdout(&same).contains(&id), "{}", stderr(&same));
    let other = node.exo(&["place", "demo", "--slots", "2", "--context", "64"]);
    let said = stderr(&other);
    assert!(!other.status.success(), "{}", stdout(&other));
    assert!(said.contains("slots and not 2") && said.contains("tokens and not 64"), "{said}");
    let anew = node.exo(&["place", "demo", "--slots", "2", "--context", "64", "--replace"]);
    assert!(anew.status.success(), "{}", stderr(&anew));
    let said = stdout(&anew);
    assert!(
        said.contains("layers 0..8") && said.contains("predicted for one stream"),
        "the plan is shown: {said}"
    );
    let instances = node.get("/exo/v1/instances");
    assert_eq!(instances.as_array().unwrap().len(), 1, "{instances}");
    assert_eq!((&instances[0]["slots"], &instances[0]["context_tokens"]), (&2.into(), &64.into()));
}
