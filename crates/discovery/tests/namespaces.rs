//! Two hosts: network namespaces joined by a cable. Needs root; says so where it has to skip.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)] // a test may

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use exo_discovery::{Discovery, FoundNode, Options};
use exo_types::NodeId;

/// Set in the two processes that this test starts of itself, one per namespace: "seed of me, seed of the
/// other".
const ROLE: &str = "EXO_DISCOVERY_TEST_ROLE";

/// Two namespaces with an address each; gone when dropped.
struct Lab {
    names: [String; 2],
}

impl Lab {
    fn new(attempt: u32) -> Result<Self, String> {
        let pid = std::process::id();
        let lab = Self { names: [format!("exo-a-{pid}-{attempt}"), format!("exo-b-{pid}-{attempt}")] };
        let (a, b) = (&lab.names[0], &lab.names[1]);
        let (veth_a, veth_b) = (format!("exa{pid}.{attempt}"), format!("exb{pid}.{attempt}"));
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add {veth_a} netns {a} type veth peer name {veth_b} netns {b}"))?;
        for (name, veth, address) in [(a, &veth_a, "10.211.7.1/24"), (b, &veth_b, "10.211.7.2/24")] {
            ip(&format!("-n {name} address add {address} dev {veth}"))?;
            ip(&format!("-n {name} link set {veth} up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(lab)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|e| format!("`ip` does not run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Attempts: the bound is the software's, and the machine that runs this may be busy for two seconds.
const ATTEMPTS: u32 = 3;

#[test]
fn two_hosts_find_each_other_within_two_seconds() {
    let mut failures = Vec::new();
    for attempt in 0..ATTEMPTS {
        let lab = match Lab::new(attempt) {
            Ok(lab) => lab,
            Err(why) => return skip(&format!("no network namespaces here ({why})")),
        };
        match find_each_other(&lab) {
            Ok(()) => return,
            Err(failure) => failures.push(failure),
        }
    }
    panic!("not once in {ATTEMPTS} attempts: {}", failures.join("\n"));
}

/// Said on the terminal, and in the file that `cargo xtask test` shows at its end.
fn skip(why: &str) {
    println!("SKIPPED: {why}");
    if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let line = format!("two_hosts_find_each_other_within_two_seconds: {why}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
    }
}

fn find_each_other(lab: &Lab) -> Result<(), String> {
    let began = Instant::now();
    let run = |name: &str, role: &str| {
        Command::new("ip")
            .args(["netns", "exec", name])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "in_one_namespace", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let hosts = [run(&lab.names[0], "1 2"), run(&lab.names[1], "2 1")];
    let outputs = hosts.map(|host| host.wait_with_output().unwrap());
    for (output, other) in outputs.into_iter().zip(["10.211.7.2:4002", "10.211.7.1:4001"]) {
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(text.into_owned());
        }
        assert!(text.contains(&format!("FOUND [{other}")), "{text}");
        assert!(!text.contains("FOUND [127.0.0.1"), "another host is not this machine: {text}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "the namespaces took {:?}", began.elapsed());
    Ok(())
}

/// One host's part; does nothing unless the test above started it.
#[test]
fn in_one_namespace() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (me, other) = role.split_once(' ').unwrap();
    let [me, other] = [me, other].map(|seed| seed.parse::<u8>().unwrap());
    let [my_id, other_id] = [me, other].map(|seed| NodeId([seed; 32]));
    let listen = ([0, 0, 0, 0], 4000 + u16::from(me)).into();
    let options = Options { node: my_id, listen, txt: BTreeMap::new() };
    let (discovery, mut reports) = Discovery::start(options).unwrap();
    let began = Instant::now();
    let found = loop {
        match reports.try_recv() {
            Ok(found @ FoundNode { node, .. }) if node == Some(other_id) => break found,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(began.elapsed() < Duration::from_secs(2), "not found within two seconds");
    };
    println!("FOUND {:?} after {:?}", found.addrs, began.elapsed());
    // The other side may have started later: stay until it has surely heard.
    std::thread::sleep(Duration::from_secs(2));
    discovery.shutdown();
}
