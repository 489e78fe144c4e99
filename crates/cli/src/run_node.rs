//! A node with its HTTP server inside this process: what `exo start` runs and `exo run` starts for the while.

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use exo_accelerators::{SurveyAsk, Surveyor, System};
use exo_backend_cpu::{Isa, Packing};
use exo_local_channel::LocalListener;
use exo_node::{
    DataDir, DeviceChoice, Doctor, FilesError, Node, NodeConfig, Speculation, SystemHost, WorkerProgram,
    asking_drivers, choose_devices,
};
use exo_server::ServerOptions;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::{Client, HEALTH_MAX};
use crate::config::{Config, Value, join_token};
use crate::errors::CommandError;
use crate::stop::StopSignal;
use crate::{api_keys, environment, system, ui};

/// The scheduler's bound for a step.
const STEP_BROKEN_OFF: Duration = Duration::from_secs(30);

/// How long a clean exit may take before what is left is dropped.
const SHUTDOWN_MAX: Duration = Duration::from_secs(8);
/// For each step of an end that a person wants at once: members hear that this node has ended, clients that
/// their answers have, and what is left is closed.
const AT_ONCE_MAX: Duration = Duration::from_millis(300);

/// For clients' requests on the smallest machine: one of the largest still fits, if it is plain text.
const BODIES_BYTES_MIN: usize = 32 << 20;

/// An idle node has 17 open, one that asks drivers and has a client some 30.
const FILES_MIN: u64 = 64;

/// A node and its API, until [`Running::stop`].
pub struct Running {
    pub node: Node,
    pub client: Client,
    stop: watch::Sender<bool>,
    at_once: watch::Sender<bool>,
    server: JoinHandle<Result<(), exo_server::ServeError>>,
}

/// How long the node is to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stay {
    /// Until somebody stops it.
    Long,
    /// For one command: other nodes neither see it nor are looked for. It asks those that `--peer` names.
    ForTheWhile,
}

/// As [`open`], unless somebody stops it first: then every child that was asking a driver ends, nothing is
/// noted of what it was about to find out, and there is `None`.
pub async fn start(
    config: &Config,
    stay: Stay,
    doctor: Doctor,
    stop: &mut StopSignal,
) -> anyhow::Result<Option<Running>> {
    let running = tokio::select! {
        running = open(config, stay, doctor) => running?,
        () = stop.wait() => return Ok(None),
    };
    stop.also_when(running.node.end_asked());
    Ok(Some(running))
}

