//! The numbers a cost is computed from, where each comes from, and what stands in for one that is missing.
//!
//! A missing number never takes the prediction away: an estimate stands in, says so, and widens the range.
//! The estimates are cautious figures of common hardware: single-socket desktops with DDR4 (decode reads 8
//! GB/s of weights and computes 60 GFLOP/s), integrated units on shared memory (40 GB/s, 1 TFLOP/s), cards of
//! the GTX 1660 class (200 GB/s, 5 TFLOP/s).

use std::collections::BTreeMap;
use std::time::Duration;

use exo_types::{
    Correction, Corrections, DType, DeviceFacts, DeviceKind, KvDType, KvRates, LayerRates, Provenance,
    TypeRates,
};

use crate::few_rows::ProductRates;

/// A measurement older than this is stale.
const STALE_AFTER: Duration = Duration::from_secs(Provenance::FRESH_S as u64);
/// A number outside of these bounds is refused, whatever it measures: no rate of today's devices reaches
/// them.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 1e-9..=1e18;

/// Where a number comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// It was measured so long ago, so many times.
    Measured {
        /// Since the last measurement.
        age: Duration,
        /// Number of measurements.
        samples: u32,
    },
    /// A file or a specification states it.
    Stated,
    /// It follows from another measured number of the same device.
    Derived,
    /// Nothing is known of this device: a figure of its kind.
    Estimated,
}

impl Source {
    /// How far the truth may be from it, in per cent, either way.
    ///
    /// A measurement repeats within 10 % here (docs/benchmarks.md); specifications state peaks that kernels
    /// miss by up to a half; what was estimated may be off by a factor of three.
    pub fn error_percent(self) -> u64 {
        match self {
            Self::Measured { age, samples } if age <= STALE_AFTER => 10 + 5 * u64::from(samples < 2),
            Self::Measured { .. } => 30,
            Self::Stated => 50,
            Self::Derived => 60,
            Self::Estimated => 200,
        }
    }

    /// To be displayed.
    pub fn text(self) -> &'static str {
        match self {
            Self::Measured { age, .. } if age <= STALE_AFTER => "measured",
            Self::Measured { .. } => "measured long ago",
            Self::Stated => "stated",
            Self::Derived => "derived",
            Self::Estimated => "estimated",
        }
    }
}

/// A number and its source.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figure {
    /// The number, in the unit its field names.
    pub value: f64,
    /// Where it comes from.
    pub source: Source,
}

impl Figure {
    /// Measured just now, more than once.
    pub fn measured(value: f64) -> Self {
        Self { value, source: Source::Measured { age: Duration::ZERO, samples: 2 } }
    }

    /// Measured so many times, and so long ago for the last time.
    pub fn measured_at(value: f64, age: Duration, samples: u32) -> Self {
        Self { value, source: Source::Measured { age, samples } }
    }

    /// Said by a file or a specification.
    pub fn stated(value: f64) -> Self {
        Self { value, source: Source::Stated }
    }

    /// As a node tells it; just now where it does not say when.
    fn told(value: f64, measured: Option<Provenance>) -> Self {
        measured.map_or_else(
            || Self::measured(value),
            |Provenance { count, age_s }| Self::measured_at(value, Duration::from_secs(age_s.into()), count),
        )
    }

    pub(crate) fn from(value: f64, source: Source) -> Self {
        Self { value, source }
    }

    /// Itself, unless it is no number, zero, negative or absurd.
    pub fn plausible(self) -> Option<Self> {
        (self.value.is_finite() && PLAUSIBLE.contains(&self.value)).then_some(self)
    }
}

