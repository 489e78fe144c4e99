//! What the rest of a plan costs at least.
//!
//! The rest of the layers is poured over the devices that are not used yet like water, the cheapest first,
//! none beyond what its memory holds. Layers may be torn, a device may hold any of them rather than
//! neighbours, and the price of entering a device (its step and the cheapest hop into it) is spread over the
//! most it can hold. All three only make it cheaper, so the bound is admissible: it never exceeds the cost of
//! a real plan.

use crate::problem::{DeviceTable, Problem};

/// Fractions are counted in units of 2^-16, rounded down.
const FRACTION_BITS: u32 = 16;

/// Offer of one device for the layers from some layer on.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// Ticks for a unit of layers, with its part of the entry.
    price: i128,
    /// Units that it can hold.
    units: i64,
    device: usize,
}

pub(crate) struct Bound {
    /// For each first layer: the offers, cheapest first.
    offers: Vec<Vec<Offer>>,
    /// Units from each layer to the end.
    units: Vec<i64>,
    head: i64,
    /// For each first device of a pipeline: the cheapest way back to it.
    back: Vec<i64>,
}

impl Bound {
    /// `starts[d][end]`: the least start of a stage of device `d`, by memory and by the limit on the slowest.
    pub(crate) fn of(problem: &Problem, starts: &[Vec<u32>]) -> Self {
        let devices = 0..problem.tables.len();
        let least = |d: usize, of: &dyn Fn(usize) -> i64| {
            devices.clone().filter(|&x| x != d).map(of).min().unwrap_or(0)
        };
        let entries: Vec<i64> = devices
            .clone()
            .map(|d| problem.tables[d].stage_sum + least(d, &|x| problem.arc(x, d).sum))
            .collect();
        let back = devices.clone().map(|d| least(d, &|x| problem.arc(x, d).back)).collect();
        Self { back, ..Self::with_entries(&problem.tables, starts, &entries) }
    }

    /// A bound for whole plans over any number of devices, each entered at this price.
    pub(crate) fn of_tables(tables: &[DeviceTable], starts: &[Vec<u32>], hop: i64) -> Self {
        let entries: Vec<i64> = tables.iter().map(|t| t.stage_sum + hop).collect();
        Self::with_entries(tables, starts, &entries)
    }

    fn with_entries(tables: &[DeviceTable], starts: &[Vec<u32>], entries: &[i64]) -> Self {
        let layers = tables.first().map_or(0, |t| t.sum.len() - 1);
        let layer_cost = |t: &DeviceTable, l: usize| t.sum[l + 1] - t.sum[l];
        // A layer's size is its cost where it is cheapest.
        let sizes: Vec<i64> =
            (0..layers).map(|l| tables.iter().map(|t| layer_cost(t, l)).min().unwrap_or(1).max(1)).collect();
        let mut before = vec![0i64];
        for size in &sizes {
            before.push(before[before.len() - 1] + size);
        }
        let units: Vec<i64> = before.iter().map(|b| before[layers] - b).collect();
        let mut offers = vec![Vec::with_capacity(tables.len()); layers];
        for (device, table) in tables.iter().enumerate() {
            let ratio = |l: usize| (i128::from(layer_cost(table, l)) << FRACTION_BITS) / i128::from(sizes[l]);
            let (mut price, mut most) = (i128::MAX, 0);
            let mut end = layers;
            for first in (0..layers).rev() {
                price = price.min(ratio(first));
                while end > first && starts[device][end] as usize > first {
                    end -= 1;
                }
                most = most.max(before[end] - before[first]);
                let held = most.min(units[first]);
                if held > 0 {
                    let entry = (i128::from(entries[device]) << FRACTION_BITS) / i128::from(held);
                    offers[first].push(Offer { price: price + entry, units: held, device });
                }
            }
        }
        offers.iter_mut().for_each(|offers| offers.sort_by_key(|o| (o.price, o.device)));
        let head = tables.iter().map(|t| t.head_sum).min().unwrap_or(0);
        Self { offers, units, head, back: vec![0; tables.len()] }
    }

    /// Least ticks of the layers from `first` on, on devices outside of `used`; with the way back to `ring`,
    /// the first device. `None` if they cannot be held. Adds what it looked at to `work`.
    pub(crate) fn rest(&self, used: u128, first: usize, ring: Option<usize>, work: &mut u64) -> Option<i64> {
        let (mut left, mut ticks) = (self.units[first], self.head + ring.map_or(0, |d| self.back[d]));
        for offer in &self.offers[first] {
            *work += 1;
            if offer.device < 128 && used & 1 << offer.device != 0 {
                continue;
            }
            let taken = left.min(offer.units);
            ticks += ((offer.price * i128::from(taken)) >> FRACTION_BITS) as i64;
            left -= taken;
            if left == 0 {
                return Some(ticks);
            }
        }
        None
    }
}
