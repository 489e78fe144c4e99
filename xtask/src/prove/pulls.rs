//! A model comes from a hub: how fast beside `curl` and the disk, how much of a line it fills on which
//! answers break off, what is fetched again when it is killed, and what three nodes fetch that run it
//! together. But for the last, each part is `exo pull` without a node, from start to end, what it looks
//! through at its end included.
//!
//! The hub is the mock hub, an optimised process of its own that serves from memory.

mod broken_line;
mod hub;
mod killed;
mod loopback;
mod swarm;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};

use self::hub::Model;
use super::Verdict;
use crate::run;
use crate::wire::Wire;

#[derive(Args)]
pub struct Options {
    /// Size of the model on loopback, and of the one whose download is killed
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..=8192))]
    mib: u64,
    /// Size of the model behind the line
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=8192))]
    line_mib: u64,
    /// The line between hub and machine, for example 100:5
    #[arg(long, value_name = "MBIT:MS", default_value = "100:5")]
    line: Wire,
    /// How often exo, curl and the disk take turns on loopback
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Of one download
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    kills: u32,
    /// What bytes and moments of kills are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A GGUF file that three nodes run together; without, that part is left out
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// What the hub of those three sends at most, in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    uplink: u64,
    /// Only these parts: loopback, line, kills, swarm
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Beside curl and the disk.
    Loopback,
    /// Behind a line on which answers break off.
    Line,
    /// A download that is killed.
    Kills,
    /// Three nodes, each of which fetches its own layers.
    Swarm,
}

impl Options {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Runs the parts, a line each.
pub fn prove(exo: PathBuf, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    let mock_hub = hub::build()?;
    // On the disk that is measured, which the folder for temporary files may not be.
    let folder = tempfile::Builder::new().prefix("exo-pulls-").tempdir_in(run::target_dir()?);
    let folder = folder.context("no folder for the models")?;
    let programs = Programs { exo, mock_hub, folder: folder.path().to_owned() };
    let mut verdicts = Vec::new();
    if options.has(Part::Loopback) || options.has(Part::Kills) {
        let model = Model::write(&programs.folder.join("large"), options.mib, options.seed)?;
        if options.has(Part::Loopback) {
            verdicts.push(loopback::prove(&programs, &model, options.rounds)?);
        }
        if options.has(Part::Kills) {
            verdicts.push(killed::prove(&programs, &model, options.kills, options.seed)?);
        }
        model.remove()?;
    }
    if options.has(Part::Line) {
        let model = Model::write(&programs.folder.join("small"), options.line_mib, options.seed)?;
        verdicts.push(broken_line::prove(&programs, &model, options.line)?);
    }
    if options.has(Part::Swarm) {
        verdicts.push(swarm::prove(&programs, options.model.as_deref(), options.uplink)?);
    }
    Ok(verdicts)
}

/// What is run, and where its files go.
struct Programs {
    exo: PathBuf,
    mock_hub: PathBuf,
    folder: PathBuf,
}

/// Of a part that cannot be run here.
fn skipped(part: &str, why: &str) -> Verdict {
    Verdict { line: format!("pulls {part}: skipped: {why}"), is_kept: true }
}
