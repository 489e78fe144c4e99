//! `exo worker`: one shard on a graphics processor, for the node whose child this is. Not for people.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use exo_node::{SystemHost, WorkerProgram};

use crate::config::Config;
use crate::system;

/// The scheduler's bound for a step.
const STEP_BROKEN_OFF: Duration = Duration::from_secs(30);

/// How a node starts workers: as this very program.
pub fn program(config: &Config) -> anyhow::Result<WorkerProgram> {
    let program: PathBuf = std::env::current_exe().context("cannot find the exo program itself")?;
    let args = ["worker", "--log", config.text("log")].map(OsString::from).to_vec();
    let seconds: f64 = config.parse("step_max_s")?;
    let step_max = Duration::try_from_secs_f64(seconds).ok();
    let step_max = step_max.filter(|max| !max.is_zero() && *max < STEP_BROKEN_OFF).with_context(|| {
        format!(
            "setting `step_max_s` is `{seconds}`: it must be above 0 and below {}, after which steps are broken off anyway",
            STEP_BROKEN_OFF.as_secs()
        )
    })?;
    Ok(WorkerProgram { program, args, step_max })
}

/// Serves until standard input ends.
pub fn run() -> anyhow::Result<()> {
    let output = system::own_output().context("cannot use standard output")?;
    exo_node::serve_worker(std::io::stdin(), output, &SystemHost, system::die);
    Ok(())
}
