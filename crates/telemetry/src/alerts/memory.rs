//! What rules have to remember from one look to the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use exo_api::plan::StagePredictionView;
use exo_api::{InstanceState, NodeStatus, PullState};
use exo_types::DeviceState;

use super::AlertInputs;

/// Changes are counted over so long, in seconds.
pub(super) const CHANGES_S: u64 = 600;
/// Changes that are remembered of one thing.
const CHANGES_MAX: usize = 32;
/// After a start, members are on their way for so long, in seconds.
const AWAITED_S: u64 = 5;
/// Shares of stages are measured over so long, in seconds.
const SHARES_S: u64 = 30;
/// Of these, seconds of computing below which a share says nothing.
const BUSY_MIN_S: f64 = 5.0;
/// By so much the usual round trip of a link grows in a second when it is longer: it doubles in an hour.
const BASELINE_GROWTH: f64 = 1.0002;
/// No round trip is shorter, in milliseconds: that is the clock's.
const RTT_MIN_MS: f64 = 0.01;

/// Times at which something changed.
#[derive(Debug, Default)]
struct Changes(VecDeque<u64>);

impl Changes {
    fn push(&mut self, at_s: u64) {
        self.0.push_back(at_s);
        if self.0.len() > CHANGES_MAX {
            self.0.pop_front();
        }
    }

    fn forget(&mut self, now_s: u64) {
        while self.0.front().is_some_and(|at| now_s.saturating_sub(*at) > CHANGES_S) {
            self.0.pop_front();
        }
    }
}

/// A stage's share of its instance's computing.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Share {
    pub(super) stage: u32,
    pub(super) node: String,
    pub(super) device: String,
    pub(super) share: f64,
    /// The share that the model of cost expects.
    pub(super) expected: f64,
    /// Beside the others and what is expected of each, 1 for a stage that is as slow as they are: its part of
    /// all slowness, times the number of stages.
    pub(super) excess: f64,
    pub(super) stages: usize,
}

/// What is expected of each stage: a share of the time. A split into unlike parts is no fault of the larger
/// one's device.
type Expected = BTreeMap<u32, f64>;

/// Seconds that each stage of an instance had computed, with its node and device.
type Busy = BTreeMap<u32, (f64, String, String)>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Memory {
    statuses: BTreeMap<String, NodeStatus>,
    /// When the first look was.
    began_s: Option<u64>,
    /// Members that were there at some time.
    met: BTreeSet<String>,
    /// By node and device: the last state that was none of being checked.
    devices: BTreeMap<(String, String), DeviceState>,
    losses: BTreeMap<String, Changes>,
    coordinator: Option<String>,
    coordinators: Changes,
    /// By instance or download: how far it was, and since when.
    progress: BTreeMap<String, (f64, u64)>,
    /// By the ends of a link: its usual round trip in milliseconds.
    baselines: BTreeMap<(String, String), f64>,
    busy: BTreeMap<String, (u64, Busy)>,
    shares: BTreeMap<String, Share>,
    looked_s: Option<u64>,
}

impl Memory {
    pub(super) fn observe(&mut self, seen: &AlertInputs<'_>) {
        self.began_s.get_or_insert(seen.time_s);
        self.see_losses(seen);
        self.see_devices(seen);
        self.see_coordinator(seen);
        self.see_progress(seen);
        self.see_links(seen);
        self.see_stages(seen);
        self.looked_s = Some(seen.time_s);
    }

    /// How often a node was lost of late.
    pub(super) fn losses(&self, node: &str) -> usize {
        self.losses.get(node).map_or(0, |changes| changes.0.len())
    }

    /// How often who coordinates changed of late.
    pub(super) fn coordinator_changes(&self) -> usize {
        self.coordinators.0.len()
    }

    /// Whether a member has not been seen yet, and may still come by itself.
    pub(super) fn is_awaited(&self, node: &str, now_s: u64) -> bool {
        let began_s = self.began_s.unwrap_or(now_s);
        !self.met.contains(node) && now_s.saturating_sub(began_s) < AWAITED_S
    }

    /// Whether a device that is being checked was lost before, not in quarantine.
    pub(super) fn was_lost(&self, node: &str, device: &str) -> bool {
        let before = self.devices.get(&(node.to_owned(), device.to_owned()));
        before.is_some_and(|state| *state != DeviceState::Quarantined)
    }

