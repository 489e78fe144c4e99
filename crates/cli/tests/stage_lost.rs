//! A node dies, or stands still, in the middle of an answer: the answer goes on with the same tokens.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::{Duration, Instant};
#[cfg(target_os = "linux")]
use std::{io::Read, net::TcpStream};

use crate::support::{
    self, LONG, Node, cluster, cluster_with, colours, long_answer, pieces_of, rest_of, resumed_of, send,
    stream_of, stream_until, text_of, wait_for, with,
};
use serde_json::{Value, json};

const NAMES: [&str; 3] = ["one", "two", "three"];
/// From the loss of a node to the end of an answer of 400 tokens that it had a part in: noticing takes up to
/// two seconds, and this machine may be busy.
const GOES_ON_MAX: Duration = Duration::from_secs(10);
/// For being placed and loaded again, which may need an election first.
const REPLACED_MAX: Duration = Duration::from_secs(20);

#[test]
fn an_answer_goes_on_when_the_last_stage_is_killed() {
    lose_a_stage("lost", false);
}

#[test]
fn an_answer_goes_on_when_the_coordinator_is_killed_with_its_stage() {
    lose_a_stage("lead", true);
}

fn lose_a_stage(group: &str, coordinator: bool) {
    let mut nodes = cluster_with(group, &NAMES, &["--log", "warn,events::shard=info"]);
    let instance = nodes[0].place("demo", 3);
    let leader = nodes[0].get("/exo/v1/cluster")["epoch"]["coordinator"].as_str().unwrap().to_owned();
    let stages = instance["stages"].as_array().unwrap();
    let victim = stages.iter().rev().find(|s| (s["node"] == *leader) == coordinator).unwrap();
    let victim = victim["node_name"].as_str().unwrap().to_owned();
    // A driver that outlives the victim.
    let others = stages.iter().map(|s| at(s["node_name"].as_str().unwrap()));
    let driver = others.into_iter().find(|i| *i != at(&victim)).unwrap();
    let expected = long_answer(&nodes[driver], LONG);

    let stream = stream_until(&nodes[driver], LONG, 20);
    nodes[at(&victim)].kill();
    let killed = Instant::now();
    let events = rest_of(stream);
    assert!(killed.elapsed() < GOES_ON_MAX, "the answer ended after {:?}", killed.elapsed());
    assert_eq!(text_of(&events), expected, "not a token more, less or other");
    assert!(matches!(resumed_of(&events)[..], [after] if after > 0), "{events}");
    assert!(events.contains(": interrupted: "), "people see why nothing comes: {events}");

    let loaded: usize = loads(&nodes).iter().sum();
    assert_eq!(loaded, 4, "each stage once, and then what was lost: survivors keep what they hold");
    let driver = &nodes[driver];
    placed_again(driver, &victim);
    support::answers(driver);
}

#[test]
fn an_answer_of_a_schema_goes_on_when_the_last_stage_is_killed() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "colours", "schema": colours()}});
    lose_the_last_stage_of("shaped", json!({"response_format": format}), "content");
}

#[test]
fn a_call_goes_on_when_the_last_stage_is_killed_inside_its_arguments() {
    let tool =
        json!({"type": "function", "function": {"name": "paint", "strict": true, "parameters": colours()}});
    let asked = json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    lose_the_last_stage_of("called", asked, "tool_calls/0/function/arguments");
}

/// Kills the last stage in the middle of an answer to a chat request with these fields; what it makes stands
/// at `place` of a message.
fn lose_the_last_stage_of(group: &str, asked: Value, place: &str) {
    let mut nodes = cluster(group, &NAMES);
    let instance = nodes[0].place("demo", 3);
    let stages = instance["stages"].as_array().unwrap();
    let of_stage = |index: usize| at(stages[index]["node_name"].as_str().unwrap());
    let (driver, victim) = (of_stage(0), of_stage(2));
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": "Colours?"}], "max_tokens": 400,
        "temperature": 1.0, "seed": 7});
    let body = with(body, asked);
    let undisturbed = nodes[driver].post("/v1/chat/completions", &body).good();
    let expected = undisturbed.json();
    let expected = expected.pointer(&format!("/choices/0/message/{place}")).unwrap().as_str().unwrap();
    let value: Value = serde_json::from_str(expected).unwrap();
    assert_eq!(value["colours"].as_array().map(Vec::len), Some(40), "{expected}");

    let stream = stream_of(&nodes[driver], "/v1/chat/completions", body, 20);
    nodes[victim].kill();
    let events = rest_of(stream);
    assert_eq!(
        pieces_of(&events, &format!("/choices/0/delta/{place}")),
        expected,
        "not a token more, less or other"
    );
    assert!(matches!(resumed_of(&events)[..], [after] if after > 0), "{events}");
}

