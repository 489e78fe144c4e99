//! How fast a device computes, measured through the contract: any backend, no special case.
//!
//! A decode step reads each weight once, so a model that is larger than the last cache comes from memory in
//! every step. What decode is measured with is therefore put out of the caches in front of each pass, or is
//! larger than the last of them where the device cannot do that.

mod evict;
#[cfg(test)]
pub(crate) mod fake;
mod kv;
mod layer;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_backend::{
    AllocError, Alone, CancelToken, Device, Element, Op, Program, Recording, Rows, RunError, RunShape,
    Stream, Weight, WeightError,
};
use exo_types::{ComputeShare, DType, DeviceFacts, DeviceKind, KvRates, LayerRates, Provenance, TensorView};
use serde::{Deserialize, Serialize};

use self::evict::Evictor;
use self::layer::LayerBench;
use crate::processor::last_cache_bytes;
use crate::sustained::{Passes, passes};

/// Inputs of a measured matrix.
const COLS: usize = 2048;
/// Of each matrix that decode is measured with on a processor; on a graphics unit half of all, for each
/// starts a kernel there, which counts to a layer.
const MATRIX_BYTES: u64 = 32 << 20;
/// Of all these together, in times of the last cache. A cache that replaces lines at random still holds a
/// fifth of what is read in a circle of twice its size.
const CACHE_FACTOR: u64 = 2;
/// Of all together at least, and where the caches give them up: shorter passes are mostly waking threads.
const WEIGHT_BYTES_MIN: u64 = 2 * MATRIX_BYTES;
/// Of all together at most: twice what the last caches of servers hold.
const WEIGHT_BYTES_MAX: u64 = 1 << 30;
/// Of the memory that is free, the part that may be measured with.
const MEMORY_PART: u64 = 4;
/// The last cache where nothing names it, and that of cards: what the largest for desktops have (AMD X3D
/// 128 MiB, Apple Ultra 96; Radeon RX 6900 128, GeForce RTX 5090 96).
const CACHE_BYTES_USUAL: u64 = 128 << 20;
/// After which no further matrix is made: with the two windows it is most of the second that a start may
/// take.
const MAKING_MAX: Duration = Duration::from_millis(250);
/// What arithmetic is measured with: small enough to run several times.
const SMALL: Chunk = Chunk {
    tokens: DeviceFacts::CHUNK_ROWS as usize,
    tokens_few: None,
    rows: 2048,
    heads: 8,
    kv_heads: 4,
    layers_of_one_row: 1,
};
/// Of a step of several streams: on a processor neither one row nor a chunk says what it takes.
const STEP_ROWS: usize = DeviceFacts::STEP_ROWS as usize;
/// The same on a graphics unit: what starting a run takes is spread over layers.
const SMALL_OF_GRAPHICS: Chunk = Chunk { layers_of_one_row: 8, ..SMALL };
/// The same on one that a small chunk leaves idle: as many rows as nodes compute at once, and a few of
/// them, which take more than their part of the time.
const LARGE: Chunk =
    Chunk { tokens: 512, tokens_few: Some(64), rows: 8192, heads: 32, kv_heads: 8, ..SMALL_OF_GRAPHICS };
/// A graphics unit that passes a small chunk in less is measured with a large one, which takes 32 times as
/// long at the same rate.
const SMALL_CHUNK_MAX: Duration = Duration::from_micros(500);
/// In front of each of the two measurements.
const WARM_UP: Duration = Duration::from_millis(20);
/// Of decode: two periods of a quota.
const DECODE_WINDOW: Duration = Duration::from_millis(200);
/// Of prefill, whose passes are short: one period.
const PREFILL_WINDOW: Duration = Duration::from_millis(100);
/// Of a step of several rows, right behind the passes of one: a thirtieth of all that a start measures.
const STEP_WINDOW: Duration = Duration::from_millis(30);
/// Of prefill with few rows, on a device that a small chunk leaves idle.
const FEW_WINDOW: Duration = Duration::from_millis(30);
/// After which a device is taken to hang.
const DEADLINE: Duration = Duration::from_secs(10);

