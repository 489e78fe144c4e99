//! Nodes on NVIDIA cards that are emulated: cards that only one process may use, that others fill, that are
//! lost.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::emulated;
use crate::support::{
    self, Node, SOON, Start, answers, bus, exo, finish, flat, has_mounts, is_alive, long_answer, must_refuse,
    nvml, plug, rest_of, send, skip, stderr, stdout, stream_until, text_of, wait_for, worker, workers_of,
};
use serde_json::{Value, json};

/// Of an emulated card.
const CARD_BYTES: u64 = 1 << 30;

/// A node that computes on the first emulated card; `env` says what is special about it.
fn start<'a>(name: &'a str, group: &'a str, flags: &[&str], env: &[(&'static str, &Path)]) -> Start<'a> {
    let always = ["--backend", "cuda", "--log", "warn,exo_node=debug,events=info"];
    let flags = always.iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
    let mut env: Vec<(&str, OsString)> =
        env.iter().map(|(name, value)| (*name, value.as_os_str().to_owned())).collect();
    env.push(("LD_LIBRARY_PATH", emulated::library().into_os_string()));
    Start { name, group, flags, env, ..Start::default() }
}

#[test]
fn a_shard_stays_on_its_card_where_another_is_lost_and_a_worker_that_hangs_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (one_lock, two_lock) = (folder.path().join("one"), folder.path().join("two"));
    // Each card takes one process at a time, and takes its time to be given back.
    let (linger, exclusive) = (("EXO_EMULATED_LINGER_MS", Path::new("1000")), "EXO_EMULATED_EXCLUSIVE");
    let one = Node::start(start("one", "adopt", &[], &[(exclusive, &one_lock), linger]));
    let two = Node::start(start("two", "adopt", &[], &[(exclusive, &two_lock), linger]));
    wait_for("one cluster", SOON, || (one.sees().len() == 2 && two.sees().len() == 2).then_some(()));
    let mut instance = one.place("demo", 2);
    for is_stopped in [false, true] {
        let before = worker(&one);
        if is_stopped {
            send("-STOP", before); // it cannot say that it has forgotten its sequences, nor end by itself
        }
        send("-KILL", worker(&two));
        instance = support::comes_back(&one, &instance["placement"]);
        assert_eq!(instance["stages"].as_array().unwrap().len(), 2, "{instance:#}");
        assert_eq!(worker(&one) != before, is_stopped, "a worker that answers stays");
        assert_eq!(support::is_alive(before), !is_stopped);
        answers(&one);
        let log = one.log();
        assert_eq!(
            log.matches("events::shard: loading engine").count(),
            if is_stopped { 2 } else { 1 },
            "{log}"
        );
        assert_eq!(log.contains("lost its device"), is_stopped, "{log}");
        assert!(!log.contains("UNAVAILABLE"), "{log}");
    }
}

#[test]
fn a_card_that_others_have_filled_is_tried_three_times_and_whoever_asked_is_told_with_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    let mut node = Node::start(start(
        "solo",
        "filled",
        &["--no-discovery", "--memory-mib", "512"],
        &[("EXO_EMULATED_TAKEN", &taken)],
    ));
    std::fs::write(&taken, (CARD_BYTES - (1 << 20)).to_string()).unwrap();
    let assert_told = |reason: &str| {
        let free = reason.split("bytes of device memory, ").nth(1).and_then(|rest| rest.split(' ').next());
        let free: u64 = free.and_then(|free| free.parse().ok()).unwrap_or_else(|| panic!("{reason}"));
        assert!(free < 1 << 20, "what the driver had left: {reason}");
    };
    let since = Instant::now();
    let placed = node.exo(&["place", "demo"]);
    assert_eq!(placed.status.code(), Some(1), "{}", stdout(&placed));
    assert!(since.elapsed() < SOON, "told after {:?}", since.elapsed());
    assert_told(&stderr(&placed));
    let answer = node.ask("demo", "hello");
    assert_eq!((answer.status, &answer.code()[..]), (500, "model_load_failed"), "{}", answer.body);
    assert_told(&answer.body);
    assert!(answer.body.contains("could not be loaded, 3 times"), "{}", answer.body);
    wait_for("the instance's end", SOON, || {
        node.get("/exo/v1/cluster")["instances"].as_array()?.is_empty().then_some(())
    });
    std::fs::remove_file(&taken).unwrap();
    let instance = node.place("demo", 1);
    assert_eq!(instance["stages"][0]["device"], "cuda-0", "{instance:#}");
    answers(&node);
    assert!(!node.log().contains("lost its device"), "{}", node.log());
    node.assert_running();
}