/// How often each node has begun to load a part of a model.
fn loads(nodes: &[Node]) -> Vec<usize> {
    nodes.iter().map(|node| node.log().matches("events::shard: loading").count()).collect()
}

/// Nothing but the connection that carries steps or tokens breaks: the nodes dial again.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_goes_on_within_half_a_second_when_a_data_link_is_reset() {
    const TEST: &str = "an_answer_goes_on_within_half_a_second_when_a_data_link_is_reset";
    const PAUSE_MAX: Duration = Duration::from_millis(500);
    let nodes = cluster_with("reset", &NAMES, &["--log", "warn,events::shard=info"]);
    // As many stages as nodes, and then a driver that has none.
    for stages in [3, 2] {
        let instance = nodes[0].place("demo", stages);
        let of_stage = |index: u32| at(instance["stages"][index as usize]["node_name"].as_str().unwrap());
        let (first, last) = (of_stage(0), of_stage(stages - 1));
        let beside = 3 - first - last;
        let driver = if stages == 3 { first } else { beside };
        let (expected, loaded) = (long_answer(&nodes[driver], LONG), loads(&nodes));
        let mut pauses = Vec::new();
        for (a, b) in [(first, beside), (beside, last), (last, first)].repeat(2) {
            // They may still dial after the reset before.
            support::wait_for("a connection between the two", Duration::from_secs(10), || {
                let found = support::connections_between(&nodes[a], &nodes[b]);
                found.is_none_or(|found| !found.is_empty()).then_some(())
            });
            let mut stream = stream_until(&nodes[driver], LONG, 20);
            let before = Instant::now();
            match support::reset_between(&nodes[a], &nodes[b]) {
                None => return support::skip(TEST, "needs root and `ss -K`"),
                Some(ended) => assert!(ended > 0, "{a} {b}: no connection"),
            }
            pauses.push(longest_pause(&mut stream, before));
            let events = rest_of(stream);
            assert_eq!(text_of(&events), expected, "not a token more, less or other");
            assert!(matches!(resumed_of(&events)[..], [after] if after > 0), "{a} {b}: {events}");
        }
        let now = nodes[driver].instance(instance["id"].as_str().unwrap()).unwrap();
        assert_eq!(now["placement"], instance["placement"], "nothing was lost");
        assert_eq!(loads(&nodes), loaded, "nothing is loaded again");
        pauses.sort_unstable();
        // They dial after 0.2 to 0.4 s; this machine may be busy.
        assert!(pauses[2] < PAUSE_MAX && pauses[5] < 2 * PAUSE_MAX, "{stages} stages: {pauses:?}");
        let unloaded = nodes[0].exo(&["unload", instance["id"].as_str().unwrap()]);
        assert!(unloaded.status.success(), "{unloaded:?}");
    }
}

/// Reads a stream to its end; the longest time since then in which nothing of it came, but for comments.
#[cfg(target_os = "linux")]
fn longest_pause((stream, text): &mut (TcpStream, String), since: Instant) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, since);
    loop {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        let part = String::from_utf8_lossy(&bytes[..read]);
        if read == 0 || part.contains("data: ") {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        if read == 0 {
            return longest;
        }
        text.push_str(&part);
    }
}

fn at(name: &str) -> usize {
    NAMES.iter().position(|n| *n == name).unwrap()
}

