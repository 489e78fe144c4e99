//! What devices that are alike tell of types of weights that one of them was not measured with.

use std::collections::BTreeMap;

use exo_types::{DType, DeviceKind, LayerRange, ModelShape, NodeId, TypeBytes};

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

/// No type of weights is so many times faster or slower than Q8_0 with the same kernels. A ratio beyond is
/// not believed: it would make devices of others look as fast as their member likes.
const RATIO_MAX: f64 = 32.0;

/// How much faster or slower devices of a backend are with a type of weights than with Q8_0, of those that
/// were measured with both. Without it the one of two equal devices that was measured would look slower than
/// the other wherever a type is slower than Q8_0.
pub(crate) struct TypeRatios<'a> {
    medians: BTreeMap<(&'a str, DType), TypeRatio>,
    is_cached: bool,
}

/// One ratio for each device that was measured with both types, or for each member.
#[derive(Default)]
struct MeasuredRatios {
    read: Vec<f64>,
    flops: Vec<f64>,
    few_rows: Vec<f64>,
}

impl MeasuredRatios {
    fn median(self) -> Option<TypeRatio> {
        let few_rows = lower_median(self.few_rows);
        Some(TypeRatio { read: lower_median(self.read)?, flops: lower_median(self.flops)?, few_rows })
    }
}

#[derive(Clone, Copy)]
struct TypeRatio {
    read: f64,
    flops: f64,
    /// See [`CompleteRates::few_rows`]; of those that were measured with several rows.
    few_rows: Option<f64>,
}

impl<'a> TypeRatios<'a> {
    pub(crate) fn of(request: &'a PlanRequest) -> Self {
        let mut of_nodes: BTreeMap<(&str, DType, NodeId), MeasuredRatios> = BTreeMap::new();
        for PlanDevice { node, device, rates, .. } in &request.devices {
            let ratio = |of: &BTreeMap<DType, Figure>, dtype: DType| {
                let [one, q8_0] = [dtype, DType::Q8_0].map(|of_type| of.get(&of_type)?.plausible());
                let ratio = one?.value / q8_0?.value;
                (1.0 / RATIO_MAX..=RATIO_MAX).contains(&ratio).then_some(ratio)
            };
            let few_rows = rates.complete(device.kind).few_rows_by_type;
            for &dtype in rates.read_by_type.keys().filter(|dtype| **dtype != DType::Q8_0) {
                if let Some((read, flops)) =
                    ratio(&rates.read_by_type, dtype).zip(ratio(&rates.flops_by_type, dtype))
                {
                    let measured = of_nodes.entry((&device.backend, dtype, *node)).or_default();
                    measured.read.push(read);
                    measured.flops.push(flops);
                    measured.few_rows.extend(few_rows.get(&dtype));
                }
            }
        }
        // A member has one say, however many devices it has.
        let mut all: BTreeMap<(&str, DType), MeasuredRatios> = BTreeMap::new();
        for ((backend, dtype, _), measured) in of_nodes {
            let Some(TypeRatio { read, flops, few_rows }) = measured.median() else { continue };
            let of_backend = all.entry((backend, dtype)).or_default();
            of_backend.read.push(read);
            of_backend.flops.push(flops);
            of_backend.few_rows.extend(few_rows);
        }
        let medians = all.into_iter().filter_map(|(of, measured)| Some((of, measured.median()?)));
        Self { medians: medians.collect(), is_cached: is_cached(&request.shape) }
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
            let ratio = self.medians.get(&(&*of.device.backend, dtype));
            let Some(&TypeRatio { read, flops, few_rows }) = ratio else { continue };
            for (own, ratio) in [(&mut rates.read_by_type, read), (&mut rates.flops_by_type, flops)] {
                // Rates that are possible each by itself may give a product that is not.
                let follows = |q8_0: &Figure| Figure::from(q8_0.value * ratio, Source::Derived).plausible();
                if let Some(figure) = own.get(&DType::Q8_0).and_then(follows) {
                    own.entry(dtype).or_insert(figure);
                }
            }
            if let Some(part) = few_rows.filter(|_| rates.few_rows_by_type.contains_key(&DType::Q8_0)) {
                rates.few_rows_by_type.entry(dtype).or_insert(part);
            }
        }
        if self.is_cached && of.device.kind == DeviceKind::Cpu {
            rates = in_cache(rates);
        }
        rates
    }
}

/// The middle one, of two the lower: beside a member that does not lie, one that does makes no device of
/// another faster.
fn lower_median(mut ratios: Vec<f64>) -> Option<f64> {
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len().saturating_sub(1) / 2).copied()
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
