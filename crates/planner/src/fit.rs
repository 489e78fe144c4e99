//! Whether memory and kernels alone allow a plan, exactly, for up to [`EXACT_DEVICES_MAX`] devices; and one
//! that they allow.

use exo_types::LayerRange;

use crate::PlanRequest;
use crate::kernels::Runnable;
use crate::memory::{Room, Sizes, WeightForm};

/// Up to so many usable devices every set is considered: 65,536 sets. Beyond, the ones with most memory are.
const EXACT_DEVICES_MAX: usize = 16;

/// Whether any set of these devices in any order can hold the model, each stage with at least one layer.
pub(crate) fn fits(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize], free: &[u64]) -> bool {
    let devices = largest(request, usable);
    let rooms: Vec<Room> =
        devices.iter().map(|&d| Room { free_bytes: free[d], ..room(request, d) }).collect();
    let runs = runnable(request, &devices);
    let sets = Sets::of(sizes, &rooms, &runs);
    (1..=devices.len()).any(|stages| !sets.complete(stages).is_empty())
}

/// A plan of at least so many stages, each device filled as far as it goes: for where a search by time found
/// none.
pub(crate) fn any_layout(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    stages_min: usize,
) -> Option<Vec<(usize, LayerRange)>> {
    let devices = largest(request, usable);
    let rooms: Vec<Room> = devices.iter().map(|&d| room(request, d)).collect();
    let runs = runnable(request, &devices);
    let sets = Sets::of(sizes, &rooms, &runs);
    let (set, last) =
        (stages_min..=devices.len()).find_map(|stages| sets.complete(stages).first().copied())?;
    let order = sets.order(set, last);
    let (mut layout, mut start) = (Vec::new(), 0);
    for (at, &member) in order.iter().enumerate() {
        let end = sets.forward(member, start, at + 1 == order.len());
        layout.push((devices[member], LayerRange::new(start, end)));
        start = end;
    }
    Some(layout)
}

fn room(request: &PlanRequest, device: usize) -> Room {
    let facts = &request.devices[device].device;
    Room { free_bytes: facts.memory_free_bytes, held: WeightForm::by(facts.kind) }
}

fn runnable(request: &PlanRequest, devices: &[usize]) -> Vec<Runnable> {
    devices.iter().map(|&device| Runnable::of(request, &request.devices[device])).collect()
}

/// The devices with most memory; ties in the order of the request.
fn largest(request: &PlanRequest, usable: &[usize]) -> Vec<usize> {
    let free = |i: usize| request.devices[i].device.memory_free_bytes;
    let mut devices = usable.to_vec();
    devices.sort_by(|&a, &b| free(b).cmp(&free(a)).then(a.cmp(&b)));
    devices.truncate(EXACT_DEVICES_MAX);
    devices
}

/// For every set of devices how many layers it can hold from the start, in its best order, last stage aside.
///
/// Holding more is never worse, also where who is next does not run the layer that follows: another one has
/// to. So a set's best is its best over who comes last, and one number a set suffices.
struct Sets<'a> {
    sizes: &'a Sizes<'a>,
    rooms: &'a [Room],
    runs: &'a [Runnable],
    /// Most layers from the start, and which member holds the last of them.
    most: Vec<(u32, usize)>,
}

impl<'a> Sets<'a> {
    fn of(sizes: &'a Sizes<'a>, rooms: &'a [Room], runs: &'a [Runnable]) -> Self {
        let most = vec![(0, usize::MAX); 1 << rooms.len()];
        let mut sets = Self { sizes, rooms, runs, most };
        for set in 1..sets.most.len() {
            for member in (0..rooms.len()).filter(|i| set & (1 << i) != 0) {
                let before = sets.most[set & !(1 << member)].0;
                // Without the last layer: whoever is last of all takes that, with the head.
                let end = sets.forward(member, before, false);
                // A device that adds no layer is no stage.
                let holds = end > before && (before > 0 || set.count_ones() == 1);
                if holds && end > sets.most[set].0 {
                    sets.most[set] = (end, member);
                }
            }
        }
        sets
    }

    /// How far a member holds the layers from `start` on, and runs them; see [`Sizes::reach`].
    fn forward(&self, member: usize, start: u32, last: bool) -> u32 {
        let count = self.sizes.layer_count();
        let stop = self.runs[member].stop(start, count);
        self.sizes.reach(start, self.rooms[member], last && stop == count).min(stop)
    }

    /// Sets of `stages` devices that hold the model, with a member that can be last.
    fn complete(&self, stages: usize) -> Vec<(u32, usize)> {
        let count = self.sizes.layer_count();
        let sets = (1..self.most.len()).filter(|set| set.count_ones() as usize == stages);
        sets.filter_map(|set| {
            let last = (0..self.rooms.len()).filter(|i| set & (1 << i) != 0).find(|&last| {
                let rest = set & !(1 << last);
                let start = self.most[rest].0;
                (rest == 0 || start > 0) && self.forward(last, start, true) == count
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
