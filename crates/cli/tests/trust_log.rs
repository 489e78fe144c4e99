//! What the log of trust and the join window make of restarts, removals, copied folders and lost admins, on
//! nodes as processes of their own.

#![cfg(target_os = "linux")] // with `doors`
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "two entries of different seconds")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::doors::{admin_and_worker, roles};
use crate::support::{
    self, Node, SOON, Start, exo, finish, flat, good, stderr, stdout, wait_for, wait_united,
};

fn start(data_dir: &Path, name: &str, group: &str, flags: &[&str]) -> Node {
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Node::start_in(data_dir, Start { name, group, flags, ..Start::default() })
}

fn ok(node: &Node, args: &[&str]) {
    let done = node.exo(args);
    assert!(done.status.success(), "{args:?}: {}", stderr(&done));
}

fn end(node: &mut Node) {
    assert!(node.signal("-INT").success(), "{}", node.log());
}

/// A cluster shows up, and this node sees it and stays by itself.
fn stays_alone(node: &Node) {
    wait_for("the other cluster in the view", 2 * SOON, || {
        let view = node.get("/exo/v1/cluster");
        view["other_clusters"].as_array().is_some_and(|others| !others.is_empty()).then_some(())
    });
    assert_eq!(node.sees().len(), 1);
}

#[test]
fn a_node_whose_time_is_used_up_or_that_got_a_model_joins_nobody_behind_a_restart_either() {
    let folder = tempfile::tempdir().unwrap();
    let alone = &["--no-discovery"];
    let late = folder.path().join("late");
    let mut node = start(&late, "late", "restarts", alone);
    assert_eq!(node.get("/exo/v1/cluster")["join_window"]["open"], true);
    end(&mut node);
    let kept = std::fs::read(late.join("window.json")).unwrap();
    let mut kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    kept["ran_s"] = 600.into();
    std::fs::write(late.join("window.json"), kept.to_string()).unwrap();

    let owner = folder.path().join("owner");
    let mut node = start(&owner, "owner", "restarts", alone);
    let model = folder.path().join("mine.gguf");
    support::another_model(&model);
    ok(&node, &["models", "add", &model.display().to_string()]);
    end(&mut node);

    // A cluster with members is what a new node joins, whatever its key.
    let cluster = support::cluster("restarts", &["one", "two"]);
    let late = start(&late, "late", "restarts", &[]);
    assert_eq!(late.get("/exo/v1/cluster")["join_window"]["open"], false);
    let owner = start(&owner, "owner", "restarts", &[]);
    assert_eq!(owner.get("/exo/v1/cluster")["join_window"]["open"], true);
    stays_alone(&late);
    stays_alone(&owner);
    let fresh = start(&folder.path().join("fresh"), "fresh", "restarts", &[]);
    wait_for("a new node to join", 2 * SOON, || (fresh.sees().len() > 1).then_some(()));
    assert_eq!((late.sees(), owner.sees().contains(&"late".to_owned())), (vec!["late".to_owned()], false));
    drop(cluster);
}

#[test]
fn behind_the_first_removal_who_comes_asks_and_a_person_decides() {
    let folder = tempfile::tempdir().unwrap();
    let ((admin, _), (mut worker, name)) = admin_and_worker(folder.path(), "shut");
    let is_open = || admin.get("/exo/v1/cluster")["join_window"]["open"] == true;
    wait_for("the first minutes", SOON, || is_open().then_some(()));
    end(&mut worker);
    ok(&admin, &["remove", name]);
    wait_for("a shut door", SOON, || (!is_open()).then_some(()));
    let third = start(&folder.path().join("third"), "third", "shut", &[]);
    wait_for("its question", SOON, || {
        let view = admin.get("/exo/v1/cluster");
        view["join_requests"].as_array().unwrap().iter().any(|ask| ask["name"] == "third").then_some(())
    });
    assert_eq!((admin.sees().len(), third.sees().len()), (1, 1));
    ok(&admin, &["admit", "third"]);
    wait_for("one cluster", 2 * SOON, || (third.sees().len() == 2).then_some(()));
}