/// Measured rates of one device.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Calibration {
    /// Bytes of weights, as stored, read per second in a decode step: what decode speed follows from.
    pub read_bytes_per_s: f64,
    /// Multiply-adds times two per second in a prefill chunk.
    pub flops_per_s: f64,
    /// What a layer takes beside products, keys and values among it, where that was measured.
    pub layer: Option<LayerRates>,
    /// Bytes of weights of another type than Q8_0 that a step of [`DeviceFacts::STEP_ROWS`] rows passes per
    /// second; that of Q8_0 is in `layer`.
    pub read_16_rows_bytes_per_s: Option<f64>,
    /// The last cache held all that decode was measured with, for lack of memory or time, and the device may
    /// hold more: larger models are read more slowly.
    pub is_of_cache: bool,
    /// When, and in how many passes; `None` where no one has noted it.
    pub measured: Option<MeasuredAt>,
}

/// When something was measured, by the clock of this machine, and in how many passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MeasuredAt {
    /// In seconds since 1970.
    pub unix_s: u64,
    /// The fewest that what it reads or what it computes per second is the mean of.
    pub passes: u32,
}

impl MeasuredAt {
    /// In so many passes, at this moment.
    pub fn now(passes: u32) -> Self {
        Self { unix_s: exo_stdx::unix_s(), passes }
    }

    /// As the cluster is told of it. What is dated in the future was measured before the clock was set back,
    /// no one knows how long: it is as old as can be.
    pub fn told(self, now_unix_s: u64) -> Provenance {
        let age_s = now_unix_s.checked_sub(self.unix_s).unwrap_or(u64::MAX);
        Provenance { count: self.passes.max(1), age_s: 0 }.later(age_s)
    }
}

impl Calibration {
    /// With nothing else measured.
    pub fn of(read_bytes_per_s: f64, flops_per_s: f64) -> Self {
        Self { read_bytes_per_s, flops_per_s, ..Self::default() }
    }

    /// How often, and how long before now.
    pub fn told(&self) -> Option<Provenance> {
        self.measured.map(|at| at.told(exo_stdx::unix_s()))
    }

    /// What was measured all of the time, of the same device where it computes for a part of it: it rests in
    /// proportion to each op, so whatever it does takes so many times as long.
    pub fn for_share(self, share: ComputeShare) -> Self {
        let part = share.part();
        let of_kv = |KvRates { f32, f16, q8 }| KvRates { f32: f32 * part, f16: f16 * part, q8: q8 * part };
        let of_layer = |layer: LayerRates| LayerRates {
            prefill_read_bytes_per_s: layer.prefill_read_bytes_per_s * part,
            attention_flops_per_s: layer.attention_flops_per_s * part,
            activations_per_s: layer.activations_per_s * part,
            layer_s: layer.layer_s / part,
            kv_read_bytes_per_s: layer.kv_read_bytes_per_s.map(of_kv),
            read_16_rows_bytes_per_s: layer.read_16_rows_bytes_per_s.map(|rate| rate * part),
        };
        Self {
            read_bytes_per_s: self.read_bytes_per_s * part,
            flops_per_s: self.flops_per_s * part,
            layer: self.layer.map(of_layer),
            read_16_rows_bytes_per_s: self.read_16_rows_bytes_per_s.map(|rate| rate * part),
            ..self
        }
    }

    /// Whether it need not be measured again at a start. What no one has dated counts as if it were new.
    pub fn is_fresh(&self) -> bool {
        self.told().is_none_or(Provenance::is_fresh)
    }
}

