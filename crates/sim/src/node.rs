//! A simulated computer: its key, its disk, and the process that runs on it, if one does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use exo_cluster::EngineId;
use exo_cluster::Speculation;
use exo_cluster::wire::{DeviceReport, HeldModel};
use exo_machine::joining::JOIN_WINDOW_S;
use exo_machine::{
    Boot, ExchangeId, FetchId, LinkId, LogLimits, MachineConfig, NodeMachine, SampledMeasures, Samples,
};
use exo_trust::TrustLog;
use exo_types::{
    DeviceState, DiskRoom, FailureKind, LogHead, Monitor, Network, NodeFacts, NodeId, Shard, SupportClass,
    Time,
};

use crate::clock::{Clock, EPOCH_UNIX_S};
use crate::compute::Loaded;
use crate::disk::Disk;
use crate::draw::{DrawFor, Draws, hash, mix};
use crate::engine::StepFault;
use crate::shape::{MODEL, MODEL_NAME, device, model_shape};
use crate::windows::WindowTime;
use crate::world::Event;

/// What something else leaves of a device's memory: too little for a layer.
const MEMORY_LEFT_BYTES: u64 = 8 << 20;
/// Where every node listens.
pub const PORT: u16 = 4000;

/// A computer.
#[derive(Debug)]
pub struct Node {
    /// Its number.
    pub index: usize,
    /// Its key's public half.
    pub id: NodeId,
    /// Its key.
    pub key: SigningKey,
    /// What it is called.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Nodes it is told of at the start, `host:port`.
    pub peers: Vec<String>,
    /// How many processes it has had.
    pub life: u32,
    /// What it writes to.
    pub disk: Disk,
    /// For how long it ran with its join window open, where that is counted.
    pub window: Option<WindowTime>,
    /// All of the model is on its disk.
    pub has_model: bool,
    /// Parts of the model that it fetched.
    pub fetched: Vec<Shard>,
    /// Whether the machine has power: without it nobody refuses a connection.
    pub has_power: bool,
    /// The process, while one runs.
    pub process: Option<Process>,
    /// What is wrong with it.
    pub troubles: Troubles,
    /// Links numbered so far.
    pub links_given: u64,
    /// Delays of what the computer does itself.
    pub draws: Draws,
}

/// What faults have in store for a node.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    /// Each write takes so much longer, one entry for each fault.
    pub slow_disk: Vec<Duration>,
    /// So many steps fail.
    pub fail_steps: u32,
    /// So many steps give what is no number.
    pub no_numbers: u32,
    /// Faults in force that make it keep news of the log of trust to itself.
    pub withholds: u32,
    /// The next load fails: refused by the device or not.
    pub fail_load: Option<bool>,
    /// Faults in force that take the memory of its device, and the steps that each has fail still.
    pub memory_taken: Vec<(usize, u32)>,
    /// The next load finds no memory.
    pub starve_load: bool,
    /// So many seconds were added to the wall clock: restarts do not mend it.
    pub wall_ahead_s: i64,
}

impl Troubles {
    /// What goes wrong with the next step, and what that is called where faults are counted; `None` if
    /// nothing does.
    pub fn take_step_fault(&mut self) -> Option<(StepFault, &'static str)> {
        if self.fail_steps > 0 {
            self.fail_steps -= 1;
            return Some((StepFault::Fails(FailureKind::Device), "step fails"));
        }
        if self.no_numbers > 0 {
            self.no_numbers -= 1;
            return Some((StepFault::NoNumbers, "step gives no numbers"));
        }
        let (_, steps) = self.memory_taken.iter_mut().find(|(_, steps)| *steps > 0)?;
        *steps -= 1;
        Some((StepFault::Fails(FailureKind::OutOfMemory), "step out of memory"))
    }
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    /// The logic.
    pub machine: NodeMachine,
    /// Its clocks.
    pub clock: Clock,
    /// When it began, by the world's time.
    pub began: Time,
    /// When it has run for long enough with its join window open, by its own.
    pub window_ends: Time,
    /// Who may connect.
    pub members: BTreeSet<NodeId>,
    /// What discovery says of it.
    pub is_fresh: Option<bool>,
    /// Freezes in force: it stands still while there are any.
    pub frozen: u32,
    /// What came meanwhile.
    pub pile: VecDeque<Event>,
    /// The number of the timer that counts.
    pub armed: u64,
    /// When that one rings.
    pub rings_at: Time,
    /// Loaded shards and those on their way.
    pub engines: BTreeMap<EngineId, Loaded>,
    /// When the device is done with what it was given.
    pub device_free_at: Time,
    /// Why its device is in quarantine.
    pub quarantine: Option<String>,
    /// Fetches under way.
    pub fetches: BTreeSet<FetchId>,
    /// Questions of strangers without an answer, and the numbers of their exchanges in the world.
    pub asked: BTreeMap<ExchangeId, u64>,
}

