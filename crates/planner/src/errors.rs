//! Why there is no plan, and why a plan does not fit (any more).

use exo_types::{DeviceId, NodeId, size, size_up};

use crate::disk_bound::settings_text;

/// One device's memory, for the message that says where the bytes are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Node and device, to be displayed.
    pub name: String,
    /// Free for models.
    pub free_bytes: u64,
    /// Of that, what layers could fill after the workspace every stage needs.
    pub usable_bytes: u64,
}

/// No placement exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum PlanError {
    #[error("nothing to place: {what} is 0{}", if *what == "layers" { "" } else { "; ask for 1 or more" })]
    Empty { what: &'static str },
    #[error(
        "no device can be used: {}{}",
        if reasons.is_empty() { "no member reports one".to_owned() } else { reasons.join("; ") },
        remedies.iter().map(|r| format!("; {r}")).collect::<String>()
    )]
    NoDevices {
        reasons: Vec<String>,
        /// Changes each of which alone would do.
        remedies: Vec<Remedy>,
    },
    #[error(
        "no device can run the types of weights that the model has: {}; take the model in another type, or add \
         a node that runs them on its processor",
        reasons.join("; ")
    )]
    NoKernels {
        /// One line per device, those that may not be used at all included.
        reasons: Vec<String>,
    },
    #[error("{wanted} stages were asked for, {possible} are possible ({why})")]
    TooFewStages { wanted: u32, possible: u32, why: String },
    #[error(
        "the model needs {}, the devices have {} usable of {} free: {} ({}); the largest single unit is {largest_unit} with {}{}{}",
        size_up(*needed_bytes),
        size(*usable_bytes),
        size(*free_bytes),
        missing(*missing_bytes),
        per_device.iter().map(|d| format!("{}: {} usable of {} free", d.name, size(d.usable_bytes), size(d.free_bytes)))
            .collect::<Vec<_>>().join(", "),
        size_up(*largest_unit_bytes),
        remedies.iter().map(|r| format!("; {r}")).collect::<String>(),
        if left_out.is_empty() { String::new() } else { format!("; left out: {left_out}") }
    )]
    DoesNotFit {
        /// Weights and KV of the whole model.
        needed_bytes: u64,
        /// Free on all usable devices.
        free_bytes: u64,
        /// Of that, usable for weights and KV.
        usable_bytes: u64,
        /// Bytes that must be freed or added at least. When the sum would do and only the pieces do not fit,
        /// the least growth of a single device that would make it fit; 0 where the devices are too many to
        /// search that.
        missing_bytes: u64,
        /// Every usable device.
        per_device: Vec<DeviceMemory>,
        /// Name of the largest piece that cannot be split.
        largest_unit: Box<str>,
        largest_unit_bytes: u64,
        /// Devices that do not count, with the reason.
        left_out: Box<str>,
        /// Changes each of which alone would do.
        remedies: Vec<Remedy>,
    },
    #[error("the pin of {device} cannot be met: {why}")]
    Pin { device: String, why: String },
    #[error("{layers} layers are more than the {layers_max} that the planner takes")]
    TooManyLayers { layers: u32, layers_max: u32 },
}

fn missing(bytes: u64) -> String {
    match bytes {
        0 => "in sum that is enough, in pieces no devices hold it".to_owned(),
        bytes => format!("{} are missing", size_up(bytes)),
    }
}

/// The smallest change of one kind that makes an impossible request possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// So many more free bytes on one device.
    Memory {
        /// Node and device, to be displayed.
        device: String,
        /// How many.
        bytes: u64,
    },
    /// A shorter context, and a cache smaller by the same factor.
    Context {
        /// The longest that fits.
        context_tokens: u32,
        /// Of the cache.
        cache_tokens: u32,
    },
    /// So much more room for models on the disk of a node.
    Disk {
        /// The node, to be displayed.
        node: String,
        /// How many bytes.
        bytes: u64,
        /// Its settings that leave less, each with what is to be done to it; none where the disk has no more,
        /// whatever they are.
        settings: Vec<(&'static str, &'static str)>,
    },
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory { device, bytes } => write!(f, "it fits with {} more on {device}", size_up(*bytes)),
            Self::Context { context_tokens, cache_tokens } => {
                write!(f, "it fits with a context of {context_tokens} tokens ({cache_tokens} in the cache)")
            }
            Self::Disk { node, bytes, settings } => {
                let change = match settings_text(settings).as_str() {
                    "" => ", whose disk is too full: delete".to_owned(),
                    settings => format!(": {settings} there, or delete"),
                };
                write!(
                    f,
                    "it fits with {} more room for models on {node}{change} with `exo models remove` or `exo prune`",
                    size_up(*bytes)
                )
            }
        }
    }
}

/// A plan does not fit a request: it was made for an older one, or for another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum InvalidPlan {
    /// The layers have a gap or an overlap, end too early, or embedding or head are in the wrong place.
    #[error("{layer_count} layers are not tiled: layer {at} comes next, the plan goes on with {found}")]
    NotTiled { at: u32, found: String, layer_count: u32 },
    #[error("the plan has {stages} shards and the bytes of {sizes}")]
    Unsized { stages: usize, sizes: usize },
    #[error("stage {stage} is on {device} of {node}, which is not there")]
    DeviceGone { stage: usize, node: NodeId, device: DeviceId },
    #[error("stage {stage} is on {device}: {reason}")]
    Unusable { stage: usize, device: String, reason: String },
    #[error("stage {stage} is on {device}, as one before it")]
    DeviceTwice { stage: usize, device: String },
    #[error("stage {stage} needs {}, {device} has {} free", size_up(*needed_bytes), size(*free_bytes))]
    NoMemory { stage: usize, device: String, needed_bytes: u64, free_bytes: u64 },
}
