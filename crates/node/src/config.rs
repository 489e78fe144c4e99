//! What a node is started with. Plain values; where they come from is the caller's business.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use exo_accelerators::{AUTO, Backend, BackendError, Ranking};
use exo_backend_cpu::Packing;
use exo_device::CoreList;
use exo_store::DiskLimits;
use exo_types::{ComputeShare, KvDType, Pooling};

use crate::cache::CacheRequest;
use crate::{Doctor, LogCapture, Speculation, WorkerProgram};

/// Settings of one node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Keys, journal, models. Created if absent; one node at a time uses it.
    pub data_dir: PathBuf,
    /// To be displayed.
    pub name: String,
    /// Only nodes of the same group find each other; empty is a group like any other.
    pub group: String,
    /// For other nodes, UDP and TCP. On loopback only nodes of this machine are found. Port 0 picks one; a
    /// fixed port that is taken is replaced by a free one, because peers learn the port from discovery.
    pub listen: SocketAddr,
    /// Nodes to reach besides those discovered, `host:port`.
    pub peers: Vec<String>,
    /// Whether to look for nodes by mDNS.
    pub discovery: bool,
    /// Whether this is a node for a command's while: it opens no port for other nodes, asks none but
    /// `peers`, and leaves its cluster's join window to the first node that is started to stay. A member of a
    /// cluster starts as one all the same.
    pub is_private: bool,
    /// Whether a new cluster starts with its join window shut.
    pub trust_closed: bool,
    /// Whether a token says which cluster this machine is of: it joins no other and lets no one in, and
    /// leaves the join window of its own cluster to the first start without one.
    pub has_token: bool,
    /// What computes.
    pub device: DeviceChoice,
    /// How processes for shards on graphics processors are started; `None` computes on those in this process,
    /// for systems that let an app start none.
    pub worker: Option<WorkerProgram>,
    /// Processor threads for models; `None` takes what the system grants.
    pub threads: Option<usize>,
    /// Processor cores that worker threads are kept to, each to one. Whoever starts the node keeps the
    /// process to them.
    pub cores: Option<CoreList>,
    /// Part of the time in which the processor computes for models.
    pub compute_share: ComputeShare,
    /// Instruction set of the processor's kernels; `None` takes the widest. One that the processor lacks is
    /// an error.
    pub cpu_isa: Option<exo_backend_cpu::Isa>,
    /// Whether weights are used straight from the model file instead of being copied to faster memory.
    pub mmap: bool,
    /// When weights that are not used so are copied: [`Packing::BEHIND`] answers at once and is fast within
    /// seconds.
    pub packing: Packing,
    /// Memory models may take; `None` takes what is free less a reserve.
    pub memory_max_bytes: Option<u64>,
    /// What fetched models may take of the disk.
    pub disk: DiskLimits,
    /// What a request loaded is unloaded when none has used it for so long, while this node coordinates;
    /// `None` never does.
    pub unload_idle_after: Option<Duration>,
    /// How long an answer that was interrupted may stand still before it ends with what was lost.
    pub stream_pause_max: Duration,
    /// Context of an instance unless asked otherwise; never more than the model's own.
    pub context_tokens: u32,
    /// Slots of an instance unless asked otherwise.
    pub slots: u32,
    /// Tokens whose keys and values an instance may hold unless asked otherwise; `None` for every slot at
    /// full context. Must hold one context: [`crate::cache_pages`] checks.
    pub cache_tokens: Option<u32>,
    /// How keys and values are stored unless asked otherwise.
    pub kv: KvDType,
    /// How rows become one vector where neither the request nor the model's files say it; `None` refuses
    /// such a request.
    pub embedding_pooling: Option<Pooling>,
    /// How tokens are guessed ahead in instances whose first stage is here.
    pub speculation: Speculation,
    /// The small model that guesses where `speculation` is by a model: a name, an id, a file or a folder. It
    /// gets the context and the slots above.
    pub draft: Option<String>,
    /// Where the last log lines are kept. Whoever starts the node adds its layer to the subscriber.
    pub log: LogCapture,
    /// How the machine is looked over, when the owner or another member asks for it.
    pub doctor: Doctor,
}

impl NodeConfig {
    /// The cache of what is placed where no one asks for another.
    pub(crate) fn usual_cache(&self) -> CacheRequest {
        let Self { context_tokens, slots, cache_tokens, kv, .. } = *self;
        CacheRequest { context_tokens, context_named: false, slots, cache_tokens, kv }
    }
}

/// What a node computes on.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Processor,
    /// What a backend shows.
    Named {
        /// The backend.
        backend: Backend,
        /// Its number in the backend's list from 0, or a part of its name; empty for the first that is likely
        /// to do. Several numbers with commas between them are several accelerators.
        which: String,
    },
    /// Every accelerator that gives the right answers and is faster than the processor, and the processor for
    /// the rest: found out when the node starts.
    Auto {
        /// A part of a name or a place (`cuda:0`) that alone counts; empty for all.
        which: String,
    },
    /// The same, found out before ([`crate::choose_devices`]).
    Ranked(Box<Ranking>),
}

impl DeviceChoice {
    /// From the settings `backend` (`auto`, `cpu`, or one of [`Backend::ALL`]) and `device`.
    pub fn parse(backend: &str, which: &str) -> Result<Self, BackendError> {
        let which = which.to_owned();
        match backend {
            "cpu" => Ok(Self::Processor),
            AUTO => Ok(Self::Auto { which }),
            name => Ok(Self::Named { backend: Backend::parse(name)?, which }),
        }
    }
}
