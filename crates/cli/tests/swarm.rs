//! A model of a hub that no node has whole: three nodes, each fetches its own layers, from the hub, from each
//! other or through another.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;
use std::time::Duration;

use crate::support::{
    Node, Start, answers_as, exo, finish, good, known, must_refuse, stderr, stdout, wait_for, wait_united,
    with,
};
use exo_mock_hub::{Faults, MockHub, Repository};
use serde_json::{Value, json};

/// A placement of the demo model on three nodes, on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const CHUNK: u64 = 64 << 10;
const NAMES: [&str; 3] = ["ann", "bob", "cid"];

/// The demo model as a file of its own, or it would be the one that the binary carries.
pub fn demo_model() -> Vec<u8> {
    [exo_node::DEMO_MODEL, &[0; 64]].concat()
}

pub fn hub() -> MockHub {
    let hub = MockHub::start().unwrap();
    hub.put("org/demo-GGUF", Repository::new(&[("tiny-Q8_0.gguf", demo_model())]));
    hub
}

/// Three nodes of one cluster; `env` says what each has in its environment.
fn cluster(group: &str, env: impl Fn(&str) -> Vec<(&'static str, String)>) -> Vec<Node> {
    let start = |name: &&'static str| {
        let env = env(name).into_iter().map(|(name, value)| (name, value.into())).collect();
        Node::start(Start { name, group, env, ..Start::default() })
    };
    let nodes: Vec<_> = NAMES.iter().map(start).collect();
    wait_united(&nodes, LONG);
    nodes
}

/// A command on a node's data folder, with this hub and token in its environment.
pub fn command(node: &Node, args: &[&str], hub: &MockHub, token: Option<&str>) -> String {
    let mut command = exo(args);
    command.arg("--data-dir").arg(&node.data_dir).env("HF_ENDPOINT", hub.endpoint());
    command.env("HOME", node.data_dir.join("no-home"));
    token.iter().for_each(|token| _ = command.env("HF_TOKEN", token));
    let output = finish(&mut command, LONG);
    assert!(output.status.success(), "{args:?}: {}{}\n{}", stdout(&output), stderr(&output), node.log());
    stdout(&output) + &stderr(&output)
}

/// Bytes that files take on the disk below a folder; holes take none.
fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|e| if e.path().is_dir() { disk_bytes(&e.path()) } else { e.metadata().unwrap().blocks() * 512 })
        .sum()
}

/// The stages of the only instance: name of the node and bytes of weights.
fn stages(node: &Node) -> Vec<(String, u64)> {
    let view = node.get("/exo/v1/cluster");
    let stages = view["instances"][0]["stages"].as_array().unwrap().clone();
    stages
        .iter()
        .map(|s| (s["node_name"].as_str().unwrap().to_owned(), s["weight_bytes"].as_u64().unwrap()))
        .collect()
}

fn answers_as_the_whole_model(node: &Node) {
    answers_as(node, "tiny-Q8_0");
}

