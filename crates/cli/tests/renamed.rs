//! Names of models, where files have several, and what is loaded when its file is gone.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;

use crate::support::{Node, SOON, another_model, answers_as, cluster, flat, good, stderr, stdout, wait_for};
use serde_json::{Value, json};

fn add(node: &Node, path: &Path) {
    add_with(node, path, &[]);
}

/// What the command says.
fn add_with(node: &Node, path: &Path, flags: &[&str]) -> String {
    let added = good(node.exo(&[&["models", "add", path.to_str().unwrap()][..], flags].concat()));
    flat(&stdout(&added))
}

/// By the ways of OpenAI's clients and of Ollama's.
fn assert_shown(node: &Node, model: &str) {
    let [listed, shown] = [
        node.call("GET", &format!("/v1/models/{model}"), None),
        node.post("/api/show", &json!({"model": model})),
    ];
    assert_eq!((listed.status, shown.status), (200, 200), "{model}: {} {}", listed.body, shown.body);
    assert_eq!(shown.json()["model_info"]["general.architecture"], "llama", "{}", shown.body);
}

fn knows(node: &Node, model: &str) -> bool {
    let models = node.get("/exo/v1/models");
    models.as_array().unwrap().iter().any(|known: &Value| known["name"] == model)
}

#[test]
fn a_name_that_others_use_stays_good_where_the_same_model_gets_another_one() {
    let nodes = cluster("two-names", &["a", "b"]);
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(format!("{name}.gguf")));
    another_model(&first);
    std::fs::copy(&first, &second).unwrap();
    add(&nodes[0], &first);
    wait_for("the model to be known", SOON, || knows(&nodes[1], "first").then_some(()));
    nodes[0].place("first", 2);
    for node in &nodes {
        answers_as(node, "first");
    }
    // A copy alone takes the name away from nobody, and says so.
    let said = add_with(&nodes[0], &second, &[]);
    assert!(said.contains("known as first (") && said.contains("--name"), "{said}");
    assert!(knows(&nodes[0], "first") && !knows(&nodes[0], "second"));
    // On the node that has it, and on one that got its layers from there.
    for here in &nodes {
        add_with(here, &second, &["--name", "second"]);
        wait_for("the second name", SOON, || nodes.iter().all(|node| knows(node, "second")).then_some(()));
        for node in &nodes {
            for name in ["first", "second"] {
                answers_as(node, name);
                assert_shown(node, name);
            }
        }
    }
    // The instance is shown by the name that it was placed by, and meant by both.
    let placed = nodes[1].get("/exo/v1/cluster")["instances"][0].clone();
    assert_eq!(placed["model"], "first", "{placed}");
    for name in ["first", "second"] {
        let replan = nodes[1].exo(&["replan", name, "--dry-run"]);
        assert!(replan.status.success(), "{name}: {}", stderr(&replan));
    }
    let unloaded = nodes[1].exo(&["unload", "second"]);
    assert!(
        stdout(&unloaded).contains(&format!("unloaded {}", placed["id"].as_str().unwrap())),
        "{}{}",
        stdout(&unloaded),
        stderr(&unloaded)
    );
    let none = nodes[1].exo(&["unload", "second"]);
    assert!(stderr(&none).contains("nothing called `second` is placed"), "{}", stderr(&none));
}

#[test]
fn what_is_loaded_answers_when_its_file_is_gone() {
    let nodes = cluster("file-gone", &["a", "b"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.gguf");
    another_model(&path);
    add(&nodes[0], &path);
    wait_for("the model to be known", SOON, || knows(&nodes[1], "mine").then_some(()));
    let instance = nodes[0].place("mine", 2);
    nodes[0].wait_settled(instance["id"].as_str().unwrap());
    std::fs::rename(&path, folder.path().join("elsewhere.gguf")).unwrap();
    wait_for("the file to be missed", SOON, || nodes.iter().all(|node| !knows(node, "mine")).then_some(()));
    for node in &nodes {
        answers_as(node, "mine");
        answers_as(node, "mine:latest");
        assert_shown(node, "mine");
        assert_shown(node, "mine:latest");
        // It would be lost.
        let replaced = node.exo(&["place", "mine", "--slots", "2", "--replace"]);
        assert_eq!(replaced.status.code(), Some(1));
        assert!(flat(&stderr(&replaced)).contains("could not be loaded again"), "{}", stderr(&replaced));
    }
    answers_as(&nodes[0], "mine");
    let alerts = |node: &Node| -> Vec<Value> {
        let alerts = node.get("/exo/v1/alerts");
        let of_file = alerts.as_array().unwrap().iter().filter(|alert| alert["rule"] == "model_gone");
        of_file.filter(|alert| alert["resolved_unix_s"].is_null()).cloned().collect()
    };
    for node in &nodes {
        let alert = wait_for("the alert", SOON, || alerts(node).pop());
        assert_eq!(alert["instance"], instance["id"]);
        assert!(alert["text"].as_str().unwrap().contains("mine"), "{alert}");
    }
    // The same bytes from elsewhere, under another name and on the other node.
    add(&nodes[1], &folder.path().join("elsewhere.gguf"));
    for node in &nodes {
        wait_for("the end of the alert", SOON, || alerts(node).is_empty().then_some(()));
    }
}
