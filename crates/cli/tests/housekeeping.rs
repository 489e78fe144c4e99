//! Room on the disk for models: what stays free, what they may take together, and what goes for what is
//! fetched.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "waits for the clock that another process reads")]

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{
    Killed, Node, Start, another_model, answers, exo, finish, flat, good, json_of, must_refuse, stderr,
    stdout, wait_for, wait_united,
};
use crate::update::{command, run};
use exo_mock_hub::{Faults, Host, MockHub, Repository};
use serde_json::{Value, json};

/// Two pulls and what goes for one, on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;
/// Of the demo model and what a disk gives it beyond its length.
const MODEL_MIB: usize = 6;

/// A hub with models that differ by some bytes at their end, each with a repository of its name.
fn hub(names: &[&str]) -> MockHub {
    let hub = MockHub::start().unwrap();
    for (index, name) in names.iter().enumerate() {
        let model = [exo_node::DEMO_MODEL, &vec![0; 64 * (index + 1)]].concat();
        assert!(model.len() < MODEL_MIB * MIB && model.len() > (MODEL_MIB - 1) * MIB);
        hub.put(&format!("org/{name}"), repository(name, model));
    }
    hub
}

fn repository(name: &str, model: Vec<u8>) -> Repository {
    Repository::new(&[(format!("{name}-Q8_0.gguf").as_str(), model)])
}

fn node(hub: &MockHub, name: &str, group: &str, quota_mib: Option<usize>) -> Node {
    let mut env = vec![("HF_ENDPOINT", hub.endpoint().into()), ("EXO_DISK_RESERVE_MIB", "0".into())];
    env.extend(quota_mib.map(|mib| ("EXO_DISK_QUOTA_MIB", mib.to_string().into())));
    Node::start(Start { name, group, env, ..Start::default() })
}

fn pull(node: &Node, hub: &MockHub, name: &str) -> String {
    // Their last use differs by a second at least, in which it is counted.
    std::thread::sleep(Duration::from_millis(1100));
    run(node, hub, &["pull", &format!("hf.co/org/{name}")])
}

/// Has the machine `bob` fetch a model, and waits until another one knows of that: members say each second
/// what they have.
fn pull_on_bob(bob: &Node, hub: &MockHub, name: &str, other: &Node) {
    pull(bob, hub, name);
    wait_for("the other one to know that bob has it", LONG, || {
        let models = other.get("/exo/v1/models");
        let model =
            models.as_array().unwrap().iter().find(|model| model["name"] == format!("{name}-Q8_0"))?;
        model["nodes"].as_array().unwrap().contains(&json!("bob")).then_some(())
    });
}

/// The models of the hub that a node has on its disk, by their files.
fn on_disk(node: &Node) -> Vec<String> {
    let folders = std::fs::read_dir(node.data_dir.join("hub/org")).into_iter().flatten().flatten();
    let has_model = |name: &String| {
        let commit =
            node.data_dir.join("hub/org").join(name).join("0123456789abcdef0123456789abcdef01234567");
        commit.join(format!("Q8_0/{name}-Q8_0.gguf")).is_file()
    };
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().into_string().unwrap()).filter(has_model).collect();
    names.sort();
    names
}

#[test]
fn a_reserve_and_a_quota_hold_before_a_byte_is_fetched_without_a_node_and_with_one() {
    let hub = hub(&["one"]);
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let refused = |setting: &str, mib: &str| {
        let mut command =
            exo(&["pull", "hf.co/org/one", setting, mib, "--data-dir", data_dir.to_str().unwrap()]);
        command.env("HF_ENDPOINT", hub.endpoint()).env("HOME", folder.path().join("home"));
        must_refuse(finish(&mut command, LONG), "")
    };
    let bytes = exo_node::DEMO_MODEL.len() + 64;
    let text = refused("--disk-reserve-mib", "1000000000");
    let reserve = (1_000_000_000u64 << 20).to_string();
    assert!(text.contains(&format!("{bytes} bytes are to be fetched and {reserve} are kept free")), "{text}");
    assert!(text.contains("`exo models remove` deletes a model"), "{text}");
    let text = refused("--disk-quota-mib", "3");
    let quota = (3 * MIB).to_string();
    assert!(text.contains(&format!("of the {quota} bytes that they may have")), "{text}");
    let node = node(&hub, "solo", "quota-alone", Some(3));
    let (is_good, text) = command(&node, &hub.endpoint(), &["pull", "hf.co/org/one"]);
    assert!(!is_good && text.contains(&format!("of the {quota} bytes that they may have")), "{text}");
    assert!(text.contains("let models take more with the setting `disk_quota_mib`"), "{text}");
    let pulls = node.get("/exo/v1/pulls");
    assert!(pulls[0]["state"] == "failed" && pulls[0]["hint"].is_string(), "{pulls}");
    assert_eq!(hub.sent_bytes(), 0);
}