/// Rates of one device. Missing ones are `None`; [`Self::complete`] fills them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeviceRates {
    /// Weights that a decode step reads, bytes per second, for types without a rate of their own.
    pub read_bytes_per_s: Option<Figure>,
    /// The same, by type: bytes as files store them.
    pub read_by_type: BTreeMap<DType, Figure>,
    /// Multiply-adds times two of a prefill, per second, for types without a rate of their own.
    pub flops_per_s: Option<Figure>,
    /// The same, by type.
    pub flops_by_type: BTreeMap<DType, Figure>,
    /// Weights that a step of [`DeviceFacts::STEP_ROWS`] rows passes on a processor, bytes per second: of all
    /// types where none has a rate of its own, else of Q8_0. Further rows of a type without one are computed
    /// as those of a prefill.
    pub read_16_rows_bytes_per_s: Option<Figure>,
    /// The same, by type.
    pub read_16_rows_by_type: BTreeMap<DType, Figure>,
    /// Keys and values that attention of one row reads, bytes per second, for types without a rate of
    /// their own.
    pub kv_bytes_per_s: Option<Figure>,
    /// The same, by type.
    pub kv_by_type: BTreeMap<KvDType, Figure>,
    /// Weights that a prefill waits for, beside computing with them, bytes per second.
    pub prefill_read_bytes_per_s: Option<Figure>,
    /// Multiply-adds times two of attention of a prefill, per second.
    pub attention_flops_per_s: Option<Figure>,
    /// Activations of a layer that everything beside products and attention passes in a prefill, per second:
    /// each output of a product counts once.
    pub activations_per_s: Option<Figure>,
    /// Time that a layer of a step of one row takes beside products and attention, in seconds.
    pub layer_s: Option<Figure>,
    /// Time that every step takes on the device, in seconds.
    pub step_s: Option<Figure>,
    /// What real steps have shown of the rates: those of decode are reading weights, keys and values, those
    /// of prefill all others.
    pub corrections: Corrections,
}

impl DeviceRates {
    /// What a node's report says: of every device what its kernels reach.
    pub fn reported(facts: &DeviceFacts) -> Self {
        let told = |value| Figure::told(value, facts.rates_measured);
        let (read, flops) = (facts.read_bytes_per_s.map(told), facts.flops_per_s.map(told));
        let typed = |own: Option<Figure>, of: fn(&TypeRates) -> f64| {
            let own = own.map(|figure| (DType::Q8_0, figure));
            let others = facts.rates_by_type.iter();
            let others = others.map(|rates| (rates.dtype, Figure::told(of(rates), Some(rates.measured))));
            others.chain(own).collect()
        };
        let of_layer = |of: fn(&LayerRates) -> f64| facts.layer_rates.as_ref().map(of).map(told);
        let of_16_rows = facts.layer_rates.and_then(|rates| rates.read_16_rows_bytes_per_s).map(told);
        let of_type = |rates: &TypeRates| {
            let figure = Figure::told(rates.read_16_rows_bytes_per_s?, Some(rates.measured));
            Some((rates.dtype, figure))
        };
        let typed_16_rows = facts.rates_by_type.iter().filter_map(of_type);
        let kv = facts.layer_rates.and_then(|rates| rates.kv_read_bytes_per_s);
        let kv = kv.map(KvRates::by_type).into_iter().flatten();
        Self {
            read_by_type: typed(read, |rates| rates.read_bytes_per_s),
            flops_by_type: typed(flops, |rates| rates.flops_per_s),
            read_bytes_per_s: read,
            flops_per_s: flops,
            read_16_rows_bytes_per_s: of_16_rows,
            read_16_rows_by_type: typed_16_rows.chain(of_16_rows.map(|own| (DType::Q8_0, own))).collect(),
            prefill_read_bytes_per_s: of_layer(|rates| rates.prefill_read_bytes_per_s),
            attention_flops_per_s: of_layer(|rates| rates.attention_flops_per_s),
            activations_per_s: of_layer(|rates| rates.activations_per_s),
            layer_s: of_layer(|rates| rates.layer_s),
            kv_by_type: kv.map(|(of, rate)| (of, told(rate))).collect(),
            corrections: facts.corrections,
            ..Self::default()
        }
    }

