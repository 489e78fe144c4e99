//! Memory that several devices share is filled once.
//!
//! The search fills each device by itself. A plan that takes more of a shared memory than is free there is
//! searched for again with less on the devices that share it: all for one of them, and for each as much as it
//! has of that plan. The best of these is taken, so it may not be the best of all; its lower bound is that of
//! the search in which nothing was shared. One memory after the other is cut, and where there are many the
//! rest of them at once.

use std::collections::BTreeMap;

use exo_types::{DeviceFacts, LayerRange, MemoryDomain};

use crate::memory::{Sizes, WeightForm};
use crate::search::{self, BestLayout};
use crate::{PlanDevice, PlanRequest};

/// Shared memories that are cut one after the other, rounds in which more are cut at once, and devices of one
/// that are tried.
const TRIED_MAX: usize = 8;
/// A search with less memory may do this part of what is left: all of them together as much as the first.
const WORK_SHARE: u64 = 4;

/// The best plan on the usable devices, as [`search::best`], that takes no memory twice.
pub(crate) fn best(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> Option<BestLayout> {
    let mut left = search::work_max(request, usable);
    let mut outcome = search::best(request, sizes, usable, left)?;
    let (lower, mut work) = (outcome.lower_bound_ns, outcome.work);
    let (mut asked, mut rounds) = (request.clone(), 0..2 * TRIED_MAX);
    loop {
        let mut overfull = Overfull::all(&asked, sizes, &outcome.layout);
        if overfull.is_empty() {
            return Some(BestLayout { lower_bound_ns: lower.min(outcome.objective_ns), work, ..outcome });
        }
        if rounds.next()? < TRIED_MAX {
            overfull.truncate(1);
        }
        let tried = Overfull::cuts(&overfull, &asked, usable).into_iter().filter_map(|cut| {
            let work_max = left / WORK_SHARE;
            let found = search::best(&cut, sizes, usable, work_max);
            left = left.saturating_sub(found.as_ref().map_or(work_max, |found| found.work));
            let found = found?;
            work += found.work;
            Some((cut, found))
        });
        (asked, outcome) = tried.min_by_key(|(_, found)| found.objective_ns)?;
    }
}

/// The bytes that are free on these devices together, each shared memory counted once.
pub fn memory_free_bytes<'a>(devices: impl IntoIterator<Item = &'a DeviceFacts>) -> u64 {
    let (mut alone, mut shared) = (0u64, BTreeMap::<u64, (u64, u64)>::new());
    for device in devices {
        match device.memory_domain {
            None => alone = alone.saturating_add(device.memory_free_bytes),
            Some(MemoryDomain { id, free_bytes }) => {
                let (sum, most) = shared.entry(id).or_default();
                (*sum, *most) = (sum.saturating_add(device.memory_free_bytes), free_bytes.max(*most));
            }
        }
    }
    shared.values().fold(alone, |all, (sum, most)| all.saturating_add(*sum.min(most)))
}

/// What a plan, given by the bytes on each device, takes of shared memory beyond what is free: the device
/// that is one too many, the bytes that all of it need together, and those that are free.
pub fn oversubscribed<'a>(
    stages: impl IntoIterator<Item = (&'a PlanDevice, u64)>,
) -> Option<(&'a PlanDevice, u64, u64)> {
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    stages.into_iter().find_map(|(device, bytes)| {
        let MemoryDomain { id, free_bytes } = device.device.memory_domain?;
        let all = taken.entry(id).or_default();
        *all = all.saturating_add(bytes);
        (*all > free_bytes).then_some((device, *all, free_bytes))
    })
}

/// A shared memory of which a plan takes more than is free.
struct Overfull {
    domain: MemoryDomain,
    /// Bytes of the plan on each device of it.
    taken: BTreeMap<usize, u64>,
}

/// Which of the devices that share a memory get it.
#[derive(Clone, Copy)]
enum Share {
    /// This one of them, in their order, or the last.
    Alone(usize),
    /// Each as much as it has of the plan.
    Parts,
}

impl Overfull {
    fn all(request: &PlanRequest, sizes: &Sizes<'_>, layout: &[(usize, LayerRange)]) -> Vec<Self> {
        let mut by_domain: BTreeMap<u64, BTreeMap<usize, u64>> = BTreeMap::new();
        for &(device, range) in layout {
            let facts = &request.devices[device].device;
            let bytes = sizes.bytes(WeightForm::by(facts.kind), range.start, range.end);
            if let Some(domain) = facts.memory_domain {
                by_domain.entry(domain.id).or_default().insert(device, bytes);
            }
        }
        let overfull = by_domain.into_values().filter_map(|taken| {
            let named = taken.iter().map(|(device, bytes)| (&request.devices[*device], *bytes));
            let domain = oversubscribed(named)?.0.device.memory_domain?;
            Some(Self { domain, taken })
        });
        overfull.collect()
    }

    /// The request with less memory on the devices of these, in each way that is tried.
    fn cuts(overfull: &[Self], request: &PlanRequest, usable: &[usize]) -> Vec<PlanRequest> {
        let cut = |share: Share| {
            let mut cut = request.clone();
            overfull.iter().for_each(|overfull| overfull.cut(&mut cut, usable, share));
            cut
        };
        let members = overfull.iter().map(|overfull| overfull.members(request, usable).len()).max();
        let alone = (0..members.unwrap_or(0).min(TRIED_MAX)).map(Share::Alone);
        alone.chain([Share::Parts]).map(cut).collect()
    }

    fn cut(&self, request: &mut PlanRequest, usable: &[usize], share: Share) {
        let Self { domain, taken } = self;
        let all: u64 = taken.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let members = self.members(request, usable);
        for (at, &device) in members.iter().enumerate() {
            let bytes = match share {
                Share::Alone(one) if one.min(members.len() - 1) == at => domain.free_bytes,
                Share::Alone(_) => 0,
                Share::Parts => {
                    let bytes = taken.get(&device).copied().unwrap_or(0);
                    (u128::from(bytes) * u128::from(domain.free_bytes) / u128::from(all.max(1))) as u64
                }
            };
            let free_bytes = &mut request.devices[device].device.memory_free_bytes;
            *free_bytes = bytes.min(*free_bytes);
        }
    }

    fn members(&self, request: &PlanRequest, usable: &[usize]) -> Vec<usize> {
        let is_of_it = |device: &usize| {
            request.devices[*device].device.memory_domain.is_some_and(|other| other.id == self.domain.id)
        };
        usable.iter().copied().filter(is_of_it).collect()
    }
}
