//! Takes the samples: for each number of threads (on the processor) and type of cache an engine, for each
//! test its repetitions, and beside each repetition what the machine could do at that moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use exo_backend::{CancelToken, Device};
use exo_backend_cpu::probe::{BandwidthProbe, Instruction, PageSize, ReadRate};
use exo_backend_cpu::{CpuDevice, CpuOptions, Packing};
use exo_engine::{Engine, EngineOptions};
use exo_types::{KvDType, Shard};

use super::lane::{Lane, is_cancelled, timed};
use super::limit::{Limit, copy_rate};
use super::memory;
use super::model_costs::{ModelCosts, kv_bytes_per_token};
use super::plan::{BenchPlan, Test};
use crate::commands::compute::Compute;
use crate::commands::subject::Subject;
use crate::ui;

/// Prompt of the first token after a load: short, so that it measures the load.
pub const FIRST_PROMPT_TOKENS: u32 = 8;

/// For weights to be packed: those of 100 GB at 200 MB/s.
const SETTLE_MAX: Duration = Duration::from_secs(500);

/// All that was measured so far.
#[derive(Default)]
pub struct BenchResults {
    pub model: Option<Described>,
    /// Of the processor only.
    pub memory: Vec<MemoryRates>,
    pub loads: Vec<Load>,
    pub rows: Vec<Row>,
}

impl BenchResults {
    pub fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }
}

/// What was measured, and where.
#[derive(Clone)]
pub struct Described {
    pub name: String,
    pub architecture: String,
    pub work: ModelCosts,
    pub processor: String,
    /// The graphics processor that computes.
    pub device: Option<String>,
    pub cores: usize,
}

/// What reading memory reaches with a number of threads.
#[derive(Clone, Copy)]
pub struct MemoryRates {
    pub threads: usize,
    pub small: ReadRate,
    pub huge: ReadRate,
    /// How much of the memory for `huge` was in 2 MiB pages.
    pub huge_share: Option<f64>,
}

/// One engine, from file to first token.
#[derive(Clone)]
pub struct Load {
    /// On the processor.
    pub threads: Option<usize>,
    pub kv: KvDType,
    /// As the device names itself, for example `cpu/avx2`.
    pub backend: String,
    /// Opening the file and taking the weights in.
    pub load_s: f64,
    /// From before the file was opened to the first token of a prompt of 8.
    pub first_token_s: f64,
    /// To all weights packed in memory, which tests wait for.
    pub settled_s: f64,
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
    /// On the processor.
    pub threads: Option<usize>,
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
    compute: &Compute,
    plan: &BenchPlan,
    sink: &Mutex<BenchResults>,
    cancel: &CancelToken,
) -> anyhow::Result<()> {
    let bench = Bench { subject, compute, plan, sink, cancel, spinner: ui::spinner() };
    let result = bench.run();
    bench.spinner.finish_and_clear();
    match result {
        Err(error) if cancel.is_cancelled() && is_cancelled(&error) => Ok(()),
        other => other,
    }
}