    /// Every number: as given where that is plausible, else derived, else estimated by the kind of device;
    /// and rates as they were corrected.
    pub fn complete(&self, kind: DeviceKind) -> CompleteRates {
        let usual = usual(kind);
        let given = |figure: Option<Figure>| figure.and_then(Figure::plausible);
        let (read, flops) = (given(self.read_bytes_per_s), given(self.flops_per_s));
        // A device without a general rate reads other types as fast as the slowest it was measured with.
        let typed = self.read_by_type.values().filter_map(|f| f.plausible());
        let slowest = typed.min_by(|a, b| a.value.total_cmp(&b.value));
        let derived = |from: Option<Figure>, factor: f64| {
            from.map(|f| {
                let source = if f.source == Source::Estimated { Source::Estimated } else { Source::Derived };
                Figure::from(f.value * factor, source)
            })
        };
        let flops_per_byte = usual.flops_per_s / usual.read_bytes_per_s;
        let estimated = |value| Figure::from(value, Source::Estimated);
        let read = read
            .or_else(|| derived(slowest, 1.0))
            .or_else(|| derived(flops, 1.0 / flops_per_byte))
            .unwrap_or(estimated(usual.read_bytes_per_s));
        let flops = flops.or_else(|| derived(Some(read), flops_per_byte)).unwrap_or(read);
        // Where it is not measured: attention reads keys and values with the loads that read weights; a
        // processor converts them, too.
        let kv = given(self.kv_bytes_per_s).or_else(|| derived(Some(read), usual.kv_part)).unwrap_or(read);
        // A processor reads and computes by turns; a card has other rows to compute with meanwhile.
        let prefill_read = given(self.prefill_read_bytes_per_s)
            .or_else(|| derived(Some(read), usual.prefill_read_part))
            .unwrap_or(read);
        // Attention computes in floats where products may be of integers; the rest moves bytes.
        let attention = given(self.attention_flops_per_s)
            .or_else(|| derived(Some(flops), usual.attention_flops_per_s / usual.flops_per_s))
            .unwrap_or(flops);
        let activations = given(self.activations_per_s)
            .or_else(|| derived(Some(read), usual.activations_per_s / usual.read_bytes_per_s))
            .unwrap_or(read);
        let corrected = |figure: Figure, by: Option<Correction>| match by {
            Some(by) => Figure::from(figure.value * f64::from(by.percent) / 100.0, figure.source),
            None => figure,
        };
        let Corrections { decode, prefill } = self.corrections;
        let typed = |figures: &BTreeMap<DType, Figure>, by| -> BTreeMap<DType, Figure> {
            let of_type = |(t, f): (&DType, &Figure)| Some((*t, corrected(f.plausible()?, by)));
            figures.iter().filter_map(of_type).collect()
        };
        let kv_by_type =
            self.kv_by_type.iter().filter_map(|(of, f)| Some((*of, corrected(f.plausible()?, decode))));
        let (few_rows, few_rows_by_type) = match kind {
            DeviceKind::Cpu => self.few_rows([read, prefill_read, flops].map(|figure| figure.value)),
            DeviceKind::IntegratedGpu | DeviceKind::DiscreteGpu => Default::default(),
        };
        CompleteRates {
            few_rows,
            few_rows_by_type,
            read_bytes_per_s: corrected(read, decode),
            read_by_type: typed(&self.read_by_type, decode),
            flops_per_s: corrected(flops, prefill),
            flops_by_type: typed(&self.flops_by_type, prefill),
            kv_bytes_per_s: corrected(kv, decode),
            kv_by_type: kv_by_type.collect(),
            prefill_read_bytes_per_s: corrected(prefill_read, prefill),
            attention_flops_per_s: corrected(attention, prefill),
            activations_per_s: corrected(activations, prefill),
            layer_s: given(self.layer_s).unwrap_or(estimated(usual.layer_s)),
            step_s: given(self.step_s).unwrap_or(estimated(usual.step_s)),
        }
    }

    /// See [`CompleteRates::few_rows`] and its types, for which the general rates stand in.
    fn few_rows(&self, [read, waits, flops]: [f64; 3]) -> (Option<f64>, BTreeMap<DType, f64>) {
        let own = |figures: &BTreeMap<DType, Figure>, dtype: DType, general: f64| {
            figures.get(&dtype).and_then(|figure| figure.plausible()).map_or(general, |figure| figure.value)
        };
        let of_type = |(dtype, figure): (&DType, &Figure)| {
            let (read, flops) =
                (own(&self.read_by_type, *dtype, read), own(&self.flops_by_type, *dtype, flops));
            Some((*dtype, ProductRates { read, waits, flops }.part(*dtype, figure.plausible()?.value)))
        };
        let general = self.read_16_rows_bytes_per_s.and_then(Figure::plausible);
        let mut by_type: BTreeMap<DType, f64> =
            self.read_16_rows_by_type.iter().filter_map(of_type).collect();
        // Beside those of other types it is that of Q8_0, which devices report apart and files leave out.
        if let Some(figure) = general
            && !by_type.is_empty()
            && !by_type.contains_key(&DType::Q8_0)
        {
            by_type.extend(of_type((&DType::Q8_0, &figure)));
        }
        let general =
            general.map(|figure| ProductRates { read, waits, flops }.part(DType::Q8_0, figure.value));
        (general, by_type)
    }
}