#[test]
fn what_was_not_used_for_longest_goes_but_for_what_is_kept_placed_or_nowhere_else() {
    let hub = hub(&["one", "two", "three", "four", "five"]);
    let ann = node(&hub, "ann", "quota", Some(2 * MODEL_MIB));
    let bob = node(&hub, "bob", "quota", None);
    wait_united([&ann, &bob], LONG);
    let pull_on_bob = |name: &str| pull_on_bob(&bob, &hub, name, &ann);
    // Two fit. Of these only the newer is on another machine, and goes for a third.
    pull(&ann, &hub, "one");
    pull(&ann, &hub, "two");
    pull_on_bob("two");
    let text = pull(&ann, &hub, "three");
    assert!(text.contains("deleted two-Q8_0") && text.contains("other machines have it"), "{text}");
    assert_eq!(on_disk(&ann), ["one", "three"]);
    let pulls = ann.get("/exo/v1/pulls");
    let removed = |reference: &str| -> Vec<Value> {
        let pull = pulls.as_array().unwrap().iter().find(|pull| pull["reference"] == reference);
        pull.unwrap()["removed"].as_array().unwrap().clone()
    };
    let went = removed("hf.co/org/three");
    assert_eq!((went.len(), &went[0]["name"]), (1, &json!("two-Q8_0")), "{pulls}");
    assert!(went[0]["bytes"].as_u64().unwrap() > 5 * MIB as u64 && went[0]["used_unix_s"].as_u64() > Some(0));
    let logs = run(&ann, &hub, &["logs", "--node", "ann"]);
    assert!(logs.contains("deleted to make room on the disk"), "{logs}");
    // Both are the only copies of the cluster.
    let (is_good, text) = command(&ann, &hub.endpoint(), &["pull", "hf.co/org/four"]);
    assert!(!is_good && text.contains("disk_quota_mib"), "{text}");
    assert_eq!(on_disk(&ann), ["one", "three"]);
    // The older one is kept.
    pull_on_bob("one");
    pull_on_bob("three");
    let text = run(&ann, &hub, &["models", "keep", "one-Q8_0"]);
    assert!(text.contains("one-Q8_0 stays on this machine's disk"), "{text}");
    assert!(flat(&run(&ann, &hub, &["models"])).contains("kept on this disk"));
    pull(&ann, &hub, "four");
    assert_eq!(on_disk(&ann), ["four", "one"]);
    // The older one is placed.
    pull_on_bob("four");
    assert!(run(&ann, &hub, &["models", "keep", "one-Q8_0", "--undo"]).contains("may go"));
    run(&ann, &hub, &["place", "one-Q8_0"]);
    pull(&ann, &hub, "five");
    assert_eq!(on_disk(&ann), ["five", "one"]);
    // On the other machine nothing went, and a model that is there alone is not kept here.
    assert_eq!(on_disk(&bob), ["four", "one", "three", "two"]);
    let answer = ann.post("/exo/v1/kept_models", &json!({"model": "two-Q8_0", "kept": true}));
    assert!(answer.status == 409 && answer.body.contains("not on this machine's disk"), "{}", answer.body);
}

