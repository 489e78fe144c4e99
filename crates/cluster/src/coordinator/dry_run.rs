//! How a placement is planned: what the planner is asked, what makes room where it finds nothing, and what
//! its plan is good for. The coordinator goes these steps with every placement, and whoever plans without
//! placing with a [`dry_run`].

use exo_planner::{Figure, LinkFacts, Objective, Plan, PlanDevice, PlanError, PlanRequest, Workload};
use exo_types::{DeviceId, DiskRoom, InstanceId, NodeId, PlacedShard};

use super::reach::Reach;
use crate::reasons::apart_text;
use crate::wire::{FreeMemory, NoPlan, PlannerDevice, PlannerInputs, Unloadable, in_use_text};
use crate::{InstanceRequest, PlaceObjective};

/// The round trip between members that do not talk: worse than every other way.
const APART_RTT_S: f64 = 3600.0;

/// Who asks for a model waits for its weights, and a first evening has about so many answers.
const FETCH_ANSWERS: u32 = 8;

/// What is known of the cluster when a model is planned.
pub(super) struct ClusterFacts {
    pub(super) devices: Vec<PlanDevice>,
    pub(super) links: Vec<LinkFacts>,
    pub(super) parts: Vec<(NodeId, u64)>,
    /// What the disks of nodes have room for.
    pub(super) disks: Vec<(NodeId, DiskRoom)>,
}

impl ClusterFacts {
    pub(super) fn request(mut self, wanted: &InstanceRequest) -> PlanRequest {
        for exclusion in &wanted.excluded {
            let meant = self.devices.iter_mut().filter(|d| exclusion.holds(d.node, &d.device.id));
            meant.for_each(|device| device.excluded = Some("as asked".to_owned()));
        }
        let workload = match wanted.objective {
            PlaceObjective::Throughput { streams } => Workload { streams, ..Workload::default() },
            PlaceObjective::Fit | PlaceObjective::Spread { .. } => Workload::default(),
        };
        PlanRequest {
            weight_types: wanted.weight_types.as_deref().cloned(),
            model: wanted.model,
            slots: wanted.slots,
            cache_tokens: wanted.cache_tokens,
            kv: wanted.kv,
            links: self.links,
            objective: objective_of(wanted),
            workload,
            pins: wanted.pins.clone(),
            holders: wanted.holders.clone(),
            parts: self.parts,
            disks: self.disks,
            fetch_answers: Some(FETCH_ANSWERS),
            ..PlanRequest::new(wanted.shape.clone(), wanted.context_tokens, self.devices)
        }
    }
}

pub(super) fn objective_of(wanted: &InstanceRequest) -> Objective {
    match wanted.objective {
        PlaceObjective::Fit => Objective::Latency,
        PlaceObjective::Spread { stages_min } => Objective::Spread { stages_min },
        PlaceObjective::Throughput { .. } => Objective::Throughput,
    }
}

/// The links, with those between members that do not talk as the worst of all.
pub(super) fn links_apart(measured: Vec<LinkFacts>, apart: &[(NodeId, NodeId)]) -> Vec<LinkFacts> {
    // No bound of the planner's: a plan over such a pair is refused when it comes.
    let worst = |&(from, to): &(NodeId, NodeId)| LinkFacts {
        from,
        to,
        rtt_s: Some(Figure::measured(APART_RTT_S)),
        bytes_per_s: Some(Figure::measured(1.0)),
    };
    let is_apart = |link: &LinkFacts| apart.contains(&(link.from.min(link.to), link.from.max(link.to)));
    let talking = measured.into_iter().filter(|link| !is_apart(link));
    talking.chain(apart.iter().map(worst)).collect()
}

/// Whether unloading something may help.
pub(super) fn needs_room(error: &PlanError) -> bool {
    matches!(error, PlanError::DoesNotFit { .. } | PlanError::TooFewStages { .. } | PlanError::Pin { .. })
}

/// Which of what is unloaded holds memory where the plan needs it. An error names what of it is in use.
pub(super) fn in_the_way(
    unloaded: Vec<Unloadable>,
    plan: &Plan,
    devices: &[PlanDevice],
) -> Result<Vec<Unloadable>, Vec<String>> {
    let shards = || plan.stages.iter().flat_map(|stage| &stage.shards);
    let memory = |node: NodeId, id: &DeviceId| {
        let device = devices.iter().find(|d| d.node == node && d.device.id == *id)?;
        device.device.memory_domain.map(|domain| domain.id)
    };
    // On the very device, or on one that shares its memory.
    let is_needed = |unloadable: &Unloadable| {
        unloadable.shards.iter().any(|(node, device)| {
            let held = memory(*node, device);
            let is_same = |s: &PlacedShard| s.node == *node && s.device == *device;
            shards().any(|s| is_same(s) || held.is_some() && memory(s.node, &s.device) == held)
        })
    };
    let needed = unloaded.into_iter().filter(is_needed);
    let (idle, in_use): (Vec<_>, Vec<_>) = needed.partition(|unloadable| unloadable.idle_s.is_some());
    let in_use: Vec<String> = in_use.into_iter().map(|unloadable| unloadable.model_name).collect();
    if in_use.is_empty() { Ok(idle) } else { Err(in_use) }
}

impl Unloadable {
    /// What is said of it where it makes room.
    pub(super) fn text(&self) -> String {
        let (name, idle_s) = (&self.model_name, self.idle_s.unwrap_or(0));
        format!("{name} is unloaded to make room: a request loaded it, unused for {idle_s} s")
    }
}