/// [`DeviceRates`] with nothing missing.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // as in `DeviceRates`
pub struct CompleteRates {
    /// At which part of a prefill's rate of arithmetic a processor computes the further rows of a step of
    /// [`DeviceFacts::STEP_ROWS`], by what was measured; no correction changes it.
    pub few_rows: Option<f64>,
    /// The same, by type.
    pub few_rows_by_type: BTreeMap<DType, f64>,
    pub read_bytes_per_s: Figure,
    pub read_by_type: BTreeMap<DType, Figure>,
    pub flops_per_s: Figure,
    pub flops_by_type: BTreeMap<DType, Figure>,
    pub kv_bytes_per_s: Figure,
    pub kv_by_type: BTreeMap<KvDType, Figure>,
    pub prefill_read_bytes_per_s: Figure,
    pub attention_flops_per_s: Figure,
    pub activations_per_s: Figure,
    pub layer_s: Figure,
    pub step_s: Figure,
}

impl CompleteRates {
    /// At which rate it reads a type: its own, or else the general one, which then follows from another type.
    pub fn read_of(&self, dtype: DType) -> Figure {
        of_type(&self.read_by_type, dtype, self.read_bytes_per_s)
    }

    /// The same of arithmetic.
    pub fn flops_of(&self, dtype: DType) -> Figure {
        of_type(&self.flops_by_type, dtype, self.flops_per_s)
    }

    /// At which part of a prefill's rate it computes further rows with a type; `None` where that was not
    /// measured with it.
    pub(crate) fn few_rows_of(&self, dtype: DType) -> Option<f64> {
        let general = self.few_rows.filter(|_| self.few_rows_by_type.is_empty());
        self.few_rows_by_type.get(&dtype).copied().or(general)
    }

    /// Weights of a type that a step of [`DeviceFacts::STEP_ROWS`] rows passes by these rates, as they were
    /// corrected; `None` where that was not measured with it.
    pub fn read_16_rows_of(&self, dtype: DType) -> Option<f64> {
        let part = self.few_rows_by_type.get(&dtype)?;
        let [read, waits, flops] =
            [self.read_of(dtype), self.prefill_read_bytes_per_s, self.flops_of(dtype)].map(|f| f.value);
        Some(ProductRates { read, waits, flops }.step_bytes_per_s(dtype, *part))
    }

    /// At which rate it reads keys and values of a type.
    pub(crate) fn kv_of(&self, kv: KvDType) -> Figure {
        self.kv_by_type.get(&kv).copied().unwrap_or(self.kv_bytes_per_s)
    }
}

fn of_type(own: &BTreeMap<DType, Figure>, dtype: DType, general: Figure) -> Figure {
    own.get(&dtype).copied().unwrap_or(match general.source {
        Source::Measured { .. } if !own.is_empty() => Figure::from(general.value, Source::Derived),
        _ => general,
    })
}

struct Usual {
    read_bytes_per_s: f64,
    kv_part: f64,
    prefill_read_part: f64,
    flops_per_s: f64,
    attention_flops_per_s: f64,
    activations_per_s: f64,
    layer_s: f64,
    step_s: f64,
}

/// A cautious member of each kind. A layer on a card is about ten launches of 2 µs. A step is a submission
/// and a readback there, and waking the threads on a processor.
fn usual(kind: DeviceKind) -> Usual {
    match kind {
        DeviceKind::Cpu => Usual {
            read_bytes_per_s: 8e9,
            kv_part: 0.75,
            prefill_read_part: 0.5,
            flops_per_s: 60e9,
            attention_flops_per_s: 20e9,
            activations_per_s: 1e9,
            layer_s: 20e-6,
            step_s: 50e-6,
        },
        DeviceKind::IntegratedGpu => Usual {
            read_bytes_per_s: 40e9,
            kv_part: 1.0,
            prefill_read_part: 10.0,
            flops_per_s: 1e12,
            attention_flops_per_s: 250e9,
            activations_per_s: 5e9,
            layer_s: 20e-6,
            step_s: 100e-6,
        },
        DeviceKind::DiscreteGpu => Usual {
            read_bytes_per_s: 200e9,
            kv_part: 1.0,
            prefill_read_part: 10.0,
            flops_per_s: 5e12,
            attention_flops_per_s: 1250e9,
            activations_per_s: 25e9,
            layer_s: 20e-6,
            step_s: 100e-6,
        },
    }
}