#[test]
fn when_the_only_admin_is_lost_the_others_leave_keep_their_models_and_are_one_cluster_again() {
    let nodes = support::cluster("orphans", &["one", "two", "three"]);
    let admin = roles(&nodes[0]).into_iter().find(|(_, role)| role == "admin").unwrap().0;
    let is_admin = |node: &Node| {
        let view = node.get("/exo/v1/cluster");
        let nodes = view["nodes"].as_array().unwrap();
        nodes.iter().any(|node| node["is_self"] == true && node["name"] == admin.as_str())
    };
    let (lost, mut left): (Vec<_>, Vec<_>) = nodes.into_iter().partition(is_admin);
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("mine.gguf");
    support::another_model(&model);
    ok(&left[0], &["models", "add", &model.display().to_string()]);
    drop(lost);
    for node in &left {
        wait_for("the loss, and the way out", SOON, || {
            let status = flat(&stdout(&node.exo(&["status"])));
            (status.contains("`exo leave`") && status.contains("form a cluster anew")).then_some(())
        });
    }
    for node in &mut left {
        ok(node, &["stop"]);
        node.ended_within(SOON);
        let mut leave = exo(&["leave", "--yes"]);
        good(finish(leave.arg("--data-dir").arg(&node.data_dir).stdin(Stdio::null()), SOON));
    }
    let anew: Vec<_> = left.iter().map(|node| start(&node.data_dir, "anew", "orphans-anew", &[])).collect();
    wait_united(&anew, SOON);
    wait_for("the model", SOON, || stdout(&anew[1].exo(&["models"])).contains("mine").then_some(()));
}

#[test]
fn of_two_admins_that_remove_each_other_unknowingly_the_one_for_longer_stays() {
    let folder = tempfile::tempdir().unwrap();
    let ((mut first, first_name), (mut second, second_name)) = admin_and_worker(folder.path(), "mutual");
    ok(&first, &["admin", "add", second_name]);
    wait_for("two admins", SOON, || roles(&second).values().all(|role| role == "admin").then_some(()));
    end(&mut first);
    ok(&second, &["remove", first_name]);
    end(&mut second);
    let first = start(&first.data_dir, first_name, "mutual", &[]);
    ok(&first, &["remove", second_name]);
    assert_eq!(roles(&first).into_keys().collect::<Vec<_>>(), [first_name], "it knows no better yet");
    let second = start(&second.data_dir, second_name, "mutual", &[]);
    // Each is alone by its own log, and neither lets the other connect.
    wait_for("the younger one to hear of it", 2 * SOON, || {
        second.log().contains("removed this node from its cluster").then_some(())
    });
    assert_eq!(roles(&first).into_keys().collect::<Vec<_>>(), [first_name]);
    assert!(!first.log().contains("this node was removed"), "{}", first.log());
}

#[test]
fn what_an_admin_signs_in_two_places_is_an_alert_on_every_node_that_has_both() {
    let folder = tempfile::tempdir().unwrap();
    let ((mut first, first_name), (mut second, second_name)) = admin_and_worker(folder.path(), "forked");
    ok(&first, &["admin", "add", second_name]);
    wait_for("two admins", SOON, || roles(&second).values().all(|role| role == "admin").then_some(()));
    end(&mut first);
    let second_dir = second.data_dir.clone();
    end(&mut second);
    // Each signs without a word of the other.
    let copy = folder.path().join("copy");
    assert!(Command::new("cp").arg("-r").args([&first.data_dir, &copy]).status().unwrap().success());
    for data_dir in [&first.data_dir, &copy] {
        let mut alone = start(data_dir, first_name, "forked", &["--no-discovery"]);
        ok(&alone, &["admin", "remove", second_name]);
        end(&mut alone);
        std::thread::sleep(Duration::from_millis(1100)); // an entry has the second in which it was signed
    }
    let second = start(&second_dir, second_name, "forked", &[]);
    let alerts = || flat(&stdout(&second.exo(&["alerts"])));
    let mut node = start(&first.data_dir, first_name, "forked", &[]);
    wait_for("what it signed", SOON, || (roles(&second)[second_name] == "worker").then_some(()));
    assert!(!alerts().contains("in two places"), "{}", alerts());
    end(&mut node);
    let copy = start(&copy, first_name, "forked", &[]);
    wait_for("the alert", SOON, || alerts().contains("is in two places, or it lies").then_some(()));
    wait_for("the alert where it is signed", SOON, || {
        flat(&stdout(&copy.exo(&["alerts"]))).contains("is in two places, or it lies").then_some(())
    });
    assert!(second.log().contains("it signed two changes of the members apart from each other"));
}