    /// How long the loading of an instance, or a download, has stood still, in seconds.
    pub(super) fn stalled_s(&self, what: &str, now_s: u64) -> u64 {
        self.progress.get(what).map_or(0, |(_, since_s)| now_s.saturating_sub(*since_s))
    }

    /// The usual round trip of a link, in milliseconds.
    pub(super) fn baseline_ms(&self, from: &str, to: &str) -> Option<f64> {
        self.baselines.get(&(from.to_owned(), to.to_owned())).copied()
    }

    /// The stage of an instance that was slowest of late beside what is expected of it, if it computed at all
    /// and there are others.
    pub(super) fn slowest_stage(&self, instance: &str) -> Option<&Share> {
        self.shares.get(instance)
    }

    fn see_losses(&mut self, seen: &AlertInputs<'_>) {
        for node in &seen.view.nodes {
            if !node.status.is_gone() && !self.met.contains(&node.id) {
                self.met.insert(node.id.clone());
            }
            let before = self.statuses.insert(node.id.clone(), node.status);
            if node.status == NodeStatus::Lost && before.is_some_and(|before| before != NodeStatus::Lost) {
                self.losses.entry(node.id.clone()).or_default().push(seen.time_s);
            }
        }
        let is_member = |id: &String| seen.view.nodes.iter().any(|node| node.id == *id);
        self.statuses.retain(|id, _| is_member(id));
        self.met.retain(is_member);
        self.losses.retain(|id, changes| {
            changes.forget(seen.time_s);
            is_member(id) && !changes.0.is_empty()
        });
    }

    fn see_devices(&mut self, seen: &AlertInputs<'_>) {
        let mut before = std::mem::take(&mut self.devices);
        for (node, device) in
            seen.view.nodes.iter().flat_map(|node| node.devices.iter().map(move |d| (node, d)))
        {
            let key = (node.id.clone(), device.id.clone());
            let known = before.remove(&key);
            let state = if device.state == DeviceState::Verifying { known } else { Some(device.state) };
            self.devices.extend(state.map(|state| (key, state)));
        }
    }

    fn see_coordinator(&mut self, seen: &AlertInputs<'_>) {
        if let Some(epoch) = &seen.view.epoch {
            let before = self.coordinator.replace(epoch.coordinator.clone());
            if before.is_some_and(|before| before != epoch.coordinator) {
                self.coordinators.push(seen.time_s);
            }
        }
        self.coordinators.forget(seen.time_s);
    }

    fn see_progress(&mut self, seen: &AlertInputs<'_>) {
        let loading = |instance: &exo_api::InstanceView| match instance.state {
            InstanceState::Loading { progress } if progress < 1.0 => Some((instance.id.clone(), progress)),
            _ => None,
        };
        let mut now: BTreeMap<String, f64> = seen.view.instances.iter().filter_map(loading).collect();
        let under_way = seen
            .own
            .pulls
            .iter()
            .filter(|pull| matches!(pull.state, PullState::Resolving | PullState::Fetching))
            // What is there whole is being read through.
            .filter(|pull| pull.total_bytes.is_none_or(|total| pull.verified_bytes < total));
        now.extend(under_way.map(|pull| (pull.id.clone(), pull.verified_bytes as f64)));
        self.progress.retain(|id, _| now.contains_key(id));
        for (id, progress) in now {
            let known = self.progress.entry(id).or_insert((progress, seen.time_s));
            if known.0 != progress {
                *known = (progress, seen.time_s);
            }
        }
    }

    fn see_links(&mut self, seen: &AlertInputs<'_>) {
        let passed_s = self.looked_s.map_or(0, |looked| seen.time_s.saturating_sub(looked)).min(CHANGES_S);
        let growth = BASELINE_GROWTH.powi(passed_s as i32); // at most CHANGES_S
        let mut links = std::mem::take(&mut self.baselines);
        for node in &seen.told.nodes {
            for link in node.links.iter().filter(|link| link.rtt_ms.is_finite() && link.rtt_ms > 0.0) {
                let ends = (node.node.clone(), link.peer.clone());
                let usual = links.remove(&ends).unwrap_or(link.rtt_ms);
                self.baselines.insert(ends, (usual * growth).min(link.rtt_ms).max(RTT_MIN_MS));
            }
        }
        // Links that are down come back as they were.
        let is_member = |id: &String| seen.view.nodes.iter().any(|node| node.id == *id);
        self.baselines.extend(links.into_iter().filter(|((from, to), _)| is_member(from) && is_member(to)));
    }

