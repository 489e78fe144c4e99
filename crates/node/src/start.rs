//! Start-up: opens everything a node needs, founds its cluster on first use, and lets the loop run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exo_accelerators::{DEMO_MODEL, Message};
use exo_cluster::Speculation;
use exo_cluster::wire::HeldModel;
use exo_discovery::{Discovery, FoundNode};
use exo_journal::Journal;
use exo_machine::joining::{JOIN_WINDOW_S, window_left_s};
use exo_machine::{Boot, Input, LogLimits, MachineConfig, NodeMachine, Notice, Samples};
use exo_stdx::unix_s;
use exo_store::{DiskBudget, Store};
use exo_transport::{BindError, Endpoint, Incoming, KeyFileError, MemberSet, NodeKey, Options};
use exo_trust::TrustLog;
use exo_types::{DiskRoom, NodeFacts, NodeId, printable};
use tokio::sync::{broadcast, mpsc, watch};

use crate::ballast;
use crate::checks::Checks;
use crate::clock::Clock;
use crate::compute::Compute;
use crate::config::NodeConfig;
use crate::device::crowding;
use crate::draft::{Draft, DraftError};
use crate::events::{Event as NodeEvent, EventSender};
use crate::files::{DataDir, FilesError};
use crate::hands::{Devices, Engines, Fetches, Hands, JoinHands, JournalWriter, LinkHands, held_models};
use crate::host::Host;
use crate::hub_bytes::HubBytes;
use crate::library::Library;
use crate::library::eviction::Eviction;
use crate::listen;
use crate::logs::{Founding, Logs, LogsError};
use crate::node::{Node, NodeParts};
use crate::pairing::Invites;
use crate::telemetry::Telemetry;
use crate::window::{self, WindowFound};
use crate::worker::AskError;

/// Of the names of networks in one line.
const NETWORKS_CHARS_MAX: usize = 200;

/// What the built-in model is called.
pub const DEMO_MODEL_FILE: &str = "demo.gguf";

