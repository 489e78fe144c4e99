//! A placed model goes where a better plan has it: `exo replan`.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::support::{
    LONG, Node, SOON, Start, flat, good, json_of, long_answer, rest_of, stderr, stdout, stream_until,
    text_of, wait_for, wait_united,
};
use serde_json::Value;

/// With its cache of 20,000 tokens the model takes 154 MiB: more than such a node has, less than two of them.
const SMALL_MIB: u32 = 130;
const CACHE_TOKENS: &str = "20000";

fn start(name: &str, flags: &[String]) -> Node {
    Node::start(Start { name, group: "replan", flags: flags.to_vec(), ..Start::default() })
}

fn names(instance: &Value) -> Vec<String> {
    let stages = instance["stages"].as_array().unwrap();
    stages.iter().map(|s| s["node_name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_model_on_two_small_nodes_moves_to_a_large_one_under_a_running_answer() {
    let small = [format!("--memory-mib={SMALL_MIB}")];
    let mut nodes = vec![start("one", &small), start("two", &small)];
    wait_united(&nodes, SOON);
    let planned = nodes[0].exo(&["plan", "demo", "--cache-tokens", CACHE_TOKENS, "--json"]);
    let planned: Value = serde_json::from_str(&stdout(&planned)).unwrap();
    assert_eq!(names(&planned).len(), 2, "neither holds it alone: {planned}");
    good(nodes[0].exo(&["place", "demo", "--cache-tokens", CACHE_TOKENS]));
    let before = nodes[0].get("/exo/v1/instances")[0].clone();
    assert_eq!(names(&before).len(), 2, "{before}");
    let kept = nodes[0].exo(&["replan", "demo"]);
    assert!(kept.status.success() && stdout(&kept).contains("keep: "), "{}{}", stdout(&kept), stderr(&kept));

    nodes.push(start("three", &[]));
    wait_for("the third", SOON, || (nodes[0].sees().len() == 3 && nodes[2].sees().len() == 3).then_some(()));
    let dry = wait_for("its report", SOON, || {
        let dry = flat(&stdout(&nodes[0].exo(&["replan", "demo", "--dry-run"])));
        dry.contains("would move: ").then_some(dry)
    });
    assert!(dry.contains("% less time") && dry.contains("it loads") && dry.contains("three"), "{dry}");
    let told = || stdout(&nodes[1].exo(&["status"])).contains("a better plan is there").then_some(());
    wait_for("the advice", SOON, told);
    assert_eq!(nodes[0].get("/exo/v1/instances")[0]["placement"], before["placement"], "nothing moved");

    let expected = long_answer(&nodes[0], LONG);
    let stream = stream_until(&nodes[0], LONG, 20);
    let id = before["id"].as_str().unwrap();
    let said = json_of(nodes[2].exo(&["replan", id, "--json"]));
    assert_eq!((&said["decision"], &said["stages"][0]["node_name"]), (&"move".into(), &"three".into()));
    assert!(said["then_ms"].as_f64() < said["now_ms"].as_f64(), "{said}");
    assert_eq!(text_of(&rest_of(stream)), expected, "the same tokens");
    assert_eq!(names(&nodes[1].get("/exo/v1/instances")[0]), ["three"]);
    let again = stdout(&nodes[0].exo(&["replan", "demo"]));
    assert!(again.contains("keep: the planner would place it as it is placed"), "{again}");
    let nothing = stderr(&nodes[0].exo(&["replan", "other"]));
    assert!(nothing.contains("nothing called `other` is placed"), "{nothing}");
}