impl Node {
    /// A computer with this on its disk, without a process.
    pub fn new(seed: u64, index: usize, lan: u8, trust: TrustLog) -> Self {
        let key = crate::founding::key(seed, index);
        Self {
            index,
            id: crate::founding::node_id(&key),
            key,
            name: crate::founding::name(index),
            address: SocketAddr::from(([10, 0, lan, index as u8 + 1], PORT)),
            peers: Vec::new(),
            life: 0,
            disk: Disk::new(trust, crate::founding::entries()),
            window: None,
            has_model: false,
            fetched: Vec::new(),
            has_power: true,
            process: None,
            troubles: Troubles::default(),
            links_given: 0,
            draws: Draws::new(seed, DrawFor::Process, index as u64),
        }
    }

    /// Whether a process runs that is not frozen.
    pub fn is_awake(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.frozen == 0)
    }

    /// Sets the wall clock, by so many seconds.
    pub fn set_wall(&mut self, by_s: i64) {
        self.troubles.wall_ahead_s += by_s;
        if let Some(process) = &mut self.process {
            process.clock.set_wall(by_s);
        }
    }

    /// The next number for a link.
    pub fn give_link(&mut self) -> LinkId {
        self.links_given += 1;
        LinkId(self.links_given)
    }

    /// Starts a process: what a node does when it starts, from what is on its disk.
    pub fn start(
        &mut self,
        seed: u64,
        speculation: Speculation,
        now: Time,
        #[cfg(feature = "planted")] planted: Option<exo_machine::planted::Bug>,
    ) -> Vec<exo_machine::Effect> {
        self.life += 1;
        self.has_power = true;
        let mut clock = Clock::new(seed, self.index, self.life, now);
        clock.set_wall(self.troubles.wall_ahead_s);
        let config = MachineConfig {
            #[cfg(feature = "planted")]
            planted,
            ..self.config(seed, speculation, now)
        };
        let here = clock.now(now);
        let window_ran = Duration::from_secs(self.window.as_mut().map_or(0, |time| time.begin(here.unix_s)));
        let boot = Boot { window_ran, ..self.boot() };
        let (machine, effects) = NodeMachine::new(config, boot, here);
        self.process = Some(Process {
            machine,
            clock,
            began: now,
            window_ends: here.time + Duration::from_secs(JOIN_WINDOW_S).saturating_sub(window_ran),
            members: BTreeSet::new(),
            is_fresh: None,
            frozen: 0,
            pile: VecDeque::new(),
            armed: 0,
            rings_at: Time(u64::MAX),
            engines: BTreeMap::new(),
            device_free_at: now,
            quarantine: None,
            fetches: BTreeSet::new(),
            asked: BTreeMap::new(),
        });
        effects
    }

    /// The process ends: for how long it ran with its join window open is on the disk.
    pub fn count_window(&mut self, now: Time) {
        if let (Some(time), Some(process)) = (&mut self.window, &self.process) {
            time.end(now.since(process.began).as_secs(), process.clock.now(now).unix_s);
        }
    }

    /// Which run of the node's process this life is that began then.
    pub fn incarnation(&self, began: Time) -> u64 {
        EPOCH_UNIX_S * 1000 + began.0 / 1000 + u64::from(self.life)
    }

    fn config(&self, seed: u64, speculation: Speculation, now: Time) -> MachineConfig {
        let mut chance = [0; 32];
        for (part, bytes) in chance.chunks_mut(8).enumerate() {
            let counter = 1 << 40 | (self.index as u64) << 32 | u64::from(self.life) << 8 | part as u64;
            bytes.copy_from_slice(&mix(seed, DrawFor::Identity, counter).0.to_le_bytes());
        }
        MachineConfig {
            me: self.id,
            name: self.name.clone(),
            group: "exo".to_owned(),
            listen: self.address,
            peers: self.peers.clone(),
            trust_closed: false,
            has_token: false,
            // Long logs take longer than a run: in every other one they are folded, and followers lag behind
            // them, all the time.
            log: match seed % 2 {
                0 => LogLimits { snapshot_every: 4, kept_max: 4 },
                _ => LogLimits::default(),
            },
            speculation,
            unload_idle_after: None,
            incarnation: self.incarnation(now),
            seed: chance,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    fn boot(&self) -> Boot {
        let content = self.disk.content();
        let state = content.state().expect("what a disk holds applies: it was checked when it was written");
        assert_eq!(&state, self.disk.state(), "the log on the disk does not fold to what was written");
        Boot {
            epoch: content.epoch,
            base: content.base_head(),
            ancestors: content.ancestors.clone(),
            entries: content.entries.clone(),
            state,
            trust: content.trust.clone(),
            addresses: content.addresses.clone(),
            ended: content.ended.clone(),
            samples: self.samples(),
            models: self.models(),
            disk_room: DiskRoom::default(),
            window_ran: Duration::ZERO,
            has_new_model: false,
            left: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The end of the log on the disk.
    pub fn durable_head(&self) -> LogHead {
        let content = self.disk.content();
        content.base_head().then_all(&content.entries)
    }

    /// What the machine is and has at this moment.
    pub fn samples(&self) -> Samples {
        let engines = self.process.iter().flat_map(|process| process.engines.values());
        let mut device = device(engines.map(|engine| engine.bytes).sum());
        if !self.troubles.memory_taken.is_empty() {
            device.memory_free_bytes = device.memory_free_bytes.min(MEMORY_LEFT_BYTES);
        }
        let quarantine = self.process.as_ref().and_then(|process| process.quarantine.clone());
        let state = match &quarantine {
            Some(why) => {
                (device.support, device.support_reason) = (SupportClass::Unsupported, why.clone());
                DeviceState::Quarantined
            }
            None => DeviceState::Usable,
        };
        let (id, total) = (device.id.clone(), device.memory_total_bytes);
        Samples {
            facts: NodeFacts {
                node: self.id,
                name: self.name.clone(),
                version: "0".to_owned(),
                platform: "sim".to_owned(),
                devices: vec![device],
                mains_power: Some(!hash(self.index as u64).is_multiple_of(3)),
            },
            memory_bytes: vec![(id.clone(), total)],
            devices: vec![DeviceReport {
                device: id,
                state,
                reason: quarantine.unwrap_or_default(),
                driver: None,
                monitor: Monitor::default(),
            }],
            card_events: Vec::new(),
            process_bytes: Some(1 << 26),
            networks: vec![Network { ip: self.address.ip(), prefix_len: 24 }],
            measured: SampledMeasures::default(),
        }
    }

    /// The models on its disk.
    pub fn models(&self) -> Vec<HeldModel> {
        if !self.has_model && self.fetched.is_empty() {
            return Vec::new();
        }
        let shape = model_shape();
        let fetched = self.fetched.iter().map(|shard| shape.shard_weight_bytes(shard)).sum::<u64>();
        let bytes = shape.weight_bytes();
        vec![HeldModel {
            model: MODEL,
            name: MODEL_NAME.to_owned(),
            bytes,
            held_bytes: if self.has_model { bytes } else { fetched.min(bytes) },
            complete: self.has_model,
            is_of_hub: false,
            expected_bytes: 0,
            may_go: false,
        }]
    }
}