#[test]
fn a_model_that_no_node_has_whole_arrives_in_layers_and_leaves_the_hub_once() {
    let hub = hub();
    let nodes = cluster("layers", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    let text = command(&nodes[0], &["place", "hf.co/org/demo-GGUF", "--nodes", "3"], &hub, None);
    assert!(text.contains("ready"), "{text}");
    nodes.iter().for_each(answers_as_the_whole_model);
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    let model = exo_formats::open_gguf_bytes("demo", demo_model()).unwrap();
    let head = model.files[0].head_bytes;
    let stages = stages(&nodes[0]);
    assert_eq!(stages.len(), 3);
    for node in &nodes {
        let name = node.get("/exo/v1/cluster")["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|n| n["is_self"] == true)
            .unwrap()["name"]
            .clone();
        let weights: u64 =
            stages.iter().filter(|(node, _)| name == node.as_str()).map(|(_, bytes)| bytes).sum();
        let disk = disk_bytes(&node.data_dir.join("models"));
        println!(
            "{name}: {weights} bytes of weights, {disk} on disk; head {head}, model {size}, sent {sent}"
        );
        // Its head and its layers, and at both ends of each the rest of a chunk. Whoever was asked has read a
        // sixteenth of the file to find the head, and keeps that also where its layers are others.
        let read = if name == "ann" { size / 16 } else { 0 };
        assert!(disk <= weights + head + read + size / 50 + 4 * CHUNK, "{name}: {disk} for {weights}");
        assert!(disk < size * 9 / 10, "{name} has nearly all: {disk} of {size}");
    }
    let ranges: Vec<_> =
        hub.seen().into_iter().filter(|s| s.range.is_some()).map(|s| (s.host, s.range)).collect();
    assert!(sent <= size + size / 20, "{sent} bytes left the hub for a model of {size}: {ranges:?}");
    // Another plan moves no byte from the hub again: members have them all.
    good(nodes[1].exo(&["unload", "tiny-Q8_0"]));
    command(&nodes[1], &["place", "tiny-Q8_0", "--nodes", "2", "--exclude", "ann"], &hub, None);
    answers_as_the_whole_model(&nodes[2]);
    assert_eq!(hub.sent_bytes(), sent);
    assert_eq!(of_the_list(&nodes[2], "licence"), "apache-2.0");
    assert_eq!(of_the_list(&nodes[2], "source"), "hf.co/org/demo-GGUF:Q8_0@01234567 in parts, not verified");
    // The first placement was checked by itself where it was asked for; bob has fetched more since, and
    // checks again.
    let is_checked = |check: &Value| check["model"] == "tiny-Q8_0" && check["state"] == "matches";
    wait_for("the check of its own accord", LONG, || {
        nodes[0].get("/exo/v1/model_checks").as_array().unwrap().iter().any(is_checked).then_some(())
    });
    let text = command(&nodes[2], &["models", "check", "tiny-Q8_0"], &hub, None);
    assert!(text.contains("is what its hub promised"), "{text}");
    assert_eq!(of_the_list(&nodes[2], "source"), "hf.co/org/demo-GGUF:Q8_0@01234567 in parts, verified");
}

#[test]
fn a_commit_with_the_same_weights_brings_heads_alone() {
    let hub = hub();
    let nodes = cluster("commits", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["place", "hf.co/org/demo-GGUF", "--nodes", "3"], &hub, None);
    assert!(nodes[0].exo(&["unload", "tiny-Q8_0"]).status.success());
    let mut repository = Repository::new(&[("tiny-Q8_0.gguf", demo_model()), ("README.md", b"new".to_vec())]);
    repository.commit = "fedcba9876543210fedcba9876543210fedcba98".to_owned();
    hub.put("org/demo-GGUF", repository);
    let sent = hub.sent_bytes();
    command(&nodes[0], &["pull", "--layers", "hf.co/org/demo-GGUF"], &hub, None);
    command(&nodes[0], &["place", "tiny-Q8_0", "--nodes", "3"], &hub, None);
    answers_as_the_whole_model(&nodes[0]);
    assert!(of_the_list(&nodes[0], "source").contains("@fedcba98"));
    let again = hub.sent_bytes() - sent;
    assert!(again <= 8 * CHUNK, "{again} bytes left the hub for a commit with the same weights");
}

fn of_the_list(node: &Node, field: &str) -> String {
    let models: Value = node.get("/exo/v1/models");
    let model = models.as_array().unwrap().iter().find(|m| m["name"] == "tiny-Q8_0").unwrap();
    model[field].as_str().unwrap().to_owned()
}

#[test]
fn a_chunk_that_is_not_what_the_hub_promised_is_found_by_the_check() {
    let hub = hub();
    // A hub that promises one file and gives another of the same length, whose head and tables are right.
    let mut repository = Repository::new(&[("tiny-Q8_0.gguf", demo_model())]);
    repository.files.get_mut("tiny-Q8_0.gguf").unwrap().sha256 = "ab".repeat(32);
    hub.put("org/other-GGUF", repository);
    let nodes = cluster("liar", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["pull", "hf.co/org/other-GGUF", "--layers"], &hub, None);
    must_refuse(nodes[1].exo(&["models", "check", "tiny-Q8_0"]), "has tiny-Q8_0.gguf from byte");
    command(&nodes[0], &["place", "tiny-Q8_0", "--nodes", "2"], &hub, None);
    must_refuse(nodes[1].exo(&["models", "check", "tiny-Q8_0"]), "is not what the hub promised");
    assert!(of_the_list(&nodes[1], "source").ends_with("NOT what the hub promised"));
    // What runs goes on; it is not placed again, neither by a command nor by a request.
    let alert = wait_for("the alert", LONG, || {
        let alerts = nodes[1].get("/exo/v1/alerts");
        alerts.as_array().unwrap().iter().find(|alert| alert["rule"] == "model_differs").cloned()
    });
    assert!(alert["text"].as_str().unwrap().contains("runs with it"), "{alert}");
    good(nodes[1].exo(&["unload", "tiny-Q8_0"]));
    must_refuse(nodes[1].exo(&["place", "tiny-Q8_0"]), "`exo models remove` it");
    let refused = nodes[1].ask("tiny-Q8_0", &known()[0].0);
    assert!(refused.status != 200 && refused.body.contains("not what its hub promised"), "{}", refused.body);
}

/// The model as a pull of all of it leaves it on a node's disk.
fn pulled(node: &Node) -> Vec<u8> {
    let files = node.data_dir.join("hub/org/demo-GGUF/0123456789abcdef0123456789abcdef01234567/Q8_0");
    std::fs::read(files.join("tiny-Q8_0.gguf")).unwrap()
}

#[test]
fn a_whole_model_comes_from_a_member_that_has_it_whole() {
    let hub = hub();
    let nodes = cluster("whole", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    let size = demo_model().len() as u64;
    for (node, sent_max) in nodes.iter().zip([size, size + size / 50, size + size / 50]) {
        let text = command(node, &["pull", "hf.co/org/demo-GGUF"], &hub, None);
        assert!(text.contains("tiny-Q8_0 is ready, verified"), "{text}");
        let sent = hub.sent_bytes();
        assert!(size <= sent && sent <= sent_max, "{sent} bytes left the hub for a model of {size}");
        assert_eq!(pulled(node), demo_model());
    }
    nodes.iter().for_each(answers_as_the_whole_model);
}

#[test]
fn two_machines_that_pull_one_model_at_once_both_have_it_whole_and_most_of_it_leaves_the_hub_once() {
    // Long enough that they meet while they fetch.
    let filler: Vec<u8> = (0..76_usize << 20).map(|at| (at / 7) as u8).collect();
    let model = [demo_model(), filler].concat();
    let hub = hub();
    hub.put("org/demo-GGUF", Repository::new(&[("tiny-Q8_0.gguf", model.clone())]));
    let nodes = cluster("at-once", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    let size = model.len() as u64;
    hub.set_faults(Faults { bytes_per_s: Some(1 << 20), ..Faults::default() });
    for node in &nodes[..2] {
        node.post("/exo/v1/pulls", &json!({"reference": "hf.co/org/demo-GGUF"})).good();
    }
    let is_ready = |node: &Node| {
        let models = node.get("/exo/v1/models");
        let is_it = |model: &Value| model["name"] == "tiny-Q8_0" && !model["path"].is_null();
        models.as_array().unwrap().iter().any(is_it)
    };
    for node in &nodes[..2] {
        wait_for("the model", LONG, || file_below(&node.data_dir.join("hub"), "tiny-Q8_0.gguf"));
        assert!(pulled(node) == model, "a file has its name once it is whole and verified");
        wait_for("a listed model", LONG, || is_ready(node).then_some(()));
    }
    let sent = hub.sent_bytes();
    assert!(size <= sent && sent <= size * 13 / 10, "{sent} bytes left the hub for two of {size}");
    hub.set_faults(Faults::default());
    answers_as_the_whole_model(&nodes[0]);
}

#[test]
fn a_pull_whose_line_is_away_takes_the_rest_from_a_member_that_has_the_file_by_then() {
    let model = [demo_model(), vec![7; 76 << 20]].concat();
    let (of_ann, of_others) = (hub(), hub());
    for hub in [&of_ann, &of_others] {
        hub.put("org/demo-GGUF", Repository::new(&[("tiny-Q8_0.gguf", model.clone())]));
    }
    of_ann.set_faults(Faults { bytes_per_s: Some(1 << 20), ..Faults::default() });
    let nodes = cluster("line-away", |name| {
        let hub = if name == "ann" { &of_ann } else { &of_others };
        vec![("HF_ENDPOINT", hub.endpoint())]
    });
    nodes[0].post("/exo/v1/pulls", &json!({"reference": "hf.co/org/demo-GGUF"})).good();
    let pull = || nodes[0].get("/exo/v1/pulls").as_array().unwrap()[0].clone();
    wait_for("some of it", LONG, || (pull()["verified_bytes"].as_u64()? > 0).then_some(()));
    drop(of_ann);
    let waits = |pull: Value| pull["error"].as_str()?.contains("waits for the line").then_some(());
    wait_for("a line that is away", LONG, || waits(pull()));
    command(&nodes[1], &["pull", "hf.co/org/demo-GGUF"], &of_others, None);
    wait_for("the rest", LONG, || (pull()["state"] == "done").then_some(()));
    assert!(pulled(&nodes[0]) == model);
}

#[test]
fn layers_come_from_a_member_that_has_pulled_the_whole_file() {
    // In chunks of 1 MiB, which are the blocks of a pull.
    let model = [demo_model(), vec![7; 76 << 20]].concat();
    let hub = hub();
    hub.put("org/demo-GGUF", Repository::new(&[("tiny-Q8_0.gguf", model.clone())]));
    let nodes = cluster("pulled", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[2], &["pull", "hf.co/org/demo-GGUF"], &hub, None);
    command(&nodes[0], &["pull", "--layers", "hf.co/org/demo-GGUF"], &hub, None);
    let sent = hub.sent_bytes();
    command(&nodes[0], &["place", "tiny-Q8_0", "--nodes", "2", "--exclude", "cid"], &hub, None);
    answers_as_the_whole_model(&nodes[0]);
    let again = hub.sent_bytes() - sent;
    assert!(again < 1 << 20, "{again} bytes left the hub for layers of a file that a member has");
}

#[test]
fn a_whole_model_is_put_together_of_layers_that_members_have_and_is_what_the_hub_promised() {
    let hub = hub();
    let nodes = cluster("gathered", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["place", "hf.co/org/demo-GGUF", "--nodes", "2", "--exclude", "cid"], &hub, None);
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    command(&nodes[2], &["pull", "hf.co/org/demo-GGUF"], &hub, None);
    assert_eq!(pulled(&nodes[2]), demo_model());
    let again = hub.sent_bytes() - sent;
    assert!(again <= size / 50, "{again} bytes left the hub for a model of {size} that two members have");
}

#[test]
fn what_a_member_has_wrong_comes_from_the_hub_and_the_log_names_the_member() {
    let hub = hub();
    let nodes = cluster("rotten", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["place", "hf.co/org/demo-GGUF", "--nodes", "2", "--exclude", "cid"], &hub, None);
    good(nodes[0].exo(&["unload", "tiny-Q8_0"]));
    // In the middle of the layers, as if it had come so: nothing but the whole file's digest says that it is
    // wrong.
    let (mut nodes, mut again) = (nodes, Vec::new());
    for (node, name) in nodes.iter_mut().zip(["ann", "bob"]) {
        node.kill();
        let models = node.data_dir.join("models");
        std::fs::remove_file(file_below(&models, "hashes").unwrap()).unwrap();
        damage(node, demo_model().len() as u64 / 2);
        let env = vec![("HF_ENDPOINT", hub.endpoint().into())];
        again.push(Node::start_in(&node.data_dir, Start { name, group: "rotten", env, ..Start::default() }));
    }
    wait_for("one cluster", LONG, || (nodes[2].sees().len() == NAMES.len()).then_some(()));
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    command(&nodes[2], &["pull", "hf.co/org/demo-GGUF"], &hub, None);
    assert_eq!(pulled(&nodes[2]), demo_model());
    assert!(hub.sent_bytes() - sent >= size, "all of it comes from the hub");
    let log = nodes[2].log();
    let said = log.lines().find(|line| line.contains("not what the hub promised"));
    assert!(said.is_some_and(|line| line.contains("ann") && line.contains("bob")), "{log}");
}

/// Writes other bytes from there on to what a node has of the model in layers.
fn damage(node: &Node, start: u64) {
    let path = file_below(&node.data_dir.join("models"), "tiny-Q8_0.gguf").unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    exo_stdx::write_all_at(&file, &[0xa5; 64], start).unwrap();
}

#[test]
fn a_layer_that_a_disk_has_damaged_is_fetched_again_and_only_that() {
    let hub = hub();
    let start = |name| {
        let env = vec![("HF_ENDPOINT", hub.endpoint().into()), ("EXO_LOG", "info".into())];
        Node::start(Start { name, group: "healed", env, ..Start::default() })
    };
    let node = start("ann");
    command(&node, &["pull", "--layers", "hf.co/org/demo-GGUF"], &hub, None);
    let place = || {
        command(&node, &["place", "tiny-Q8_0"], &hub, None);
        answers_as_the_whole_model(&node);
    };
    place();
    // Once before it is loaded again.
    assert!(node.exo(&["unload", "tiny-Q8_0"]).status.success());
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    damage(&node, size / 2);
    place();
    assert_eq!(hub.sent_bytes() - sent, CHUNK);
    let log = node.log();
    for said in ["damaged on this disk: it is to be fetched again", "was fetched again"] {
        assert!(log.contains(said), "{said}: {log}");
    }
    // Once before a check; the one that runs by itself may be at a later byte already.
    let check = || {
        let text = command(&node, &["models", "check", "tiny-Q8_0"], &hub, None);
        assert!(text.contains("is what its hub promised"), "{text}");
    };
    check();
    damage(&node, size * 3 / 4);
    wait_for("a check that finds the damage", LONG, || {
        check();
        (hub.sent_bytes() - sent == 2 * CHUNK).then_some(())
    });
    // And once before another takes it, who is not given it: it comes from the hub, and here again.
    let other = start("bob");
    wait_for("one cluster", LONG, || (node.sees().len() == 2 && other.sees().len() == 2).then_some(()));
    damage(&node, size * 5 / 8);
    command(&other, &["pull", "hf.co/org/demo-GGUF"], &hub, None);
    assert_eq!(pulled(&other), demo_model());
    wait_for("what is damaged to come again", LONG, || {
        (node.log().matches("was fetched again").count() >= 3).then_some(())
    });
    let again = hub.sent_bytes() - sent;
    println!("{again} bytes left the hub for three damaged chunks and one who takes {size} bytes");
    assert!(again <= size / 50 + 8 * CHUNK, "{again} bytes left the hub for a model of {size}");
}

/// A file of that name.
fn file_below(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.find_map(|entry| match entry.path() {
        path if path.is_dir() => file_below(&path, name),
        path => (entry.file_name() == name).then_some(path),
    })
}

#[test]
fn nodes_without_internet_or_token_get_their_layers_through_one_that_has_both() {
    let hub = MockHub::start().unwrap();
    let gated = Repository { is_gated: true, ..Repository::new(&[("tiny-Q8_0.gguf", demo_model())]) };
    hub.put("org/gated-GGUF", gated);
    let nodes = cluster("relayed", |name| match name {
        "cid" => vec![("EXO_OFFLINE", "1".to_owned())],
        _ => vec![("HF_ENDPOINT", hub.endpoint())],
    });
    let token = hub.token().to_owned();
    let place = ["place", "hf.co/org/gated-GGUF", "--nodes", "3"];
    let text = command(&nodes[0], &place, &hub, Some(&token));
    assert!(text.contains("ready"), "{text}");
    nodes.iter().for_each(answers_as_the_whole_model);
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    println!("{sent} bytes left the hub for a model of {size}");
    assert!(sent <= size + size / 20 + 2 * CHUNK, "{sent} bytes left the hub for a model of {size}");
    for node in &nodes {
        assert!(!node.log().contains(&token), "the token is in a log");
    }
    // A request has it placed again, and its node checks it.
    good(nodes[0].exo(&["unload", "tiny-Q8_0"]));
    answers_as_the_whole_model(&nodes[1]);
    let is_checked = |check: &Value| check["model"] == "tiny-Q8_0" && check["state"] == "matches";
    wait_for("the check behind a request", LONG, || {
        nodes[1].get("/exo/v1/model_checks").as_array().unwrap().iter().any(is_checked).then_some(())
    });
}

/// What was unloaded is shown for some milliseconds more, on other nodes above all: a request that comes to
/// one of them meanwhile has the model placed again all the same.
#[test]
fn what_a_request_has_placed_right_behind_an_unload_is_checked_like_any_other() {
    let hub = hub();
    let log = || ("EXO_LOG", "warn,events::model_check=info".to_owned());
    let nodes = cluster("at-once", |_| vec![("HF_ENDPOINT", hub.endpoint()), log()]);
    let checks = |node: &Node| node.log().matches("state=Matches").count();
    command(&nodes[0], &["place", "hf.co/org/demo-GGUF", "--nodes", "3"], &hub, None);
    nodes.iter().for_each(answers_as_the_whole_model);
    for round in 0..6 {
        let (here, there) = (&nodes[round % 3], &nodes[(round + 1) % 3]);
        let (before, view) = (checks(there), here.get("/exo/v1/cluster"));
        let path = format!("/exo/v1/instances/{}", view["instances"][0]["id"].as_str().unwrap());
        let unloaded = here.call("DELETE", &path, None);
        assert!(unloaded.status < 300, "{}", unloaded.body);
        answers_as_the_whole_model(there);
        wait_for("the check behind a request", LONG, || (checks(there) > before).then_some(()));
    }
}

#[test]
fn where_the_hub_gives_no_digest_one_machine_fetches_all_of_it() {
    let hub = hub();
    let mut repository = Repository::new(&[("tiny-Q8_0.gguf", demo_model())]);
    repository.files.values_mut().for_each(|file| file.is_lfs = false);
    hub.put("org/demo-GGUF", repository);
    let nodes = cluster("no-digest", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["place", "hf.co/org/demo-GGUF", "--nodes", "2"], &hub, None);
    answers_as_the_whole_model(&nodes[1]);
    assert_eq!(nodes[0].get("/exo/v1/pulls")[0]["was_here"], false);
    assert!(nodes[0].data_dir.join("hub/org/demo-GGUF").exists());
}

#[test]
fn a_repository_of_safetensors_arrives_in_layers_with_its_documents_whole() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/fixtures/llama-bf16-tied");
    let files = ["config.json", "tokenizer.json", "model.safetensors"];
    let mut files = files.map(|name| (name, std::fs::read(fixture.join(name)).unwrap())).to_vec();
    let steps = json!([{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]);
    files.push(("modules.json", steps.to_string().into()));
    files.push(("1_Pooling/config.json", json!({"pooling_mode_mean_tokens": true}).to_string().into()));
    let hub = MockHub::start().unwrap();
    hub.put("org/tiny-llama", Repository::new(&files));
    let nodes = cluster("safetensors", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["place", "hf.co/org/tiny-llama", "--nodes", "2"], &hub, None);
    let ask = |node: &Node, model: &str| {
        let body = json!({"model": model, "prompt": "a b", "max_tokens": 6, "temperature": 0});
        let answer = node.post("/v1/completions", &body).good();
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let alone = Node::alone();
    command(&alone, &["models", "add", fixture.to_str().unwrap()], &hub, None);
    let expected = ask(&alone, "llama-bf16-tied");
    for node in &nodes {
        assert_eq!(ask(node, "tiny-llama"), expected);
        // How rows become a vector is in a folder of the repository, and known to all.
        let vector = |more: Value| {
            let body = with(json!({"model": "tiny-llama", "input": [[5, 6, 7, 8]]}), more);
            node.post("/v1/embeddings", &body).good().json()["data"][0]["embedding"].clone()
        };
        assert_eq!(vector(json!({})), vector(json!({"pooling": "mean"})));
        assert_ne!(vector(json!({})), vector(json!({"pooling": "last"})));
    }
    let text = command(&nodes[1], &["models", "check", "tiny-llama"], &hub, None);
    assert!(text.contains("is what its hub promised"), "{text}");
}

#[test]
fn a_stage_goes_on_where_it_was_when_its_node_is_killed_while_it_fetches() {
    let hub = hub();
    let env = vec![("HF_ENDPOINT", hub.endpoint())];
    let nodes = cluster("killed", |_| env.clone());
    command(&nodes[0], &["pull", "hf.co/org/demo-GGUF", "--layers"], &hub, None);
    hub.set_faults(Faults { bytes_per_s: Some(40 << 10), ..Faults::default() });
    nodes[0].post("/exo/v1/instances", &json!({"model": "tiny-Q8_0", "nodes_min": 3})).good();
    let before = hub.sent_bytes();
    wait_for("some layers", LONG, || (hub.sent_bytes() > before + 3 * CHUNK).then_some(()));
    wait_for("how far a stage is, how fast it comes and how long the rest takes", LONG, || {
        let view = nodes[0].get("/exo/v1/cluster");
        let stages = view["instances"][0]["stages"].as_array()?;
        let (stage, far) = stages.iter().find_map(|stage| {
            let far = &stage["progress"];
            (far["phase"] == "fetching" && far["seconds_left"].as_u64() > Some(0)).then_some((stage, far))
        })?;
        assert_eq!(stage["fetched_from"], "its hub and members", "{stage}");
        let number = |name: &str| far[name].as_u64().unwrap();
        assert!(number("done_bytes") < number("total_bytes") && number("bytes_per_s") > 0, "{far}");
        // Its layers, the head, and what is left of the chunks at the ends.
        assert!(number("total_bytes") < demo_model().len() as u64 * 9 / 10, "{far}");
        stdout(&nodes[0].exo(&["status"])).contains("fetching ").then_some(())
    });
    let mut nodes = nodes;
    let data_dir = nodes[2].data_dir.clone();
    nodes[2].kill();
    let sent_before_kill = hub.sent_bytes() - before;
    hub.set_faults(Faults::default());
    let env = env.iter().map(|(name, value)| (*name, value.into())).collect();
    let again = Node::start_in(&data_dir, Start { name: "cid", group: "killed", env, ..Start::default() });
    wait_for("the instance to serve", LONG, || {
        let view = again.get("/exo/v1/cluster");
        (view["instances"][0]["state"]["kind"] == "ready").then_some(())
    });
    answers_as_the_whole_model(&again);
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    println!("{sent} bytes left the hub for a model of {size}");
    let view = again.get("/exo/v1/cluster");
    let own = view["nodes"].as_array().unwrap().iter().find(|node| node["is_self"] == true).unwrap();
    let stages = view["instances"][0]["stages"].as_array().unwrap();
    // Where a survivor has taken the stage before its node was back, what that node had comes again.
    let is_back = stages.iter().any(|stage| stage["node"] == own["id"]);
    let lost = if is_back { 0 } else { sent_before_kill };
    // What was in flight at the kill comes again: of each of four ranges a chunk, and what the sockets held.
    let most = size + size / 20 + 16 * CHUNK + lost;
    assert!(sent <= most, "{sent} bytes left the hub for a model of {size}, {lost} of them for a lost node");
}

#[test]
fn a_model_that_is_larger_than_every_disk_arrives() {
    const QUOTA_MIB: u64 = 4;
    let hub = hub();
    let env = |_: &str| vec![("HF_ENDPOINT", hub.endpoint()), ("EXO_DISK_QUOTA_MIB", QUOTA_MIB.to_string())];
    let nodes = cluster("disks", env);
    command(&nodes[0], &["place", "hf.co/org/demo-GGUF"], &hub, None);
    nodes.iter().for_each(answers_as_the_whole_model);
    assert!(stages(&nodes[0]).len() > 1, "{:?}", stages(&nodes[0]));
    for node in &nodes {
        let disk = disk_bytes(&node.data_dir.join("models"));
        assert!(disk <= QUOTA_MIB << 20, "{disk} bytes on a disk for {QUOTA_MIB} MiB");
    }
}

#[test]
fn a_plan_that_changes_while_layers_come_moves_no_byte_twice() {
    let hub = hub();
    let nodes = cluster("changed", |_| vec![("HF_ENDPOINT", hub.endpoint())]);
    command(&nodes[0], &["pull", "hf.co/org/demo-GGUF", "--layers"], &hub, None);
    hub.set_faults(Faults { bytes_per_s: Some(100 << 10), ..Faults::default() });
    nodes[0].post("/exo/v1/instances", &json!({"model": "tiny-Q8_0", "nodes_min": 3})).good();
    let before = hub.sent_bytes();
    // More than the bound below leaves free: a plan that began anew would be seen.
    wait_for("some layers", LONG, || (hub.sent_bytes() > before + 32 * CHUNK).then_some(()));
    good(nodes[1].exo(&["unload", "tiny-Q8_0"]));
    hub.set_faults(Faults::default());
    command(&nodes[1], &["place", "tiny-Q8_0", "--nodes", "2", "--exclude", "ann"], &hub, None);
    answers_as_the_whole_model(&nodes[2]);
    let (size, sent) = (demo_model().len() as u64, hub.sent_bytes());
    println!("{sent} bytes left the hub for a model of {size}");
    // What was in flight when the plan ended comes again: of each of four ranges of three nodes a chunk.
    assert!(sent <= size + size / 20 + 12 * CHUNK, "{sent} bytes left the hub for a model of {size}");
}
