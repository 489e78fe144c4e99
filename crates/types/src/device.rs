//! Facts about nodes and their devices, as reported and shown. A missing source is `None`, never a guess.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{DEVICES_MAX, DType, KvDType, NodeId, TYPES_MAX, list};

/// A device within its node, stable across restarts: `cpu`, later `cuda:GPU-…`, `vulkan:0000:01:00.0`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DeviceId(pub String);

impl DeviceId {
    /// The node's processor.
    pub fn cpu() -> Self {
        Self("cpu".to_owned())
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What kind of device it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A graphics card with its own memory.
    DiscreteGpu,
    /// A graphics unit that shares the processor's memory.
    IntegratedGpu,
}

/// How far a device can be used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupportClass {
    /// Everything works.
    Full,
    /// Some operations or types run elsewhere.
    Partial,
    /// Works in tests, never run on this hardware by us.
    Experimental,
    /// Not used; the reason says why.
    Unsupported,
}

/// One accelerator or processor of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its name within the node.
    pub id: DeviceId,
    /// What kind it is.
    pub kind: DeviceKind,
    /// Marketing name, as the system tells it.
    pub name: String,
    /// Which backend and instruction set run it, for example `cpu/avx2`.
    pub backend: String,
    /// Memory it may hold models in, in all.
    pub memory_total_bytes: u64,
    /// Of that, free for models now.
    pub memory_free_bytes: u64,
    /// What it has that memory from, where other devices may have theirs from the same.
    pub memory_domain: Option<MemoryDomain>,
    /// Cores or compute units given to it; 0 where nothing tells.
    pub compute_units: u32,
    /// Measured: bytes of Q8_0 weights that a decode step reads per second.
    pub read_bytes_per_s: Option<f64>,
    /// Measured: multiply-adds times two of a prefill chunk, per second.
    pub flops_per_s: Option<f64>,
    /// The same two with other types of weights, as far as they were measured.
    #[serde(deserialize_with = "list::<_, _, TYPES_MAX>")]
    pub rates_by_type: Vec<TypeRates>,
    /// Measured: what a layer takes beside its products.
    pub layer_rates: Option<LayerRates>,
    /// How often and how long ago all but the rates by type were measured; `None` where they were not, or
    /// whoever embeds the node has said them.
    pub rates_measured: Option<Provenance>,
    /// What its own steps have taught since of all of them.
    pub corrections: Corrections,
    /// Types of weights that it has no kernels for, as its backend says: no layer with one goes there.
    #[serde(deserialize_with = "list::<_, _, TYPES_MAX>")]
    pub unsupported_types: Vec<DType>,
    /// How far it can be used.
    pub support: SupportClass,
    /// Why not fully, or what would make it better. Empty when there is nothing to say.
    pub support_reason: String,
}

impl DeviceFacts {
    /// Rows of the step of several streams that processors are measured with.
    pub const STEP_ROWS: u32 = 16;
    /// Rows of the prefill chunk that they are measured with.
    pub const CHUNK_ROWS: u32 = 64;

    /// A device with all its memory free, of which nothing was measured and which can do everything.
    pub fn unmeasured(id: DeviceId, kind: DeviceKind, name: &str, backend: &str, memory_bytes: u64) -> Self {
        Self {
            id,
            kind,
            name: name.to_owned(),
            backend: backend.to_owned(),
            memory_total_bytes: memory_bytes,
            memory_free_bytes: memory_bytes,
            memory_domain: None,
            compute_units: 0,
            read_bytes_per_s: None,
            flops_per_s: None,
            rates_by_type: Vec::new(),
            layer_rates: None,
            rates_measured: None,
            corrections: Corrections::default(),
            unsupported_types: Vec::new(),
            support: SupportClass::Full,
            support_reason: String::new(),
        }
    }
}

/// Memory that several devices share: a processor and a graphics unit within it, or nodes on one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryDomain {
    /// The same for all that share it, and for nothing else.
    pub id: u64,
    /// Free bytes of it, whatever a device of it is limited to.
    pub free_bytes: u64,
}