    fn see_stages(&mut self, seen: &AlertInputs<'_>) {
        let mut now: BTreeMap<String, Busy> = BTreeMap::new();
        // A member that is lost is shown with what it said last.
        for node in seen.told.nodes.iter().filter(|node| node.status == NodeStatus::Alive) {
            for stage in &node.stages {
                let busy = now.entry(stage.instance.clone()).or_default();
                busy.insert(stage.stage, (stage.busy_s, node.node.clone(), stage.device.clone()));
            }
        }
        self.busy.retain(|instance, _| now.contains_key(instance));
        self.shares.retain(|instance, _| now.contains_key(instance));
        for (instance, busy) in now {
            let before = self.busy.get(&instance).filter(|(_, before)| are_on_the_same(before, &busy));
            let Some((since_s, before)) = before else {
                self.shares.remove(&instance);
                self.busy.insert(instance, (seen.time_s, busy));
                continue;
            };
            if seen.time_s.saturating_sub(*since_s) < SHARES_S {
                continue;
            }
            match slowest(before, &busy, &expected(seen, &instance)) {
                Some(share) => self.shares.insert(instance.clone(), share),
                None => self.shares.remove(&instance),
            };
            self.busy.insert(instance, (seen.time_s, busy));
        }
    }
}

/// Whether no stage has come, gone or moved.
fn are_on_the_same(before: &Busy, now: &Busy) -> bool {
    let place =
        |(stage, (_, node, device)): (&u32, &(f64, String, String))| (*stage, node.clone(), device.clone());
    before.iter().map(place).eq(now.iter().map(place))
}

/// What tokens, and what prompts, take of each stage, as far as that is predicted; an even share else.
fn expected(seen: &AlertInputs<'_>, instance: &str) -> Vec<Expected> {
    let found = seen.view.instances.iter().find(|one| one.id == instance);
    let predicted: Option<Vec<_>> =
        found.and_then(|one| one.stages.iter().map(|stage| stage.predicted).collect());
    let Some(predicted) = predicted.filter(|stages| !stages.is_empty()) else { return Vec::new() };
    let of = |ms: fn(&StagePredictionView) -> f64| -> Option<Expected> {
        let total: f64 = predicted.iter().map(ms).sum();
        let share = |(stage, times)| (stage, ms(times) / total);
        let shares: Expected = (0..).zip(&predicted).map(share).collect();
        shares.values().all(|share| share.is_finite() && *share > 0.0).then_some(shares)
    };
    [of(|times| times.token_ms), of(|times| times.prompt_ms)].into_iter().flatten().collect()
}

/// The stage that was slowest between the two, beside what is expected of it, if all computed.
fn slowest(before: &Busy, now: &Busy, expected: &[Expected]) -> Option<Share> {
    let computed = |stage: &u32| Some(now.get(stage)?.0 - before.get(stage)?.0).filter(|s| *s >= 0.0);
    let spent: Option<BTreeMap<u32, f64>> =
        now.keys().map(|stage| Some((*stage, computed(stage)?))).collect();
    let spent = spent.filter(|spent| spent.len() > 1)?;
    let total: f64 = spent.values().sum();
    let (stages, even) = (spent.len(), 1.0 / spent.len() as f64);
    let known: Vec<&Expected> = expected.iter().filter(|of| of.keys().eq(spent.keys())).collect();
    let all_even: Expected = spent.keys().map(|stage| (*stage, even)).collect();
    let known = if known.is_empty() { vec![&all_even] } else { known };
    // What runs is tokens and prompts in some mixture: a stage is slow if it is by both.
    let judged = |stage: &u32, of: &Expected| {
        let slowness = |stage: &u32| spent[stage] / of[stage];
        let all: f64 = spent.keys().map(slowness).sum();
        (slowness(stage) / all.max(f64::MIN_POSITIVE) * stages as f64, of[stage])
    };
    let least = |stage: &u32| known.iter().map(|of| judged(stage, of)).min_by(|a, b| a.0.total_cmp(&b.0));
    let judged = spent.keys().filter_map(|stage| Some((*stage, least(stage)?)));
    let (stage, (excess, expected)) = judged.max_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
    let (_, node, device) = now.get(&stage)?;
    let (node, device, share) = (node.clone(), device.clone(), spent[&stage] / total);
    (total >= BUSY_MIN_S).then_some(Share { stage, node, device, share, expected, excess, stages })
}