struct Bench<'a> {
    subject: &'a Subject,
    compute: &'a Compute,
    plan: &'a BenchPlan,
    sink: &'a Mutex<BenchResults>,
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
            work: ModelCosts::of(&model)?,
            processor: exo_device::processor_name("/".as_ref()).unwrap_or_default(),
            device: match self.compute {
                Compute::Processor => None,
                Compute::Card(device) => Some(device.facts().name),
            },
            cores: exo_device::cores(),
        };
        drop(model);
        let work = described.work;
        self.sink(|m| m.model = Some(described));
        match self.compute {
            Compute::Processor => self.processor(&work),
            Compute::Card(device) => {
                self.plan.kv.iter().try_for_each(|&kv| self.card(device.clone(), kv, &work))
            }
        }
    }

    fn processor(&self, work: &ModelCosts) -> anyhow::Result<()> {
        let probe = self.memory_rates()?;
        for &threads in &self.plan.threads {
            for &kv in &self.plan.kv {
                memory::reset_peak();
                let began = Instant::now();
                let device = CpuDevice::open(CpuOptions {
                    threads: Some(threads),
                    cores: self.plan.cores.clone(),
                    isa: self.plan.cpu_isa,
                    mmap: self.plan.mmap,
                    share: self.plan.share,
                    // As in a node.
                    packing: Packing::BEHIND,
                    memory_limit_bytes: None,
                })?;
                let isa = device.isa();
                let loaded = self.load(device, Some(threads), kv, began)?;
                let instruction = Instruction::for_weights(isa, work.dtype);
                let limit = Limit::Processor { threads, probe: &probe, instruction };
                self.tests(loaded, work, limit)?;
            }
        }
        Ok(())
    }

    fn card(&self, device: Arc<dyn Device>, kv: KvDType, work: &ModelCosts) -> anyhow::Result<()> {
        memory::reset_peak();
        let loaded = self.load(device.clone(), None, kv, Instant::now())?;
        // After the model: what it leaves is enough for a copy.
        self.tests(loaded, work, Limit::Card { copy: copy_rate(&device) })
    }

    /// Reads memory in both sizes of pages; the probe for huge ones is kept for the samples.
    fn memory_rates(&self) -> anyhow::Result<BandwidthProbe> {
        self.spinner.set_message("measuring memory");
        let small = BandwidthProbe::new(PageSize::Small)?;
        let small: Vec<ReadRate> = self.plan.threads.iter().map(|t| small.read(*t)).collect();
        let huge = BandwidthProbe::new(PageSize::Huge)?;
        let huge_share = huge.huge_share();
        for (&threads, small) in self.plan.threads.iter().zip(small) {
            let rates = MemoryRates { threads, small, huge: huge.read(threads), huge_share };
            self.sink(|m| m.memory.push(rates));
        }
        Ok(huge)
    }

    /// Runs every test on a loaded engine.
    fn tests(&self, loaded: (Lane<'_>, Load), work: &ModelCosts, mut limit: Limit<'_>) -> anyhow::Result<()> {
        let (mut lane, mut load) = loaded;
        let of_probe = limit.bytes();
        let note_peak = |load: &mut Load| {
            load.peak_rss_bytes = memory::peak_rss_bytes().map(|peak| peak.saturating_sub(of_probe));
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
                    instruction: limit.instruction(),
                },
                Test::Decode { tokens, depth, .. } => Cost::Bytes {
                    weights: work.step_weight_bytes as f64 * f64::from(tokens),
                    kv: kv_bytes_per_token(position_bytes, depth, tokens) * f64::from(test.tokens()),
                },
            };
            let (threads, kv, backend) = (load.threads, load.kv, load.backend.clone());
            let row = Row { test, threads, kv, backend, cost, samples: Vec::new() };
            let result = self.samples(&mut lane, row, &mut limit);
            note_peak(&mut load);
            self.sink(|m| m.loads[index] = load.clone());
            result?;
        }
        Ok(())
    }

    /// From the file to the first token; `began` is when the device was opened.
    fn load(
        &self,
        device: Arc<dyn Device>,
        threads: Option<usize>,
        kv: KvDType,
        began: Instant,
    ) -> anyhow::Result<(Lane<'_>, Load)> {
        let mut model = self.subject.open()?;
        model.take_tokenizer();
        // As long as a node makes them.
        let chunk_tokens_max = exo_planner::CHUNK_TOKENS;
        let usual = EngineOptions::new(self.plan.context(), self.plan.streams());
        let options = EngineOptions { kv_dtype: kv, chunk_tokens_max, ..usual };
        let shard = Shard::whole(model.config.layers);
        let mut progress = |p: exo_engine::LoadProgress| {
            let percent = p.bytes_done * 100 / p.bytes_total.max(1);
            self.spinner.set_message(format!("loading{}: {percent} %", on_threads(threads)));
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
        let first_token_s = began.elapsed().as_secs_f64();
        lane.settle(SETTLE_MAX)?;
        let load = Load {
            threads,
            kv,
            backend: device.facts().backend,
            load_s,
            first_token_s,
            settled_s: began.elapsed().as_secs_f64(),
            weight_bytes: report.weight_bytes,
            kv_bytes: report.kv_bytes,
            workspace_bytes: report.workspace_bytes,
            peak_rss_bytes: None,
        };
        Ok((lane, load))
    }

    /// Prepares one test, warms up and repeats it. What was sampled before an error or a cancellation is
    /// kept.
    fn samples(&self, lane: &mut Lane<'_>, mut row: Row, limit: &mut Limit<'_>) -> anyhow::Result<()> {
        let (test, on) = (row.test, on_threads(row.threads));
        self.spinner.set_message(format!("{test}{on}: preparing"));
        let prompt = match test {
            Test::Prefill { tokens, depth } => depth + tokens,
            Test::Decode { depth, .. } => depth + 1,
        };
        lane.open(test.streams(), prompt)?;
        for index in 0..test.streams() as usize {
            lane.prefill(index, test.depth(), false)?;
        }
        once(lane, test, Some(lane.engine().options().chunk_tokens_max))?;
        let mut samples = Vec::new();
        let result = (0..self.plan.repetitions).try_for_each(|n| {
            let message = format!("{test}{on}: {} of {}", n + 1, self.plan.repetitions);
            self.spinner.set_message(message);
            let before = limit.now(&row.cost);
            let seconds = once(lane, test, None)?;
            let after = limit.now(&row.cost);
            samples.push(Sample { seconds, limit: before.into_iter().chain(after).reduce(f64::max) });
            Ok(())
        });
        row.samples = samples;
        if !row.samples.is_empty() {
            self.sink(|m| m.rows.push(row));
        }
        result
    }

    fn sink<T>(&self, change: impl FnOnce(&mut BenchResults) -> T) -> T {
        change(&mut self.sink.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn on_threads(threads: Option<usize>) -> String {
    threads.map_or_else(String::new, |threads| format!(" on {threads} threads"))
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
