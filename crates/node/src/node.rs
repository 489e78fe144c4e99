//! The handle of a running node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{ClusterView, Facade, PullView};
use exo_machine::{Effect, NodeMachine, Notice, Question};
use exo_telemetry::OwnFacts;
use exo_types::NodeId;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use crate::NodeConfig;
use crate::clock::Clock;
use crate::downloads::NodeDownloads;
use crate::draft::DraftFacts;
use crate::events::{EventSender, Inbox};
use crate::facade::{ModelUses, NodeFacade, PreparingTurns, prompt_bytes_max};
use crate::files::{DataDir, FilesError};
use crate::hands::Hands;
use crate::host::Host;
use crate::library::Library;
use crate::library::eviction::DiskFacts;
use crate::meters::Meters;
use crate::pairing::Invites;
use crate::questions::ask_node;
use crate::run_loop::RunLoop;
use crate::telemetry::Telemetry;

/// For the machine to hear that its node is about to end.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// A running node. Dropping it stops it without goodbyes; [`Node::shutdown`] is the polite way.
pub struct Node {
    id: NodeId,
    name: String,
    listen: SocketAddr,
    data_dir: PathBuf,
    secret: String,
    draft: Option<DraftFacts>,
    facade: Arc<NodeFacade>,
    notices: broadcast::Sender<Notice>,
    stop: watch::Sender<bool>,
    end_asked: watch::Receiver<bool>,
    events: EventSender,
    ended: watch::Receiver<bool>,
    run_loop: JoinHandle<()>,
}

/// The first look at itself takes milliseconds.
const BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// What start-up hands over.
pub(crate) struct NodeParts {
    pub id: NodeId,
    pub config: NodeConfig,
    pub listen: SocketAddr,
    pub secret: String,
    pub machine: NodeMachine,
    /// What the machine does first.
    pub first: Vec<Effect>,
    pub hands: Hands,
    pub clock: Clock,
    pub inbox: Inbox,
    pub events: EventSender,
    pub notices: broadcast::Sender<Notice>,
    /// PCI addresses of the cards that are watched.
    pub cards: Vec<String>,
    /// Codes that were given out.
    pub invites: Arc<Invites>,
    /// What is counted as the node works.
    pub meters: Arc<Meters>,
    /// The system around the node.
    pub host: Arc<dyn Host>,
    /// What was measured, with the silences of earlier runs.
    pub telemetry: Arc<Telemetry>,
    /// Where the machine's view is shown.
    pub view: watch::Sender<ClusterView>,
}

/// What alerts about this node's own disk follow from.
fn own_facts(
    library: Arc<Library>,
    pulls: impl Fn() -> Vec<PullView> + Send + 'static,
) -> Box<dyn Fn() -> OwnFacts + Send> {
    Box::new(move || {
        let DiskFacts { quota_bytes, changed, differing } = library.room.disk_facts();
        OwnFacts { pulls: pulls(), quota_bytes, changed_models: changed, differing_models: differing }
    })
}