/// Opens the API's port, starts the node, serves.
async fn open(config: &Config, stay: Stay, doctor: Doctor) -> anyhow::Result<Running> {
    let api_listen = match stay {
        Stay::Long => config.api_listen()?,
        Stay::ForTheWhile => ([127, 0, 0, 1], 0).into(),
    };
    environment::warn_of_unknown();
    check_files(system::allow_many_files())?;
    let data_dir = config.data_dir();
    // Before the port, which the same node has: its number says more than its port.
    check_free(&data_dir).await?;
    let mut node_config = node_config(config)?;
    // The port before the rest: a node that nobody can reach must not join a cluster.
    let listener = bind_api(&data_dir, api_listen).await?;
    let held = hold(&data_dir)?;
    let second = match config.ollama_listen()?.filter(|_| stay == Stay::Long) {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot open the API's second address {address}"))?,
        ),
        None => None,
    };
    let address = listener.local_addr().context("the API's socket has no address")?;
    let api_keys = api_keys::for_listener(config, address)?;
    let allowed_origins = config.allowed_origins()?;
    node_config.is_private = stay == Stay::ForTheWhile;
    node_config.doctor = doctor;
    choose_devices(&mut node_config, ui::message).await?;
    drop(held);
    // It waits for devices to be opened, and is not to keep us from being stopped meanwhile.
    let mut starting = JoinSet::new();
    starting.spawn(exo_node::start(node_config, Arc::new(SystemHost)));
    let node =
        starting.join_next().await.context("no node was started")?.context("the start broke off")??;
    let mut options = ServerOptions::new(node.local_secret());
    options.allowed_hosts = config.list("allowed_hosts");
    options.allowed_origins = allowed_origins;
    let keys_file = config.api_keys_file().filter(|_| stay == Stay::Long).map(Path::to_owned);
    let following = api_keys::follow(keys_file, api_keys.clone(), config.api_keys().to_vec());
    options.api_keys = api_keys;
    options.resume = config.parse("resume")?;
    options.is_proxied = config.parse("api_proxied")?;
    options.metrics_open = config.parse("metrics_open")?;
    options.keys_see_cluster = config.parse("keys_see_cluster")?;
    options.sessions_path = (stay == Stay::Long).then(|| config.data_dir().join("sessions.json"));
    options.leave_out_hosted_tools = config.parse("leave_out_hosted_tools")?;
    options.give_freed_memory_back = exo_backend_cpu::give_freed_memory_back;
    if let Some(memory) = exo_device::memory(Path::new("/")) {
        let share = usize::try_from(memory.total_bytes / 16).unwrap_or(usize::MAX);
        options.bodies_bytes_max = share.clamp(BODIES_BYTES_MIN, options.bodies_bytes_max);
        options.responses_bytes_max = options.responses_bytes_max.min(options.bodies_bytes_max);
    }
    let (stop, stopped) = watch::channel(false);
    let (at_once, is_at_once) = watch::channel(false);
    options.shutdown_at_once = Some(is_at_once);
    let facade = node.facade();
    let (local, socket) = LocalListener::open(&config.data_dir()).with_context(|| {
        format!("cannot open the channel for commands of {}", config.data_dir().display())
    })?;
    let serving =
        async move { exo_server::serve(listener, second, Some(local), facade, options, wait(stopped)).await };
    let server = tokio::spawn(serving_with_keys(serving, following));
    node.publish_api(reachable(address), socket)?;
    let client = Client::of(&config.data_dir()).context("the API's address cannot be read back")?;
    Ok(Running { node, client, stop, at_once, server })
}

/// Whether a node has enough files and connections to be of use.
fn check_files(limit: Option<u64>) -> Result<(), CommandError> {
    match limit {
        Some(limit) if limit < FILES_MIN => Err(CommandError::FewFiles { limit, min: FILES_MIN }),
        _ => Ok(()),
    }
}

/// Whether no other node has the folder; else which one, and where it answers, if it does.
async fn check_free(data_dir: &Path) -> anyhow::Result<()> {
    let Err(error) = DataDir::check_free(data_dir) else { return Ok(()) };
    let Some(client) = Client::of(data_dir) else { return Err(error.into()) };
    if Client::running(data_dir).await.is_none() {
        let pid = if let FilesError::InUse { pid, .. } = error { pid } else { None };
        let (data_dir, seconds) = (data_dir.display().to_string(), Some(HEALTH_MAX.as_secs()));
        return Err(CommandError::NodeSilent { data_dir, pid, seconds }.into());
    }
    let here = format!("a node runs here already, with its API at http://{}", client.address());
    Err(anyhow::Error::from(error).context(here))
}

/// Opens the API's port. Of two starts at once on one folder the second is told of the first, and not of its
/// port.
async fn bind_api(data_dir: &Path, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    if bound.is_err() {
        check_free(data_dir).await?;
    }
    bound.with_context(|| format!("cannot open the API on {address}"))
}

/// Takes a folder that is there already while devices are asked, which may take seconds: until then nothing
/// else says that a node starts on it.
fn hold(data_dir: &Path) -> Result<Option<DataDir>, FilesError> {
    data_dir.join("lock").exists().then(|| DataDir::open(data_dir)).transpose()
}

/// Asks the driver of what is named in a child first: one that crashes should do so there.
pub async fn probe_driver(settings: &NodeConfig) -> anyhow::Result<()> {
    let DeviceChoice::Named { backend, .. } = settings.device else { return Ok(()) };
    let survey = move |surveyor: &dyn Surveyor| surveyor.survey(&SurveyAsk::of(backend));
    asking_drivers(settings.worker.clone(), survey).await?;
    Ok(())
}

impl Running {
    /// Says goodbye to the cluster and closes everything, within a bound.
    pub async fn stop(self) {
        self.stop_until(std::future::pending()).await;
    }

