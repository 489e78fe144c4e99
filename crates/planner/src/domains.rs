//! Memory that several devices share is filled once.
//!
//! The search fills each device by itself. A plan that takes more of a shared memory than is free there is
//! searched for again with less on the devices that share it: all for one of them, and for each as much as it
//! has of that plan. The best of these is taken, so it may not be the best of all; its lower bound is that of
//! the search in which nothing was shared.

use std::collections::BTreeMap;

use exo_types::{LayerRange, MemoryDomain};

use crate::memory::{Sizes, WeightForm};
use crate::search::{self, BestLayout};
use crate::{PlanDevice, PlanRequest};

/// Shared memories that one plan is cut to, and devices of one that are tried.
const TRIED_MAX: usize = 8;

/// The best plan on the usable devices, as [`search::best`], that takes no memory twice.
pub(crate) fn best(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> Option<BestLayout> {
    let mut outcome = search::best(request, sizes, usable)?;
    let (lower, mut work) = (outcome.lower_bound_ns, outcome.work);
    let mut asked = request.clone();
    for _ in 0..TRIED_MAX {
        let Some(overfull) = Overfull::of(&asked, sizes, &outcome.layout) else {
            return Some(BestLayout { lower_bound_ns: lower.min(outcome.objective_ns), work, ..outcome });
        };
        let tried = overfull.cuts(&asked, usable).into_iter().filter_map(|cut| {
            let found = search::best(&cut, sizes, usable)?;
            work += found.work;
            Some((cut, found))
        });
        (asked, outcome) = tried.min_by_key(|(_, found)| found.objective_ns)?;
    }
    None
}

/// The bytes that are free on these devices together, each shared memory counted once.
pub fn memory_free_bytes<'a>(devices: impl IntoIterator<Item = &'a PlanDevice>) -> u64 {
    let (mut alone, mut shared) = (0u64, BTreeMap::<u64, (u64, u64)>::new());
    for PlanDevice { device, .. } in devices {
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

struct Overfull {
    domain: MemoryDomain,
    /// Bytes of the plan on each device of it.
    taken: BTreeMap<usize, u64>,
}

impl Overfull {
    fn of(request: &PlanRequest, sizes: &Sizes<'_>, layout: &[(usize, LayerRange)]) -> Option<Self> {
        let bytes = |&(device, range): &(usize, LayerRange)| {
            let held = WeightForm::by(request.devices[device].device.kind);
            (device, sizes.bytes(held, range.start, range.end))
        };
        let stages: Vec<(usize, u64)> = layout.iter().map(bytes).collect();
        let named = stages.iter().map(|(device, bytes)| (&request.devices[*device], *bytes));
        let domain = oversubscribed(named)?.0.device.memory_domain?;
        let is_of_it = |(device, _): &(usize, u64)| {
            request.devices[*device].device.memory_domain.is_some_and(|other| other.id == domain.id)
        };
        Some(Self { domain, taken: stages.into_iter().filter(is_of_it).collect() })
    }

    /// The request with less memory on the devices of the domain, in each way that is tried.
    fn cuts(&self, request: &PlanRequest, usable: &[usize]) -> Vec<PlanRequest> {
        let Self { domain, taken } = self;
        let all: u64 = taken.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let is_of_it = |device: usize| {
            request.devices[device].device.memory_domain.is_some_and(|other| other.id == domain.id)
        };
        let cut = |share: &dyn Fn(usize) -> u64| {
            let mut cut = PlanRequest { work_max: request.work_max / 4, ..request.clone() };
            for &device in usable.iter().filter(|device| is_of_it(**device)) {
                let free_bytes = &mut cut.devices[device].device.memory_free_bytes;
                *free_bytes = share(device).min(*free_bytes);
            }
            cut
        };
        let members = usable.iter().copied().filter(|device| is_of_it(*device));
        let alone = members
            .take(TRIED_MAX)
            .map(|one| cut(&|device| if device == one { domain.free_bytes } else { 0 }));
        let part = |device: usize| {
            let bytes = taken.get(&device).copied().unwrap_or(0);
            (u128::from(bytes) * u128::from(domain.free_bytes) / u128::from(all.max(1))) as u64
        };
        alone.chain([cut(&part)]).collect()
    }
}