impl Node {
    pub(crate) fn run(parts: NodeParts) -> Self {
        let NodeParts { id, config, listen, first, mut hands, inbox, events, notices, .. } = parts;
        let NodeParts { meters, host, telemetry, view: view_tx, .. } = parts;
        let (name, data_dir) = (config.name.clone(), config.data_dir.clone());
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let (ask_end, end_asked) = watch::channel(false);
        let (view, draft) = (view_tx.subscribe(), hands.draft.clone());
        let facts = draft.as_ref().map(|draft| draft.facts().clone());
        hands.library.room.sees(view.clone());
        tokio::spawn(hands.library.clone().look_after(stopped.clone()));
        let left_out_told = tokio::spawn(config.log.clone().report_left_out(ended.clone()));
        let downloads = NodeDownloads::new(
            hands.library.clone(),
            events.clone(),
            host.clone(),
            view.clone(),
            id,
            config.clone(),
            meters.clone(),
            stopped.clone(),
        );
        let own = own_facts(hands.library.clone(), downloads.lister());
        hands.devices.pulls = Box::new(downloads.reporter());
        let found_at = config.discovery.then(|| listen.ip());
        let facade = NodeFacade {
            node: events.clone(),
            draft,
            library: hands.library.clone(),
            view,
            config,
            stop: stopped.clone(),
            ask_end,
            started: Instant::now(),
            listen,
            invites: parts.invites,
            meters,
            telemetry: telemetry.clone(),
            endpoint: hands.endpoint.clone(),
            preparing: PreparingTurns::new(),
            prompt_bytes_max: prompt_bytes_max(exo_device::memory(Path::new("/"))),
            downloads,
            checks: hands.checks.clone(),
            model_uses: ModelUses::default(),
        };
        let run_loop =
            RunLoop::new(parts.machine, hands, parts.clock, notices.clone(), view_tx, telemetry, own);
        let run_loop = tokio::spawn(async move {
            run_loop.run(first, inbox, stopped).await;
            let _ = (end.send(true), left_out_told.await); // whose line would else be lost with the process
        });
        let (root, data) = (PathBuf::from("/"), data_dir.clone());
        crate::cards::watch(root, data, parts.cards, host, found_at, events.clone(), ended.clone());
        let (facade, draft) = (Arc::new(facade), facts);
        Self {
            id,
            name,
            listen,
            data_dir,
            secret: parts.secret,
            draft,
            facade,
            notices,
            stop,
            end_asked,
            events,
            ended,
            run_loop,
        }
    }

    /// Its key.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its display name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where other nodes reach it.
    pub fn listen_addr(&self) -> SocketAddr {
        self.listen
    }

    /// The model that guesses ahead, if there is one.
    pub fn draft(&self) -> Option<&DraftFacts> {
        self.draft.as_ref()
    }

    /// Waits until the node sees itself: whoever hears that it has started may ask it at once.
    pub(crate) async fn wait_until_begun(&self) {
        let mut view = self.facade.view.clone();
        let seen = tokio::time::timeout(BEGINS_WITHIN, view.wait_for(|view| view.cluster.is_some())).await;
        if seen.is_err() {
            let waited_s = BEGINS_WITHIN.as_secs();
            tracing::warn!(waited_s, "the node has started and does not see itself yet");
        }
    }

    /// What opens the administrative routes.
    pub fn local_secret(&self) -> &str {
        &self.secret
    }

    /// What the HTTP server talks to.
    pub fn facade(&self) -> Arc<dyn Facade> {
        self.facade.clone()
    }

    /// What happens around the node, from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Tells commands on this machine where the API is.
    pub fn publish_api(&self, address: SocketAddr, socket: PathBuf) -> Result<(), FilesError> {
        DataDir::publish_api(&self.data_dir, address, socket)
    }

    /// Waits until the node has stopped, by whatever cause.
    pub async fn stopped(&self) {
        let mut ended = self.ended.clone();
        // An error means that the loop is gone, which is what is waited for.
        let _ = ended.wait_for(|e| *e).await;
    }

    /// Becomes true when a client asks, by the API, that the node end. Whoever holds it then does as at any
    /// other end.
    pub fn end_asked(&self) -> watch::Receiver<bool> {
        self.end_asked.clone()
    }

    /// Before the clients' streams are ended: what they asked stays with other members, who can go on with
    /// it.
    pub async fn say_leaving(&self) {
        if ask_node(&self.events, Question::Leaving, LEAVING_MAX).await.is_err() {
            tracing::warn!("the node is busy: requests of its clients may not go on elsewhere");
        }
    }

    /// Says goodbye to the cluster and stops.
    pub async fn shutdown(self) {
        DataDir::retract_api(&self.data_dir);
        let _ = self.stop.send(true);
        let _ = self.run_loop.await;
    }
}
