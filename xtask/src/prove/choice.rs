//! Whether the plan is the best of what there is: on two nodes the placement that a plan chooses is measured
//! beside the model alone on each node and split in several places, in either order.
//!
//! What counts is what the plan minimises, the time of a prompt and its answer, from outside. Rounds over all
//! placements stand in turns; the median of a placement's answers counts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::Verdict;
use super::cluster::Cluster;
use super::lan::Lan;
use super::predictions::{prompt_tokens, wait_measured};
use super::wire::Wire;
use crate::bench::cells::median;
use crate::setup;

/// The least speed of the plan's placement, in speeds of the best that was measured.
const RATIO_MIN: f64 = 0.95;
const NODES: usize = 2;
/// Parts of the layers that the first stage of a split has.
const QUARTERS: [u64; 3] = [1, 2, 3];
const ANSWER_MAX: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct Options {
    /// An exo binary instead of this tree's, which is built
    #[arg(long, value_name = "FILE")]
    exo: Option<PathBuf>,
    /// A GGUF file instead of the demo model, whose steps are mostly what a plan has no rate for
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Rounds over all placements
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Answers of a placement in a round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    answers: u32,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=32768))]
    prompt: u32,
    /// Tokens of an answer
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    answer: u32,
    /// Machines of their own with links of so many Mbit/s and milliseconds each way, as in 100:5; needs root
    #[arg(long, value_name = "MBIT:MS")]
    link: Option<Wire>,
    /// The part of its time that the second node computes
    #[arg(long, value_name = "10%..100%", default_value = "100%")]
    last_share: String,
}

/// Layers on nodes, in the order in which a token passes them.
#[derive(Clone, PartialEq, Debug)]
struct Placement(Vec<(String, u64, u64)>);

impl Placement {
    /// As a plan and an order take it.
    fn pins(&self) -> Vec<String> {
        self.0.iter().map(|(device, start, end)| format!("{device}={start}..{end}")).collect()
    }

    fn planned(plan: &Value) -> anyhow::Result<Self> {
        let stage = |stage: &Value| {
            let device = stage["node_name"].as_str().zip(stage["device"].as_str());
            let (node, device) = device.context("a stage has no device")?;
            let [start, end] = ["start", "end"].map(|key| stage["layers"][key].as_u64());
            let (start, end) = start.zip(end).context("a stage has no layers")?;
            Ok((format!("{node}/{device}"), start, end))
        };
        let stages = plan["stages"].as_array().context("the plan has no stages")?;
        Ok(Self(stages.iter().map(stage).collect::<anyhow::Result<_>>()?))
    }
}

/// The plan's, alone on each device, and split between them after each quarter in either order; each once.
fn placements(planned: &Placement, devices: &[String], layers: u64) -> Vec<Placement> {
    let mut all = vec![planned.clone()];
    all.extend(devices.iter().map(|device| Placement(vec![(device.clone(), 0, layers)])));
    for (first, second) in devices.iter().zip(devices.iter().rev()) {
        for cut in QUARTERS.map(|quarters| layers * quarters / 4).into_iter().filter(|cut| *cut > 0) {
            all.push(Placement(vec![(first.clone(), 0, cut), (second.clone(), cut, layers)]));
        }
    }
    let mut once: Vec<Placement> = Vec::new();
    for placement in all {
        if !once.contains(&placement) {
            once.push(placement);
        }
    }
    once
}