impl MemoryDomain {
    /// One with an id that follows from `secret`, which does not follow from the id.
    pub fn of(secret: &[u8], free_bytes: u64) -> Self {
        let hash = blake3::derive_key("exo 2026-11-26 memory domain", secret);
        let id = hash.iter().take(8).fold(0u64, |id, byte| id << 8 | u64::from(*byte));
        Self { id, free_bytes }
    }

    /// The same as members of a cluster may know it: of another cluster the id is another one.
    #[must_use]
    pub fn within(self, cluster: &[u8; 32]) -> Self {
        Self::of(&[&self.id.to_be_bytes()[..], cluster].concat(), self.free_bytes)
    }
}

/// How often something was measured, and how long ago for the last time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Provenance {
    /// Measurements that the number comes from.
    pub count: u32,
    /// How old the last of them is, in seconds.
    pub age_s: u32,
}

impl Provenance {
    /// Nothing is told to be older: ten years.
    pub const AGE_S_MAX: u32 = 10 * 365 * 24 * 3600;
    /// What is older is stale, and a start measures it again: drivers, clocks and neighbours change in days.
    pub const FRESH_S: u32 = 24 * 3600;

    /// What these are so many seconds later.
    #[must_use]
    pub fn later(self, by_s: u64) -> Self {
        let by_s = u32::try_from(by_s).unwrap_or(u32::MAX);
        Self { age_s: self.age_s.saturating_add(by_s).min(Self::AGE_S_MAX), ..self }
    }

    /// Whether it is not stale.
    pub fn is_fresh(self) -> bool {
        self.age_s <= Self::FRESH_S
    }

    /// Whether a node could have measured like that.
    pub fn is_plausible(self) -> bool {
        self.count > 0 && self.age_s <= Self::AGE_S_MAX
    }
}

/// What a device does with weights of one type.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TypeRates {
    /// The type; not Q8_0, whose rates are the device's own.
    pub dtype: DType,
    /// Measured: bytes of such weights, as files store them, that a decode step reads per second.
    pub read_bytes_per_s: f64,
    /// Measured: multiply-adds times two of a prefill chunk with such weights, per second.
    pub flops_per_s: f64,
    /// Measured: bytes of such weights, as files store them, that a step of [`DeviceFacts::STEP_ROWS`] rows
    /// passes per second.
    pub read_16_rows_bytes_per_s: Option<f64>,
    /// How often, and how long ago.
    pub measured: Provenance,
}

/// What a layer takes of a device beside what [`DeviceFacts::read_bytes_per_s`] and
/// [`DeviceFacts::flops_per_s`] say. All are measured together.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerRates {
    /// Bytes of weights per second that a prefill chunk waits for, beside computing with them.
    pub prefill_read_bytes_per_s: f64,
    /// Multiply-adds times two of attention of a prefill chunk, per second.
    pub attention_flops_per_s: f64,
    /// Activations of a prefill chunk that norms, rotations, the KV write, the activation function and sums
    /// pass, per second. A row has one for each weight of the layer, divided by the hidden width.
    pub activations_per_s: f64,
    /// Seconds that all these take in a layer for one row, with what starting its products takes.
    pub layer_s: f64,
    /// Bytes of keys and values per second that attention of one row reads; earlier versions did not
    /// measure it.
    #[serde(default)]
    pub kv_read_bytes_per_s: Option<KvRates>,
    /// Bytes of Q8_0 weights per second that a step of [`DeviceFacts::STEP_ROWS`] rows passes, of processors.
    #[serde(default)]
    pub read_16_rows_bytes_per_s: Option<f64>,
}

/// A rate for each type of keys and values.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct KvRates {
    /// Of [`KvDType::F32`].
    pub f32: f64,
    /// Of [`KvDType::F16`].
    pub f16: f64,
    /// Of [`KvDType::Q8`].
    pub q8: f64,
}

