//! Three hosts made of network namespaces: they find each other, and each fetches only its own part of a model.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::print_stdout, reason = "numbers for whoever reads a failure")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::{SOON, Start, demo_gguf, exo, finish, known, skip, stderr, wait_for};

/// Namespaces on one bridge, gone with the value.
struct Lan {
    bridge: String,
    namespaces: Vec<String>,
}

impl Lan {
    /// `count` hosts with addresses 10.x.y.1 and up; or why there are none.
    fn new(count: u8) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root for network namespaces".to_owned());
        }
        // Names of interfaces have 15 characters at most.
        static LANS: AtomicU32 = AtomicU32::new(0);
        let tag = std::process::id() % 100_000 * 10 + LANS.fetch_add(1, Ordering::Relaxed);
        let lan = Self {
            bridge: format!("exb{tag}"),
            namespaces: (0..count).map(|i| format!("exo{tag}-{i}")).collect(),
        };
        ip(&["link", "add", &lan.bridge, "type", "bridge"])?;
        ip(&["link", "set", &lan.bridge, "up"])?;
        for (i, namespace) in lan.namespaces.iter().enumerate() {
            let (outside, inside) = (format!("exv{tag}{i}"), format!("exw{tag}{i}"));
            ip(&["netns", "add", namespace])?;
            ip(&["link", "add", &outside, "type", "veth", "peer", "name", &inside])?;
            ip(&["link", "set", &outside, "master", &lan.bridge])?;
            ip(&["link", "set", &outside, "up"])?;
            ip(&["link", "set", &inside, "netns", namespace])?;
            let address = format!("10.77.{}.{}/24", tag % 250, i + 1);
            ip(&["-n", namespace, "address", "add", &address, "dev", &inside])?;
            ip(&["-n", namespace, "link", "set", &inside, "up"])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        Ok(lan)
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            let _ = ip(&["netns", "delete", namespace]);
        }
        let _ = ip(&["link", "delete", &self.bridge]);
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|e| format!("`ip` does not run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {}`: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// A node of one namespace: its API is on that namespace's loopback, so commands run inside as well.
struct Host {
    node: support::Killed,
    namespace: String,
    data_dir: std::path::PathBuf,
}

impl Host {
    fn start(namespace: &str, data_dir: &Path, name: &str) -> Self {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            namespace,
            support::EXO,
            "start",
            "--name",
            name,
            "--api-listen",
            "127.0.0.1:0",
        ]);
        command.args(["--listen", "0.0.0.0:0", "--data-dir"]).arg(data_dir);
        let start = Start { name, group: "lan", ..Start::default() };
        let group = format!("{}-{}", start.group, std::process::id());
        command.env("EXO_GROUP", group).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let node = support::Killed(command.spawn().unwrap());
        Self { node, namespace: namespace.to_owned(), data_dir: data_dir.to_owned() }
    }

    fn exo(&self, args: &[&str]) -> std::process::Output {
        let plain = exo(args);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, support::EXO]).args(plain.get_args());
        for (key, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        finish(command.arg("--data-dir").arg(&self.data_dir), SOON)
    }

    fn view(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.exo(&["status", "--json"]).stdout).ok()
    }

    fn alive(&self) -> usize {
        let view = self.view().unwrap_or_default();
        let nodes = view["nodes"].as_array().cloned().unwrap_or_default();
        nodes
            .iter()
            .filter(|n| n["status"] == "alive" && n["devices"].as_array().is_some_and(|d| !d.is_empty()))
            .count()
    }

    /// Bytes that fetched models take on this host's disk; files with holes count for what is in them.
    fn fetched_bytes(&self) -> u64 {
        fn of(folder: &Path) -> u64 {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries
                .map(|e| {
                    if e.path().is_dir() {
                        of(&e.path())
                    } else {
                        e.metadata().map_or(0, |m| m.blocks() * 512)
                    }
                })
                .sum()
        }
        of(&self.data_dir.join("models"))
    }
}

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
    let added = hosts[0].exo(&["models", "add", path.to_str().unwrap()]);
    assert!(added.status.success(), "{}", stderr(&added));
    wait_for("the others to hear of the model", SOON, || {
        let models = hosts[2].exo(&["models"]);
        String::from_utf8_lossy(&models.stdout).contains("shared").then_some(())
    });
    let before: Vec<_> = hosts.iter().map(Host::fetched_bytes).collect();
    // Asked of a host that has nothing of it.
    let placed = hosts[2].exo(&["place", "shared", "--nodes", "3", "--json"]);
    assert!(placed.status.success(), "{}", stderr(&placed));
    let placed: serde_json::Value = serde_json::from_slice(&placed.stdout).unwrap();
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
fn two_hosts_see_each_other_within_two_seconds() {
    const TEST: &str = "two_hosts_see_each_other_within_two_seconds";
    let lan = match Lan::new(2) {
        Ok(lan) => lan,
        Err(why) => return skip(TEST, &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let first = Host::start(&lan.namespaces[0], &folder.path().join("a"), "a");
    wait_for("the first API", SOON, || (first.alive() == 1).then_some(()));
    let began = Instant::now();
    let mut second = Host::start(&lan.namespaces[1], &folder.path().join("b"), "b");
    let sees = || {
        let view = first.view()?;
        let found = view["nodes"].as_array()?.len() + view["join_requests"].as_array()?.len();
        (found == 2).then_some(())
    };
    wait_for("the second host in the first one's view", Duration::from_secs(10), sees);
    let elapsed = began.elapsed();
    let _ = second.node.0.try_wait();
    assert!(elapsed < Duration::from_millis(2500), "start of the process and discovery took {elapsed:?}");
}