#[test]
fn a_kernel_that_never_ends_is_cut_off_with_its_process_and_the_card_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let hangs = folder.path().join("hangs");
    let flags = ["--no-discovery", "--step-max-s", "8"];
    let mut node = Node::start(start("solo", "hangs", &flags, &[("EXO_EMULATED_HANGS", &hangs)]));
    node.place("demo", 1);
    // A software adapter takes a quarter of a second for a token.
    let expected = long_answer(&node, 30);
    let (pid, stream) = (worker(&node), stream_until(&node, 30, 3));
    File::create(&hangs).unwrap();
    let since = Instant::now();
    wait_for("the end of the process that hangs", SOON, || (!is_alive(pid)).then_some(()));
    let took = since.elapsed();
    assert!(took > Duration::from_secs(2) && took < Duration::from_secs(8) + SOON / 2, "after {took:?}");
    std::fs::remove_file(&hangs).unwrap();
    assert_eq!(text_of(&rest_of(stream)), expected, "{}", node.log());
    let instance = node.get("/exo/v1/cluster")["instances"][0].clone();
    assert_eq!(instance["stages"][0]["device"], "cuda-0", "{instance:#}");
    answers(&node);
    node.assert_running();
}

/// The node's first device, as it shows it.
fn device(node: &Node) -> Value {
    node.get("/exo/v1/cluster")["nodes"][0]["devices"][0].clone()
}

/// What a node has logged of the states of its device, in order.
fn states(node: &Node) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains("events::device: state device="));
    let word = |line: &str| Some(line.split("state=").nth(1)?.split_whitespace().next()?.to_owned());
    lines.filter_map(word).collect()
}

#[test]
fn a_card_lost_again_and_again_is_in_quarantine_across_a_start_until_somebody_ends_that() {
    let folder = tempfile::tempdir().unwrap();
    let (lock, data) = (folder.path().join("lock"), folder.path().join("data"));
    let given = start("solo", "quarantine", &["--no-discovery"], &[("EXO_EMULATED_EXCLUSIVE", &lock)]);
    let mut node = Node::start_in(&data, given.clone());
    node.place("demo", 1);
    // Somebody else takes the card once its worker is gone, and keeps it.
    let taken = File::options().write(true).open(&lock).unwrap();
    send("-KILL", worker(&node));
    taken.lock().unwrap();
    let kept_off = |node: &Node| {
        wait_for("the quarantine", SOON, || {
            Some(device(node)).filter(|device| device["state"] == "quarantined")
        })
    };
    let reason = kept_off(&node)["support_reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("lost 4 times within 10 minutes") && reason.contains("UNAVAILABLE"), "{reason}");
    let lost = ["Lost", "Verifying"];
    assert_eq!(
        states(&node),
        [lost, lost, lost, ["Lost", "Quarantined"]].concat(),
        "never usable in between"
    );
    answers(&node);
    assert!(node.signal("-INT").success(), "{}", node.log());
    drop(taken);

    let mut node = Node::start_in(&data, given);
    let device_then = kept_off(&node);
    assert_eq!(device_then["support"], "unsupported", "{device_then}");
    answers(&node);
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("in quarantine for another") && status.contains("lost 4 times"), "{status}");
    assert!(
        states(&node).is_empty() && workers_of(node.pid()).is_empty(),
        "nobody touches it: {}",
        node.log()
    );

    let mut retry = exo(&["devices", "--retry", "--data-dir"]);
    let retry = finish(retry.arg(&data).env("LD_LIBRARY_PATH", emulated::library()), SOON * 2);
    assert!(retry.status.success());
    wait_for("the card to be used again", SOON, || (device(&node)["state"] == "usable").then_some(()));
    assert_eq!(
        (states(&node), &device(&node)["support"]),
        (vec!["Verifying".into(), "Usable".into()], &"experimental".into())
    );
    // The processor goes with its last model.
    assert!(node.exo(&["unload", "demo"]).status.success());
    wait_for("the card alone", SOON, || {
        let devices = node.get("/exo/v1/cluster")["nodes"][0]["devices"].clone();
        (devices.as_array()?.len() == 1).then_some(())
    });
    let instance = node.place("demo", 1);
    assert_eq!(instance["stages"][0]["device"], "cuda-0", "{instance:#}");
    answers(&node);
    node.assert_running();
}

