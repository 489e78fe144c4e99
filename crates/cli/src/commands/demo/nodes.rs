//! The demo's nodes: child processes of this one, each with a data folder and ports of its own.
//!
//! None outlives us. Every child's standard input is a pipe that only we hold and that it watches
//! (`EXO_STOP_WITH_STDIN`), so even a killed demo leaves nothing behind but its temporary folder.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exo_accelerators::{AUTO, System};
use exo_api::{ClusterView, NodeStatus};
use exo_node::DeviceChoice;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::client::Client;
use crate::config::{Config, Source};
use crate::stop::STOP_WITH_STDIN;

/// From spawning a process to its API.
const START_MAX: Duration = Duration::from_secs(20);
/// For a clean exit; a node gives itself 8 s.
const STOP_MAX: Duration = Duration::from_secs(10);
/// What is kept of a node's standard error.
const LAST_LINES: usize = 12;
/// Between two looks at something that is about to happen.
pub const POLL: Duration = Duration::from_millis(20);
const NAMES: [&str; 8] = ["anna", "ben", "carla", "dan", "emma", "finn", "gina", "hugo"];
/// Settings of the user's that say how hard a node may work. All others are the demo's own, so that it
/// neither touches the user's cluster nor depends on it.
const PASSED_ON: [&str; 5] = ["threads", "mmap", "memory_mib", "kv", "log"];

/// All nodes of the demo.
pub struct Nodes {
    root: TempDir,
    group: String,
    passed_on: Vec<(String, String)>,
    /// The backend of the second node; all others compute on the processor, so that the demo is the same
    /// everywhere.
    mixed: Option<String>,
    children: Vec<Node>,
}

/// One node.
pub struct Node {
    /// What the demo calls it.
    pub name: &'static str,
    data_dir: PathBuf,
    process: Child,
    /// Held open for as long as the node is to run.
    stdin: Option<ChildStdin>,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    client: Option<Client>,
}

impl Nodes {
    /// A temporary folder and a group that nobody else is in; no process yet.
    pub fn new(config: &Config, mixed: Option<String>) -> anyhow::Result<Self> {
        if let Some(backend) = mixed.as_deref().filter(|backend| *backend != AUTO) {
            System::own().check(backend)?;
            DeviceChoice::parse(backend, "")?;
        }
        let root = tempfile::Builder::new().prefix("exo-demo-").tempdir();
        let root = root.with_context(|| {
            let folder = std::env::temp_dir();
            let folder = folder.display();
            format!("cannot make a folder for the demo in {folder}, which TMPDIR (on Windows TMP) chooses")
        })?;
        // A configuration file of its own, or the nodes would read the user's.
        std::fs::write(root.path().join("config.toml"), "")
            .with_context(|| format!("cannot write into {}", root.path().display()))?;
        let unique = root.path().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let given = config
            .entries()
            .filter(|(key, value)| PASSED_ON.contains(&key.name) && value.source != Source::Default);
        let variable = |name: &str| format!("EXO_{}", name.to_uppercase());
        let passed_on = given.map(|(key, value)| (variable(key.name), value.text.clone())).collect();
        Ok(Self { root, group: format!("demo-{unique}"), passed_on, mixed, children: Vec::new() })
    }