/// Round trip of a link that nobody measured: a busy Wi-Fi.
pub(crate) const RTT_ESTIMATED: Figure = Figure { value: 5e-3, source: Source::Estimated };
/// Its rate: 100 Mbit/s.
pub(crate) const LINK_RATE_ESTIMATED: Figure = Figure { value: 12.5e6, source: Source::Estimated };

#[cfg(test)]
mod tests {
    use exo_types::DeviceId;

    use super::*;

    #[test]
    fn what_is_missing_is_derived_or_estimated_and_says_so() {
        let nothing = DeviceRates::default().complete(DeviceKind::Cpu);
        assert_eq!(nothing.read_bytes_per_s, Figure::from(8e9, Source::Estimated));
        assert_eq!(nothing.flops_per_s.source, Source::Estimated);
        let read = DeviceRates { read_bytes_per_s: Some(Figure::measured(16e9)), ..DeviceRates::default() };
        let rates = read.complete(DeviceKind::Cpu);
        assert_eq!(rates.read_bytes_per_s.value, 16e9);
        assert_eq!(rates.flops_per_s, Figure::from(120e9, Source::Derived));
        assert_eq!(rates.kv_bytes_per_s, Figure::from(12e9, Source::Derived));
        assert_eq!(rates.prefill_read_bytes_per_s.source, Source::Derived);
        assert_eq!(rates.attention_flops_per_s, Figure::from(40e9, Source::Derived));
        assert_eq!(rates.activations_per_s, Figure::from(2e9, Source::Derived));
    }

