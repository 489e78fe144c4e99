//! Hosts made of network namespaces, and nodes on them. Needs root.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::{EXO, Killed, SOON, exo, finish, gather};

/// Namespaces on one bridge, gone with the value.
pub struct Lan {
    bridge: String,
    pub namespaces: Vec<String>,
    /// The network: host `i` has the address `10.77.NET.(i + 1)`.
    net: u32,
}

impl Lan {
    /// `count` hosts with addresses 10.x.y.1 and up; or why there are none.
    pub fn new(count: u8) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root for network namespaces".to_owned());
        }
        // Names of interfaces have 15 characters at most.
        static LANS: AtomicU32 = AtomicU32::new(0);
        let tag = std::process::id() % 100_000 * 10 + LANS.fetch_add(1, Ordering::Relaxed);
        let lan = Self {
            bridge: format!("exb{tag}"),
            namespaces: (0..count).map(|i| format!("exo{tag}-{i}")).collect(),
            net: tag % 250,
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
            let address = format!("{}/24", lan.address(i));
            ip(&["-n", namespace, "address", "add", &address, "dev", &inside])?;
            ip(&["-n", namespace, "link", "set", &inside, "up"])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", namespace, "route", "add", "224.0.0.0/4", "dev", &inside])?;
        }
        Ok(lan)
    }

    /// Of host `i`.
    pub fn address(&self, i: usize) -> String {
        format!("10.77.{}.{}", self.net, i + 1)
    }

    /// Gives host `i` one more address, with the length of its network.
    pub fn add_address(&self, i: usize, address: &str) -> Result<(), String> {
        let namespace = &self.namespaces[i];
        let inside = namespace.replace("exo", "exw").replace('-', "");
        ip(&["-n", namespace, "address", "add", address, "dev", &inside])
    }

    /// From now on no UDP gets in at host `i` from outside, and nobody is told.
    pub fn drop_udp(&self, i: usize) -> Result<(), String> {
        let namespace = &self.namespaces[i];
        let inside = namespace.replace("exo", "exw").replace('-', "");
        // Nothing goes before the rule that finds the host's own addresses until that is moved.
        ip(&["-n", namespace, "rule", "add", "pref", "100", "lookup", "local"])?;
        ip(&["-n", namespace, "rule", "delete", "pref", "0"])?;
        ip(&["-n", namespace, "rule", "add", "pref", "50", "iif", &inside, "ipproto", "udp", "blackhole"])
    }

    /// A command that runs on host `i`.
    pub fn command(&self, i: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces[i]]).arg(program);
        command
    }
}

/// A host of another network, behind a router of a [`Lan`], which passes on no multicast. Gone with the
/// value.
pub struct Behind {
    router: String,
    pub namespace: String,
    pub address: String,
}

impl Lan {
    /// Makes the router and the host, and tells the hosts of this network the way.
    pub fn host_behind_router(&self) -> Result<Behind, String> {
        let tag = self.bridge.trim_start_matches("exb");
        let behind = Behind {
            router: format!("exo{tag}-r"),
            namespace: format!("exo{tag}-b"),
            address: format!("10.78.{}.1", self.net),
        };
        let (router, host) = (behind.router.as_str(), behind.namespace.as_str());
        let (near, far) = (format!("10.77.{}.254", self.net), format!("10.78.{}.254", self.net));
        // The ends of both cables: on the bridge and at the router, at the router and at the host.
        let [outside, inside, down, up] = ["p", "q", "r", "s"].map(|end| format!("ex{end}{tag}"));
        ip(&["netns", "add", router])?;
        ip(&["netns", "add", host])?;
        ip(&["link", "add", &outside, "type", "veth", "peer", "name", &inside])?;
        ip(&["link", "set", &outside, "master", &self.bridge])?;
        ip(&["link", "set", &outside, "up"])?;
        ip(&["link", "set", &inside, "netns", router])?;
        ip(&["link", "add", &down, "type", "veth", "peer", "name", &up])?;
        ip(&["link", "set", &down, "netns", router])?;
        ip(&["link", "set", &up, "netns", host])?;
        for (namespace, device, address) in
            [(router, &inside, &near), (router, &down, &far), (host, &up, &behind.address)]
        {
            ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", device])?;
            ip(&["-n", namespace, "link", "set", device, "up"])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        ip(&["netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        ip(&["-n", host, "route", "add", "default", "via", &far])?;
        for namespace in &self.namespaces {
            ip(&["-n", namespace, "route", "add", &format!("10.78.{}.0/24", self.net), "via", &near])?;
        }
        Ok(behind)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        for namespace in [&self.router, &self.namespace] {
            let _ = ip(&["netns", "delete", namespace]);
        }
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

/// The group of the nodes of this test.
pub fn group() -> String {
    format!("lan-{}", std::process::id())
}

/// A node of one namespace: its API is on that namespace's loopback, so commands run inside as well.
pub struct Host {
    pub node: Killed,
    namespace: String,
    pub data_dir: PathBuf,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Host {
    pub fn start(namespace: &str, data_dir: &Path, name: &str) -> Self {
        Self::start_with(namespace, data_dir, name, &[])
    }

    pub fn start_with(namespace: &str, data_dir: &Path, name: &str, flags: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            namespace,
            EXO,
            "start",
            "--name",
            name,
            "--api-listen",
            "127.0.0.1:0",
        ]);
        command.args(["--listen", "0.0.0.0:52416", "--data-dir"]).arg(data_dir).args(flags);
        command.env("EXO_GROUP", group()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        gather(child.stdout.take().unwrap(), &lines);
        gather(child.stderr.take().unwrap(), &lines);
        let node = Killed(child);
        Self { node, namespace: namespace.to_owned(), data_dir: data_dir.to_owned(), lines }
    }

    /// All it printed so far.
    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub fn exo(&self, args: &[&str]) -> std::process::Output {
        let plain = exo(args);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, EXO]).args(plain.get_args());
        for (key, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        finish(command.arg("--data-dir").arg(&self.data_dir), SOON)
    }

    pub fn view(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.exo(&["status", "--json"]).stdout).ok()
    }

    pub fn alive(&self) -> usize {
        let view = self.view().unwrap_or_default();
        let nodes = view["nodes"].as_array().cloned().unwrap_or_default();
        nodes
            .iter()
            .filter(|n| n["status"] == "alive" && n["devices"].as_array().is_some_and(|d| !d.is_empty()))
            .count()
    }

    /// Bytes that fetched models take on this host's disk; files with holes count for what is in them.
    pub fn fetched_bytes(&self) -> u64 {
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
