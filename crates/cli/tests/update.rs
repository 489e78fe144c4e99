//! Newer commits of models from a hub: shown before they are fetched, named, and the older ones let go.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Node, Start, answers_as, exo, finish, stderr, stdout, wait_for, wait_united};
use exo_mock_hub::{Faults, Layer, MockHub, Repository};
use serde_json::{Value, json};

/// A pull and a placement, on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const CHUNK: usize = 4 << 20;
const OLD: &str = "0123456789abcdef0123456789abcdef01234567";
const NEW: &str = "89abcdef89abcdef89abcdef89abcdef89abcdef";
const REPO: &str = "org/demo-GGUF";

/// The demo model with bytes behind it that make it another file.
fn model(pad: usize) -> Vec<u8> {
    [exo_node::DEMO_MODEL, &vec![0; pad]].concat()
}

fn repository(commit: &str, files: &[(&str, Vec<u8>)]) -> Repository {
    Repository { commit: commit.to_owned(), ..Repository::new(files) }
}

/// A hub whose repository has the model in this length.
fn hub(pad: usize) -> MockHub {
    let hub = MockHub::start().unwrap();
    put(&hub, OLD, pad);
    hub
}

fn put(hub: &MockHub, commit: &str, pad: usize) {
    let licence = ("LICENSE", b"Apache License".to_vec());
    hub.put(REPO, repository(commit, &[("tiny-Q8_0.gguf", model(pad)), licence]));
}

fn start<'a>(hub: &MockHub, name: &'a str, group: &'a str) -> Start<'a> {
    let env = vec![
        ("HF_ENDPOINT", hub.endpoint().into()),
        ("EXO_OLLAMA_REGISTRY", hub.endpoint().into()),
        ("EXO_DISK_RESERVE_MIB", "0".into()),
    ];
    Start { name, group, env, ..Start::default() }
}

fn node(hub: &MockHub, group: &str) -> Node {
    let start = start(hub, "solo", group);
    Node::start(Start { flags: vec!["--no-discovery".to_owned()], ..start })
}

/// A command on a node's data folder: whether it was a good end, and what it said.
pub fn command(node: &Node, endpoint: &str, args: &[&str]) -> (bool, String) {
    let mut command = exo(args);
    command.arg("--data-dir").arg(&node.data_dir).env("HF_ENDPOINT", endpoint);
    command.env("EXO_OLLAMA_REGISTRY", endpoint).env("HOME", node.data_dir.join("no-home"));
    let output = finish(&mut command, LONG);
    (output.status.success(), stdout(&output) + &stderr(&output))
}

pub fn run(node: &Node, hub: &MockHub, args: &[&str]) -> String {
    let (is_good, text) = command(node, &hub.endpoint(), args);
    assert!(is_good, "{args:?}: {text}\n{}", node.log());
    text
}

fn refused(node: &Node, hub: &MockHub, args: &[&str]) -> String {
    let (is_good, text) = command(node, &hub.endpoint(), args);
    assert!(!is_good, "{args:?}: {text}");
    text
}

fn updates(node: &Node, hub: &MockHub) -> Value {
    let text = run(node, hub, &["update", "--json"]);
    serde_json::from_str::<Value>(&text).unwrap()
}

/// Names of models, without the one that is built in.
fn names(node: &Node) -> Vec<String> {
    let models = node.get("/exo/v1/models");
    let names = models.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned());
    names.filter(|name| name != "demo").collect()
}

fn folder(node: &Node, commit: &str) -> PathBuf {
    node.data_dir.join("hub").join(REPO).join(commit).join("Q8_0")
}

