//! The handle of a running node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use exo_api::Facade;
use exo_types::NodeId;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinHandle;

use crate::core::{Core, Inbox, Parts};
use crate::draft::DraftFacts;
use crate::facade::{NodeFacade, PREPARING_MAX};
use crate::files::{DataDir, FilesError};
use crate::library::Library;
use crate::notice::Notice;

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
    ended: watch::Receiver<bool>,
    core: JoinHandle<()>,
}

impl Node {
    pub(crate) fn run(parts: Parts, inbox: Inbox, secret: String, library: Arc<Library>) -> Self {
        let (id, name) = (parts.key.node_id(), parts.config.name.clone());
        let (listen, data_dir) = (parts.endpoint.local_addr(), parts.config.data_dir.clone());
        let (notices, sender, config) = (parts.notices.clone(), parts.sender.clone(), parts.config.clone());
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let (view_tx, view) = watch::channel(crate::core::empty_view(id));
        let (cards, events) = (parts.compute.pci_addresses(), parts.sender.clone());
        let draft = parts.draft.clone();
        let facts = draft.as_ref().map(|draft| draft.facts().clone());
        let facade = NodeFacade {
            core: sender,
            draft,
            library,
            view,
            config,
            stop: stop.clone(),
            started: Instant::now(),
            preparing: Arc::new(Semaphore::new(PREPARING_MAX)),
        };
        let core = Core::new(parts, view_tx);
        let core = tokio::spawn(async move {
            core.run(inbox, stopped).await;
            let _ = end.send(true);
        });
        crate::cards::watch(PathBuf::from("/"), cards, events, ended.clone());
        let (facade, draft) = (Arc::new(facade), facts);
        Self { id, name, listen, data_dir, secret, draft, facade, notices, stop, ended, core }
    }

    /// Its key.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its name for people.
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
    pub fn publish_api(&self, address: SocketAddr) -> Result<(), FilesError> {
        DataDir::publish_api(&self.data_dir, address)
    }

    /// Waits until the node has stopped, by whatever cause.
    pub async fn stopped(&self) {
        let mut ended = self.ended.clone();
        // An error means that the core is gone, which is what is waited for.
        let _ = ended.wait_for(|e| *e).await;
    }

    /// Says goodbye to the cluster and stops.
    pub async fn shutdown(self) {
        DataDir::retract_api(&self.data_dir);
        let _ = self.stop.send(true);
        let _ = self.core.await;
    }
}