    /// The same; once `at_once` is ready no answer is waited for any more.
    pub async fn stop_until(self, at_once: impl Future<Output = ()>) {
        let Self { node, stop, at_once: hurry, mut server, .. } = self;
        let mut at_once = std::pin::pin!(at_once);
        let until = tokio::time::Instant::now() + SHUTDOWN_MAX;
        let answers = async {
            node.say_leaving().await;
            let _ = stop.send(true);
            let _ = (&mut server).await;
        };
        let is_cut_short = tokio::select! {
            answered = tokio::time::timeout_at(until, answers) => answered.is_err(),
            () = &mut at_once => true,
        };
        if is_cut_short {
            // First: members go on with what clients asked here, and the clients are told so.
            let _ = tokio::time::timeout(AT_ONCE_MAX, node.say_leaving()).await;
            let _ = (hurry.send(true), stop.send(true));
            let _ = tokio::time::timeout(AT_ONCE_MAX, &mut server).await;
            server.abort();
        }
        let cut = async {
            if !is_cut_short {
                at_once.await;
            }
            tokio::time::sleep(AT_ONCE_MAX).await;
        };
        // Where the answers took all the time, the rest gets a moment all the same.
        let until = until.max(tokio::time::Instant::now() + AT_ONCE_MAX);
        tokio::select! {
            ended = tokio::time::timeout_at(until, node.shutdown()) => {
                if ended.is_err() {
                    tracing::warn!(seconds = SHUTDOWN_MAX.as_secs(), "shutdown did not finish in time");
                }
            }
            () = cut => tracing::debug!("shutdown was cut short"),
        }
    }
}

/// Serves; what reads keys again ends with it.
async fn serving_with_keys(
    serving: impl Future<Output = Result<(), exo_server::ServeError>>,
    following: impl Future<Output = Infallible>,
) -> Result<(), exo_server::ServeError> {
    tokio::select! {
        served = serving => served,
        never = following => match never {},
    }
}

async fn wait(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|s| *s).await;
}

/// An address that this machine can connect to when the listener has the wildcard one.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// The settings of a node.
pub fn node_config(config: &Config) -> anyhow::Result<NodeConfig> {
    let (context_tokens, cache_tokens) = cache(config)?;
    Ok(NodeConfig {
        data_dir: config.data_dir(),
        name: config.name()?,
        group: config.text("group").to_owned(),
        listen: config.listen()?,
        peers: config.peers()?,
        discovery: config.parse("discovery")?,
        is_private: false,
        trust_closed: config.trust_closed()?,
        has_token: join_token().is_some(),
        threads: config.threads()?,
        cores: config.cores()?,
        compute_share: config.parse("compute_share")?,
        device: device(config)?,
        worker: Some(worker_program(config)?),
        cpu_isa: cpu_isa(config)?,
        mmap: config.parse("mmap")?,
        packing: Packing::BEHIND,
        memory_max_bytes: config.memory_max_bytes()?,
        disk: config.disk_limits()?,
        unload_idle_after: config.unload_idle_after()?,
        stream_pause_max: config.stream_pause_max()?,
        context_tokens,
        slots: config.count("slots")?,
        cache_tokens,
        kv: config.parse("kv")?,
        embedding_pooling: config.embedding_pooling()?,
        speculation: speculation(config)?,
        draft: Some(config.text("draft").trim().to_owned()).filter(|d| !d.is_empty()),
        log: config.log.clone(),
        doctor: Doctor::default(),
    })
}

/// Whether a node would take all settings.
pub fn check_settings(config: &Config) -> anyhow::Result<()> {
    node_config(config)?;
    config.ollama_listen()?;
    config.allowed_origins()?;
    for name in ["resume", "api_proxied", "metrics_open", "keys_see_cluster", "leave_out_hosted_tools"] {
        config.parse::<bool>(name)?;
    }
    api_keys::check_listener(config, config.api_listen()?)
}

