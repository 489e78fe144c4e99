//! Takes the samples: for each number of threads and type of cache an engine, for each test its repetitions, and
//! beside each repetition what the machine could do at that moment.

use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use exo_backend::{CancelToken, Device};
use exo_backend_cpu::probe::{BandwidthProbe, Instruction, PageSize, Reading, peak};
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_engine::{Engine, EngineOptions};
use exo_types::{KvDType, Shard};

use super::lane::{Lane, is_cancelled, timed};
use super::memory;
use super::plan::{Plan, Test};
use super::work::{Work, kv_bytes_per_token};
use crate::commands::subject::Subject;
use crate::ui;

/// Prompt of the first token after a load: short, so that it measures the load.
pub const FIRST_PROMPT_TOKENS: u32 = 8;

/// All that was measured so far.
#[derive(Default)]
pub struct Measured {
    pub model: Option<Described>,
    pub memory: Vec<MemoryRates>,
    pub loads: Vec<Load>,
    pub rows: Vec<Row>,
}

impl Measured {
    pub fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }
}

/// What was measured, and where.
#[derive(Clone)]
pub struct Described {
    pub name: String,
    pub architecture: String,
    pub work: Work,
    pub processor: String,
    pub cores: usize,
}

/// What reading memory reaches with a number of threads.
#[derive(Clone, Copy)]
pub struct MemoryRates {
    pub threads: usize,
    pub small: Reading,
    pub huge: Reading,
    /// How much of the memory for `huge` was in 2 MiB pages.
    pub huge_share: Option<f64>,
}

/// One engine, from file to first token.
#[derive(Clone)]
pub struct Load {
    pub threads: usize,
    pub kv: KvDType,
    /// As the device names itself, for example `cpu/avx2`.
    pub backend: String,
    /// Opening the file and taking the weights in.
    pub load_s: f64,
    /// From before the file was opened to the first token of a prompt of 8.
    pub first_token_s: f64,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    pub workspace_bytes: u64,
    /// Of the process while this engine ran, the memory of the probes taken off.
    pub peak_rss_bytes: Option<u64>,
}

/// One test on one engine.
#[derive(Clone)]
pub struct Row {
    pub test: Test,
    pub threads: usize,
    pub kv: KvDType,
    pub backend: String,
    pub cost: Cost,
    pub samples: Vec<Sample>,
}

/// What bounds a test, and how much of it one sample takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cost {
    /// Decode: bytes of weights, and of keys and values.
    Bytes { weights: f64, kv: f64 },
    /// Prefill: multiply-adds, on what instruction if there is a probe for it.
    Products { count: f64, instruction: Option<Instruction> },
}

/// One repetition.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub seconds: f64,
    /// What the machine could do: the better of the probes before and after, bytes or products per second.
    pub limit: Option<f64>,
}

/// Measures everything into `sink`. A cancellation is no error.
pub fn all(
    subject: &Subject,
    plan: &Plan,
    sink: &Mutex<Measured>,
    cancel: &CancelToken,
) -> anyhow::Result<()> {
    let bench = Bench { subject, plan, sink, cancel, spinner: ui::spinner() };
    let result = bench.run();
    bench.spinner.finish_and_clear();
    match result {
        Err(error) if cancel.is_cancelled() && is_cancelled(&error) => Ok(()),
        other => other,
    }
}

struct Bench<'a> {
    subject: &'a Subject,
    plan: &'a Plan,
    sink: &'a Mutex<Measured>,
    cancel: &'a CancelToken,
    spinner: indicatif::ProgressBar,
}

