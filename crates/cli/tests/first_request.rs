//! The first requests after an instance is ready: whichever member takes them, each is answered at once.
//!
//! A cluster that has just met opens its links in the same moments in which the model is loaded, so every
//! fresh cluster is another draw. `EXO_FRESH_CLUSTERS` says how many are started, one after the other. Where
//! it is not set, 6: each of two nodes that place with the member of each stage that is asked first; with 9,
//! each of three.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "waits between two looks at another process")]
#![allow(clippy::print_stdout, reason = "the figures of a proof")]

use std::time::{Duration, Instant};

use crate::support::{Node, SOON, Start, cluster, known, wait_for};
use serde_json::{Value, json};

const NAMES: [&str; 3] = ["one", "two", "three"];
/// What the issue allows between `ready` and the whole answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

#[test]
fn a_request_at_the_moment_of_ready_is_answered_at_once_by_every_kind_of_member() {
    let count = std::env::var("EXO_FRESH_CLUSTERS").ok().map_or(6, |n| n.parse().unwrap());
    let mut slowest = Duration::ZERO;
    for turn in 0..count {
        let took = first_answers(turn);
        println!("cluster {turn}: from stage {} on: {} ms", turn % NAMES.len(), took.as_millis());
        slowest = slowest.max(took);
    }
    println!("{count} fresh clusters, the slowest answer took {} ms", slowest.as_millis());
}

/// The line that a start prints to be tried next, typed on each machine before it has seen the others.
#[test]
fn fresh_nodes_that_each_get_a_request_at_once_become_one_cluster() {
    for turn in 0..3 {
        let group = format!("tried{turn}");
        let start = |name: &&'static str| {
            let node = Node::start(Start { name, group: &group, ..Start::default() });
            let tried = node.exo(&["run", "demo", &known()[0].0, "--temperature", "0"]);
            (node, String::from_utf8_lossy(&tried.stdout).trim().to_owned())
        };
        let start = &start;
        let nodes: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = NAMES.iter().map(|name| scope.spawn(move || start(name))).collect();
            all.into_iter().map(|node| node.join().unwrap()).collect()
        });
        let began = Instant::now();
        for (node, answer) in &nodes {
            assert_eq!(*answer, known()[0].1, "{}", node.log());
            let is_one = || (node.sees().len() == NAMES.len()).then_some(());
            wait_for("one cluster after a request on each", SOON, is_one);
        }
        println!("cluster {turn}: one {:?} after the answers", began.elapsed());
        let again = nodes[turn % NAMES.len()].0.ask("demo", &known()[1].0);
        assert_eq!(again.text(), known()[1].1);
    }
}

/// How long the slowest answer of a fresh cluster takes. Each member is asked, the node of stage `turn % 3`
/// in the moment of ready and the others after it.
fn first_answers(turn: usize) -> Duration {
    let nodes = cluster(&format!("first{turn}"), &NAMES);
    let (prompt, expected) = &known()[turn % 3];
    let instance = placed(&nodes[turn / NAMES.len() % NAMES.len()]);
    let (mut asked, mut slowest) = (Instant::now(), Duration::ZERO);
    for stage in (0..NAMES.len()).map(|n| (turn + n) % NAMES.len()) {
        let name = instance["stages"][stage]["node_name"].as_str().unwrap();
        let member = &nodes[NAMES.iter().position(|n| *n == name).unwrap()];
        let answer = member.ask("demo", prompt);
        let took = asked.elapsed();
        assert_eq!(&answer.text(), expected, "cluster {turn}, stage {stage}");
        assert!(took <= ANSWER_MAX, "cluster {turn}, stage {stage}: {took:?}\n{}", member.log());
        (asked, slowest) = (Instant::now(), slowest.max(took));
    }
    slowest
}

/// Places the model over all nodes; gives the instance in the moment in which it is ready.
fn placed(node: &Node) -> Value {
    let answer = node.post("/exo/v1/instances", &json!({"model": "demo", "nodes_min": NAMES.len()})).good();
    let (id, began) = (answer.json()["id"].as_str().unwrap().to_owned(), Instant::now());
    loop {
        let instance = node.instance(&id).unwrap_or_default();
        if instance["state"]["kind"] == "ready" {
            return instance;
        }
        assert!(began.elapsed() < SOON && instance["state"]["kind"] != "failed", "{instance:#}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