/// What computes, by the settings.
fn device(config: &Config) -> anyhow::Result<DeviceChoice> {
    let backend = config.text("backend");
    System::own().check(backend)?;
    match (backend, config.device_beside_backend()) {
        ("cpu", Some(Value { text, source })) => {
            let (value, from) = (text.clone(), source.to_string());
            Err(CommandError::DeviceOfProcessor { value, from }.into())
        }
        _ => Ok(DeviceChoice::parse(backend, config.text("device"))?),
    }
}

/// Context and cache. A context that nobody has set is no longer than the cache.
fn cache(config: &Config) -> anyhow::Result<(u32, Option<u32>)> {
    let context_tokens = config.count("context_tokens")?;
    if config.text("cache_tokens").trim().is_empty() {
        return Ok((context_tokens, None));
    }
    let asked_tokens: u32 = config.parse("cache_tokens")?;
    let named = !config.is_default("context_tokens");
    let held_tokens = exo_node::cache_pages(asked_tokens, named.then_some(context_tokens))
        .context("the setting `cache_tokens` cannot be met")?;
    Ok((context_tokens.min(held_tokens), Some(held_tokens)))
}

/// How tokens are guessed ahead. Whoever names a draft model and nothing else wants it to be used.
fn speculation(config: &Config) -> anyhow::Result<Speculation> {
    if config.is_default("speculate") && !config.text("draft").trim().is_empty() {
        return Ok(Speculation::Model);
    }
    config.parse("speculate")
}

/// The instruction set that was asked for; `None` for the widest.
pub fn cpu_isa(config: &Config) -> anyhow::Result<Option<Isa>> {
    if config.text("cpu_isa") == "auto" { Ok(None) } else { config.parse("cpu_isa").map(Some) }
}

/// How a node starts workers: as this very program.
fn worker_program(config: &Config) -> anyhow::Result<WorkerProgram> {
    let program: PathBuf = std::env::current_exe().context("cannot find the exo program itself")?;
    let args = ["worker", "--log", config.text("log")].map(OsString::from).to_vec();
    let seconds: f64 = config.parse("step_max_s")?;
    let step_max = Duration::try_from_secs_f64(seconds).ok();
    let step_max = step_max.filter(|max| !max.is_zero() && *max < STEP_BROKEN_OFF).with_context(|| {
        format!(
            "setting `step_max_s` is `{seconds}`: it must be above 0 and below {}, after which steps are broken off anyway",
            STEP_BROKEN_OFF.as_secs()
        )
    })?;
    Ok(WorkerProgram { program, args, step_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_could_not_open_its_files_does_not_start() {
        assert!(check_files(None).is_ok() && check_files(Some(FILES_MIN)).is_ok());
        let refused = check_files(Some(20)).unwrap_err();
        assert!(matches!(refused, CommandError::FewFiles { limit: 20, min: FILES_MIN }), "{refused}");
    }

    #[tokio::test]
    async fn a_node_that_has_the_folder_and_does_not_answer_is_called_silent() {
        let folder = tempfile::tempdir().unwrap();
        let held = DataDir::open(folder.path()).unwrap();
        // Whose port is closed again: what connects there is refused.
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        DataDir::publish_api(folder.path(), closed, folder.path().join("none.sock")).unwrap();
        let error = check_free(folder.path()).await.unwrap_err();
        let silent = error.downcast_ref::<CommandError>();
        assert!(matches!(silent, Some(CommandError::NodeSilent { pid: Some(_), .. })), "{error:#}");
        drop(held);
        check_free(folder.path()).await.unwrap();
    }

    #[tokio::test]
    async fn of_two_starts_at_once_on_one_folder_the_second_is_told_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let refused = || async { format!("{:#}", bind_api(folder.path(), address).await.unwrap_err()) };
        assert!(hold(folder.path()).unwrap().is_none(), "a folder that nobody has used is left alone");
        assert!(refused().await.starts_with("cannot open the API on "));
        // One that has been used is taken before devices are asked.
        drop(DataDir::open(folder.path()).unwrap());
        let first = hold(folder.path()).unwrap();
        let text = refused().await;
        assert!(first.is_some() && text.contains("already in use by another exo"), "{text}");
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        drop(first);
        assert!(refused().await.starts_with("cannot open the API on "));
    }
}
