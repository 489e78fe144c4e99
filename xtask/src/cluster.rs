//! A cluster of nodes on loopback for one proof: each is a process with a folder of its own, and none
//! outlives us.

mod changes;
mod views;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

pub use self::views::{Epoch, placements};
use crate::child::{self, Running};
use crate::http::Server;
use crate::lan::Lan;
use crate::signals::StoppedProcess;
use crate::system;
use crate::wait::wait_for;

/// From spawning a process to its API.
const START_MAX: Duration = Duration::from_secs(20);
/// For nodes that know each other's address to be one cluster.
const JOIN_MAX: Duration = Duration::from_secs(20);
/// From the order to place a model to ready.
const LOAD_MAX: Duration = Duration::from_secs(180);
/// For a clean end; a node gives itself 8 s.
const STOP_MAX: Duration = Duration::from_secs(10);
/// For an answer that needs no model; a large file is looked through when it is added.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Between two looks at what takes a second or so.
const POLL: Duration = Duration::from_millis(20);
/// Between two looks at a model that is about to be ready: what follows should find it as fresh as a client
/// can.
const READY_POLL: Duration = Duration::from_millis(2);
const NAMES: [&str; 5] = ["anna", "ben", "carla", "dan", "emma"];

/// Running nodes, all in one cluster.
pub struct Cluster {
    /// The program that they run.
    exo: PathBuf,
    nodes: Vec<Node>,
    folder: tempfile::TempDir,
    /// Of the environment of each node, and of commands.
    env: Vec<(&'static str, String)>,
    /// Of machines of their own, gone after the nodes.
    lan: Option<Lan>,
}

/// One of them.
pub struct Node {
    pub name: &'static str,
    pub server: Server,
    setup: NodeSetup,
    /// While it stands still. Before the process, or that could not end.
    stopped: Option<StoppedProcess>,
    process: Running,
}

/// What a node is started with, and started again.
struct NodeSetup {
    flags: Vec<String>,
    /// Whom it knows.
    peer: Option<String>,
    /// Where others reach it, once that is to stay the same.
    listen: Option<String>,
}

/// A model on some of the nodes.
pub struct Instance {
    pub id: String,
    /// The node that placed it.
    at: usize,
}

impl Cluster {
    /// Starts `size` nodes of the program, each with these `flags`, on processors unless they say otherwise.
    /// What they know of each other is not waited for.
    pub fn start(exo: &Path, size: usize, flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_on(exo, size, None, Vec::new(), |_| flags.iter().map(|flag| (*flag).to_owned()).collect())
    }

