//! A node dies in the middle of an answer: a typed error in time, and the model is placed on what is left.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Node, cluster, known, wait_for};

/// What the issue allows between the loss of a stage and the error at the client.
const ERROR_MAX: Duration = Duration::from_secs(10);
/// For a stage that says nothing any more while its links stay open: two seconds, and what a busy machine adds.
const SILENT_MAX: Duration = Duration::from_secs(4);
/// For being placed and loaded again, which may need an election first.
const REPLACED_MAX: Duration = Duration::from_secs(20);

#[test]
fn losing_the_last_stage_ends_the_stream_with_a_typed_error_and_the_model_comes_back() {
    lose_a_stage("lost", false);
}

#[test]
fn losing_the_coordinator_and_its_stage_is_survived_too() {
    lose_a_stage("lead", true);
}

fn lose_a_stage(group: &str, coordinator: bool) {
    let mut nodes = cluster(group, &["one", "two", "three"]);
    let instance = nodes[0].place("demo", 3);
    let leader = nodes[0].get("/exo/v1/cluster")["epoch"]["coordinator"].as_str().unwrap().to_owned();
    let stages = instance["stages"].as_array().unwrap();
    let victim = stages.iter().rev().find(|s| (s["node"] == *leader) == coordinator).unwrap();
    let victim = victim["node_name"].as_str().unwrap().to_owned();
    let at = |name: &str| ["one", "two", "three"].iter().position(|n| *n == name).unwrap();
    // A driver that outlives the victim.
    let driver =
        stages.iter().map(|s| at(s["node_name"].as_str().unwrap())).find(|i| *i != at(&victim)).unwrap();

    let (mut stream, text) = streaming(&nodes[driver], 3);
    nodes[at(&victim)].kill();
    let killed = Instant::now();
    let error = error_of(&mut stream, text);
    assert!(killed.elapsed() < ERROR_MAX, "the error came after {:?}", killed.elapsed());
    let code = error["error"]["code"].as_str().unwrap_or_default();
    assert!(["stage_lost", "instance_gone"].contains(&code), "{error}");

    let driver = &nodes[driver];
    placed_again(driver, &victim);
    let (prompt, answer) = &known()[0];
    assert_eq!(&driver.ask("demo", prompt).text(), answer, "it answers again");
}

/// The demo model takes milliseconds for a step, and after a few the scheduler knows it. No connection ends here: before, the
/// step had 31 s, and membership some.
#[test]
fn a_stage_that_falls_silent_is_noticed_by_the_pace_of_its_steps() {
    let nodes = cluster("silent", &["one", "two", "three"]);
    let instance = nodes[0].place("demo", 3);
    let stages = instance["stages"].as_array().unwrap();
    let of_stage = |index: usize| {
        let name = stages[index]["node_name"].as_str().unwrap();
        &nodes[["one", "two", "three"].iter().position(|n| *n == name).unwrap()]
    };
    let (mut stream, text) = streaming(of_stage(0), 20);
    let pid = of_stage(2).pid().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let stopped = Instant::now();
    let error = error_of(&mut stream, text);
    let took = stopped.elapsed();
    assert_eq!(error["error"]["code"], "stage_lost", "{error}");
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(took < SILENT_MAX && message.contains("did not come back in 2."), "after {took:?}: {error}");
}

/// A long answer of the demo model, and what has come of it when it has `count` events.
fn streaming(driver: &Node, count: usize) -> (TcpStream, String) {
    let body =
        json!({"model": "demo", "prompt": "Once", "max_tokens": 500, "ignore_eos": true, "stream": true});
    let mut stream = driver.send("POST", "/v1/completions", Some(body.to_string()));
    let mut text = String::new();
    while text.matches("data:").count() < count {
        let mut bytes = [0; 512];
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    (stream, text)
}

/// The error in which the stream ends.
fn error_of(stream: &mut TcpStream, mut text: String) -> Value {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    text.push_str(&String::from_utf8_lossy(&rest));
    assert!(!text.contains("[DONE]"), "the answer was complete before: {text}");
    let error = text.lines().filter_map(|l| l.strip_prefix("data: ")).next_back().unwrap();
    serde_json::from_str(error).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn placed_again(driver: &Node, victim: &str) {
    wait_for("the model placed on the nodes that are left", REPLACED_MAX, || {
        let view = driver.get("/exo/v1/cluster");
        let instance = view["instances"].as_array()?.first()?;
        let without = instance["stages"].as_array()?.iter().all(|s| s["node_name"] != *victim);
        (without && instance["state"]["kind"] == "ready").then_some(())
    });
}

#[test]
fn a_node_that_comes_back_is_a_member_again() {
    let mut nodes = cluster("back", &["one", "two"]);
    let data = nodes[1].data_dir.clone();
    nodes[1].kill();
    wait_for("the loss to be noticed", Duration::from_secs(10), || {
        (nodes[0].sees() == ["one"]).then_some(())
    });
    let again = Node::start_in(&data, support::Start { name: "two", group: "back", ..Default::default() });
    wait_for("both again", support::SOON, || {
        (nodes[0].sees().len() == 2 && again.sees().len() == 2).then_some(())
    });
    assert_eq!(again.get("/exo/v1/members").as_array().unwrap().len(), 2);
}
