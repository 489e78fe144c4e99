//! What a worker is told, and what it does.

use crate::EngineId;
use crate::load_failure::LoadFailure;
use crate::wire::DesiredState;
use exo_types::{ModelId, NodeId, Shard, ShardPosition, ShardSpec, Time};

/// How far a shard is on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Phase {
    Absent,
    /// The manifest is being looked up, on disk or at a holder.
    FetchingManifest,
    ManifestHeld,
    /// Missing byte ranges are being fetched.
    FetchingChunks {
        done_bytes: u64,
        /// Bytes in all; 0 while unknown.
        total_bytes: u64,
        /// Seconds that the hub asks to wait; 0 while bytes may come.
        hub_wait_s: u32,
    },
    /// All its bytes are on disk.
    Stored,
    /// Its tensors are being read into the device.
    Loading {
        done_bytes: u64,
        /// Bytes in all; 0 while unknown.
        total_bytes: u64,
    },
    /// It computes.
    Ready,
    /// Its memory is being freed.
    Unloading,
}

/// A shard this node has something of.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct ActualShard {
    /// Its name. Another one after each attempt that ended, so that a late answer names nothing.
    pub engine: EngineId,
    /// The wanted shard it serves; `None` if it is to leave.
    pub serves: Option<ShardPosition>,
    pub spec: ShardSpec,
    /// Bytes it holds or will hold.
    pub memory_bytes: u64,
    pub phase: Phase,
    /// When the phase, or progress within it, began.
    pub since: Time,
    pub failures: u32,
    /// Of these, loads that the device refused.
    pub failed_loads: u32,
    /// The last failure, to show.
    pub failure: Option<LoadFailure>,
    /// Not before this time; set after a failure.
    pub retry_at: Time,
}

/// The next thing a worker should do.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum Action {
    /// Have the manifest on disk: look there, else ask `holders` in turn. Answer `ManifestHeld` or `Failed`.
    FetchManifest { engine: EngineId, model: ModelId, holders: Vec<NodeId> },
    /// Have the byte ranges of the shard's tensors on disk. Answer `Progress`, then `Stored` or `Failed`.
    FetchChunks { engine: EngineId, model: ModelId, shard: Shard, holders: Vec<NodeId> },
    /// Load it. Answer `Progress`, then `Ready` or `Failed`.
    LoadShard { engine: EngineId, spec: ShardSpec },
    /// Free it. Answer `Unloaded`.
    UnloadShard { engine: EngineId },
    /// Stop a fetch or load in progress. Answer `Unloaded` once nothing of it runs or holds memory.
    Cancel { engine: EngineId },
}

/// What happens to a worker.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum WorkerInput {
    /// Time passed. At least once a second.
    Tick,
    /// The coordinator's wish.
    Desired(DesiredState),
    /// This node belongs to another cluster now: what the old one wanted is void, and so is its epoch.
    Moved,
    /// The manifest is on disk.
    ManifestHeld(EngineId),
    /// A fetch or load moved on.
    Progress {
        engine: EngineId,
        done_bytes: u64,
        total_bytes: u64,
        /// Seconds that the hub asks to wait: as good as progress. 0 while bytes may come.
        hub_wait_s: u32,
    },
    /// All bytes are on disk.
    Stored(EngineId),
    /// It computes.
    Ready(EngineId),
    /// The action failed; nothing of it runs or holds memory.
    Failed { engine: EngineId, why: LoadFailure },
    /// It is gone: asked for, or because its device was lost.
    Unloaded(EngineId),
}