/// The node could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum StartError {
    /// The data folder or one of its files.
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("cannot use the node's key")]
    Key(#[source] KeyFileError),
    /// What is known of the cluster.
    #[error(transparent)]
    Logs(#[from] LogsError),
    #[error("cannot use the models in the data folder")]
    Store(#[source] exo_store::StoreError),
    #[error("cannot listen for other nodes")]
    Bind(#[source] BindError),
    #[error("cannot use the device that computes")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing that may be chosen has the name that was wanted.
    #[error("cannot choose the devices that compute")]
    Choose(#[from] exo_accelerators::ChooseError),
    #[error("cannot guess tokens ahead with the draft model{}", named(.draft.as_deref()))]
    Draft { draft: Option<String>, source: Box<DraftError> },
    #[error("cannot start the thread that writes the journal")]
    Thread(#[source] std::io::Error),
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

impl StartError {
    /// Stable, for whoever chooses by it; of what led to it where that says more.
    pub fn code(&self) -> &str {
        match self {
            Self::Files(error) => error.code(),
            Self::Logs(error) => error.code(),
            Self::Choose(error) => error.code(),
            Self::Device(error) => error.downcast_ref::<AskError>().map_or("device_unusable", AskError::code),
            Self::Key(KeyFileError::Damaged { .. } | KeyFileError::Missing { .. }) => "node_key_damaged",
            Self::Bind(BindError::InUse { .. }) => "port_in_use",
            _ => "node_not_started",
        }
    }
}

/// Starts a node. Needs a multi-threaded tokio runtime; touches no global, installs no signal handler.
pub async fn start(mut config: NodeConfig, host: Arc<dyn Host>) -> Result<Node, StartError> {
    crate::choose_devices(&mut config, log).await?;
    let node = start_chosen(config, host).await?;
    node.wait_until_begun().await;
    Ok(node)
}

/// With devices that are chosen.
async fn start_chosen(mut config: NodeConfig, host: Arc<dyn Host>) -> Result<Node, StartError> {
    let (clock, data) = (Clock::start(), open_data(&config.data_dir)?);
    let secret = data.local_secret()?;
    let key = node_key(&data).map_err(StartError::Key)?;
    let (me, mut logs) = (key.node_id(), open_logs(&data, &config, &key)?);
    let store = open_store(&data, &mut logs.mended)?;
    let members = MemberSet::new(logs.trust.view().members().keys().copied().filter(|n| *n != me));
    keep_private(&mut config, &logs.trust);
    let endpoint = bind(&config, &key, &members).await?;
    let listen = endpoint.local_addr();
    let (events, inbox) = crate::events::channel();
    let library = library(&config, (me, store), endpoint.clone(), &host, &events);
    let (compute, facts, passed_over) =
        tokio::task::block_in_place(|| open_devices(&config, host.as_ref(), me))?;
    let (notices, _) = broadcast::channel(256);
    let draft = start_draft(&config, &library, &compute, host.as_ref(), &events)?;
    let held = held_models(&library);
    let (is_window_open, window) = window_of(&config, &logs.trust, &data, &held.0)?;
    warn_all(&notices, [logs.mended.clone(), passed_over, doubts(&config, is_window_open)].concat());
    let discovery = discover(&config, &endpoint, me, is_window_open, &events, &notices);
    accept(endpoint.clone(), events.clone());
    let (cards, invites, telemetry) = (compute.pci_addresses(), Arc::default(), telemetry(&data, clock)?);
    let mut devices =
        Devices::new(compute, config.clone(), host.clone(), facts, clock, events.clone(), notices.clone());
    let (meters, engines) = (devices.meters(), Engines::new(library.clone(), draft.clone(), events.clone()));
    let (boot, journal) = boot(logs, &data, held, devices.sample(&engines), window)?;
    let (machine, first) = NodeMachine::new(machine_config(&config, me, listen)?, boot, clock.now());
    let (view_tx, view) = watch::channel(exo_machine::empty_view(me));
    let hands = Hands {
        links: LinkHands::new(
            endpoint.clone(),
            events.clone(),
            meters.clone(),
            config.log.clone(),
            config.doctor.clone(),
        ),
        joining: join_hands(&config, endpoint.clone(), (key, Arc::clone(&invites)), discovery, &events),
        journal: journal_writer(journal, data, &events)?,
        fetches: Fetches::new(library.clone(), events.clone(), meters.clone()),
        checks: Arc::new(Checks::new(events.clone(), library.clone(), view)),
        engines,
        devices,
        draft,
        members,
        endpoint,
        library,
        events: events.clone(),
    };
    Ok(Node::run(NodeParts {
        id: me,
        config,
        listen,
        secret,
        machine,
        first,
        hands,
        clock,
        inbox,
        events,
        notices,
        cards,
        invites,
        meters,
        host,
        telemetry,
        view: view_tx,
    }))
}

/// What the machine begins with, and the journal that it goes on in.
fn boot(
    logs: Logs,
    data: &DataDir,
    (models, disk_room): (Vec<HeldModel>, DiskRoom),
    samples: Samples,
    window: WindowFound,
) -> Result<(Boot, Journal), StartError> {
    let left = data.left_besides(&logs.trust)?;
    let boot = Boot {
        epoch: data.epoch()?,
        base: logs.base,
        ancestors: logs.ancestors,
        entries: logs.entries,
        state: logs.state,
        trust: logs.trust,
        addresses: by_node(data.peers()?),
        ended: by_node(data.ended()?),
        samples,
        models,
        disk_room,
        window_ran: window.ran,
        has_new_model: window.has_new_model,
        left,
        warnings: logs.mended,
    };
    Ok((boot, logs.journal))
}

/// Whoever wants to hear what goes on chooses before.
fn log(message: Message) {
    match message {
        Message::Note(text) => tracing::info!("{text}"),
        Message::Warning(text) => tracing::warn!("{text}"),
    }
}

/// A private node looks for no one; whom a person named it asks, without a port. A member is one wherever it
/// is started: without its cluster it could place nothing.
fn keep_private(config: &mut NodeConfig, trust: &TrustLog) {
    config.is_private &= trust.view().members().len() <= 1;
    config.discovery &= !config.is_private;
}

/// With room set aside for when its disk is full.
fn open_data(path: &Path) -> Result<Arc<DataDir>, FilesError> {
    let data = DataDir::open(path)?;
    ballast::keep(data.path());
    Ok(Arc::new(data))
}

fn open_logs(data: &DataDir, config: &NodeConfig, key: &NodeKey) -> Result<Logs, LogsError> {
    let NodeConfig { ref name, is_private, trust_closed, has_token, .. } = *config;
    Logs::open(data, &Founding { name, is_private, trust_closed, has_token }, key)
}

/// Whether the join window is open, and what runs before have left of it. If it is, its time is counted on.
fn window_of(
    config: &NodeConfig,
    trust: &TrustLog,
    data: &Arc<DataDir>,
    held: &[HeldModel],
) -> Result<(bool, WindowFound), FilesError> {
    if !is_window_open(config, trust) {
        let ran = window::ran(&data.window_time()?, unix_s());
        return Ok((false, WindowFound { ran, has_new_model: false }));
    }
    let held = held.iter().map(|held| held.model.to_full()).collect();
    let found = window::count(data, held)?;
    Ok((found.ran < Duration::from_secs(JOIN_WINDOW_S), found))
}

fn is_window_open(config: &NodeConfig, trust: &TrustLog) -> bool {
    let until = trust.view().window_until_unix_s();
    !config.is_private && until.is_some_and(|until| window_left_s(until, unix_s()) > 0)
}

fn join_hands(
    config: &NodeConfig,
    endpoint: Endpoint,
    (key, invites): (NodeKey, Arc<Invites>),
    discovery: Option<Discovery>,
    events: &EventSender,
) -> JoinHands {
    let events = events.clone();
    let inputs = Arc::new(move |input| events.post(input));
    JoinHands::new(endpoint, key, discovery, announcement(config), invites, inputs)
}

fn journal_writer(
    journal: Journal,
    data: Arc<DataDir>,
    events: &EventSender,
) -> Result<JournalWriter, StartError> {
    let events = events.clone();
    let answer = move |id, result| events.post(Input::Persisted { id, result });
    JournalWriter::start(journal, data, answer).map_err(StartError::Thread)
}

/// What the machine is for as long as it runs. All chance it has is drawn here.
fn machine_config(config: &NodeConfig, me: NodeId, listen: SocketAddr) -> Result<MachineConfig, StartError> {
    let (mut seed, mut incarnation) = ([0; 32], [0; 8]);
    getrandom::fill(&mut seed).map_err(|e| StartError::Random(e.to_string()))?;
    getrandom::fill(&mut incarnation).map_err(|e| StartError::Random(e.to_string()))?;
    Ok(MachineConfig {
        me,
        name: config.name.clone(),
        group: config.group.clone(),
        listen,
        peers: config.peers.clone(),
        trust_closed: config.trust_closed || config.has_token,
        has_token: config.has_token,
        log: LogLimits::default(),
        speculation: config.speculation,
        unload_idle_after: config.unload_idle_after,
        incarnation: u64::from_le_bytes(incarnation),
        seed,
    })
}

/// What is measured from now on, and what is silenced still.
fn telemetry(data: &DataDir, clock: Clock) -> Result<Arc<Telemetry>, StartError> {
    Ok(Arc::new(Telemetry::new(data.path().to_owned(), clock.now(), data.silences()?)))
}

fn named(draft: Option<&str>) -> String {
    draft.map(|name| format!(" `{name}`")).unwrap_or_default()
}

fn library(
    config: &NodeConfig,
    (me, store): (NodeId, Store),
    endpoint: Endpoint,
    host: &Arc<dyn Host>,
    events: &EventSender,
) -> Arc<Library> {
    let hub = HubBytes::new(host.clone(), config.data_dir.clone());
    let room = Eviction::new(DiskBudget::new(&config.data_dir, config.disk), me, events.clone());
    Arc::new(Library::new(Arc::new(store), endpoint, hub, room))
}

/// Loads the small model, if one is to guess.
fn start_draft(
    config: &NodeConfig,
    library: &Library,
    compute: &Compute,
    host: &dyn Host,
    events: &EventSender,
) -> Result<Option<Arc<Draft>>, StartError> {
    if config.speculation != Speculation::Model {
        return Ok(None);
    }
    let draft = config.draft.clone();
    let Some(wanted) = &draft else {
        return Err(StartError::Draft { draft, source: Box::new(DraftError::NotNamed) });
    };
    // Beside a graphics processor it guesses on the processor: this process opens no driver.
    let device =
        tokio::task::block_in_place(|| compute.processor(config, host)).map_err(StartError::Device)?;
    let start = || Draft::start(wanted, config, library.store(), device, events.clone());
    let started = tokio::task::block_in_place(start);
    let started = started.map_err(|error| StartError::Draft { draft, source: Box::new(error) })?;
    library.room.hold_draft(started.model());
    Ok(Some(Arc::new(started)))
}

/// What discovery says of this node, but for whether it is fresh.
pub fn announcement(config: &NodeConfig) -> BTreeMap<String, String> {
    let short = |text: &str| exo_types::clean_name(text, 40);
    BTreeMap::from([
        ("v".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("name".to_owned(), short(&config.name)),
        ("group".to_owned(), short(&config.group)),
    ])
}

/// The key that this node is known by. It is made before a log of trust is, and leaves the folder after it.
fn node_key(data: &DataDir) -> Result<NodeKey, KeyFileError> {
    let path = data.path().join("node.key");
    match data.trust_path().exists() {
        true => NodeKey::load_existing(&path),
        false => NodeKey::load_or_create(&path),
    }
}

/// Adds to `mended` what is wrong with the list of models and with copies. Of many warnings the last are
/// kept: damaged copies come first.
fn open_store(data: &DataDir, mended: &mut Vec<String>) -> Result<Store, StartError> {
    let (store, warnings) = Store::open(data.path()).map_err(StartError::Store)?;
    store.add_builtin(DEMO_MODEL_FILE, DEMO_MODEL).map_err(StartError::Store)?;
    let mut all: Vec<String> = warnings.iter().rev().map(ToString::to_string).collect();
    all.append(mended);
    *mended = all;
    Ok(store)
}

/// Why the join window lets no one else in, if this machine is reachable from anywhere or on public networks.
fn public() -> Option<String> {
    let here = exo_discovery::Surroundings::ask(Path::new("/")).ok()?;
    if let Some(address) = here.public_address() {
        return Some(format!(
            "other machines do not join on sight: {address} is an address of this one, and reachable from anywhere; \
             `exo admit` lets in who asks"
        ));
    }
    let networks = here.public_networks();
    (!networks.is_empty()).then(|| {
        format!(
            "machines on these networks do not join on sight, as the system does not mark them as private: {}; mark \
             them so in its settings, or `exo admit` lets in who asks",
            printable(&networks.join(", "), NETWORKS_CHARS_MAX)
        )
    })
}

async fn bind(config: &NodeConfig, key: &NodeKey, members: &MemberSet) -> Result<Endpoint, StartError> {
    let options = |listen| Options::new(listen, key.clone(), members.clone());
    if config.is_private {
        return Endpoint::without_port(options(config.listen)).map_err(StartError::Bind);
    }
    let listen =
        listen::address_to_bind(config.listen, &exo_discovery::local_interfaces().unwrap_or_default());
    match Endpoint::bind(options(listen)).await {
        // Peers learn the port from discovery: another one serves as well, and two nodes fit on one machine.
        Err(BindError::InUse { .. }) if config.listen.port() != 0 => {
            let any = SocketAddr::new(listen.ip(), 0);
            Endpoint::bind(options(any)).await.map_err(StartError::Bind)
        }
        bound => bound.map_err(StartError::Bind),
    }
}

fn open_devices(
    config: &NodeConfig,
    host: &dyn Host,
    me: NodeId,
) -> Result<(Compute, NodeFacts, Vec<String>), StartError> {
    let (compute, warnings) = Compute::open(config, host).map_err(StartError::Device)?;
    let node = NodeFacts {
        node: me,
        name: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: host.platform(),
        devices: compute.facts(false),
        mains_power: host.mains_power(),
    };
    Ok((compute, node, warnings))
}

fn by_node<T>(named: BTreeMap<String, T>) -> BTreeMap<NodeId, T> {
    named.into_iter().filter_map(|(node, what)| Some((node.parse().ok()?, what))).collect()
}

/// Starts discovery; without multicast the node goes on and says so.
fn discover(
    config: &NodeConfig,
    endpoint: &Endpoint,
    me: NodeId,
    fresh: bool,
    events: &EventSender,
    notices: &broadcast::Sender<Notice>,
) -> Option<Discovery> {
    if !config.discovery {
        return None;
    }
    let mut txt = announcement(config);
    txt.insert("fresh".to_owned(), if fresh { "1" } else { "0" }.to_owned());
    let options = exo_discovery::Options { node: me, listen: endpoint.local_addr(), txt };
    match tokio::task::block_in_place(|| Discovery::start(options)) {
        Ok((discovery, found)) => {
            tokio::spawn(pass_on(found, events.clone()));
            Some(discovery)
        }
        Err(error) => {
            warn_all(notices, vec![format!("other nodes are not found by themselves: {error}")]);
            None
        }
    }
}

async fn pass_on(mut found: mpsc::Receiver<FoundNode>, events: EventSender) {
    while let Some(found) = found.recv().await {
        if events.data(NodeEvent::Found(found)).await.is_err() {
            return;
        }
    }
}

fn accept(endpoint: Endpoint, events: EventSender) {
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let event = match incoming {
                Incoming::Channel(channel) => NodeEvent::Incoming(channel),
                Incoming::Join(channel) => NodeEvent::JoinIncoming(channel),
            };
            if events.control(event).await.is_err() {
                return;
            }
        }
    });
}

/// What of the configuration may not be meant so.
fn doubts(config: &NodeConfig, is_window_open: bool) -> Vec<String> {
    crowding(config).into_iter().chain(is_window_open.then(public).flatten()).collect()
}

fn warn_all(notices: &broadcast::Sender<Notice>, warnings: Vec<String>) {
    for warning in warnings {
        tracing::warn!(warning, "start");
        let _ = notices.send(Notice::Warning(warning));
    }
}