/// What a placement would be.
#[derive(Clone, PartialEq, Debug)]
pub struct DryRun {
    /// What the planner was asked at last.
    pub request: PlanRequest,
    /// Its plan.
    pub plan: Plan,
    /// What would be unloaded, to be displayed.
    pub unloads: Vec<(InstanceId, String)>,
}

/// Why a placement would be refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DryRunError {
    /// The planner finds nothing.
    #[error("{text}")]
    NoPlan {
        /// For the cluster as it is.
        error: Box<PlanError>,
        /// The same, and what unloading would not change.
        text: String,
    },
    /// There are more models to make room than there is time to plan without.
    #[error(
        "no plan was found within the time for it: {as_it_is}; {unloaded} of {unloadable} models that would make room were counted as unloaded, \
         unload one, or ask again"
    )]
    Late {
        /// For the cluster as it is.
        as_it_is: Box<PlanError>,
        /// How many were tried.
        unloaded: usize,
        /// How many there are.
        unloadable: usize,
    },
    /// There is a plan that cannot be carried out now.
    #[error("{0}")]
    NotNow(String),
}

impl PlannerInputs {
    /// What the planner is asked for an instance, with measured links and the room on disks
    /// ([`disk_rooms`](crate::disk_rooms)).
    pub fn request(
        &self,
        wanted: &InstanceRequest,
        measured: Vec<LinkFacts>,
        disks: Vec<(NodeId, DiskRoom)>,
    ) -> PlanRequest {
        let (devices, links, parts) = (self.devices(), self.links(measured), self.parts.clone());
        ClusterFacts { devices, links, parts, disks }.request(wanted)
    }

    /// The devices once all is unloaded that makes room for a placement now.
    pub fn devices_without_idle(&self) -> Vec<PlanDevice> {
        let mut devices = self.devices();
        if let Some(last) = self.unloadable.iter().rfind(|unloadable| unloadable.idle_s.is_some()) {
            make_room(&mut devices, &last.room);
        }
        devices
    }

    /// The measured links, with those between members that do not talk as the worst of all.
    pub fn links(&self, measured: Vec<LinkFacts>) -> Vec<LinkFacts> {
        links_apart(measured, &self.apart)
    }

    fn devices(&self) -> Vec<PlanDevice> {
        let device = |PlannerDevice { node, node_name, facts, thermal_percent, excluded }: &PlannerDevice| {
            let excluded = excluded.as_ref().map(ToString::to_string);
            let reported = PlanDevice::reported(*node, node_name.clone(), facts.clone(), excluded);
            PlanDevice { thermal_percent: *thermal_percent, ..reported }
        };
        self.devices.iter().map(device).collect()
    }
}

/// What is free on the devices, on each and in what they share.
pub(super) fn free_memory(devices: &[PlanDevice]) -> Vec<FreeMemory> {
    let free = |PlanDevice { device, .. }: &PlanDevice| FreeMemory {
        free_bytes: device.memory_free_bytes,
        shared_free_bytes: device.memory_domain.map(|domain| domain.free_bytes),
    };
    devices.iter().map(free).collect()
}

fn make_room(devices: &mut [PlanDevice], room: &[FreeMemory]) {
    for (PlanDevice { device, .. }, room) in devices.iter_mut().zip(room) {
        device.memory_free_bytes = room.free_bytes;
        if let (Some(domain), Some(free_bytes)) = (&mut device.memory_domain, room.shared_free_bytes) {
            domain.free_bytes = free_bytes;
        }
    }
}

/// Plans as the coordinator would for a placement, with `request` made from `inputs`, and changes nothing.
/// One search after the other, until `is_over`: the last one is finished.
pub fn dry_run(
    inputs: &PlannerInputs,
    mut request: PlanRequest,
    is_over: &dyn Fn() -> bool,
) -> Result<DryRun, DryRunError> {
    let mut as_it_is = None;
    let mut unloaded: Vec<Unloadable> = Vec::new();
    loop {
        let error = match exo_planner::plan(&request) {
            Ok(plan) => return carried_out(inputs, request, plan, unloaded),
            Err(error) => error,
        };
        let next = inputs.unloadable.get(unloaded.len()).filter(|_| needs_room(&error));
        let Some(next) = next else {
            let error = as_it_is.unwrap_or(error);
            let unloaded = unloaded.into_iter().map(|unloadable| unloadable.model_name).collect();
            let text = NoPlan { explanation: error.to_string(), unloaded }.text();
            return Err(DryRunError::NoPlan { text, error: Box::new(error) });
        };
        let as_it_is = as_it_is.get_or_insert(error);
        if is_over() {
            let (unloaded, unloadable) = (unloaded.len(), inputs.unloadable.len());
            return Err(DryRunError::Late { as_it_is: Box::new(as_it_is.clone()), unloaded, unloadable });
        }
        unloaded.push(next.clone());
        make_room(&mut request.devices, &next.room);
    }
}

fn carried_out(
    inputs: &PlannerInputs,
    request: PlanRequest,
    plan: Plan,
    unloaded: Vec<Unloadable>,
) -> Result<DryRun, DryRunError> {
    if let Some((a, b)) = Reach::of(&inputs.apart).torn(&plan.stages) {
        let name = |node: NodeId| {
            let device = inputs.devices.iter().find(|device| device.node == node);
            device.map_or_else(|| node.to_string(), |device| format!("{} ({node})", device.node_name))
        };
        return Err(DryRunError::NotNow(apart_text(&name(a), &name(b))));
    }
    let unloads = in_the_way(unloaded, &plan, &request.devices);
    let unloads = unloads.map_err(|in_use| DryRunError::NotNow(in_use_text(&in_use)))?;
    let unloads = unloads.iter().map(|unloadable| (unloadable.instance, unloadable.text())).collect();
    Ok(DryRun { request, plan, unloads })
}