    #[test]
    fn keys_and_values_are_read_at_the_rate_that_was_measured_with_their_type() {
        let kv_read_bytes_per_s = Some(KvRates { f32: 9e9, f16: 7e9, q8: 5e9 });
        let layer_rates = LayerRates {
            prefill_read_bytes_per_s: 1e9,
            attention_flops_per_s: 1e9,
            activations_per_s: 1e9,
            layer_s: 1e-5,
            kv_read_bytes_per_s,
            read_16_rows_bytes_per_s: None,
        };
        let of = |layer_rates, corrections| {
            let facts = DeviceFacts {
                read_bytes_per_s: Some(16e9),
                layer_rates: Some(layer_rates),
                corrections,
                ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "", "", 1)
            };
            let rates = DeviceRates::reported(&facts).complete(DeviceKind::Cpu);
            KvDType::ALL.map(|kv| (rates.kv_of(kv).value, rates.kv_of(kv).source.text()))
        };
        let measured = [(9e9, "measured"), (7e9, "measured"), (5e9, "measured")];
        assert_eq!(of(layer_rates, Corrections::default()), measured);
        let halved = Corrections { decode: Some(Correction { percent: 50, samples: 3 }), prefill: None };
        assert_eq!(of(layer_rates, halved).map(|(rate, _)| rate), [4.5e9, 3.5e9, 2.5e9]);
        let earlier = LayerRates { kv_read_bytes_per_s: None, ..layer_rates };
        assert_eq!(of(earlier, Corrections::default()), [(12e9, "derived"); 3]);
    }

    #[test]
    fn absurd_numbers_count_as_missing() {
        for absurd in [f64::NAN, 0.0, -5.0, f64::INFINITY, 1e30] {
            let rates =
                DeviceRates { read_bytes_per_s: Some(Figure::measured(absurd)), ..DeviceRates::default() };
            assert_eq!(rates.complete(DeviceKind::Cpu).read_bytes_per_s.value, 8e9, "{absurd}");
        }
    }

    #[test]
    fn what_was_learned_changes_the_rates_of_its_own_phase_only() {
        let learned = |percent| Some(Correction { percent, samples: 3 });
        let rates = |decode, prefill| {
            let corrections = Corrections { decode, prefill };
            let given = DeviceRates {
                read_bytes_per_s: Some(Figure::measured(16e9)),
                flops_per_s: Some(Figure::measured(1e12)),
                read_by_type: BTreeMap::from([(DType::Q4_K, Figure::measured(8e9))]),
                flops_by_type: BTreeMap::from([(DType::Q4_K, Figure::measured(5e11))]),
                attention_flops_per_s: Some(Figure::measured(4e11)),
                activations_per_s: Some(Figure::measured(2e9)),
                layer_s: Some(Figure::measured(1e-5)),
                corrections,
                ..DeviceRates::default()
            };
            let rates = given.complete(DeviceKind::Cpu);
            [
                rates.read_bytes_per_s,
                rates.read_by_type[&DType::Q4_K],
                rates.kv_bytes_per_s,
                rates.flops_per_s,
                rates.flops_by_type[&DType::Q4_K],
                rates.attention_flops_per_s,
                rates.activations_per_s,
                rates.layer_s,
            ]
            .map(|figure| figure.value)
        };
        assert_eq!(rates(None, None), [16e9, 8e9, 12e9, 1e12, 5e11, 4e11, 2e9, 1e-5]);
        assert_eq!(rates(learned(50), None), [8e9, 4e9, 6e9, 1e12, 5e11, 4e11, 2e9, 1e-5]);
        assert_eq!(rates(None, learned(150)), [16e9, 8e9, 12e9, 1.5e12, 7.5e11, 6e11, 3e9, 1e-5]);
    }

    #[test]
    fn what_a_step_of_several_rows_passed_says_how_its_type_is_computed_whatever_was_learned() {
        let figure = |rate: f64| Figure::measured(rate);
        let given = DeviceRates {
            read_bytes_per_s: Some(figure(30e9)),
            flops_per_s: Some(figure(764e9)),
            prefill_read_bytes_per_s: Some(figure(1e17)),
            read_16_rows_bytes_per_s: Some(figure(23e9)),
            read_16_rows_by_type: BTreeMap::from([
                (DType::Q8_0, figure(23e9)),
                (DType::Q4_K, figure(11e9)),
                (DType::F16, figure(f64::NAN)),
            ]),
            ..DeviceRates::default()
        };
        let rates = given.complete(DeviceKind::Cpu);
        let [q8_0, q4_k] = [DType::Q8_0, DType::Q4_K].map(|dtype| rates.few_rows_of(dtype).unwrap());
        assert!(q8_0 > 1.2 && q4_k < 1.0, "{q8_0} {q4_k}");
        assert_eq!([DType::F16, DType::F32].map(|dtype| rates.few_rows_of(dtype)), [None; 2]);
        let passes = rates.read_16_rows_of(DType::Q4_K).unwrap();
        assert!((passes / 11e9 - 1.0).abs() < 1e-6, "{passes}");
        let halved = Some(Correction { percent: 50, samples: 3 });
        let corrections = Corrections { decode: halved, prefill: halved };
        let slower = DeviceRates { corrections, ..given.clone() }.complete(DeviceKind::Cpu);
        assert_eq!(slower.few_rows_by_type, rates.few_rows_by_type);
        let passes = slower.read_16_rows_of(DType::Q4_K).unwrap();
        assert!((passes / 5.5e9 - 1.0).abs() < 1e-6, "{passes}");
        let general = DeviceRates { read_16_rows_by_type: BTreeMap::new(), ..given.clone() };
        assert_eq!(general.complete(DeviceKind::Cpu).few_rows_of(DType::F16), Some(q8_0));
        let of_q4_k = BTreeMap::from([(DType::Q4_K, figure(11e9))]);
        let beside = DeviceRates { read_16_rows_by_type: of_q4_k, ..given.clone() }.complete(DeviceKind::Cpu);
        let beside = [DType::Q8_0, DType::Q4_K, DType::F16].map(|dtype| beside.few_rows_of(dtype));
        assert_eq!(beside, [Some(q8_0), Some(q4_k), None], "beside other types it is that of Q8_0");
        let card = given.complete(DeviceKind::DiscreteGpu);
        assert!(card.few_rows.is_none() && card.few_rows_by_type.is_empty());
    }

    #[test]
    fn stale_and_missing_numbers_are_less_certain() {
        let old = Source::Measured { age: STALE_AFTER * 2, samples: 9 };
        let fresh = Source::Measured { age: Duration::ZERO, samples: 9 };
        let errors =
            [fresh, old, Source::Stated, Source::Derived, Source::Estimated].map(Source::error_percent);
        assert!(errors.is_sorted() && errors[0] < errors[4], "{errors:?}");
    }
}