impl KvRates {
    /// Each with its type, in the order of [`KvDType::ALL`].
    pub fn by_type(self) -> [(KvDType, f64); KvDType::ALL.len()] {
        [(KvDType::F32, self.f32), (KvDType::F16, self.f16), (KvDType::Q8, self.q8)]
    }
}

impl LayerRates {
    /// No device is faster.
    const RATE_MAX: f64 = 1e18;
    /// No layer takes longer, or shorter.
    const SECONDS: std::ops::RangeInclusive<f64> = 1e-9..=1.0;

    /// Whether the planner may count with them: numbers above zero that a device could have.
    pub fn is_plausible(&self) -> bool {
        let Self { prefill_read_bytes_per_s, attention_flops_per_s, activations_per_s, layer_s, .. } = *self;
        let of_kv = self.kv_read_bytes_per_s.into_iter().flat_map(KvRates::by_type).map(|(_, rate)| rate);
        let others = of_kv.chain(self.read_16_rows_bytes_per_s);
        let mut rates =
            [prefill_read_bytes_per_s, attention_flops_per_s, activations_per_s].into_iter().chain(others);
        rates.all(|rate| rate > 0.0 && rate <= Self::RATE_MAX) && Self::SECONDS.contains(&layer_s)
    }
}

/// How fast a device computes real steps, beside what its measured rates say.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Corrections {
    /// Of reading weights, keys and values, from steps of one token; `None` until enough was learned.
    pub decode: Option<Correction>,
    /// Of arithmetic, from prompts that were read in one step.
    pub prefill: Option<Correction>,
}

/// A factor for a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Correction {
    /// In per cent of the rate, within [`Correction::PERCENT`].
    pub percent: u16,
    /// Measurements that it is the median of.
    pub samples: u16,
}

impl Correction {
    /// What is further off is no error of a calibration.
    pub const PERCENT: std::ops::RangeInclusive<u16> = 50..=200;
}

impl Corrections {
    /// A factor for people, as in `decode corrected to 65 %`; `None` where nothing was learned.
    pub fn text(&self) -> Option<String> {
        let one = |what: &str, correction: Option<Correction>| {
            correction.map(|learned| format!("{what} corrected to {} %", learned.percent))
        };
        let texts: Vec<String> =
            [one("decode", self.decode), one("prefill", self.prefill)].into_iter().flatten().collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

/// Whether a device takes work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// It does.
    Usable,
    /// It let go of its work, and is looked at soon.
    Lost,
    /// It is made to compute and compare.
    Verifying,
    /// It was lost too often and is not used for some hours.
    Quarantined,
}

/// Sensor readings; `None` where nothing tells.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Monitor {
    /// Degrees Celsius.
    pub temperature_c: Option<f32>,
    /// Watts drawn.
    pub power_w: Option<f32>,
    /// Of the compute units, in MHz.
    pub clock_mhz: Option<f32>,
    /// Part of the time it was busy, 0 to 1.
    pub utilisation: Option<f32>,
    /// At which temperature it slows itself down, in degrees Celsius.
    pub limit_c: Option<f32>,
    /// Whether it is slowed down for heat, or because its power supply asks for that.
    pub throttled: Option<bool>,
}

impl Monitor {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What this does not know, as the other knows it.
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature_c: self.temperature_c.or(other.temperature_c),
            power_w: self.power_w.or(other.power_w),
            clock_mhz: self.clock_mhz.or(other.clock_mhz),
            utilisation: self.utilisation.or(other.utilisation),
            limit_c: self.limit_c.or(other.limit_c),
            throttled: self.throttled.or(other.throttled),
        }
    }
}

/// What a node says of itself to the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The node.
    pub node: NodeId,
    /// Display name: the host name unless configured.
    pub name: String,
    /// Program version.
    pub version: String,
    /// Operating system and architecture, for example `linux-x86_64`.
    pub platform: String,
    /// Its devices.
    #[serde(deserialize_with = "list::<_, _, DEVICES_MAX>")]
    pub devices: Vec<DeviceFacts>,
    /// Whether it runs on mains power; `None` when unknown.
    pub mains_power: Option<bool>,
}