/// As `exo run` goes on from it.
#[test]
fn exo_fits_counts_what_a_download_that_was_paused_has_left_on_the_disk() {
    const LARGE_MIB: usize = 12;
    let hub = MockHub::start().unwrap();
    let mut model = exo_node::DEMO_MODEL.to_vec();
    model.resize(LARGE_MIB * MIB, 0);
    hub.put("org/large", Repository::new(&[("large-Q8_0.gguf", model)]));
    let node = node(&hub, "solo", "fits-paused", Some(LARGE_MIB + 4));
    let fits = || flat(&run(&node, &hub, &["fits", "hf.co/org/large"]));
    assert!(!fits().contains("too large"), "nothing was fetched");
    // Two of three chunks, and a pause in the third.
    hub.set_faults(Faults { bytes_per_s: Some(1 << 20), ..Faults::default() });
    let request = json!({"reference": "hf.co/org/large", "ranges_max": 1});
    let id = node.post("/exo/v1/pulls", &request).json()["id"].as_str().unwrap().to_owned();
    wait_for("two chunks", LONG, || {
        let pull = node.get("/exo/v1/pulls")[0].clone();
        (pull["verified_bytes"].as_u64().unwrap() >= 8 * MIB as u64).then_some(())
    });
    node.post(&format!("/exo/v1/pulls/{id}/pause"), &json!({}));
    wait_for("the pause", LONG, || (node.get("/exo/v1/pulls")[0]["state"] == "paused").then_some(()));
    hub.set_faults(Faults::default());
    // What else lies there leaves less room than the model's layers take.
    std::fs::write(node.data_dir.join("hub/filler"), vec![1; 6 * MIB]).unwrap();
    let room_bytes = || node.get("/exo/v1/telemetry")["nodes"][0]["disk_room_bytes"].as_u64();
    wait_for("a look at the disk", LONG, || {
        room_bytes().is_some_and(|bytes| bytes < 3 * MIB as u64).then_some(())
    });
    let text = fits();
    assert!(!text.contains("too large"), "{text}");
}

/// One is enough. When it was used counts, not when it was fetched.
#[test]
fn of_two_that_may_go_that_goes_which_was_not_in_use_for_longer() {
    let hub = hub(&["one", "two", "three"]);
    let ann = node(&hub, "ann", "quota-order", Some(2 * MODEL_MIB));
    let bob = node(&hub, "bob", "quota-order", None);
    wait_united([&ann, &bob], LONG);
    for name in ["one", "two"] {
        pull(&ann, &hub, name);
        pull_on_bob(&bob, &hub, name, &ann);
    }
    // In use once more, since the other one came.
    run(&ann, &hub, &["place", "one-Q8_0", "--exclude", "bob"]);
    run(&ann, &hub, &["unload", "one-Q8_0"]);
    wait_for("nothing is placed", LONG, || {
        ann.get("/exo/v1/cluster")["instances"].as_array().unwrap().is_empty().then_some(())
    });
    let text = pull(&ann, &hub, "three");
    assert!(text.contains("deleted two-Q8_0"), "{text}");
    assert_eq!(on_disk(&ann), ["one", "three"]);
}

/// A node's download of a model of the hub.
fn pull_of(node: &Node, name: &str) -> Value {
    let pulls = node.get("/exo/v1/pulls");
    let reference = format!("hf.co/org/{name}");
    pulls.as_array().unwrap().iter().find(|pull| pull["reference"] == reference).cloned().unwrap_or_default()
}

fn wait_for_state(node: &Node, name: &str, state: &str) -> Value {
    wait_for(&format!("the download of {name} to be {state}"), LONG, || {
        let pull = pull_of(node, name);
        (pull["state"] == state).then_some(pull)
    })
}