impl Bench<'_> {
    fn run(&self) -> anyhow::Result<()> {
        let model = self.subject.open()?;
        self.plan.check_context(model.config.context_tokens_max)?;
        let described = Described {
            name: model.name.clone(),
            architecture: model.config.architecture.to_string(),
            work: Work::of(&model)?,
            processor: exo_device::processor_name("/".as_ref()).unwrap_or_default(),
            cores: exo_device::cores(),
        };
        drop(model);
        let work = described.work;
        self.sink(|m| m.model = Some(described));
        let huge = self.memory_rates()?;
        for &threads in &self.plan.threads {
            for &kv in &self.plan.kv {
                self.engine(threads, kv, &work, &huge)?;
            }
        }
        Ok(())
    }

    /// Reads memory in both sizes of pages; the probe for huge ones is kept for the samples.
    fn memory_rates(&self) -> anyhow::Result<BandwidthProbe> {
        self.spinner.set_message("measuring memory");
        let small = BandwidthProbe::new(PageSize::Small)?;
        let small: Vec<Reading> = self.plan.threads.iter().map(|t| small.read(*t)).collect();
        let huge = BandwidthProbe::new(PageSize::Huge)?;
        let huge_share = huge.huge_share();
        for (&threads, small) in self.plan.threads.iter().zip(small) {
            let rates = MemoryRates { threads, small, huge: huge.read(threads), huge_share };
            self.sink(|m| m.memory.push(rates));
        }
        Ok(huge)
    }

    /// Loads an engine and runs every test on it.
    fn engine(&self, threads: usize, kv: KvDType, work: &Work, probe: &BandwidthProbe) -> anyhow::Result<()> {
        memory::reset_peak();
        let (mut lane, device, mut load) = self.load(threads, kv)?;
        let note_peak = |load: &mut Load| {
            load.peak_rss_bytes = memory::peak_rss_bytes().map(|peak| peak.saturating_sub(probe.bytes()));
        };
        note_peak(&mut load);
        let index = self.sink(|m| {
            m.loads.push(load.clone());
            m.loads.len() - 1
        });
        let report = lane.engine().report();
        let positions = u64::from(report.pages_total) * u64::from(lane.engine().options().page_tokens);
        let position_bytes = report.kv_bytes / positions.max(1);
        for &test in &self.plan.tests {
            let cost = match test {
                Test::Prefill { tokens, .. } => Cost::Products {
                    count: work.prefill_products(tokens) as f64,
                    instruction: Instruction::for_weights(device.isa(), work.dtype),
                },
                Test::Decode { tokens, depth, .. } => Cost::Bytes {
                    weights: work.step_weight_bytes as f64 * f64::from(tokens),
                    kv: kv_bytes_per_token(position_bytes, depth, tokens) * f64::from(test.tokens()),
                },
            };
            let row = Row { test, threads, kv, backend: load.backend.clone(), cost, samples: Vec::new() };
            let result = self.samples(&mut lane, row, probe);
            note_peak(&mut load);
            self.sink(|m| m.loads[index] = load.clone());
            result?;
        }
        Ok(())
    }

    /// From the file to the first token.
    fn load(
        &self,
        threads: usize,
        kv: KvDType,
    ) -> anyhow::Result<(Lane<'_>, std::sync::Arc<CpuDevice>, Load)> {
        let began = std::time::Instant::now();
        let model = self.subject.open()?;
        let device = CpuDevice::open(CpuOptions {
            threads: Some(threads),
            isa: self.plan.cpu_isa,
            mmap: self.plan.mmap,
            ..CpuOptions::default()
        })?;
        let options =
            EngineOptions { kv_dtype: kv, ..EngineOptions::new(self.plan.context(), self.plan.streams()) };
        let shard = Shard::whole(model.config.layers);
        let mut progress = |p: exo_engine::LoadProgress| {
            let percent = p.bytes_done * 100 / p.bytes_total.max(1);
            self.spinner.set_message(format!("loading for {threads} threads: {percent} %"));
        };
        let engine =
            Engine::load(device.clone(), &model, shard, options, &mut progress).with_context(|| {
                format!(
                    "cannot load {} with {} sequences of {} tokens and a {} cache",
                    model.name,
                    self.plan.streams(),
                    self.plan.context(),
                    kv
                )
            })?;
        let load_s = began.elapsed().as_secs_f64();
        let report = engine.report();
        let mut lane = Lane::new(engine, self.cancel);
        lane.open(1, FIRST_PROMPT_TOKENS)?;
        lane.prefill(0, FIRST_PROMPT_TOKENS, true)?;
        let load = Load {
            threads,
            kv,
            backend: device.facts().backend,
            load_s,
            first_token_s: began.elapsed().as_secs_f64(),
            weight_bytes: report.weight_bytes,
            kv_bytes: report.kv_bytes,
            workspace_bytes: report.workspace_bytes,
            peak_rss_bytes: None,
        };
        Ok((lane, device, load))
    }

    /// Prepares one test, warms up and repeats it. What was sampled before an error or a cancellation is kept.
    fn samples(&self, lane: &mut Lane<'_>, mut row: Row, probe: &BandwidthProbe) -> anyhow::Result<()> {
        let (test, threads) = (row.test, row.threads);
        self.spinner.set_message(format!("{test}, {threads} threads: preparing"));
        let prompt = match test {
            Test::Prefill { tokens, depth } => depth + tokens,
            Test::Decode { depth, .. } => depth + 1,
        };
        lane.open(test.streams(), prompt)?;
        for index in 0..test.streams() as usize {
            lane.prefill(index, test.depth(), false)?;
        }
        once(lane, test, Some(lane.engine().options().chunk_tokens_max))?;
        let limit = || match row.cost {
            Cost::Bytes { .. } => Some(probe.read(threads).bytes_per_s),
            Cost::Products { instruction, .. } => instruction.and_then(|i| peak(i, threads)),
        };
        let mut samples = Vec::new();
        let result = (0..self.plan.repetitions).try_for_each(|n| {
            let message = format!("{test}, {threads} threads: {} of {}", n + 1, self.plan.repetitions);
            self.spinner.set_message(message);
            let before = limit();
            let seconds = once(lane, test, None)?;
            let after = limit();
            samples.push(Sample { seconds, limit: before.into_iter().chain(after).reduce(f64::max) });
            Ok(())
        });
        row.samples = samples;
        if !row.samples.is_empty() {
            self.sink(|m| m.rows.push(row));
        }
        result
    }

    fn sink<T>(&self, change: impl FnOnce(&mut Measured) -> T) -> T {
        change(&mut self.sink.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs a test once from its depth: seconds. A warm-up does one step of at most `warm_up` tokens.
fn once(lane: &mut Lane<'_>, test: Test, warm_up: Option<u32>) -> anyhow::Result<f64> {
    lane.rewind(test.depth())?;
    match test {
        Test::Prefill { tokens, depth } => {
            // A token drawn inside the prompt would take the place of the rest of it.
            let (tokens, sample) = warm_up.map_or((tokens, true), |max| (tokens.min(max), false));
            timed(|| lane.prefill(0, depth + tokens, sample))
        }
        Test::Decode { tokens, .. } => timed(|| lane.decode(warm_up.map_or(tokens, |_| 1))),
    }
}
