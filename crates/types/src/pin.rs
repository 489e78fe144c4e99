//! What whoever places a model says of devices: which must take part, and which must not.

use serde::{Deserialize, Serialize};

use crate::{DeviceId, LayerRange, NodeId};

/// A device that must take part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// The node.
    pub node: NodeId,
    /// Its device.
    pub device: DeviceId,
    /// Which layers it must hold.
    pub layers: PinLayers,
}

/// Which layers a pinned device must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PinLayers {
    /// At least one.
    Any,
    /// So many.
    Count(u32),
    /// These layers and no others.
    Range(LayerRange),
}

/// Devices that must not take part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exclusion {
    /// The node.
    pub node: NodeId,
    /// Its device; all of them if it is left out.
    pub device: Option<DeviceId>,
}

impl PinLayers {
    /// Whether a device that holds these ranges, and no other layers, holds what it must.
    pub fn are_met(self, held: &[LayerRange]) -> bool {
        let count = held.iter().map(|range| range.len()).fold(0, u32::saturating_add);
        match self {
            Self::Any => count > 0,
            Self::Count(wanted) => count == wanted,
            Self::Range(wanted) => count == wanted.len() && held.iter().all(|range| self.allows(*range)),
        }
    }

    /// Whether these layers may be among those that it holds.
    pub fn allows(self, range: LayerRange) -> bool {
        match self {
            Self::Any => true,
            Self::Count(wanted) => range.len() <= wanted,
            Self::Range(wanted) => wanted.start <= range.start && range.end <= wanted.end,
        }
    }
}

impl std::fmt::Display for PinLayers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Count(count) => write!(f, "={count}"),
            Self::Range(range) => write!(f, "={range}"),
        }
    }
}

impl Exclusion {
    /// Whether it means this device.
    pub fn holds(&self, node: NodeId, device: &DeviceId) -> bool {
        self.node == node && self.device.as_ref().is_none_or(|excluded| excluded == device)
    }
}
