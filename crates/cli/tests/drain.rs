//! Layers of models leave a node while it serves: `exo drain`, and a node that is asked to end.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{
    LONG, Node, cluster, good, long_answer, rest_of, stderr, stdout, stream_until, text_of,
};
use serde_json::Value;

const NAMES: [&str; 3] = ["one", "two", "three"];
/// Loading, the answer and the move, on a busy machine.
const MOVES_MAX: Duration = Duration::from_secs(10);

/// The model on three nodes; which has the stage, and another that has one.
fn placed(nodes: &[Node], stage: usize) -> (usize, usize) {
    let instance = nodes[0].place("demo", 3);
    let stages = instance["stages"].as_array().unwrap();
    let at = |s: &Value| NAMES.iter().position(|n| s["node_name"] == *n).unwrap();
    (at(&stages[stage]), at(&stages[(stage + 1) % 3]))
}

fn has_layers(seen_by: &Node, name: &str) -> bool {
    let view = seen_by.get("/exo/v1/cluster");
    view["instances"][0]["stages"].as_array().unwrap().iter().any(|s| s["node_name"] == name)
}

#[test]
fn a_drained_node_has_no_layers_and_the_answer_goes_on() {
    let nodes = cluster("drain", &NAMES);
    let (drained, driver) = placed(&nodes, 1);
    let (name, driver) = (NAMES[drained], &nodes[driver]);
    let expected = long_answer(driver, LONG);
    let stream = stream_until(driver, LONG, 20);
    let output = good(driver.exo(&["drain", name]));
    assert!(stdout(&output).contains("has no layers of models"), "{}", stdout(&output));
    assert!(!has_layers(driver, name));
    assert_eq!(text_of(&rest_of(stream)), expected);
    let status = stdout(&driver.exo(&["status"]));
    assert!(status.contains("alive, drained"), "{status}");
    // A stage for each of three nodes is one too many now, and is not again when it is undone.
    driver.exo(&["unload", "demo"]);
    let refused = driver.exo(&["place", "demo", "--nodes", "3"]);
    assert!(stderr(&refused).contains("3 stages were asked for, 2 are possible"), "{}", stderr(&refused));
    assert!(driver.exo(&["drain", name, "--undo"]).status.success());
    good(driver.exo(&["place", "demo", "--nodes", "3"]));
    let unknown = driver.exo(&["drain", "nobody"]);
    assert!(stderr(&unknown).contains("no member is called `nobody`"), "{}", stderr(&unknown));
}

#[test]
fn a_node_that_is_asked_to_end_hands_its_layers_over_first() {
    let mut nodes = cluster("leaving", &NAMES);
    let (leaving, driver) = placed(&nodes, 2);
    let expected = long_answer(&nodes[driver], LONG);
    let stream = stream_until(&nodes[driver], LONG, 20);
    let asked = Instant::now();
    assert!(nodes[leaving].signal("-TERM").success());
    assert!(asked.elapsed() < MOVES_MAX, "it took {:?}", asked.elapsed());
    let events = rest_of(stream);
    assert_eq!(text_of(&events), expected);
    let (said, name) = (nodes[leaving].log(), NAMES[leaving]);
    assert!(said.contains("moving its layers of models to other nodes"), "{said}");
    assert!(!has_layers(&nodes[driver], name), "it was elsewhere before it ended");
    // The last ones have nobody to give them to, and do not wait.
    for node in nodes.iter_mut().enumerate().filter(|(at, _)| *at != leaving).map(|(_, node)| node) {
        let asked = Instant::now();
        assert!(node.signal("-TERM").success());
        assert!(asked.elapsed() < MOVES_MAX, "it took {:?}", asked.elapsed());
    }
}

/// Machines that are switched off together: none has anybody to give its layers to, whoever ends first.
#[test]
fn nodes_that_end_at_once_do_not_wait_for_each_other() {
    const ENDS_MAX: Duration = Duration::from_secs(2);
    for turn in 0..4u32 {
        let mut nodes = cluster(&format!("together{turn}"), &NAMES);
        let stages = 2 + turn % 2;
        nodes[turn as usize % NAMES.len()].place("demo", stages);
        let pids: Vec<String> = nodes.iter().map(|node| node.pid().to_string()).collect();
        let began = Instant::now();
        assert!(Command::new("kill").arg("-TERM").args(&pids).status().unwrap().success());
        for node in &mut nodes {
            assert!(node.ended_within(Duration::from_secs(30)).success());
        }
        let took = began.elapsed();
        let said: Vec<String> = nodes.iter().map(Node::log).collect();
        assert!(took < ENDS_MAX, "{stages} stages, turn {turn}: {took:?}\n{}", said.join("\n---\n"));
    }
}