#[test]
fn what_has_changed_is_shown_before_it_is_fetched_and_the_older_commit_goes() {
    let hub = hub(64);
    let node = node(&hub, "update");
    assert!(run(&node, &hub, &["update"]).contains("no model of this machine is from a hub"));
    run(&node, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    let text = run(&node, &hub, &["update"]);
    assert!(text.contains("tiny-Q8_0: 01234567 is the newest of hf.co/org/demo-GGUF"), "{text}");
    put(&hub, NEW, 64);
    let text = run(&node, &hub, &["update", "tiny-Q8_0"]);
    assert!(text.contains("none of its files has changed between 01234567 and 89abcdef"), "{text}");
    put(&hub, NEW, 128);
    let sent = hub.sent_bytes();
    let update = updates(&node, &hub)[0].clone();
    let size = model(128).len();
    assert_eq!((&update["state"], &update["newest"]), (&json!("newer"), &json!(NEW)), "{update}");
    let changed = json!([{"path": "tiny-Q8_0.gguf", "kind": "changed", "size": size}]);
    assert_eq!(update["files"], changed);
    // The licence is a small file of which the hub has no digest that could be compared.
    assert_eq!((&update["fetch_bytes"], &update["chunks"]), (&json!(size + 14), &json!(3)), "{update}");
    let text = run(&node, &hub, &["update"]);
    assert!(text.contains("changed: tiny-Q8_0.gguf") && text.contains("0 of 3 chunks are here"), "{text}");
    assert!(text.contains("no terminal to ask: add --yes"), "{text}");
    assert_eq!(hub.sent_bytes(), sent, "nothing is fetched before it is wanted");
    let text = run(&node, &hub, &["update", "--yes"]);
    assert!(text.contains("tiny-Q8_0 is at 89abcdef now; the older commit is deleted"), "{text}");
    assert!(!folder(&node, OLD).exists() && folder(&node, NEW).join("tiny-Q8_0.gguf").is_file());
    assert_eq!(names(&node), ["tiny-Q8_0"]);
    let source = run(&node, &hub, &["models"]);
    assert!(source.contains("@89abcdef") && !source.contains("@01234567"), "{source}");
    answers_as(&node, "tiny-Q8_0");
    assert!(run(&node, &hub, &["update"]).contains("89abcdef is the newest"));
}

#[test]
fn an_instance_stays_on_the_older_commit_which_is_called_by_it_and_goes_with_its_last_use() {
    let hub = hub(64);
    let node = node(&hub, "update-two");
    run(&node, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    run(&node, &hub, &["place", "tiny-Q8_0"]);
    run(&node, &hub, &["models", "keep", "tiny-Q8_0"]);
    put(&hub, NEW, 128);
    let instances = updates(&node, &hub)[0]["instances"].clone();
    assert_eq!(instances.as_array().unwrap().len(), 1, "{instances}");
    let text = run(&node, &hub, &["update", "--yes"]);
    assert!(
        text.contains("the older commit is called tiny-Q8_0@0123456 and goes once nothing uses it"),
        "{text}"
    );
    assert!(text.contains("goes on with the older commit; `exo unload"), "{text}");
    assert_eq!(names(&node), ["tiny-Q8_0", "tiny-Q8_0@0123456"]);
    let kept = |name: &str| {
        let models = node.get("/exo/v1/models");
        models.as_array().unwrap().iter().find(|model| model["name"] == name).unwrap()["kept"] == true
    };
    assert!(kept("tiny-Q8_0") && !kept("tiny-Q8_0@0123456"), "what is kept is what the name means");
    let models = || -> Vec<String> {
        let view = node.get("/exo/v1/cluster");
        let all = view["instances"].as_array().unwrap().iter();
        all.map(|instance| instance["model"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(models(), ["tiny-Q8_0@0123456"]);
    answers_as(&node, "tiny-Q8_0@0123456");
    assert_eq!(models().len(), 1);
    answers_as(&node, "tiny-Q8_0");
    assert_eq!(models().len(), 2, "the name means the newer one, which is placed for the request");
    // Only the newer one is asked for, although both are there.
    assert_eq!(updates(&node, &hub).as_array().unwrap().len(), 1);
    run(&node, &hub, &["unload", "tiny-Q8_0@0123456"]);
    wait_for("the older commit to go", LONG, || (!folder(&node, OLD).exists()).then_some(()));
    wait_for("one model", LONG, || (names(&node) == ["tiny-Q8_0"]).then_some(()));
    assert!(
        node.log().contains("a newer commit has taken its place") || {
            run(&node, &hub, &["logs"]).contains("a newer commit has taken its place")
        }
    );
    answers_as(&node, "tiny-Q8_0");
}

#[test]
fn bytes_that_have_not_changed_are_not_fetched_again() {
    let hub = hub(64);
    let node = node(&hub, "update-same");
    run(&node, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    run(&node, &hub, &["place", "tiny-Q8_0"]);
    // As long as the one before: only git's id of it is another.
    let licence = b"Apache Licence".to_vec();
    let size = licence.len() as u64;
    hub.put(REPO, repository(NEW, &[("tiny-Q8_0.gguf", model(64)), ("LICENSE", licence)]));
    let update = updates(&node, &hub)[0].clone();
    assert_eq!(update["files"], json!([{"path": "LICENSE", "kind": "changed", "size": size}]));
    assert_eq!((&update["fetch_bytes"], &update["chunks_here"]), (&json!(size), &json!(2)), "{update}");
    let sent = hub.sent_bytes();
    run(&node, &hub, &["update", "--yes"]);
    assert_eq!(hub.sent_bytes(), sent + size);
    assert_eq!(names(&node), ["tiny-Q8_0"], "the same bytes are the same model");
    assert!(!folder(&node, OLD).exists() && folder(&node, NEW).join("tiny-Q8_0.gguf").is_file());
    answers_as(&node, "tiny-Q8_0");
    assert_eq!(node.get("/exo/v1/cluster")["instances"].as_array().unwrap().len(), 1);
}

#[test]
fn a_tag_of_a_registry_is_updated_and_an_address_has_no_revisions() {
    let hub = hub(64);
    let node = node(&hub, "update-tag");
    let put = |pad| {
        let layer = Layer::new("application/vnd.ollama.image.model", &model(pad));
        hub.put_layers("library/tiny", "1b", &[layer]);
    };
    put(64);
    run(&node, &hub, &["pull", "tiny:1b"]);
    assert!(run(&node, &hub, &["update"]).contains("is the newest of tiny:1b"));
    put(128);
    // Another digest than the one that was shown is not taken for it.
    let update = updates(&node, &hub)[0].clone();
    let request = json!({"reference": "tiny:1b", "update_of": update["id"], "commit": NEW});
    assert_eq!(node.post("/exo/v1/pulls", &request).status, 200);
    let pulls = || node.get("/exo/v1/pulls").as_array().unwrap().clone();
    let failed = wait_for("its failure", LONG, || pulls().into_iter().find(|pull| pull["state"] == "failed"));
    assert!(failed["error"].as_str().unwrap().contains("as it was shown"), "{failed}");
    let text = run(&node, &hub, &["update", "--yes"]);
    assert!(pulls().iter().all(|pull| pull["state"] == "done"), "what failed does not go on after it");
    assert!(text.contains("changed: tiny-1b.gguf") && text.contains("the older commit is deleted"), "{text}");
    assert_eq!(names(&node), ["tiny-1b"]);
    answers_as(&node, "tiny-1b");
    let address = format!("{}/org/demo-GGUF/resolve/main/tiny-Q8_0.gguf", hub.endpoint());
    run(&node, &hub, &["pull", &address]);
    assert!(run(&node, &hub, &["update"]).contains("tiny-Q8_0: stays as it is"));
    let text = refused(&node, &hub, &["update", "tiny-Q8_0"]);
    assert!(text.contains("has no revisions") && text.contains("`exo models remove`"), "{text}");
}

#[test]
fn what_cannot_be_updated_says_why_and_what_would_help() {
    let hub = hub(64);
    let start = start(&hub, "solo", "update-errors");
    let env = [start.env.clone(), vec![("EXO_DISK_QUOTA_MIB", "8".into())]].concat();
    let node = Node::start(Start { env, flags: vec!["--no-discovery".to_owned()], ..start });
    run(&node, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    let text = refused(&node, &hub, &["update", "demo"]);
    assert!(text.contains("`demo` was not fetched from a hub by this machine"), "{text}");
    let text = refused(&node, &hub, &["update", "nothing"]);
    assert!(text.contains("no model `nothing` is known here; there are: "), "{text}");
    assert!(text.contains("hint: `exo models` lists the models"), "{text}");
    // No room for both; nothing is lost.
    put(&hub, NEW, 128);
    let text = refused(&node, &hub, &["update", "--yes"]);
    assert!(text.contains("changed: tiny-Q8_0.gguf") && text.contains("setting `disk_quota_mib`"), "{text}");
    assert!(text.contains("`exo models remove` deletes a model"), "{text}");
    // A hub that does not answer.
    let (is_good, text) = command(&node, "http://127.0.0.1:1", &["update"]);
    assert!(
        !is_good
            && text.contains("127.0.0.1:1")
            && text.contains("check the line, HF_ENDPOINT and the proxy"),
        "{text}"
    );
    // The type that was fetched is not there any more.
    hub.put(REPO, repository(NEW, &[("tiny-Q4_0.gguf", model(64))]));
    let text = refused(&node, &hub, &["update"]);
    assert!(
        text.contains("is not in its commit 89abcdef") && text.contains("nothing in it is `Q8_0`"),
        "{text}"
    );
    assert!(text.contains("`exo show` lists what the repository has"), "{text}");
    // Renamed, gone.
    put(&hub, NEW, 128);
    hub.put("org/renamed", repository(NEW, &[("tiny-Q8_0.gguf", model(64))]));
    hub.put(REPO, Repository { moved_to: Some("org/renamed".to_owned()), ..repository(OLD, &[]) });
    let text = refused(&node, &hub, &["update"]);
    assert!(text.contains("`org/demo-GGUF` is called `org/renamed` now"), "{text}");
    assert!(text.contains("`exo pull` fetches it by its new name"), "{text}");
    hub.remove(REPO);
    let text = refused(&node, &hub, &["update"]);
    assert!(text.contains("is not there, or is private or gated"), "{text}");
    assert_eq!(names(&node), ["tiny-Q8_0"]);
    answers_as(&node, "tiny-Q8_0");
}

#[test]
fn what_was_pulled_by_its_commit_stays_and_one_that_is_gated_meanwhile_says_so() {
    let hub = hub(64);
    let node = node(&hub, "update-pinned");
    run(&node, &hub, &["pull", &format!("hf.co/org/demo-GGUF@{OLD}")]);
    put(&hub, NEW, 128);
    let text = run(&node, &hub, &["update", "--yes"]);
    assert!(text.contains("tiny-Q8_0: stays at 01234567, by which it was pulled"), "{text}");
    // A plain pull of what is newer beside it: the name is of what came last, and nothing takes the place of
    // what was pinned.
    run(&node, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    assert_eq!(names(&node), ["tiny-Q8_0", "tiny-Q8_0@0123456"]);
    answers_as(&node, "tiny-Q8_0@0123456");
    let mut gated = repository(&"a".repeat(40), &[("tiny-Q8_0.gguf", model(192))]);
    gated.is_gated = true;
    hub.put(REPO, gated);
    let text = refused(&node, &hub, &["update", "--yes"]);
    assert!(text.contains("is gated") && text.contains("exo login hub"), "{text}");
    assert_eq!(names(&node), ["tiny-Q8_0", "tiny-Q8_0@0123456"]);
    let bad = json!({"reference": "hf.co/org/demo-GGUF", "commit": NEW});
    assert_eq!(node.post("/exo/v1/pulls", &bad).status, 400);
    let by_name = json!({"reference": "hf.co/org/demo-GGUF", "update_of": "tiny-Q8_0"});
    assert_eq!(node.post("/exo/v1/pulls", &by_name).status, 400);
    // Pulled by its commit on purpose, it has the name again.
    put(&hub, OLD, 64);
    run(&node, &hub, &["pull", &format!("hf.co/org/demo-GGUF@{OLD}")]);
    assert_eq!(names(&node), ["tiny-Q8_0", "tiny-Q8_0@89abcde"]);
    answers_as(&node, "tiny-Q8_0");
}

#[test]
fn an_update_that_is_killed_goes_on_with_its_node_and_lets_the_older_commit_go() {
    let hub = hub(64);
    let folder_of_node = tempfile::tempdir().unwrap();
    let again = || {
        let start = start(&hub, "solo", "update-killed");
        Node::start_in(folder_of_node.path(), Start { flags: vec!["--no-discovery".to_owned()], ..start })
    };
    let mut node = again();
    run(&node, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    let pad = 16 * CHUNK;
    put(&hub, NEW, pad);
    hub.set_faults(Faults { bytes_per_s: Some(4 << 20), ..Faults::default() });
    let update = updates(&node, &hub)[0].clone();
    let request = json!({"reference": update["reference"], "update_of": update["id"], "commit": NEW});
    node.post("/exo/v1/pulls", &request).good();
    let of_update = |node: &Node| -> Value {
        let pulls = node.get("/exo/v1/pulls");
        pulls.as_array().unwrap().iter().find(|pull| pull["commit"] == NEW).cloned().unwrap_or_default()
    };
    wait_for("some of it", LONG, || {
        (of_update(&node)["verified_bytes"].as_u64()? >= 3 * CHUNK as u64).then_some(())
    });
    node.kill();
    hub.set_faults(Faults::default());
    let node = again();
    let done = wait_for("its end", LONG, || {
        let pull = of_update(&node);
        assert_ne!(pull["state"], "failed", "{pull}");
        (pull["state"] == "done").then_some(pull)
    });
    assert_eq!(done["replaced"], json!({"name": "tiny-Q8_0@0123456", "removed": true}), "{done}");
    assert!(!folder(&node, OLD).exists() && folder(&node, NEW).join("tiny-Q8_0.gguf").is_file());
    assert_eq!(names(&node), ["tiny-Q8_0"]);
    answers_as(&node, "tiny-Q8_0");
}

#[test]
fn a_draft_stays_on_its_commit_until_the_node_starts_again() {
    let hub = hub(64);
    let folder_of_node = tempfile::tempdir().unwrap();
    let again = |draft: bool| {
        let mut flags = vec!["--no-discovery".to_owned()];
        flags.extend(draft.then_some(["--draft", "tiny-Q8_0"]).into_iter().flatten().map(str::to_owned));
        Node::start_in(folder_of_node.path(), Start { flags, ..start(&hub, "solo", "update-draft") })
    };
    let mut first = again(false);
    run(&first, &hub, &["pull", "hf.co/org/demo-GGUF"]);
    first.signal("-INT");
    let mut with = again(true);
    let text = refused(&with, &hub, &["models", "remove", "tiny-Q8_0"]);
    assert!(text.contains("guesses ahead for this node"), "{text}");
    put(&hub, NEW, 128);
    let text = run(&with, &hub, &["update", "--yes"]);
    assert!(text.contains("is called tiny-Q8_0@0123456 and goes once nothing uses it"), "{text}");
    answers_as(&with, "demo");
    assert!(folder(&with, OLD).exists(), "it guesses ahead");
    with.signal("-INT");
    let with = again(true);
    wait_for("the older commit to go", LONG, || (!folder(&with, OLD).exists()).then_some(()));
    // Its name goes a moment after its files.
    wait_for("the older name to go", LONG, || (names(&with) == ["tiny-Q8_0"]).then_some(()));
    answers_as(&with, "demo");
}

#[test]
fn layers_of_a_newer_commit_are_fetched_where_they_are_placed() {
    let hub = hub(64);
    let nodes = ["ann", "bob"].map(|name| Node::start(start(&hub, name, "update-layers")));
    wait_united(&nodes, LONG);
    let [ann, bob] = &nodes;
    run(ann, &hub, &["place", "hf.co/org/demo-GGUF", "--nodes", "2"]);
    answers_as(bob, "tiny-Q8_0");
    put(&hub, NEW, 128);
    let update = updates(ann, &hub)[0].clone();
    assert_eq!((&update["state"], &update["layers_only"]), (&json!("newer"), &json!(true)), "{update}");
    let text = run(ann, &hub, &["update", "--yes"]);
    assert!(text.contains("is called tiny-Q8_0@0123456 and goes once nothing uses it"), "{text}");
    // The others call it so, too.
    wait_for("its name on the other machine", LONG, || {
        (bob.get("/exo/v1/cluster")["instances"][0]["model"] == "tiny-Q8_0@0123456").then_some(())
    });
    answers_as(bob, "tiny-Q8_0@0123456");
    run(ann, &hub, &["unload", "tiny-Q8_0@0123456"]);
    let folders = || std::fs::read_dir(ann.data_dir.join("models")).unwrap().count();
    wait_for("the older layers to go", LONG, || (folders() == 1).then_some(()));
    run(ann, &hub, &["place", "tiny-Q8_0", "--nodes", "2"]);
    answers_as(bob, "tiny-Q8_0");
    assert!(run(ann, &hub, &["update"]).contains("89abcdef is the newest"));
}