/// Prints the table; the verdict sums it up.
pub fn prove(options: &Options) -> anyhow::Result<Verdict> {
    let exo = setup::exo_binary(options.exo.as_deref())?;
    let lan = options.link.map(|wire| Lan::with_wires(NODES, wire)).transpose()?;
    let mut cluster = Cluster::start_on(&exo, NODES, lan, |at| {
        let share = if at + 1 == NODES { &options.last_share } else { "100%" };
        vec!["--speculate=off".to_owned(), "--threads=1".to_owned(), format!("--compute-share={share}")]
    })?;
    let model = cluster.model(options.model.as_deref())?;
    cluster.wait_united()?;
    wait_measured(&cluster)?;
    let context = options.prompt + options.answer;
    let query = json!({
        "model": model, "context_tokens": context, "slots": 1, "prompt_tokens": options.prompt,
        "answer_tokens": options.answer,
    });
    let server = cluster.nodes().first().context("the cluster has no node")?.server.clone();
    let plan = server.post("/exo/v1/plan", &query, ANSWER_MAX)?;
    let planned = Placement::planned(&plan)?;
    let layers = planned.0.last().map(|stage| stage.2).context("the plan has no stages")?;
    let devices = plan["devices"].as_array().into_iter().flatten();
    let devices = devices.filter_map(|device| {
        Some(format!("{}/{}", device["node_name"].as_str()?, device["device"].as_str()?))
    });
    let devices: Vec<String> = devices.collect();
    if devices.len() != NODES {
        bail!("the plan looks at {} devices instead of {NODES}", devices.len());
    }

    let placements = placements(&planned, &devices, layers);
    let mut took: Vec<Vec<f64>> = vec![Vec::new(); placements.len()];
    let mut number = 0;
    for _ in 0..options.rounds {
        for (placement, took) in placements.iter().zip(&mut took) {
            let order = json!({
                "model": model, "context_tokens": context, "slots": 1, "pins": placement.pins(), "replace": true,
            });
            let instance = cluster.place_as(0, &order)?;
            cluster.wait_settled(&instance)?;
            // The first answer meets cold caches.
            for at in 0..=options.answers {
                number += 1;
                let body = json!({
                    "model": model, "prompt": prompt_tokens(options.prompt, number),
                    "max_tokens": options.answer, "temperature": 0, "ignore_eos": true,
                });
                let began = Instant::now();
                server.post("/v1/completions", &body, ANSWER_MAX)?;
                if at > 0 {
                    took.push(began.elapsed().as_secs_f64());
                }
            }
        }
    }
    cluster.stop()?;
    let medians = took.into_iter().map(|took| median(took).context("nothing was measured"));
    verdict(&model, &placements, &medians.collect::<anyhow::Result<Vec<f64>>>()?)
}

/// Of seconds for each placement; the plan's is the first.
fn verdict(model: &str, placements: &[Placement], seconds: &[f64]) -> anyhow::Result<Verdict> {
    let best = seconds.iter().copied().min_by(f64::total_cmp).context("nothing was measured")?;
    println!("| placement of {model} | seconds | speed, of the best |\n|---|---|---|");
    for (at, (placement, seconds)) in placements.iter().zip(seconds).enumerate() {
        let mark = if at == 0 { " (the plan's)" } else { "" };
        println!("| {}{mark} | {seconds:.2} | {:.2} |", placement.pins().join(", "), best / seconds);
    }
    let planned = best / seconds.first().context("nothing was measured")?;
    Ok(Verdict {
        line: format!(
            "choice: the plan's placement of {model} has {planned:.2} of the speed of the best of {} (at least {RATIO_MIN})",
            placements.len()
        ),
        is_kept: planned >= RATIO_MIN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_is_there_once_and_the_plans_is_the_first() {
        let devices = ["anna/cpu", "ben/cpu"].map(str::to_owned);
        let halves = Placement(vec![("ben/cpu".to_owned(), 0, 4), ("anna/cpu".to_owned(), 4, 8)]);
        let all = placements(&halves, &devices, 8);
        assert_eq!(
            all.len(),
            8,
            "two alone, three cuts in either order, of which the plan's is one: {all:?}"
        );
        assert_eq!(all[0].pins(), ["ben/cpu=0..4", "anna/cpu=4..8"]);
        assert_eq!(all[1].pins(), ["anna/cpu=0..8"]);
        let plan = json!({ "stages": [
            { "node_name": "ben", "device": "cpu", "layers": { "start": 0, "end": 4 } },
            { "node_name": "anna", "device": "cpu", "layers": { "start": 4, "end": 8 } },
        ] });
        assert_eq!(Placement::planned(&plan).unwrap(), halves);
    }

    #[test]
    fn the_plans_placement_is_held_to_the_best() {
        let devices = ["anna/cpu", "ben/cpu"].map(str::to_owned);
        let solo = Placement(vec![("anna/cpu".to_owned(), 0, 1)]);
        let all = placements(&solo, &devices, 1);
        assert_eq!(all.len(), 2, "one layer cannot be split");
        assert!(verdict("m", &all, &[1.0, 0.96]).unwrap().is_kept);
        assert!(!verdict("m", &all, &[1.0, 0.9]).unwrap().is_kept);
    }
}