#[test]
fn cards_that_come_and_go_are_shown_and_the_nodes_own_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let bus = bus(folder.path());
    if !has_mounts(&bus) {
        return skip("cards_that_come_and_go", "no mount namespace to show cards in");
    }
    let (own, other) = ("0000:e0:00.0", "0000:05:00.0");
    plug(&bus, own);
    let given = start("solo", "events", &["--no-discovery"], &[]);
    let node = Node::start(Start { bus: Some(bus.clone()), ..given });
    let event = |number: usize| {
        wait_for("the event", SOON, || {
            let event = &node.get("/exo/v1/cluster")["nodes"][0]["card_events"][number];
            event["text"].as_str().map(str::to_owned)
        })
    };
    // It has looked once.
    plug(&bus, other);
    let text = event(0);
    assert!(text.contains("appeared: NVIDIA 10de:2684 at 0000:05:00.0 (no kernel module)"), "{text}");
    std::os::unix::fs::symlink("../drivers/vfio-pci", bus.join(other).join("driver")).unwrap();
    assert!(
        event(1).contains("has another driver: NVIDIA 10de:2684 at 0000:05:00.0 (kernel module vfio-pci)")
    );
    std::fs::rename(bus.join(own), folder.path().join("pulled")).unwrap();
    assert!(event(2).contains("a graphics card of this node vanished"), "{}", event(2));
    // Its driver still answers, so it is used on.
    wait_for("the check", SOON, || (states(&node) == ["Lost", "Verifying", "Usable"]).then_some(()));
    assert_eq!(device(&node)["state"], "usable");
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("s ago: a graphics card appeared") && status.contains("vanished"), "{status}");
}

#[test]
fn a_card_in_use_tells_how_warm_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let given = start("solo", "warm", &["--no-discovery"], &[]);
    let libraries = format!("{}:{}", emulated::library().display(), nvml(folder.path()).display());
    let env = vec![("LD_LIBRARY_PATH", OsString::from(libraries))];
    let node = Node::start(Start { env, ..given });
    node.place("demo", 1);
    let sensors = wait_for("the sensors", SOON, || {
        Some(device(&node)["sensors"].clone()).filter(|sensors| sensors["temperature_c"].is_number())
    });
    let told = json!({"temperature_c": 61.0, "power_w": 153.0, "clock_mhz": 1980.0, "utilisation": 0.5});
    assert_eq!(sensors, told);
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("cuda-0: 61 °C, 153 W, 1980 MHz, 50 % busy"), "{status}");
    // The rules for heat are for each device, and go by its own limit.
    let of_card = |alert: &Value| alert["device"] == "cuda-0" && alert["resolved_unix_s"].is_null();
    let alerts = wait_for("both alerts of heat", SOON, || {
        let alerts = node.get("/exo/v1/alerts");
        let of_card: Vec<Value> = alerts.as_array()?.iter().filter(|a| of_card(a)).cloned().collect();
        (of_card.len() == 2).then_some(of_card)
    });
    let text = |rule: &str| alerts.iter().find(|alert| alert["rule"] == rule).unwrap()["text"].clone();
    let hot = text("device_hot").to_string();
    assert!(hot.contains("is at 61 °C, and slows itself down at 62 °C"), "{hot}");
    assert!(text("device_throttled").to_string().contains("slowed down for heat or power"));
    assert!(!std::fs::read_to_string(format!("/proc/{}/maps", node.pid())).unwrap().contains("nvidia-ml"));
}

