//! What devices that are alike tell of types of weights that one of them was not measured with.

use std::collections::BTreeMap;

use exo_types::{DType, DeviceKind, LayerRange, ModelShape, TypeBytes};

use crate::inputs::{CompleteRates, Figure, Source};
use crate::request::{PlanDevice, PlanRequest};

/// Of a device of the request, with what devices of its backend tell of types that it was not measured with
/// itself.
pub fn rates_of(request: &PlanRequest, device: usize) -> CompleteRates {
    TypeRatios::of(request).complete(&request.devices[device])
}

/// Weights of a whole model that last caches of processors keep from one step to the next: those of laptops,
/// desktops and servers have 8 MiB or more.
const CACHED_BYTES_MAX: u64 = 8 << 20;
/// How much faster a processor reads such weights than from memory: a Xeon 18 to 19 GB/s where memory gives
/// 15 to 16 (decision 0072).
const CACHED_READ_FACTOR: f64 = 1.2;
/// The part of [`CompleteRates::layer_s`] that a layer takes whose code and operands caches keep, too: 11 of
/// 68 µs with a hidden state of 1,024, 5 of 44 with one of 256 (the same decision).
const CACHED_LAYER_PART: f64 = 1.0 / 8.0;

/// Whether steps of the model say nothing of larger ones: its weights stay in the caches.
pub(crate) fn is_cached(shape: &ModelShape) -> bool {
    let layers = shape.layers.iter().map(|layer| layer.weight_bytes);
    layers.fold(shape.head_bytes, u64::saturating_add) <= CACHED_BYTES_MAX
}

/// How much faster or slower devices of a backend are with a type of weights than with Q8_0, of those that
/// were measured with both. Without it the one of two equal devices that was measured would look slower than
/// the other wherever a type is slower than Q8_0.
pub(crate) struct TypeRatios<'a> {
    sums: BTreeMap<(&'a str, DType), RatioSum>,
    is_cached: bool,
}

#[derive(Default)]
struct RatioSum {
    read: f64,
    flops: f64,
    count: f64,
}

impl<'a> TypeRatios<'a> {
    pub(crate) fn of(request: &'a PlanRequest) -> Self {
        let mut sums: BTreeMap<(&str, DType), RatioSum> = BTreeMap::new();
        for PlanDevice { device, rates, .. } in &request.devices {
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
        Self { sums, is_cached: is_cached(&request.shape) }
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
            let Some(RatioSum { read, flops, count }) = self.sums.get(&(&*of.device.backend, dtype)) else {
                continue;
            };
            for (own, sum) in [(&mut rates.read_by_type, read), (&mut rates.flops_by_type, flops)] {
                // Rates that are possible each by itself may give a product that is not.
                let follows =
                    |q8_0: &Figure| Figure::from(q8_0.value * sum / count, Source::Derived).plausible();
                if let Some(figure) = own.get(&DType::Q8_0).and_then(follows) {
                    own.entry(dtype).or_insert(figure);
                }
            }
        }
        if self.is_cached && of.device.kind == DeviceKind::Cpu {
            rates = in_cache(rates);
        }
        rates
    }
}

/// What a processor does with a model that its caches hold: it was measured with weights from memory.
fn in_cache(rates: CompleteRates) -> CompleteRates {
    let scaled = |figure: Figure, factor: f64| {
        let source = if figure.source == Source::Estimated { Source::Estimated } else { Source::Derived };
        Figure::from(figure.value * factor, source)
    };
    CompleteRates {
        read_bytes_per_s: scaled(rates.read_bytes_per_s, CACHED_READ_FACTOR),
        read_by_type: rates
            .read_by_type
            .into_iter()
            .map(|(t, f)| (t, scaled(f, CACHED_READ_FACTOR)))
            .collect(),
        layer_s: scaled(rates.layer_s, CACHED_LAYER_PART),
        ..rates
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