/// A node has downloads in each state that one can be in. What is whole stays, used or not, here alone or
/// not: `exo prune` is for what was never finished.
#[test]
fn prune_through_a_node_deletes_parts_that_no_one_waits_for_and_nothing_else() {
    let hub = hub(&["one", "two"]);
    let large = |number: usize| [exo_node::DEMO_MODEL, &vec![0; 56 * MIB + 64 * number]].concat();
    let names = ["failed", "ended", "paused", "again", "left", "right"];
    for (number, name) in names.iter().enumerate() {
        hub.put(&format!("org/{name}"), repository(name, large(number)));
    }
    let node = node(&hub, "solo", "pruned-pulls", None);
    pull(&node, &hub, "one");
    pull(&node, &hub, "two");
    hub.set_faults(Faults { bytes_per_s: Some(512 << 10), ..Faults::default() });
    let begin = |name: &str| run(&node, &hub, &["pull", &format!("hf.co/org/{name}"), "--detach"]);
    let act = |what: &str, name: &str| {
        let id = pull_of(&node, name)["id"].as_str().unwrap().to_owned();
        run(&node, &hub, &["pulls", what, &id])
    };
    let some_of = |pair: [&str; 2]| {
        pair.iter().for_each(|name| _ = begin(name));
        wait_for(&format!("some of {pair:?}"), LONG, || {
            let verified = |name: &&str| pull_of(&node, name)["verified_bytes"].as_u64();
            pair.iter().all(|name| verified(name) >= Some(4 << 20)).then_some(())
        });
    };
    let has_parts = |name: &str| {
        let commit = format!("hub/org/{name}/0123456789abcdef0123456789abcdef01234567");
        node.data_dir.join(commit).join(format!("Q8_0/{name}-Q8_0.gguf.part")).is_file()
    };
    let left = || -> Vec<&str> { names.into_iter().filter(|name| has_parts(name)).collect() };
    some_of(["failed", "ended"]);
    hub.remove("org/failed");
    act("cancel", "ended");
    wait_for_state(&node, "failed", "failed");
    some_of(["paused", "again"]);
    act("pause", "paused");
    act("cancel", "again");
    // Two fetch at once: the third waits, and its hub was not asked yet what it is.
    some_of(["left", "right"]);
    begin("again");
    assert_eq!(pull_of(&node, "again")["state"], "queued");
    assert_eq!(left(), names);
    let text = run(&node, &hub, &["prune"]);
    assert!(text.contains("deleted 2 partial downloads") && text.contains("MiB"), "{text}");
    assert_eq!(left(), names[2..]);
    assert_eq!(on_disk(&node), ["one", "two"]);
    let failed = pull_of(&node, "failed");
    assert_eq!((&failed["state"], &failed["verified_bytes"]), (&json!("failed"), &json!(0)), "{failed}");
    // All of them come whole, and then nothing is left to go.
    hub.set_faults(Faults::default());
    hub.put("org/failed", repository("failed", large(0)));
    act("resume", "paused");
    act("resume", "failed");
    for name in names.iter().filter(|name| **name != "ended") {
        wait_for_state(&node, name, "done");
    }
    let text = run(&node, &hub, &["prune"]);
    assert!(text.contains("deleted 0 partial downloads"), "{text}");
    assert_eq!(on_disk(&node), ["again", "failed", "left", "one", "paused", "right", "two"]);
}

/// Nodes of one cluster with these quotas, and a model whose file the first has.
fn with_model_on_first(group: &str, nodes: &[(&str, Option<&str>)]) -> Vec<Node> {
    let start = |(name, quota_mib): &(&str, Option<&str>)| {
        let env = quota_mib.map(|mib| ("EXO_DISK_QUOTA_MIB", mib.into())).into_iter().collect();
        Node::start(Start { name, group, env, ..Start::default() })
    };
    let started: Vec<Node> = nodes.iter().map(start).collect();
    let path = started[0].data_dir.with_file_name("mine.gguf");
    another_model(&path);
    good(started[0].exo(&["models", "add", path.to_str().unwrap()]));
    let knows = |node: &Node| stdout(&node.exo(&["models"])).contains("mine");
    for node in &started {
        wait_for("one cluster", LONG, || (node.sees().len() == nodes.len() && knows(node)).then_some(()));
    }
    started
}

/// Names of the nodes that an instance, or a plan, has stages on.
fn nodes_of(placed: &Value) -> Vec<&str> {
    placed["stages"].as_array().unwrap().iter().map(|stage| stage["node_name"].as_str().unwrap()).collect()
}

