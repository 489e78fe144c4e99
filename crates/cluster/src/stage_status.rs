//! How far a worker is with a stage.

use serde::{Deserialize, Serialize};

use crate::load_failure::LoadFailure;
use crate::names::NodeName;

/// How far a stage's worker is with it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // a field without a comment is what its name says
pub enum StageStatus {
    /// The worker has not reported on it yet.
    Unknown,
    /// Waiting for memory, a manifest or a retry.
    Waiting,
    /// Weights are being fetched, from another member or a hub.
    Fetching {
        done_bytes: u64,
        /// Bytes in all; 0 while unknown.
        total_bytes: u64,
        /// Seconds that the hub asks to wait; 0 while bytes may come.
        hub_wait_s: u32,
    },
    /// Weights are being read into the device.
    Loading {
        done_bytes: u64,
        /// Bytes in all; 0 while unknown.
        total_bytes: u64,
    },
    /// Loaded and able to compute.
    Loaded,
    /// The first stage, once step 0 has come back: every stage is there, and every link that steps and tokens
    /// take is open.
    Serving,
    /// The last attempt failed; the worker retries unless told otherwise.
    Failed {
        why: LoadFailure,
        /// Loads in a row that the device refused so far. Fetching, waiting for memory or for a device, and a
        /// device that is lost do not count: those end by themselves, or are bounded elsewhere.
        failed_loads: u32,
    },
}

impl StageStatus {
    /// A number that grows while there is progress: a change of it puts the loading deadline off.
    pub(crate) fn progress(&self) -> (u8, u64) {
        match self {
            Self::Unknown | Self::Failed { .. } => (0, 0),
            Self::Waiting => (1, 0),
            Self::Fetching { done_bytes, .. } => (2, *done_bytes),
            Self::Loading { done_bytes, .. } => (3, *done_bytes),
            Self::Loaded => (4, 0),
            Self::Serving => (5, 0),
        }
    }

    /// Whether nothing can come now, because a hub asks to wait: no reason to give a device up. The worker
    /// bounds that wait.
    pub(crate) fn waits_for_hub(&self) -> bool {
        matches!(self, Self::Fetching { hub_wait_s: 1.., .. })
    }

    /// Whether it could compute.
    pub fn is_loaded(&self) -> bool {
        matches!(self, Self::Loaded | Self::Serving)
    }

    /// To be displayed behind "stage 1 on NAME …: ".
    pub fn text(&self, name: NodeName<'_>) -> String {
        let words = match self {
            Self::Fetching { hub_wait_s: seconds @ 1.., .. } => {
                return format!("the hub asks to wait {seconds} s before it gives more of its weights");
            }
            Self::Failed { why, .. } => return why.text(name),
            Self::Unknown => "its node has not reported it",
            Self::Waiting => "it waits for memory, a manifest or a retry",
            Self::Fetching { .. } => "its weights are being fetched",
            Self::Loading { .. } => "its weights are being loaded",
            Self::Loaded => "it is loaded, and no step has come back",
            Self::Serving => "it serves",
        };
        words.to_owned()
    }
}
