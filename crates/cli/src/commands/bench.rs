//! `exo bench`: what a model does on this machine, with the machine's own limits measured beside each number.
//!
//! Runs without node or API, on the processor in this process, on a graphics processor in a child
//! ([`compute`](super::compute)). `plan` turns the arguments into tests, `synthetic` makes weights in one of
//! the shapes where no file is given, `lane` drives an engine, `measure` takes the samples, `limit` what
//! bounds them, `work` says how many bytes and products a step costs, `report` prints.

pub mod lane;
mod limit;
mod measure;
mod memory;
mod memory_check;
mod model_costs;
mod plan;
mod report;
mod stats;
pub mod synthetic;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use exo_backend::CancelToken;

use super::compute::{Compute, Runs};
use super::interrupt::{COMPUTING_MAX, INTERRUPTED, or_interrupt};
use super::subject::Subject;
use crate::args::Bench;
use crate::config::Config;
use crate::shapes::Shape;
use crate::ui;
use measure::BenchResults;
use plan::{BenchPlan, Settings};

use synthetic::Synthetic;

/// Measures and prints. After Ctrl-C prints what was measured until then.
pub async fn run(config: &Config, args: Bench) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        threads: config.text("threads"),
        cores: config.cores()?,
        kv: config.text("kv"),
        cpu_isa: crate::run_node::cpu_isa(config)?,
        mmap: config.parse("mmap")?,
        share: config.parse("compute_share")?,
    };
    let plan = BenchPlan::new(&args, &settings)?;
    let compute = match Compute::open(config).await? {
        Runs::Here(compute) => compute,
        Runs::InChild(code) => return Ok(code),
    };
    let weights = Weights::find(&args, config)?;
    for warning in plan.warnings(&compute) {
        ui::warning(&warning);
    }
    let cancel = CancelToken::default();
    let measured = Arc::new(Mutex::new(BenchResults::default()));
    let (sink, token) = (measured.clone(), cancel.clone());
    let work = tokio::task::spawn_blocking(move || {
        let subject = weights.subject(&compute, &plan, &token)?;
        measure::all(&subject, &compute, &plan, &sink, &token)
    });
    let finished = or_interrupt(work, COMPUTING_MAX, || cancel.cancel()).await?;
    let measured = std::mem::take(&mut *measured.lock().unwrap_or_else(PoisonError::into_inner));
    if !measured.is_empty() {
        report::print(&measured, args.format())?;
    }
    Ok(finished.map_or(ExitCode::from(INTERRUPTED), |()| ExitCode::SUCCESS))
}

/// Where the weights come from.
enum Weights {
    Stored(Subject),
    Random(Synthetic),
}

impl Weights {
    fn find(args: &Bench, config: &Config) -> anyhow::Result<Self> {
        if let Some(model) = &args.model {
            return Ok(Self::Stored(Subject::find(model, &config.data_dir())?));
        }
        let shape =
            args.shape.as_deref().and_then(Shape::find).context("neither a model nor a shape is given")?;
        Ok(Self::Random(Synthetic::new(&shape, args.stored, args.seed)))
    }

    /// Makes what must be made, if it and the tests have room.
    fn subject(self, compute: &Compute, plan: &BenchPlan, cancel: &CancelToken) -> anyhow::Result<Subject> {
        let synthetic = match self {
            Self::Stored(subject) => return Ok(subject),
            Self::Random(synthetic) => synthetic,
        };
        plan.check_context(synthetic.context_tokens_max())?;
        memory_check::check(&synthetic, compute, plan)?;
        Ok(Subject::Made(synthetic.make(cancel)?))
    }
}
