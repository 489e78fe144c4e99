//! Which devices take part, and in which order.

use std::cmp::Ordering;
use std::time::Duration;

use exo_types::{DeviceKind, NodeId};

use crate::cuts::{Reach, targets};
use crate::memory::{Held, Room, Sizes};
use crate::{Chosen, Objective, PlanError, PlanRequest, explain};

/// Up to so many usable devices every set is considered: 65,536 sets. Beyond, the ones with most memory are.
pub const EXACT_DEVICES_MAX: usize = 16;
/// Up to so many stages every order is considered: 720 orders.
const EXACT_ORDER_MAX: usize = 6;
/// Sets of the same size tried before giving up on the best ones.
const SETS_TRIED_MAX: usize = 256;
/// What an unmeasured link counts when orders are compared: worse than any on a LAN, better than a lost one.
const UNKNOWN_RTT: Duration = Duration::from_millis(50);

/// Without the processors of nodes that have a card to use, where the others hold the model: a processor with much memory
/// would hold it alone, and slower than two cards.
pub(crate) fn choose(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
) -> Result<Chosen, PlanError> {
    let is_processor = |i: usize| request.devices[i].device.kind == DeviceKind::Cpu;
    let has_card = |i: usize| {
        let node = request.devices[i].node;
        usable.iter().any(|&other| request.devices[other].node == node && !is_processor(other))
    };
    let (beside, others): (Vec<_>, Vec<_>) = usable.iter().partition(|&&i| is_processor(i) && has_card(i));
    if !beside.is_empty()
        && let Ok(chosen) = choose_of(request, sizes, &others)
    {
        return Ok(chosen);
    }
    choose_of(request, sizes, usable)
}

fn choose_of(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> Result<Chosen, PlanError> {
    let wanted = match request.objective {
        Objective::Fit => 1,
        Objective::Spread { stages_min } => stages_min.max(1) as usize,
    };
    let search = Search { request, sizes, devices: candidates(request, usable) };
    let possible = search.devices.len().min(sizes.layer_count() as usize);
    let too_few = |possible: usize, why: String| PlanError::TooFewStages {
        wanted: wanted as u32,
        possible: possible as u32,
        why,
    };
    if wanted > possible {
        return Err(too_few(
            possible,
            format!("{} usable devices, {} layers", usable.len(), sizes.layer_count()),
        ));
    }
    if let Some(chosen) = (wanted..=possible).find_map(|stages| search.with_stages(stages)) {
        return Ok(chosen);
    }
    match (1..wanted).rev().find(|&stages| search.with_stages(stages).is_some()) {
        Some(fewer) => Err(too_few(fewer, "the other devices cannot hold a layer".to_owned())),
        None => Err(explain::does_not_fit(request, sizes, usable)),
    }
}

/// Whether any set of these devices in any order can hold the model, each stage with at least one layer.
pub(crate) fn fits(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize], free: &[u64]) -> bool {
    let devices = candidates(request, usable);
    let rooms: Vec<Room> =
        devices.iter().map(|&d| Room { free_bytes: free[d], ..room(request, d) }).collect();
    let sets = Sets::of(sizes, &rooms);
    (1..=devices.len()).any(|stages| !sets.complete(stages).is_empty())
}

fn room(request: &PlanRequest, device: usize) -> Room {
    let facts = &request.devices[device].device;
    Room { free_bytes: facts.memory_free_bytes, held: Held::by(facts.kind) }
}

/// The devices worth considering, best first; ties in the order of the request.
fn candidates(request: &PlanRequest, usable: &[usize]) -> Vec<usize> {
    let free = |i: usize| request.devices[i].device.memory_free_bytes;
    let mut devices = usable.to_vec();
    if devices.len() > EXACT_DEVICES_MAX {
        devices.sort_by(|&a, &b| free(b).cmp(&free(a)).then(a.cmp(&b)));
        devices.truncate(EXACT_DEVICES_MAX);
    }
    let pinned = |i: usize| Some(request.devices[i].node) == request.pinned_first;
    devices.sort_by(|&a, &b| {
        pinned(b)
            .cmp(&pinned(a))
            .then_with(|| by_speed(request, a, b))
            .then(free(b).cmp(&free(a)))
            .then(a.cmp(&b))
    });
    devices
}

fn by_speed(request: &PlanRequest, a: usize, b: usize) -> Ordering {
    let speed = |i: usize| request.devices[i].device.read_bytes_per_s.unwrap_or(0.0);
    speed(b).total_cmp(&speed(a))
}

struct Search<'a> {
    request: &'a PlanRequest,
    sizes: &'a Sizes<'a>,
    /// Indices into the request, best first. Sets are bits over positions in this list.
    devices: Vec<usize>,
}