    /// The same with flags for each and these variables in the environment of all, on machines of their own
    /// where there is a network.
    pub fn start_on(
        exo: &Path,
        size: usize,
        lan: Option<Lan>,
        env: Vec<(&'static str, String)>,
        flags: impl Fn(usize) -> Vec<String>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("exo-prove-").tempdir();
        let folder = folder.context("no folder for the nodes")?;
        let mut cluster = Self { exo: exo.to_owned(), nodes: Vec::new(), folder, env, lan };
        // A configuration file of their own, or the nodes would read the user's.
        cluster.write_config("")?;
        let mut peer = None;
        for at in 0..size {
            // The first has to say where it is; the others then start side by side.
            if at == 1 {
                cluster.wait_started(0)?;
                peer = Some(cluster.address_of(0)?);
            }
            cluster.spawn(flags(at), peer.clone())?;
        }
        (0..size).try_for_each(|at| cluster.wait_started(at))?;
        Ok(cluster)
    }

    /// The nodes, in the order in which they started.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The folder of a node's data.
    pub fn data_dir(&self, at: usize) -> anyhow::Result<std::path::PathBuf> {
        Ok(self.folder.path().join(self.node(at)?.name))
    }

    /// Writes the configuration file that all nodes read.
    pub fn write_config(&self, text: &str) -> anyhow::Result<()> {
        let file = self.folder.path().join("config.toml");
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// What a command says on a node's machine, for that node; an error if it fails.
    pub fn output(&self, at: usize, args: &[&str], at_most: Duration) -> anyhow::Result<String> {
        let mut command = self.program(at);
        command.args(args).arg("--config").arg(self.folder.path().join("config.toml"));
        command.arg("--data-dir").arg(self.data_dir(at)?);
        child::output(command, &system::cores()?, at_most)
    }

    /// The name of this model's file on every node, or of the model in the binary.
    pub fn model(&self, file: Option<&Path>) -> anyhow::Result<String> {
        model(self.nodes.iter().map(|node| &node.server), file)
    }

    /// Places the model on all nodes through the node `at`, as soon as that one sees them all, and comes back
    /// as soon as it says that the model is ready.
    pub fn place(&mut self, at: usize, model: &str, context_tokens: u32) -> anyhow::Result<Instance> {
        let size = self.nodes.len();
        self.place_as(at, &json!({ "model": model, "nodes_min": size, "context_tokens": context_tokens }))
    }

    /// The same with an order of one's own; an error where `nodes_min` in it is not the number of stages.
    pub fn place_as(&mut self, at: usize, order: &Value) -> anyhow::Result<Instance> {
        let size = self.nodes.len();
        let node = self.nodes.get_mut(at).with_context(|| format!("there is no node {at}"))?;
        node.wait_united(size)?;
        let (id, view) = place(&node.server, order)?;
        let (stages, wanted) = (stages(&view).count(), &order["nodes_min"]);
        if !wanted.is_null() && *wanted != stages {
            bail!("{} is on {stages} nodes instead of {wanted}", order["model"]);
        }
        Ok(Instance { id, at })
    }

    /// Waits until the first node sees all of them.
    pub fn wait_united(&mut self) -> anyhow::Result<()> {
        let size = self.nodes.len();
        self.nodes.first_mut().context("the cluster has no node")?.wait_united(size)
    }

    fn view_of(&self, Instance { id, at }: &Instance) -> anyhow::Result<Value> {
        instance(&self.nodes[*at].server, id)
    }

    /// The node of each stage, by its place among the nodes.
    pub fn stages_of(&self, instance: &Instance) -> anyhow::Result<Vec<usize>> {
        let view = self.view_of(instance)?;
        let at = |stage: &Value| {
            let name = stage["node_name"].as_str().context("a stage has no node")?;
            self.nodes
                .iter()
                .position(|node| node.name == name)
                .context("a stage is on no node of this cluster")
        };
        stages(&view).map(at).collect()
    }

    /// The instance's layers where they are, as a plan is asked for them.
    pub fn pins_of(&self, instance: &Instance) -> anyhow::Result<Vec<String>> {
        let view = self.view_of(instance)?;
        let pin =
            |stage| device_and_layers(stage).map(|(device, start, end)| format!("{device}={start}..{end}"));
        stages(&view).map(pin).collect()
    }

    /// Waits until all weights are where they will be.
    pub fn wait_settled(&self, instance: &Instance) -> anyhow::Result<()> {
        wait_for("packing the weights", (LOAD_MAX, POLL), || {
            let is_packed = |stage: &Value| {
                stage["weight_bytes_held"].as_u64() > Some(0)
                    && stage["weight_bytes_waiting"].as_u64() == Some(0)
            };
            let view = self.view_of(instance)?;
            Ok(stages(&view).all(is_packed).then_some(()))
        })
    }

    /// Does something with the cluster and ends it; an error has the last words of every node.
    pub fn end_after<T>(mut self, work: impl FnOnce(&mut Self) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let result = work(&mut self);
        let said = self.last_words();
        result.map_err(|error| anyhow!("{error:#}{said}"))
    }

    /// Ends every node; fails with the last words of those that did not leave cleanly.
    pub fn stop(self) -> anyhow::Result<()> {
        let ends = self.end();
        let unclean = ends.iter().filter_map(|(name, end)| match end {
            Some((status, _)) if status.success() => None,
            Some((status, said)) => Some(format!("{name} ended with {status}: {said}")),
            None => Some(format!("{name} did not end within {} s", STOP_MAX.as_secs())),
        });
        let unclean: Vec<_> = unclean.collect();
        if unclean.is_empty() { Ok(()) } else { bail!("{}", unclean.join("; ")) }
    }

    /// Ends every node and gives the last words of each, for an error message.
    pub fn last_words(self) -> String {
        let said = |(name, end): (&str, Option<(_, String)>)| match end {
            Some((_, said)) => format!("\n  {name}: {said}"),
            None => format!("\n  {name} did not end"),
        };
        self.end().into_iter().map(said).collect()
    }

    fn end(mut self) -> Vec<(&'static str, Option<(ExitStatus, String)>)> {
        for node in &mut self.nodes {
            node.stopped = None;
            node.process.ask_to_end();
        }
        self.nodes.iter_mut().map(|node| (node.name, node.process.wait(STOP_MAX))).collect()
    }

    fn node(&self, at: usize) -> anyhow::Result<&Node> {
        self.nodes.get(at).with_context(|| format!("there is no node {at}"))
    }

    fn node_mut(&mut self, at: usize) -> anyhow::Result<&mut Node> {
        self.nodes.get_mut(at).with_context(|| format!("there is no node {at}"))
    }

    /// The next node, which may know another one.
    fn spawn(&mut self, flags: Vec<String>, peer: Option<String>) -> anyhow::Result<()> {
        let at = self.nodes.len();
        let name = *NAMES.get(at).with_context(|| format!("at most {} nodes", NAMES.len()))?;
        let setup = NodeSetup { flags, peer, listen: None };
        let process = self.run(at, name, &setup)?;
        // Where its API is, is known once it is open.
        let network = self.lan.as_ref().map(|lan| lan.host(at).to_owned());
        let server =
            Server { address: SocketAddr::from(([127, 0, 0, 1], 0)), secret: String::new(), network };
        self.nodes.push(Node { name, server, setup, stopped: None, process });
        Ok(())
    }

    fn run(&self, at: usize, name: &str, setup: &NodeSetup) -> anyhow::Result<Running> {
        let NodeSetup { flags, peer, listen } = setup;
        let any = if self.lan.is_some() { "0.0.0.0:0" } else { "127.0.0.1:0" };
        let mut command = self.program(at);
        command
            .args(["start", "--name", name, "--api-listen", "127.0.0.1:0"])
            .args(["--listen", listen.as_deref().unwrap_or(any), "--no-discovery"])
            .args(flags.iter().all(|flag| !flag.starts_with("--backend")).then_some("--backend=cpu"))
            .args(flags)
            .args(peer.as_ref().map(|peer| format!("--peer={peer}")))
            .arg("--config")
            .arg(self.folder.path().join("config.toml"))
            .arg("--data-dir")
            .arg(self.folder.path().join(name))
            .env("EXO_STOP_WITH_STDIN", "1");
        child::start_held(command, &system::cores()?)
    }

    /// The binary on a node's machine, without what the environment of whoever runs the proof says of exo, of
    /// hubs and of proxies.
    fn program(&self, at: usize) -> Command {
        let mut command = match &self.lan {
            None => Command::new(&self.exo),
            Some(lan) => lan.command(at, &self.exo),
        };
        for (variable, _) in std::env::vars_os().filter(|(name, _)| is_of_user(&name.to_string_lossy())) {
            command.env_remove(variable);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn wait_started(&mut self, at: usize) -> anyhow::Result<()> {
        let folder = self.data_dir(at)?;
        let node = self.node_mut(at)?;
        wait_for(&format!("the start of {}", node.name), (START_MAX, POLL), || {
            node.check_alive()?;
            let network = node.server.network.clone();
            Ok(published(&folder).map(|server| node.server = Server { network, ..server }))
        })
    }

    /// Where the others reach a node, once it knows.
    fn address_of(&self, at: usize) -> anyhow::Result<String> {
        let node = self.node(at)?;
        wait_for(&format!("finding out where {} is reached", node.name), (JOIN_MAX, POLL), || {
            let view = node.server.get("/exo/v1/cluster", ANSWER_MAX)?;
            let own = view["nodes"].as_array().into_iter().flatten().find(|node| node["is_self"] == true);
            let Some(told) = own.and_then(|node| node["addresses"][0].as_str()) else { return Ok(None) };
            // Who listens on all addresses has no word for its own.
            let port = told.rsplit(':').next().context("an address has no port")?;
            Ok(Some(self.lan.as_ref().map_or(told.to_owned(), |lan| format!("{}:{port}", lan.address(at)))))
        })
    }
}

impl Node {
    /// Seconds that its process has computed.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        system::processor_seconds(self.process.id())
    }

    fn wait_united(&mut self, size: usize) -> anyhow::Result<()> {
        wait_for(&format!("joining, as {} sees it,", self.name), (JOIN_MAX, READY_POLL), || {
            self.check_alive()?;
            let view = self.server.get("/exo/v1/cluster", ANSWER_MAX)?;
            Ok(sees(&view, size).then_some(()))
        })
    }

    fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.process.has_ended() {
            None => Ok(()),
            Some((status, said)) => bail!("{} ended by itself ({status}): {said}", self.name),
        }
    }
}

/// The name of this model's file on all these nodes, so that none has to fetch it, or of the model in the
/// binary.
pub fn model<'a>(servers: impl Iterator<Item = &'a Server>, file: Option<&Path>) -> anyhow::Result<String> {
    let mut name = "demo".to_owned();
    let Some(file) = file else { return Ok(name) };
    let path = file.canonicalize().context("cannot find the model")?;
    for server in servers {
        let added = server.post("/exo/v1/models", &json!({ "path": path }), ANSWER_MAX)?;
        name = added["name"].as_str().context("the node does not name the model")?.to_owned();
    }
    Ok(name)
}

/// Places a model through a node, and comes back as soon as that one says that it is ready, with its id and
/// how it is.
pub fn place(server: &Server, order: &Value) -> anyhow::Result<(String, Value)> {
    let placed = server.post("/exo/v1/instances", order, ANSWER_MAX)?;
    let id = placed["id"].as_str().context("the node does not name the instance")?.to_owned();
    let view = wait_for("loading the model", (LOAD_MAX, READY_POLL), || {
        let view = instance(server, &id)?;
        match view["state"]["kind"].as_str() {
            Some("ready") => Ok(Some(view)),
            Some("failed") => bail!("the model was not loaded: {}", view["state"]["reason"]),
            _ => Ok(None),
        }
    })?;
    Ok((id, view))
}

fn instance(server: &Server, id: &str) -> anyhow::Result<Value> {
    server.get(&format!("/exo/v1/instances/{id}"), ANSWER_MAX)
}

/// Whether a variable of the environment would tell a node whom to ask, or how to run.
fn is_of_user(name: &str) -> bool {
    name.starts_with("EXO_") || name.starts_with("HF_") || name.to_ascii_uppercase().ends_with("_PROXY")
}

fn stages(instance: &Value) -> impl Iterator<Item = &Value> {
    instance["stages"].as_array().into_iter().flatten()
}

/// A stage's device, as a pin names it, and the first of its layers and the one behind its last.
pub fn device_and_layers(stage: &Value) -> anyhow::Result<(String, u64, u64)> {
    let [node, device] = ["node_name", "device"].map(|key| stage[key].as_str());
    let [start, end] = ["start", "end"].map(|key| stage["layers"][key].as_u64());
    let (node, device) = node.zip(device).context("a stage has no device")?;
    let (start, end) = start.zip(end).context("a stage has no layers")?;
    Ok((format!("{node}/{device}"), start, end))
}

/// The API of the node on this data folder, once it is open. The file with its address is the last to be
/// written.
pub fn published(folder: &Path) -> Option<Server> {
    let file: Value = serde_json::from_slice(&std::fs::read(folder.join("api.json")).ok()?).ok()?;
    let secret = std::fs::read_to_string(folder.join("api-secret")).ok()?;
    let address = file["address"].as_str()?.parse().ok()?;
    Some(Server { address, secret: secret.trim().to_owned(), network: None })
}

/// Whether a node knows of `size` nodes that live and have devices, and of an epoch.
pub fn sees(view: &Value, size: usize) -> bool {
    let nodes = view["nodes"].as_array().into_iter().flatten();
    let has_devices = |node: &Value| node["devices"].as_array().is_some_and(|devices| !devices.is_empty());
    let ready = nodes.filter(|node| node["status"] == "alive" && has_devices(node));
    !view["epoch"].is_null() && ready.count() == size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_node_hears_of_the_users_hub_token_and_proxy() {
        for name in ["EXO_OFFLINE", "HF_TOKEN", "HF_ENDPOINT", "https_proxy", "NO_PROXY"] {
            assert!(is_of_user(name), "{name}");
        }
        assert!(!is_of_user("PATH") && !is_of_user("HOME"));
    }

    #[test]
    fn a_cluster_is_united_when_all_live_have_devices_and_there_is_an_epoch() {
        let node = |status: &str, devices: Value| json!({ "status": status, "devices": devices });
        let view = |nodes: Vec<Value>| json!({ "epoch": { "counter": 1 }, "nodes": nodes });
        let (full, bare) = (node("alive", json!([{}])), node("alive", json!([])));
        assert!(sees(&view(vec![full.clone(), full.clone()]), 2));
        assert!(!sees(&view(vec![full.clone(), bare]), 2));
        assert!(!sees(&view(vec![full.clone(), node("lost", json!([{}]))]), 2));
        assert!(!sees(&json!({ "epoch": null, "nodes": [full] }), 1));
    }
}