/// The demo model takes milliseconds for a step, and after a few the scheduler knows it. No connection ends
/// here: the step is missed after two seconds, its node after five.
#[test]
fn an_answer_goes_on_when_a_stage_stands_still_and_nothing_changes_when_it_moves_again() {
    let nodes = cluster("silent", &NAMES);
    let instance = nodes[0].place("demo", 3);
    let stages = instance["stages"].as_array().unwrap();
    let of_stage = |index: usize| &nodes[at(stages[index]["node_name"].as_str().unwrap())];
    let (driver, frozen) = (of_stage(0), of_stage(2));
    let expected = long_answer(driver, LONG);
    let stream = stream_until(driver, LONG, 20);
    send("-STOP", frozen.pid());
    let stopped = Instant::now();
    let requests = driver.get("/exo/v1/requests");
    let shown = support::stdout(&driver.exo(&["status", "--requests"]));
    let events = rest_of(stream);
    let took = stopped.elapsed();
    let request = &requests[0];
    assert!(request["tokens"].as_u64() >= Some(20) && request["resumed"] == 0, "{requests}");
    assert!(["decode", "interrupted"].contains(&request["phase"].as_str().unwrap()), "{requests}");
    assert!(shown.contains("demo"), "{shown}");
    assert_eq!(driver.get("/exo/v1/requests").as_array().map(Vec::len), Some(0), "it is over");
    send("-CONT", frozen.pid());
    assert!(took < GOES_ON_MAX, "the answer ended after {took:?}");
    assert_eq!(text_of(&events), expected);
    let placement = |node: &Node| node.get("/exo/v1/cluster")["instances"][0]["placement"].clone();
    let moved = placement(driver);
    wait_for("the third node back", support::SOON, || (driver.sees().len() == 3).then_some(()));
    assert_eq!((long_answer(driver, LONG), placement(driver)), (expected, moved), "thawed: nothing changes");
}

/// Tokens of sequences that began on this node's instance, and of those the ones whose keys and values were
/// kept.
fn begun(node: &Node) -> [u64; 2] {
    let text = node.call("GET", "/metrics", None).body;
    ["exo_prefix_queried_tokens_total{", "exo_prefix_hit_tokens_total{"].map(|name| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    })
}

/// The step is missed after two seconds; a node that moves again within the four in which it would be lost
/// still has what it had.
#[test]
fn an_answer_goes_on_behind_what_all_stages_keep_when_one_stands_still_for_a_moment() {
    const PAGE_TOKENS: u64 = 32;
    let nodes = cluster("moment", &NAMES);
    let instance = nodes[0].place("demo", 3);
    let stages = instance["stages"].as_array().unwrap();
    let of_stage = |index: usize| &nodes[at(stages[index]["node_name"].as_str().unwrap())];
    let (driver, frozen) = (of_stage(0), of_stage(2));
    let placement = || driver.get("/exo/v1/cluster")["instances"][0]["placement"].clone();
    let (expected, placed) = (long_answer(driver, LONG), placement());
    let before = begun(driver);

    let stream = stream_until(driver, LONG, 2 * PAGE_TOKENS as usize);
    send("-STOP", frozen.pid());
    wait_for("the answer to be interrupted", Duration::from_secs(5), || {
        (driver.get("/exo/v1/requests")[0]["phase"] == "interrupted").then_some(())
    });
    send("-CONT", frozen.pid());
    let events = rest_of(stream);
    assert_eq!(text_of(&events), expected, "not a token more, less or other");
    assert!(matches!(resumed_of(&events)[..], [after] if after >= 2 * PAGE_TOKENS), "{events}");
    assert_eq!(placement(), placed, "nobody was lost");
    let of_usage = events.split("\"prompt_tokens\":").nth(1).unwrap();
    let prompt: u64 = of_usage.split([',', '}']).next().unwrap().trim().parse().unwrap();
    // What is shown is a second old at most.
    let [queried, kept] = wait_for("the second beginning to be counted", Duration::from_secs(10), || {
        let after = begun(driver);
        let [queried, kept] = [after[0] - before[0], after[1] - before[1]];
        (queried >= 2 * (prompt + PAGE_TOKENS)).then_some([queried, kept])
    });
    // Its last page may not have been full, and of the one before a stage may not have known.
    let again = queried - kept - prompt;
    assert!(again <= 2 * PAGE_TOKENS, "{again} positions of {queried} were computed again");
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