    /// Starts another node, with `flags` besides those every node of the demo gets.
    pub fn spawn(&mut self, flags: &[String]) -> anyhow::Result<()> {
        let name = NAMES[self.children.len() % NAMES.len()];
        let data_dir = self.unused_folder(name);
        let exe = std::env::current_exe().context("cannot find the exo program itself")?;
        let mut command = Command::new(&exe);
        for (variable, _) in std::env::vars_os().filter(|(v, _)| v.to_string_lossy().starts_with("EXO_")) {
            command.env_remove(variable);
        }
        command
            .arg("start")
            .args(["--name", name, "--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(&data_dir)
            .arg("--config")
            .arg(self.root.path().join("config.toml"))
            .args(flags)
            .args(["--backend", self.backend_of(self.children.len())])
            .envs(self.passed_on.iter().map(|(k, v)| (k, v)))
            .env("EXO_GROUP", &self.group)
            .env(STOP_WITH_STDIN, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn().with_context(|| format!("cannot start {}", exe.display()))?;
        let (stdin, last_lines) = (process.stdin.take(), Arc::default());
        if let Some(stderr) = process.stderr.take() {
            tokio::spawn(keep_last(stderr, Arc::clone(&last_lines)));
        }
        self.children.push(Node { name, data_dir, process, stdin, last_lines, client: None });
        Ok(())
    }

    fn backend_of(&self, node: usize) -> &str {
        self.mixed.as_deref().filter(|_| node == 1).unwrap_or("cpu")
    }

    /// The nodes, in the order they were started.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.children.iter()
    }

    /// The API of the first node.
    pub fn first(&self) -> anyhow::Result<&Client> {
        self.children.first().and_then(|n| n.client.as_ref()).context("no node of the demo has started")
    }

    /// The API of the node called `name`.
    pub fn client_of(&self, name: &str) -> anyhow::Result<&Client> {
        let node = self.children.iter().find(|n| n.name == name);
        node.and_then(|n| n.client.as_ref()).with_context(|| format!("the demo has no running node `{name}`"))
    }

    /// Waits until the API of every node answers.
    pub async fn wait_started(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        for node in &mut self.children {
            while node.client.is_none() {
                node.check_alive()?;
                if began.elapsed() > START_MAX {
                    let waited = START_MAX.as_secs();
                    bail!(
                        "the API of node {} did not open within {waited} s{}",
                        node.name,
                        node.last_words()
                    );
                }
                node.client = Client::running(&node.data_dir).await;
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// Waits until every node sees every node. `false` if that takes longer than `at_most`.
    pub async fn wait_united(&mut self, at_most: Duration) -> anyhow::Result<bool> {
        let (began, all) = (Instant::now(), self.children.len());
        let mut united = 0;
        while united < all {
            for node in &mut self.children {
                node.check_alive()?;
            }
            if began.elapsed() > at_most {
                return Ok(false);
            }
            let view: ClusterView = self.client_at(united)?.get("/exo/v1/cluster").await?;
            if sees(&view, all) {
                united += 1;
            } else {
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(true)
    }

    /// What every node last wrote to standard error, for an error message.
    pub fn last_words(&self) -> String {
        self.children.iter().map(Node::last_words).collect()
    }

    /// Asks every node to leave and waits until it has; the names of those that had to be killed or failed.
    pub async fn stop(&mut self) -> Vec<&'static str> {
        let mut children = std::mem::take(&mut self.children);
        for node in &mut children {
            drop(node.stdin.take());
        }
        let deadline = tokio::time::Instant::now() + STOP_MAX;
        let mut unclean = Vec::new();
        for mut node in children {
            let ended = tokio::time::timeout_at(deadline, node.process.wait()).await;
            if !matches!(&ended, Ok(Ok(status)) if status.success()) {
                unclean.push(node.name);
                let _ = node.process.kill().await;
            }
        }
        unclean
    }

    fn client_at(&self, index: usize) -> anyhow::Result<&Client> {
        self.children[index].client.as_ref().context("the node has not started")
    }

    /// A node that is started again gets a new folder: it is to be a stranger to the others.
    fn unused_folder(&self, name: &str) -> PathBuf {
        let candidates = (1..).map(|n| self.root.path().join(format!("{name}-{n}")));
        candidates.into_iter().find(|c| !c.exists()).unwrap_or_else(|| self.root.path().join(name))
    }
}

impl Node {
    /// Where its files are.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait().with_context(|| format!("cannot look after node {}", self.name))? {
            None => Ok(()),
            Some(status) => bail!("node {} ended by itself ({status}){}", self.name, self.last_words()),
        }
    }

    fn last_words(&self) -> String {
        let lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| format!("\n  {}: {line}", self.name)).collect()
    }
}

fn sees(view: &ClusterView, all: usize) -> bool {
    let ready = view.nodes.iter().filter(|n| n.status == NodeStatus::Alive && !n.devices.is_empty());
    view.epoch.is_some() && ready.count() == all
}

async fn keep_last(stream: impl AsyncRead + Unpin, last: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
}
