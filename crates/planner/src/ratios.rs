//! What devices that are alike tell of types of weights that one of them was not measured with.

use std::collections::BTreeMap;

use exo_types::{DType, LayerRange, TypeBytes};

use crate::inputs::{CompleteRates, Figure, Source};
use crate::request::{PlanDevice, PlanRequest};

/// Of a device of the request, with what devices of its backend tell of types that it was not measured with
/// itself.
pub fn rates_of(request: &PlanRequest, device: usize) -> CompleteRates {
    TypeRatios::of(&request.devices).complete(&request.devices[device])
}

/// How much faster or slower devices of a backend are with a type of weights than with Q8_0, of those that
/// were measured with both. Without it the one of two equal devices that was measured would look slower than
/// the other wherever a type is slower than Q8_0.
pub(crate) struct TypeRatios<'a>(BTreeMap<(&'a str, DType), RatioSum>);

#[derive(Default)]
struct RatioSum {
    read: f64,
    flops: f64,
    count: f64,
}

impl<'a> TypeRatios<'a> {
    pub(crate) fn of(devices: &'a [PlanDevice]) -> Self {
        let mut sums: BTreeMap<(&str, DType), RatioSum> = BTreeMap::new();
        for PlanDevice { device, rates, .. } in devices {
            let ratio = |of: &BTreeMap<DType, Figure>, dtype: DType| {
                let [one, q8_0] = [dtype, DType::Q8_0].map(|of_type| of.get(&of_type)?.plausible());
                Some(one?.value / q8_0?.value)
            };
            for &dtype in rates.read_by_type.keys().filter(|dtype| **dtype != DType::Q8_0) {
                if let Some((read, flops)) =
                    ratio(&rates.read_by_type, dtype).zip(ratio(&rates.flops_by_type, dtype))
                {
                    let sum = sums.entry((&device.backend, dtype)).or_default();
                    *sum =
                        RatioSum { read: sum.read + read, flops: sum.flops + flops, count: sum.count + 1.0 };
                }
            }
        }
        Self(sums)
    }

    /// At which rate a device reads what a stage has, over all its types, with the least certain source of
    /// those that count.
    pub(crate) fn read_rate(&self, request: &PlanRequest, device: usize, range: LayerRange) -> Figure {
        of_bytes(&self.complete(&request.devices[device]), &bytes_by_type(request, range))
    }

    /// The same of the whole model, for every device.
    pub(crate) fn read_rates(&self, request: &PlanRequest) -> Vec<Figure> {
        let all = bytes_by_type(request, LayerRange::new(0, request.shape.layer_count()));
        request.devices.iter().map(|device| of_bytes(&self.complete(device), &all)).collect()
    }

    pub(crate) fn complete(&self, of: &PlanDevice) -> CompleteRates {
        let mut rates = of.rates.complete(of.device.kind);
        for dtype in DType::ALL {
            let Some(RatioSum { read, flops, count }) = self.0.get(&(&*of.device.backend, dtype)) else {
                continue;
            };
            for (own, sum) in [(&mut rates.read_by_type, read), (&mut rates.flops_by_type, flops)] {
                if let Some(q8_0) = own.get(&DType::Q8_0).copied() {
                    own.entry(dtype).or_insert(Figure::from(q8_0.value * sum / count, Source::Derived));
                }
            }
        }
        rates
    }
}

/// Of the layers, and of the head with the last; empty where types are not known.
fn bytes_by_type(request: &PlanRequest, range: LayerRange) -> TypeBytes {
    let Some(types) = &request.weight_types else { return TypeBytes::default() };
    let layers = types.layers.get(range.start as usize..range.end as usize).unwrap_or_default();
    let head = (range.end == request.shape.layer_count()).then_some(&types.head);
    layers.iter().chain(head).flat_map(|types| types.0.iter().copied()).collect()
}

fn of_bytes(rates: &CompleteRates, all: &TypeBytes) -> Figure {
    let seconds: f64 = all.0.iter().map(|(dtype, bytes)| *bytes as f64 / rates.read_of(*dtype).value).sum();
    let counting = all.0.iter().filter(|(_, bytes)| *bytes >= all.total() / 100);
    let sources = counting.map(|(dtype, _)| rates.read_of(*dtype).source);
    match sources.max_by_key(|source| source.error_percent()).filter(|_| seconds > 0.0) {
        Some(source) => Figure { value: all.total() as f64 / seconds, source },
        None => rates.read_bytes_per_s,
    }
}