#[test]
fn a_node_that_may_not_fetch_a_model_gets_no_layers_and_the_plan_names_its_setting() {
    let nodes = with_model_on_first("planned", &[("ann", None), ("bob", Some("1")), ("cid", Some("64"))]);
    let ann = &nodes[0];
    let asked = |args: &[&str]| -> Value { json_of(ann.exo(&[args, &["--json"]].concat())) };
    let refused = |args: &[&str]| must_refuse(ann.exo(args), "");
    // Only one of the two that lack the file may fetch it.
    assert_eq!(nodes_of(&asked(&["plan", "mine", "--exclude", "ann"])), ["cid"]);
    let lacking = "more room for models on bob: raise `disk_quota_mib` there";
    for command in ["plan", "place"] {
        let text = refused(&[command, "mine", "--exclude", "ann", "--exclude", "cid"]);
        assert!(text.contains("`disk_quota_mib` of bob leaves room for"), "{text}");
        assert!(text.contains(lacking), "{text}");
    }
    // What serves is not unloaded for what cannot be.
    let placed = asked(&["place", "mine", "--exclude", "cid"]);
    assert_eq!(nodes_of(&placed), ["ann"]);
    let text = refused(&["place", "mine", "--exclude", "ann", "--exclude", "cid", "--replace"]);
    assert!(text.contains(lacking), "{text}");
    let served = &ann.get("/exo/v1/cluster")["instances"][0];
    assert!(served["id"] == placed["id"] && served["state"]["kind"] == "ready", "{served}");
    let replaced = asked(&["place", "mine", "--exclude", "ann", "--replace"]);
    assert_eq!(nodes_of(&replaced), ["cid"]);
    // What is measured is gathered every few seconds.
    wait_for("the room of each to be told", LONG, || {
        let told = ann.get("/exo/v1/telemetry");
        let rooms: Option<Vec<u64>> =
            told["nodes"].as_array().unwrap().iter().map(|node| node["disk_room_bytes"].as_u64()).collect();
        let [ann, bob, cid] = rooms?[..] else { return None };
        // What was fetched there counts.
        let is_less = cid <= 59 * MIB as u64;
        assert!(ann > 64 * MIB as u64 && bob <= MIB as u64, "{told}");
        is_less.then_some(())
    });
}

#[test]
fn a_placement_that_a_disk_refuses_is_shown_as_it_was_carried_out() {
    let quota = Some("64");
    let nodes = with_model_on_first("refused", &[("ann", None), ("bob", quota), ("cid", quota)]);
    let arguments = ["mine", "--exclude", "ann"];
    let planned = nodes[0].exo(&[&["plan"], &arguments[..], &["--json"]].concat());
    let planned: Value = serde_json::from_str(&stdout(&planned)).unwrap();
    let first = nodes_of(&planned)[0];
    let other = if first == "bob" { "cid" } else { "bob" };
    let hub = nodes[if first == "bob" { 1 } else { 2 }].data_dir.join("hub");
    let filled = hub.join("filled");
    std::fs::create_dir_all(&hub).unwrap();
    wait_for("a disk that is full since it was looked at", LONG, || {
        std::fs::write(&filled, vec![1; 64 * MIB]).unwrap();
        let output = nodes[0].exo(&[&["place"], &arguments[..]].concat());
        let (text, notes) = (stdout(&output), stderr(&output));
        assert!(output.status.success(), "{text}{notes}");
        // A wide row goes on in a second line.
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let shown: Vec<&str> = rows.filter(|row| row.get(1) == Some(&"cpu")).map(|row| row[0]).collect();
        if shown[0] == first {
            assert!(notes.contains("it was placed anew while it loaded"), "{text}{notes}");
            assert_eq!(shown, [first, other], "{text}");
            return Some(());
        }
        // It had been looked at in this very moment.
        assert!(nodes[0].exo(&["unload", "mine"]).status.success());
        std::fs::remove_file(&filled).unwrap();
        let room = || nodes[0].get("/exo/v1/telemetry")["nodes"].as_array().unwrap().to_vec();
        wait_for("room again", LONG, || {
            room().iter().all(|node| node["disk_room_bytes"].as_u64() > Some(32 * MIB as u64)).then_some(())
        });
        None
    });
}

