//! What a node and its worker say to each other.

use std::ffi::OsString;
use std::time::Duration;

use exo_accelerators::{DeviceAsk, DeviceInfo, SurveyAsk};
use exo_backend::MemoryReport;
use exo_cluster::wire::StageCommand;
use exo_cluster::{ComputeResult, EngineId, LoadFault};
use exo_engine::EngineOptions;
use exo_types::{Monitor, PageKey, Shard, StepFrame};
use serde::{Deserialize, Serialize};

use crate::engine_thread::Loaded;

/// To the worker. Hidden rows of a step are the frame's tail.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToWorker {
    Open(DeviceAsk),
    Survey(SurveyAsk),
    Load(Box<LoadShard>),
    Step { commands: Vec<StageCommand>, frame: StepFrame },
    Rewire { keep: Vec<PageKey> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadShard {
    pub engine: EngineId,
    pub device: DeviceAsk,
    /// Of the model's file or folder.
    pub path: OsString,
    pub shard: Shard,
    /// How large the engine is made.
    pub options: EngineOptions,
}

/// To the node. Hidden rows of a computed step are the frame's tail.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromWorker {
    Opened(Box<DeviceInfo>),
    /// The driver has listed its devices.
    Listed,
    /// A `Survey` as JSON, which `exo devices` shows as it is: the frame's tail.
    Surveyed,
    /// `code` is that of an error of `exo_accelerators`.
    Refused {
        code: String,
        reason: String,
    },
    Progress {
        done_bytes: u64,
        total_bytes: u64,
        memory: WorkerMemory,
    },
    Ready {
        loaded: Loaded,
        slower_because: Option<String>,
        memory: WorkerMemory,
    },
    /// The shard was not loaded, or its engine panicked later.
    LoadFailed {
        kind: LoadFault,
        /// In the words of what failed.
        detail: String,
    },
    Computed {
        step: u64,
        busy: Duration,
        result: ComputeResult,
        memory: Option<WorkerMemory>,
    },
    Rewired,
    /// Now and then, of a device that may be idle.
    Reading {
        memory: WorkerMemory,
        monitor: Monitor,
    },
}

/// What a worker's device has free and what it holds itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkerMemory {
    pub free_bytes: u64,
    pub allocated_bytes: u64,
}

impl From<MemoryReport> for WorkerMemory {
    fn from(report: MemoryReport) -> Self {
        let MemoryReport { free_bytes, allocated_bytes, .. } = report;
        Self { free_bytes, allocated_bytes }
    }
}
