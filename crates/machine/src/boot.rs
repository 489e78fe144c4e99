//! What a node starts with: what it is told, and what it finds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use exo_cluster::wire::HeldModel;
use exo_cluster::{Speculation, State};
use exo_trust::TrustLog;
use exo_types::{Ancestors, DiskRoom, Epoch, LogHead, NodeId};

use crate::Samples;
use crate::left_cluster::LeftCluster;
use crate::log::LogLimits;

/// What a node is, for as long as it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineConfig {
    /// Its key.
    pub me: NodeId,
    /// What it is called.
    pub name: String,
    /// Nodes of other groups are not joined, nor let in.
    pub group: String,
    /// Where it listens for other nodes.
    pub listen: SocketAddr,
    /// Nodes to find besides those discovered, `host:port`.
    pub peers: Vec<String>,
    /// Whether it joins no one that no person named.
    pub trust_closed: bool,
    /// Whether it waits for the cluster that its token is of: it joins no other, also not where a person
    /// named an address.
    pub has_token: bool,
    /// How long its log of placements grows.
    pub log: LogLimits,
    /// How tokens are guessed ahead in instances whose first stage is here.
    pub speculation: Speculation,
    /// While it leads, what a request loaded is unloaded when none has used it for so long; `None` never
    /// does.
    pub unload_idle_after: Option<Duration>,
    /// Tells this run of the node from others, as a random number does.
    pub incarnation: u64,
    /// The only chance there is: by it attempts to connect are spread.
    pub seed: [u8; 32],
    /// A bug to find.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::planted::Bug>,
}

/// What a node finds on its disk and in its machine when it starts.
#[derive(Clone, PartialEq, Debug)]
pub struct Boot {
    /// The highest epoch it ever acted in.
    pub epoch: Option<Epoch>,
    /// Where the log begins: what its last snapshot stands for.
    pub base: LogHead,
    /// The ends that the log had before `base`.
    pub ancestors: Ancestors,
    /// The entries behind `base`.
    pub entries: Vec<Vec<u8>>,
    /// The state at the end of the log.
    pub state: State,
    /// Who belongs to the cluster.
    pub trust: TrustLog,
    /// Where members were reached in earlier runs.
    pub addresses: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// Members that said goodbye in earlier runs and were not there since, each with when that was, in
    /// seconds since 1970.
    pub ended: BTreeMap<NodeId, u64>,
    /// The machine.
    pub samples: Samples,
    /// The models on disk.
    pub models: Vec<HeldModel>,
    /// What may still be fetched.
    pub disk_room: DiskRoom,
    /// For how long nodes have run on these logs with the join window open, before this run.
    pub window_ran: Duration,
    /// Whether a model came to the disk since the window opened, before this run.
    pub has_new_model: bool,
    /// Clusters that it left: it joins them by a code only.
    pub left: Vec<LeftCluster>,
    /// What went wrong with the files on it, one line each: for the view.
    pub warnings: Vec<String>,
}