#[test]
fn a_download_that_goes_on_at_a_start_waits_until_members_have_said_what_they_have() {
    let hub = hub(&["one"]);
    let large = [exo_node::DEMO_MODEL, &vec![0; 32 * MIB]].concat();
    hub.put("org/two", Repository::new(&[("two-Q8_0.gguf", large)]));
    let bob = node(&hub, "bob", "quota-start", None);
    let folder = tempfile::tempdir().unwrap();
    let ann = |quota_mib: usize| {
        let env = [
            ("HF_ENDPOINT", hub.endpoint().into()),
            ("EXO_DISK_RESERVE_MIB", "0".into()),
            ("EXO_DISK_QUOTA_MIB", quota_mib.to_string().into()),
        ];
        let start = Start { name: "ann", group: "quota-start", env: env.to_vec(), ..Start::default() };
        Node::start_in(folder.path(), start)
    };
    let mut first = ann(64);
    wait_for("one cluster", LONG, || (first.sees().len() == 2).then_some(()));
    pull(&bob, &hub, "one");
    pull(&first, &hub, "one");
    hub.set_faults(Faults { bytes_per_s: Some(4 << 20), ..Faults::default() });
    run(&first, &hub, &["pull", "hf.co/org/two", "--detach"]);
    let of_two = |node: &Node| -> Value {
        let pulls = node.get("/exo/v1/pulls");
        pulls.as_array().unwrap().iter().find(|pull| pull["reference"] == "hf.co/org/two").cloned().unwrap()
    };
    wait_for("some of it", LONG, || {
        (of_two(&first)["verified_bytes"].as_u64()? >= 8 * MIB as u64).then_some(())
    });
    first.kill();
    hub.set_faults(Faults::default());
    // Only without the other model there is room for the rest of it.
    let second = ann(40);
    let done = wait_for("its end", LONG, || {
        let pull = of_two(&second);
        assert_ne!(pull["state"], "failed", "{pull}");
        // Also while it waits for room.
        let shows_less = pull["verified_bytes"].as_u64() < Some(8 * MIB as u64);
        assert!(pull["total_bytes"].is_null() || !shows_less, "{pull}");
        (pull["state"] == "done").then_some(pull)
    });
    assert_eq!(done["removed"][0]["name"], "one-Q8_0", "{done}");
    assert_eq!(on_disk(&second), ["two"]);
}

#[test]
fn what_a_request_loaded_is_unloaded_when_idle_and_the_next_request_wakes_it() {
    let env = vec![("EXO_UNLOAD_IDLE_S", "4".into())];
    let node = Node::start(Start { name: "solo", group: "idle", env, ..Start::default() });
    let instances = || node.get("/exo/v1/cluster")["instances"].as_array().unwrap().len();
    answers(&node);
    assert_eq!(instances(), 1);
    wait_for("nothing is loaded", LONG, || (instances() == 0).then_some(()));
    let log = node.exo(&["logs"]);
    assert!(stdout(&log).contains("none used it for 4 s"), "{}", stdout(&log));
    answers(&node);
    assert_eq!(instances(), 1);
    // What a person asks for stays, although a request had loaded it.
    good(node.exo(&["place", "demo"]));
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(instances(), 1);
}