/// A device could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CalibrationError {
    /// No memory for the matrices, keys and values (at least 110 MiB).
    #[error("no memory to measure with")]
    Alloc(#[from] AllocError),
    #[error("the device did not take the matrix to measure with")]
    Weight(#[from] WeightError),
    #[error("the measuring run failed")]
    Run(#[from] RunError),
}

/// Measures `device` with Q8_0 matrices, as [`calibrate_type`] does, and what a layer takes beside its
/// products and at which rate attention reads keys and values, unless it is so slow that no one would wait
/// for that: some 60 ms more on a processor, and no more than one round of its pieces past that.
pub fn calibrate(device: &dyn Device) -> Result<Calibration, CalibrationError> {
    let (prefill, chunk) = Chunk::for_device(device, DType::Q8_0)?;
    let layer = LayerBench::new(device, chunk).unwrap_or_else(|error| without_layer(&error));
    let found = measure(device, (prefill, chunk), DType::Q8_0, layer)?;
    let read_16_rows_bytes_per_s = found.read_16_rows_bytes_per_s;
    let layer = found.layer.map(|layer| LayerRates { read_16_rows_bytes_per_s, ..layer });
    Ok(Calibration { layer, read_16_rows_bytes_per_s: None, ..found })
}

/// What is derived instead is near enough for a device that computes.
fn without_layer<T>(error: &CalibrationError) -> Option<T> {
    tracing::info!(%error, "what a layer takes beside products is not measured");
    None
}

/// Measures `device` with matrices of this type: one row against weights that no cache holds, on a processor
/// [`DeviceFacts::STEP_ROWS`] against the same, then a chunk of rows against a matrix that is read often.
/// Takes about a second on a device that is not much slower than a laptop, and never more than six runs past
/// that.
pub fn calibrate_type(device: &dyn Device, dtype: DType) -> Result<Calibration, CalibrationError> {
    measure(device, Chunk::for_device(device, dtype)?, dtype, None)
}

/// A prefill chunk to measure with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chunk {
    tokens: usize,
    /// Rows of a smaller chunk that is passed beside it: what both take says what a chunk takes whatever
    /// its rows, and what each row adds.
    tokens_few: Option<usize>,
    /// Outputs of the matrix that it is multiplied with.
    rows: usize,
    /// H
    heads: usize,
    /// K
    kv_heads: usize,
    /// In the run that says what a layer of one row takes. More than one meet code and data in the nearest
    /// caches, which products put out of a processor's.
    layers_of_one_row: usize,
}

impl Chunk {
    /// What so many seconds for all rows and for few say that each row adds, and that none of them does.
    /// A difference that noise has made too small counts as a part of the whole.
    fn row_and_fixed_s(self, all_s: f64, tokens_few: usize, few_s: f64) -> (f64, f64) {
        let of_all = all_s / self.tokens as f64;
        let further = (self.tokens - tokens_few) as f64;
        let of_row = ((all_s - few_s) / further).max(of_all / 4.0).min(of_all);
        (of_row, all_s - of_row * self.tokens as f64)
    }

    /// That which fills the device, with a product of it.
    fn for_device(device: &dyn Device, dtype: DType) -> Result<(Bench, Self), CalibrationError> {
        let of = |chunk: Self| Bench::new(device, dtype, chunk.rows, chunk.tokens, 1);
        let (small, kind) = (of(SMALL)?, device.facts().kind);
        if kind == DeviceKind::Cpu {
            return Ok((small, SMALL));
        }
        let mut stream = device.stream()?;
        let mut took = Duration::MAX;
        // The first run may compile kernels, and another program may stop one of the others.
        for _ in 0..3 {
            let start = Instant::now();
            small.once(&mut *stream)?;
            took = took.min(start.elapsed());
        }
        match took < SMALL_CHUNK_MAX {
            true => Ok((of(LARGE)?, LARGE)),
            false => Ok((small, SMALL_OF_GRAPHICS)),
        }
    }
}

fn measure(
    device: &dyn Device,
    (prefill, chunk): (Bench, Chunk),
    dtype: DType,
    mut layer: Option<LayerBench>,
) -> Result<Calibration, CalibrationError> {
    let memory = device.memory();
    let mut evictor = Evictor::new(device, &prefill)?;
    let (cache_bytes, wanted_bytes) = match evictor.works() {
        true => (0, WEIGHT_BYTES_MIN.min(memory.free_bytes / MEMORY_PART)),
        false => {
            let cache_bytes = cache_bytes(device);
            (cache_bytes, weight_bytes(cache_bytes, memory.free_bytes))
        }
    };
    let (matrix_bytes, rows_max) = match device.facts().kind {
        DeviceKind::Cpu => (MATRIX_BYTES, STEP_ROWS),
        DeviceKind::IntegratedGpu | DeviceKind::DiscreteGpu => (MATRIX_BYTES.max(wanted_bytes / 2), 1),
    };
    let rows = matrix_bytes.div_ceil(row_bytes(dtype)) as usize;
    let decode = Bench::new(device, dtype, rows, rows_max, wanted_bytes)?;
    let step = decode.run(device, 1, DECODE_WINDOW, || {
        let was_cold = layer.as_mut().map_or(Ok(false), |layer| layer.cold(&mut evictor));
        let did_more = was_cold.unwrap_or_else(|error| {
            layer = without_layer(&error);
            true
        });
        evictor.evict(&decode)?;
        Ok(did_more)
    })?;
    let nothing_s = layer.as_ref().map_or(0.0, LayerBench::nothing_s);
    let read_bytes_per_s = rate(decode.weight_bytes as f64, step.mean_s, nothing_s);
    let read_16_rows_bytes_per_s = match rows_max {
        1 => None,
        _ => Some(rate(decode.weight_bytes as f64, step_s(device, &decode, &mut evictor, step)?, nothing_s)),
    };
    let is_of_cache = decode.weight_bytes <= cache_bytes && cache_bytes < memory.total_bytes;
    drop(decode);
    let pass = prefill.run(device, chunk.tokens, PREFILL_WINDOW, || Ok(false))?;
    let operations_of_row = (2 * COLS * chunk.rows) as f64;
    let mut count = step.count.min(pass.count);
    let flops_per_s = match chunk.tokens_few {
        Some(tokens_few) => {
            let few = prefill.run(device, tokens_few, FEW_WINDOW, || Ok(false))?;
            count = count.min(few.count);
            operations_of_row / chunk.row_and_fixed_s(pass.mean_s, tokens_few, few.mean_s).0
        }
        None => rate(operations_of_row * chunk.tokens as f64, pass.mean_s, nothing_s),
    };
    let layer = layer.map(|layer| layer.rates((step, read_bytes_per_s), &prefill, pass));
    let layer = layer.and_then(|rates| rates.map_or_else(|error| without_layer(&error), Some));
    let layer = layer.filter(LayerRates::is_plausible);
    let measured = Some(MeasuredAt::now(count));
    let rates = Calibration::of(read_bytes_per_s, flops_per_s);
    Ok(Calibration { layer, read_16_rows_bytes_per_s, is_of_cache, measured, ..rates })
}

/// What all rows of a step take with weights that no cache holds. The window is shorter than a quota stops a
/// device for, so they lose what the passes of one row in front of them lose.
fn step_s(
    device: &dyn Device,
    decode: &Bench,
    evictor: &mut Evictor<'_>,
    one_row: Passes,
) -> Result<f64, CalibrationError> {
    let mut stream = device.stream()?;
    let evict = || Ok::<_, CalibrationError>(evictor.evict(decode).map(|()| false)?);
    let all = passes(STEP_WINDOW, evict, || Ok(decode.once(&mut *stream)?))?;
    Ok(all.median_s * one_row.mean_s / one_row.median_s)
}

/// What every run costs is a step's, not that of what it reads: on a card a tenth of a pass. A pass that
/// takes little more than nothing is not believed.
fn rate(count: f64, pass_s: f64, nothing_s: f64) -> f64 {
    count / (pass_s - nothing_s).max(pass_s / 2.0)
}

/// What the last caches hold that the device's weights pass.
fn cache_bytes(device: &dyn Device) -> u64 {
    let told = match device.facts().kind {
        DeviceKind::Cpu | DeviceKind::IntegratedGpu => last_cache_bytes(Path::new("/")),
        DeviceKind::DiscreteGpu => None,
    };
    told.unwrap_or(CACHE_BYTES_USUAL)
}

/// Of the weights that decode is measured with where caches keep them.
fn weight_bytes(cache_bytes: u64, memory_free_bytes: u64) -> u64 {
    let beyond = cache_bytes.saturating_mul(CACHE_FACTOR).clamp(WEIGHT_BYTES_MIN, WEIGHT_BYTES_MAX);
    beyond.min(memory_free_bytes / MEMORY_PART)
}

/// Matrix products, ready to run.
struct Bench {
    program: Box<dyn Program>,
    weights: Vec<Weight>,
    tokens: usize,
    weight_bytes: u64,
}

impl Bench {
    /// With as many matrices as `all_bytes` are, one at least; fewer where making them takes too long.
    fn new(
        device: &dyn Device,
        dtype: DType,
        rows: usize,
        tokens: usize,
        all_bytes: u64,
    ) -> Result<Self, CalibrationError> {
        let x = device.buffer(Element::F32, tokens * COLS)?;
        let out = device.buffer(Element::F32, tokens * rows)?;
        let mut stream = device.stream()?;
        let ramp: Vec<f32> = (0..tokens * COLS).map(|i| (i % 17) as f32 - 8.0).collect();
        stream.upload_f32(&x, 0, &ramp)?;
        stream.synchronize(DEADLINE)?;
        let (mut bytes, start) = (Arc::new(matrix(row_bytes(dtype) as usize * rows)), Instant::now());
        let (mut ops, mut weights, mut weight_bytes) = (Vec::new(), Vec::new(), 0);
        let is_short_of_memory = || device.residence().mapped_because.is_some();
        let may_go_on = |bytes| bytes < all_bytes && start.elapsed() < MAKING_MAX && !is_short_of_memory();
        while ops.is_empty() || may_go_on(weight_bytes) {
            let weight = device.weight(&TensorView {
                name: "calibration".to_owned(),
                dtype,
                rows: rows as u64,
                cols: COLS as u64,
                range: 0..bytes.len(),
                source: bytes.clone(),
            })?;
            // A device that reads weights where they are must not find all of them in one place.
            if Arc::strong_count(&bytes) > 1 {
                bytes = Arc::new(bytes.to_vec());
            }
            weight_bytes += bytes.len() as u64;
            weights.push(weight.clone());
            let (x, out) = (x.clone(), out.clone());
            ops.push(Op::MatMul { weight, bias: None, x, out, rows: Rows::Tokens });
        }
        Ok(Self { program: device.compile(Recording { ops })?, weights, tokens, weight_bytes })
    }

    /// Runs with so many rows over a window, with something that does not count before each, as [`passes`]
    /// has it.
    fn run(
        &self,
        device: &dyn Device,
        tokens: usize,
        window: Duration,
        before: impl FnMut() -> Result<bool, CalibrationError>,
    ) -> Result<Passes, CalibrationError> {
        let mut stream = device.stream()?;
        let mut once = || Ok::<_, CalibrationError>(self.rows(&mut *stream, tokens)?);
        // The first runs meet cold pages, sleeping threads and low clocks.
        passes(WARM_UP, || Ok(false), &mut once)?;
        passes(window, before, once)
    }

    /// Whether the device has put the matrices out of its caches.
    fn evict(&self, device: &dyn Device) -> bool {
        self.weights.iter().all(|weight| device.evict(weight))
    }

    fn once(&self, stream: &mut dyn Stream) -> Result<(), RunError> {
        self.rows(stream, self.tokens)
    }

    /// As many as it was made for at most.
    fn rows(&self, stream: &mut dyn Stream, tokens: usize) -> Result<(), RunError> {
        run(stream, &*self.program, tokens)
    }
}

/// Runs a program with so many rows, to its end.
fn run(stream: &mut dyn Stream, program: &dyn Program, tokens: usize) -> Result<(), RunError> {
    let shape = RunShape { tokens, selected: 0 };
    stream.run(program, shape, &Alone, &CancelToken::default())?;
    stream.synchronize(DEADLINE)
}

/// How long that takes.
fn seconds(stream: &mut dyn Stream, program: &dyn Program, tokens: usize) -> Result<f64, RunError> {
    let start = Instant::now();
    run(stream, program, tokens)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Bytes of a row of [`COLS`] inputs.
fn row_bytes(dtype: DType) -> u64 {
    COLS as u64 / dtype.block_elements() * dtype.block_bytes()
}

/// Bytes of which any four, any two and any one are an ordinary number, whatever type reads them: none of
/// them subnormal.
fn matrix(bytes: usize) -> Vec<u8> {
    let period: [u8; 32] = std::array::from_fn(|i| 0x28 | ((i * 37) >> 2) as u8 & 7);
    let mut all = period.repeat(bytes.div_ceil(period.len()));
    all.truncate(bytes);
    all
}

#[cfg(test)]
mod tests {
    use exo_types::KvDType;

    use super::fake::{Event, FakeDevice};
    use super::*;

    /// Eviction puts the threads to sleep, so what a clock sees must come behind something that wakes them
    /// and brings nothing of it back.
    #[test]
    fn what_is_evicted_is_met_behind_a_product_of_other_matrices() {
        let device = FakeDevice::new(Duration::ZERO);
        calibrate(&device).unwrap();
        let (mut evicted, mut is_awake, mut of_decode, mut of_chunks) = (Vec::new(), false, 0, 0);
        for event in device.events() {
            match event {
                Event::Evicted { weight } => {
                    if is_awake {
                        evicted.clear();
                    }
                    evicted.push(weight);
                    is_awake = false;
                }
                Event::Ran { weights, tokens, .. }
                    if weights.iter().any(|weight| evicted.contains(weight)) =>
                {
                    assert!(is_awake, "{weights:?} of {evicted:?}");
                    of_decode += usize::from(tokens == 1);
                    of_chunks += usize::from(tokens > 1);
                    evicted.clear();
                }
                Event::Ran { weights, .. } => is_awake |= !weights.is_empty(),
                Event::EvictedKv { .. } => is_awake = false,
            }
        }
        assert!(of_decode > 10 && of_chunks >= 5, "{of_decode} passes, {of_chunks} chunks");
    }

    /// Of the type that layers are measured with, other programs read some, too.
    #[test]
    fn keys_and_values_of_each_type_are_met_once_behind_an_eviction_and_a_product() {
        let device = FakeDevice::new(Duration::ZERO);
        calibrate(&device).unwrap();
        for dtype in [KvDType::F32, KvDType::Q8] {
            let (mut is_evicted, mut is_awake, mut met) = (false, false, 0);
            for event in device.events() {
                match event {
                    Event::EvictedKv { dtype: of } if of == dtype => (is_evicted, is_awake) = (true, false),
                    Event::Ran { kv, weights, .. } if kv.contains(&dtype) => {
                        assert!(weights.is_empty() && kv.iter().all(|of| *of == dtype), "{kv:?}");
                        met += usize::from(is_evicted && is_awake);
                        is_evicted = false;
                    }
                    Event::Ran { weights, .. } => is_awake |= !weights.is_empty(),
                    Event::Evicted { .. } | Event::EvictedKv { .. } => {}
                }
            }
            assert!(met >= 5, "{dtype}: {met}");
        }
    }

    /// On a card kernels for few rows have a factor of their own.
    #[test]
    fn a_step_of_several_rows_is_measured_on_a_processor_with_what_one_row_was_behind_an_eviction() {
        let (processor, card) = (FakeDevice::processor(), FakeDevice::new(Duration::ZERO));
        let of_q8_0 = calibrate(&processor).unwrap();
        // Noise may make a difference of two times none that a device could have.
        assert!(of_q8_0.layer.is_none_or(|layer| layer.read_16_rows_bytes_per_s.is_some()));
        let (mut evicted, mut of_one, mut steps) = (Vec::new(), Vec::new(), 0);
        for event in processor.events() {
            match event {
                Event::Evicted { weight } => evicted.push(weight),
                Event::Ran { weights, tokens: STEP_ROWS, .. } => {
                    assert!(weights == of_one && weights.iter().all(|weight| evicted.contains(weight)));
                    evicted.clear();
                    steps += 1;
                }
                Event::Ran { weights, bytes, tokens: 1, .. } if bytes >= MATRIX_BYTES => of_one = weights,
                Event::Ran { .. } | Event::EvictedKv { .. } => {}
            }
        }
        assert!(steps > 0, "a machine that is held up passes fewer in the window");
        let of_type = calibrate_type(&processor, DType::Q4_0).unwrap();
        assert!(of_type.read_16_rows_bytes_per_s.is_some() && of_type.layer.is_none());
        assert_eq!(calibrate_type(&card, DType::Q4_0).unwrap().read_16_rows_bytes_per_s, None);
        let is_step = |event: &Event| matches!(event, Event::Ran { tokens: STEP_ROWS, .. });
        assert!(!card.events().iter().any(is_step));
    }

    #[test]
    fn a_device_that_evicts_too_slowly_is_measured_beyond_its_cache() {
        let decode_mib = |evict_takes| {
            let device = FakeDevice::new(evict_takes);
            calibrate_type(&device, DType::Q4_0).unwrap();
            let events = device.events();
            let evictions = events.iter().filter(|event| matches!(event, Event::Evicted { .. })).count();
            let bytes = events.iter().map(|event| match event {
                Event::Ran { bytes, tokens: 1, .. } => *bytes,
                _ => 0,
            });
            (bytes.max().unwrap() >> 20, evictions)
        };
        let (mib, evictions) = decode_mib(Duration::ZERO);
        assert!(mib == 64 && evictions > 10, "{mib} MiB, {evictions} evictions");
        // The fake device has 512 MiB free, of which a quarter may be measured with.
        assert_eq!(decode_mib(Duration::from_millis(3)), (128, 3));
    }

    #[test]
    fn the_fewest_passes_are_told_also_where_those_are_the_ones_of_few_rows() {
        let measured = calibrate_type(&FakeDevice::new(Duration::ZERO), DType::Q4_0).unwrap().measured;
        // Each takes the fake device 100 µs, and the shortest window is theirs.
        let most = FEW_WINDOW.as_micros() / 100 + 1;
        assert!(measured.is_some_and(|at| u128::from(at.passes) <= most), "{measured:?}");
    }

    #[test]
    fn the_bytes_of_a_matrix_are_ordinary_numbers_of_every_width() {
        let bytes = matrix(4096);
        let halves = bytes.windows(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]));
        assert!(halves.into_iter().all(|h| h.is_normal() && h.to_f32() < 1.0));
        let floats = bytes.windows(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        assert!(floats.into_iter().all(f32::is_normal));
        assert!((0..8).all(|low| bytes.contains(&(0x28 | low))), "values of several sizes");
    }

    #[test]
    fn what_is_read_exceeds_the_last_cache_within_the_memory() {
        let mib = |cache: u64, free: u64| weight_bytes(cache << 20, free << 20) >> 20;
        assert_eq!(mib(8, 16 << 10), 64, "a laptop");
        assert_eq!(mib(128, 16 << 10), 256);
        assert_eq!(mib(480, 16 << 10), 960, "a server");
        assert_eq!(mib(1152, 512 << 10), 1024, "what takes too long is said");
        assert_eq!(mib(480, 300), 75, "so is what does not fit");
    }

    #[test]
    fn what_every_run_costs_is_in_no_rate() {
        assert!((rate(240e6, 112e-6, 12e-6) / 2.4e12 - 1.0).abs() < 1e-9, "a card");
        assert!((rate(64e6, 4e-3, 0.0) / 16e9 - 1.0).abs() < 1e-9, "where it is not known");
        assert!((rate(1e6, 1e-6, 5e-6) / 2e12 - 1.0).abs() < 1e-9, "what noise has turned around");
    }

    #[test]
    fn who_rests_for_half_of_the_time_does_all_of_it_at_half_the_rate() {
        let calibration = |[read, flops, waits, attention, activations, kv]: [f64; 6], layer_s| Calibration {
            layer: Some(LayerRates {
                prefill_read_bytes_per_s: waits,
                attention_flops_per_s: attention,
                activations_per_s: activations,
                layer_s,
                kv_read_bytes_per_s: Some(KvRates { f32: kv, f16: kv, q8: kv }),
                read_16_rows_bytes_per_s: Some(read / 2.0),
            }),
            read_16_rows_bytes_per_s: Some(read / 4.0),
            is_of_cache: true,
            measured: Some(MeasuredAt { unix_s: 1, passes: 3 }),
            ..Calibration::of(read, flops)
        };
        let whole = calibration([30e9, 600e9, 90e9, 120e9, 4e9, 28e9], 15e-6);
        let half = calibration([15e9, 300e9, 45e9, 60e9, 2e9, 14e9], 30e-6);
        assert_eq!(whole.for_share("50%".parse().unwrap()), half);
        assert_eq!(whole.for_share(ComputeShare::FULL), whole);
    }

    #[test]
    fn a_small_chunk_says_what_is_fixed_and_what_each_row_adds() {
        let seconds = |tokens: usize| 40e-6 + 0.5e-6 * tokens as f64;
        let (row_s, fixed_s) = LARGE.row_and_fixed_s(seconds(512), 64, seconds(64));
        assert!((row_s / 0.5e-6 - 1.0).abs() < 1e-9 && (fixed_s / 40e-6 - 1.0).abs() < 1e-9);
        let (row_s, fixed_s) = LARGE.row_and_fixed_s(512e-6, 64, 20e-6);
        assert!(row_s <= 1e-6 && fixed_s >= 0.0, "a part of less than its rows have: {row_s} {fixed_s}");
        let (row_s, fixed_s) = LARGE.row_and_fixed_s(512e-6, 64, 900e-6);
        assert!(row_s > 0.0 && fixed_s > 0.0, "what noise has turned around: {row_s} {fixed_s}");
    }

    #[test]
    fn every_type_fills_whole_rows() {
        for dtype in DType::ALL {
            assert_eq!(dtype.bytes_of(COLS as u64), Some(row_bytes(dtype)), "{dtype:?}");
        }
    }
}
