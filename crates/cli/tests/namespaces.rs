//! Three hosts made of network namespaces: they find each other, and each fetches only its own part of a
//! model.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::print_stdout, reason = "numbers for whoever reads a failure")]
#![allow(clippy::disallowed_methods, reason = "a time in which nothing happens")]

use std::time::{Duration, Instant};

use crate::support::lan::{Host, Lan};
use crate::support::{SOON, demo_gguf, good, json_of, known, skip, stderr, wait_for};

#[test]
fn nodes_of_three_hosts_find_each_other_and_fetch_only_their_own_parts_of_a_model() {
    const TEST: &str = "nodes_of_three_hosts_find_each_other_and_fetch_only_their_own_parts_of_a_model";
    let lan = match Lan::new(3) {
        Ok(lan) => lan,
        Err(why) => return skip(TEST, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let names = ["alpha", "beta", "gamma"];
    let start = |(namespace, name): (&String, &&str)| Host::start(namespace, &folder.path().join(name), name);
    let hosts: Vec<_> = lan.namespaces.iter().zip(&names).map(start).collect();
    for host in &hosts {
        wait_for("the APIs", SOON, || host.data_dir.join("api.json").exists().then_some(()));
    }
    let began = Instant::now();
    for host in &hosts {
        wait_for("one cluster over three hosts", SOON, || (host.alive() == 3).then_some(()));
    }
    println!("one cluster {:?} after the APIs were up", began.elapsed());

    // A model that only the first host has.
    let path = folder.path().join("shared.gguf");
    let mut bytes = std::fs::read(demo_gguf()).unwrap();
    let at = bytes.windows(8).position(|w| w == b"exo demo").unwrap();
    bytes[at..at + 8].copy_from_slice(b"exo part");
    std::fs::write(&path, &bytes).unwrap();
    good(hosts[0].exo(&["models", "add", path.to_str().unwrap()]));
    wait_for("the others to hear of the model", SOON, || {
        let models = hosts[2].exo(&["models"]);
        String::from_utf8_lossy(&models.stdout).contains("shared").then_some(())
    });
    let before: Vec<_> = hosts.iter().map(Host::fetched_bytes).collect();
    // Asked of a host that has nothing of it.
    let placed = json_of(hosts[2].exo(&["place", "shared", "--nodes", "3", "--json"]));
    let stages = placed["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 3, "{placed:#}");
    for (i, host) in hosts.iter().enumerate() {
        let stage = stages.iter().find(|s| s["node_name"] == names[i]).unwrap();
        let share = stage["weight_bytes"].as_u64().unwrap();
        let fetched = host.fetched_bytes() - before[i];
        println!("{}: share {share}, fetched {fetched}", names[i]);
        if i == 0 {
            assert_eq!(fetched, 0, "the first host reads its own file");
            continue;
        }
        assert!(fetched >= share, "{}: {fetched} bytes hold no share of {share}", names[i]);
        // Whole chunks around the ranges, and the head of the file with the vocabulary.
        assert!(fetched < share + 1_000_000, "{}: {fetched} bytes for a share of {share}", names[i]);
    }
    let (prompt, answer) = &known()[0];
    let output = hosts[1].exo(&["run", "shared", prompt, "--temperature", "0"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), answer, "{}", stderr(&output));
    drop(hosts);
}

#[test]
fn two_hosts_are_one_cluster_within_five_seconds() {
    const TEST: &str = "two_hosts_are_one_cluster_within_five_seconds";
    let lan = match Lan::new(2) {
        Ok(lan) => lan,
        Err(why) => return skip(TEST, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let first = Host::start(&lan.namespaces[0], &folder.path().join("a"), "a");
    wait_for("the first API", SOON, || (first.alive() == 1).then_some(()));
    let began = Instant::now();
    let _second = Host::start(&lan.namespaces[1], &folder.path().join("b"), "b");
    wait_for("the second host in the first one's view", SOON, || (first.alive() == 2).then_some(()));
    let elapsed = began.elapsed();
    assert!(elapsed < Duration::from_secs(5), "start of the process and joining took {elapsed:?}");
}

/// With the gaps of a row of power switches: who decides first must not leave two clusters behind.
#[test]
fn four_machines_that_are_switched_on_together_are_one_cluster() {
    const TEST: &str = "four_machines_that_are_switched_on_together_are_one_cluster";
    for gap in [0, 70].map(Duration::from_millis) {
        let lan = match Lan::new(4) {
            Ok(lan) => lan,
            Err(why) => return skip(TEST, &why),
        };
        let folder = tempfile::tempdir().unwrap();
        let start = |(at, namespace): (usize, &String)| {
            std::thread::sleep(gap);
            Host::start(namespace, &folder.path().join(at.to_string()), &format!("n{at}"))
        };
        let hosts: Vec<_> = lan.namespaces.iter().enumerate().map(start).collect();
        let began = Instant::now();
        for host in &hosts {
            wait_for("one cluster of four", SOON, || (host.alive() == 4).then_some(()));
        }
        println!("{gap:?} apart: one cluster after {:?}", began.elapsed());
    }
}

/// A firewall is switched on under a cluster: what is said over QUIC does not get through any more, tokens
/// over TCP do. Nobody is lost, no stage is placed anew, and answers go on coming.
#[test]
fn udp_that_stops_loses_neither_of_two_hosts() {
    const TEST: &str = "udp_that_stops_loses_neither_of_two_hosts";
    let lan = match Lan::new(2) {
        Ok(lan) => lan,
        Err(why) => return skip(TEST, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let start = |(namespace, name): (&String, &str)| Host::start(namespace, &folder.path().join(name), name);
    let hosts: Vec<_> = lan.namespaces.iter().zip(["a", "b"]).map(start).collect();
    for host in &hosts {
        wait_for("one cluster", SOON, || (host.alive() == 2).then_some(()));
    }
    good(hosts[0].exo(&["place", "demo", "--nodes", "2"]));
    let placement = || hosts[0].view().unwrap()["instances"][0]["placement"].clone();
    let before = placement();
    assert!(before.is_string(), "{before}");
    if let Err(why) = lan.drop_udp(0).and_then(|()| lan.drop_udp(1)) {
        return skip(TEST, &why);
    }
    let (prompt, answer) = &known()[0];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        for host in &hosts {
            let output = host.exo(&["run", "demo", prompt, "--temperature", "0"]);
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said.trim(), answer, "after {:?}: {}", began.elapsed(), stderr(&output));
            let view = host.view().unwrap();
            let nodes = view["nodes"].as_array().unwrap();
            let is_here = |node: &serde_json::Value| node["status"] != "lost" && node["status"] != "left";
            assert!(nodes.len() == 2 && nodes.iter().all(is_here), "after {:?}: {nodes:#?}", began.elapsed());
        }
    }
    assert_eq!(placement(), before, "nothing was placed anew");
    assert_eq!((hosts[0].alive(), hosts[1].alive()), (2, 2));
}

#[test]
fn a_machine_that_is_reachable_from_anywhere_says_so_and_nobody_joins_it_on_sight() {
    const TEST: &str = "a_machine_that_is_reachable_from_anywhere_says_so_and_nobody_joins_it_on_sight";
    let lan = match Lan::new(2).and_then(|lan| lan.add_address(0, "8.20.30.40/24").map(|()| lan)) {
        Ok(lan) => lan,
        Err(why) => return skip(TEST, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let start = |i: usize, name: &str| Host::start(&lan.namespaces[i], &folder.path().join(name), name);
    let (public, other) = (start(0, "public"), start(1, "other"));
    let line = "other machines do not join on sight: 8.20.30.40 is an address of this one";
    wait_for("the line that says why", SOON, || public.log().contains(line).then_some(()));
    assert!(!other.log().contains("do not join on sight"), "{}", other.log());
    assert!(public.log().contains("`exo admit` lets in who asks"), "{}", public.log());
    wait_for("the other", SOON, || (other.alive() == 1).then_some(()));
    // The public one asks nobody, so the other does, whatever their keys.
    let asks =
        |view: serde_json::Value| view["join_requests"].as_array().is_some_and(|asks| !asks.is_empty());
    wait_for("the other asks to be let in", SOON, || public.view().is_some_and(asks).then_some(()));
    assert_eq!((public.alive(), other.alive()), (1, 1), "nobody has let the other in");
    let admitted = public.exo(&["admit", "other"]);
    assert!(admitted.status.success(), "{admitted:?}");
    // A stranger that was refused asks again after 15 s.
    wait_for("one cluster", 2 * SOON, || (other.alive() == 2).then_some(()));
}