#[test]
fn a_token_that_was_given_once_opens_gated_models_and_goes_to_its_hub_alone() {
    let hub = hub(&["one"]);
    let mut gated = Repository::new(&[("gated-Q8_0.gguf", [exo_node::DEMO_MODEL, &[0; 640]].concat())]);
    gated.is_gated = true;
    hub.put("org/gated", gated);
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let command = |args: &[&str], endpoint: &str| {
        let mut command = exo(args);
        command.args(["--log", "trace", "--data-dir"]).arg(&data_dir).env("HF_ENDPOINT", endpoint);
        command.env("HOME", folder.path().join("home")).env_remove("HF_HOME").env_remove("XDG_CACHE_HOME");
        command
    };
    let run = |args: &[&str], endpoint: &str| {
        let output = finish(&mut command(args, endpoint), LONG);
        let text = stdout(&output) + &stderr(&output);
        assert!(!text.contains(hub.token()), "the token is shown: {text}");
        (output.status.success(), text)
    };
    let (is_good, text) = run(&["pull", "hf.co/org/gated"], &hub.endpoint());
    assert!(!is_good && text.contains("exo login hub"), "{text}");
    let mut login = command(&["login", "hub"], &hub.endpoint());
    let mut login =
        Killed(login.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    login.0.stdin.take().unwrap().write_all(format!("{}\n", hub.token()).as_bytes()).unwrap();
    assert!(wait_for("the token is kept", LONG, || login.0.try_wait().unwrap()).success());
    let kept = std::fs::metadata(data_dir.join("hub-token.json")).unwrap();
    assert_eq!(exo_stdx::mode_open_to_others(&kept), None);
    // Another hub hears nothing of it.
    let other = hub_of_others();
    let (is_good, text) = run(&["pull", "hf.co/org/gated"], &other.endpoint());
    assert!(!is_good && other.seen().iter().all(|seen| seen.authorization.is_none()), "{text}");
    let (is_good, text) = run(&["pull", "hf.co/org/gated"], &hub.endpoint());
    assert!(is_good && text.contains("gated-Q8_0 is ready, verified"), "{text}");
    let seen = hub.seen();
    assert!(seen.iter().any(|seen| seen.host == Host::Hub && seen.authorization.is_some()));
    assert!(seen.iter().all(|seen| seen.host == Host::Hub || seen.authorization.is_none()));
    let (is_good, text) = run(&["login", "hub", "--forget"], &hub.endpoint());
    assert!(
        is_good && text.contains("the token is deleted") && !data_dir.join("hub-token.json").exists(),
        "{text}"
    );
}

/// A hub on which the same model is gated.
fn hub_of_others() -> MockHub {
    let hub = MockHub::start().unwrap();
    let mut gated = Repository::new(&[("gated-Q8_0.gguf", vec![0; 64])]);
    gated.is_gated = true;
    hub.put("org/gated", gated);
    hub
}

#[test]
fn a_node_keeps_a_token_for_its_hub_and_heads_of_another_commit_are_not_taken() {
    let hub = hub(&["one"]);
    let node = node(&hub, "solo", "login", None);
    let token = hub.token().to_owned();
    let answer = node.post("/exo/v1/hub/login", &json!({"token": token}));
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    let path = node.data_dir.join("hub-token.json");
    assert!(std::fs::read_to_string(&path).unwrap().contains(&token));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(path.join("in the way")).unwrap();
    let answer = node.post("/exo/v1/hub/login", &json!({"token": token}));
    assert_eq!((answer.status, answer.code()), (500, "disk_failed".to_owned()), "{}", answer.body);
    std::fs::remove_dir_all(&path).unwrap();
    let answer = node.post("/exo/v1/hub/login", &json!({"token": "two\nlines"}));
    assert!(answer.status == 400 && !answer.body.contains("lines\""), "{}", answer.body);
    assert_eq!(node.call("DELETE", "/exo/v1/hub/login", None).status, 204);
    assert!(!path.exists() && !node.log().contains(&token));
    // A mirror that is half way through a change.
    hub.set_faults(Faults { other_commit: Some("f".repeat(40)), ..Faults::default() });
    let (is_good, text) = command(&node, &hub.endpoint(), &["pull", "--layers", "hf.co/org/one"]);
    assert!(!is_good && text.contains(&format!("it is of commit {}", "f".repeat(40))), "{text}");
    hub.set_faults(Faults { other_digest: Some("ab".repeat(32)), ..Faults::default() });
    // Who has it go on, or asks again at once, hears nothing of the attempt before.
    let id = node.get("/exo/v1/pulls")[0]["id"].as_str().unwrap().to_owned();
    let again = node.post(&format!("/exo/v1/pulls/{id}/resume"), &json!({})).json();
    assert!(again["state"] != "failed" && again["error"].is_null(), "{again}");
    let (is_good, text) = command(&node, &hub.endpoint(), &["pull", "--layers", "hf.co/org/one"]);
    assert!(!is_good && text.contains(&format!("it is the file {}", "ab".repeat(32))), "{text}");
    hub.set_faults(Faults::default());
    run(&node, &hub, &["pull", "--layers", "hf.co/org/one"]);
}