impl Search<'_> {
    /// The best placement on exactly so many devices.
    fn with_stages(&self, stages: usize) -> Option<Chosen> {
        let rooms = self.rooms(&self.devices);
        let sets = Sets::of(self.sizes, &rooms);
        let fit = sets.complete(stages);
        // Where more devices are wanted than needed, the sets that hold it when filled to the brim are not all:
        // there, a device filled to the brim leaves nothing to the next.
        let mut found: Vec<(u32, Option<usize>)> = match self.request.objective {
            Objective::Fit => fit.into_iter().map(|(set, last)| (set, Some(last))).collect(),
            Objective::Spread { .. } => {
                let all = (1..1u32 << rooms.len()).filter(|set| set.count_ones() as usize == stages);
                all.map(|set| (set, fit.iter().find(|f| f.0 == set).map(|f| f.1))).collect()
            }
        };
        found.sort_by(|a, b| self.better_set(a.0, b.0));
        found.into_iter().take(SETS_TRIED_MAX).find_map(|(set, last)| {
            let members: Vec<usize> = (0..self.devices.len()).filter(|i| set & (1 << i) != 0).collect();
            if members.len() <= EXACT_ORDER_MAX {
                return self.best_order(&members);
            }
            let order = last.map_or(members, |last| sets.order(set, last));
            self.cut(&order.iter().map(|&i| self.devices[i]).collect::<Vec<_>>())
        })
    }

    /// Prefers sets over more nodes, with the pinned node, faster, with more memory; then the first in order.
    fn better_set(&self, a: u32, b: u32) -> Ordering {
        let members =
            |set: u32| (0..self.devices.len()).filter(move |i| set & (1 << i) != 0).map(|i| self.devices[i]);
        let nodes = |set| {
            let mut nodes: Vec<NodeId> = members(set).map(|d| self.request.devices[d].node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes.len()
        };
        let pinned =
            |set| members(set).any(|d| Some(self.request.devices[d].node) == self.request.pinned_first);
        let speed =
            |set| members(set).filter_map(|d| self.request.devices[d].device.read_bytes_per_s).sum::<f64>();
        let free = |set| members(set).fold(0u64, |sum, d| sum.saturating_add(self.free(d)));
        nodes(b)
            .cmp(&nodes(a))
            .then_with(|| pinned(b).cmp(&pinned(a)))
            .then_with(|| speed(b).total_cmp(&speed(a)))
            .then_with(|| free(b).cmp(&free(a)))
            .then(a.cmp(&b))
    }

    /// Of all orders that hold the model, the one with the pinned node first and the shortest way around; the
    /// earliest in the order of preference among equals.
    fn best_order(&self, members: &[usize]) -> Option<Chosen> {
        let mut best: Option<((bool, Duration), Chosen)> = None;
        permutations(members, &mut |order| {
            let order: Vec<usize> = order.iter().map(|&i| self.devices[i]).collect();
            let away = Some(self.request.devices[order[0]].node) != self.request.pinned_first;
            let cost = (away, self.way_around(&order));
            if best.as_ref().is_some_and(|(least, _)| *least <= cost) {
                return;
            }
            if let Some(chosen) = self.cut(&order) {
                best = Some((cost, chosen));
            }
        });
        best.map(|(_, chosen)| chosen)
    }

    /// Half round trips from stage to stage and from the last back to the first.
    fn way_around(&self, order: &[usize]) -> Duration {
        let node = |i: usize| self.request.devices[order[i % order.len()]].node;
        (0..order.len())
            .filter(|&i| node(i) != node(i + 1))
            .map(|i| self.request.link(node(i), node(i + 1)).and_then(|l| l.rtt).unwrap_or(UNKNOWN_RTT) / 2)
            .sum()
    }

    fn cut(&self, order: &[usize]) -> Option<Chosen> {
        let shape = &self.request.shape;
        let read: Vec<u64> = shape.layers.iter().map(|l| l.weight_bytes).collect();
        let targets = targets(&read, shape.head_bytes, &self.shares(order));
        let ends = Reach { sizes: self.sizes }.cut(&self.rooms(order), &targets)?;
        Some(Chosen { order: order.to_vec(), ends })
    }

    /// Part of the model each device should get: in proportion to measured read speed, but no more than memory
    /// holds; by usable memory where not every device was measured.
    fn shares(&self, order: &[usize]) -> Vec<f64> {
        let speed = |&d: &usize| {
            self.request.devices[d].device.read_bytes_per_s.filter(|s| s.is_finite() && *s > 0.0)
        };
        let room = |&d: &usize| 1.0 + self.free(d).saturating_sub(self.sizes.workspace()) as f64;
        let rooms: Vec<f64> = order.iter().map(room).collect();
        let speeds: Option<Vec<f64>> = order.iter().map(speed).collect();
        speeds.map_or_else(
            || rooms.clone(),
            |speeds| capped(&speeds, &rooms, self.sizes.model_bytes(Held::AsStored) as f64),
        )
    }

    fn rooms(&self, devices: &[usize]) -> Vec<Room> {
        devices.iter().map(|&device| room(self.request, device)).collect()
    }

    fn free(&self, device: usize) -> u64 {
        self.request.devices[device].device.memory_free_bytes
    }
}