/// The node's devices, by name.
fn devices(node: &Node) -> Vec<(String, String, String)> {
    let devices = node.get("/exo/v1/cluster")["nodes"][0]["devices"].clone();
    let word = |device: &Value, name: &str| device[name].as_str().unwrap_or_default().to_owned();
    let row = |device: &Value| (word(device, "id"), word(device, "state"), word(device, "support"));
    devices.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_node_computes_on_all_the_cards_it_is_given_and_goes_on_without_one_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let given = start("solo", "several", &["--no-discovery", "--device", "0,1"], &[]);
    let mut node = Node::start_in(&data, given.clone());
    let row = |id: &str, state: &str, support: &str| (id.to_owned(), state.to_owned(), support.to_owned());
    let usable = |id: &str| row(id, "usable", "experimental");
    assert_eq!(devices(&node), [usable("cuda-0"), usable("cuda-1")]);
    let instance = node.place("demo", 2);
    let stages = instance["stages"].as_array().unwrap();
    let mut on: Vec<_> = stages.iter().map(|stage| stage["device"].as_str().unwrap()).collect();
    on.sort_unstable();
    assert_eq!(on, ["cuda-0", "cuda-1"], "{instance:#}");
    answers(&node);
    // One that loses its work is looked at; the other is left in peace.
    send("-KILL", workers_of(node.pid())[0]);
    wait_for("both again", SOON, || {
        let is_looked_at = states(&node).last().is_some_and(|state| state == "Usable");
        (is_looked_at && devices(&node) == [usable("cuda-0"), usable("cuda-1")]).then_some(())
    });
    assert_eq!(states(&node), ["Lost", "Verifying", "Usable"]);
    assert!(node.signal("-INT").success(), "{}", node.log());

    // With one in quarantine the other is what is left, and the processor is not needed.
    keep_off(&data, "0000:e1:00.0");
    let node = Node::start_in(&data, given);
    assert_eq!(devices(&node), [usable("cuda-0"), row("cuda-1", "quarantined", "unsupported")]);
    wait_for("the model where it can be", SOON, || {
        let instance = node.get("/exo/v1/cluster")["instances"][0].clone();
        (instance["state"]["kind"] == "ready").then_some(())
    });
    answers(&node);
}

#[test]
fn cards_that_are_named_twice_or_are_not_there_are_refused() {
    for (places, what) in
        [("0,0", "is named twice by the setting `device`"), ("0,7", "shows no graphics processor `7`")]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut command = exo(&["start", "--no-discovery", "--backend", "cuda", "--device", places]);
        command.args(["--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"]);
        command.arg(folder.path()).env("LD_LIBRARY_PATH", emulated::library());
        must_refuse(finish(&mut command, SOON), what);
    }
}

/// Puts a card in quarantine that the registry knows.
fn keep_off(data: &Path, address: &str) {
    let path = data.join("gpu_registry.json");
    let mut registry: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let devices = registry["devices"].as_object_mut().unwrap();
    let card = devices.values_mut().find(|device| device["pci_address"] == address);
    let card = card.unwrap_or_else(|| panic!("no card at {address}"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    card["backends"]["cuda"]["quarantine"] =
        json!({"since_unix_s": now, "until_unix_s": now + 3600, "reason": "it was lost"});
    std::fs::write(&path, registry.to_string()).unwrap();
}