/// Divides `total` in proportion to `weights`, no part above its cap; what a cap takes away the others share.
fn capped(weights: &[f64], caps: &[f64], total: f64) -> Vec<f64> {
    let mut parts = caps.to_vec();
    let mut open: Vec<usize> = (0..weights.len()).collect();
    loop {
        let left = total - (0..parts.len()).filter(|i| !open.contains(i)).map(|i| parts[i]).sum::<f64>();
        let weight: f64 = open.iter().map(|&i| weights[i]).sum();
        for &i in &open {
            parts[i] = (left * weights[i] / weight).max(0.0);
        }
        let before = open.len();
        open.retain(|&i| parts[i] <= caps[i]);
        if open.len() == before || open.is_empty() {
            return parts.iter().zip(caps).map(|(part, cap)| part.min(*cap)).collect();
        }
        for i in (0..parts.len()).filter(|i| !open.contains(i)) {
            parts[i] = parts[i].min(caps[i]);
        }
    }
}

/// For every set of devices how many layers it can hold from the start, in its best order, last stage aside.
///
/// Holding more is never worse, so a set's best is its best over who comes last, and one number a set suffices.
struct Sets<'a> {
    reach: Reach<'a>,
    rooms: &'a [Room],
    /// Most layers from the start, and which member holds the last of them.
    most: Vec<(u32, usize)>,
}

impl<'a> Sets<'a> {
    fn of(sizes: &'a Sizes<'a>, rooms: &'a [Room]) -> Self {
        let reach = Reach { sizes };
        let mut most = vec![(0, usize::MAX); 1 << rooms.len()];
        for set in 1..most.len() {
            for (member, &room) in rooms.iter().enumerate().filter(|(i, _)| set & (1 << i) != 0) {
                let before = most[set & !(1 << member)].0;
                // Without the last layer: whoever is last of all takes that, with the head.
                let end = reach.forward(before, room, false);
                // A device that adds no layer is no stage.
                let holds = end > before && (before > 0 || set.count_ones() == 1);
                if holds && end > most[set].0 {
                    most[set] = (end, member);
                }
            }
        }
        Self { reach, rooms, most }
    }

    /// Sets of `stages` devices that hold the model, with a member that can be last.
    fn complete(&self, stages: usize) -> Vec<(u32, usize)> {
        let count = self.reach.sizes.layer_count();
        let sets = (1..self.most.len()).filter(|set| set.count_ones() as usize == stages);
        sets.filter_map(|set| {
            let last = (0..self.rooms.len()).filter(|i| set & (1 << i) != 0).find(|&last| {
                let rest = set & !(1 << last);
                let start = self.most[rest].0;
                (rest == 0 || start > 0) && self.reach.forward(start, self.rooms[last], true) == count
            })?;
            Some((set as u32, last))
        })
        .collect()
    }

    /// The order in which `set` holds the model when `last` comes last.
    fn order(&self, set: u32, last: usize) -> Vec<usize> {
        let (mut order, mut rest) = (vec![last], set as usize & !(1 << last));
        while rest != 0 {
            let member = self.most[rest].1;
            order.push(member);
            rest &= !(1 << member);
        }
        order.reverse();
        order
    }
}

/// Calls `visit` with every order of `items`, beginning with their own.
fn permutations(items: &[usize], visit: &mut impl FnMut(&[usize])) {
    fn extend(taken: &mut Vec<usize>, items: &[usize], visit: &mut impl FnMut(&[usize])) {
        if taken.len() == items.len() {
            return visit(taken);
        }
        for &item in items {
            if !taken.contains(&item) {
                taken.push(item);
                extend(taken, items, visit);
                taken.pop();
            }
        }
    }
    extend(&mut Vec::with_capacity(items.len()), items, visit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cap_takes_away_the_others_share_by_weight() {
        assert_eq!(capped(&[3.0, 2.0, 1.0], &[9.0, 9.0, 9.0], 12.0), [6.0, 4.0, 2.0]);
        assert_eq!(capped(&[3.0, 2.0, 1.0], &[3.0, 9.0, 9.0], 12.0), [3.0, 6.0, 3.0]);
        assert_eq!(capped(&[3.0, 2.0, 1.0], &[3.0, 4.0, 9.0], 12.0), [3.0, 4.0, 5.0]);
        assert_eq!(capped(&[1.0, 1.0], &[1.0, 1.0], 12.0), [1.0, 1.0], "no more than there is");
    }

    #[test]
    fn permutations_begin_with_the_given_order_and_are_all() {
        let mut seen = Vec::new();
        permutations(&[1, 2, 3], &mut |order| seen.push(order.to_vec()));
        assert_eq!((seen.len(), &seen[0]), (6, &vec![1, 2, 3]));
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 6);
    }
}
